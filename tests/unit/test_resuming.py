"""Checkpoints of answers on a model without tensors, which checks what it goes on from."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from doubles.block_store import DictBlockStore
from doubles.compute import ScriptedCompute
from doubles.generation_store import DictGenerations
from mlxbun.application import stepping
from mlxbun.application.answer_blocks import Contents
from mlxbun.application.requests import RequestSpec, Resume
from mlxbun.application.resuming import Resuming, generation_key
from mlxbun.domain.blocks import (
    BLOCK,
    BlockInfo,
    BlockKey,
    Committed,
    Namespace,
    StoreFailed,
)
from mlxbun.domain.generation_checkpoint import (
    CheckpointNotSaved,
    CheckpointSaved,
    GenerationCheckpoint,
    GenerationResumed,
    is_usable,
    private,
)
from mlxbun.domain.sampling import RequestId, SamplingParams, TokenId
from resume_driver import SPACE, Resumable

GREEDY = SamplingParams(temperature=0.0)
EOS = TokenId(257)
Cut = Literal["block", "boundary", "mixed"]
CUTS = pytest.mark.parametrize("cuts", ["block", "boundary", "mixed"])
IN_PARTS = pytest.mark.parametrize("cuts", ["block", "mixed"])
FOREVER = [*b"[forever]", *b"x" * (BLOCK + 50)]


class Lives:
    """Lives of processes on one disk.  Steps take a moment, so that they can be cut."""

    def __init__(self) -> None:
        self.blocks = DictBlockStore()
        self.generations = DictGenerations(self.blocks, lambda: 1000.0)
        self.compute = ScriptedCompute()

    def begin(
        self, cuts: Cut = "block", every: int = 16, cut_after: int | None = None
    ) -> Resumable:
        self.compute = ScriptedCompute(
            step_seconds=0.0005,
            cuts="block" if cuts == "block" else "boundary",
            mixed=cuts == "mixed",
        )
        self.blocks.closed = False
        return Resumable(
            lambda: self.compute,
            self.blocks,
            self.generations,
            every=every,
            cut_after=cut_after,
            stop_ids=frozenset({EOS}),
        )

    @property
    def kept(self) -> list[GenerationCheckpoint]:
        return [kept.checkpoint for kept in self.generations.kept.values()]

    def private_blocks(self) -> set[BlockKey]:
        return {key for of, key in self.blocks.blocks if of == private(SPACE)}


@pytest.fixture
def lives() -> Lives:
    return Lives()


def ticks(num_tokens: int) -> list[int]:
    return list(b"tick " * num_tokens)[:num_tokens]


@CUTS
@pytest.mark.parametrize("looks_ahead", [True, False])
def test_a_checkpoint_covers_all_but_the_token_that_is_read_next(
    lives: Lives, cuts: Cut, looks_ahead: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not looks_ahead:
        monkeypatch.setattr(stepping, "HOST_LOOKAHEAD_SECONDS", 0.0)
    life = lives.begin(cuts, cut_after=3)
    life.submit(FOREVER, GREEDY, 100_000)
    life.wait_saved(3)
    life.stop()
    (kept,) = lives.kept
    assert list(kept.token_ids) == ticks(len(kept.token_ids)) and len(kept.token_ids) >= 48
    assert kept.state[0].start == (0 if cuts == "boundary" else BLOCK)
    assert kept.state[-1].end == len(FOREVER) + len(kept.token_ids) - 1
    keys = {part.key for part in kept.state}
    assert lives.private_blocks() == keys, "what it took the place of is gone"
    assert keys.isdisjoint(lives.compute.kept), "its copy is gone from memory"


@IN_PARTS
def test_a_checkpoint_adds_a_part_and_leaves_blocks_to_the_prefix_cache(
    lives: Lives, cuts: Cut
) -> None:
    life = lives.begin(cuts, cut_after=16)
    life.submit(FOREVER, GREEDY, 100_000)
    life.wait_saved(16)
    (kept,) = lives.kept
    read = len(FOREVER) + len(kept.token_ids) - 1
    blocks = [info.start for info in lives.blocks.known(SPACE) if info.kind == "block"]
    life.stop()
    assert read // BLOCK == 2, "it went over the end of a block"
    assert sorted(blocks) == [0, BLOCK]
    parts = [part for part in kept.state if part.kind == "block"]
    assert parts[0].start == 2 * BLOCK and parts[-1].end == read
    assert all(one.end == other.start for one, other in pairwise(parts))
    assert all(16 <= part.num_tokens < 24 for part in parts[1:])
    others = [(part.start, part.num_tokens) for part in kept.state if part.kind == "boundary"]
    assert others == ([(read, 0)] if cuts == "mixed" else [])


@IN_PARTS
def test_the_blocks_before_a_checkpoint_are_kept_as_long_as_it_is(lives: Lives, cuts: Cut) -> None:
    life = lives.begin(cuts, cut_after=3)
    life.submit(FOREVER, GREEDY, 100_000)
    life.wait_saved(3)
    used = {key: kept.last_used for (_, key), kept in lives.blocks.blocks.items()}
    (first,) = (info.key for info in lives.blocks.known(SPACE) if info.kind == "block")
    life.stop()
    (kept,) = lives.kept
    assert used[first] > max(used[part.key] for part in kept.state)


@CUTS
def test_a_save_that_failed_is_followed_by_a_full_one(lives: Lives, cuts: Cut) -> None:
    life = lives.begin(cuts)
    answer = life.submit(FOREVER, GREEDY, 100_000)
    life.wait_saved(2)
    lives.blocks.failing = StoreFailed("no room")
    num_tokens = len(answer.tokens)
    answer.wait(lambda client: bool(life.events(CheckpointNotSaved)))
    lives.blocks.failing = None
    life.wait_saved(len(life.events(CheckpointSaved)) + 2)
    life.submitter.cancel(answer.request_id)
    life.disk.flush(20)
    life.stop()
    life = lives.begin(cuts)
    resumed = life.submit(FOREVER, GREEDY, 100_000)
    resumed.wait(lambda client: len(client.tokens) > client.num_replayed + 30)
    life.stop()
    assert resumed.num_replayed > num_tokens and resumed.num_cached == len(FOREVER)
    assert resumed.tokens == ticks(len(resumed.tokens))


@CUTS
def test_an_answer_that_was_resumed_is_cut_and_resumed_again(lives: Lives, cuts: Cut) -> None:
    params, before = replace(GREEDY, logprobs=3), 0
    for _ in range(4):
        life = lives.begin(cuts, cut_after=5)
        client = life.submit(FOREVER, params, 100_000)
        life.wait_saved(5)
        life.stop()
        assert client.num_replayed >= before
        assert client.num_cached == (len(FOREVER) if before else 0)
        assert client.tokens == ticks(len(client.tokens)) and None not in client.told
        before = len(lives.kept[0].token_ids)
    assert before >= 4 * 5 * 16


def test_what_was_told_of_tokens_is_told_again(lives: Lives) -> None:
    params = replace(GREEDY, logprobs=3)
    life = lives.begin(every=0)
    whole = life.ask(FOREVER, params, 300)
    life.stop()
    life = lives.begin(cut_after=3)
    life.submit(FOREVER, params, 300)
    life.wait_saved(3)
    life.stop()
    life = lives.begin()
    resumed = life.ask(FOREVER, params, 300)
    life.stop()
    assert resumed.num_replayed >= 48 and None not in resumed.told
    assert (resumed.tokens, resumed.told) == (whole.tokens, whole.told)


def test_rows_of_one_name_share_a_checkpoint(lives: Lives) -> None:
    life = lives.begin()
    both = [life.submit(FOREVER, GREEDY, 100_000) for _ in range(2)]
    life.wait_saved(6)
    for client in both:
        life.submitter.cancel(client.request_id)
    life.stop()
    assert not life.events(CheckpointNotSaved), "who is slower is no failure"
    (kept,) = lives.kept
    assert lives.private_blocks() == {part.key for part in kept.state}
    life = lives.begin(every=100_000)
    resumed = life.submit(FOREVER, GREEDY, 100_000)
    resumed.wait(lambda client: len(client.tokens) > client.num_replayed + 9)
    life.stop()
    assert resumed.num_replayed == len(kept.token_ids)
    assert resumed.tokens == ticks(len(resumed.tokens))


@CUTS
def test_who_asks_again_goes_on_where_it_stopped(lives: Lives, cuts: Cut) -> None:
    life = lives.begin(cuts, cut_after=2)
    cut = life.submit(FOREVER, GREEDY, 100_000)
    life.wait_saved(2)
    life.stop()
    life = lives.begin(cuts)
    (kept,) = lives.kept
    resumed = life.submit(FOREVER, GREEDY, 100_000)
    resumed.wait(lambda client: len(client.tokens) > len(cut.tokens) + 30)
    life.stop()
    assert resumed.tokens == ticks(len(resumed.tokens))
    assert resumed.num_replayed == len(kept.token_ids) and resumed.num_cached == len(FOREVER)
    assert life.events(GenerationResumed) == [
        GenerationResumed(resumed.request_id, len(kept.token_ids))
    ]
    computed = len(resumed.tokens) - resumed.num_replayed
    assert lives.compute.num_rows == 0 and computed >= 30


def test_a_resumed_answer_has_its_length_and_its_end(lives: Lives) -> None:
    said = [*b"[say:", *b"abc" * 40, *b"]"]
    life = lives.begin(cut_after=1)
    life.submit(said, GREEDY, 1000)
    life.wait_saved(1)
    life.stop()
    life = lives.begin()
    resumed = life.ask(said, GREEDY, 1000)
    life.stop()
    assert resumed.end().reason == "stop"
    assert resumed.tokens == [*b"abc" * 40, EOS]


def test_max_tokens_counts_what_was_drawn_before(lives: Lives) -> None:
    life = lives.begin(cut_after=1)
    life.submit(FOREVER, GREEDY, 700)
    life.wait_saved(1)
    life.stop()
    life = lives.begin()
    resumed = life.ask(FOREVER, GREEDY, 700)
    life.stop()
    assert resumed.num_replayed >= 16 and resumed.end().reason == "length"
    assert resumed.tokens == ticks(700)
    assert not lives.kept and not lives.private_blocks(), "what is complete is not kept"


def test_who_leaves_can_come_back_and_who_is_done_is_forgotten(lives: Lives) -> None:
    life = lives.begin()
    leaving = life.submit(FOREVER, GREEDY, 100_000)
    life.wait_saved(1)
    life.submitter.cancel(leaving.request_id)
    ended = life.submit(FOREVER[:20], GREEDY, 100_000)
    life.wait_saved(3)
    life.submitter.finish(ended.request_id, "stop")
    again = life.submit(FOREVER, GREEDY, 100_000)
    again.wait(lambda client: bool(client.tokens))
    life.disk.flush(20)
    life.stop()
    assert again.num_replayed >= 16
    assert len(lives.kept) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 8},
        {"temperature": 0.5},
        {"presence_penalty": 0.1},
        {"logit_bias": ((TokenId(1), 2.0),)},
        {"ignore_eos": True},
    ],
)
def test_what_is_asked_otherwise_is_another_answer(change: dict[str, object]) -> None:
    params = SamplingParams(temperature=1.0, seed=7)
    spec = spec_of(params)
    assert generation_key(SPACE, spec) != generation_key(SPACE, spec_of(replace(params, **change)))


def spec_of(params: SamplingParams, **fields: object) -> RequestSpec:
    made = RequestSpec(RequestId("r"), (TokenId(1),), 9, frozenset({EOS}), params)
    return replace(made, **fields)


def test_an_answers_name_is_all_that_is_asked_and_not_who_asks() -> None:
    base = spec_of(GREEDY)
    key = generation_key(SPACE, base)
    same = (
        {"request_id": RequestId("other")},
        {"params": replace(GREEDY, seed=5)},
        {"session": "one"},
        {"boundaries": (1,)},
        {"resume": Resume((TokenId(1),))},
    )
    other = (
        {"prompt_ids": (TokenId(2),)},
        {"max_tokens": 10},
        {"stop_ids": frozenset[TokenId]()},
        {"stop": ("x",)},
        {"params": replace(GREEDY, logprobs=0)},
        {"params": replace(GREEDY, logprobs=3)},
    )
    assert {generation_key(SPACE, replace(base, **fields)) for fields in same} == {key}
    others = {generation_key(SPACE, replace(base, **fields)) for fields in other}
    others.add(generation_key(Namespace("cd" * 32), base))
    assert len(others) == len(other) + 1 and key not in others


@given(st.lists(st.integers(0, 5).map(TokenId), max_size=8), st.integers(1, 8))
def test_a_checkpoint_is_usable_while_something_is_left_to_draw(
    drawn: list[TokenId], max_tokens: int
) -> None:
    key = generation_key(SPACE, spec_of(GREEDY))
    kept = GenerationCheckpoint(key, tuple(drawn))
    ends = frozenset({TokenId(5)})
    expected = bool(drawn) and len(drawn) < max_tokens and 5 not in drawn
    assert is_usable(kept, max_tokens, ends) == expected


def test_a_disk_that_fails_costs_checkpoints_and_no_answer(lives: Lives) -> None:
    life = lives.begin()
    lives.blocks.failing = StoreFailed("no room")
    answer = life.ask(FOREVER, GREEDY, 200)
    life.stop()
    assert answer.tokens == ticks(200)
    assert life.events(CheckpointNotSaved) and not lives.kept


def test_a_copy_that_fails_costs_no_answer(lives: Lives, monkeypatch: pytest.MonkeyPatch) -> None:
    life = lives.begin()

    def broken(
        request_id: RequestId, start: int, keys: Iterator[BlockKey]
    ) -> tuple[BlockInfo, ...] | None:
        raise MemoryError("no room")

    monkeypatch.setattr(lives.compute, "snapshot", broken)
    answer = life.ask(FOREVER, GREEDY, 100)
    life.stop()
    assert answer.tokens == ticks(100)


def test_a_damaged_checkpoint_is_as_none(lives: Lives) -> None:
    life = lives.begin(cut_after=1)
    life.submit(FOREVER, GREEDY, 300)
    life.wait_saved(1)
    life.stop()
    life = lives.begin()
    (kept,) = lives.kept
    lives.generations.damage(private(SPACE), kept.key)
    resumed = life.ask(FOREVER, GREEDY, 300)
    life.stop()
    assert resumed.tokens == ticks(300) and resumed.num_replayed == 0


def test_a_resumed_row_that_breaks_is_not_resumed_again(
    lives: Lives, monkeypatch: pytest.MonkeyPatch
) -> None:
    life = lives.begin(cut_after=1)
    life.submit(FOREVER, GREEDY, 100_000)
    life.wait_saved(1)
    life.stop()
    life = lives.begin(every=100_000)
    collect = lives.compute.collect
    monkeypatch.setattr(lives.compute, "collect", broken_once(collect))
    resumed = life.ask(FOREVER, GREEDY, 100_000)
    assert resumed.num_replayed and resumed.end().reason == "failed"
    anew = life.ask(FOREVER, GREEDY, 20)
    life.disk.flush(20)
    life.stop()
    assert anew.tokens == ticks(20)
    assert not lives.kept


def broken_once(collect: Callable[[], object]) -> Callable[[], object]:
    broken = threading.Event()

    def once() -> object:
        if not broken.is_set():
            broken.set()
            raise RuntimeError("a step broke")
        return collect()

    return once


def test_a_slow_disk_holds_nobody_up_and_gets_the_next_one_when_it_can(
    lives: Lives, monkeypatch: pytest.MonkeyPatch
) -> None:
    life = lives.begin()
    let_go, begun = threading.Event(), threading.Event()
    save = lives.generations.save

    def slow(
        namespace: Namespace, checkpoint: GenerationCheckpoint, new: Contents, after: int
    ) -> Committed:
        begun.set()
        assert let_go.wait(20)
        return save(namespace, checkpoint, new, after)

    monkeypatch.setattr(lives.generations, "save", slow)
    answer = life.submit(FOREVER, GREEDY, 100_000)
    assert begun.wait(20)
    answer.wait(lambda client: len(client.tokens) > 150)
    num_copies = len(lives.compute.kept)
    let_go.set()
    life.wait_saved(2)
    life.stop()
    (kept,) = lives.kept
    assert len(kept.token_ids) > 150, "the second skipped all that it could not take"
    assert num_copies <= 4, "blocks of the prompt and the answer, and one copy on its way"


def test_a_client_that_leaves_while_its_checkpoint_is_read_takes_no_row(
    lives: Lives, monkeypatch: pytest.MonkeyPatch
) -> None:
    life = lives.begin(cut_after=1)
    life.submit(FOREVER, GREEDY, 100_000)
    life.wait_saved(1)
    life.stop()
    life = lives.begin()
    let_go = threading.Event()
    load = lives.generations.load

    def slow(namespace: Namespace, key: object) -> object:
        assert let_go.wait(20)
        return load(namespace, key)  # type: ignore[arg-type]

    monkeypatch.setattr(lives.generations, "load", slow)
    leaving = life.submit(FOREVER, GREEDY, 100_000)
    life.submitter.cancel(leaving.request_id)
    let_go.set()
    other = life.ask([*b"[say:hi]"], GREEDY)
    life.stop()
    assert bytes(other.tokens[:-1]) == b"hi"
    assert not leaving.items and lives.compute.num_rows == 0


class Submitted:
    """A Submitter that keeps what it was given."""

    def __init__(self) -> None:
        self.specs: list[RequestSpec] = []
        self.came = threading.Event()

    def submit(self, spec: RequestSpec, mailbox: object) -> None:
        self.specs.append(spec)
        self.came.set()

    def finish(self, request_id: RequestId, reason: object) -> None: ...

    def cancel(self, request_id: RequestId) -> None: ...


class Silent:
    """A disk that has every answer, and gives none until it is told to."""

    namespace = SPACE

    def __init__(self) -> None:
        self.asked: list[Callable[[Resume | None], None]] = []

    def has(self, key: object) -> bool:
        return True

    def load(self, key: object, ids: object, then: Callable[[Resume | None], None]) -> None:
        self.asked.append(then)


def test_a_disk_that_does_not_answer_is_waited_for_no_longer_than_that() -> None:
    engine, disk = Submitted(), Silent()
    resuming = Resuming(engine, disk, 0.01)  # type: ignore[arg-type]
    resuming.submit(spec_of(GREEDY), None)  # type: ignore[arg-type]
    assert engine.came.wait(20)
    [late] = disk.asked
    late(Resume((TokenId(5),)))
    assert [spec.resume for spec in engine.specs] == [None], "it is asked once, and begins anew"


def test_a_disk_that_answers_in_time_is_heard_once() -> None:
    engine, disk = Submitted(), Silent()
    resuming = Resuming(engine, disk, 3600.0)  # type: ignore[arg-type]
    resuming.submit(spec_of(GREEDY), None)  # type: ignore[arg-type]
    disk.asked[0](Resume((TokenId(5),)))
    assert [spec.resume for spec in engine.specs] == [Resume((TokenId(5),))]
    assert not [
        t
        for t in threading.enumerate()
        if isinstance(t, threading.Timer) and t.is_alive() and not t.finished.is_set()
    ]
