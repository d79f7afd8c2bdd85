"""Options: what may be said on a command line or in the environment, and reading it.

Pure: the command line and the environment arrive as values.  A flag wins over a variable, a
variable over the default.  What is not understood is a UsageError, never ignored.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct, field

Kind = Literal["text", "texts", "integer", "number", "switch", "choice"]
Source = Literal["flag", "environment", "default"]

_SWITCH = {"on": True, "true": True, "1": True, "off": False, "false": False, "0": False}
_LEVER = {"1": True, "0": False}


class UsageError(ValueError):
    """What was said cannot be understood; the message says what and what is meant instead."""


class Setting(Struct, frozen=True):
    """One line of the effective configuration."""

    name: str
    value: Any
    source: str  # flag, environment, model, default, or machine
    note: str = ""


class Option(Struct, frozen=True):
    """One thing that may be said.  `name` is the field that it sets.

    Kinds: "texts" may be repeated (comma-separated in the environment); a "switch" needs no
    value.  `low` and `high` are in `unit`, the unit of the flag; a variable's number is
    multiplied by `variable_scale` to come to it.  `synonyms` map spellings to choices.
    """

    name: str
    flags: tuple[str, ...]
    kind: Kind
    help: str
    group: str = ""
    variable: str = ""
    low: float = -math.inf
    high: float = math.inf
    unit: str = ""
    variable_scale: float = 1.0
    choices: tuple[str, ...] = ()
    synonyms: Mapping[str, str] = field(default_factory=dict[str, str])


class Said(Struct, frozen=True):
    """What a command line and an environment say; names that are absent were not said.

    `notes` are about variables that were not understood and therefore count as unset.
    """

    values: Mapping[str, Any]
    sources: Mapping[str, Source]
    positionals: tuple[str, ...]
    notes: Mapping[str, str]


def read(
    options: Sequence[Option],
    argv: Sequence[str],
    environ: Mapping[str, str],
    not_yet: Iterable[str] = (),
) -> Said:
    """Read `argv` and `environ` as `options` allow.  Raises UsageError.

    `not_yet` are flags that are known to be missing rather than unknown.
    """
    values, notes = _read_variables(options, environ)
    sources: dict[str, Source] = dict.fromkeys(values, "environment")
    flags = {flag: option for option in options for flag in option.flags}
    repeated: dict[str, list[str]] = {}
    positionals: list[str] = []
    words = list(reversed(argv))
    while words:
        word = words.pop()
        if word == "--":
            positionals += reversed(words)
            break
        if not word.startswith("-") or word == "-":
            positionals.append(word)
            continue
        flag, equals, value = word.partition("=")
        option = flags.get(flag)
        if option is None:
            raise UsageError(_unknown_flag(flag, flags, not_yet))
        if not equals:
            if option.kind == "switch":
                value = words.pop() if words and words[-1] in _SWITCH else "on"
            elif not words or words[-1].startswith("--"):
                raise UsageError(f"{flag} needs a value: {flag} {_expected(option)}")
            else:
                value = words.pop()
        if option.kind == "texts":
            repeated.setdefault(option.name, []).append(value)
        else:
            values[option.name] = _value(option, value, flag, 1.0)
        sources[option.name] = "flag"
        notes.pop(option.name, None)
    values.update({name: tuple(texts) for name, texts in repeated.items()})
    return Said(values, sources, tuple(positionals), notes)


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the one of `known` that `word` is most likely a slip of."""
    return next(iter(difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)), None)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ": did you mean ...?", or nothing when nothing is near."""
    near = nearest(word, known)
    return f": did you mean {near}?" if near else ""


def _read_variables(
    options: Sequence[Option], environ: Mapping[str, str]
) -> tuple[dict[str, Any], dict[str, str]]:
    values: dict[str, Any] = {}
    notes: dict[str, str] = {}
    for option in options:
        text = environ.get(option.variable, "") if option.variable else ""
        if not text:
            continue
        if option.kind == "switch":
            if text in _LEVER:
                values[option.name] = _LEVER[text]
            else:
                notes[option.name] = (
                    f"{option.variable}={text!r} counts as unset: only 1 and 0 are understood"
                )
        elif option.kind == "texts":
            values[option.name] = tuple(part.strip() for part in text.split(",") if part.strip())
        else:
            values[option.name] = _value(option, text, option.variable, option.variable_scale)
    return values, notes


def _value(option: Option, text: str, said_as: str, scale: float) -> Any:
    """Return what `text` means for `option`.  Raises UsageError."""
    match option.kind:
        case "text" | "texts":
            if not text:
                raise UsageError(f"{said_as} needs a value")
            return text
        case "switch":
            if text not in _SWITCH:
                raise UsageError(f"{said_as} must be on or off, but is {text!r}")
            return _SWITCH[text]
        case "choice":
            chosen = option.synonyms.get(text, text)
            if chosen not in option.choices:
                raise UsageError(
                    f"{said_as} must be one of {', '.join(option.choices)}, but is {text!r}"
                    + did_you_mean(text, option.choices)
                )
            return chosen
        case "integer" | "number":
            number = _number(option, text)
            if number is None or not option.low <= number * scale <= option.high:
                raise UsageError(f"{said_as} must be {_range(option, scale)}, but is {text!r}")
            return number if scale == 1.0 else number * scale


def _number(option: Option, text: str) -> float | None:
    """Return a finite number, an int for an integer; None when `text` is none."""
    if option.kind == "integer":
        return int(text) if re.fullmatch(r"[+-]?[0-9]{1,19}", text) else None
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _range(option: Option, scale: float) -> str:
    what = "an integer" if option.kind == "integer" else "a number"
    if not math.isfinite(option.low):
        return what
    if not math.isfinite(option.high):
        return f"{what} of at least {option.low / scale:.12g}"
    return f"{what} between {option.low / scale:.12g} and {option.high / scale:.12g}"


def _expected(option: Option) -> str:
    if option.kind == "choice":
        return "|".join(option.choices)
    return option.name.upper()


def _unknown_flag(flag: str, flags: Iterable[str], not_yet: Iterable[str]) -> str:
    if flag in set(not_yet):
        return f"{flag} is not in this version yet"
    return f"unknown flag {flag}" + did_you_mean(flag, flags)
