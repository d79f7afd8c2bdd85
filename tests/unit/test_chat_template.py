from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from mlxbun.adapters.tokenizer.chat_template import ChatTemplate, transcript
from mlxbun.domain.refusal import Refused

LISTING = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}>"
# Refuses as strict templates do: one system turn, first; then user and assistant in turns.
STRICT = """\
{%- if messages[0].role == 'system' %}
    {{- '<<' ~ messages[0].content ~ '>>' }}{% set rest = messages[1:] %}
{%- else %}{% set rest = messages %}{% endif %}
{%- for m in rest %}
    {%- if m.role != ('user' if loop.index0 % 2 == 0 else 'assistant') %}
        {{- raise_exception('roles must alternate, but turn ' ~ loop.index ~ ' is ' ~ m.role) }}
    {%- endif %}
    {{- m.role[0] ~ ':' ~ m.content ~ ';' }}
{%- endfor %}"""
NO_SYSTEM = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
)


def turn(role: str, content: str, **more: object) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def render(source: str, *turns: dict[str, Any], **arguments: object) -> str:
    return ChatTemplate({"default": source}, {"bos_token": "<s>"}).render(turns, (), arguments)


def test_a_template_sees_messages_variables_and_arguments() -> None:
    source = "{{ bos_token }}{{ messages[0].content }} {{ depth }} {{ eos_token }}{{ tools }}"
    assert render(source, turn("user", "hi"), depth=3) == "<s>hi 3 None"


def test_arguments_cannot_replace_the_messages() -> None:
    text = render(LISTING, turn("user", "hi"), messages=[], tools=[1], add_generation_prompt=False)
    assert text == "[user] hi\n>"


def test_json_is_written_as_it_is() -> None:
    source = "{{ x | tojson }} {{ x | tojson(indent=1) }} {{ x | tojson(separators=(',', ':')) }}"
    text = render(source, turn("user", ""), x={"é<b>&'": 1})
    assert text == '{"é<b>&\'": 1} {\n "é<b>&\'": 1\n} {"é<b>&\'":1}'


def test_json_is_read_where_a_template_asks_for_it() -> None:
    source = "{{ ('[1, 2]' | fromjson)[1] }}{{ (x | fromjson).a }}"
    assert render(source, turn("user", ""), x={"a": 5}) == "25"
    with pytest.raises(Refused, match="Expecting value"):
        render("{{ 'x' | fromjson }}", turn("user", ""))


def test_loops_may_break_and_generation_marks_show_their_body() -> None:
    source = "{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}"
    assert render(source, turn("user", "")) == "01"
    marked = "a{% generation %}b{% set x = 1 %}{% endgeneration %}c{{ x }}"
    assert render(marked, turn("user", "")) == "abc"


def test_a_template_knows_the_date() -> None:
    today = datetime.now(UTC).astimezone().strftime("%Y")
    assert render("{{ strftime_now('%Y') }}", turn("user", "")) == today


def test_reasoning_has_the_name_that_gpt_oss_reads() -> None:
    text = render("{{ messages[0].thinking }}", turn("assistant", "", reasoning_content="hm"))
    assert text == "hm"


def test_conversations_with_tools_get_the_template_for_tools() -> None:
    template = ChatTemplate({"default": "plain", "tool_use": "{{ tools | tojson }}"}, {})
    assert template.render([turn("user", "")], [], {}) == "plain"
    assert template.render([turn("user", "")], [{"name": "f"}], {}) == '[{"name": "f"}]'
    alone = ChatTemplate({"rag": "odd"}, {})
    assert alone.render([turn("user", "")], [{"name": "f"}], {}) == "odd"


@pytest.mark.parametrize(
    "roles, text",
    [
        ("system user", "<<0>>u:1;"),
        ("system system user", "<<0\n\n1>>u:2;"),
        ("user system", "u:0\n\n1;"),
        ("system user user", "<<0>>u:1\n\n2;"),
        ("user assistant system", "u:0;a:1;u:2;"),
        ("assistant user", "u:;a:0;u:1;"),
        ("system assistant user", "<<0>>u:;a:1;u:2;"),
    ],
)
def test_a_strict_template_is_asked_again_with_merged_turns(roles: str, text: str) -> None:
    turns = [turn(role, str(i)) for i, role in enumerate(roles.split())]
    assert render(STRICT, *turns) == text


