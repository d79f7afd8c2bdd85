"""Every sentence of the journal port, on each adapter and its double."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from doubles.journal import ListJournal
from mlxbun.adapters.journal import RingJournal
from mlxbun.domain.journal import EventBatch, Journal
from mlxbun.domain.scheduling import DrainStarted

OPENERS: dict[str, Callable[[], Journal]] = {
    "ring": lambda: RingJournal(8),
    "double": ListJournal,
}


def batch(sequence: int) -> EventBatch:
    return EventBatch(sequence, (DrainStarted(),))


@pytest.fixture(params=OPENERS)
def journal(request: pytest.FixtureRequest) -> Journal:
    return OPENERS[request.param]()


def test_batches_are_read_in_order(journal: Journal) -> None:
    for sequence in (1, 2, 3):
        journal.append(batch(sequence))
    assert list(journal.read()) == [batch(1), batch(2), batch(3)]


def test_reading_goes_on_after_a_sequence(journal: Journal) -> None:
    for sequence in (1, 2, 3):
        journal.append(batch(sequence))
    assert list(journal.read(after=2)) == [batch(3)]
    assert list(journal.read(after=3)) == []


def test_appending_while_reading_disturbs_nobody(journal: Journal) -> None:
    journal.append(batch(1))
    reading = journal.read()
    journal.append(batch(2))
    assert next(reading) == batch(1)


@given(st.integers(1, 9), st.integers(0, 30))
def test_a_ring_forgets_the_oldest_and_never_more_than_it_must(capacity: int, n: int) -> None:
    ring = RingJournal(capacity)
    for sequence in range(1, n + 1):
        ring.append(batch(sequence))
    assert [b.sequence for b in ring.read()] == list(range(max(1, n - capacity + 1), n + 1))


def test_a_ring_holds_at_least_one_batch() -> None:
    with pytest.raises(ValueError, match="cannot hold one"):
        RingJournal(0)
