"""What a disk refused: when it is asked for again, and for how much."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mlxbun.application.arrears import MOST, ROUND, Arrears, Ask
from mlxbun.application.backoff import Backoff


class Clock:
    at = 0.0

    def __call__(self) -> float:
        return self.at


def test_what_fails_is_tried_again_ever_more_rarely() -> None:
    clock = Clock()
    again = Backoff(1.0, 5.0, clock)
    assert again.left() is None and not again.take()
    for pause in (1.0, 2.0, 4.0, 5.0, 5.0):
        again.failed()
        assert again.left() == pause and not again.take()
        clock.at += pause
        assert again.take() and not again.take()
    again.failed()
    again.worked()
    assert again.left() is None
    again.failed()
    assert again.left() == 1.0, "after a success the next failure is a first one"


def test_what_fails_while_a_pause_lasts_puts_nothing_off() -> None:
    clock = Clock()
    again = Backoff(8.0, 300.0, clock)
    again.failed()
    clock.at = 7.0
    again.failed()
    assert again.left() == 1.0


def test_somebody_in_a_hurry_waits_for_no_pause() -> None:
    again = Backoff(8.0, 300.0, Clock())
    again.hurry()
    assert again.left() is None, "nothing failed"
    again.failed()
    again.hurry()
    assert again.take()


def asks(arrears: Arrears, *, wrote: bool = False, is_due: bool = False) -> Ask:
    ask = arrears.ask(wrote=wrote, is_due=is_due)
    assert ask is not None
    return ask


def test_after_a_failure_one_block_is_tried_and_then_more_and_more() -> None:
    arrears = Arrears(Backoff())
    arrears.refused(broke=True)
    assert arrears.ask(wrote=False, is_due=False) is None
    ask, mosts = asks(arrears, is_due=True), list[int]()
    while len(mosts) < 9:
        mosts.append(ask.most)
        assert not arrears.answered(ask, any_left=True)
        works = arrears.wrote()
        assert works == (len(mosts) > 1), "one block more may not go yet"
        ask = asks(arrears, wrote=True)
    assert mosts == [1, 64, 128, 256, 512, 1024, 2048, MOST, MOST]
    assert arrears.answered(ask, any_left=False)
    assert arrears.ask(wrote=True, is_due=True) is None


def test_while_it_asks_it_does_not_ask_again() -> None:
    arrears = Arrears(Backoff())
    arrears.refused()
    ask = asks(arrears, wrote=True)
    assert ask.most == ROUND and arrears.is_asking
    assert arrears.ask(wrote=True, is_due=True) is None
    assert arrears.answered(ask, any_left=False) and not arrears.is_asking


def test_what_is_refused_while_it_asks_is_asked_for_next() -> None:
    arrears = Arrears(Backoff())
    arrears.refused(broke=True)
    ask = asks(arrears, is_due=True)
    arrears.refused(broke=True)
    assert not arrears.answered(ask, any_left=False), "it was looked for too early"
    assert asks(arrears, is_due=True).refused > ask.refused


def test_that_nothing_is_owed_any_more_does_not_say_that_the_disk_works() -> None:
    arrears = Arrears(Backoff())
    arrears.refused(broke=True)
    assert not arrears.answered(asks(arrears, is_due=True), any_left=False)
    assert arrears.wrote() and arrears.all_well()


steps = st.lists(st.sampled_from(["refused", "broke", "wrote", "ask", "found", "none", "due"]))


@given(steps)
def test_what_is_owed_is_asked_for_some_time(script: list[str]) -> None:
    clock = Clock()
    again = Backoff(1.0, 4.0, clock)
    arrears, asked = Arrears(again), list[Ask]()
    owed = False
    for step in script:
        match step:
            case "refused" | "broke":
                arrears.refused(broke=step == "broke")
                owed = True
            case "wrote":
                arrears.wrote()
            case "ask" | "due":
                clock.at += 4.0 if step == "due" else 0.0
                asked += filter(None, [arrears.ask(wrote=False, is_due=again.take())])
            case _ if arrears.is_asking:
                ask = asked.pop()
                arrears.answered(ask, any_left=step == "found")
                owed = owed and arrears.ask(wrote=True, is_due=False) is not None
                asked += [Ask(1, -1)] if arrears.is_asking else []
            case _:
                pass
    if owed and not arrears.is_asking:
        arrears.ask(wrote=False, is_due=False)  # the pass that ends a turn of the thread
        clock.at += 4.0
        assert arrears.ask(wrote=False, is_due=again.take()) is not None
