from __future__ import annotations

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxbun.application.event_log import CHUNK, EventLog, Numbered


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def records(log: EventLog, after: int) -> list[Numbered]:
    said: list[Numbered] = []
    while some := log.read(said[-1][0] if said else after):
        said += some
    return said


@given(
    gaps=st.lists(st.integers(1, 3), max_size=3 * CHUNK),
    closed=st.booleans(),
    data=st.data(),
)
def test_what_was_added_is_read_from_any_number_on(
    gaps: list[int], closed: bool, data: st.DataObject
) -> None:
    log = EventLog()
    added: list[Numbered] = []
    for gap in gaps:
        added.append((log.last + gap, b"record %d" % len(added)))
        log.add(*added[-1])
    if closed:
        log.close()
    after = data.draw(st.integers(-1, log.last + 1))
    assert records(log, after) == [record for record in added if record[0] > after]


def test_records_that_are_alike_take_a_tenth_of_their_size() -> None:
    log = EventLog()
    size = 0
    for number in range(8 * CHUNK):
        record = b'data: {"item_id":"msg_0123456789abcdef","delta":"word %d"}\n\n' % number
        log.add(number, record)
        size += len(record)
    log.close()
    assert 0 < log.num_bytes < size / 10


@pytest.mark.anyio
async def test_readers_get_what_is_there_and_what_comes_to_the_end() -> None:
    log = EventLog()
    log.add(0, b"a")
    got: dict[int, list[Numbered]] = {-1: [], 0: [], 1: []}

    async def read(after: int) -> None:
        async for some in log.follow(after):
            got[after] += some

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            for after in got:
                tasks.start_soon(read, after)
            await anyio.wait_all_tasks_blocked()
            log.add(1, b"b")
            await anyio.wait_all_tasks_blocked()
            assert got == {-1: [(0, b"a"), (1, b"b")], 0: [(1, b"b")], 1: []}
            log.add(2, b"c")
            log.close()
    assert [reader[-1] for reader in got.values()] == [(2, b"c")] * 3
    assert [some async for some in log.follow(2)] == []
