"""Values of clients' JSON, read with the name of the field at fault when they are not as said."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import cast

from mlxbun.domain.refusal import Refused

_SURROGATE = re.compile("[\ud800-\udfff]")


def well_formed(text: str) -> str:
    """Return `text` with halves of surrogate pairs joined, or U+FFFD where one is alone.

    Clients that cut an emoji in two send such halves, and no encoding can write them.
    """
    if _SURROGATE.search(text) is None:
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def mapping(value: object, field: str) -> Mapping[str, object]:
    """Return an object.  Raises Refused with `field` for what is none."""
    if isinstance(value, Mapping):
        return cast(Mapping[str, object], value)
    said = "is missing" if value is None else f"is {shown(value)}"
    raise Refused("invalid_value", f"{field} {said}; it must be an object", field)


def string(value: Mapping[str, object], key: str, field: str) -> str | None:
    """Return a string of the object at `field`, well formed; null is as absent."""
    said = value.get(key)
    if said is None or isinstance(said, str):
        return said if said is None else well_formed(said)
    raise Refused("invalid_value", f"{field}.{key} must be a string", f"{field}.{key}")


def shown(value: object) -> str:
    """Return `value` for a message: short, and printable whatever it is."""
    if isinstance(value, str):
        return ascii(value[:40])
    return repr(value) if isinstance(value, int | float) else f"a {type(value).__name__}"
