"""Every sentence of the ports Tokenizer and TokenDecoder, on the adapter and its double."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from doubles.tokenizer import ByteTokenizer
from mlxbun.adapters.tokenizer.folder import open_tokenizer
from mlxbun.domain.refusal import Refused
from mlxbun.domain.sampling import TokenId
from mlxbun.domain.text import Tokenizer

TEXT = "Où est le bateau ? 🙂"
REFUSING = "{{ raise_exception('not like this') }}"


class Case:
    """A tokenizer, one of its special tokens, and a conversation that its template refuses."""

    def __init__(self, tokenizer: Tokenizer, special: str, refused: str, refusing: Tokenizer):
        self.tokenizer = tokenizer
        self.special = special
        self.refused = refused
        self.refusing = refusing


@pytest.fixture(params=["double", "folder"])
def case(request: pytest.FixtureRequest, tiny_model: Callable[[str], Path], tmp_path: Path) -> Case:
    if request.param == "double":
        double = ByteTokenizer()
        return Case(double, "<end>", "[template refuses]", double)
    folder = tiny_model("tiny-llama")
    for path in folder.glob("*.json"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "chat_template.jinja").write_text(REFUSING)
    return Case(open_tokenizer(folder), "<|im_end|>", "hi", open_tokenizer(tmp_path))


def test_text_comes_back_piece_by_piece_and_never_half_a_character(case: Case) -> None:
    decoder, shown = case.tokenizer.decoder(), ""
    for token_id in case.tokenizer.encode(TEXT, add_special=False):
        shown += decoder.add(token_id)
        assert TEXT.startswith(shown)
    assert (shown, decoder.flush()) == (TEXT, "")


def test_what_is_incomplete_is_flushed_as_a_sign(case: Case) -> None:
    decoder = case.tokenizer.decoder()
    shown = [decoder.add(i) for i in case.tokenizer.encode("a🙂", add_special=False)[:-1]]
    assert "".join([*shown, decoder.flush()]) == "a\ufffd"


def test_every_row_has_a_decoder_of_its_own(case: Case) -> None:
    one, two = case.tokenizer.decoder(), case.tokenizer.decoder()
    ids = case.tokenizer.encode("🙂", add_special=False)
    assert [one.add(i) for i in ids[:-1]] == [""] * (len(ids) - 1)
    assert two.flush() == ""
    assert one.add(ids[-1]) == "🙂"


def test_special_tokens_spelled_in_a_text_become_their_ids_and_say_nothing(case: Case) -> None:
    ids = case.tokenizer.encode(f"a{case.special}b", add_special=False)
    assert len(ids) == 3
    assert case.tokenizer.token_bytes(ids[1]) == case.special.encode()
    decoder = case.tokenizer.decoder()
    assert [decoder.add(i) for i in ids] == ["a", "", "b"]


def test_special_tokens_that_are_asked_for_are_spelled(case: Case) -> None:
    ids = case.tokenizer.encode(f"a{case.special}🙂", add_special=False)
    decoder = case.tokenizer.decoder(frozenset({case.special, "a", "no token"}))
    shown = "".join([*(decoder.add(i) for i in ids), decoder.flush()])
    assert shown == f"a{case.special}🙂"
    cut = case.tokenizer.encode("🙂", add_special=False)[:-1]
    decoder = case.tokenizer.decoder(frozenset({case.special}))
    assert "".join(decoder.add(i) for i in (*cut, ids[1])) == f"\ufffd{case.special}"


def test_the_bytes_of_tokens_are_those_of_the_text(case: Case) -> None:
    ids = case.tokenizer.encode(TEXT, add_special=False)
    assert b"".join(map(case.tokenizer.token_bytes, ids)) == TEXT.encode()


def test_any_thread_may_call_it(case: Case) -> None:
    texts = [TEXT * n for n in range(1, 9)]
    alone = [case.tokenizer.encode(text, add_special=True) for text in texts]
    with ThreadPoolExecutor(4) as pool:
        together = pool.map(lambda t: case.tokenizer.encode(t, add_special=True), texts * 8)
        assert list(together) == alone * 8


def test_add_special_keeps_the_text(case: Case) -> None:
    bare = case.tokenizer.encode(TEXT, add_special=False)
    ids = case.tokenizer.encode(TEXT, add_special=True)
    assert bare == [i for i in ids if i in bare]


def test_a_prompt_holds_what_was_said(case: Case) -> None:
    prompt = case.tokenizer.render_chat(
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": TEXT}]
    )
    assert prompt.index("Be brief.") < prompt.index(TEXT)


def test_a_template_that_refuses_is_quoted(case: Case) -> None:
    with pytest.raises(Refused) as refused:
        case.refusing.render_chat([{"role": "user", "content": case.refused}])
    assert (refused.value.code, refused.value.field) == ("invalid_value", "messages")


def test_fill_in_middle_holds_both_texts(case: Case) -> None:
    ids = case.tokenizer.fill_in_middle("before", "after")
    assert ids is not None
    decoder = case.tokenizer.decoder()
    assert "".join(decoder.add(TokenId(i)) for i in ids) in ("beforeafter", "afterbefore")
