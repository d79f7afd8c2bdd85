"""The notations in which models write calls, each a row of strings and what reads them."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from mlxbun.domain.conversation.markup.json_calls import (
    MISTRAL,
    Headed,
    Shape,
    bare_json,
    kimi_name,
    mistral,
    tagged_json,
)
from mlxbun.domain.conversation.markup.literal_calls import (
    FUNCTION_GEMMA,
    GEMMA4,
    Unquoted,
    bare_expressions,
    lfm,
    llama4,
    olmo,
    python_tag,
)
from mlxbun.domain.conversation.markup.reader import CallMarkup, ThoughtTags
from mlxbun.domain.conversation.markup.tagged_calls import (
    DSML,
    DSML4,
    DSML41,
    GLM,
    KIMI3,
    LONGCAT,
    MINICPM,
    MINIMAX,
    MUSE,
    QWEN,
    SEED,
    Tags,
)

DEEPSEEK = Headed(
    "<｜tool▁call▁begin｜>",
    "<｜tool▁sep｜>",
    "<｜tool▁call▁end｜>",
    ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
)
KIMI = Headed(
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
    ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
    kimi_name,
)

CUSTOM = Headed("<function=", ">", "</function>")

XTML = ThoughtTags(  # Kimi K3
    "<|open|>think<|sep|>",
    "<|close|>think<|sep|>",
    sentinel=True,
    tokens=frozenset(("<|open|>", "<|close|>", "<|sep|>")),
    frames=("<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>"),
)


class Notation(Struct, frozen=True):
    """How a family writes calls.  `tokens` may be special tokens, which text leaves out.

    `stops` are tokens that end an answer; `thought` are its own tags of thoughts, if no others do.
    """

    name: str
    calls: CallMarkup
    tokens: frozenset[str] = frozenset()
    stops: tuple[str, ...] = ()
    thought: ThoughtTags | None = None


def _headed(name: str, headed: Headed) -> Notation:
    shapes = {headed.section[0]: headed.first, headed.open: headed.one}
    closers = frozenset((headed.close, headed.section[1]))
    tokens = {headed.open, headed.middle, headed.close, *headed.section}
    return Notation(name, CallMarkup(shapes, sentinel=True, closers=closers), frozenset(tokens))


def _tagged(name: str, *all_tags: Tags, sentinel: str = "") -> Notation:
    """Return the notation of any of `all_tags`, which contain the token `sentinel` if given."""
    shapes: dict[str, Shape] = {}
    closers: set[str] = set()
    tokens = {sentinel}
    for tags in all_tags:
        shapes |= {tags.section[0]: tags.first, tags.call: tags.one}
        closers |= {tags.section[1], tags.call_end}
        tokens |= {*tags.section, tags.call_end, tags.key, tags.key_end, tags.value, tags.value_end}
    calls = CallMarkup(
        {opener: shape for opener, shape in shapes.items() if opener},
        sentinel=bool(sentinel),
        closers=frozenset(closers - {""}),
    )
    return Notation(name, calls, frozenset(tokens - {""}))


def _unquoted(name: str, unquoted: Unquoted, stop: str) -> Notation:
    calls = CallMarkup(
        {unquoted.open: unquoted.shape}, sentinel=True, closers=frozenset((unquoted.close,))
    )
    tokens = frozenset((unquoted.open, unquoted.close, unquoted.delimiter))
    return Notation(name, calls, tokens, (stop,))


def _enclosed(
    name: str,
    open: str,
    close: str,
    shape: Shape | None = None,
    *,
    bare: Mapping[str, Shape] | None = None,
    sentinel: bool = True,
    stops: tuple[str, ...] = (),
) -> Notation:
    """Return the notation of calls between `open` and `close`: JSON, unless `shape` is given."""
    shapes = {open: shape or tagged_json(close)}
    calls = CallMarkup(shapes, bare or {}, sentinel, frozenset((close,)))
    return Notation(name, calls, frozenset((open, close)), stops)


_LISTS = {"[": bare_expressions, "{": bare_json}
LLAMA = Notation(
    "llama",
    CallMarkup({"<|python_tag|>": python_tag, CUSTOM.open: CUSTOM.one}, _LISTS),
    frozenset(("<|python_tag|>",)),
    ("<|eom_id|>", "<|eot_id|>"),
)
MISTRAL_CALLS = Notation(
    "mistral",
    CallMarkup({MISTRAL.open: mistral}, sentinel=True),
    frozenset((MISTRAL.open, MISTRAL.middle, "[CALL_ID]")),
)
NOTATIONS = {
    notation.name: notation
    for notation in (
        _enclosed("hermes", "<tool_call>", "</tool_call>", bare={"{": bare_json}, sentinel=False),
        LLAMA,
        _enclosed("granite", "<|tool_call|>", "<|/tool_call|>"),  # and Phi 4
        _enclosed("cohere", "<|START_ACTION|>", "<|END_ACTION|>"),
        _enclosed("apertus", "<|tools_prefix|>", "<|tools_suffix|>"),
        _enclosed("nemotron", "<TOOLCALL>", "</TOOLCALL>", sentinel=False),
        # Apriel, Jamba, Hunyuan
        _enclosed("call-list", "<tool_calls>", "</tool_calls>", sentinel=False),
        _enclosed(
            "llama4",
            "<|python_start|>",
            "<|python_end|>",
            llama4,
            bare=_LISTS,
            sentinel=False,
            stops=("<|eom|>", "<|eot|>"),
        ),
        _enclosed("lfm", "<|tool_call_start|>", "<|tool_call_end|>", lfm),
        _enclosed("olmo", "<function_calls>", "</function_calls>", olmo, sentinel=False),
        MISTRAL_CALLS,
        _tagged("qwen", QWEN),
        _tagged("seed", SEED),
        _tagged("glm", GLM),
        _tagged("longcat", LONGCAT),
        _tagged("minicpm", MINICPM),
        _tagged("minimax", MINIMAX),
        _tagged("muse", MUSE),
        _tagged("dsml", DSML, DSML4, DSML41, sentinel="｜DSML｜"),
        replace(_tagged("kimi3", KIMI3, sentinel="<|open|>"), thought=XTML),
        _unquoted("gemma4", GEMMA4, "<|tool_response>"),
        _unquoted("function-gemma", FUNCTION_GEMMA, "<start_function_response>"),
        _headed("deepseek", DEEPSEEK),
        _headed("kimi", KIMI),
    )
}
