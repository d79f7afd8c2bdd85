"""Checkpoints: what a running answer leaves on the disk now and then, so that it can be resumed.

Lives on the engine's thread.  Every so many tokens the row's state is copied, as far as the last
checkpoint and the prefix cache do not have it, where it covers all that was drawn but the last
token, which the row reads next.  A step that is computed ahead has read that one too: then the
copy waits for the token that this step drew.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator, Sequence
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from mlxbun.application.prefixes import Prefixes
from mlxbun.application.requests import RequestSpec
from mlxbun.domain.blocks import BLOCK, BlockInfo, BlockKey, BlockLost, Namespace, chain, linked
from mlxbun.domain.generation_checkpoint import (
    Addition,
    GenerationCheckpoint,
    GenerationKey,
    GenerationResumed,
    Held,
)
from mlxbun.domain.journal import Event
from mlxbun.domain.packed_logprobs import LogprobLog
from mlxbun.domain.sampling import NO_LOGPROBS, RequestId, TokenId
from mlxbun.domain.steps import Compute, TokenLogprobs

log = logging.getLogger("mlxbun.checkpoints")


class CheckpointDisk(Protocol):
    """Where checkpoints go.  Every call returns at once."""

    def takes(self, key: GenerationKey) -> bool:
        """Return whether there is room for one more, and none of `key` is on its way."""
        ...

    def held(self, key: GenerationKey) -> Held | None:
        """Return what is durable of `key`, as far as it can be added to."""
        ...

    def save(self, request_id: RequestId, addition: Addition, copies: Sequence[BlockInfo]) -> None:
        """Make a checkpoint durable some time; `copies` are in RAM for it, and dropped then."""
        ...

    def drop(self, key: GenerationKey) -> None:
        """Forget a checkpoint, also one that is on its way."""
        ...


class _Copy(Struct):
    """A row's state: what is there already, and what was copied of it."""

    covered: int  # tokens
    held: Held | None
    kept: tuple[BlockInfo, ...]
    made: tuple[BlockInfo, ...]
    unwritten: tuple[BlockInfo, ...]  # the prefix cache's, which has them in RAM only


class _Answer(Struct):
    """One running row: what it drew, and its copy that waits for one more token."""

    key: GenerationKey
    prompt_ids: tuple[TokenId, ...]
    token_ids: list[TokenId]
    logprobs: LogprobLog | None
    resumed: bool
    num_seen: int  # of its tokens, when it was last its turn
    blocks: Sequence[BlockInfo] = ()
    waiting: _Copy | None = None

    @property
    def num_known(self) -> int:
        return len(self.prompt_ids) + len(self.token_ids)


