"""Numbers within bounds, as digits."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

from hypothesis import example, given
from hypothesis import strategies as st

from mlxbun.domain.constraint.automaton import build, matches
from mlxbun.domain.constraint.bounds import Bounds
from mlxbun.domain.constraint.multiples import multiples, steps
from mlxbun.domain.constraint.numbers import SIGNIFICANT, decimals, integers
from mlxbun.domain.constraint.patterns import lengths

cents = st.integers(-30_000, 30_000).map(lambda n: Decimal(n) / 100)
large = st.integers(-(10**17), 10**17).map(Decimal)


@st.composite
def bounds(draw: st.DrawFn, ends: st.SearchStrategy[Decimal] = cents) -> Bounds:
    low = draw(st.none() | ends)
    high = draw(st.none() | ends)
    if low is not None and high is not None and low > high:
        low, high = high, low
    opens = draw(st.booleans()) and low is not None, draw(st.booleans()) and high is not None
    return Bounds(low, high, *opens)


def text(value: Decimal) -> str:
    spelled = format(value, "f")
    return spelled[1:] if value == 0 and spelled[0] == "-" else spelled


@given(bounds(), cents)
@example(Bounds(), Decimal("-0.01"))
@example(Bounds(high=Decimal(0)), Decimal("-0.01"))
@example(Bounds(low=Decimal(-1)), Decimal("-0.01"))
@example(Bounds(Decimal(-1), Decimal(0)), Decimal("-0.01"))
def test_decimals_are_those_within(within: Bounds, value: Decimal) -> None:
    assert matches(decimals(within), text(value)) == within.has(value)


# RFC 8259, section 6, with as many digits as we let a model write.
json_numbers = st.from_regex(
    r"-?(0|[1-9][0-9]{0,14})(\.[0-9]{1,15})?([eE][+-]?[0-9]{1,2})?", fullmatch=True
)


@given(json_numbers)
def test_without_bounds_any_json_number_is_written(spelled: str) -> None:
    assert matches(decimals(Bounds()), spelled)


@given(bounds(cents | large), st.integers(-400, 400) | st.integers(-(10**14), 10**14))
def test_integers_are_those_within(within: Bounds, value: int) -> None:
    assert matches(integers(within), str(value)) == within.has(Decimal(value))


@given(bounds(), st.sampled_from((2, 4, 5, 8, 10, 20, 25, 100, 500)), st.integers(-3000, 3000))
def test_multiples_that_their_last_digits_tell_are_all_there(
    within: Bounds, multiple: int, value: int
) -> None:
    wanted = within.has(Decimal(value)) and value % multiple == 0
    assert matches(multiples(within, multiple), str(value)) == wanted


@given(bounds(cents | large), st.integers(1, 10**6), st.integers(-3000, 3000))
def test_what_is_written_of_multiples_is_one_within(
    within: Bounds, multiple: int, value: int
) -> None:
    if matches(multiples(within, multiple), str(value)):
        assert within.has(Decimal(value)) and value % multiple == 0


@given(bounds(), st.integers(1, 2000))
def test_multiples_are_found_where_there_are_some(within: Bounds, multiple: int) -> None:
    low, high = within.integers()
    first = 0 if low is None else -(-low // multiple) * multiple
    last = 0 if high is None else high // multiple * multiple
    exists = (low is None or high is None or first <= high) and not (
        low is not None and high is not None and first > last
    )
    automaton = build(multiples(within, multiple), 100_000)
    assert automaton is not None and any(automaton.ends) == exists


@given(bounds(), st.sampled_from(("0.5", "0.25", "0.125", "0.01", "0.1", "2.5", "0.3")), cents)
def test_steps_are_multiples_within(within: Bounds, step: str, value: Decimal) -> None:
    if matches(steps(within, Fraction(step)), text(value)):
        assert within.has(value) and value % Decimal(step) == 0


@given(bounds(cents | large))
def test_digits_end(within: Bounds) -> None:
    _, whole = lengths(integers(within))
    _, most = lengths(decimals(within))
    assert whole is not None and most is not None and most <= 2 * SIGNIFICANT + 10


@given(bounds(cents), st.from_regex(r"-?[0-9]{1,3}(\.[0-9]{1,12})?", fullmatch=True))
def test_what_is_written_compares_as_float64_reads_it(within: Bounds, spelled: str) -> None:
    if matches(decimals(within), spelled):
        read = float(spelled)
        assert within.low is None or read >= float(within.low)
        assert within.high is None or read <= float(within.high)
        assert not (within.low_open and within.low is not None and read == float(within.low))
        assert not (within.high_open and within.high is not None and read == float(within.high))
