"""Checkpoints of generations: how far an answer came, so that the same request goes on from there.

A checkpoint has the tokens that were drawn, and names a copy of the row's state.  It is found by
what was asked, all of it, and by nothing else: another seed, stop string or model is another
generation.  Its state is in a namespace of its own, so that no other prompt begins with it.  The
tokens alone are enough: state that is lost is computed again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NewType, Protocol

from msgspec import Struct

from mlxbun.domain.blocks import BlockInfo, Committed, Namespace, Tensor
from mlxbun.domain.sampling import RequestId, TokenId

FORMAT = 1  # of checkpoints, and of what their keys are made of

GenerationKey = NewType("GenerationKey", str)  # 64 hex digits


class GenerationCheckpoint(Struct, frozen=True):
    """What was drawn so far, and where the row's state is.

    `state` covers tokens of prompt and answer up to the last one that was drawn, which the row
    reads next; None where whole blocks of the prefix cache cover them, or where there is none.
    """

    key: GenerationKey
    token_ids: tuple[TokenId, ...]
    state: BlockInfo | None


class Bounds(Struct, frozen=True):
    """How many checkpoints are kept, how large their state may be together, and how long."""

    max_checkpoints: int = 256
    max_bytes: int = 4 << 30
    max_age_seconds: float = 86_400.0


class CheckpointSaved(Struct, frozen=True, gc=False, tag="checkpoint_saved"):
    """The first `num_tokens` tokens of an answer are durable; their state took `num_bytes`."""

    request_id: RequestId
    num_tokens: int
    num_bytes: int


class CheckpointNotSaved(Struct, frozen=True, gc=False, tag="checkpoint_not_saved"):
    request_id: RequestId
    cause: str


class GenerationResumed(Struct, frozen=True, gc=False, tag="generation_resumed"):
    """An answer goes on after `num_tokens` tokens that an earlier attempt drew."""

    request_id: RequestId
    num_tokens: int


Event = CheckpointSaved | CheckpointNotSaved | GenerationResumed


class GenerationStore(Protocol):
    """Port: checkpoints on a disk, for one namespace at a time.  Calls may block; any thread.

    What `save` returned for is durable and whole: it survives a crash of the process and of the
    machine.  What it did not is not visible, and what was there before it is.  Any call but `load`
    raises StoreFailed when the disk fails, with nothing changed.
    """

    def keys(self, namespace: Namespace) -> Sequence[GenerationKey]:
        """Return what is kept, the oldest first."""
        ...

    def save(
        self, namespace: Namespace, checkpoint: GenerationCheckpoint, state: Sequence[Tensor]
    ) -> Committed:
        """Make a checkpoint and its state durable, in place of the one of its key.

        `state` is empty for a checkpoint without one.
        """
        ...

    def load(
        self, namespace: Namespace, key: GenerationKey
    ) -> tuple[GenerationCheckpoint, Sequence[Tensor]] | None:
        """Return a checkpoint and its state; None if there is none, or it is damaged.

        Where only the state is lost, the checkpoint comes without it.
        """
        ...

    def drop(self, namespace: Namespace, keys: Sequence[GenerationKey]) -> None:
        """Forget checkpoints and their state.  Unknown keys are ignored."""
        ...

    def prune(self, namespace: Namespace, bounds: Bounds) -> Sequence[GenerationKey]:
        """Forget the oldest until the rest is within bounds; return them, the oldest first."""
        ...


def private(namespace: Namespace) -> Namespace:
    """Return where the state of generations is kept, for a namespace of prefixes."""
    return Namespace(hashlib.sha256(b"generations" + bytes.fromhex(namespace)).hexdigest())


def is_usable(
    checkpoint: GenerationCheckpoint, max_tokens: int, stop_ids: frozenset[TokenId]
) -> bool:
    """Return whether a request goes on after a checkpoint: it drew something, and not all."""
    drawn = checkpoint.token_ids
    return 0 < len(drawn) < max_tokens and stop_ids.isdisjoint(drawn)
