"""What tests of residency share: short names for commands, and the books that must balance."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from mlxbun.domain import residency
from mlxbun.domain.blocks import BLOCK, BlockInfo, BlockKey, Namespace, chain
from mlxbun.domain.residency import (
    Budget,
    Find,
    Fit,
    Residency,
    Restored,
    SessionId,
    decide,
    evolve,
)
from mlxbun.domain.sampling import RequestId, TokenId

SPACE = Namespace("00" * 32)


A, B = RequestId("A"), RequestId("B")


SIZE = 100


def prompt(letter: str, num_blocks: int) -> list[TokenId]:
    return [TokenId(ord(letter))] * (num_blocks * BLOCK)


def keys(letter: str, num_blocks: int) -> tuple[BlockKey, ...]:
    return tuple(chain(SPACE, prompt(letter, num_blocks)))


def infos(letter: str, num_blocks: int) -> tuple[BlockInfo, ...]:
    of = keys(letter, num_blocks)
    return tuple(
        BlockInfo(key, of[i - 1] if i else None, "block", i * BLOCK, BLOCK, SIZE)
        for i, key in enumerate(of)
    )


def find(letter: str, num_blocks: int, request_id: RequestId = A, spare: int = 1) -> Find:
    of = keys(letter, num_blocks)
    return Find(request_id, of, (), num_blocks * BLOCK - 1 + spare, of)


def after(state: Residency, *commands: Any) -> list[residency.Event]:
    """Apply commands, with what leaves for each; return the events of the last."""
    events: list[residency.Event] = []
    for command in commands:
        events = []
        for each in (command, Fit(arrived(command))):
            decided = decide(state, each)
            for event in decided:
                evolve(state, event)
            events += decided
    return events


def arrived(command: Any) -> frozenset[BlockKey]:
    """Return what was brought for somebody, who has not got it yet."""
    return (
        frozenset(b.key for b in command.blocks) if isinstance(command, Restored) else frozenset()
    )


def cache(blocks: int = 100, *, has_ssd: bool = False) -> Residency:
    return Residency(Budget(blocks * SIZE, has_ssd))


def evicted(events: list[residency.Event]) -> list[BlockKey]:
    return [k for e in events if isinstance(e, residency.BlocksEvicted) for k in e.keys]


S, T = SessionId("s"), SessionId("t")


letters = st.sampled_from("xyz")


counts = st.integers(1, 4)


requests = st.sampled_from([A, B])


sessions = st.sampled_from([S, T])


steps = st.floats(0.0, 400.0)


budgets = st.builds(
    Budget,
    st.integers(0, 6).map(lambda n: n * SIZE),
    st.booleans(),
    st.sampled_from(["lru", "cost-size"]),
    st.sampled_from([0.0, 300.0]),
    st.sampled_from([500.0, 3600.0]),
)


def leaving_order(state: Residency) -> list[BlockKey]:
    """Return what may leave RAM, by the rule as it is said: sorted, all of it."""
    lru = state.budget.retention == "lru"
    free = [b for b in state.blocks.values() if b.in_ram and not b.num_lent]
    free.sort(key=lambda b: (b.used if lru else b.worth, -b.info.start, b.info.key))
    return [b.info.key for b in free]


def check_books(state: Residency, now: float) -> None:
    budget = state.budget
    in_ram = {key: b for key, b in state.blocks.items() if b.in_ram}
    assert state.num_in_ram == len(in_ram)
    assert state.ram_bytes == sum(b.info.num_bytes for b in in_ram.values())
    restoring = [b for b in state.blocks.values() if b.restoring]
    assert state.restoring_bytes == sum(b.info.num_bytes for b in restoring)
    lent_bytes = sum(b.info.num_bytes for b in in_ram.values() if b.num_lent)
    ceiling = budget.ram_bytes * (residency.CEILING if budget.has_ssd else 1)
    assert state.ram_bytes <= max(ceiling, lent_bytes)
    for key, block in state.blocks.items():
        assert block.num_lent == sum(key in of for of in state.lent.values())
        assert block.in_ram or block.on_ssd or block.writing
    for key in state.computing:
        assert state.computing[key] in (A, B)
    for key in {k for of in state.sessions.values() for k in of.keys} | set(state.held):
        assert state.held[key] == sum(key in of.keys for of in state.sessions.values())
    assert [s.until for s in state.sessions.values()] == sorted(
        s.until for s in state.sessions.values()
    )
    found = [r.info.key for queue in range(4) for r in residency.in_order(state, queue)]
    assert set(found) == set(leaving_order(state)), "the queues have all that may leave"
    for heap in state.queues:
        assert len(heap) <= 2 * len(in_ram) + 64
    if budget.idle_seconds:
        noted = {key for _, _, key in state.idle}
        assert noted >= {key for key, b in in_ram.items() if b.on_ssd}
