"""POST /v1/embeddings over a scripted model that embeds.  Oracle: the official SDK's types."""

from __future__ import annotations

import base64
import math
from array import array
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest
from openai.types import CreateEmbeddingResponse

from doubles import server
from doubles.carrier import Carrier, Reply, running
from doubles.embedder import BROKEN, DIMENSIONS, SIZES, ScriptedEmbedder, vector_of
from doubles.tokenizer import VOCAB_SIZE, ByteTokenizer
from mlxbun.application.service import Service
from mlxbun.domain.sampling import TokenId

pytestmark = pytest.mark.anyio

CHAT, EMBED = server.MODEL_ID, server.EMBEDDING_ID


class Beside:
    """A carrier to a chat model with one that embeds beside it."""

    def __init__(self, service: Service, embedder: ScriptedEmbedder) -> None:
        self.service, self.embedder = service, embedder
        self.carrier = Carrier(service)

    async def embed(self, text: Any, **fields: Any) -> Reply:
        return await self.carrier.post("/v1/embeddings", {"input": text, **fields})


@pytest.fixture
async def beside() -> AsyncIterator[Beside]:
    embedder = ScriptedEmbedder()
    async with running(server.service(embedder=embedder)) as service:
        await service.model()
        yield Beside(service, embedder)


@pytest.fixture
async def alone() -> AsyncIterator[Carrier]:
    """A carrier to a server whose model only embeds."""
    async with running(server.service(embedder=ScriptedEmbedder(), answers=False)) as service:
        await service.model()
        yield Carrier(service)


def ids_of(text: str) -> list[TokenId]:
    return ByteTokenizer().encode(text, add_special=True)


def whole(reply: Reply) -> CreateEmbeddingResponse:
    assert reply.status == 200, reply.body
    return CreateEmbeddingResponse.model_validate_json(reply.body, strict=True)


def refused(reply: Reply) -> tuple[int, str, str | None]:
    return reply.status, reply.error["code"], reply.error["param"]


@pytest.mark.parametrize(
    ("said", "read"),
    [
        ("a text", [ids_of("a text")]),
        (["a text"], [ids_of("a text")]),
        (["b", "a text", "c"], [ids_of("b"), ids_of("a text"), ids_of("c")]),
        ([5, 6, 8], [[5, 6, 8]]),
        ([[5], [6, 8], [5, 6, 8]], [[5], [6, 8], [5, 6, 8]]),
    ],
)
async def test_every_spelling_of_the_input_is_embedded_in_its_order(
    beside: Beside, said: Any, read: list[list[TokenId]]
) -> None:
    answer = whole(await beside.embed(said))
    assert [item.index for item in answer.data] == list(range(len(read)))
    assert [item.embedding for item in answer.data] == [vector_of(ids).tolist() for ids in read]
    assert (answer.object, answer.model) == ("list", EMBED)
    tokens = sum(map(len, read))
    assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (tokens, tokens)


async def test_base64_is_of_float32_with_the_lowest_byte_first(beside: Beside) -> None:
    reply = await beside.embed(["a", "b"], encoding_format="base64", user="somebody")
    said = [base64.b64decode(item["embedding"]) for item in reply.json["data"]]
    assert said == [vector_of(ids_of(text)).tobytes() for text in "ab"]  # on such a machine


async def test_fewer_dimensions_are_the_first_ones_at_length_1(beside: Beside) -> None:
    (item,) = whole(await beside.embed("a", dimensions=3)).data
    first = vector_of(ids_of("a"))[:3]
    length = math.sqrt(sum(x * x for x in first))
    assert item.embedding == pytest.approx([x / length for x in first], abs=1e-7)
    full = whole(await beside.embed("a", dimensions=DIMENSIONS)).data[0].embedding
    assert full == vector_of(ids_of("a")).tolist()


async def test_an_instruction_stands_before_each_text(beside: Beside) -> None:
    answer = whole(await beside.embed(["x", "y"], instruction="Find it"))
    read = [ids_of(f"Instruct: Find it\nQuery:{text}") for text in "xy"]
    assert [item.embedding for item in answer.data] == [vector_of(ids).tolist() for ids in read]


LONG = "x" * (SIZES.max_tokens + 1)


@pytest.mark.parametrize(
    ("said", "fields", "expected"),
    [
        ([], {}, (400, "invalid_value", "input")),
        ("", {}, (400, "invalid_value", "input")),
        (["a", ""], {}, (400, "invalid_value", "input[1]")),
        ([[1], []], {}, (400, "invalid_value", "input[1]")),
        (["a", 1], {}, (400, "invalid_value", "input")),
        (None, {}, (400, "invalid_value", "input")),
        ({"text": "a"}, {}, (400, "invalid_value", "input")),
        (["a"] * 2049, {}, (400, "invalid_value", "input")),
        ([VOCAB_SIZE], {}, (400, "invalid_value", "input")),
        ([[1], [-1]], {}, (400, "invalid_value", "input[1]")),
        (["a", LONG], {}, (400, "context_length_exceeded", "input[1]")),
        (LONG * 10_000, {}, (400, "context_length_exceeded", "input")),
        ([[1] * 101], {}, (400, "context_length_exceeded", "input")),
        ("a", {"dimensions": 0}, (400, "invalid_value", "dimensions")),
        ("a", {"dimensions": DIMENSIONS + 1}, (400, "invalid_value", "dimensions")),
        ("a", {"encoding_format": "int8"}, (400, "invalid_value", "encoding_format")),
        ("a", {"truncate_prompt_tokens": 5}, (400, "unsupported", "truncate_prompt_tokens")),
        ([1, 2], {"instruction": "Find it"}, (400, "unsupported", "instruction")),
        ("a", {"model": "gpt-5"}, (404, "model_not_found", "model")),
        ("a", {"model": CHAT}, (400, "unsupported", "model")),
    ],
)
async def test_what_cannot_be_embedded_is_refused_by_its_field(
    beside: Beside, said: Any, fields: dict[str, Any], expected: tuple[int, str, str]
) -> None:
    assert refused(await beside.embed(said, **fields)) == expected
    assert whole(await beside.embed("a")).data, "and the next one is served"


