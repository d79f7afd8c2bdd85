"""Alternatives: a union of shapes, what two of them have in common, and what one leaves of another.

Each keyword may multiply them, so their number is limited, and the work on them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mlxbun.domain.constraint.json_values import object_of
from mlxbun.domain.constraint.membership import Membership
from mlxbun.domain.constraint.schema_keywords import SchemaRefused
from mlxbun.domain.constraint.shapes import (
    EVERYTHING,
    NEVER,
    Conj,
    Node,
    Object,
    Shape,
    meet_objects,
    member_of,
)

MAX_SHAPES = 128  # that one schema may come to
MAX_PAIRS = 200_000  # of shapes that are met, in all
MAX_LEFT = 64  # where some were taken away

_OF_LISTS = {"const", "enum", "type", "title", "description", "default", "nullable"}


class Alternatives:
    """Those of one schema document, whose inner schemas `shapes` reads.

    `node` is the schema that is refused where they become too many.
    """

    def __init__(self, membership: Membership, shapes: Callable[[Conj], tuple[Shape, ...]]) -> None:
        self._membership = membership
        self._shapes = shapes
        self._num_pairs = 0

    def meet(self, some: Sequence[Shape], others: Sequence[Shape], node: Node) -> tuple[Shape, ...]:
        """Return what is in both `some` and `others`."""
        if tuple(some) == EVERYTHING:
            return tuple(others)
        if tuple(others) == EVERYTHING:
            return tuple(some)
        self._count(len(some) * len(others), node)
        found: dict[int, Shape] = {}
        for a in some:
            for b in others:
                met = self._membership.meet(a, b)
                if met is not None and self._may_be(met):
                    found[len(found)] = met
        if len(found) > MAX_SHAPES:
            raise SchemaRefused(node.pointer, "it comes to too many alternatives")
        return tuple(found.values())

    def less(
        self, some: Sequence[Shape], others: Sequence[Shape], node: Node
    ) -> tuple[Shape, ...] | None:
        """Return what is in `some` and not in `others`; None where that cannot be said."""
        left = list(some)
        for other in others:
            self._count(len(left), node)
            after: list[Shape] = []
            for shape in left:
                if self._membership.apart(shape, other, written=False):
                    after.append(shape)
                    continue
                parts = self._membership.less(shape, other)
                if parts is None:
                    return None
                self._count(len(parts), node)
                after += [part for part in parts if self._may_be(part)]
            left = after
            if len(left) > MAX_LEFT:
                return None
        return tuple(left)

    def apart(self, some: Sequence[Shape], others: Sequence[Shape], *, written: bool) -> bool:
        """As `Membership.apart`, of each of `some` and each of `others`."""
        return all(self._membership.apart(a, b, written=written) for a in some for b in others)

    def _count(self, num_pairs: int, node: Node) -> None:
        self._num_pairs += num_pairs
        if self._num_pairs > MAX_PAIRS:
            raise SchemaRefused(node.pointer, "with it, the schema comes to too many alternatives")

    def _may_be(self, shape: Shape) -> bool:
        """Return whether not even a look at listed values tells that there is no such value."""
        if not isinstance(shape, Object):
            return True
        return not any(
            (value := member_of(shape, name)) is None or self._is_none(value)
            for name in shape.required
        )

    def _is_none(self, conj: Conj) -> bool:
        """Return whether `conj` is seen to allow nothing: of lists only, which refer to nobody."""
        if any(node.schema is False and not node.negated for node in conj):
            return True
        listed = tuple(node for node in conj if _lists(node.schema))
        return any(not node.negated for node in listed) and not self._shapes(listed)


def closed_to(shapes: Sequence[Shape], others: Sequence[Shape]) -> list[Shape]:
    """Return `shapes` without members that are not declared, and that `others` would need."""
    needed = dict.fromkeys(
        name for other in others if isinstance(other, Object) for name in other.required
    )
    return [
        meet_objects(shape, Object({n: NEVER for n in needed if n not in _known(shape)}))
        if isinstance(shape, Object)
        else shape
        for shape in shapes
    ]


def _known(shape: Object) -> set[str]:
    return {*shape.members, *shape.required}


def _lists(schema: Any) -> bool:
    said = (object_of(schema) or {}).keys()
    return bool(said & {"const", "enum"}) and said <= _OF_LISTS
