"""Turns: where other prompts will part from this one, found by asking the chat template.

A template is a program, so where the next turn's rendering differs from this prompt is not guessed:
the same conversation is rendered with other words after it, and what both begin with is shared.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

from mlxbun.domain.boundaries import APART, chosen
from mlxbun.domain.refusal import Refused
from mlxbun.domain.sampling import TokenId
from mlxbun.domain.text import Tokenizer

MAX_PROBES = 6  # renderings of one conversation
_OTHER = "\ue000"  # words that no conversation begins with, and no template takes off
_USER = {"role": "user", "content": _OTHER}
_ASSISTANT = {"role": "assistant", "content": _OTHER}

Turns = Sequence[Mapping[str, Any]]


def turn_boundaries(
    tokenizer: Tokenizer,
    turns: Turns,
    tools: Sequence[Mapping[str, Any]],
    arguments: Mapping[str, Any],
    text: str,
    ids: Sequence[TokenId],
) -> tuple[int, ...]:
    """Return after how many of `ids` the state of a prompt is worth a copy, ascending.

    `text` is the conversation rendered, `ids` are its tokens.
    """
    if len(ids) <= APART:
        return ()
    count = _counter(tokenizer, text, ids)

    counts: list[int] = []
    for probe, _ in zip(_probes(turns), range(MAX_PROBES), strict=False):
        try:
            other = tokenizer.render_chat(probe, tools, arguments)
        except Refused:  # this template has no such conversation
            continue
        counts.append(min(count(_num_shared(text, other)), len(ids) - 1))
    return chosen(counts)


def _probes(turns: Turns) -> Iterator[Turns]:
    """Yield conversations that share a beginning with `turns`, the likeliest to come first."""
    # The next turn of this conversation: templates may drop from history what a prompt has.
    yield [*turns, _ASSISTANT, _USER]
    if turns and turns[-1]["role"] == "tool":  # the next answer belongs to the same turn
        yield [*turns, _ASSISTANT]
    # Another conversation under the same instructions.
    start = next((i for i, turn in enumerate(turns) if turn["role"] != "system"), len(turns))
    yield [*turns[:start], _USER]
    # This one, asked something else.
    for place in range(len(turns) - 1, start, -1):
        if turns[place]["role"] == "user":
            yield [*turns[:place], _USER]


def _counter(tokenizer: Tokenizer, text: str, ids: Sequence[TokenId]) -> Callable[[int], int]:
    """Return what says how many of `ids` lie within the first characters of `text`."""
    ends = list(accumulate(len(tokenizer.token_bytes(token_id)) for token_id in ids))
    if ends[-1] == len(text.encode()):
        return lambda num_chars: bisect_right(ends, len(text[:num_chars].encode()))

    def count(num_chars: int) -> int:  # the tokenizer changes texts before it encodes them
        alone = tokenizer.encode(text[:num_chars], add_special=False)
        pairs = enumerate(zip(alone, ids, strict=False))
        return next((i for i, (one, other) in pairs if one != other), min(len(alone), len(ids)))

    return count


def _num_shared(text: str, other: str) -> int:
    """Return how many characters both begin with."""
    low, high = 0, min(len(text), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if text[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
