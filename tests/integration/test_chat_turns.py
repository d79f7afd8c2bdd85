"""Chats on models whose state cannot be cut: later turns begin where earlier ones left off."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct
from tokenizers import Tokenizer

from doubles.carrier import running
from engine_driver import Arrival, open_compute
from engine_driver import generate as run_cold
from mlxbun.adapters.journal import RingJournal
from mlxbun.adapters.mlx_compute import loading
from mlxbun.adapters.mlx_compute.opening import leave_thread
from mlxbun.adapters.tokenizer.folder import FolderTokenizer, read_object
from mlxbun.adapters.tokenizer.model_card import read_card
from mlxbun.application.chat_prompt import Chat
from mlxbun.application.engine import Engine
from mlxbun.application.prefixes import Prefixes
from mlxbun.application.prepare import Preparer, generate
from mlxbun.application.row_specs import Ask
from mlxbun.application.service import Model, Service
from mlxbun.domain.blocks import BLOCK, Namespace
from mlxbun.domain.residency import Budget
from mlxbun.domain.sampling import SamplingParams, TokenId
from mlxbun.domain.sampling_policy import SamplingRequest
from mlxbun.domain.scheduling import Limits
from mlxbun.domain.steps import Compute
from models.tiny import TOKEN_IDS, VOCAB_SIZE

pytestmark = pytest.mark.anyio
LAYOUTS = ["tiny-qwen3-5", "tiny-mamba2", "tiny-gemma3", "tiny-gpt-oss"]
LIMITS = Limits(max_rows=4)
COMPARED = 12  # tokens of an answer

KEEPS = """{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor %}<|im_start|>assistant{{ '\n' }}"""
STRIPS = KEEPS + "<think>{{ '\n' }}"  # which no history has

SYSTEM = "The harbour was quiet when the first boat came in. " * 18
QUESTION = "The keeper asked how many boats there are at sea now. " * 18


def turn(role: str, content: str) -> Mapping[str, str]:
    return {"role": role, "content": content}


class Answer(Struct, frozen=True):
    prompt_ids: tuple[TokenId, ...]
    ids: tuple[TokenId, ...]
    text: str
    num_cached: int
    params: SamplingParams


class Server:
    """A service on a tiny model, asked in one process."""

    def __init__(self, service: Service, bias: Mapping[str, float]) -> None:
        self._service = service
        self._preparer = Preparer(service)
        self._sampling = SamplingRequest(temperature=0.0, logit_bias=bias)
        self._count = 0

    async def ask(self, turns: Sequence[Mapping[str, Any]], max_tokens: int) -> Answer:
        self._count += 1
        ask = Ask(f"r{self._count}", 1, sampling=self._sampling, max_tokens=max_tokens)
        prepared = await self._preparer.chat(await self._preparer.model(), Chat(turns), ask)
        ids, said = list[TokenId](), list[str]()
        async with generate(self._service, prepared) as generation:
            async for piece in generation.pieces():
                ids += [token for token, _ in piece.tokens]
                said.append(piece.text)
            cached = generation.num_cached_tokens
        spec = prepared.specs[0]
        return Answer(spec.prompt_ids, tuple(ids), "".join(said), cached, spec.params)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@asynccontextmanager
async def serving(folder: Path, template: str) -> AsyncIterator[Server]:
    tokenizer = FolderTokenizer(
        Tokenizer.from_file(str(folder / "tokenizer.json")),
        read_object(folder / "tokenizer_config.json"),
        {"default": template},
    )

    def opened() -> Compute:
        compute = model_of(folder)()
        assert compute.cuts == "boundary"
        service.opened(Model(read_card(folder, "tiny"), tokenizer, (), compute.cuts))
        return compute

    prefixes = Prefixes(Namespace("cd" * 32), Budget(1 << 30))
    engine = Engine(
        opened,
        LIMITS,
        RingJournal(10),
        leave_thread=leave_thread,
        open_prefixes=lambda: prefixes,
    )
    service = Service(engine, SamplingRequest(), None, list)
    # Halves of characters and special tokens do not come back as text.
    bias = {str(i): -100.0 for i in range(VOCAB_SIZE) if not is_text(tokenizer, TokenId(i))}
    async with running(service):
        yield Server(service, bias)


def model_of(folder: Path) -> Callable[[], Compute]:
    return lambda: open_compute(loading.load(folder, "native").model, l1=False)()


def is_text(tokenizer: FolderTokenizer, token: TokenId) -> bool:
    try:
        return token not in TOKEN_IDS.values() and bool(tokenizer.token_bytes(token).decode())
    except UnicodeDecodeError:
        return False


def check_cold(folder: Path, answers: Sequence[Answer]) -> None:
    """Check that each answer begins as one that is computed from nothing."""
    arrivals = [
        Arrival(answer.prompt_ids, answer.params, COMPARED, after_all=True) for answer in answers
    ]
    cold = run_cold(model_of(folder), arrivals, LIMITS)
    assert [list(answer.ids[:COMPARED]) for answer in answers] == cold


def num_shared(one: Sequence[int], other: Sequence[int]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


@pytest.mark.parametrize("name", LAYOUTS)
async def test_each_turn_begins_with_all_of_the_turn_before(
    name: str, tiny_model: Callable[[str], Path]
) -> None:
    turns, answers = [turn("system", SYSTEM), turn("user", QUESTION)], list[Answer]()
    async with serving(tiny_model(name), KEEPS) as server:
        for _ in range(3):
            answers.append(await server.ask(turns, BLOCK + 14))
            turns += [turn("assistant", answers[-1].text), turn("user", "And now? " + QUESTION)]
    assert answers[0].num_cached == 0
    for before, after in zip(answers, answers[1:], strict=False):
        whole = [*before.prompt_ids, *before.ids]
        assert list(after.prompt_ids[: len(whole)]) == whole, "its ids were kept"
        assert after.num_cached == len(whole) - 1
    check_cold(tiny_model(name), answers)


@pytest.mark.parametrize("name", LAYOUTS)
async def test_a_template_that_drops_reasoning_leaves_what_came_before_it(
    name: str, tiny_model: Callable[[str], Path]
) -> None:
    turns, answers = [turn("system", SYSTEM), turn("user", QUESTION)], list[Answer]()
    async with serving(tiny_model(name), STRIPS) as server:
        for _ in range(3):
            answers.append(await server.ask(turns, COMPARED))
            turns += [turn("assistant", answers[-1].text), turn("user", "And now? " + QUESTION)]
    for before, after in zip(answers, answers[1:], strict=False):
        shared = num_shared(before.prompt_ids, after.prompt_ids)
        assert len(before.prompt_ids) - 4 < shared < len(before.prompt_ids)
        assert after.num_cached == shared
    check_cold(tiny_model(name), answers)


@pytest.mark.parametrize("template", [KEEPS, STRIPS], ids=["keeps", "strips"])
@pytest.mark.parametrize("name", LAYOUTS)
async def test_chats_under_one_system_prompt_share_it(
    name: str, template: str, tiny_model: Callable[[str], Path]
) -> None:
    async with serving(tiny_model(name), template) as server:
        answers = [
            await server.ask([turn("system", SYSTEM), turn("user", question)], COMPARED)
            for question in ("Hello!", "Where" + QUESTION, "[1, 2]")
        ]
    for other in answers[1:]:
        shared = num_shared(answers[0].prompt_ids, other.prompt_ids)
        assert shared > 256 and other.num_cached == shared
    check_cold(tiny_model(name), answers)
