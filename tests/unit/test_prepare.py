from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from doubles import server
from doubles.carrier import running
from doubles.tokenizer import BOS, EOS, ByteTokenizer
from mlxbun.application import encoding
from mlxbun.application.chat_prompt import Chat, template_arguments
from mlxbun.application.prepare import Preparer
from mlxbun.application.row_specs import Ask, Prepared
from mlxbun.application.service import Model, Service
from mlxbun.domain.refusal import Refused
from mlxbun.domain.sampling import TokenId
from mlxbun.domain.sampling_policy import SamplingRequest

pytestmark = pytest.mark.anyio
ASK = Ask(id="r", fresh_seed=5)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    async with running(server.service(context_window=64)) as service:
        await service.model()
        yield service


def said(content: str) -> Chat:
    return Chat([{"role": "user", "content": content}])


async def chat(service: Service, content: str = "hi", **fields: Any) -> Prepared:
    preparer = Preparer(service)
    ask = Ask(id="r", fresh_seed=5, **fields)
    return await preparer.chat(await preparer.model(), said(content), ask)


async def test_rows_share_the_prompt_and_have_seeds_in_a_row(service: Service) -> None:
    prepared = await chat(service, n=3, sampling=SamplingRequest(seed=11))
    assert [spec.params.seed for spec in prepared.specs] == [11, 12, 13]
    assert len({spec.prompt_ids for spec in prepared.specs}) == 1
    assert len({spec.request_id for spec in prepared.specs}) == 3
    assert prepared.num_prompt_tokens == len(prepared.specs[0].prompt_ids)


async def test_seeds_wrap_within_64_bits(service: Service) -> None:
    prepared = await chat(service, n=2, sampling=SamplingRequest(seed=2**64 - 1))
    assert [spec.params.seed for spec in prepared.specs] == [2**64 - 1, 0]


async def test_without_a_seed_the_fresh_one_serves(service: Service) -> None:
    assert (await chat(service)).specs[0].params.seed == 5


async def test_a_request_wins_over_the_server_and_that_over_the_model(service: Service) -> None:
    assert (await chat(service)).specs[0].params.top_k == 20  # the model's
    service.server_defaults = SamplingRequest(top_k=30)
    assert (await chat(service)).specs[0].params.top_k == 30
    assert (await chat(service, sampling=SamplingRequest(top_k=40))).specs[0].params.top_k == 40


@pytest.mark.parametrize(
    ("asked", "default", "expected"), [(5, None, 5), (None, 7, 7), (5, 7, 5), (9999, 7, None)]
)
async def test_a_limit_is_capped_to_the_room_in_the_window(
    service: Service, asked: int | None, default: int | None, expected: int | None
) -> None:
    service.default_max_tokens = default
    prepared = await chat(service, max_tokens=asked)
    assert prepared.specs[0].max_tokens == (expected or 64 - prepared.num_prompt_tokens)


async def test_a_prompt_that_leaves_one_token_of_room_is_taken(service: Service) -> None:
    around = (await chat(service, "")).num_prompt_tokens
    assert (await chat(service, "x" * (63 - around))).specs[0].max_tokens == 1
    with pytest.raises(Refused) as caught:
        await chat(service, "x" * (64 - around))
    assert caught.value.code == "context_length_exceeded"
    assert "maximum context length is 64 tokens" in caught.value.message
    # As Claude Code reads it, to know how much to leave out.
    assert "prompt is too long: 64 tokens > 63 maximum" in caught.value.message


async def test_a_count_is_what_a_request_would_have_and_one_too_long_is_counted(
    service: Service,
) -> None:
    preparer = Preparer(service)
    model = await preparer.model()
    assert await preparer.count(model, said("hello")) == (
        (await chat(service, "hello")).num_prompt_tokens
    )
    around = await preparer.count(model, said(""))
    assert await preparer.count(model, said("x" * 640)) == around + 640
    with pytest.raises(Refused) as counting:
        await preparer.count(model, said("[template refuses]"))
    with pytest.raises(Refused) as asking:
        await chat(service, "[template refuses]")
    assert repr(counting.value) == repr(asking.value)
    with pytest.raises(Refused) as far:  # what has no end costs nobody its size
        await preparer.count(model, said("x" * (3 * encoding.SLICE_CHARS)))
    assert far.value.code == "context_length_exceeded"


