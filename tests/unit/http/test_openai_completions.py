from __future__ import annotations

from typing import Any

import pytest
from openai.types import Completion

from doubles import server
from doubles.carrier import Carrier, Reply, running
from doubles.compute import GREETING
from doubles.tokenizer import BOS, EOS, ByteTokenizer
from mlxbun.application.service import Model

pytestmark = pytest.mark.anyio


def whole(reply: Reply) -> Completion:
    assert reply.status == 200, reply.body
    return Completion.model_validate_json(reply.body, strict=True)


def texts(reply: Reply) -> list[str]:
    """Return the choices' texts, of a whole answer or of a stream."""
    if not reply.records:
        return [choice.text for choice in whole(reply).choices]
    said: dict[int, str] = {}
    for chunk in reply.chunks:
        for choice in Completion.construct(**chunk).choices:  # as the SDK does with a chunk
            said[choice.index] = said.get(choice.index, "") + choice.text
    return [said[i] for i in sorted(said)]


async def test_a_text_is_continued(carrier: Carrier) -> None:
    completion = whole(await carrier.complete("Once"))
    assert completion.choices[0].text == GREETING
    assert completion.choices[0].finish_reason == "stop"
    assert completion.usage is not None
    assert completion.usage.prompt_tokens == len("Once") + 1  # and BOS


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("[say:a]", ["a"]),
        (["[say:a]", "[say:b]"], ["a", "b"]),
        (list(b"[say:a]"), ["a"]),
        ([list(b"[say:a]"), [BOS, *b"[say:b]"]], ["a", "b"]),
        ("", [GREETING]),
        (["", "[say:b]"], [GREETING, "b"]),
    ],
)
async def test_every_spelling_of_a_prompt_is_continued(
    carrier: Carrier, prompt: Any, expected: list[str], stream: bool
) -> None:
    assert texts(await carrier.complete(prompt, stream=stream)) == expected


async def test_choices_are_the_prompts_in_order_n_of_each(carrier: Carrier) -> None:
    alone = [
        texts(await carrier.complete(p, temperature=1, seed=3 + i))[0] for p in "ab" for i in (0, 1)
    ]
    completion = whole(await carrier.complete(["a", "b"], temperature=1, seed=3, n=2))
    assert [choice.index for choice in completion.choices] == [0, 1, 2, 3]
    assert [choice.text for choice in completion.choices] == alone
    assert completion.usage is not None and completion.usage.prompt_tokens == 4


@pytest.mark.parametrize("stream", [False, True])
async def test_an_echo_comes_first(carrier: Carrier, stream: bool) -> None:
    reply = await carrier.complete(["Où ", "là "], echo=True, stream=stream)
    assert texts(reply) == ["Où " + GREETING, "là " + GREETING]
    reply = await carrier.complete(list("Où ".encode()), echo=True, stream=stream)
    assert texts(reply) == ["Où " + GREETING]


async def test_a_suffix_asks_for_what_stands_between(carrier: Carrier) -> None:
    completion = whole(await carrier.complete("def f():", suffix="[say:    return 1]"))
    assert completion.choices[0].text == "    return 1"


async def test_a_model_that_cannot_fill_in_refuses_the_suffix() -> None:
    service = server.service()
    async with running(service):
        await service.model()
        service.opened(Model(server.card(), ByteTokenizer(fills_in_middle=False)))
        reply = await Carrier(service).complete("def f():", suffix="return")
    assert (reply.status, reply.error["param"]) == (400, "suffix")


@pytest.mark.parametrize("stream", [False, True])
async def test_logprobs_are_four_lists_of_one_length(carrier: Carrier, stream: bool) -> None:
    reply = await carrier.complete("[say:añb]", logprobs=2, stream=stream)
    chunks = reply.chunks if stream else [reply.json]
    said = [c["choices"][0]["logprobs"] for c in chunks if c["choices"][0]["logprobs"]]
    tokens = [t for part in said for t in part["tokens"]]
    assert tokens == ["a", "bytes:\\xc3", "bytes:\\xb1", "b"]
    assert [o for part in said for o in part["text_offset"]] == [0, 1, 1, 2]
    assert [p for part in said for p in part["token_logprobs"]] == [-0.5] * 4
    assert [len(t) for part in said for t in part["top_logprobs"]] == [2] * 4


async def test_a_streams_usage_is_its_last_chunk(carrier: Carrier) -> None:
    reply = await carrier.complete(stream=True, stream_options={"include_usage": True})
    assert reply.chunks[-1]["choices"] == []
    plain = whole(await carrier.complete()).usage
    assert plain is not None
    assert reply.chunks[-1]["usage"]["total_tokens"] == plain.total_tokens
    assert not any("usage" in c for c in (await carrier.complete(stream=True)).chunks)


async def test_ignoring_the_end_token_runs_to_the_limit(carrier: Carrier) -> None:
    completion = whole(await carrier.complete("[say:ab]", ignore_eos=True, max_tokens=20))
    assert completion.choices[0].finish_reason == "length"
    assert completion.usage is not None and completion.usage.completion_tokens == 20


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt[0]"),
        ({"prompt": ["a", 1]}, "prompt"),
        ({"prompt": [1, 999_999]}, "prompt[0][1]"),
        ({"prompt": [[1], [-1]]}, "prompt[1][0]"),
        ({"prompt": ["x"] * 65}, "n"),
        ({"prompt": ["x"] * 22, "n": 3}, "n"),
        ({"best_of": 2}, "best_of"),
        ({"best_of": 3, "n": 2}, "best_of"),
        ({"best_of": 0}, "best_of"),
        ({"echo": True, "logprobs": 1}, "echo"),
        ({"echo": True, "suffix": "x"}, "echo"),
        ({"prompt": [1, 2], "suffix": "x"}, "suffix"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"logprobs": 21}, "logprobs"),
    ],
)
async def test_what_cannot_be_served_is_refused_by_name(
    carrier: Carrier, fields: dict[str, Any], param: str
) -> None:
    reply = await carrier.complete(**{"prompt": "x", **fields})
    assert (reply.status, reply.error["param"]) == (400, param), reply.body


@pytest.mark.parametrize(("best_of", "n"), [(1, None), (1, 1), (2, 2), (1, 2), (None, 2)])
async def test_the_best_n_of_n_are_all_of_them(
    carrier: Carrier, best_of: int | None, n: int | None
) -> None:
    expected = texts(await carrier.complete(n=n))
    assert texts(await carrier.complete(best_of=best_of, n=n)) == expected


async def test_a_prompt_far_beyond_the_window_is_refused_as_what_it_is(carrier: Carrier) -> None:
    reply = await carrier.complete("x" * 600_000)
    assert (reply.status, reply.error["param"]) == (400, "prompt")
    assert reply.error["code"] == "context_length_exceeded"


async def test_the_end_token_begins_an_empty_prompt_where_nothing_else_does() -> None:
    service = server.service()
    async with running(service):
        await service.model()
        service.opened(Model(server.card(), ByteTokenizer(adds_bos=False)))
        completion = whole(await Carrier(service).complete(""))
        assert completion.usage is not None and completion.usage.prompt_tokens == 1
        service.opened(Model(server.card(stop_ids=frozenset()), ByteTokenizer(adds_bos=False)))
        assert (await Carrier(service).complete("")).status == 400
    assert EOS in server.card().stop_ids
