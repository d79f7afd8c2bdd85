"""Kept ids: the tokens that a text was made of, for when the text comes back.

Encoding does not undo decoding: a model may write "har" "bour" where encoding its text gives
"harbour".  The state of a conversation is kept by ids, so its next turn, which brings the text,
would miss what was computed.  Hence texts are remembered with the ids that were processed, and a
prompt that begins with one begins with its ids.

Pure: values in, values out.  Nothing here outlives the process.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from msgspec import Struct

from mlxbun.domain.sampling import TokenId
from mlxbun.domain.text import Tokenizer

MAX_TEXTS = 64
MAX_CHARS = 1 << 21  # of all texts together
_INCOMPLETE = "\ufffd"  # what decoding gives for half a character


class Kept(Struct, frozen=True):
    """A text and the ids that it was processed as."""

    text: str
    ids: array[int]


class KeptIds(Struct, frozen=True):
    """Texts with their ids, least recently used first."""

    texts: tuple[Kept, ...] = ()


def remember(
    kept: KeptIds,
    tokenizer: Tokenizer,
    prompt: str,
    prompt_ids: Sequence[TokenId],
    answer_ids: Sequence[TokenId],
) -> KeptIds:
    """Return `kept` with a prompt and what was generated after it, its end token left out.

    Special tokens are spelled, as templates spell them.  An answer that ends within a character
    is not remembered.
    """
    try:
        answer = spelled(tokenizer, answer_ids).decode()
    except UnicodeDecodeError:  # its text cannot come back as it was
        return kept
    text = prompt + answer
    if len(text) > MAX_CHARS or not text or text.endswith(_INCOMPLETE):
        return kept
    return _with(kept, Kept(text, array("I", (*prompt_ids, *answer_ids))))


def used(kept: KeptIds, one: Kept) -> KeptIds:
    """Return `kept` with `one` as the most recently used."""
    return _with(kept, one)


def longest(kept: KeptIds, text: str) -> Kept | None:
    """Return the longest text that `text` goes on from; None if it begins with none."""
    begun = (one for one in kept.texts if len(one.text) < len(text) and text.startswith(one.text))
    return max(begun, key=lambda one: len(one.text), default=None)


def ids_of(
    kept: KeptIds, tokenizer: Tokenizer, text: str, canonical: Sequence[TokenId]
) -> tuple[Sequence[TokenId], Kept | None]:
    """Return the ids to process for `text`, and what they begin with of `kept`.

    `canonical` is the encoding of `text`.  It stays where it begins as the text was processed
    before, and where anything else would say another text.
    """
    one = longest(kept, text)
    if one is None:
        return canonical, None
    if array("I", canonical[: len(one.ids)]) == one.ids:
        return canonical, one
    rest = tokenizer.encode(text[len(one.text) :], add_special=False)
    joined = [*map(TokenId, one.ids), *rest]
    if spelled(tokenizer, joined) != spelled(tokenizer, canonical):
        return canonical, None
    return joined, one


def spelled(tokenizer: Tokenizer, ids: Sequence[TokenId]) -> bytes:
    """Return what tokens stand for together, special ones as they are spelled."""
    return b"".join(map(tokenizer.token_bytes, ids))


def _with(kept: KeptIds, newest: Kept) -> KeptIds:
    texts = [one for one in kept.texts if one.text != newest.text]
    texts.append(newest)
    num_chars = sum(len(one.text) for one in texts)
    while len(texts) > MAX_TEXTS or num_chars > MAX_CHARS:
        num_chars -= len(texts.pop(0).text)
    return KeptIds(tuple(texts))
