"""Resident blocks: what there is of state, in RAM and on the disk, whoever computed it.

Asks `residency`, and does what was decided: copies leave RAM, and blocks go to the disk and come
back.  What the disk says of that is heard here.  Every method runs on the engine's thread, and
returns the events that it applied.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from mlxbun.domain import residency
from mlxbun.domain.blocks import BlockInfo, BlockKey, Tensor
from mlxbun.domain.residency import Event, SessionId
from mlxbun.domain.sampling import RequestId
from mlxbun.domain.steps import Compute

log = logging.getLogger("mlxbun.prefixes")


class Disk(Protocol):
    """Where blocks go that should outlive RAM and this process.  All calls return at once.

    What is read `ahead` of need gives way to all else.  Each block that was asked for is told of
    once: `restored`, `not_restored`, or `not_read` where `cancel` came in time.
    """

    def write(self, blocks: Sequence[BlockInfo]) -> None: ...

    def read(self, blocks: Sequence[BlockInfo], ahead: bool = False) -> None: ...

    def cancel(self, keys: Sequence[BlockKey]) -> None: ...

    def learned(self, prefill_tokens_per_second: float) -> None:
        """Note how fast prompts are read, for the next process."""
        ...

    def holding(self) -> Sequence[BlockInfo]:
        """Return the blocks whose bytes are being written, wherever else they are."""
        ...


class ResidentBlocks:
    """The blocks of one model's prefix cache.  `now` is a monotonic clock's seconds."""

    def __init__(
        self,
        budget: residency.Budget,
        disk: Disk | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._state = residency.Residency(budget)
        self._disk = disk
        self._now = now
        self.num_heard = 0  # reports of what was read, or could not be

    @property
    def state(self) -> residency.Residency:
        return self._state

    @property
    def has_disk(self) -> bool:
        return self._disk is not None

    @property
    def writing_bytes(self) -> int:
        """What left RAM, but that the disk still writes it."""
        if self._disk is None:
            return 0
        return sum(b.num_bytes for b in self._disk.holding() if not self.in_ram(b.key))

    def in_ram(self, key: BlockKey) -> bool:
        resident = self._state.blocks.get(key)
        return resident is not None and resident.in_ram

    # -- what is decided, and done --

    def decide(self, compute: Compute, command: residency.Command) -> list[Event]:
        """Decide, apply, and do what was decided, at the time that it is; then see that it fits."""
        events: list[Event] = []
        now = self._now()
        if now - self._state.now >= residency.STEP_SECONDS:
            events += self.apply(compute, residency.Tick(now))
        events += self.apply(compute, command)
        if self._state.ram_bytes > self._state.budget.ram_bytes:
            restored = command.blocks if isinstance(command, residency.Restored) else ()
            last = frozenset(block.key for block in restored)  # somebody waits for them
            events += self.apply(compute, residency.Fit(last))
        return events

    def apply(self, compute: Compute, command: residency.Command) -> list[Event]:
        """Decide, apply, and do what was decided, and nothing beside it."""
        events = residency.decide(self._state, command)
        for event in events:
            self._state = residency.evolve(self._state, event)
            match event:
                case residency.BlocksEvicted(keys=keys):
                    compute.forget(keys)
                case residency.WriteQueued(keys=keys) if self._disk is not None:
                    self._disk.write([self._state.blocks[key].info for key in keys])
                case residency.RestoreStarted(keys=keys, ahead=ahead) if self._disk is not None:
                    self._disk.read([self._state.blocks[key].info for key in keys], ahead)
                case _:
                    pass
        return events

    def copied(
        self, compute: Compute, request_id: RequestId, wanted: Sequence[BlockInfo]
    ) -> tuple[BlockInfo, ...]:
        """Copy blocks of a row's state into RAM, and return them; they are not published yet."""
        if not wanted:
            return ()
        try:
            return compute.keep(request_id, wanted)
        except Exception as error:  # memory, say: the request itself is well
            log.warning("the state of %s was not kept", request_id, exc_info=error)
            return ()

    def hold(
        self, compute: Compute, session: SessionId | None, keys: Sequence[BlockKey]
    ) -> list[Event]:
        """Keep what a session's latest request left for longer than what nobody asks for."""
        if session is None:
            return []
        return self.decide(compute, residency.Hold(session, tuple(keys), self._now()))

    # -- the disk --

    def cancel(self, keys: Sequence[BlockKey]) -> None:
        """Have the disk read blocks no more that nobody wants."""
        if keys and self._disk is not None:
            self._disk.cancel(keys)

    def opened(
        self, compute: Compute, blocks: Sequence[BlockInfo], prefill_tokens_per_second: float = 0.0
    ) -> list[Event]:
        """Note what the disk has from earlier, and how fast prompts were read then."""
        return self.decide(compute, residency.Opened(tuple(blocks), prefill_tokens_per_second))

    def measured(self, compute: Compute, num_bytes: int, seconds: float) -> list[Event]:
        """Note how fast the disk is, before anybody needs to know."""
        return self.decide(compute, residency.Measured(num_bytes, seconds))

    def restored(
        self,
        compute: Compute,
        blocks: Sequence[tuple[BlockInfo, Sequence[Tensor]]],
        seconds: float = 0.0,
    ) -> list[Event]:
        """Take in blocks that were read from the disk in `seconds`; 0 is not known."""
        started = time.perf_counter()
        self.num_heard += 1
        there: list[BlockInfo] = []
        lost: list[BlockKey] = []
        for block, tensors in blocks:
            try:
                there.append(compute.adopt(block, tensors))
            except Exception as error:  # BlockLost, or memory: it is computed again
                log.warning("block %s cannot be used: %s", block.key[:12], error)
                lost.append(block.key)
        if seconds:
            seconds += time.perf_counter() - started
        events = self.decide(compute, residency.Restored(tuple(there), seconds))
        if lost:
            events += self.not_restored(compute, lost, "it cannot be used")
        return events

    def not_restored(self, compute: Compute, keys: Sequence[BlockKey], cause: str) -> list[Event]:
        """Note that blocks could not be read."""
        self.num_heard += 1
        return self.decide(compute, residency.RestoreFailed(tuple(keys), cause))

    def not_read(self, compute: Compute, keys: Sequence[BlockKey]) -> list[Event]:
        """Note that blocks were not read, as they were cancelled."""
        return self.decide(compute, residency.StopRestores(tuple(keys)))

    def written(self, compute: Compute, keys: Sequence[BlockKey]) -> list[Event]:
        """Note that blocks are durable."""
        return self.decide(compute, residency.Written(tuple(keys)))

    def not_written(self, compute: Compute, keys: Sequence[BlockKey], cause: str) -> list[Event]:
        """Note that blocks could not be written."""
        return self.decide(compute, residency.WriteFailed(tuple(keys), cause))

    def settle(self, compute: Compute) -> list[Event]:
        """Have the disk take what it was to have later."""
        if self._disk is not None and self._state.prefill_tokens_per_second:
            self._disk.learned(self._state.prefill_tokens_per_second)
        return self.apply(compute, residency.Settle())

    def write_again(self, compute: Compute, max_blocks: int) -> list[Event]:
        """Have blocks written that the disk did not take; no events where none are left."""
        return self.decide(compute, residency.WriteAgain(max_blocks))

    def pruned(self, compute: Compute, keys: Sequence[BlockKey]) -> list[Event]:
        """Note that the disk forgot blocks."""
        return self.decide(compute, residency.Pruned(tuple(keys)))
