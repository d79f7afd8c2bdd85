"""How much work residency does: counted, not timed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from mlxbun.domain.blocks import BLOCK, BlockInfo, BlockKey
from mlxbun.domain.residency import (
    Budget,
    Find,
    Fit,
    Hold,
    Publish,
    Residency,
    Resident,
    Return,
    SessionId,
    Tick,
    Written,
    decide,
    evolve,
)
from mlxbun.domain.sampling import RequestId

A = RequestId("A")
CHAIN = 4


class Counted(dict[BlockKey, Resident]):
    """Blocks that count how often one is looked at."""

    looks = 0

    def __getitem__(self, key: BlockKey) -> Resident:
        self.looks += 1
        return super().__getitem__(key)

    def get(self, key: BlockKey, default: Any = None) -> Any:
        self.looks += 1
        return super().get(key, default)

    def __iter__(self) -> Iterator[BlockKey]:
        self.looks += len(self)
        return super().__iter__()

    def values(self) -> Any:
        self.looks += len(self)
        return super().values()

    def items(self) -> Any:
        self.looks += len(self)
        return super().items()


def chain(number: int) -> tuple[BlockInfo, ...]:
    keys = [BlockKey(f"{number}-{i}") for i in range(CHAIN)]
    return tuple(
        BlockInfo(key, keys[i - 1] if i else None, "block", i * BLOCK, BLOCK, 1)
        for i, key in enumerate(keys)
    )


def act(state: Residency, *commands: Any) -> None:
    for command in commands:
        for each in (command, Fit()):
            for event in decide(state, each):
                evolve(state, event)


def looks(num_blocks: int, **said: Any) -> float:
    """Return how often a block is looked at for each that leaves a full cache of `num_blocks`.

    All of it leaves.  Chains are used again in between, and some belong to sessions.
    """
    state = Residency(Budget(num_blocks, **said))
    state.blocks = blocks = Counted()
    for number in range(num_blocks // CHAIN):
        act(
            state,
            Publish(A, chain(number), number % 7),
            Written(tuple(b.key for b in chain(number))),
        )
    assert state.num_in_ram == num_blocks
    blocks.looks = 0
    num_turns = num_blocks // CHAIN
    for turn in range(num_turns):
        new = chain(num_blocks + turn)
        keys = tuple(b.key for b in new)
        now = turn / 100
        act(state, Tick(now), Hold(SessionId(str(turn % 8)), keys, now))
        act(state, Publish(A, new, turn % 7), Written(keys))
        again = tuple(b.key for b in chain(num_blocks // CHAIN - 1 - turn % 8))
        act(state, Find(A, again, (), CHAIN * BLOCK), Return(A))
    assert state.num_in_ram == num_blocks
    return blocks.looks / (num_turns * CHAIN)


@pytest.mark.parametrize("retention", ["lru", "cost-size"])
@pytest.mark.parametrize("has_ssd", [False, True])
def test_what_leaves_a_large_cache_costs_what_it_costs_in_a_small_one(
    retention: Any, has_ssd: bool
) -> None:
    said = {"retention": retention, "has_ssd": has_ssd, "idle_seconds": 300.0}
    small, large = looks(400, **said), looks(8000, **said)
    assert large <= 1.5 * small, "or it looks at more blocks where there are more"
    assert large < 100
