"""Publication: what of one request's state is kept, while it is computed and when it ends.

Where state can be cut, blocks of it are copied, and tails, where a prompt and its answer end;
where it cannot, it is copied whole at boundaries, with the blocks before them of the layers that
can.  A copy that cannot be made costs speed, never a request.  Every method runs on the engine's
thread; what takes `compute` returns the events that it applied.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Protocol

from mlxbun.application.resident_blocks import ResidentBlocks
from mlxbun.application.snapshots import Copy, Snapshots
from mlxbun.domain import residency
from mlxbun.domain.blocks import BLOCK, BlockInfo, BlockKey, Namespace, chain, linked, tails
from mlxbun.domain.residency import Event, SessionId
from mlxbun.domain.sampling import RequestId, TokenId
from mlxbun.domain.steps import Compute

MIN_TAIL = 16  # tokens: fewer are computed again sooner than kept

Fits = tuple[tuple[int, BlockKey], ...]


class Publication(Protocol):
    """What a request publishes.  `keys` are those of blocks that its prompt may begin with."""

    keys: Sequence[BlockKey]

    @property
    def stops(self) -> tuple[int, ...]:
        """After how many tokens of the prompt the state is to be copied."""
        ...

    @property
    def wanted(self) -> tuple[BlockKey, ...]:
        """The keys of what is published as the prompt is computed."""
        ...

    def fits(self) -> Fits:
        """Return (tokens, key) of boundaries or tails that may be in the prompt, longest first."""
        ...

    def seek(self) -> Fits:
        """Return what fits; what is shorter than the longest in RAM is not to be copied again."""
        ...

    def aim(self, num_tokens: int) -> None:
        """Choose what to publish of a prompt that begins with so much of what is kept."""
        ...

    def begin(self, num_tokens: int) -> None:
        """Note that the row began with the state of `num_tokens` tokens."""
        ...

    def draw(self, token_id: TokenId) -> None:
        """Note a token of the answer."""
        ...

    def read(
        self, compute: Compute, num_tokens: int, seconds: float, awaited: Set[BlockKey]
    ) -> list[Event]:
        """Publish what is due, or `awaited`, now that the row read more of its prompt."""
        ...

    def start(self, compute: Compute) -> list[Event]:
        """Publish the prompt, all of which but its last token was read."""
        ...

    def end(self, compute: Compute, *, answered: bool) -> list[Event]:
        """Publish what was computed, before the row is closed; `answered`: its last was drawn."""
        ...


class BlockPublication:
    """Publishes blocks of state that can be cut, and what follows the last of them."""

    def __init__(
        self,
        blocks: ResidentBlocks,
        namespace: Namespace,
        request_id: RequestId,
        prompt_ids: tuple[TokenId, ...],
        keys: Sequence[BlockKey],
        session: SessionId | None,
    ) -> None:
        self.keys = keys
        self._blocks = blocks
        self._namespace = namespace
        self._request_id = request_id
        self._prompt_ids = prompt_ids
        self._session = session
        self._drawn: list[TokenId] = []
        self._tail = _tail(namespace, prompt_ids[:-1], keys)
        self._began_with: BlockKey | None = None  # a tail
        self._num_published = 0  # blocks, those it began with included
        self._seconds = 0.0  # that computing what is not published yet took

    @property
    def stops(self) -> tuple[int, ...]:
        return ()

    @property
    def wanted(self) -> tuple[BlockKey, ...]:
        return (*self.keys, self._tail.key) if self._tail is not None else tuple(self.keys)

    def fits(self) -> Fits:
        state, most = self._blocks.state, len(self._prompt_ids) - 1
        lengths = [
            length
            for length in state.end_lengths
            if length <= most and (length < BLOCK or self.keys[length // BLOCK - 1] in state.blocks)
        ]
        found = tails(self._namespace, self._prompt_ids, self.keys, lengths)
        return tuple(sorted(((tail.end, tail.key) for tail in found), reverse=True))

    def seek(self) -> Fits:
        return self.fits()

    def aim(self, num_tokens: int) -> None:
        self._num_published = num_tokens // BLOCK
        found = tails(self._namespace, self._prompt_ids, self.keys, [num_tokens])
        self._began_with = found[0].key if found else None

    def begin(self, num_tokens: int) -> None:
        pass

    def draw(self, token_id: TokenId) -> None:
        self._drawn.append(token_id)

    def read(
        self, compute: Compute, num_tokens: int, seconds: float, awaited: Set[BlockKey]
    ) -> list[Event]:
        self._seconds += seconds
        return [] if awaited.isdisjoint(self.keys) else self._publish(compute, self.keys)

    def start(self, compute: Compute) -> list[Event]:
        return self._publish(compute, self.keys, self._tail)

    def end(self, compute: Compute, *, answered: bool) -> list[Event]:
        if not self._drawn:
            return self._publish(compute, self.keys)
        read = [*self._prompt_ids, *self._drawn[:-1]]  # the row has not read its last token
        keys = chain(self._namespace, read)
        return self._publish(compute, keys, _tail(self._namespace, read, keys))

    def _publish(
        self, compute: Compute, keys: Sequence[BlockKey], tail: BlockInfo | None = None
    ) -> list[Event]:
        """Keep the blocks of `keys` that the row has computed and that are not kept yet."""
        wanted = linked(keys)[self._num_published :]
        while wanted and self._blocks.in_ram(wanted[0].key):
            self._num_published += 1
            del wanted[0]
        if tail is not None and not self._blocks.in_ram(tail.key):
            wanted.append(tail)
        kept = self._blocks.copied(compute, self._request_id, wanted)
        self._num_published += sum(block.kind == "block" for block in kept)
        held = [*keys[: self._num_published], *(b.key for b in kept if b.kind == "tail")]
        events = self._blocks.hold(compute, self._session, held)
        publish = residency.Publish(self._request_id, kept, self._seconds)
        events += self._blocks.decide(compute, publish)
        self._seconds = 0.0 if kept else self._seconds
        if self._began_with is not None and any(block.kind == "block" for block in kept):
            events += self._blocks.decide(compute, residency.Overtake((self._began_with,)))
            self._began_with = None
        return events


class BoundaryPublication:
    """Publishes whole states, where `snapshots` says."""

    def __init__(
        self,
        blocks: ResidentBlocks,
        request_id: RequestId,
        snapshots: Snapshots,
        keys: Sequence[BlockKey],
        session: SessionId | None,
    ) -> None:
        self.keys = keys
        self._blocks = blocks
        self._request_id = request_id
        self._snapshots = snapshots
        self._session = session
        self._drawn: list[TokenId] = []
        self._copied: list[BlockKey] = []

    @property
    def stops(self) -> tuple[int, ...]:
        return self._snapshots.stops

    @property
    def wanted(self) -> tuple[BlockKey, ...]:
        return self._snapshots.keys

    def fits(self) -> Fits:
        return self._snapshots.known(self._blocks.state.end_lengths)

    def seek(self) -> Fits:
        fits, state = self.fits(), self._blocks.state
        whole = (length for length, key in fits if residency.all_in_ram(state, key))
        self._snapshots.aim(next(whole, 0))
        return fits

    def aim(self, num_tokens: int) -> None:
        self._snapshots.aim(num_tokens)

    def begin(self, num_tokens: int) -> None:
        self._snapshots.begin(num_tokens)

    def draw(self, token_id: TokenId) -> None:
        self._drawn.append(token_id)

    def read(
        self, compute: Compute, num_tokens: int, seconds: float, awaited: Set[BlockKey]
    ) -> list[Event]:
        self._snapshots.read(num_tokens, seconds)
        due = self._snapshots.due()
        return self._copy(compute, [due] if due is not None else [])

    def start(self, compute: Compute) -> list[Event]:
        return []  # its end is a stop, and was copied when it was read

    def end(self, compute: Compute, *, answered: bool) -> list[Event]:
        if answered:
            return self._copy(compute, self._snapshots.answered(self._drawn))
        left = self._snapshots.left() if not self._drawn else None
        return self._copy(compute, [left] if left is not None else [])

    def _copy(self, compute: Compute, found: Sequence[Copy]) -> list[Event]:
        """Keep the first of `found`, whole states, that the row is in."""
        events: list[Event] = []
        for copy in found:
            missing = self._missing(copy)
            kept = self._blocks.copied(compute, self._request_id, missing)
            if len(kept) < len(missing):
                continue
            self._snapshots.kept(copy)
            *before, boundary = (block.key for block in copy)
            self._copied.append(boundary)
            # The next turn begins with the end of the answer, or of the prompt before it.
            events += self._blocks.hold(compute, self._session, (*before, *self._copied[-2:]))
            speed = self._blocks.state.prefill_tokens_per_second
            seconds = self._snapshots.seconds(sum(block.num_tokens for block in kept), speed)
            publish = residency.Publish(self._request_id, kept, seconds)
            events += self._blocks.decide(compute, publish)
            break
        return events

    def _missing(self, copy: Copy) -> Sequence[BlockInfo]:
        """Return what is to be kept of a state: from the first block on that is not kept.

        Blocks that only the disk has are not brought back: who needs them reads them there.
        """
        for place, block in enumerate(copy):
            resident = self._blocks.state.blocks.get(block.key)
            on_ssd = resident is not None and resident.on_ssd and block.kind == "block"
            if not on_ssd and not self._blocks.in_ram(block.key):
                return copy[place:]
        return ()


def _tail(
    namespace: Namespace, token_ids: Sequence[TokenId], keys: Sequence[BlockKey]
) -> BlockInfo | None:
    """Return what follows the last block of `token_ids`, if it is worth a copy."""
    found = tails(namespace, token_ids, keys, [len(token_ids)])
    return found[0] if found and found[0].num_tokens >= MIN_TAIL else None