def test_other_templates_keep_the_exact_history() -> None:
    turns = [turn("user", "a"), turn("user", "b"), turn("system", "c")]
    assert render(LISTING, *turns) == "[user] a\n[user] b\n[system] c\n>"


def test_a_template_without_a_system_role_gets_its_text_in_the_question() -> None:
    text = render(NO_SYSTEM + LISTING, turn("system", "Be brief."), turn("user", "hi"))
    assert text == "[user] Be brief.\n\nhi\n>"


def test_a_template_that_takes_no_reasoning_gets_none() -> None:
    source = "{% if messages[1].thinking %}{{ raise_exception('no') }}{% endif %}" + LISTING
    answer = turn("assistant", "b", reasoning_content="hm")
    assert render(source, turn("user", "a"), answer) == "[user] a\n[assistant] b\n>"


def test_a_template_that_refuses_every_form_is_quoted() -> None:
    source = "{{ raise_exception('turn 1 is ' ~ messages[0].role) }}"
    with pytest.raises(Refused, match="refuses the messages: turn 1 is assistant") as refused:
        render(source, turn("assistant", "hi"))
    assert (refused.value.code, refused.value.field) == ("invalid_value", "messages")


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0].content + 1 }}",
        "{{ 1 // 0 }}",
        "{{ missing.field }}",
        "{{ messages[0].content.nothing() }}",
        "{{ range(10 ** 9) | list }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{{ ''.__class__.__mro__ }}{{ raise_exception('') }}",
        "{{ messages.append(1) }}",
    ],
)
def test_a_template_that_breaks_is_a_refusal(source: str) -> None:
    with pytest.raises(Refused) as refused:
        render(source, turn("user", "hi"))
    assert (refused.value.code, refused.value.field) == ("invalid_value", "messages")


def test_a_template_that_cannot_be_read_refuses_chat_alone() -> None:
    template = ChatTemplate({"default": "{% if %}"}, {})
    with pytest.raises(Refused, match="cannot be read") as refused:
        template.render([turn("user", "hi")], (), {})
    assert (refused.value.code, refused.value.field) == ("unsupported", "messages")


def test_arguments_too_deep_for_json_are_refused_by_name() -> None:
    nested: Any = []
    for _ in range(100):
        nested = [nested]
    with pytest.raises(Refused) as refused:
        render(LISTING, turn("user", "hi"), x=nested)
    assert refused.value.field == "chat_template_kwargs"


def test_a_model_without_a_template_gets_a_transcript() -> None:
    turns = [turn("system", "Be brief."), turn("user", "hi")]
    assert transcript(turns, ()) == "System: Be brief.\n\nUser: hi\n\nAssistant:"
    told = transcript(turns, [{"name": "f"}])
    assert told.startswith("System: Be brief.\n\nYou can call functions.")
    assert '\n{"name": "f"}\n' in told and told.endswith("\n\nUser: hi\n\nAssistant:")
    called = turn("assistant", "", tool_calls=[{"function": {"name": "f", "arguments": {"n": 1}}}])
    answered = transcript([*turns, called, turn("tool", "5")], ())
    assert "You can call" not in answered and '"arguments": {"n": 1}' in answered
    assert "User: <tool_response>\n5\n</tool_response>" in answered


CALLS = [
    turn("user", "hi"),
    turn("assistant", "", tool_calls=[{"type": "function", "id": "call_1", "function": {
        "name": "look", "arguments": {"city": "Röm", "n": [1]}}}]),
    turn("tool", "5 °C", tool_call_id="call_1"),
]  # fmt: skip
LOOK = {"type": "function", "function": {"name": "look", "parameters": {}}}


def test_documents_and_other_arguments_reach_the_template() -> None:
    source = "{{ documents | tojson }}{{ preserve_thinking }}{{ enable_thinking }}"
    assert render(source, turn("user", "")) == "null"
    arguments: Any = {"documents": [{"text": "a"}], "preserve_thinking": True}
    assert render(source, turn("user", ""), **arguments) == '[{"text": "a"}]True'


