"""The layout `whole`: each chain that ends in new blocks gets one file, with all that is before.

What was before in other files moves to the new one, and a file of which nothing is left goes.  So
a conversation is one file, written anew with each turn; a branch leaves the older one its own end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from mlxbun.adapters.ssd import whole
from mlxbun.adapters.ssd.container import Encoded
from mlxbun.adapters.ssd.losses import Losses
from mlxbun.adapters.ssd.manifest import Manifest
from mlxbun.adapters.ssd.objects import Damaged, Objects
from mlxbun.adapters.ssd.place import Place, alone
from mlxbun.domain.blocks import BlockInfo, BlockKey, Namespace, StoreFailed

New = Sequence[tuple[BlockInfo, Encoded]]


class Plan(Struct, frozen=True):
    """What a commit writes, which rows it inserts, and which rows go to other places."""

    files: dict[str, Encoded]
    rows: Sequence[tuple[BlockInfo, Place]]
    moves: Sequence[tuple[BlockKey, Place]] = ()


def apart(new: New) -> Plan:
    """Give each block a file of its own: the layout `blocks`."""
    rows = [(info, alone(encoded.content, encoded.num_bytes)) for info, encoded in new]
    return Plan({encoded.content: encoded for _, encoded in new}, rows)


class Chains:
    """Plans commits.  The caller keeps other writers out."""

    def __init__(self, manifest: Manifest, objects: Objects, losses: Losses) -> None:
        self._manifest, self._objects, self._losses = manifest, objects, losses

    def plan(self, namespace: Namespace, new: New) -> Plan:
        """Plan a file for each chain of `new`, whose parents come first.

        Raises StoreFailed for a parent that is not visible.
        """
        encoded = {info.key: (info, data) for info, data in new}
        parents = {info.parent for info, _ in new}
        files = dict[str, Encoded]()
        places, moves = dict[BlockKey, Place](), dict[BlockKey, Place]()
        for info, _ in new:
            if info.key in parents:
                continue
            path: list[BlockKey] = []
            at: BlockKey | None = info.key
            while at is not None and at in encoded:
                path.append(at)
                at = encoded[at][0].parent
            before = self._before(namespace, at)
            parts = [self._kept(place) for _, place in before]
            parts += [_fresh(encoded[key][1]) for key in reversed(path)]
            file, found = whole.encode(parts)
            files[file.content] = file
            for key, place in zip(reversed(path), found[len(before) :], strict=True):
                places.setdefault(key, place)
            moves |= {key: place for (key, _), place in zip(before, found, strict=False)}
        return Plan(files, [(info, places[info.key]) for info, _ in new], list(moves.items()))

    def _before(
        self, namespace: Namespace, key: BlockKey | None
    ) -> Sequence[tuple[BlockKey, Place]]:
        if key is None:
            return ()
        chain = self._manifest.chain(namespace, key)
        if not chain:
            raise StoreFailed(f"the parent {key} is not kept")
        return chain

    def _kept(self, place: Place) -> whole.Part:
        def data() -> Iterator[memoryview]:
            try:
                yield memoryview(self._objects.verified(place))
            except Damaged as damage:
                self._losses.lose(place.content, damage)
                raise StoreFailed(f"a block before is damaged: {damage}") from damage

        return whole.Part(place.digest, place.num_bytes, data)


def _fresh(encoded: Encoded) -> whole.Part:
    def data() -> Iterable[memoryview]:
        return encoded.parts

    return whole.Part(encoded.content, encoded.num_bytes, data)
