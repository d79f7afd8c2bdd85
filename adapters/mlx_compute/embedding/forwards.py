"""Forwards in parts: where one can stop for a while, whatever the model.

MLX computes nothing before it is asked to, so a forward is written down whole, and what the parts
of its layers (attention, feed-forward) return on the way is noted.  Evaluated one after the other,
in between which the device is free, they cost what the whole costs, and make the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import mlx.core as mx
from mlx.nn.layers.base import Module

Note = Callable[[Any], None]


class Forwards:
    """Forwards through `layers`, whose parts it makes tell what they return.

    One at a time is written down.
    """

    def __init__(self, layers: Sequence[Any]) -> None:
        self._noted: list[mx.array] | None = None
        for part in {id(part): part for part in _parts(layers)}.values():  # some share theirs
            part.__class__ = _telling(type(part), self._note)

    def written(self, forward: Callable[[], mx.array]) -> tuple[mx.array, list[mx.array]]:
        """Return what `forward` returns, and what is on the way to it, in the order of need."""
        noted: list[mx.array] = []
        self._noted = noted
        try:
            return forward(), noted
        finally:
            self._noted = None

    def _note(self, made: Any) -> None:
        if self._noted is not None and isinstance(made, mx.array):
            self._noted.append(made)


def _parts(layers: Sequence[Any]) -> Iterator[Any]:
    """Yield the modules of each layer that have modules themselves; norms have none."""
    for layer in layers:
        found = [child for child in layer.children().values() if _has_modules(child)]
        yield from found or [layer]


def _has_modules(module: Any) -> bool:
    return isinstance(module, Module) and any(module.children().values())  # type: ignore[no-untyped-call]


def _telling(kind: Any, note: Note) -> Any:
    class Telling(kind):  # type: ignore[misc]
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            made = super().__call__(*args, **kwargs)
            note(made)
            return made

    Telling.__name__ = kind.__name__
    return Telling
