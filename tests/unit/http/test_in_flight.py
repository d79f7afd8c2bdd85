from __future__ import annotations

import anyio
import pytest

from mlxbun.adapters.http.in_flight import Flight, InFlight
from mlxbun.domain.refusal import Refused

pytestmark = pytest.mark.anyio
STOP = Refused("draining", "stop")


async def test_those_who_are_picked_are_cancelled_and_know_why() -> None:
    in_flight = InFlight()
    ended: list[tuple[bool, Refused | None]] = []

    async def request(started: bool, entered: anyio.Event) -> None:
        with in_flight.enter() as flight:
            flight.started = started
            entered.set()
            with flight.scope:
                await anyio.sleep_forever()
            ended.append((started, flight.ended_by))

    async with anyio.create_task_group() as tasks:
        for started in (False, True):
            entered = anyio.Event()
            tasks.start_soon(request, started, entered)
            await entered.wait()
        in_flight.end(STOP, lambda flight: not flight.started)
        while len(in_flight) == 2:
            await anyio.lowlevel.checkpoint()
        assert ended == [(False, STOP)]
        in_flight.end(STOP)
        await in_flight.wait_empty()
    assert ended == [(False, STOP), (True, STOP)]


async def test_the_first_reason_stays() -> None:
    flight = Flight()
    flight.end(STOP)
    flight.end(Refused("engine_failed", "later"))
    assert flight.ended_by is STOP


async def test_nobody_in_flight_is_waited_for_at_once() -> None:
    in_flight = InFlight()
    with in_flight.enter():
        pass
    await in_flight.wait_empty()
    assert len(in_flight) == 0


async def test_work_that_outlives_its_request_is_in_flight_until_it_is_over() -> None:
    in_flight = InFlight()
    go = anyio.Event()
    told: list[Refused] = []
    in_flight.start(go.wait, told.append)
    in_flight.start(anyio.sleep_forever, told.append)
    assert len(in_flight) == 2
    await anyio.wait_all_tasks_blocked()
    go.set()
    await anyio.wait_all_tasks_blocked()
    assert (len(in_flight), told) == (1, [])
    in_flight.end(STOP, lambda flight: not flight.started)
    await anyio.wait_all_tasks_blocked()
    assert len(in_flight) == 1, "it counts as started"
    in_flight.end(STOP)
    with anyio.fail_after(20):
        await in_flight.wait_empty()
    assert told == [STOP]


async def test_work_that_ends_before_it_began_is_told_why() -> None:
    in_flight = InFlight()
    told: list[Refused] = []
    in_flight.start(anyio.sleep_forever, told.append)
    in_flight.end(STOP)
    with anyio.fail_after(20):
        await in_flight.wait_empty()
    assert told == [STOP]