class CountingTokenizer(ByteTokenizer):
    def __init__(self) -> None:
        super().__init__()
        self.num_chars = 0
        self.threads: set[str] = set()

    def encode(self, text: str, *, add_special: bool) -> list[TokenId]:
        self.num_chars += len(text)
        self.threads.add(threading.current_thread().name)
        return super().encode(text, add_special=add_special)


async def test_a_text_far_beyond_the_window_is_refused_before_it_costs_its_size(
    service: Service,
) -> None:
    tokenizer = CountingTokenizer()
    model = Model(server.card(64), tokenizer)
    with pytest.raises(Refused) as caught:
        await Preparer(service).chat(model, said("x" * 4_000_000), ASK)
    assert "maximum context length is 64 tokens" in caught.value.message
    assert tokenizer.num_chars <= encoding.SLICE_CHARS


async def test_a_long_text_is_encoded_off_the_event_loop(service: Service) -> None:
    tokenizer = CountingTokenizer()
    model = Model(server.card(1 << 20), tokenizer)
    here = threading.current_thread().name
    await Preparer(service).chat(model, said("x"), Ask("r", 0, num_bytes=100))
    assert tokenizer.threads == {here}
    await Preparer(service).chat(model, said("x" * 9000), Ask("r", 0, num_bytes=9000))
    assert len(tokenizer.threads - {here}) == 1


async def test_nesting_that_a_template_cannot_write_is_refused(service: Service) -> None:
    deep: Any = "x"
    for _ in range(900):
        deep = [deep]
    message = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": deep}}]}
    with pytest.raises(Refused) as caught:
        await Preparer(service).chat(await service.model(), Chat([message]), ASK)
    assert caught.value.code == "invalid_value"


async def test_the_end_token_ends_a_row_unless_it_is_ignored(service: Service) -> None:
    assert (await chat(service)).specs[0].stop_ids == {EOS}
    ignoring = await chat(service, sampling=SamplingRequest(ignore_eos=True))
    assert ignoring.specs[0].stop_ids == frozenset()


async def test_empty_stop_strings_are_none(service: Service) -> None:
    assert (await chat(service, stop=("", "a", ""))).stop == ("a",)


async def test_bare_texts_get_what_the_model_expects_around_them(service: Service) -> None:
    model = await service.model()
    prepared = await Preparer(service).texts(model, ["ab", [97]], ASK)
    assert [spec.prompt_ids for spec in prepared.specs] == [(BOS, 97, 98), (97,)]


async def test_a_model_that_takes_too_long_is_unavailable() -> None:
    service = server.service(load_seconds=0.05)
    async with running(service):
        with pytest.raises(Refused) as caught:
            await Preparer(service, load_seconds=0.0).model()
    assert caught.value.code == "unavailable"


async def test_a_model_answers_to_its_other_names(service: Service) -> None:
    model = Model(server.card(), ByteTokenizer(), aliases=("demo",))
    service.opened(model)
    assert await Preparer(service).model("demo") is model
    with pytest.raises(Refused):
        await Preparer(service).model("other")


@given(st.sampled_from(["none", "low", "xhigh"]), st.dictionaries(st.text(), st.integers()))
def test_a_requests_own_arguments_are_all_there(effort: str, arguments: dict[str, int]) -> None:
    arguments = {k: v for k, v in arguments.items() if k not in ("messages", "tools")}
    assert template_arguments(effort, arguments).items() >= arguments.items()
    assert template_arguments(None, arguments) == arguments
    assert template_arguments(effort, None)["enable_thinking"] == (effort != "none")
