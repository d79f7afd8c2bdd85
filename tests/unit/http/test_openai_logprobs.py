from __future__ import annotations

import math
from typing import Any

import msgspec
import openai.types.chat.chat_completion as chat
import pytest
from openai.types.completion_choice import Logprobs

from doubles.tokenizer import EOS, SPECIAL, ByteTokenizer
from mlxbun.adapters.http.openai_logprobs import (
    FLOOR,
    TextOffsets,
    chat_logprobs,
    completion_logprobs,
)
from mlxbun.domain.sampling import TokenId
from mlxbun.domain.steps import TokenLogprobs

TOKENIZER = ByteTokenizer()
END = frozenset({EOS})


def drawn(text: str, logprob: float = -0.5) -> list[tuple[TokenId, TokenLogprobs | None]]:
    ids = map(TokenId, text.encode())
    tops = ((TokenId(97), -0.1), (TokenId(0xC3), -math.inf))
    return [*((i, TokenLogprobs(logprob, tops)) for i in ids), (EOS, TokenLogprobs(-0.1))]


def test_chat_entries_are_what_the_official_types_say() -> None:
    said = chat_logprobs(TOKENIZER, drawn("é"), 1, END)
    parsed = chat.ChoiceLogprobs.model_validate(msgspec.to_builtins(said), strict=False)
    assert parsed.content is not None
    assert [entry.bytes for entry in parsed.content] == [[0xC3], [0xA9]]  # the end token is none
    assert b"".join(bytes(entry.bytes or ()) for entry in parsed.content) == "é".encode()
    assert [top.token for top in parsed.content[0].top_logprobs] == ["a"]


class Wide(ByteTokenizer):
    """Tokens from 300 on are of several bytes."""

    def __init__(self, *tokens: bytes) -> None:
        super().__init__()
        self._tokens = tokens

    def token_bytes(self, token_id: TokenId) -> bytes:
        return self._tokens[token_id - 300] if token_id >= 300 else super().token_bytes(token_id)

    def decoder(self, shown: frozenset[str] = frozenset()) -> Any:
        return self if any(self._tokens) else super().decoder(shown)

    def add(self, token_id: TokenId) -> str:
        return self.token_bytes(token_id).decode(errors="replace")


@pytest.mark.parametrize(
    ("token", "num_cut", "left"),
    [
        ("línea".encode(), 0, "línea".encode()),
        ("línea".encode(), 3, "lí".encode()),
        ("línea".encode(), 4, b"l"),
        (b"x\xf0\x9f", 1, b""),  # half a character at its end is none of them
        (b"\xa9x y", 2, b"\xa9x"),  # the end of one at its beginning stays
        (b"\xa9STOP", 4, b"\xa9"),
        ("👋STOP".encode(), 4, "👋".encode()),
    ],
)
def test_of_a_token_that_a_stop_string_cuts_the_bytes_are_those_that_are_shown(
    token: bytes, num_cut: int, left: bytes
) -> None:
    tokens = [(TokenId(300), TokenLogprobs(-0.5)), (TokenId(301), TokenLogprobs(-0.5))]
    said = chat_logprobs(Wide(b"before", token), tokens, 0, END, num_cut=num_cut)
    assert [bytes(entry.bytes) for entry in said.content] == [b"before", left]
    assert said.content[1].token == token.decode(errors="replace"), "it is named whole"


def test_a_special_token_that_is_not_shown_has_no_bytes() -> None:
    middle = SPECIAL["<middle>"]
    tokens = [(TokenId(97), TokenLogprobs(-0.5)), (middle, TokenLogprobs(-0.5))]
    hidden = chat_logprobs(TOKENIZER, tokens, 0, END)
    assert [(entry.token, entry.bytes) for entry in hidden.content] == [
        ("a", (97,)), ("<middle>", ())
    ]  # fmt: skip
    shown = chat_logprobs(TOKENIZER, tokens, 0, END, shown=frozenset({"<middle>"}))
    assert bytes(shown.content[1].bytes) == b"<middle>"


def test_an_impossible_token_has_a_number_for_a_logprob() -> None:
    said = chat_logprobs(TOKENIZER, drawn("x", math.nan), 2, END)
    assert said.content[0].logprob == FLOOR
    assert said.content[0].top_logprobs[1].logprob == FLOOR


def test_completion_lists_have_an_entry_a_token_and_offsets_in_characters() -> None:
    said = completion_logprobs(TOKENIZER, drawn("aéb"), 2, END, TextOffsets(TOKENIZER))
    parsed = Logprobs.model_validate(msgspec.to_builtins(said))
    assert parsed.tokens == ["a", "bytes:\\xc3", "bytes:\\xa9", "b"]
    assert parsed.text_offset == [0, 1, 1, 2]
    assert parsed.token_logprobs == [-0.5] * 4
    assert parsed.top_logprobs is not None
    assert parsed.top_logprobs[0] == {"a": -0.1, "bytes:\\xc3": FLOOR}


def test_no_alternatives_are_no_list() -> None:
    said = completion_logprobs(TOKENIZER, drawn("a"), 0, END, TextOffsets(TOKENIZER))
    assert said.top_logprobs is None
