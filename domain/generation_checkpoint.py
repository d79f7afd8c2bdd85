"""Checkpoints of generations: how far an answer came, so that the same request goes on from there.

A checkpoint has the tokens that were drawn, what was told of them, and names copies of the row's
state.  It is found by what was asked, all of it, and by nothing else: another seed, stop string or
model is another generation.  The tokens alone are enough: state that is lost is computed again.

Each checkpoint adds to the one before it.  Complete blocks of what a row has read are the prefix
cache's, by their own names.  What follows the last of them is in parts, a part for what was new at
a checkpoint, in a namespace of their own, so that no other prompt begins with them.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from typing import NewType, Protocol

from msgspec import Struct

from mlxbun.domain.blocks import BlockInfo, BlockKey, Committed, Namespace, Tensor
from mlxbun.domain.packed_logprobs import PackedLogprobs
from mlxbun.domain.sampling import RequestId, TokenId

FORMAT = 2  # of checkpoints, and of what their keys are made of

GenerationKey = NewType("GenerationKey", str)  # 64 hex digits


class GenerationCheckpoint(Struct, frozen=True):
    """What was drawn so far, what was told of it, and where the row's state is.

    `state` covers tokens of prompt and answer up to the last one that was drawn, which the row
    reads next: parts one after another, the first where the prefix cache's whole blocks end, and
    last a boundary where not all layers can be cut.  It is empty where blocks cover all of that,
    or where there is none.  `logprobs` are None where nobody asked for them.
    """

    key: GenerationKey
    token_ids: tuple[TokenId, ...]
    state: tuple[BlockInfo, ...] = ()
    logprobs: PackedLogprobs | None = None

    @property
    def num_bytes(self) -> int:
        """Bytes of its state, and of what was drawn and told."""
        told = self.logprobs.num_bytes if self.logprobs is not None else 0
        return sum(part.num_bytes for part in self.state) + 4 * len(self.token_ids) + told


class Held(Struct, frozen=True):
    """What is known of a durable checkpoint while its answer goes on: enough to add to it."""

    num_tokens: int
    digest: bytes  # of its tokens
    state: tuple[BlockInfo, ...]

    @staticmethod
    def of(checkpoint: GenerationCheckpoint) -> Held:
        ids = checkpoint.token_ids
        return Held(len(ids), _digest(ids), checkpoint.state)

    def begins(self, token_ids: Sequence[TokenId]) -> bool:
        """Return whether an answer that drew `token_ids` began with what is held."""
        n = self.num_tokens
        return n <= len(token_ids) and _digest(token_ids[:n]) == self.digest

    def parts_from(self, start: int) -> tuple[BlockInfo, ...]:
        """Return the parts that cover what is held from token `start` on, to add more after them.

        None where they do not begin there.  A boundary is none of them: it stays where it is.
        """
        parts = [part for part in self.state if part.kind == "block" and part.start >= start]
        return tuple(parts) if parts and parts[0].start == start else ()


class Addition(Struct, frozen=True):
    """A checkpoint, and what of it is new.

    The first `after` of its tokens are durable, and what was told of them.  Of its state, `new` is
    to be written; the rest is there.  `blocks` are to be in the prefix cache's namespace: each
    with the key of its copy in RAM.  The state follows the block `follows`, which is kept there as
    long as the checkpoint.
    """

    checkpoint: GenerationCheckpoint
    after: int = 0
    new: tuple[BlockInfo, ...] = ()
    blocks: tuple[tuple[BlockInfo, BlockKey], ...] = ()
    follows: BlockKey | None = None


class Bounds(Struct, frozen=True):
    """How many checkpoints are kept, how large their state may be together, and how long."""

    max_checkpoints: int = 256
    max_bytes: int = 4 << 30
    max_age_seconds: float = 86_400.0


class CheckpointSaved(Struct, frozen=True, gc=False, tag="checkpoint_saved"):
    """The first `num_tokens` tokens of an answer are durable; `num_bytes` were written for it."""

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
        self,
        namespace: Namespace,
        checkpoint: GenerationCheckpoint,
        new: Sequence[tuple[BlockInfo, Sequence[Tensor]]] = (),
        after: int = 0,
    ) -> Committed:
        """Make a checkpoint and its state durable, in place of the one of its key.

        `new` are those parts of the state that are not there yet.  Parts of the older one that
        this one does not name are forgotten with it.  `after` tokens, and what was told of them,
        stay as they are; an older one of another length raises StoreFailed, as does a part that
        is neither there nor new.
        """
        ...

    def load(
        self, namespace: Namespace, key: GenerationKey
    ) -> tuple[GenerationCheckpoint, Sequence[Sequence[Tensor]]] | None:
        """Return a checkpoint and its state, part by part; None if there is none, or it is damaged.

        Where some of the state is lost, the checkpoint comes without any.
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
    checkpoint: GenerationCheckpoint,
    max_tokens: int,
    stop_ids: frozenset[TokenId],
    tells_logprobs: bool = False,
) -> bool:
    """Return whether a request goes on after a checkpoint: it drew something, and not all.

    Who is told log-probabilities is told those of all tokens, or the answer begins anew.
    """
    drawn, told = checkpoint.token_ids, checkpoint.logprobs
    complete = not tells_logprobs or (told is not None and len(told) == len(drawn))
    return complete and 0 < len(drawn) < max_tokens and stop_ids.isdisjoint(drawn)


def _digest(token_ids: Sequence[TokenId]) -> bytes:
    return hashlib.sha256(array("I", token_ids).tobytes()).digest()
