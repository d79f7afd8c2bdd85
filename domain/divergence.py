"""Divergence: where a request first says something else than an earlier one, without its text.

An *outline* holds keyed hashes of a request's parts, running from each part's start, at growing
distances: two outlines tell where two texts part, to some characters, and nothing else of them.
Whether prompts part is decided by their tokens, which the cache goes by; what parted them, by
their messages, tools and template arguments.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct

from mlxbun.domain.sampling import TokenId

DIGEST = 8  # bytes
STEP = 16  # characters between the first marks; the distance doubles with the position
FIRST = 1024  # characters up to which it stays
TOKENS = 64  # between marks of the prompt's tokens

Field = Literal[
    "role", "reasoning", "content", "tool_calls", "name", "tool_call_id",
    "tools", "template_arguments", "prompt", "rendering",
]  # fmt: skip
How = Literal["changed", "added", "removed"]
MissType = Literal[
    "model_changed", "system_changed", "tools_changed", "messages_changed", "unavailable"
]

_FIELDS: Mapping[str, Field] = {
    "role": "role",
    "reasoning_content": "reasoning",
    "content": "content",
    "tool_calls": "tool_calls",
    "name": "name",
    "tool_call_id": "tool_call_id",
}


class Part(Struct, frozen=True, gc=False):
    """A text's length and running hashes: at each mark, and at its end."""

    length: int
    marks: bytes
    end: bytes


Message = Mapping[Field, Part]
Seen = dict[tuple[int, bytes], Part]  # by length and hash: equal texts are marked once


class Outline(Struct, frozen=True):
    """What can be said of a request without saying it.  `num_system` leading turns instruct."""

    model: str
    arguments: Part
    tools: tuple[Part, ...]
    messages: tuple[Message, ...]
    num_system: int
    num_tokens: int
    token_marks: bytes

    @property
    def num_marks(self) -> int:
        """How many hashes it holds, its weight in memory."""
        parts = [self.arguments, *self.tools, *(p for m in self.messages for p in m.values())]
        return (len(self.token_marks) + sum(len(p.marks) for p in parts)) // DIGEST + len(parts)


class Divergence(Struct, frozen=True):
    """The first difference of a request from an earlier one.

    `num_equal_tokens` begin both prompts, at least; at most TOKENS more do.  `index` counts
    messages, or tools for the field "tools".  The difference is `offset` characters into the
    field or up to `within` later; None where the field is no text: "prompt" (no conversation)
    and "rendering" (the same conversation, which the template wrote otherwise).  A tool, calls
    and arguments are measured as JSON.
    """

    num_equal_tokens: int
    field: Field
    how: How
    index: int | None = None
    offset: int | None = None
    within: int | None = None


def outline(
    key: bytes,
    model: str,
    token_ids: Sequence[TokenId],
    messages: Sequence[Mapping[str, Any]] = (),
    tools: Sequence[object] = (),
    arguments: Mapping[str, Any] | None = None,
    seen: Seen | None = None,
) -> Outline:
    """Return the outline of a prompt and of what it was rendered from.

    `key` is secret, and the same for all outlines that are compared.  `seen` is looked into and
    added to: most of a conversation was outlined with the turn before.
    """
    marker = _Marker(key, seen if seen is not None else {})
    roles = [message["role"] for message in messages]
    num_system = next((i for i, r in enumerate(roles) if r not in _INSTRUCTS), len(roles))
    return Outline(
        model,
        marker.part(_json(dict(sorted((arguments or {}).items())))),
        tuple(marker.part(_json(tool)) for tool in tools),
        tuple(marker.message(message) for message in messages),
        num_system,
        len(token_ids),
        _token_marks(key, token_ids),
    )


def equal_tokens(before: Outline, now: Outline) -> int:
    """Return how many tokens begin both prompts: those up to the last mark that is equal."""
    return TOKENS * _agreeing(before.token_marks, now.token_marks)


