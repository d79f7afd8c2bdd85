from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from mlxbun.adapters.tokenizer.decoding import token_reader
from mlxbun.adapters.tokenizer.folder import FolderTokenizer
from mlxbun.domain.sampling import TokenId

NEWS = "the the they there — 你好 Grüße 🙂👍🏽"


def byte_level() -> Tokenizer:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = ["Ġt", "he", "Ġthe", "Ã¼", "ðŁ"]
    vocab = {word: i for i, word in enumerate([*letters, *words])}
    merges = [("Ġ", "t"), ("h", "e"), ("Ġt", "he"), ("Ã", "¼"), ("ð", "Ł")]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def pieces_and_bytes() -> Tokenizer:
    """Words after "▁", and bytes for what is no word, as SentencePiece models have them."""
    words = [
        "<unk>",
        *(f"<0x{b:02X}>" for b in range(256)),
        "▁",
        *"abcdefghijklmnopqrstuvwxyz",
        "▁t",
    ]
    vocab = {word: i for i, word in enumerate(words)}
    tokenizer = Tokenizer(
        models.BPE(vocab=vocab, merges=[("▁", "t")], byte_fallback=True, unk_token="<unk>")
    )
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
         decoders.Strip(content=" ", left=1, right=0)]
    )  # fmt: skip
    return tokenizer


def word_pieces() -> Tokenizer:
    words = ["[UNK]", "the", "##re", "##y", "a", "##b", "!"]
    tokenizer = Tokenizer(models.WordPiece({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def with_added(tokenizer: Tokenizer) -> FolderTokenizer:
    end = AddedToken("<|end|>", special=True, normalized=False)
    plain = [
        AddedToken(t, special=False, normalized=False) for t in ("<think>", "<a b>", "<｜x▁y｜>")
    ]
    added: Any = tokenizer
    added.add_tokens([end, *plain])
    return FolderTokenizer(tokenizer, {}, {})


BYTE_LEVEL, PIECES = with_added(byte_level()), with_added(pieces_and_bytes())
WORDS = FolderTokenizer(word_pieces(), {}, {})


def read(tokenizer: FolderTokenizer, ids: Iterable[int]) -> list[str]:
    decoder = tokenizer.decoder()
    return [*(decoder.add(TokenId(i)) for i in ids), decoder.flush()]


def whole(tokenizer: FolderTokenizer, ids: list[int]) -> str:
    return tokenizer._tokenizer.decode(ids, skip_special_tokens=True)


@given(st.lists(st.integers(0, BYTE_LEVEL._tokenizer.get_vocab_size() + 5)))
def test_any_ids_give_the_text_that_the_library_gives(ids: list[int]) -> None:
    assert "".join(read(BYTE_LEVEL, ids)) == whole(BYTE_LEVEL, ids)
    said = b"".join(BYTE_LEVEL.token_bytes(TokenId(i)) for i in ids).replace(b"<|end|>", b"")
    assert said.decode(errors="replace") == whole(BYTE_LEVEL, ids)


@pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, PIECES])
@given(text=st.text() | st.sampled_from([NEWS, "  two", " one", "\n"]))
def test_a_text_comes_back_whole_and_never_half_a_character(
    tokenizer: FolderTokenizer, text: str
) -> None:
    ids = tokenizer.encode(text, add_special=False)
    shown = ""
    for piece in read(tokenizer, ids):
        shown += piece
        assert text.startswith(shown.removeprefix(" ") if tokenizer is PIECES else shown)
    if tokenizer is PIECES:  # its normaliser puts a space before a text, not before <think>
        assert shown in (text, " " + text)
        assert whole(tokenizer, [*ids]) == text
    else:
        assert shown == text


@given(st.lists(st.integers(0, WORDS._tokenizer.get_vocab_size() - 1)))
def test_words_that_depend_on_their_neighbours_are_joined_as_the_library_does(
    ids: list[int],
) -> None:
    assert "".join(read(WORDS, ids)) == whole(WORDS, ids)


@pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, PIECES])
def test_an_incomplete_character_is_held_back_and_flushed_as_one_sign(
    tokenizer: FolderTokenizer,
) -> None:
    ids = tokenizer.encode("a🙂", add_special=False)
    assert "".join(read(tokenizer, ids[:-1])).removeprefix(" ") == "a\ufffd"
    decoder = tokenizer.decoder()
    shown = [decoder.add(i) for i in ids]
    assert "".join(shown[:-1]).removeprefix(" ") == "a"
    assert (shown[-1], decoder.flush()) == ("🙂", "")


def test_the_first_space_is_kept() -> None:
    the = BYTE_LEVEL.encode(" the", add_special=False)
    assert len(the) == 1
    assert read(BYTE_LEVEL, the) == [" the", ""]
    t = PIECES.token_id("▁t")
    assert t is not None
    assert read(PIECES, [t]) == [" t", ""]


def test_special_tokens_say_nothing_and_plain_added_ones_are_text() -> None:
    for tokenizer in (BYTE_LEVEL, PIECES):
        ids = [tokenizer.token_id(token) for token in ("<think>", "<|end|>", "<a b>")]
        assert "".join(read(tokenizer, [i for i in ids if i is not None])) == "<think><a b>"
        assert ids[1] is not None
        assert tokenizer.token_bytes(ids[1]) == b"<|end|>"


def test_an_id_beyond_the_vocabulary_says_nothing() -> None:
    for tokenizer in (BYTE_LEVEL, PIECES, WORDS):
        assert tokenizer.token_bytes(TokenId(10**6)) == b""
        assert read(tokenizer, [10**6]) == ["", ""]


def test_byte_tokens_are_single_bytes() -> None:
    half = PIECES.token_id("<0xE2>")
    assert half is not None
    assert PIECES.token_bytes(half) == b"\xe2"


@pytest.mark.parametrize(
    "decoder",
    [
        None,
        {"type": "WordPiece", "prefix": "##", "cleanup": True},
        {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]},
        {"type": "Replace", "pattern": {"Regex": "▁+"}, "content": " "},
        {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ],
        },
    ],
)
def test_no_bytes_are_made_up_where_single_tokens_have_none(decoder: Any) -> None:
    assert token_reader(decoder) is None
