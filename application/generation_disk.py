"""The disk of checkpoints: one thread that writes them, reads them for who asks again, drops them.

Loads go first, since somebody waits.  What waits to be written is bounded: beyond that, rows go on
without a checkpoint until there is room.  A disk that fails costs checkpoints, is said once, and
loses no request.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence

from msgspec import Struct

from mlxbun.application.answer_blocks import AnswerBlocks
from mlxbun.application.requests import Resume
from mlxbun.application.resident_blocks import ResidentBlocks
from mlxbun.domain.blocks import (
    BlockInfo,
    BlockKey,
    BlockLost,
    BlockStore,
    Namespace,
    StoreFailed,
    Tensor,
)
from mlxbun.domain.generation_checkpoint import (
    Addition,
    Bounds,
    CheckpointNotSaved,
    CheckpointSaved,
    GenerationKey,
    GenerationStore,
    Held,
    private,
)
from mlxbun.domain.journal import Event
from mlxbun.domain.sampling import RequestId, TokenId
from mlxbun.domain.steps import Compute

log = logging.getLogger("mlxbun.checkpoints")

QUEUE_BYTES = 2 << 30  # of copies that may wait to be written
LEAST_SECONDS = 0.1  # that the thread gets to end

Report = Callable[[ResidentBlocks, Compute], Sequence[Event]]
Then = Callable[[Resume | None], None]


class _Save(Struct):
    """What is to be written, and the copies in RAM that it is written from."""

    request_id: RequestId
    addition: Addition
    copies: Sequence[BlockInfo]

    @property
    def num_bytes(self) -> int:
        return sum(copy.num_bytes for copy in self.copies)


class GenerationDisk:
    """Checkpoints of one model's answers.  Any thread may call; nothing but `flush` waits.

    `blocks` are the prefix cache's, in whose store checkpoints leave complete blocks; `tensors` is
    the compute port's, `report` hands a report to the engine's thread.
    """

    def __init__(
        self,
        store: GenerationStore,
        blocks: BlockStore,
        namespace: Namespace,
        *,
        tensors: Callable[[BlockKey], Sequence[Tensor]],
        report: Callable[[Report], None],
        bounds: Bounds | None = None,
        queue_bytes: int = QUEUE_BYTES,
    ) -> None:
        """`namespace` is the prefix cache's."""
        self._store, self.namespace = store, private(namespace)
        self._blocks = AnswerBlocks(blocks, namespace, tensors)
        self._tensors, self._report = tensors, report
        self._bounds, self._queue_bytes = bounds or Bounds(), queue_bytes
        self._changed = threading.Condition()
        self._loads: deque[tuple[GenerationKey, Sequence[TokenId], Then]] = deque()
        self._drops: dict[GenerationKey, None] = {}
        self._saves: dict[GenerationKey, _Save] = {}
        self._held: dict[GenerationKey, Held] = {}
        self._busy_with: GenerationKey | None = None
        self._pending_bytes = 0
        self._closing = False
        self._failing = False
        self._keys: set[GenerationKey] = set()
        self._thread = threading.Thread(target=self._work, name="mlxbun-ssd-answers", daemon=True)

    def start(self) -> None:
        """Learn what is there, and begin.  Raises StoreFailed."""
        self._store.prune(self.namespace, self._bounds)
        self._keys.update(self._store.keys(self.namespace))
        self._thread.start()

    def has(self, key: GenerationKey) -> bool:
        """Return whether there is a checkpoint to load."""
        return key in self._keys

    def load(self, key: GenerationKey, prompt_ids: Sequence[TokenId], then: Then) -> None:
        """Call `then` on the thread with what a checkpoint has, None if it cannot be used."""
        with self._changed:
            if not self._closing:
                self._loads.append((key, prompt_ids, then))
                self._changed.notify_all()
                return
        then(None)

    def takes(self, key: GenerationKey) -> bool:
        with self._changed:
            on_its_way = key in self._saves or key == self._busy_with
            return not (self._closing or on_its_way or self._pending_bytes >= self._queue_bytes)

    def held(self, key: GenerationKey) -> Held | None:
        return self._held.get(key)

    def save(self, request_id: RequestId, addition: Addition, copies: Sequence[BlockInfo]) -> None:
        key, save = addition.checkpoint.key, _Save(request_id, addition, copies)
        with self._changed:
            older = self._take_back(key)
            self._drops.pop(key, None)
            self._saves[key] = save
            self._pending_bytes += save.num_bytes
            self._changed.notify_all()
        if older is not None:
            self._let_go(older)

    def drop(self, key: GenerationKey) -> None:
        with self._changed:
            older = self._take_back(key)
            if key in self._keys or key == self._busy_with:
                self._drops[key] = None
            self._keys.discard(key)
            self._changed.notify_all()
        if older is not None:
            self._let_go(older)

    def flush(self, timeout_seconds: float) -> bool:
        """Wait until nothing is to be done, or the time is up; return whether nothing is."""
        with self._changed:
            return self._changed.wait_for(
                lambda: not (self._saves or self._drops or self._busy_with), timeout_seconds
            )

    def close(self, timeout_seconds: float) -> None:
        """Flush and end the thread.  The store is left open, as it is not only ours."""
        if self._thread.ident is None:
            return
        done = self.flush(timeout_seconds)
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(timeout_seconds if done else LEAST_SECONDS)
        if self._thread.is_alive():
            log.error("the disk does not answer: the last checkpoints are not on it")

    # -- the thread --

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._loads or self._drops or self._saves or self._closing
                )
                load = self._loads.popleft() if self._loads else None
                drop = save = None
                if load is None and self._closing:
                    return
                if load is None and self._drops:
                    drop = self._busy_with = next(iter(self._drops))
                    del self._drops[drop]
                elif load is None:
                    self._busy_with = next(iter(self._saves))
                    save = self._saves.pop(self._busy_with)
            if load is not None:
                self._load(*load)
            elif drop is not None:
                self._drop(drop)
            elif save is not None:
                self._save(save)
            with self._changed:
                self._busy_with = None
                self._pending_bytes -= save.num_bytes if save is not None else 0
                self._changed.notify_all()

    def _load(self, key: GenerationKey, prompt_ids: Sequence[TokenId], then: Then) -> None:
        found = None
        try:
            found = self._store.load(self.namespace, key)
        except Exception:  # the store's own fault: the answer is computed from its beginning
            log.exception("a checkpoint cannot be read")
        if found is None:
            self._keys.discard(key)
            self._held.pop(key, None)
            then(None)
            return
        checkpoint, tensors = found
        state = list(zip(checkpoint.state, tensors, strict=True))
        self._held[key] = Held.of(checkpoint)
        if state and state[-1][0].kind == "boundary":
            before = self._blocks.before(state[0][0].start, (*prompt_ids, *checkpoint.token_ids))
            state = [*before, *state] if before is not None else []
        then(Resume(checkpoint.token_ids, checkpoint.logprobs, state))

    def _drop(self, key: GenerationKey) -> None:
        self._held.pop(key, None)
        try:
            self._store.drop(self.namespace, [key])
        except StoreFailed as error:  # it leaves with the oldest
            log.warning("a checkpoint stays on the disk: %s", error)

    def _save(self, save: _Save) -> None:
        addition = save.addition
        checkpoint = addition.checkpoint
        held = self._held.pop(checkpoint.key, None)  # until it is known what is there
        if addition.after and (held is None or held.num_tokens != addition.after):
            if held is not None:  # another row of the same name was faster
                self._held[checkpoint.key] = held
            self._let_go(save)
            return
        try:
            num_bytes = self._blocks.keep(addition)
            new = [(part, self._tensors(part.key)) for part in addition.new]
            committed = self._store.save(self.namespace, checkpoint, new, addition.after)
            gone = self._store.prune(self.namespace, self._bounds)
        except (
            Exception
        ) as error:  # StoreFailed, BlockLost, or a fault that must not end the thread
            self._not_saved(save, error)
            return
        self._blocks.use(addition.follows)
        self._keys.add(checkpoint.key)
        self._held[checkpoint.key] = Held.of(checkpoint)
        self._keys.difference_update(gone)
        for key in gone:
            self._held.pop(key, None)
        if self._failing:
            self._failing = False
            log.warning("checkpoints are written again")
        num_tokens, num_bytes = len(checkpoint.token_ids), num_bytes + committed.bytes_written
        self._let_go(save, CheckpointSaved(save.request_id, num_tokens, num_bytes))

    def _not_saved(self, save: _Save, error: Exception) -> None:
        known = isinstance(error, (StoreFailed, BlockLost))
        if not known:
            log.exception("a checkpoint was not written")
        elif not self._failing:
            log.warning("checkpoints are not written: %s", error)
        self._failing = True
        cause = f"{type(error).__name__}: {error}"
        self._let_go(save, CheckpointNotSaved(save.request_id, cause))

    def _let_go(self, save: _Save, event: Event | None = None) -> None:
        """Drop the copies that were to be written, and tell what became of them."""
        keys = [copy.key for copy in save.copies]
        durable = isinstance(event, CheckpointSaved)
        found = [block for block, copy in save.addition.blocks if durable and copy != block.key]

        def told(blocks: ResidentBlocks, compute: Compute) -> Sequence[Event]:
            compute.forget(keys)
            events: list[Event] = list(blocks.opened(compute, found))
            return [*events, event] if event is not None else events

        self._report(told)

    def _take_back(self, key: GenerationKey) -> _Save | None:
        """Take out of the queue what waits there.  Called with the lock."""
        waiting = self._saves.pop(key, None)
        if waiting is None:
            return None
        self._pending_bytes -= waiting.num_bytes
        return waiting
