"""Reading JSON Schema: from what was written to shapes.

Drafts 4 to 2020-12.  What is read may say less than the schema allows, never more, but for the
keywords that are noted as not enforced.  `Strictness` says what becomes of those, and of what is
malformed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from itertools import combinations
from typing import Any

from mlxbun.domain.constraint.json_values import list_of, object_of, spelled
from mlxbun.domain.constraint.membership import Membership
from mlxbun.domain.constraint.schema_keywords import (
    Keywords,
    SchemaRefused,
    below,
    child,
    named,
)
from mlxbun.domain.constraint.schema_references import local, target_of
from mlxbun.domain.constraint.shapes import (
    EVERYTHING,
    NULL,
    TRUE_FALSE,
    Array,
    Conj,
    Node,
    Number,
    Object,
    Shape,
    Text,
    Values,
)

MAX_SHAPES = 128  # that one schema may come to
MAX_DEPENDENCIES = 4

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


class Strictness(Enum):
    """STRICT refuses what cannot be enforced, LENIENT takes even what is malformed for anything."""

    STRICT = "strict"
    USUAL = "usual"
    LENIENT = "lenient"


class Schemas:
    """One schema document, read on demand.  `unenforced` lists pointers, as they come up."""

    def __init__(self, document: Any, strictness: Strictness) -> None:
        self._document = document
        self._strictness = strictness
        self._shapes: dict[str, tuple[Shape, ...]] = {}
        self._reading: list[str] = []
        self.unenforced: dict[str, None] = {}
        self.membership = Membership(self.shapes)
        self._keywords = Keywords(self.not_enforced, self._annotated)

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

    def _annotated(self, pointer: str) -> None:
        # An annotation by the standard: nobody is refused for it.
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
        for part in below(node, "allOf"):
            found = self._meet(found, self._of_node(part), node)
        if "anyOf" in schema:
            parts = [self._of_node(part) for part in below(node, "anyOf")]
            found = self._meet(found, [shape for shapes in parts for shape in shapes], node)
        if "oneOf" in schema:
            found = self._one_of(found, node)
        for variants in self._dependencies(schema, node):
            found = self._meet(found, variants, node)
        if "not" in schema:
            found = self._negated(found, child(node, "not"))
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
        said = self._keywords.read(schema, node)
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

    # -- what it says of others --

    def _one_of(self, found: Sequence[Shape], node: Node) -> tuple[Shape, ...]:
        """Return what any of oneOf allows, having seen that no two of them allow the same."""
        parts = [self._meet(found, self._of_node(part), node) for part in below(node, "oneOf")]
        for (_, one), (at, other) in combinations(enumerate(parts), 2):
            if not all(self.membership.apart(a, b) for a in one for b in other):
                pointer = f"{node.pointer}/oneOf/{at}"
                self.not_enforced(pointer, "it may hold where another of oneOf holds too")
        return tuple(shape for shapes in parts for shape in shapes)

    def _dependencies(self, schema: Mapping[str, Any], node: Node) -> Iterable[tuple[Shape, ...]]:
        """Yield, for each dependency, the objects without its member, and those that follow it."""
        found: dict[str, list[Node]] = {}
        for keyword in ("dependentRequired", "dependentSchemas", "dependencies"):
            for name, part in named(node, keyword).items():
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
        fragment = local(self._document, reference)
        if fragment is None:
            self.not_enforced(pointer, "only references within the schema are followed")
            return Node(True, f"{pointer}/elsewhere")
        found = target_of(self._document, fragment)
        if found is None:
            raise SchemaRefused(pointer, f"there is nothing at {reference}")
        return found
