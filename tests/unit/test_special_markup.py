"""Markup that is special tokens: decoders leave it out, and readers need it."""

from __future__ import annotations

from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from doubles.notations import template
from mlxbun.adapters.tokenizer.folder import FolderTokenizer
from mlxbun.domain.conversation import CallArguments, CallBegun, Reasoning, Text
from mlxbun.domain.conversation.markup import family_of
from mlxbun.domain.sampling import TokenId

# The special tokens of real tokenizers, and what stands around a thought.
FAMILIES: dict[str, tuple[tuple[str, ...], str, str]] = {
    "gemma4": (
        ("<|tool_call>", "<tool_call|>", '<|"|>', "<|channel>", "<channel|>"),
        "<|channel>thought\n",
        "<channel|>",
    ),
    "mistral": (("[TOOL_CALLS]", "[ARGS]", "[THINK]", "[/THINK]"), "[THINK]", "[/THINK]"),
    "deepseek": (
        (
            "<｜tool▁calls▁begin｜>",
            "<｜tool▁calls▁end｜>",
            "<｜tool▁call▁begin｜>",
            "<｜tool▁call▁end｜>",
            "<｜tool▁sep｜>",
            "<think>",
            "</think>",
        ),
        "<think>",
        "</think>",
    ),
    "dsml": (("｜DSML｜",), "<think>", "</think>"),
    "kimi": (
        (
            "<|tool_calls_section_begin|>",
            "<|tool_calls_section_end|>",
            "<|tool_call_begin|>",
            "<|tool_call_argument_begin|>",
            "<|tool_call_end|>",
        ),
        "<think>",
        "</think>",
    ),
    "lfm": (("<|tool_call_start|>", "<|tool_call_end|>"), "<think>", "</think>"),
    "llama": (("<|python_tag|>",), "<think>", "</think>"),
    "granite": (("<|tool_call|>",), "<think>", "</think>"),
    "cohere": (
        ("<|START_ACTION|>", "<|END_ACTION|>", "<|START_THINKING|>", "<|END_THINKING|>"),
        "<|START_THINKING|>",
        "<|END_THINKING|>",
    ),
    "glm": (
        ("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
        "<think>",
        "</think>",
    ),
    "apertus": (("<|tools_prefix|>", "<|tools_suffix|>"), "<think>", "</think>"),
    "kimi3": (
        ("<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"),
        "<|open|>think<|sep|>",
        "<|close|>think<|sep|><|open|>response<|sep|>",
    ),
    "harmony": (
        (
            "<|channel|>",
            "<|message|>",
            "<|start|>",
            "<|end|>",
            "<|call|>",
            "<|return|>",
            "<|constrain|>",
        ),
        "<|channel|>analysis<|message|>",
        "<|end|><|start|>assistant",
    ),
}
PROPERTIES = {"city": {"type": "string"}, "n": {"type": "integer"}}
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "look", "parameters": {"properties": PROPERTIES}},
}


def opened(family: str) -> FolderTokenizer:
    """Return a tokenizer of bytes and the family's special tokens, with its template."""
    specials, _, close = FAMILIES[family]
    vocab = {letter: i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    made: Any = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(token, special=True) for token in (*specials, "<eos>")])
    source = template(family) + "{# " + close + " #}"
    return FolderTokenizer(made, {}, {"default": source})


@pytest.mark.parametrize("name", FAMILIES)
def test_calls_and_thoughts_are_read_from_ids(name: str) -> None:
    tokenizer = opened(name)
    family = family_of(tokenizer.template, lambda token: tokenizer.token_id(token) is not None)
    assert family.name == name
    call = {"id": "1", "function": {"name": "look", "arguments": {"city": "Röm", "n": 5}}}
    turns: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]
    prompt = tokenizer.render_chat(turns, [TOOL])
    turns.append({"role": "assistant", "content": "", "tool_calls": [call]})
    whole = tokenizer.render_chat(turns, [TOOL])
    _, open_tag, close_tag = FAMILIES[name]
    answer = f"{open_tag}Hm.{close_tag}" + whole.removeprefix(prompt).removesuffix("<|assistant|>")

    ids = [*tokenizer.encode(answer, add_special=False), TokenId(tokenizer.token_id("<eos>") or 0)]
    decoder = tokenizer.decoder(family.shown(with_tools=True))
    reader = family.reader([TOOL], prompt)
    parts = [part for i in ids for part in reader.feed(decoder.add(i))]
    parts += [*reader.feed(decoder.flush()), *reader.flush()]
    assert "".join(p.text for p in parts if isinstance(p, Reasoning)) == "Hm."
    assert [p.name for p in parts if isinstance(p, CallBegun)] == ["look"]
    said = [p.text for p in parts if isinstance(p, CallArguments)]
    assert [text.replace(" ", "") for text in said] == ['{"city":"Röm","n":5}']
    assert not [part for part in parts if isinstance(part, Text)]


@pytest.mark.parametrize("name", sorted(FAMILIES.keys() - {"harmony"}))
def test_without_tools_special_markup_of_calls_stays_unseen(name: str) -> None:
    family = family_of(opened(name).template, lambda _: False)
    specials, *_ = FAMILIES[name]
    assert family.thought is not None
    seen = family.shown(with_tools=False) & {*specials}
    assert seen <= {family.thought.open, family.thought.close, *family.thought.tokens}