@pytest.mark.parametrize(
    "written",
    ["{{ c.arguments }}", "{{ 'x' + c.arguments }}", "{{ c.arguments + '' }}",
     "{{ c.arguments ~ '' }}", "{{ c.arguments | tojson }}", "{{ c.arguments | string }}"],
)  # fmt: skip
def test_arguments_are_json_wherever_a_template_takes_them_for_text(written: str) -> None:
    source = "{% for m in messages %}{% for t in m.tool_calls or [] %}{% set c = t.function %}"
    text = render(source + written + "{% endfor %}{% endfor %}{# tools #}", *CALLS)
    assert text.removeprefix("x") == '{"city": "Röm", "n": [1]}'


def test_arguments_stay_an_object_for_templates_that_take_them_apart() -> None:
    source = (
        "{# tools #}{% set a = messages[1].tool_calls[0].function.arguments %}"
        "{{ a is mapping }}{{ a is string }}{% for k, v in a | items %}{{ k }}={{ v }};{% endfor %}"
    )
    assert render(source, *CALLS) == "TrueFalsecity=Röm;n=[1];"


NINE = (
    "{# tools #}{% for m in messages %}{% for c in m.tool_calls or [] %}{% if c.id | length != 9 %}"
    "{{ raise_exception('nine letters') }}{% endif %}{{ c.id }}{% endfor %}"
    "{% if m.role == 'tool' %}{% if m.tool_call_id | length != 9 %}"
    "{{ raise_exception('nine letters') }}{% endif %}={{ m.tool_call_id }}{% endif %}{% endfor %}"
)


def test_ids_that_a_template_finds_too_long_are_made_short() -> None:
    ids = render(NINE, *CALLS).split("=")
    assert ids[0] == ids[1] and len(ids[0]) == 9 and ids[0].isalnum()
    assert render(NINE, *CALLS) == "=".join(ids)  # the same every time


def test_ids_that_are_missing_are_made() -> None:
    bare = [dict(t) for t in CALLS]
    bare[1] = turn("assistant", "", tool_calls=[{k: v for k, v in c.items() if k != "id"} for c in
                                                CALLS[1]["tool_calls"]])  # fmt: skip
    del bare[2]["tool_call_id"]
    ids = render(NINE, *bare).split("=")
    assert ids[0] == ids[1] and len(ids[0]) == 9


def test_a_template_that_knows_no_tools_is_told_of_them_in_text() -> None:
    template = ChatTemplate({"default": LISTING}, {})
    text = template.render([turn("system", "Be brief."), *CALLS], [LOOK], {})
    assert text.startswith("[system] Be brief.\n\nYou can call functions.")
    assert '{"name": "look", "parameters": {}}\n' in text
    call = '<tool_call>\n{"name": "look", "arguments": {"city": "Röm", "n": [1]}}\n</tool_call>'
    assert f"[assistant] {call}\n[user] <tool_response>\n5 °C\n</tool_response>\n>" in text


def test_a_history_of_calls_is_not_lost_where_tools_are_offered_no_more() -> None:
    text = ChatTemplate({"default": LISTING}, {}).render(CALLS, [], {})
    assert "You can call" not in text and "<tool_call>" in text and "5 °C" in text


@pytest.mark.parametrize(
    ("source", "efforts"),
    [
        ("", ["none", "minimal", "low", "medium", "high", "xhigh"]),
        ("'low' 'medium' 'xhigh'", ["low", "low", "low", "medium", "xhigh", "xhigh"]),
        ("<|channel|> 'medium'", ["low", "low", "low", "medium", "high", "high"]),
        ("'max'", ["none", "minimal", "low", "medium", "high", "xhigh"]),
    ],
)
def test_an_effort_becomes_the_nearest_word_that_the_template_knows(
    source: str, efforts: list[str]
) -> None:
    source = "{{ reasoning_effort }}{# " + source + " #}"
    words = ["none", "minimal", "low", "medium", "high", "xhigh"]
    assert [render(source, turn("user", ""), reasoning_effort=w) for w in words] == efforts
    assert render(source, turn("user", ""), reasoning_effort="ultra") == "ultra"


TWO = [
    turn("user", "hi"),
    turn("assistant", "so", tool_calls=[{"id": i, "function": {"name": i, "arguments": {}}}
                                        for i in "ab"]),
    turn("tool", "for b", tool_call_id="b"),
    turn("tool", "for a", tool_call_id="a"),
]  # fmt: skip


