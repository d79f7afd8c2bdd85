"""Ids kept for texts that come back, with a byte-level tokenizer that merges greedily."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer

from doubles.tokenizer import ByteTokenizer
from mlxbun.adapters.tokenizer.folder import FolderTokenizer
from mlxbun.domain import kept_ids
from mlxbun.domain.kept_ids import (
    MAX_CHARS,
    MAX_TEXTS,
    Kept,
    KeptIds,
    bounded,
    ids_of,
    kept_as,
    longest,
    remember,
)
from mlxbun.domain.sampling import TokenId

WORDS = "the harbour was quiet; the keeper of the harbour waited, 等着, for the other boats"
END = "<|im_end|>"


def _tokenizer() -> FolderTokenizer:
    made = Tokenizer(BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=340, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    made.train_from_iterator([WORDS] * 4, trainer)
    made.add_tokens([AddedToken(END, special=True, normalized=False)])
    return FolderTokenizer(made, {}, {})


BPE_TOKENIZER = _tokenizer()
END_ID = BPE_TOKENIZER.token_id(END)
any_ids = st.lists(st.integers(0, 340).map(TokenId), max_size=12)
pieces = st.lists(
    st.sampled_from([*WORDS.split(), " ", "\n", END, "等", "har", "bour", "é", "🙂"]), max_size=8
)
texts = pieces.map("".join)


def encode(text: str) -> list[TokenId]:
    return BPE_TOKENIZER.encode(text, add_special=False)


def apart(text: str) -> list[TokenId]:
    """Return ids of `text` as no encoder gives them: a byte a token."""
    return [token for byte in text for token in encode(byte)]


def read(kept: KeptIds, text: str) -> tuple[Sequence[TokenId], Kept | None]:
    return ids_of(kept, BPE_TOKENIZER, text, encode(text))


def test_a_text_that_comes_back_has_the_ids_that_it_was_generated_as() -> None:
    prompt, answer = encode("the harbour "), apart("was quiet")
    assert answer != encode("was quiet"), "or there is nothing to keep"
    kept = remember(KeptIds(), BPE_TOKENIZER, "the harbour ", prompt, answer)
    ids, begun = read(kept, f"the harbour was quiet{END}for the other boats")
    assert ids == [*prompt, *answer, *encode(f"{END}for the other boats")]
    assert begun == kept_as("the harbour was quiet", [*prompt, *answer])


def test_special_tokens_are_remembered_as_templates_spell_them() -> None:
    assert END_ID is not None
    kept = remember(KeptIds(), BPE_TOKENIZER, "the", encode("the"), [*apart("re"), END_ID])
    assert kept.texts[0] == kept_as(f"there{END}", [*encode("the"), *apart("re"), END_ID])
    assert read(kept, f"there{END}boats")[0] == [
        *encode("the"), *apart("re"), END_ID, *encode("boats")
    ]  # fmt: skip


def test_another_text_is_encoded_as_ever() -> None:
    kept = remember(KeptIds(), BPE_TOKENIZER, "the ", encode("the "), apart("harbour"))
    for text in ("the harb", "the harbour", "a harbour is", ""):
        assert read(kept, text) == (encode(text), None)


def test_what_is_encoded_so_anyway_stays_as_it_is() -> None:
    kept = remember(KeptIds(), BPE_TOKENIZER, "the", encode("the"), encode(f" harbour{END}"))
    ids, begun = read(kept, f"the harbour{END} was quiet")
    assert ids == encode(f"the harbour{END} was quiet") and begun is kept.texts[0]


def test_half_a_character_is_not_remembered() -> None:
    half = apart("等")[:1]
    assert remember(KeptIds(), BPE_TOKENIZER, "", [], half) == KeptIds()
    whole_sign = encode("\ufffd")
    assert remember(KeptIds(), BPE_TOKENIZER, "", [], whole_sign) == KeptIds()


@given(texts, any_ids, texts)
def test_kept_ids_never_change_the_text(prompt: str, answer: list[TokenId], more: str) -> None:
    kept = remember(KeptIds(), BPE_TOKENIZER, prompt, encode(prompt), answer)
    said = kept_ids.spelled(BPE_TOKENIZER, answer).decode() if kept.texts else ""
    text = prompt + said + more
    ids, begun = read(kept, text)
    assert kept_ids.spelled(BPE_TOKENIZER, ids) == text.encode()
    if kept.texts and more:
        assert begun is not None and list(ids[: len(begun.ids)]) == [*encode(prompt), *answer]


@given(st.lists(st.tuples(texts, any_ids), max_size=6), texts)
def test_a_prompt_begins_with_the_longest_text_or_with_none(
    said: list[tuple[str, list[TokenId]]], text: str
) -> None:
    kept, known = KeptIds(), list[str]()
    for prompt, answer in said:
        before, kept = kept, remember(kept, BPE_TOKENIZER, prompt, encode(prompt), answer)
        if kept != before:
            known.append(prompt + kept_ids.spelled(BPE_TOKENIZER, answer).decode())
    ids, begun = read(kept, text)
    lengths = [len(k) for k in known if text.startswith(k) and k != text]
    assert (max(lengths) if lengths else None) == (begun.num_chars if begun else None)
    assert kept_ids.spelled(BPE_TOKENIZER, ids) == text.encode()


class Lossy(ByteTokenizer):
    """Encodes a capital letter as a small one, as some tokenizers do."""

    def encode(self, text: str, *, add_special: bool) -> list[TokenId]:
        return super().encode(text.lower(), add_special=add_special)


def test_ids_that_say_another_text_than_the_encoding_are_not_used() -> None:
    kept = KeptIds((kept_as("Ab", [*b"Ab"]),))
    assert ids_of(kept, Lossy(), "Abc", [*map(TokenId, b"abc")]) == ([*b"abc"], None)


@pytest.mark.parametrize("size", [4, MAX_CHARS // 8])
def test_what_is_remembered_is_bounded_and_the_least_recently_used_goes(size: int) -> None:
    tokenizer, kept = ByteTokenizer(), KeptIds()
    first = "0".rjust(size, ".")
    for number in range(2 * MAX_TEXTS):
        kept = remember(kept, tokenizer, str(number).rjust(size, "."), [], [])
        kept = kept_ids.used(kept, longest(kept, f"{first}!") or kept.texts[0])
    assert len(kept.texts) == min(MAX_TEXTS, MAX_CHARS // size)
    assert sum(one.num_chars for one in kept.texts) <= MAX_CHARS
    assert longest(kept, f"{first}!") is not None, "it was used all the time"
    assert longest(kept, f"{'1'.rjust(size, '.')}!") is None


def test_a_text_beyond_all_room_is_not_remembered() -> None:
    assert remember(KeptIds(), ByteTokenizer(), "x" * (MAX_CHARS + 1), [], []) == KeptIds()


def test_a_text_with_half_a_surrogate_pair_is_looked_for_like_any_other() -> None:
    kept = KeptIds((kept_as("a \ud83d", [1]),))
    assert longest(kept, "a \ud83d b") == kept.texts[0]
    assert longest(kept, "a \ud83e b") is None


def test_of_texts_from_a_disk_the_last_are_kept() -> None:
    texts = [kept_as(str(number), [number]) for number in range(MAX_TEXTS + 3)]
    assert bounded(texts).texts == tuple(texts[3:])
    assert bounded([kept_as("x" * (MAX_CHARS + 1), [1])]) == KeptIds()
