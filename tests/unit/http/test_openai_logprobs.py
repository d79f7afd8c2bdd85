from __future__ import annotations

import math

import msgspec
import openai.types.chat.chat_completion as chat
from openai.types.completion_choice import Logprobs

from doubles.tokenizer import EOS, ByteTokenizer
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
