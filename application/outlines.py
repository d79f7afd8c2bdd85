"""Outlines: what the last requests looked like, so that a miss can be told from what changed.

Hashes only, under a key that is made anew with each process: nobody's text can be had or tried.
Memory is bounded by hashes, about 20 MB; the oldest requests go first.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct

from mlxbun.domain.divergence import (
    Divergence,
    MissType,
    Outline,
    Seen,
    divergence,
    equal_tokens,
    miss_type,
    outline,
    same_question,
)
from mlxbun.domain.sampling import TokenId

KEPT_MARKS = 1 << 18  # hashes, each with what it hangs on some 80 bytes
SEEN = 1 << 12  # texts of which equal ones share their hashes


class Comparison(Struct, frozen=True):
    """What a prompt was compared with: the earlier answer's id, and where they part, if at all."""

    answer_id: str
    divergence: Divergence | None


class CacheMissReason(Struct, frozen=True, omit_defaults=True):
    """The Messages API's words for why a prompt could not be reused; tokens are an estimate."""

    type: MissType | Literal["previous_message_not_found"]
    cache_missed_input_tokens: int | None = None


class Diagnostics(Struct, frozen=True):
    """The Messages API's object `diagnostics`.  Nothing is ever pending here."""

    cache_miss_reason: CacheMissReason


class _Noted(Struct, frozen=True):
    number: int  # of the request: later ones have greater ones
    session: str | None
    prompts: Sequence[Outline]
    num_marks: int


class Outlines:
    """Remembers requests by the id of their answer.  One event loop calls it, but `outline`."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._noted: dict[str, _Noted] = {}  # oldest first
        self._seen: Seen = {}
        self._num_requests = self._num_marks = 0

    def outline(
        self,
        model: str,
        token_ids: Sequence[TokenId],
        messages: Sequence[Mapping[str, Any]] = (),
        tools: Sequence[object] = (),
        arguments: Mapping[str, Any] | None = None,
    ) -> Outline:
        """Return the outline of one prompt.  Any thread may call; it takes what hashing takes."""
        if len(self._seen) > SEEN:
            self._seen = {}
        return outline(self._key, model, token_ids, messages, tools, arguments, self._seen)

    def note(self, answer_id: str, prompts: Sequence[Outline], session: str | None = None) -> None:
        """Remember the prompts of a request."""
        self._forget(answer_id)
        self._num_requests += 1
        num_marks = 1 + sum(prompt.num_marks for prompt in prompts)
        self._noted[answer_id] = _Noted(self._num_requests, session, tuple(prompts), num_marks)
        self._num_marks += num_marks
        while self._num_marks > KEPT_MARKS and len(self._noted) > 1:
            self._forget(next(iter(self._noted)))

    def compare(self, answer_id: str, row: int, num_rows: int) -> Comparison | None:
        """Compare the prompt of row `row` of `num_rows` with the nearest one that came earlier.

        The nearest is the last of its session; without one, what has most tokens in common, or
        the same first question.  None where nothing is near, or the request is not known.
        """
        mine = self._noted.get(answer_id)
        if mine is None or not mine.prompts:
            return None
        now = mine.prompts[row * len(mine.prompts) // num_rows]
        earlier = [
            (name, noted, before)
            for name, noted in self._noted.items()
            if noted.number < mine.number
            for before in noted.prompts
        ]
        near = [found for found in earlier if mine.session and found[1].session == mine.session]
        near = near[-1:] or [
            found
            for found in earlier
            if equal_tokens(found[2], now) or same_question(found[2], now)
        ]
        if not near:
            return None
        name, _, before = max(
            near, key=lambda found: (equal_tokens(found[2], now), found[1].number)
        )
        return Comparison(name, divergence(before, now))

    def diagnose(self, answer_id: str, previous_id: str | None) -> Diagnostics | None:
        """Say, as the Messages API does, why a request could not go on from an earlier answer.

        `previous_id` is the request's `diagnostics.previous_message_id`.  None, which is what to
        answer, says that nothing changed, or that there is nothing to compare with yet.
        """
        mine = self._noted.get(answer_id)
        if previous_id is None or mine is None or not mine.prompts:
            return None
        previous = self._noted.get(previous_id)
        if previous is None or not previous.prompts:
            return Diagnostics(CacheMissReason("previous_message_not_found"))
        before, now = previous.prompts[0], mine.prompts[0]
        kind = miss_type(before, now)
        if kind is None:
            return None
        if kind == "unavailable":
            return Diagnostics(CacheMissReason(kind))
        num_equal = 0 if kind == "model_changed" else equal_tokens(before, now)
        return Diagnostics(CacheMissReason(kind, before.num_tokens - num_equal))

    def _forget(self, answer_id: str) -> None:
        noted = self._noted.pop(answer_id, None)
        if noted is not None:
            self._num_marks -= noted.num_marks
