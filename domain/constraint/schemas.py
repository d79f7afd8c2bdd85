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

from mlxbun.domain.constraint.alternatives import Alternatives, closed_to
from mlxbun.domain.constraint.json_values import list_of, object_of, spelled
from mlxbun.domain.constraint.membership import Membership
from mlxbun.domain.constraint.schema_keywords import (
    DEPENDENCIES,
    Keywords,
    SchemaRefused,
    below,
    child,
    dependencies_of,
    types_of,
)
from mlxbun.domain.constraint.schema_references import has_documents, local, target_of
from mlxbun.domain.constraint.schema_size import check_size
from mlxbun.domain.constraint.shapes import (
    EVERYTHING,
    NEVER,
    Conj,
    Node,
    Object,
    Shape,
    Values,
)
from mlxbun.domain.constraint.unevaluated import evaluated

MAX_DEPENDENCIES = 6


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
        self._shapes: dict[Node, tuple[Shape, ...]] = {}
        self._reading: list[Node] = []
        self._met: dict[Conj, tuple[Shape, ...]] = {}
        self._inexact: set[Node] = set()  # what was read says less than the schema, or more
        self.unenforced: dict[str, None] = {}
        self.membership = Membership(self.shapes)
        self._alternatives = Alternatives(self.membership, self.shapes)
        self._keywords = Keywords(self.not_enforced, self._annotated, self._narrowed)

    def root(self) -> Conj:
        check_size(self._document)
        return (Node(self._document, ""),)

    def shapes(self, conj: Conj) -> tuple[Shape, ...]:
        """Return the shapes of what all of `conj` allow.  Raises SchemaRefused."""
        known = self._met.get(conj)
        if known is not None:
            if not self._inexact.isdisjoint(conj):
                self._narrowed()
            return known
        found: tuple[Shape, ...] = EVERYTHING
        for node in sorted(conj, key=lambda node: node.negated):
            found = self._alternatives.meet(found, self._of_node(node), node)
        self._met[conj] = found
        return found

    def names_kinds(self, node: Node, seen: set[Node] | None = None) -> bool:
        """Return whether alternatives of `node` name their types, so that all of them are meant."""
        schema = object_of(node.schema)
        seen = set() if seen is None else seen
        if schema is None or node in seen:
            return False
        seen.add(node)
        parts = [part for key in ("anyOf", "oneOf") for part in below(node, key)]
        if any("type" in (object_of(part.schema) or {}) for part in parts):
            return True
        parts += below(node, "allOf")
        if "$ref" in schema:
            parts.append(self._target(schema["$ref"], node, "$ref"))
        return any(self.names_kinds(part, seen) for part in parts)

    def not_enforced(self, pointer: str, why: str) -> None:
        """Note that the keyword at `pointer` is not enforced.  Raises SchemaRefused if strict."""
        if self._strictness is Strictness.STRICT:
            raise SchemaRefused(pointer, why)
        self.unenforced[pointer] = None
        self._inexact.update(self._reading)

    def _annotated(self, pointer: str) -> None:
        # An annotation by the standard: nobody is refused for it.
        self.unenforced[pointer] = None

    def _narrowed(self) -> None:
        self._inexact.update(self._reading)

    def _of_node(self, node: Node) -> tuple[Shape, ...]:
        known = self._shapes.get(node)
        if known is None:
            if node in self._reading:
                raise SchemaRefused(node.pointer, "it refers to itself without end")
            self._reading.append(node)
            try:
                known = self._negative(node) if node.negated else self._read(node)
            except SchemaRefused:
                if self._strictness is not Strictness.LENIENT:
                    raise
                self.unenforced[node.pointer] = None
                self._inexact.update(self._reading)
                known = EVERYTHING
            finally:
                self._reading.pop()
            self._shapes[node] = known
        elif node in self._inexact:
            self._inexact.update(self._reading)
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
        for keyword in ("$ref", "$dynamicRef", "$recursiveRef"):
            if keyword in schema:
                target = self._of_node(self._target(schema[keyword], node, keyword))
                found = self._alternatives.meet(found, target, node)
        for part in below(node, "allOf"):
            found = self._alternatives.meet(found, self._of_node(part), node)
        if "anyOf" in schema:
            parts = [self._of_node(part) for part in below(node, "anyOf")]
            found = self._alternatives.meet(
                found, [shape for shapes in parts for shape in shapes], node
            )
        if "oneOf" in schema:
            found = self._one_of(found, node)
        for variants in self._dependencies(schema, node):
            found = self._alternatives.meet(found, variants, node)
        if "not" in schema:
            found = self._without(found, child(node, "not"), node, "not")
        if "if" in schema:
            found = self._conditional(found, schema, node)
        if "unevaluatedProperties" in schema or "unevaluatedItems" in schema:
            self._narrowed()  # of alternatives each is taken by itself
            found = tuple(evaluated(shape, schema, node, self.not_enforced) for shape in found)
        if "contentSchema" in schema:
            self._annotated(f"{node.pointer}/contentSchema")
        return found

    def _negative(self, node: Node) -> tuple[Shape, ...]:
        """Return what is not valid under the schema of `node`."""
        return self._without(EVERYTHING, Node(node.schema, node.pointer), node, "")

    # -- what a schema says by itself --

    def _own(self, schema: Mapping[str, Any], node: Node) -> tuple[Shape, ...]:
        found = types_of(schema, node)
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
        """Return what exactly one of oneOf allows."""
        nodes = below(node, "oneOf")
        parts = [self._alternatives.meet(found, self._of_node(part), node) for part in nodes]
        alone: list[Sequence[Shape]] = list(parts)
        failed = False
        for one, other in combinations(range(len(parts)), 2):
            if self._alternatives.apart(parts[one], parts[other], written=False):
                continue
            if self._alternatives.apart(parts[one], parts[other], written=True):
                alone[one] = closed_to(alone[one], parts[other])
                alone[other] = closed_to(alone[other], parts[one])
                continue
            for part, without in ((one, other), (other, one)):
                # Where it was too much for two, it is for all.
                left = None if failed else self._less(alone[part], nodes[without])
                if left is None:
                    failed = True
                    pointer = f"{node.pointer}/oneOf/{other}"
                    self.not_enforced(pointer, "it may hold where another of oneOf holds too")
                    break
                alone[part] = left
        return tuple(shape for shapes in alone for shape in shapes)

    def _conditional(
        self, found: tuple[Shape, ...], schema: Mapping[str, Any], node: Node
    ) -> tuple[Shape, ...]:
        """Return what follows `then` where `if` holds, and `else` where it does not."""
        condition = child(node, "if")
        branches = [child(node, key) for key in ("then", "else") if key in schema]
        if not branches:
            return found
        otherwise = self._less(found, condition)
        if otherwise is None:
            self.not_enforced(condition.pointer, "this if cannot be enforced")
            return found
        holding = self._alternatives.meet(found, self._of_node(condition), node)
        if "then" in schema:
            holding = self._alternatives.meet(holding, self._of_node(child(node, "then")), node)
        if "else" in schema:
            otherwise = self._alternatives.meet(otherwise, self._of_node(child(node, "else")), node)
        return (*holding, *otherwise)

    def _dependencies(self, schema: Mapping[str, Any], node: Node) -> Iterable[tuple[Shape, ...]]:
        """Yield, for each dependency, the objects without its member, and those that follow it."""
        found = dependencies_of(node)
        if len(found) > MAX_DEPENDENCIES:
            keyword = next(keyword for keyword in DEPENDENCIES if keyword in schema)
            self.not_enforced(f"{node.pointer}/{keyword}", "it has too many dependencies")
            return
        others = tuple(shape for shape in EVERYTHING if not isinstance(shape, Object))
        for name, parts in found.items():
            present: tuple[Shape, ...] = (Object(required=(name,)),)
            for part in parts:
                present = self._alternatives.meet(present, self._of_node(part), node)
            yield (Object({name: NEVER}), *present, *others)

    def _without(
        self, found: tuple[Shape, ...], unwanted: Node, node: Node, keyword: str
    ) -> tuple[Shape, ...]:
        left = self._less(found, unwanted)
        if left is None:
            at = f"{node.pointer}/{keyword}" if keyword else node.pointer
            self.not_enforced(at, "that it must not hold cannot be enforced")
            return found
        return left

    def _less(self, found: Sequence[Shape], unwanted: Node) -> tuple[Shape, ...] | None:
        """Return `found` without what `unwanted` allows; None where that cannot be said."""
        left = self._alternatives.less(found, self._of_node(unwanted), unwanted)
        if unwanted in self._inexact and left != tuple(found):
            return None
        return left

    def _target(self, reference: Any, node: Node, keyword: str) -> Node:
        """Return what a $ref means, within the document.

        There the others mean the same: only documents within documents tell them from it.
        """
        pointer = f"{node.pointer}/{keyword}"
        if not isinstance(reference, str):
            raise SchemaRefused(pointer, f"a {keyword} is a string")
        fragment = local(self._document, reference)
        if keyword != "$ref" and has_documents(self._document):
            fragment = None
        if fragment is None:
            self.not_enforced(pointer, "only references within the schema are followed")
            return Node(True, f"{pointer}/elsewhere")
        found = target_of(self._document, fragment)
        if found is None:
            raise SchemaRefused(pointer, f"there is nothing at {reference}")
        return found