def test_a_template_that_shows_one_call_a_turn_gets_one() -> None:
    source = (
        "{# tools #}{% for m in messages %}{% if m.tool_calls and m.tool_calls | length > 1 %}"
        "{{ raise_exception('one call') }}{% endif %}{{ m.content }}"
        "{% if m.tool_calls %}({{ m.tool_calls[0].function.name }}){% endif %};{% endfor %}"
    )
    assert render(source, *TWO) == "hi;so(a);for a;(b);for b;"


def test_a_template_that_shows_no_calls_gets_them_as_text() -> None:
    source = "{% for m in messages %}{{ m.content }};{% endfor %}{{ tools | length }}"
    text = ChatTemplate({"default": source}, {}).render(CALLS, [LOOK], {})
    assert '"arguments": {"city": "Röm", "n": [1]}' in text and text.endswith(";1")


def test_results_have_the_name_of_the_tool_that_gave_them() -> None:
    source = "{# tools tool_calls #}{% for m in messages %}{{ m.name }}{% endfor %}"
    assert render(source, *TWO) == "ba"
    unnamed = [*TWO[:2], turn("tool", "1"), turn("tool", "2"), turn("tool", "3", name="own")]
    assert render(source, *unnamed) == "abown"


def test_kimi_is_told_the_names_of_calls_in_their_ids() -> None:
    source = (
        "{# tools <|tool_calls_section_begin|> #}{% for m in messages %}{{ m.tool_call_id }}"
        "{% for c in m.tool_calls or [] %}{{ c.id }};{% endfor %}{% endfor %}"
    )
    again = [turn("user", "more"), *CALLS[1:]]
    ids = "functions.a:0;functions.b:1;functions.b:1functions.a:0"
    assert render(source, *TWO, *again) == ids + "functions.look:2;functions.look:2"
    assert render(source, *TWO[:2]) == "functions.a:0;functions.b:1;"  # a beginning stays one


def test_gemma_gets_results_within_the_turn_that_called() -> None:
    source = (
        "{# tools #}{% for m in messages %}{{ m.role }}:{{ m.content }}"
        "{% for c in m.tool_calls or [] %}<{{ c.function.name }}{% endfor %}"
        "{% for r in m.tool_responses or [] %}>{{ r.name }}={{ r.response }}{% endfor %};"
        "{% endfor %}"
    )
    assert render(source, *TWO) == "user:hi;assistant:so;assistant:<a<b>b=for b>a=for a;"
    knows = source + "{% if messages[0].role == 'tool' %}{% endif %}"
    assert render(knows, *TWO) == "user:hi;assistant:so<a<b;tool:for b;tool:for a;"


def test_arguments_have_the_names_that_a_template_reads() -> None:
    source = "{{ thinking }} {{ thinking_effort }}{# 'low' 'high' 'max' #}"
    assert render(source, turn("user", "")) == " "
    assert render(source, turn("user", ""), enable_thinking=False) == "False "
    assert render(source, turn("user", ""), reasoning_effort="xhigh") == " high"
    assert render(source, turn("user", ""), enable_thinking=True, thinking=False) == "False "


SHOWN = "[{{ m.role }}]{{ m.content }}"
CALLED = "{% for c in m.tool_calls %}<{{ c.function.name }}>{% endfor %}"
EITHER = "{# tools #}{% for m in messages %}{% if m.tool_calls %}" + CALLED + "{% else %}"


def test_what_is_said_beside_calls_comes_through_where_a_template_shows_one_of_them() -> None:
    source = EITHER + SHOWN + "{% endif %}{% endfor %}"
    assert render(source, *TWO) == "[user]hi[assistant]so<a><b>[tool]for b[tool]for a"
    both = "{# tools #}{% for m in messages %}" + SHOWN + CALLED + "{% endfor %}"
    assert render(both, *TWO) == "[user]hi[assistant]so<a><b>[tool]for b[tool]for a"


