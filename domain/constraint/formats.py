"""The formats of JSON Schema that are spelled out, as patterns.

A format is an annotation to a validator; here it says what may be written.  Each is narrower than
its RFC where that keeps a pattern small: February has 28 days, addresses are plain.
"""

from __future__ import annotations

from functools import cache

from mlxbun.domain.constraint.expressions import parse
from mlxbun.domain.constraint.patterns import Pattern

_DATE = (
    "[0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])"
    "|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))"
)
_TIME = (
    r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
)
_LABEL = "[a-zA-Z0-9]+(-[a-zA-Z0-9]+)*"
_HOST = rf"({_LABEL}\.)*[a-zA-Z]+"
_BYTE = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_PATH = r"(/[a-zA-Z0-9._~-]+)*/?(\?[a-zA-Z0-9._~=&-]+)?(#[a-zA-Z0-9._~-]+)?"

_SOURCES = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "duration": "P([1-9][0-9]{0,3}W|([1-9][0-9]{0,3}D)(T[1-9][0-9]{0,3}H)?|T[1-9][0-9]{0,3}[HMS])",
    "email": rf"[a-zA-Z0-9_]+([.+-][a-zA-Z0-9_]+)*@({_LABEL}\.)+[a-zA-Z][a-zA-Z]+",
    "hostname": _HOST,
    "ipv4": rf"({_BYTE}\.){{3}}{_BYTE}",
    "ipv6": "([0-9a-f]{1,4}:){7}[0-9a-f]{1,4}",
    "uri": rf"https?://{_HOST}(:[1-9][0-9]{{1,3}})?{_PATH}",
    "uuid": "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
}
NAMES = tuple(_SOURCES)


@cache
def pattern_of(name: str) -> Pattern | None:
    """Return what `name` is spelled like; None for a format that is not among them."""
    source = _SOURCES.get(name)
    return parse(source, search=False) if source is not None else None
