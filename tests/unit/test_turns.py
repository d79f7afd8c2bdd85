"""Where prompts part, by templates that keep all of a history and templates that do not."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer

from doubles.tokenizer import ByteTokenizer
from mlxbun.adapters.tokenizer.folder import FolderTokenizer
from mlxbun.application.turns import turn_boundaries
from mlxbun.domain.boundaries import APART, MAX_BOUNDARIES

Turns = Sequence[dict[str, Any]]

PLAIN = """{% for m in messages %}<|im_start|>{{ m.role }}
{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}
{{- m.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
# Keeps reasoning after the last question alone, and opens an answer with it.
STRIPS = """{# knows tools and tool_calls -#}
{% set ns = namespace(last=-1) %}{% for m in messages %}{% if m.role == 'user' %}
{%- set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- for m in messages %}<|im_start|>{{ m.role }}
{% if m.reasoning_content and loop.index0 > ns.last %}<think>{{ m.reasoning_content }}</think>
{%- endif %}{{ m.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
<think>
Well,{% endif %}"""
# Has no role for instructions: they begin the first question.
FOLDS = """{% if messages[0].role == 'system' %}{% set first = messages[0].content ~ '\n\n' %}
{%- set rest = messages[1:] %}{% else %}{% set first = '' %}{% set rest = messages %}{% endif %}
{%- for m in rest %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}
{{- raise_exception('roles must alternate') }}{% endif %}<start>{{ m.role }}
{% if loop.first %}{{ first }}{% endif %}{{ m.content | trim }}<end>
{% endfor %}{% if add_generation_prompt %}<start>model
{% endif %}"""
TEMPLATES = {"plain": PLAIN, "strips": STRIPS, "folds": FOLDS}
SPECIAL = ("<|im_start|>", "<|im_end|>", "<think>", "</think>", "<start>", "<end>")


@functools.cache
def tokenizer(template: str, normalised: bool = False) -> FolderTokenizer:
    made = Tokenizer(BPE())
    if normalised:
        made.normalizer = normalizers.NFKC()
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator([f"assistant user system {words(20)}"], trainer)
    made.add_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    return FolderTokenizer(made, {}, {"default": TEMPLATES[template]})


def words(count: int, word: str = "word") -> str:
    return " ".join(f"{word}{i % 7}" for i in range(count))


def turn(role: str, content: str, **more: str) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def encoded(of: FolderTokenizer, turns: Turns) -> tuple[str, list[int]]:
    text = of.render_chat(turns)
    return text, [int(i) for i in of.encode(text, add_special=False)]


def found(of: FolderTokenizer, turns: Turns) -> tuple[int, ...]:
    text = of.render_chat(turns)
    return turn_boundaries(of, turns, (), {}, text, of.encode(text, add_special=False))


def shared(of: FolderTokenizer, turns: Turns, other: Turns) -> int:
    """Return how many tokens two conversations begin with, in truth."""
    ids, others = encoded(of, turns)[1], encoded(of, other)[1]
    apart = (i for i, (one, two) in enumerate(zip(ids, others, strict=False)) if one != two)
    return next(apart, min(len(ids), len(others)))


SYSTEM = turn("system", words(200, "rule"))
FIRST = turn("user", words(200, "ask"))
ANSWER = turn("assistant", words(200, "say"), reasoning_content=words(50, "think"))
SECOND = turn("user", words(200, "more"))


@pytest.mark.parametrize("template", TEMPLATES)
def test_chats_under_the_same_instructions_share_them(template: str) -> None:
    of = tokenizer(template)
    count = found(of, [SYSTEM, FIRST])[0]
    text, ids = encoded(of, [SYSTEM, FIRST])
    assert count == shared(of, [SYSTEM, FIRST], [SYSTEM, turn("user", "what else?")])
    assert SYSTEM["content"] in of_ids(of, ids[:count]) and "ask" not in of_ids(of, ids[:count])
    assert text.startswith(of_ids(of, ids[:count]))


@pytest.mark.parametrize("template", TEMPLATES)
def test_the_next_turn_shares_the_last_boundary(template: str) -> None:
    of = tokenizer(template)
    asked = [SYSTEM, FIRST]
    turns = [*asked, ANSWER, SECOND]
    last = max((*found(of, asked), 0))
    truth = shared(of, asked, turns)
    end = len(encoded(of, asked)[1]) - 1
    assert last == min(truth, end)


def test_reasoning_that_the_next_question_takes_out_is_beyond_the_boundary() -> None:
    of = tokenizer("strips")
    called = turn("assistant", words(100, "call"), reasoning_content=words(100, "think"))
    result = turn("tool", words(300, "got"))
    asked = [SYSTEM, FIRST, called, result]
    taken_out = shared(of, asked, [*asked, ANSWER, SECOND])
    goes_on = shared(of, asked, [*asked, turn("assistant", "else")])
    assert taken_out < goes_on - APART
    assert {taken_out, goes_on} <= set(found(of, asked))


def test_a_chat_asked_something_else_shares_what_came_before() -> None:
    of = tokenizer("plain")
    turns = [SYSTEM, FIRST, ANSWER, SECOND]
    for place in (1, 3):
        other = [*turns[:place], turn("user", "something else")]
        assert shared(of, turns, other) in found(of, turns)


def test_a_long_chat_has_few_boundaries_and_the_newest() -> None:
    of = tokenizer("plain")
    turns = [SYSTEM, *[turn(role, words(150)) for role in ("user", "assistant") * 6][:-1]]
    counts = found(of, turns)
    assert len(counts) == MAX_BOUNDARIES
    newest = [shared(of, turns, [*turns[:i], turn("user", "else")]) for i in (9, 11)]
    assert set(newest) < set(counts)


def test_what_a_template_cannot_render_costs_a_boundary_and_no_request() -> None:
    class Choosy(ByteTokenizer):
        def render_chat(self, messages: Any, tools: Any = (), arguments: Any = None) -> str:
            said = [{"role": "user", "content": "[template refuses]"}]
            return super().render_chat(messages if len(messages) == 2 else said, tools, arguments)

    of, turns = Choosy(), [turn("system", "x" * 400), turn("user", "y" * 400)]
    text = of.render_chat(turns)
    ids = of.encode(text, add_special=False)
    assert turn_boundaries(of, turns, (), {}, text, ids) == (len("system: \nuser: ") + 400,)


def test_a_short_prompt_is_not_looked_at() -> None:
    of = ByteTokenizer()
    text = of.render_chat([turn("user", "hi")])
    ids = of.encode(text, add_special=False)
    assert turn_boundaries(of, [turn("user", "hi")], (), {}, text, ids) == ()


def test_a_tokenizer_that_changes_texts_is_asked_for_counts() -> None:
    of = tokenizer("plain", normalised=True)
    turns = [turn("system", "ﬁ" + words(200, "rule")), FIRST]
    other = [turns[0], turn("user", "what else?")]
    assert found(of, turns)[0] == shared(of, turns, other)


contents = st.integers(1, 120).map(words)
chats = st.lists(st.tuples(contents, st.none() | contents), min_size=1, max_size=4)


@given(st.sampled_from(sorted(TEMPLATES)), st.none() | contents, chats)
def test_boundaries_are_ascending_apart_and_within_the_prompt(
    template: str, system: str | None, said: list[tuple[str, str | None]]
) -> None:
    turns = [turn("system", system)] if system else []
    for content, reasoning in said:
        turns += [turn("user", content), turn("assistant", content)]
        turns[-1] |= {"reasoning_content": reasoning} if reasoning else {}
    counts = found(tokenizer(template), turns[:-1])
    assert len(counts) <= MAX_BOUNDARIES
    assert all(b - a >= APART for a, b in zip((0, *counts), counts, strict=False))
    assert not counts or counts[-1] < len(encoded(tokenizer(template), turns[:-1])[1])


def of_ids(of: FolderTokenizer, ids: Sequence[int]) -> str:
    return b"".join(of.token_bytes(i) for i in ids).decode()  # type: ignore[arg-type]
