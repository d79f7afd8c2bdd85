"""State that cannot be cut is copied at boundaries; the model checks what it is lent."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from doubles.compute import WHOLE_BYTES, ScriptedCompute
from mlxbun.application.snapshots import Snapshots
from mlxbun.domain import residency
from mlxbun.domain.blocks import BLOCK, BlockInfo, Cuts, Namespace, boundary, chain, linked
from mlxbun.domain.boundaries import APART, chosen
from mlxbun.domain.sampling import TokenId
from mlxbun.domain.scheduling import StepCommitted, StopsSet
from mlxbun.domain.steps import StepPlan
from tier_driver import SPACE as TIERS
from tier_driver import Client, Process

SPACE = Namespace("ab" * 32)
LONG = b"[say:" + b"z" * 400 + b"]"


@pytest.fixture(params=[False, True], ids=["whole", "mixed"])
def server(request: pytest.FixtureRequest) -> Iterator[Process]:
    made = process(mixed=request.param)
    yield made
    made.stop()


def process(
    cuts: Cuts = "boundary",
    step_seconds: float = 0.0005,
    chunk: int = 512,
    mixed: bool = False,
    ram_bytes: int = 1 << 20,
) -> Process:
    return Process(
        None,
        lambda: ScriptedCompute(step_seconds=step_seconds, cuts=cuts, mixed=mixed),
        ram_bytes=ram_bytes,
        chunk=chunk,
    )


def text(length: int, letter: str = "x") -> list[int]:
    return [ord(letter)] * length


def over(*clients: Client) -> None:
    for client in clients:
        assert client.over.wait(20)


def events(server: Process, kind: type) -> list[object]:
    return [e for batch in server.journal.read() for e in batch.events if isinstance(e, kind)]


def test_prompts_that_part_at_a_boundary_share_what_is_before_it(server: Process) -> None:
    first = server.ask([*text(600), *text(500, "a")], boundaries=(600,))
    second = server.ask([*text(600), *text(500, "b")], boundaries=(600,))
    assert (first.reused, second.reused) == (0, 600)
    assert server.ask([*text(600), *text(500, "a")]).reused == 1099, "the prompt's end is kept too"


def test_a_boundary_near_the_end_of_a_prompt_is_kept_instead_of_it(server: Process) -> None:
    server.ask([*text(900), *text(5, "a")], boundaries=(300, 900))
    assert server.ask([*text(900), *text(5, "a")], boundaries=(300, 900)).reused == 900
    assert server.ask([*text(900), *text(400, "b")]).reused == 900
    assert server.ask([*text(300), *text(5, "b")]).reused == 300


def test_who_shares_a_boundary_waits_for_that_alone() -> None:
    server = process(chunk=128)
    long = server.submit([*text(600), *text(20_000, "a")], 1, boundaries=(600,))
    short = server.submit([*text(600), *text(30, "b")], 1, boundaries=(600,))
    over(long, short)
    assert short.reused == 600 and events(server, residency.PrefixAwaited)
    log = [e for batch in server.journal.read() for e in batch.events]
    first = next(i for i, e in enumerate(log) if isinstance(e, residency.BlocksPublished))
    plans = [e for e in log[first:] if isinstance(e, StepPlan)]
    read = sum(n for plan in plans for row, n in plan.prefill if row == long.request_id)
    assert read > 10_000, "the rest of the long prompt was read after the copy"
    server.stop()


def test_prompts_that_arrive_together_share_one_prefill() -> None:
    server = process(chunk=128)
    prompt = [*text(1500), *text(500, "a")]
    clients = [server.submit(prompt, boundaries=(700, 1500)) for _ in range(3)]
    over(*clients)
    assert [client.reused for client in clients] == [0, 1999, 1999]
    server.stop()


def test_the_next_turn_goes_on_from_the_end_of_the_answer(server: Process) -> None:
    prompt = [*text(900), *LONG]
    answer = server.ask(prompt, max_tokens=300)
    turn = [*prompt, *answer.tokens, *text(50, "y")]
    assert server.ask(turn).reused == len(prompt) + 300 - 1


def test_an_end_token_that_was_fed_back_is_part_of_the_answer() -> None:
    stops = frozenset({TokenId(257)})
    server = Process(None, lambda: ScriptedCompute(cuts="boundary"), stop_ids=stops)
    prompt = [*text(900), *LONG]
    answer = server.ask(prompt, max_tokens=2000)
    assert answer.tokens[-1] == 257 and answer.reason == "stop"
    reused = server.ask([*prompt, *answer.tokens, *text(50, "y")]).reused
    assert reused in (len(prompt) + 400, len(prompt) + 401)
    server.stop()


def test_a_short_answer_is_no_copy_worth(server: Process) -> None:
    prompt = text(900)
    answer = server.ask(prompt, max_tokens=8)
    assert len(events(server, residency.BlocksPublished)) == 1
    assert server.ask([*prompt, *answer.tokens, *text(50, "y")]).reused == 899


def test_a_retry_after_a_cancel_begins_where_the_first_stopped() -> None:
    server = process(chunk=128)
    client = server.submit(text(30_000))
    beat = threading.Event()
    while len(events(server, StepCommitted)) < 6:
        beat.wait(0.001)
    server.engine.cancel(client.request_id)
    assert server.ask(text(30_000)).reused >= 5 * 128
    server.stop()


def test_a_layout_that_can_be_cut_reads_past_boundaries() -> None:
    server = process(cuts="block")
    server.ask([*text(600), *text(500, "a")], boundaries=(600,))
    assert not events(server, StopsSet)
    assert server.ask([*text(600), *text(500, "b")]).reused == 512
    server.stop()


def test_a_boundary_that_is_kept_already_is_neither_a_stop_nor_copied_again(
    server: Process,
) -> None:
    for letter in "abc":
        server.ask([*text(600), *text(500, letter)], boundaries=(600,))
    stops = [e for e in events(server, StopsSet) if isinstance(e, StopsSet)]
    assert [e.stops for e in stops] == [(600,)]
    assert len(events(server, residency.BlocksPublished)) == 4


def mixed_server(ram_bytes: int = 1 << 20) -> Process:
    return process(mixed=True, ram_bytes=ram_bytes)


def kept(server: Process) -> list[BlockInfo]:
    """Return what is in RAM: blocks first, each kind in the order of their tokens."""
    assert server.prefixes is not None
    found = [r.info for r in server.prefixes.blocks.state.blocks.values() if r.in_ram]
    return sorted(found, key=lambda info: (info.kind != "block", info.end))


def test_a_boundary_has_what_follows_the_blocks_before_it() -> None:
    server = mixed_server()
    ids = tuple(map(TokenId, text(700)))
    server.ask(text(701))
    *blocks, last = kept(server)
    assert blocks == [
        msgspec.structs.replace(block, num_bytes=4 * BLOCK) for block in linked(chain(TIERS, ids))
    ]
    key = boundary(TIERS, ids, after_blocks=True)
    tail = 700 - 2 * BLOCK
    assert last == BlockInfo(
        key, blocks[1].key, "boundary", 2 * BLOCK, tail, 4 * tail + WHOLE_BYTES
    )
    server.stop()


@pytest.mark.parametrize("length", [300, 2 * BLOCK])
def test_a_boundary_with_no_block_or_no_tail_is_lent_too(length: int) -> None:
    server = mixed_server()
    server.ask(text(length + 1))
    assert server.ask([*text(length), *text(40, "y")]).reused == length
    server.stop()


def test_turns_keep_what_is_new_and_one_state_each() -> None:
    server = mixed_server()
    turn, before = text(900), 0
    for _ in range(4):
        turn += server.ask(turn).tokens
        turn += text(300, "y")
        assert server.prefixes is not None
        sizes = [info.num_bytes for info in kept(server)]
        new = sum(sizes) - before
        # Its own tokens, those of the last block that the turn before had in its tail, a state.
        assert new <= 4 * (900 if not before else 308 + BLOCK) + WHOLE_BYTES
        before += new
    server.stop()


def test_a_chat_that_shares_blocks_and_no_boundary_begins_with_nothing() -> None:
    server = mixed_server()
    server.ask([*text(600), *text(500, "a")])
    assert server.ask([*text(600), *text(500, "b")]).reused == 0
    blocks = [info for info in kept(server) if info.kind == "block"]
    assert len(blocks) == 2 + 2 + 2, "the blocks are shared, though nobody begins with them"
    server.stop()


def test_a_block_that_left_is_kept_again_with_the_boundary_that_needs_it() -> None:
    """A row goes on while the cache gives everything back."""
    server = process(mixed=True, chunk=64)
    client = server.submit([*text(600), *text(20_000, "a")], 1, boundaries=(600,))
    beat = threading.Event()
    while not events(server, residency.BlocksPublished):
        beat.wait(0.001)
    server.engine.report(lambda blocks, compute: blocks.apply(compute, residency.Relieve(1 << 30)))
    over(client)
    assert events(server, residency.PressureRelieved)
    whole = [*text(600), *text(20_000, "a")]
    assert server.ask(whole).reused == len(whole) - 1
    server.stop()


def test_copies_are_worth_what_computing_all_of_them_takes() -> None:
    ids = tuple(map(TokenId, range(1000)))
    found = Snapshots(SPACE, ids, (800,))
    found.aim(400)
    found.read(400, 2.0)
    due = found.due()
    assert due is not None and due[-1].key == boundary(SPACE, ids[:800])
    assert found.seconds(due[-1].num_tokens, 7.0) == 4.0, (
        "two for what was read, two for what was lent"
    )
    fresh = Snapshots(SPACE, ids)
    fresh.aim(999)
    assert fresh.seconds(800, 200.0) == 4.0 and fresh.seconds(800, 0.0) == 0.0


prompts = st.lists(
    st.tuples(
        st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 500)), min_size=1, max_size=4),
        st.lists(st.integers(1, 2000), max_size=4),
        st.sampled_from([3, 300]),
    ),
    min_size=1,
    max_size=5,
)


@given(prompts, st.booleans(), st.booleans(), st.sampled_from([1 << 20, 6000]))
@settings(max_examples=40, deadline=None)
def test_any_requests_get_the_answers_of_a_cold_run(
    asked: Sequence[tuple[list[tuple[str, int]], list[int], int]],
    together: bool,
    mixed: bool,
    ram_bytes: int,
) -> None:
    """The model asserts that a row begins with the state of its own tokens."""
    server = process(step_seconds=0.0, chunk=100, mixed=mixed, ram_bytes=ram_bytes)
    clients = list[Client]()
    for runs, boundaries, max_tokens in asked:
        prompt = [token for letter, length in runs for token in text(length, letter)]
        clients.append(server.submit([*prompt, *LONG], max_tokens, chosen(boundaries)))
        if not together:
            over(clients[-1])
    over(*clients)
    for client in clients:
        assert client.tokens == text(client.max_tokens, "z") and client.reason == "length"
        assert client.reused == 0 or client.reused >= APART
    server.stop()
