"""The keywords of one schema by themselves: what each says of one kind of values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

from mlxbun.domain.constraint.bounds import Bounds
from mlxbun.domain.constraint.expressions import BadPattern, parse
from mlxbun.domain.constraint.formats import pattern_of
from mlxbun.domain.constraint.json_values import list_of, number_of, object_of
from mlxbun.domain.constraint.patterns import Pattern
from mlxbun.domain.constraint.shapes import (
    EVERYTHING,
    NULL,
    TRUE_FALSE,
    Array,
    Conj,
    Contains,
    Keyed,
    Node,
    Number,
    Object,
    Shape,
    Text,
)

DEPENDENCIES = ("dependentRequired", "dependentSchemas", "dependencies")
_KEYWORDS_OF: dict[type, tuple[str, ...]] = {
    Text: ("minLength", "maxLength", "pattern", "format"),
    Number: ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    Array: ("items", "prefixItems", "additionalItems", "minItems", "maxItems", "contains",
            "minContains", "maxContains", "uniqueItems"),
    Object: ("properties", "required", "additionalProperties", "patternProperties",
             "propertyNames", "minProperties", "maxProperties"),
}  # fmt: skip
_TYPES: dict[str, tuple[Shape, ...]] = {
    "object": (Object(),),
    "array": (Array(),),
    "string": (Text(),),
    "number": (Number(),),
    "integer": (Number(integer=True),),
    "boolean": (TRUE_FALSE,),
    "null": (NULL,),
}


class SchemaRefused(ValueError):
    """A schema cannot be honoured.  `pointer` says which part of it."""

    def __init__(self, pointer: str, why: str) -> None:
        super().__init__(f"{pointer or '/'}: {why}")
        self.pointer = pointer
        self.why = why


class Keywords:
    """Reads the keywords of schemas.

    `not_enforced` hears of those that are not, and may refuse them; `annotated` of formats, which
    are nobody's to refuse; `narrowed` that what was read says less than the schema.
    """

    def __init__(
        self,
        not_enforced: Callable[[str, str], None],
        annotated: Callable[[str], None],
        narrowed: Callable[[], None],
    ) -> None:
        self._not_enforced = not_enforced
        self._annotated = annotated
        self._narrowed = narrowed

    def read(self, schema: Mapping[str, Any], node: Node) -> dict[type, Shape]:
        """Return what `schema` says of each kind of which it says anything."""
        readers: dict[type, Callable[[Mapping[str, Any], Node], Shape]] = {
            Text: self._text,
            Number: self._number,
            Array: self._array,
            Object: self._object,
        }
        return {
            kind: readers[kind](schema, node)
            for kind, keywords in _KEYWORDS_OF.items()
            if any(keyword in schema for keyword in keywords)
        }

    def _text(self, schema: Mapping[str, Any], node: Node) -> Text:
        patterns: list[Pattern] = []
        most = count_of(schema, node, "maxLength")
        if "pattern" in schema:
            patterns += self._pattern(schema["pattern"], f"{node.pointer}/pattern")
        if not patterns and isinstance(schema.get("format"), str):
            known = pattern_of(schema["format"], most)
            if known is None:
                self._annotated(f"{node.pointer}/format")
            else:
                self._narrowed()
                patterns.append(known)
        least = count_of(schema, node, "minLength") or 0
        return Text(least, most, tuple(patterns))

    def _pattern(self, source: Any, pointer: str) -> list[Pattern]:
        if not isinstance(source, str):
            raise SchemaRefused(pointer, "a pattern is a string")
        try:
            return [parse(source, search=True)]
        except BadPattern as bad:
            self._not_enforced(pointer, str(bad))
            return []

    def _number(self, schema: Mapping[str, Any], node: Node) -> Number:
        low, high = self._bound(schema, node, "minimum"), self._bound(schema, node, "maximum")
        bounds = Bounds(
            low,
            high,
            low is not None and schema.get("exclusiveMinimum") is True,  # as draft 4 has it
            high is not None and schema.get("exclusiveMaximum") is True,
        )
        if not isinstance(schema.get("exclusiveMinimum", True), bool):
            above = self._bound(schema, node, "exclusiveMinimum")
            bounds = bounds.meet(Bounds(low=above, low_open=True))
        if not isinstance(schema.get("exclusiveMaximum", True), bool):
            below = self._bound(schema, node, "exclusiveMaximum")
            bounds = bounds.meet(Bounds(high=below, high_open=True))
        multiple = self._bound(schema, node, "multipleOf")
        if multiple is not None and multiple <= 0:
            raise SchemaRefused(f"{node.pointer}/multipleOf", "multipleOf is above 0")
        return Number(False, bounds, multiple)

    def _bound(self, schema: Mapping[str, Any], node: Node, keyword: str) -> Decimal | None:
        value = schema.get(keyword)
        if value is None:
            return None
        number = number_of(value)
        if number is None:
            raise SchemaRefused(f"{node.pointer}/{keyword}", f"{keyword} is a number")
        return Decimal(str(number))

    def _array(self, schema: Mapping[str, Any], node: Node) -> Array:
        listed = "prefixItems" if "prefixItems" in schema else "items"
        prefix: Sequence[Node] = ()
        rest = "items"
        if isinstance(schema.get(listed), list):
            prefix = below(node, listed)
            rest = "items" if listed == "prefixItems" else "additionalItems"
        items: Conj | None = (child(node, rest),) if rest in schema else ()
        if schema.get(rest) is False:
            items = None
        contains: tuple[Contains, ...] = ()
        if "contains" in schema:
            least = count_of(schema, node, "minContains")
            most = count_of(schema, node, "maxContains")
            wanted = Contains((child(node, "contains"),), 1 if least is None else least, most)
            contains = (wanted,) if wanted.least or most is not None else ()
        return Array(
            tuple((part,) for part in prefix),
            items,
            count_of(schema, node, "minItems") or 0,
            count_of(schema, node, "maxItems"),
            contains,
            schema.get("uniqueItems") is True,
        )

    def _object(self, schema: Mapping[str, Any], node: Node) -> Object:
        members = {name: (part,) for name, part in named(node, "properties").items()}
        said_required = schema.get("required", [])
        # A bool is as draft 3 has it, in the property itself.
        required = [] if isinstance(said_required, bool) else list_of(said_required)
        if required is None or not all(isinstance(name, str) for name in required):
            raise SchemaRefused(f"{node.pointer}/required", "required is a list of names")
        keyed: list[Keyed] = []
        for source, part in named(node, "patternProperties").items():
            for pattern in self._pattern(source, part.pointer):
                keyed.append(Keyed(pattern, (part,)))
        others: Conj | None = ()
        if "additionalProperties" in schema:
            others = (child(node, "additionalProperties"),)
            if schema["additionalProperties"] is False:
                others = None
        names: tuple[Conj, ...] = ()
        if "propertyNames" in schema:
            names = ((child(node, "propertyNames"),),)
        return Object(
            members,
            tuple(dict.fromkeys(required)),
            tuple(keyed),
            others,
            "additionalProperties" in schema,
            names,
            count_of(schema, node, "minProperties") or 0,
            count_of(schema, node, "maxProperties"),
        )


def named(node: Node, keyword: str) -> dict[str, Node]:
    names = object_of(node.schema.get(keyword, {}))
    if names is None:
        raise SchemaRefused(f"{node.pointer}/{keyword}", f"{keyword} is an object")
    return {name: child(child(node, keyword), name) for name in names}


def types_of(schema: Mapping[str, Any], node: Node) -> tuple[Shape, ...]:
    """Return the shapes of the types that `schema` names, or of all."""
    types = schema.get("type")
    if types is None:
        return EVERYTHING
    names = list_of(types) or [types]
    for name in names:
        if not isinstance(name, str) or name not in _TYPES:
            raise SchemaRefused(f"{node.pointer}/type", f"{name!r} is no type")
    if "number" in names:
        names = [name for name in names if name != "integer"]
    found = tuple(shape for name in names for shape in _TYPES[name])
    if schema.get("nullable") is True and NULL not in found:
        found = (*found, NULL)
    return found


def dependencies_of(node: Node) -> dict[str, list[Node]]:
    """Return, by the name of a member, the schemas of objects that have it."""
    found: dict[str, list[Node]] = {}
    for keyword in DEPENDENCIES:
        for name, part in named(node, keyword).items():
            names = list_of(part.schema)
            if names is not None:
                part = Node({"required": names}, part.pointer)
            found.setdefault(name, []).append(part)
    return found


def count_of(schema: Mapping[str, Any], node: Node, keyword: str) -> int | None:
    value = schema.get(keyword)
    if value is None:
        return None
    number = number_of(value)
    if number is None or number < 0 or number % 1:
        raise SchemaRefused(f"{node.pointer}/{keyword}", f"{keyword} is a count")
    return int(number)


def child(node: Node, key: str) -> Node:
    return Node(node.schema[key], f"{node.pointer}/{escaped(key)}")


def below(node: Node, keyword: str) -> list[Node]:
    parts = list_of(node.schema.get(keyword, []))
    if parts is None:
        raise SchemaRefused(f"{node.pointer}/{keyword}", f"{keyword} is a list")
    at = f"{node.pointer}/{keyword}"
    return [Node(part, f"{at}/{i}") for i, part in enumerate(parts)]


def escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")
