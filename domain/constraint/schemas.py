"""Reading JSON Schema: from what was written to shapes.

Drafts 4 to 2020-12.  What is read may say less than the schema allows, never more, but for the
keywords that are noted as not enforced.  `Strictness` says what becomes of those, and of what is
malformed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from enum import Enum
from itertools import combinations
from typing import Any
from urllib.parse import unquote

from mlxbun.domain.constraint.formats import pattern_of
from mlxbun.domain.constraint.json_values import list_of, number_of, object_of, spelled
from mlxbun.domain.constraint.membership import Membership
from mlxbun.domain.constraint.numbers import Bounds
from mlxbun.domain.constraint.patterns import BadPattern, Pattern, parse
from mlxbun.domain.constraint.shapes import (
    EVERYTHING,
    NULL,
    TRUE_FALSE,
    Array,
    Conj,
    Keyed,
    Node,
    Number,
    Object,
    Shape,
    Text,
    Values,
)

MAX_SHAPES = 128  # that one schema may come to
MAX_DEPENDENCIES = 4
_ABSENT = object()

_UNENFORCED = (
    "if", "maxContains", "unevaluatedItems", "$dynamicRef", "$recursiveRef", "contentSchema",
)  # fmt: skip
_TYPES: dict[str, tuple[Shape, ...]] = {
    "object": (Object(),),
    "array": (Array(),),
    "string": (Text(),),
    "number": (Number(),),
    "integer": (Number(integer=True),),
    "boolean": (TRUE_FALSE,),
    "null": (NULL,),
}
_KEYWORDS_OF: dict[type, tuple[str, ...]] = {
    Text: ("minLength", "maxLength", "pattern", "format"),
    Number: ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    Array: ("items", "prefixItems", "additionalItems", "minItems", "maxItems", "contains",
            "minContains", "uniqueItems"),
    Object: ("properties", "required", "additionalProperties", "patternProperties",
             "propertyNames", "minProperties", "maxProperties", "unevaluatedProperties",
             "dependentRequired", "dependentSchemas", "dependencies"),
}  # fmt: skip


class Strictness(Enum):
    """STRICT refuses what cannot be enforced, LENIENT takes even what is malformed for anything."""

    STRICT = "strict"
    USUAL = "usual"
    LENIENT = "lenient"


class SchemaRefused(ValueError):
    """A schema cannot be honoured.  `pointer` says which part of it."""

    def __init__(self, pointer: str, why: str) -> None:
        super().__init__(f"{pointer or '/'}: {why}")
        self.pointer = pointer
        self.why = why


class Schemas:
    """One schema document, read on demand.  `unenforced` lists pointers, as they come up."""

    def __init__(self, document: Any, strictness: Strictness) -> None:
        self._document = document
        self._strictness = strictness
        self._shapes: dict[str, tuple[Shape, ...]] = {}
        self._reading: list[str] = []
        self.unenforced: dict[str, None] = {}
        self.membership = Membership(self.shapes)

    def root(self) -> Conj:
        return (Node(self._document, ""),)

    def shapes(self, conj: Conj) -> tuple[Shape, ...]:
        """Return the shapes of what all of `conj` allow.  Raises SchemaRefused."""
        found: tuple[Shape, ...] = EVERYTHING
        for node in conj:
            found = self._meet(found, self._of_node(node), node)
        return found

    def not_enforced(self, pointer: str, why: str) -> None:
        """Note that the keyword at `pointer` is not enforced.  Raises SchemaRefused if strict."""
        if self._strictness is Strictness.STRICT:
            raise SchemaRefused(pointer, why)
        self.unenforced[pointer] = None

    def _of_node(self, node: Node) -> tuple[Shape, ...]:
        known = self._shapes.get(node.pointer)
        if known is None:
            if node.pointer in self._reading:
                raise SchemaRefused(node.pointer, "it refers to itself without end")
            self._reading.append(node.pointer)
            try:
                known = self._read(node)
            except SchemaRefused:
                if self._strictness is not Strictness.LENIENT:
                    raise
                self.unenforced[node.pointer] = None
                known = EVERYTHING
            finally:
                self._reading.pop()
            self._shapes[node.pointer] = known
        return known

    def _read(self, node: Node) -> tuple[Shape, ...]:
        if node.schema is True:
            return EVERYTHING
        if node.schema is False:
            return ()
        schema = object_of(node.schema)
        if schema is None:
            raise SchemaRefused(node.pointer, "a schema is an object, true or false")
        found = self._own(schema, node)
        if "$ref" in schema:
            found = self._meet(found, self._of_node(self._target(schema["$ref"], node)), node)
        for part in _below(node, "allOf"):
            found = self._meet(found, self._of_node(part), node)
        if "anyOf" in schema:
            parts = [self._of_node(part) for part in _below(node, "anyOf")]
            found = self._meet(found, [shape for shapes in parts for shape in shapes], node)
        if "oneOf" in schema:
            found = self._one_of(found, node)
        for variants in self._dependencies(schema, node):
            found = self._meet(found, variants, node)
        if "not" in schema:
            found = self._negated(found, _child(node, "not"))
        for keyword in _UNENFORCED:
            if keyword in schema:
                self.not_enforced(f"{node.pointer}/{keyword}", f"{keyword} cannot be enforced")
        return found

    # -- what a schema says by itself --

    def _own(self, schema: Mapping[str, Any], node: Node) -> tuple[Shape, ...]:
        types = schema.get("type")
        found: tuple[Shape, ...] = EVERYTHING
        if types is not None:
            names = list_of(types) or [types]
            for name in names:
                if not isinstance(name, str) or name not in _TYPES:
                    raise SchemaRefused(f"{node.pointer}/type", f"{name!r} is no type")
            if "number" in names:
                names = [name for name in names if name != "integer"]
            found = tuple(shape for name in names for shape in _TYPES[name])
            if schema.get("nullable") is True and NULL not in found:
                found = (*found, NULL)
        said = self._constrained(schema, node)
        found = tuple(self._meet_one(shape, said.get(type(shape)), node) for shape in found)
        if "enum" in schema or "const" in schema:
            found = self._listed(schema, node, found)
        return found

    def _meet_one(self, shape: Shape, said: Shape | None, node: Node) -> Shape:
        if said is None:
            return shape
        met = self.membership.meet(shape, said)
        assert met is not None, "a type and its own keywords always meet"
        return met

    def _constrained(self, schema: Mapping[str, Any], node: Node) -> dict[type, Shape]:
        said: dict[type, Shape] = {}
        for kind, keywords in _KEYWORDS_OF.items():
            if any(keyword in schema for keyword in keywords):
                said[kind] = self._kind(kind, schema, node)
        return said

    def _kind(self, kind: type, schema: Mapping[str, Any], node: Node) -> Shape:
        if kind is Text:
            return self._text(schema, node)
        if kind is Number:
            return self._number(schema, node)
        return self._array(schema, node) if kind is Array else self._object(schema, node)

    def _listed(
        self, schema: Mapping[str, Any], node: Node, found: tuple[Shape, ...]
    ) -> tuple[Shape, ...]:
        values = list_of(schema.get("enum", [schema.get("const")]))
        if values is None:
            raise SchemaRefused(f"{node.pointer}/enum", "enum is a list")
        if "enum" in schema and "const" in schema:
            values = [v for v in values if spelled(v) == spelled(schema["const"])]
        texts = dict.fromkeys(
            spelled(v) for v in values if any(self.membership.has(shape, v) for shape in found)
        )
        return (Values(tuple(texts)),) if texts else ()

    def _text(self, schema: Mapping[str, Any], node: Node) -> Text:
        patterns: list[Pattern] = []
        if "pattern" in schema:
            patterns += self._pattern(schema["pattern"], f"{node.pointer}/pattern")
        if not patterns and isinstance(schema.get("format"), str):
            known = pattern_of(schema["format"])
            if known is None:
                # An annotation by the standard: nobody is refused for it.
                self.unenforced[f"{node.pointer}/format"] = None
            else:
                patterns.append(known)
        least = self._count(schema, node, "minLength") or 0
        return Text(least, self._count(schema, node, "maxLength"), tuple(patterns))

    def _pattern(self, source: Any, pointer: str) -> list[Pattern]:
        if not isinstance(source, str):
            raise SchemaRefused(pointer, "a pattern is a string")
        try:
            return [parse(source, search=True)]
        except BadPattern as bad:
            self.not_enforced(pointer, str(bad))
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
            prefix = _below(node, listed)
            rest = "items" if listed == "prefixItems" else "additionalItems"
        items: Conj | None = (_child(node, rest),) if rest in schema else ()
        if schema.get(rest) is False:
            items = None
        contains: tuple[Conj, ...] = ()
        if "contains" in schema:
            least = self._count(schema, node, "minContains")
            if least is None or least == 1:
                contains = ((_child(node, "contains"),),)
            elif least:
                pointer = f"{node.pointer}/minContains"
                self.not_enforced(pointer, "minContains above 1 cannot be enforced")
        return Array(
            tuple((part,) for part in prefix),
            items,
            self._count(schema, node, "minItems") or 0,
            self._count(schema, node, "maxItems"),
            contains,
            schema.get("uniqueItems") is True,
        )

    def _object(self, schema: Mapping[str, Any], node: Node) -> Object:
        members = {name: (part,) for name, part in self._named(node, "properties").items()}
        said_required = schema.get("required", [])
        # A bool is as draft 3 has it, in the property itself.
        required = [] if isinstance(said_required, bool) else list_of(said_required)
        if required is None or not all(isinstance(name, str) for name in required):
            raise SchemaRefused(f"{node.pointer}/required", "required is a list of names")
        keyed: list[Keyed] = []
        for source, part in self._named(node, "patternProperties").items():
            for pattern in self._pattern(source, part.pointer):
                keyed.append(Keyed(pattern, (part,)))
        said = next(
            (k for k in ("additionalProperties", "unevaluatedProperties") if k in schema), None
        )
        others: Conj | None = ()
        if said is not None:
            others = None if schema[said] is False else (_child(node, said),)
            if said == "unevaluatedProperties" and schema[said] is False:
                # What a neighbour evaluates is a member of the whole; nothing else is written.
                others, said = (), None
        names: tuple[Conj, ...] = ()
        if "propertyNames" in schema:
            names = ((_child(node, "propertyNames"),),)
        return Object(
            members,
            tuple(dict.fromkeys(required)),
            tuple(keyed),
            others,
            said is not None,
            names,
            self._count(schema, node, "minProperties") or 0,
            self._count(schema, node, "maxProperties"),
        )

    def _named(self, node: Node, keyword: str) -> dict[str, Node]:
        names = object_of(node.schema.get(keyword, {}))
        if names is None:
            raise SchemaRefused(f"{node.pointer}/{keyword}", f"{keyword} is an object")
        return {name: _child(_child(node, keyword), name) for name in names}

    def _count(self, schema: Mapping[str, Any], node: Node, keyword: str) -> int | None:
        value = schema.get(keyword)
        if value is None:
            return None
        number = number_of(value)
        if number is None or number < 0 or number % 1:
            raise SchemaRefused(f"{node.pointer}/{keyword}", f"{keyword} is a count")
        return int(number)

    # -- what it says of others --

    def _one_of(self, found: Sequence[Shape], node: Node) -> tuple[Shape, ...]:
        """Return what any of oneOf allows, having seen that no two of them allow the same."""
        parts = [self._meet(found, self._of_node(part), node) for part in _below(node, "oneOf")]
        for (_, one), (at, other) in combinations(enumerate(parts), 2):
            if not all(self.membership.apart(a, b) for a in one for b in other):
                pointer = f"{node.pointer}/oneOf/{at}"
                self.not_enforced(pointer, "it may hold where another of oneOf holds too")
        return tuple(shape for shapes in parts for shape in shapes)

    def _dependencies(self, schema: Mapping[str, Any], node: Node) -> Iterable[tuple[Shape, ...]]:
        """Yield, for each dependency, the objects without its member, and those that follow it."""
        found: dict[str, list[Node]] = {}
        for keyword in ("dependentRequired", "dependentSchemas", "dependencies"):
            for name, part in self._named(node, keyword).items():
                names = list_of(part.schema)
                if names is not None:
                    part = Node({"required": names}, part.pointer)
                found.setdefault(name, []).append(part)
        if len(found) > MAX_DEPENDENCIES:
            keyword = next(k for k in ("dependentRequired", "dependentSchemas", "dependencies")
                           if k in schema)  # fmt: skip
            self.not_enforced(f"{node.pointer}/{keyword}", "it has too many dependencies")
            return
        never = (Node(False, "never"),)
        others = tuple(shape for shape in EVERYTHING if not isinstance(shape, Object))
        for name, parts in found.items():
            present: tuple[Shape, ...] = (Object({name: ()}, (name,)),)
            for part in parts:
                present = self._meet(present, self._of_node(part), node)
            yield (Object({name: never}), *present, *others)

    def _negated(self, found: tuple[Shape, ...], node: Node) -> tuple[Shape, ...]:
        """Take away what `node` allows, where that is whole kinds or a few values."""
        kept: list[Shape] = []
        unwanted = self._of_node(node)
        for shape in found:
            left: Shape | None = shape
            for other in unwanted:
                left = self._less(left, other, node) if left is not None else None
            if left is not None:
                kept.append(left)
        return tuple(kept)

    def _less(self, shape: Shape, other: Shape, node: Node) -> Shape | None:
        if isinstance(shape, Values):
            left = tuple(text for text in shape.texts if not self.membership.has_text(other, text))
            return Values(left) if left else None
        if self.membership.apart(shape, other):
            return shape
        if other in EVERYTHING and type(other) is type(shape):
            return None
        self.not_enforced(node.pointer, "this not cannot be enforced")
        return shape

    def _meet(
        self, some: Sequence[Shape], others: Sequence[Shape], node: Node
    ) -> tuple[Shape, ...]:
        if tuple(some) == EVERYTHING:
            return tuple(others)
        if tuple(others) == EVERYTHING:
            return tuple(some)
        found: dict[int, Shape] = {}
        for a in some:
            for b in others:
                met = self.membership.meet(a, b)
                if met is not None:
                    found[len(found)] = met
        if len(found) > MAX_SHAPES:
            raise SchemaRefused(node.pointer, "it comes to too many alternatives")
        return tuple(found.values())

    def _target(self, reference: Any, node: Node) -> Node:
        """Return what a $ref means, within the document."""
        pointer = f"{node.pointer}/$ref"
        if not isinstance(reference, str):
            raise SchemaRefused(pointer, "a $ref is a string")
        document = object_of(self._document) or {}
        base = str(document.get("$id", ""))
        if base and reference.startswith(base):
            reference = reference[len(base) :] or "#"
        if not reference.startswith("#"):
            self.not_enforced(pointer, "only references within the schema are followed")
            return Node(True, f"{pointer}/elsewhere")
        path = unquote(reference[1:])
        by_anchor = path and not path.startswith("/")
        found = _anchored(document, "", path) if by_anchor else _at(self._document, path)
        if found is None:
            raise SchemaRefused(pointer, f"there is nothing at {reference}")
        return found


def _at(document: Any, path: str) -> Node | None:
    """Return what a JSON pointer means.  Source: RFC 6901."""
    place, at = document, ""
    for step in path.split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        place = _members(place).get(key, _ABSENT)
        if place is _ABSENT:
            return None
        at = f"{at}/{step}"
    return Node(place, at)


def _anchored(place: Any, at: str, name: str) -> Node | None:
    if (object_of(place) or {}).get("$anchor") == name or (
        (object_of(place) or {}).get("$id") == f"#{name}"
    ):
        return Node(place, at)
    for key, part in _members(place).items():
        found = _anchored(part, f"{at}/{_escaped(key)}", name)
        if found is not None:
            return found
    return None


def _members(place: Any) -> dict[str, Any]:
    items = list_of(place)
    if items is not None:
        return {str(i): item for i, item in enumerate(items)}
    return object_of(place) or {}


def _child(node: Node, key: str) -> Node:
    return Node(node.schema[key], f"{node.pointer}/{_escaped(key)}")


def _below(node: Node, keyword: str) -> list[Node]:
    parts = list_of(node.schema.get(keyword, []))
    if parts is None:
        raise SchemaRefused(f"{node.pointer}/{keyword}", f"{keyword} is a list")
    at = f"{node.pointer}/{keyword}"
    return [Node(part, f"{at}/{i}") for i, part in enumerate(parts)]


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")
