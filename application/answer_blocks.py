"""Answer blocks: complete blocks of a running answer, which checkpoints leave to the prefix cache.

They are in its namespace, under its own keys, on its disk; checkpoints keep only what follows them.
Called on the thread of checkpoints, and may block.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from mlxbun.domain.blocks import (
    BLOCK,
    BlockInfo,
    BlockKey,
    BlockLost,
    BlockStore,
    Namespace,
    StoreFailed,
    Tensor,
    chain,
    linked,
)
from mlxbun.domain.generation_checkpoint import Addition
from mlxbun.domain.sampling import TokenId

log = logging.getLogger("mlxbun.checkpoints")

Contents = Sequence[tuple[BlockInfo, Sequence[Tensor]]]


class AnswerBlocks:
    """The prefix cache's blocks in `store`; `tensors` is the compute port's."""

    def __init__(
        self,
        store: BlockStore,
        namespace: Namespace,
        tensors: Callable[[BlockKey], Sequence[Tensor]],
    ) -> None:
        self._store, self._namespace, self._tensors = store, namespace, tensors

    def keep(self, addition: Addition) -> int:
        """Make complete blocks durable that only RAM has; return the bytes written for it.

        Raises StoreFailed, and BlockLost for a copy that is not there.
        """
        there: list[tuple[BlockInfo, Sequence[Tensor]]] = []
        for block, copy in addition.blocks:
            try:
                there.append((block, self._tensors(copy)))
            except BlockLost:
                if copy != block.key:
                    raise
                # The prefix cache's own has left RAM: it is on its disk by now, or nowhere, and
                # then the answer's state is computed again.
        return self._store.commit(self._namespace, there).bytes_written if there else 0

    def use(self, block: BlockKey | None) -> None:
        """Note that a checkpoint stands on a block and those before it: they stay as long as it."""
        if block is not None:
            try:
                self._store.used(self._namespace, [block])
            except StoreFailed as error:
                log.warning("uses of blocks are not noted: %s", error)

    def before(self, start: int, known: Sequence[TokenId]) -> Contents | None:
        """Return the blocks of `known` before token `start`, None if one of them is lost.

        The prefix cache lends blocks alone to nobody where they have a boundary after them.
        """
        blocks = linked(chain(self._namespace, known))[: start // BLOCK]
        try:
            found = [(block, self._store.read(self._namespace, block.key)) for block in blocks]
        except Exception as error:  # BlockLost, or the store's own fault: it is computed again
            log.warning("the state of an answer is computed again: %s", error)
            return None
        self.use(blocks[-1].key if blocks else None)
        return found
