"""How values are written: as JSON, or in the notation of some models' calls."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from mlxbun.domain.constraint.json_values import list_of, object_of
from mlxbun.domain.constraint.words import Style


class Arguments(Struct, frozen=True):
    """Arguments one by one: `before` name `after` value `end`, `between` two of them.

    A string stands as it is and does not contain `end`.  `after_other` is for what is no string.
    """

    before: str
    after: str
    end: str
    between: str = ""
    after_other: str | None = None

    def begin(self, name: str, *, is_string: bool) -> str:
        after = self.after if is_string or self.after_other is None else self.after_other
        return f"{self.before}{name}{after}"


class Notation(Struct, frozen=True):
    """`quote` stands around strings, which have no escapes where it is not JSON's own.

    With `arguments` the members of the outermost object are written so.
    """

    quote: str = '"'
    bare_names: bool = False
    arguments: Arguments | None = None

    @property
    def is_json(self) -> bool:
        return self.quote == '"'

    def spelled(self, text: str) -> str:
        """Return the spelling of a value whose JSON is `text`."""
        return text if self.is_json else self._said(json.loads(text))

    def name(self, name: str) -> str:
        """Return how the name of a member is written."""
        return name if self.bare_names else json.dumps(name, ensure_ascii=False)

    def _said(self, value: Any) -> str:
        items, members = list_of(value), object_of(value)
        if isinstance(value, str):
            return f"{self.quote}{value}{self.quote}"
        if items is not None:
            return f"[{','.join(map(self._said, items))}]"
        if members is not None:
            said = (f"{self.name(k)}:{self._said(v)}" for k, v in members.items())
            return f"{{{','.join(said)}}}"
        return json.dumps(value)


JSON = Notation()
NOTATIONS: Mapping[Style, Notation] = {
    "json": JSON,
    "qwen_xml": Notation(arguments=Arguments("<parameter=", ">\n", "\n</parameter>", between="\n")),
    "glm_xml": Notation(
        arguments=Arguments("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>", between="\n")
    ),
    "minimax_xml": Notation(arguments=Arguments('<parameter name="', '">', "</parameter>\n")),
    "deepseek_xml": Notation(
        arguments=Arguments(
            '<｜DSML｜parameter name="',
            '" string="true">',
            "</｜DSML｜parameter>\n",
            after_other='" string="false">',
        )
    ),
    "gemma": Notation(quote='<|"|>', bare_names=True),
}