class Checkpoints:
    """Keeps the answers of specs that have a generation key.  One thread calls it all."""

    def __init__(self, every: int, disk: CheckpointDisk, namespace: Namespace) -> None:
        """`every` is in tokens; `namespace` is the prefix cache's."""
        self._every = every
        self._disk = disk
        self._namespace = namespace
        self._answers: dict[RequestId, _Answer] = {}
        self._adopted: dict[RequestId, Sequence[BlockInfo]] = {}

    def accepted(self, spec: RequestSpec) -> list[Event]:
        """Note that a request will run."""
        if spec.generation is None:
            return []
        drawn, told = list(spec.drawn), spec.params.logprobs != NO_LOGPROBS
        packed = spec.resume.logprobs if spec.resume is not None else None
        self._answers[spec.request_id] = _Answer(
            spec.generation,
            spec.prompt_ids,
            drawn,
            LogprobLog(packed) if told else None,
            bool(drawn),
            len(drawn),
        )
        return [GenerationResumed(spec.request_id, len(drawn))] if drawn else []

    def beginning(
        self, compute: Compute, spec: RequestSpec, keys: tuple[BlockKey, ...], num_tokens: int
    ) -> tuple[tuple[BlockKey, ...], int]:
        """Return what a row begins with: what was lent, or with its own state after it.

        `keys` are what the prefix cache lent it, `num_tokens` tokens.
        """
        state = self._adopted_state(compute, spec)
        if not state or state[-1].end <= num_tokens:
            return keys, num_tokens
        own = tuple(part.key for part in state)
        if state[0].start == 0:
            return own, state[-1].end
        if state[0].start <= num_tokens and state[-1].kind == "block":
            return (*keys[: state[0].start // BLOCK], *own), state[-1].end  # without a tail
        return keys, num_tokens  # what is before it is not there: all of it is computed

    def begun(self, compute: Compute, request_id: RequestId) -> None:
        """Note that a row has begun: it has its own copy now."""
        compute.forget([part.key for part in self._adopted.pop(request_id, ())])

    def drawn(
        self,
        compute: Compute,
        prefixes: Prefixes,
        request_ids: Sequence[RequestId],
        token_ids: Sequence[TokenId],
        logprobs: Sequence[TokenLogprobs | None] = (),
    ) -> None:
        """Note the tokens of a step, and copy the state of the rows whose turn it is.

        `logprobs` is empty where no row asked for any.
        """
        if not self._answers:
            return
        for place, (request_id, token_id) in enumerate(zip(request_ids, token_ids, strict=True)):
            answer = self._answers.get(request_id)
            if answer is None:
                continue
            answer.token_ids.append(token_id)
            told = logprobs[place] if logprobs else None
            if answer.logprobs is not None and told is not None:
                answer.logprobs.append(told)
            if answer.waiting is not None:
                self._save(request_id, answer, answer.waiting)
                continue
            due = len(answer.token_ids) - answer.num_seen >= self._every
            if due and self._disk.takes(answer.key):
                self._copy(compute, prefixes, request_id, answer)

    def finished(self, compute: Compute, request_id: RequestId) -> None:
        """Note that an answer is complete: nobody resumes it."""
        answer = self._let_go(compute, request_id)
        if answer is not None:
            self._disk.drop(answer.key)

    def left(self, compute: Compute, request_id: RequestId) -> None:
        """Note that nobody waits for an answer: who asks again resumes it."""
        self._let_go(compute, request_id)

    def failed(self, compute: Compute, request_id: RequestId) -> None:
        """Note that a row broke.  One that was resumed is not resumed from there again."""
        answer = self._let_go(compute, request_id)
        if answer is not None and answer.resumed:
            self._disk.drop(answer.key)

    def _let_go(self, compute: Compute, request_id: RequestId) -> _Answer | None:
        self.begun(compute, request_id)
        answer = self._answers.pop(request_id, None)
        if answer is not None and answer.waiting is not None:
            compute.forget([part.key for part in answer.waiting.made])
        return answer

    def _adopted_state(self, compute: Compute, spec: RequestSpec) -> Sequence[BlockInfo]:
        resume = spec.resume
        if resume is None or not resume.state:
            return ()
        state = self._adopted.get(spec.request_id)
        if state is None:
            adopted: list[BlockInfo] = []
            try:
                for part, tensors in resume.state:
                    # Rows that are resumed from one checkpoint have a copy each.
                    own = replace(part, key=_new_key(), num_bytes=0)
                    adopted.append(compute.adopt(own, tensors))
            except BlockLost as lost:
                log.warning("the state of an answer is computed again: %s", lost)
                compute.forget([part.key for part in adopted])
                adopted = []
            state = self._adopted[spec.request_id] = adopted
        return state

    def _copy(
        self, compute: Compute, prefixes: Prefixes, request_id: RequestId, answer: _Answer
    ) -> None:
        answer.num_seen = len(answer.token_ids)
        held = self._disk.held(answer.key)
        if held is not None and not held.begins(answer.token_ids):
            held = None
        if held is not None and held.num_tokens == len(answer.token_ids):
            return  # another row of the same name was here
        there = self._blocks_there(compute, prefixes, answer)
        start = first = len(there) * BLOCK
        kept = held.parts_from(first) if held is not None and _in_parts(compute) else ()
        # A block that is complete now is copied as one, and what its parts were leaves.
        if kept and answer.num_known - 1 < first + BLOCK:
            start = kept[-1].end
        else:
            kept = ()
        try:
            made = compute.snapshot(request_id, start, _new_keys())
        except Exception as error:  # memory, say: the request itself is well
            log.warning("the state of %s was not copied", request_id, exc_info=error)
            return
        if made is None:
            return
        covered = made[-1].end if made else start
        unwritten = tuple(block for block, on_ssd in there if not on_ssd)
        copy = _Copy(covered, held, kept, made, unwritten)
        if covered == answer.num_known:
            answer.waiting = copy
        else:
            self._save(request_id, answer, copy)

    def _blocks_there(
        self, compute: Compute, prefixes: Prefixes, answer: _Answer
    ) -> list[tuple[BlockInfo, bool]]:
        """Return the blocks of a row that the prefix cache has, and whether its disk does."""
        if not _in_parts(compute):
            return []
        if len(answer.blocks) < answer.num_known // BLOCK:
            known = (*answer.prompt_ids, *answer.token_ids)
            answer.blocks = linked(chain(self._namespace, known))
        there: list[tuple[BlockInfo, bool]] = []
        for block in answer.blocks:
            resident = prefixes.blocks.state.blocks.get(block.key)
            if resident is None or not (resident.on_ssd or resident.in_ram):
                break
            there.append((resident.info, resident.on_ssd))
        # What the row reads next is not in its state, and not always what it read last.
        return there[: (answer.num_known - 1) // BLOCK]

    def _save(self, request_id: RequestId, answer: _Answer, copy: _Copy) -> None:
        answer.waiting, answer.num_seen = None, len(answer.token_ids)
        blocks = [(block, block.key) for block in copy.unwritten]
        new: list[BlockInfo] = []
        for part in copy.made:
            if part.kind == "block" and part.num_tokens == BLOCK:
                whole = replace(answer.blocks[part.start // BLOCK], num_bytes=part.num_bytes)
                blocks.append((whole, part.key))
            else:
                new.append(part)
        told = answer.logprobs.packed() if answer.logprobs is not None else None
        checkpoint = GenerationCheckpoint(
            answer.key, tuple(answer.token_ids), (*copy.kept, *new), told
        )
        after = copy.held.num_tokens if copy.held is not None else 0
        start = checkpoint.state[0].start if checkpoint.state else copy.covered
        follows = answer.blocks[start // BLOCK - 1].key if start >= BLOCK else None
        addition = Addition(checkpoint, after, tuple(new), tuple(blocks), follows)
        self._disk.save(request_id, addition, copy.made)


def _in_parts(compute: Compute) -> bool:
    """Return whether some layers can be cut."""
    return compute.cuts == "block" or compute.mixed


def _new_key() -> BlockKey:
    return BlockKey(secrets.token_hex(32))


def _new_keys() -> Iterator[BlockKey]:
    while True:
        yield _new_key()
