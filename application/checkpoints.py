"""Checkpoints: what a running answer leaves on the disk now and then, so that it can be resumed.

Lives on the engine's thread.  Every so many tokens a row's state is copied where it covers all
that was drawn but the last token, which the row reads next.  A step that is computed ahead has
read that one too: then the copy waits for the token that this step drew.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from mlxbun.application.prefixes import Prefixes
from mlxbun.application.requests import RequestSpec
from mlxbun.domain.blocks import BLOCK, BlockInfo, BlockKey, BlockLost
from mlxbun.domain.generation_checkpoint import (
    GenerationCheckpoint,
    GenerationKey,
    GenerationResumed,
)
from mlxbun.domain.journal import Event
from mlxbun.domain.sampling import RequestId, TokenId
from mlxbun.domain.steps import Compute

log = logging.getLogger("mlxbun.checkpoints")


class CheckpointDisk(Protocol):
    """Where checkpoints go.  Every call returns at once."""

    def takes(self, key: GenerationKey) -> bool:
        """Return whether there is room for one more, and none of `key` is on its way."""
        ...

    def save(self, request_id: RequestId, checkpoint: GenerationCheckpoint) -> None:
        """Make a checkpoint durable some time; its state is a copy that the disk then drops."""
        ...

    def drop(self, key: GenerationKey) -> None:
        """Forget a checkpoint, also one that is on its way."""
        ...


class _Answer(Struct):
    """One running row: what it drew, and its copy that waits for one more token."""

    key: GenerationKey
    num_prompt_tokens: int
    token_ids: list[TokenId]
    resumed: bool
    num_saved: int
    waiting: BlockInfo | None = None

    @property
    def num_known(self) -> int:
        return self.num_prompt_tokens + len(self.token_ids)


class Checkpoints:
    """Keeps the answers of specs that have a generation key.  One thread calls it all."""

    def __init__(self, every: int, disk: CheckpointDisk) -> None:
        """`every` is in tokens."""
        self._every = every
        self._disk = disk
        self._answers: dict[RequestId, _Answer] = {}
        self._adopted: dict[RequestId, BlockInfo] = {}

    def accepted(self, spec: RequestSpec) -> list[Event]:
        """Note that a request will run."""
        if spec.generation is None:
            return []
        drawn = list(spec.drawn)
        self._answers[spec.request_id] = _Answer(
            spec.generation, len(spec.prompt_ids), drawn, bool(drawn), len(drawn)
        )
        return [GenerationResumed(spec.request_id, len(drawn))] if drawn else []

    def beginning(
        self, compute: Compute, spec: RequestSpec, keys: tuple[BlockKey, ...], num_tokens: int
    ) -> tuple[tuple[BlockKey, ...], int]:
        """Return what a row begins with: what was lent, or with its own state after it.

        `keys` are what the prefix cache lent it, `num_tokens` tokens.
        """
        state = self._adopted_state(compute, spec)
        if state is None or state.start + state.num_tokens <= num_tokens:
            return keys, num_tokens
        if state.kind == "boundary":
            return (state.key,), state.num_tokens
        if state.start == num_tokens:
            return (*keys, state.key), num_tokens + state.num_tokens
        return keys, num_tokens  # what is before it is not there: all of it is computed

    def begun(self, compute: Compute, request_id: RequestId) -> None:
        """Note that a row has begun: it has its own copy now."""
        state = self._adopted.pop(request_id, None)
        if state is not None:
            compute.forget([state.key])

    def drawn(
        self,
        compute: Compute,
        prefixes: Prefixes,
        request_ids: Sequence[RequestId],
        token_ids: Sequence[TokenId],
    ) -> list[Event]:
        """Note the tokens of a step, and copy the state of the rows whose turn it is."""
        events: list[Event] = []
        if not self._answers:
            return events
        for request_id, token_id in zip(request_ids, token_ids, strict=True):
            answer = self._answers.get(request_id)
            if answer is None:
                continue
            answer.token_ids.append(token_id)
            if answer.waiting is not None:
                self._save(request_id, answer, answer.waiting)
                continue
            due = len(answer.token_ids) - answer.num_saved >= self._every
            if due and self._disk.takes(answer.key):
                events += prefixes.reached(compute, request_id)
                self._copy(compute, request_id, answer)
        return events

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
            compute.forget([answer.waiting.key])
        return answer

    def _adopted_state(self, compute: Compute, spec: RequestSpec) -> BlockInfo | None:
        resume = spec.resume
        if resume is None or resume.state is None:
            return None
        state = self._adopted.get(spec.request_id)
        if state is None:
            # Rows that are resumed from one checkpoint have a copy each.
            own = BlockKey(secrets.token_hex(32))
            info = BlockInfo(
                own, None, resume.state.kind, resume.state.start, resume.state.num_tokens, 0
            )
            try:
                state = compute.adopt(info, resume.tensors)
            except BlockLost as lost:
                log.warning("the state of an answer is computed again: %s", lost)
                return None
            self._adopted[spec.request_id] = state
        return state

    def _copy(self, compute: Compute, request_id: RequestId, answer: _Answer) -> None:
        start = (answer.num_known - 1) // BLOCK * BLOCK if compute.cuts == "block" else 0
        try:
            state = compute.snapshot(request_id, BlockKey(secrets.token_hex(32)), start)
        except Exception as error:  # memory, say: the request itself is well
            log.warning("the state of %s was not copied", request_id, exc_info=error)
            return
        if state is None:
            return
        if state.start + state.num_tokens == answer.num_known:
            answer.waiting = state
        else:
            self._save(request_id, answer, state)

    def _save(self, request_id: RequestId, answer: _Answer, state: BlockInfo) -> None:
        answer.waiting, answer.num_saved = None, len(answer.token_ids)
        there = state if state.num_tokens else None
        checkpoint = GenerationCheckpoint(answer.key, tuple(answer.token_ids), there)
        self._disk.save(request_id, checkpoint)