def divergence(before: Outline, now: Outline) -> Divergence | None:
    """Return where `now` first parts from `before`; None where all of `before` begins it.

    The last tokens of `before`, fewer than TOKENS, are not looked at.
    """
    num_equal = equal_tokens(before, now)
    if num_equal == TOKENS * (min(before.num_tokens, now.num_tokens) // TOKENS):
        return None
    if not before.messages or not now.messages:
        return Divergence(num_equal, "prompt", "changed")
    if before.arguments != now.arguments:
        offset, within = _parting(before.arguments, now.arguments)
        return Divergence(num_equal, "template_arguments", "changed", None, offset, within)
    return (
        _in_tools(num_equal, before.tools, now.tools)
        or _in_messages(num_equal, before.messages, now.messages)
        or Divergence(num_equal, "rendering", "changed")
    )


def same_question(before: Outline, now: Outline) -> bool:
    """Return whether both conversations have the same first message after the instructions."""
    first = before.messages[before.num_system : before.num_system + 1]
    return bool(first) and first == now.messages[now.num_system : now.num_system + 1]


def miss_type(before: Outline, now: Outline) -> MissType | None:
    """Return what the Messages API calls the first difference; None where there is none.

    It looks at the model, then the instructions, the tools, and the rest of the conversation.
    """
    if before.model != now.model:
        return "model_changed"
    found = divergence(before, now)
    if found is None:
        return None
    if before.messages[: before.num_system] != now.messages[: now.num_system]:
        return "system_changed"
    if before.tools != now.tools:
        return "tools_changed"
    in_messages = found.index is not None and found.field != "tools"
    return "messages_changed" if in_messages else "unavailable"


_INSTRUCTS = ("system", "developer")


def _in_tools(num_equal: int, before: Sequence[Part], now: Sequence[Part]) -> Divergence | None:
    at = _first_unlike(before, now)
    if at == len(before) == len(now):
        return None
    how = _how(before, now, at)
    offset, within = _parting(before[at], now[at]) if how == "changed" else (None, None)
    return Divergence(num_equal, "tools", how, at, offset, within)


def _in_messages(
    num_equal: int, before: Sequence[Message], now: Sequence[Message]
) -> Divergence | None:
    at = _first_unlike(before, now)
    if at in (len(before), len(now)):  # one conversation goes on where the other ends
        return None
    how = _how(before, now, at)
    if how != "changed":
        return Divergence(num_equal, "role", how, at)
    for field in _FIELDS.values():
        old, new = before[at].get(field), now[at].get(field)
        if old == new:
            continue
        if old is None or new is None:
            return Divergence(num_equal, field, "added" if old is None else "removed", at, 0, 0)
        return Divergence(num_equal, field, "changed", at, *_parting(old, new))
    raise AssertionError("two messages are unlike, and all their fields are alike")


def _how(before: Sequence[object], now: Sequence[object], at: int) -> How:
    """Return how two lists part at `at`: with one item more, or less, or another one."""
    if at == len(before) or now[at + 1 : at + 2] == before[at : at + 1]:
        return "added"
    if at == len(now) or before[at + 1 : at + 2] == now[at : at + 1]:
        return "removed"
    return "changed"


def _first_unlike(before: Sequence[object], now: Sequence[object]) -> int:
    pairs = enumerate(zip(before, now, strict=False))
    return next((i for i, (old, new) in pairs if old != new), min(len(before), len(now)))


def _parting(before: Part, now: Part) -> tuple[int, int]:
    """Return up to which character two texts are equal at least, and how many more may be."""
    agreeing = _agreeing(before.marks, now.marks)
    shorter = min(before.length, now.length)
    positions = list(_positions(shorter))
    offset = positions[agreeing - 1] if agreeing else 0
    beyond = positions[agreeing] if agreeing < len(positions) else shorter
    return offset, beyond - offset


def _agreeing(before: bytes, now: bytes) -> int:
    """Return how many marks are equal from the start.  Hashes run, so none is after an unlike."""
    num = min(len(before), len(now)) // DIGEST

    def unlike(i: int) -> bool:
        mark = slice(i * DIGEST, (i + 1) * DIGEST)
        return before[mark] != now[mark]

    return bisect_left(range(num), True, key=unlike)


def _positions(length: int) -> Iterator[int]:
    """Yield where marks stand in a text: the same places in all texts."""
    at, step, until = 0, STEP, FIRST
    while at + step <= length:
        at += step
        yield at
        if at == until:
            step, until = 2 * step, 2 * until


class _Marker:
    """Makes parts of texts, with one key."""

    def __init__(self, key: bytes, seen: Seen) -> None:
        self._key, self._seen = key, seen

    def message(self, message: Mapping[str, Any]) -> Message:
        parts: dict[Field, Part] = {}
        for name, field in _FIELDS.items():
            value = message.get(name)
            if value is None:
                continue
            if name == "tool_calls":  # their ids are the client's, and new with each answer
                value = [{k: v for k, v in call.items() if k != "id"} for call in value]
            parts[field] = self.part(value if isinstance(value, str) else _json(value))
        return parts

    def part(self, text: str) -> Part:
        end = self._hash(text).digest()
        part = self._seen.get((len(text), end))
        if part is None:
            running, marks, start = self._hash(""), bytearray(), 0
            for at in _positions(len(text)):
                running.update(_bytes(text[start:at]))
                marks += running.digest()
                start = at
            part = self._seen[len(text), end] = Part(len(text), bytes(marks), end)
        return part

    def _hash(self, text: str) -> hashlib.blake2b:
        return hashlib.blake2b(_bytes(text), digest_size=DIGEST, key=self._key)


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogatepass")


def _token_marks(key: bytes, token_ids: Sequence[TokenId]) -> bytes:
    ids = array("I", token_ids)
    running, marks = hashlib.blake2b(digest_size=DIGEST, key=key), bytearray()
    for end in range(TOKENS, len(ids) + 1, TOKENS):
        running.update(ids[end - TOKENS : end].tobytes())
        marks += running.digest()
    return bytes(marks)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=repr)
