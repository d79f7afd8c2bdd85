"""Kept ids: the tokens that a text was made of, for when the text comes back.

Encoding does not undo decoding: a model may write "har" "bour" where encoding its text gives
"harbour".  The state of a conversation is kept by ids, so its next turn, which brings the text,
would miss what was computed.  Hence texts are remembered, as hashes, with the ids that were
processed, and a prompt that begins with one begins with its ids.

Pure: values in, values out.  What outlives the process is a `KeptIdsStore`'s to say.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from mlxbun.domain.blocks import Namespace
from mlxbun.domain.sampling import TokenId
from mlxbun.domain.text import Tokenizer

MAX_TEXTS = 64
MAX_CHARS = 1 << 21  # of all texts together
_INCOMPLETE = "\ufffd"  # what decoding gives for half a character


class Kept(Struct, frozen=True):
    """A text, by its length and SHA-256, and the ids that it was processed as."""

    digest: str
    num_chars: int
    ids: array[int]


class KeptIds(Struct, frozen=True):
    """Texts with their ids, least recently used first."""

    texts: tuple[Kept, ...] = ()


class KeptIdsStore(Protocol):
    """Port: texts with their ids on a disk, in namespaces.  Any thread may call."""

    def load(self, namespace: Namespace) -> Sequence[Kept]:
        """Return what was saved, the longest ago first; damaged texts are forgotten and left out.

        Raises StoreFailed.
        """
        ...

    def save(self, namespace: Namespace, new: Sequence[Kept], gone: Sequence[Kept]) -> int:
        """Keep `new` and forget `gone`, both or neither; return the bytes that were written.

        Durable on return.  Of equal texts the newer one is kept.  Raises StoreFailed, with
        nothing changed.
        """
        ...


def changed(before: KeptIds, after: KeptIds) -> tuple[Sequence[Kept], Sequence[Kept]]:
    """Return what `after` has that `before` has not, least recently used first; and what it lost.

    A text whose ids are others now is new.
    """
    there = {one.digest for one in after.texts}
    old = {one.digest: one.ids for one in before.texts}
    new = [one for one in after.texts if not _same(old.get(one.digest), one.ids)]
    return new, [one for one in before.texts if one.digest not in there]


def bounded(texts: Sequence[Kept]) -> KeptIds:
    """Return the last of `texts` that are within the bounds."""
    kept = KeptIds()
    for one in texts:
        kept = _with(kept, one)
    return kept


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
    return _with(kept, kept_as(text, (*prompt_ids, *answer_ids)))


def kept_as(text: str, ids: Sequence[int]) -> Kept:
    """Return what is kept of a text that was processed as `ids`."""
    return Kept(hashlib.sha256(_bytes(text)).hexdigest(), len(text), array("I", ids))


def used(kept: KeptIds, one: Kept) -> KeptIds:
    """Return `kept` with `one` as the most recently used."""
    return _with(kept, one)


def longest(kept: KeptIds, text: str) -> Kept | None:
    """Return the longest text that `text` goes on from; None if it begins with none.

    Each character is hashed once, however many texts there are.
    """
    found, done, seen = None, 0, hashlib.sha256()
    for one in sorted(kept.texts, key=lambda one: one.num_chars):
        if one.num_chars >= len(text):
            break
        seen.update(_bytes(text[done : one.num_chars]))
        done = one.num_chars
        if seen.hexdigest() == one.digest:
            found = one
    return found


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
    rest = tokenizer.encode(text[one.num_chars :], add_special=False)
    joined = [*map(TokenId, one.ids), *rest]
    if spelled(tokenizer, joined) != spelled(tokenizer, canonical):
        return canonical, None
    return joined, one


def spelled(tokenizer: Tokenizer, ids: Sequence[TokenId]) -> bytes:
    """Return what tokens stand for together, special ones as they are spelled."""
    return b"".join(map(tokenizer.token_bytes, ids))


def _with(kept: KeptIds, newest: Kept) -> KeptIds:
    texts = [one for one in kept.texts if one.digest != newest.digest]
    texts.append(newest)
    num_chars = sum(one.num_chars for one in texts)
    while len(texts) > MAX_TEXTS or num_chars > MAX_CHARS:
        num_chars -= texts.pop(0).num_chars
    return KeptIds(tuple(texts))


def _same(before: array[int] | None, after: array[int]) -> bool:
    return before is after or before == after  # what was kept on is not compared


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogatepass")