async def test_the_words_for_a_text_too_long_are_those_that_clients_look_for(
    beside: Beside,
) -> None:
    message = (await beside.embed(LONG)).error["message"]
    tokens = len(ids_of(LONG))
    assert f"{tokens} tokens > 100 maximum" in message
    assert "maximum context length is 100 tokens" in message


async def test_ids_of_another_tokenizer_are_refused_with_a_hint(beside: Beside) -> None:
    message = (await beside.embed([[100_000]])).error["message"]
    assert "check_embedding_ctx_length=False" in message


@pytest.mark.parametrize("name", [None, EMBED, EMBED.rsplit("/", 1)[-1], "the-embedder"])
async def test_the_model_that_embeds_has_the_names_that_it_was_given(
    beside: Beside, name: str | None
) -> None:
    assert whole(await beside.embed("a", model=name)).model == EMBED


async def test_a_chat_model_alone_refuses_and_says_what_to_do(carrier: Carrier) -> None:
    for fields in ({}, {"model": CHAT}):
        reply = await carrier.post("/v1/embeddings", {"input": "a", **fields})
        assert refused(reply) == (400, "unsupported", "model")
        assert "--embedding-model" in reply.error["message"]
    reply = await carrier.post("/v1/embeddings", {"input": "a", "model": "other"})
    assert refused(reply) == (404, "model_not_found", "model")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
        ("/v1/completions", {"prompt": "hi"}),
        ("/v1/responses", {"input": "hi"}),
    ],
)
async def test_a_model_that_only_embeds_writes_nothing(
    alone: Carrier, beside: Beside, path: str, body: Any
) -> None:
    for carrier, fields in (
        (alone, {}),
        (alone, {"model": EMBED}),
        (beside.carrier, {"model": EMBED}),
    ):
        reply = await carrier.post(path, body | fields)
        assert refused(reply) == (400, "unsupported", "model")
        assert EMBED in reply.error["message"] and "/v1/embeddings" in reply.error["message"]
    assert whole(await alone.post("/v1/embeddings", {"input": "a"})).model == EMBED


async def test_messages_are_refused_in_their_own_envelope(alone: Carrier) -> None:
    body = {"max_tokens": 5, "messages": [{"role": "user", "content": "hi"}], "model": "claude-x"}
    reply = await alone.post("/v1/messages", body)
    assert (reply.status, reply.error["type"]) == (400, "invalid_request_error")
    assert EMBED in reply.error["message"]


async def test_the_list_has_both_models_with_what_each_can_do(
    alone: Carrier, beside: Beside
) -> None:
    said = (await beside.carrier.get("/v1/models")).json
    assert [model["id"] for model in said["data"]] == [CHAT, EMBED]
    assert (said["first_id"], said["last_id"]) == (CHAT, EMBED)
    can = [model["capabilities"] for model in said["data"]]
    assert [c["embeddings"] for c in can] == [False, True]
    for name in ("chat_completions", "responses", "anthropic_messages", "tools"):
        assert [c[name] for c in can] == [True, False]
    assert said["data"][1]["meta"]["n_embd"] == DIMENSIONS
    assert "n_embd" not in said["data"][0]["meta"]
    said = (await alone.get("/v1/models")).json
    assert [model["id"] for model in said["data"]] == [EMBED]


async def test_either_model_is_found_by_its_id(beside: Beside) -> None:
    for name in (CHAT, EMBED):
        assert (await beside.carrier.get(f"/v1/models/{name}")).json["id"] == name
    assert (await beside.carrier.get("/v1/models/other")).status == 404


async def test_a_failure_is_of_its_request_alone(beside: Beside) -> None:
    assert refused(await beside.embed([[1], [*BROKEN]])) == (500, "engine_failed", None)
    assert whole(await beside.embed([[1]])).data


async def test_requests_beyond_the_queue_are_told_to_come_again(beside: Beside) -> None:
    beside.embedder.hold.clear()
    replies: list[Reply] = []

    async def embed() -> None:
        replies.append(await beside.embed("a"))

    async with anyio.create_task_group() as tasks:
        for _ in range(server.MAX_EMBEDDING):
            tasks.start_soon(embed)
        await anyio.wait_all_tasks_blocked()
        reply = await beside.embed("a")
        assert refused(reply) == (429, "queue_full", None)
        assert reply.headers["retry-after"] == "1"
        beside.embedder.hold.set()
    assert [reply.status for reply in replies] == [200] * server.MAX_EMBEDDING


async def test_stats_count_texts_and_tokens(beside: Beside) -> None:
    await beside.embed(["a", "bc"])
    counts = (await beside.carrier.get("/stats")).json["embeddings"]
    assert counts["texts"] == 2
    assert counts["tokens"] == len(ids_of("a")) + len(ids_of("bc"))
    assert counts["seconds"] >= 0


async def test_many_vectors_leave_in_one_answer(beside: Beside) -> None:
    texts = [f"text {i}" for i in range(500)]
    answer = whole(await beside.embed(texts))
    assert [array("f", item.embedding) for item in answer.data] == [
        vector_of(ids_of(text)) for text in texts
    ]
