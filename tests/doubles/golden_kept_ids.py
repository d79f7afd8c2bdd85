"""The kept ids in tests/golden/ssd-1-kept.  Never changed: it says what old directories hold."""

from __future__ import annotations

from doubles.blocks import ONE, OTHER
from mlxbun.domain.blocks import Namespace
from mlxbun.domain.kept_ids import Kept, kept_as

TEXTS = ("the harbour was quiet", "Häuser, 等着", "the harbour was quiet, and")

SAVES: list[tuple[Namespace, list[Kept]]] = [
    (ONE, [kept_as(TEXTS[0], [1, 2, 2**32 - 1]), kept_as(TEXTS[1], range(300))]),
    (OTHER, [kept_as(TEXTS[0], [7])]),
    (ONE, [kept_as(TEXTS[2], [1, 2, 3, 4])]),
]
