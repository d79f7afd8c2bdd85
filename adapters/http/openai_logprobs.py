"""Log-probabilities in the two shapes of OpenAI's protocols.

One entry for each token drawn, but for the end token and for those that a stop string has whole.
Both protocols want numbers where a probability is 0, so its logarithm is FLOOR.
"""

from __future__ import annotations

import codecs
import math
from collections.abc import Iterable

from msgspec.structs import replace

from mlxbun.adapters.http.openai_types import (
    ChatLogprob,
    ChatLogprobs,
    CompletionLogprobs,
    TopLogprob,
)
from mlxbun.domain.sampling import TokenId
from mlxbun.domain.steps import TokenLogprobs
from mlxbun.domain.text import Tokenizer

FLOOR = -9999.0
_CONTINUATIONS = bytes(range(0x80, 0xC0))  # the bytes of a character but for its first

Tokens = Iterable[tuple[TokenId, TokenLogprobs | None]]


def chat_logprobs(
    tokenizer: Tokenizer,
    tokens: Tokens,
    num_top: int,
    end_ids: frozenset[TokenId],
    *,
    shown: frozenset[str] = frozenset(),
    num_cut: int = 0,
) -> ChatLogprobs:
    """Return the entries of `tokens`, with at most `num_top` alternatives each.

    Their bytes joined are the text: none of a special token that is not among the `shown`, and
    of the last one not the last `num_cut` characters.
    """
    entries: list[ChatLogprob] = []
    for token_id, said in tokens:
        if said is None or token_id in end_ids:
            continue
        token = tokenizer.token_bytes(token_id)
        top = tuple(_top(tokenizer.token_bytes(t), value) for t, value in said.top[:num_top])
        decoder = tokenizer.decoder(shown)
        visible = token if decoder.add(token_id) or decoder.flush() else b""
        entries.append(ChatLogprob(_shown(token), _finite(said.logprob), tuple(visible), top))
    if entries and num_cut:
        last = entries[-1]
        entries[-1] = replace(last, bytes=tuple(_without_end(bytes(last.bytes), num_cut)))
    return ChatLogprobs(entries)


def _without_end(token: bytes, num_chars: int) -> bytes:
    """Return what is left without the last characters, and without half of one after them."""
    utf8 = codecs.getincrementaldecoder("utf-8")("replace")
    utf8.decode(token)
    left = token[: len(token) - len(utf8.getstate()[0])]
    for _ in range(num_chars):
        left = left.rstrip(_CONTINUATIONS)[:-1]
    return left


class TextOffsets:
    """Where each token of one row begins in its choice's text, in characters."""

    def __init__(self, tokenizer: Tokenizer, start: int = 0) -> None:
        self._decoder = tokenizer.decoder()
        self._at = start

    def next(self, token_id: TokenId) -> int:
        at = self._at
        self._at += len(self._decoder.add(token_id))
        return at


def completion_logprobs(
    tokenizer: Tokenizer,
    tokens: Tokens,
    num_top: int,
    end_ids: frozenset[TokenId],
    offsets: TextOffsets,
) -> CompletionLogprobs:
    """Return the four lists of `tokens`; `top_logprobs` is null when none are asked for."""
    said = CompletionLogprobs([], [], [] if num_top else None, [])
    for token_id, logprobs in tokens:
        if logprobs is None or token_id in end_ids:
            continue
        said.tokens.append(_spelled(tokenizer.token_bytes(token_id)))
        said.token_logprobs.append(_finite(logprobs.logprob))
        said.text_offset.append(offsets.next(token_id))
        if said.top_logprobs is not None:
            top = {
                _spelled(tokenizer.token_bytes(t)): _finite(v) for t, v in logprobs.top[:num_top]
            }
            said.top_logprobs.append(top)
    return said


def _top(token: bytes, logprob: float) -> TopLogprob:
    return TopLogprob(_shown(token), _finite(logprob), tuple(token))


def _shown(token: bytes) -> str:
    return token.decode(errors="replace")


def _spelled(token: bytes) -> str:
    """Return a spelling that tells tokens apart: a part of a character shows its bytes."""
    try:
        return token.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token)


def _finite(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else FLOOR
