"""Tables of flags and variables, from the one table that reads them."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from mlxbun.application.options import Option
from mlxbun.application.settings import NOT_YET, OPTIONS, Settings
from mlxbun.domain.sampling_policy import resolve

WIDTH = 98
_DEFAULTS = {field.name: field.default for field in msgspec.structs.fields(Settings)}
_POLICY = resolve((), vocab_size=1, fresh_seed=0)


def options(group: str) -> str:
    """Return the table of one group of options."""
    rows = [
        (
            ", ".join(f"`{flag}`" for flag in option.flags),
            f"`{option.variable}`" if option.variable else "",
            takes(option),
            _default(option),
            option.help,
        )
        for option in OPTIONS
        if option.group == group
    ]
    return table(("Flag", "Variable", "Takes", "Default", "What it says"), rows)


def flags_to_come() -> str:
    """Return the flags that are refused as missing, not as unknown."""
    flags = ", ".join(f"`{flag}`" for flag in sorted(NOT_YET))
    return "\n".join(textwrap.wrap(flags, WIDTH, break_on_hyphens=False))


def takes(option: Option) -> str:
    """Return what values `option` takes, as a sentence's part."""
    match option.kind:
        case "text":
            return "a text"
        case "texts":
            return "texts"
        case "switch":
            return "nothing, or on or off"
        case "choice":
            return ", ".join(f"`{choice}`" for choice in option.choices)
        case _:
            number = "an integer" if option.kind == "integer" else "a number"
            unit = f" of {option.unit}" if option.unit else ""
            if not math.isfinite(option.high):
                return f"{number}{unit}"
            return f"{number}{unit}, {plain(option.low)} to {plain(option.high)}"


def _default(option: Option) -> str:
    value = _DEFAULTS.get(option.name)
    if value is False:
        return "off"
    if value is not None and value != ():
        return f"`{plain(value)}`"
    if option.group == "Sampling" and hasattr(_POLICY, option.name):
        return f"the model's, else `{plain(getattr(_POLICY, option.name))}`"
    return ""


def plain(value: Any) -> str:
    """Return a value as people write it: 10,000,000 and 0.5, never 1e+07 or 120.0."""
    if isinstance(value, float):
        value = int(value) if value.is_integer() else value
    return f"{value:,}" if isinstance(value, int) and value >= 100_000 else str(value)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    return "\n".join(_lines(head, rows))


def _lines(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    for cells in (head, ["---"] * len(head), *rows):
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
