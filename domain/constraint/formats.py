"""The formats of JSON Schema that are spelled out, as patterns.

A format is an annotation to a validator; here it says what may be written.  Each is narrower than
its RFC where that keeps a pattern small: February has 28 days, addresses are plain.
"""

from __future__ import annotations

from functools import cache

from mlxbun.domain.constraint.expressions import parse
from mlxbun.domain.constraint.patterns import Pattern

_LEAP = "([0-9][0-9](0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)-02-29"
_DATE = (
    "([0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])"
    f"|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))|{_LEAP})"
)
_TIME = (
    r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
)
_COUNT = "(0|[1-9][0-9]{0,3})"
_CLOCK = (
    rf"T({_COUNT}H({_COUNT}M({_COUNT}(\.[0-9]{{1,6}})?S)?)?|{_COUNT}M({_COUNT}(\.[0-9]{{1,6}})?S)?"
    rf"|{_COUNT}(\.[0-9]{{1,6}})?S)"
)
_DAYS = f"({_COUNT}Y({_COUNT}M({_COUNT}D)?)?|{_COUNT}M({_COUNT}D)?|{_COUNT}D)"
_LABEL = "[a-zA-Z0-9]+(-[a-zA-Z0-9]+)*"
_HOST = rf"({_LABEL}\.)*[a-zA-Z]+"
_BYTE = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_PART = "([a-zA-Z0-9._~!$&'()*+,;=:@-]|%[0-9a-fA-F]{2})"
_PATH = rf"(/{_PART}*)*(\?({_PART}|[/?])*)?(#({_PART}|[/?])*)?"
_HEX = "[0-9a-fA-F]"
_UUID = f"{_HEX}{{8}}-{_HEX}{{4}}-%s{_HEX}{{3}}-[89abAB]{_HEX}{{3}}-{_HEX}{{12}}"
_H16 = f"{_HEX}{{1,4}}"
# All eight groups, or some before and after the one gap: seven in all, at most.
_GROUPS = "|".join(
    [f"({_H16}:){{7}}{_H16}", f"::({_H16}(:{_H16}){{0,6}})?"]
    + [f"{_H16}(:{_H16}){{{n}}}::({_H16}(:{_H16}){{0,{5 - n}}})?" for n in range(6)]
    + [f"{_H16}(:{_H16}){{6}}::"]
)

_SOURCES = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "duration": f"P([1-9][0-9]{{0,3}}W|{_DAYS}({_CLOCK})?|{_CLOCK})",
    "email": rf"[a-zA-Z0-9_]+([.+-][a-zA-Z0-9_]+)*@({_LABEL}\.)+[a-zA-Z][a-zA-Z]+",
    "hostname": _HOST,
    "ipv4": rf"({_BYTE}\.){{3}}{_BYTE}",
    "ipv6": _GROUPS,
    "uri": rf"[a-z]+://({_HOST}|({_BYTE}\.){{3}}{_BYTE})(:[1-9][0-9]{{1,4}})?{_PATH}",
    "uuid": f"{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}",
    # As pydantic calls them.
    **{f"uuid{n}": _UUID % n for n in (1, 3, 4, 5, 6, 7, 8)},
}
NAMES = tuple(_SOURCES)


# An address of a bounded length: what comes after the host is one count, which needs no states.
_SHORT_HOST = r"([a-zA-Z0-9]{1,20}\.){0,3}[a-zA-Z]{1,20}"
_BEFORE_PATH = 100
_BOUNDED_URI = rf"[a-z]{{2,8}}://{_SHORT_HOST}(:[1-9][0-9]{{1,4}})?([/?#][a-zA-Z0-9._~!$&'()*+,;=:@/?-]{{0,%d}})?"


@cache
def pattern_of(name: str, most: int | None = None) -> Pattern | None:
    """Return what `name` is spelled like; None for a format that is not among them.

    `most` is how many characters there may be, where it makes a difference.
    """
    source = _SOURCES.get(name)
    if name == "uri" and most is not None and most > 2 * _BEFORE_PATH:
        source = _BOUNDED_URI % (min(most, 2_000) - _BEFORE_PATH)
    return parse(source, search=False) if source is not None else None