# As Mistral's: answers that call nothing, and questions, alternate; results are not counted.
ALTERNATING = """\
{#- tools #}{% set ns = namespace(at=0) %}
{%- for m in messages if m.role != 'tool' and not m.tool_calls %}
    {%- if (m.role == 'user') != (ns.at % 2 == 0) %}{{ raise_exception('alternate') }}{% endif %}
    {%- set ns.at = ns.at + 1 %}
{%- endfor %}""" + EITHER + SHOWN + "{% endif %}{% endfor %}"  # fmt: skip


@pytest.mark.parametrize(
    ("turns", "text"),
    [
        (TWO, "[user]hi[assistant]so<a><b>[tool]for b[tool]for a"),
        (
            [*TWO, turn("assistant", "done")],
            "[user]hi[assistant]so[user]<a><b>[tool]for b[tool]for a[assistant]done",
        ),
        (
            [*CALLS, turn("user", "and?")],
            "[user]hi<look>[tool]5 °C\n\nand?",
        ),
        ([turn("assistant", "hi"), turn("user", "you")], "[user][assistant]hi[user]you"),
    ],
)
def test_a_strict_template_refuses_no_session_of_an_agent(
    turns: list[dict[str, Any]], text: str
) -> None:
    assert render(ALTERNATING, *turns) == text


def test_a_system_turn_that_a_template_would_drop_is_told_by_the_user() -> None:
    first = "{% if messages[0].role == 'system' %}({{ messages[0].content }}){% endif %}"
    rest = "{% for m in messages if m.role != 'system' %}" + SHOWN + "{% endfor %}"
    turns = [turn("system", "a"), turn("user", "b"), turn("system", "c"), turn("user", "d")]
    assert render(first + rest, *turns) == "(a)[user]b[user]c[user]d"


def test_the_system_text_stays_where_a_result_is_the_last_word() -> None:
    """Mistral Nemo's shows it with the last question, if that is the last turn."""
    source = (
        "{# tools tool_calls #}{% for m in messages if m.role != 'system' %}{% if loop.last and "
        "m.role == 'user' and messages[0].role == 'system' %}({{ messages[0].content }})"
        "{% endif %}" + SHOWN + "{% endfor %}"
    )
    system = turn("system", "Be brief.")
    assert render(source, system, turn("user", "hi")) == "(Be brief.)[user]hi"
    assert "Be brief." in render(source, system, *CALLS)


def test_a_template_for_tools_serves_without_any() -> None:
    template = ChatTemplate({"tool_use": "{% for t in tools %}{{ t }}{% endfor %}x"}, {})
    assert template.render([turn("user", "hi")], [], {}) == "x"


def test_the_template_that_is_chosen_is_the_one_that_must_know_calls() -> None:
    knows = "{{ tools | tojson }}{% for m in messages %}{{ m.tool_calls }}{% endfor %}"
    template = ChatTemplate({"default": LISTING, "tool_use": knows}, {})
    assert '<tool_call>\n{"name": "look"' in template.render(CALLS, [], {})
    assert "<tool_call>" not in template.render(CALLS, [LOOK], {})


def test_a_template_that_trips_over_a_schema_gets_it_in_plainer_words() -> None:
    source = (
        "{% for t in tools %}{% set f = t.function %}{{ f.name + f.description }}("
        "{% for k, p in f.parameters.properties.items() %}{{ k + ':' + p.type + p.description }}"
        "{% if p.type == 'object' %}{{ p.properties.keys() | list }}{% endif %}"
        "{% if p.type == 'array' %}{{ p['items'].type }}{% endif %},{% endfor %}){% endfor %}"
    )
    properties = {
        "a": {"anyOf": [{"type": "null"}, {"type": "integer"}]},
        "b": {"type": ["null", "boolean"], "description": "!"},
        "c": {"properties": {"d": True}},
        "e": {"type": "array"},
        "f": {},
        "g": {"$ref": "#/$defs/x"},
        "h": {"anyOf": None},
    }
    tools = [
        LOOK,
        {"type": "function", "function": {"name": "no"}},
        {"type": "function", "function": {"name": "f", "parameters": {"properties": properties}}},
    ]
    text = ChatTemplate({"default": source}, {}).render([turn("user", "")], tools, {})
    said = "a:integer,b:boolean!,c:object['d'],e:arraystring,f:string,g:object[],h:string,"
    assert text == f"look()no()f({said})"
