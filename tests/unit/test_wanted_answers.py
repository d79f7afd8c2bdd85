"""What an answer must look like, out of all that a chat asks."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from mlxbun.application.wanted_answers import Asked, ForcedCall, wanted
from mlxbun.domain.constraint import Calls, Constraint, JsonObject, Regex, translate
from mlxbun.domain.conversation.markup import Family, family_of
from mlxbun.domain.refusal import Refused

HERMES = family_of("</think><tool_call>", lambda _: False)
HARMONY = family_of("<|channel|><|message|><|constrain|>", lambda _: True)
PLAIN = family_of("", lambda _: False)
JSON = Constraint(JsonObject(), "response_format.type")
NO_STOPS = frozenset[str]()


def tool(name: str, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": {}, **more}}


def asked(
    *tools: dict[str, Any],
    constraint: Constraint | None = None,
    forced: ForcedCall | None = None,
    one_call: bool = False,
    strict: frozenset[str] = frozenset(),
) -> Asked:
    return Asked(constraint, tools, forced, one_call, strict)


def calls_of(found: Constraint | None) -> Calls:
    assert found is not None and isinstance(found.wanted, Calls)
    return found.wanted


def test_nothing_asked_is_nothing_wanted() -> None:
    assert wanted(asked(tool("f")), HERMES, "", NO_STOPS) == (None, ())


def test_a_format_is_wanted_after_a_thought_that_the_prompt_opened() -> None:
    found, _ = wanted(asked(constraint=JSON), HERMES, "...<think>\n", NO_STOPS)
    assert found == Constraint(JsonObject(), JSON.field, "</think>")
    found, _ = wanted(asked(constraint=JSON), HERMES, "...assistant\n", NO_STOPS)
    assert found == JSON


def test_a_forced_call_is_of_any_tool_or_of_the_one_named() -> None:
    both = (tool("f"), tool("g"))
    any_of = calls_of(wanted(asked(*both, forced=ForcedCall()), HERMES, "", NO_STOPS)[0])
    assert any_of.required and not any_of.only_one and len(any_of.tags) == 2
    one = calls_of(wanted(asked(*both, forced=ForcedCall("g")), HERMES, "", NO_STOPS)[0])
    assert one.required and one.only_one
    assert [tag.begin for tag in one.tags] == ['<tool_call>\n{"name": "g", "arguments": ']
    assert one.tags[0].field == "tools[1].function.parameters"


def test_one_call_at_most_is_one_call() -> None:
    found, _ = wanted(asked(tool("f"), forced=ForcedCall(), one_call=True), HERMES, "", NO_STOPS)
    assert calls_of(found).only_one


def test_a_call_whose_end_ends_the_answer_is_the_last() -> None:
    forced = asked(tool("f"), forced=ForcedCall())
    found, _ = wanted(forced, HARMONY, "", frozenset({"<|call|>"}))
    assert calls_of(found).only_one and calls_of(found).tags[0].end == ""
    assert found is not None and found.after == "<|end|><|start|>assistant"


def test_strict_tools_are_constrained_where_they_are_called() -> None:
    for said in (asked(tool("f", strict=True)), asked(tool("f"), strict=frozenset({"f"}))):
        found, notes = wanted(said, HERMES, "", NO_STOPS)
        assert not calls_of(found).required and notes == ()


def test_beside_tools_a_format_is_one_of_two() -> None:
    found, _ = wanted(asked(tool("f"), constraint=JSON), HERMES, "", NO_STOPS)
    calls = calls_of(found)
    assert calls.otherwise == JsonObject() and not calls.required
    assert found is not None and found.field == JSON.field
    ebnf = translate(found).rules.ebnf
    assert "<tool_call>" in ebnf and ebnf.startswith("root ::= (")


def test_harmony_says_on_which_channel_a_format_comes() -> None:
    found, _ = wanted(asked(constraint=JSON), HARMONY, "", NO_STOPS)
    assert found is not None and found.after == "<|channel|>final<|message|>"
    found, _ = wanted(asked(tool("f"), constraint=JSON), HARMONY, "", NO_STOPS)
    assert calls_of(found).before_otherwise == "<|channel|>final<|message|>"


def test_strict_tools_that_cannot_be_constrained_are_said_to_be_so() -> None:
    found, notes = wanted(asked(tool("f", strict=True)), HARMONY, "", NO_STOPS)
    assert found is None and "harmony" in notes[0]


@pytest.mark.parametrize(
    ("said", "family", "field"),
    [
        (asked(forced=ForcedCall()), HERMES, "tool_choice"),
        (asked(tool("f"), forced=ForcedCall("g", "tool_choice.name")), HERMES, "tool_choice.name"),
        (asked(tool("f"), constraint=Constraint(Regex("a"), "guided_regex")), HERMES,
         "guided_regex"),
    ],
)  # fmt: skip
def test_what_goes_not_together_is_refused_by_name(said: Asked, family: Family, field: str) -> None:
    with pytest.raises(Refused) as caught:
        wanted(said, family, "", NO_STOPS)
    assert caught.value.field == field


def test_a_notation_that_no_grammar_describes_cannot_be_forced() -> None:
    assert HERMES.notation is not None
    unknown = replace(HERMES, notation=replace(HERMES.notation, name="unknown"))
    with pytest.raises(Refused) as caught:
        wanted(asked(tool("f"), forced=ForcedCall()), unknown, "", NO_STOPS)
    assert (caught.value.code, caught.value.field) == ("unsupported", "tool_choice")
