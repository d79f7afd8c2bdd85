"""The spellings of numbers within bounds, as patterns of digits.

Digits are bounded, so that a model cannot write them for ever: SIGNIFICANT of them where no bound
of the number says otherwise.  Fractions have only as many as a float64 can tell apart, so that what
is written compares with the bounds as it is read.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal

from mlxbun.domain.constraint.bounds import Bounds
from mlxbun.domain.constraint.patterns import (
    EMPTY,
    NOTHING,
    Chars,
    Pattern,
    alt,
    both,
    cat,
    literal,
    one_of,
    repeat,
)

SIGNIFICANT = 15  # digits that float64 keeps
LARGEST = 10**SIGNIFICANT - 1
NEAR = 10**9  # numbers below it have decimals also where they are not bounded
MINUS = literal("-")
_DIGIT = one_of("0123456789")
_NOT_ZERO = one_of("123456789")


def integers(bounds: Bounds) -> Pattern:
    """Return the integers within `bounds`."""
    least, most = limits(bounds)
    return signed(least, most, naturals)


def decimals(bounds: Bounds, num_decimals: int | None = None) -> Pattern:
    """Return the numbers within `bounds`, with at most `num_decimals` decimals; None is any.

    Exponents only where there is no bound at all.
    """
    if bounds == Bounds() and num_decimals is None:
        whole = cat([repeat(MINUS, 0, 1), naturals(0, LARGEST)])  # -0 too: -0.5 starts with it
        fraction = cat([literal("."), repeat(_DIGIT, 1, SIGNIFICANT)])
        sign = repeat(one_of("+-"), 0, 1)
        exponent = cat([one_of("eE"), sign, repeat(_DIGIT, 1, 2)])
        return cat([whole, repeat(fraction, 0, 1), repeat(exponent, 0, 1)])
    if bounds.low is None or bounds.high is None:
        return _half_bounded(bounds, num_decimals)
    low, high = bounds.low, bounds.high
    decimals = _num_decimals(low, high) if num_decimals is None else num_decimals
    if not decimals:
        return integers(bounds)
    found: list[Pattern] = []
    if high >= 0:
        from_zero = low < 0
        found.append(
            _positive(
                Decimal(0) if from_zero else low,
                high,
                not from_zero and bounds.low_open,
                bounds.high_open,
                decimals,
            )
        )
    if low < 0:
        from_zero = high >= 0
        negative = _positive(
            Decimal(0) if from_zero else -high,
            -low,
            from_zero or bounds.high_open,
            bounds.low_open,
            decimals,
        )
        found.append(cat([MINUS, negative]))
    return alt(found)


def _half_bounded(bounds: Bounds, num_decimals: int | None) -> Pattern:
    """Return integers of any size, and decimals where they leave room for some."""
    near = Decimal(NEAR)
    said = [abs(bound) for bound in (bounds.low, bounds.high) if bound is not None]
    while said and near <= 10 * max(said):
        near *= 10
    within = bounds.meet(Bounds(-near, near))
    return alt([decimals(within, num_decimals), integers(bounds)])


def limits(bounds: Bounds) -> tuple[int, int]:
    """Return the least and the greatest integer that are written.

    A side without a bound has SIGNIFICANT digits, or one more than the other has.
    """
    low, high = bounds.integers()
    if low is None and high is None:
        return -LARGEST, LARGEST
    if low is None:
        assert high is not None
        return min(-LARGEST, -(10 ** (len(str(abs(high))) + 1)) if high < 0 else -LARGEST), high
    if high is None:
        return low, max(LARGEST, 10 ** (len(str(low)) + 1) if low > 0 else LARGEST)
    return low, high


def naturals(low: int, high: int) -> Pattern:
    """Return the spellings of low..high, low >= 0, without leading zeros."""
    found: list[Pattern] = [literal("0")] if low == 0 else []
    low = max(low, 1)
    widths = [w for w in range(len(str(low)), len(str(high)) + 1) if low <= high]
    whole = [w for w in widths if low <= 10 ** (w - 1) and 10**w - 1 <= high]
    for width in widths:
        if width not in whole:
            first, last = max(low, 10 ** (width - 1)), min(high, 10**width - 1)
            found.append(_of_width(str(first), str(last)))
    if whole:
        found.append(cat([_NOT_ZERO, repeat(_DIGIT, whole[0] - 1, whole[-1] - 1)]))
    return alt(found)


def _of_width(low: str, high: str) -> Pattern:
    """Return the digit strings between two of the same length, both included."""
    if not low:
        return EMPTY
    if set(low) == {"0"} and set(high) == {"9"}:
        return repeat(_DIGIT, len(low), len(low))
    if low[0] == high[0]:
        return cat([literal(low[0]), _of_width(low[1:], high[1:])])
    rest = len(low) - 1
    first, last = int(low[0]), int(high[0])
    found: list[Pattern] = []
    if low[1:] != "0" * rest:
        found.append(cat([literal(low[0]), _of_width(low[1:], "9" * rest)]))
        first += 1
    if high[1:] != "9" * rest:
        found.append(cat([literal(high[0]), _of_width("0" * rest, high[1:])]))
        last -= 1
    if first <= last:
        digits = Chars(((0x30 + first, 0x30 + last),))
        found.append(cat([digits, repeat(_DIGIT, rest, rest)]))
    return alt(found)


def _positive(
    low: Decimal, high: Decimal, low_open: bool, high_open: bool, decimals: int
) -> Pattern:
    """Return the numbers between two that are not negative, with up to `decimals` decimals."""
    if low > high or (low == high and (low_open or high_open)):
        return NOTHING
    first, last = int(low), int(high)
    from_ = _fraction(low, first)
    to = _fraction(high, last)
    if first == last:
        return cat([literal(str(first)), _between(from_, to, low_open, high_open, decimals)])
    found = [
        cat([literal(str(first)), _between(from_, None, low_open, False, decimals)]),
        cat([literal(str(last)), _between("", to, False, high_open, decimals)]),
    ]
    if first + 1 <= last - 1:
        found.append(
            cat([naturals(first + 1, last - 1), _between("", None, False, False, decimals)])
        )
    return alt(found)


def _between(low: str, high: str | None, low_open: bool, high_open: bool, decimals: int) -> Pattern:
    """Return the fractions, point included, from .low to .high; None is up to the next integer.

    No fraction at all is one of them where zero is within.
    """
    found: list[Pattern] = []
    if low == "" and not low_open and not (high == "" and high_open):
        found.append(EMPTY)
    digits = _fraction_digits(low, high, low_open, high_open, decimals)
    if digits != NOTHING:
        found.append(cat([literal("."), digits]))
    return alt(found)


def _fraction_digits(
    low: str, high: str | None, low_open: bool, high_open: bool, room: int
) -> Pattern:
    """Return strings of 1 to `room` digits that, as a fraction, lie within."""
    if room < 1:
        return NOTHING
    if low == "" and not low_open and high is None:
        return repeat(_DIGIT, 1, room)
    found: list[Pattern] = []
    at_low = int(low[0]) if low else 0
    at_high = 9 if high is None else int(high[0]) if high else 0
    for digit in range(at_low, at_high + 1):
        on_low, on_high = digit == at_low, high is not None and digit == at_high
        rest_low = low[1:] if on_low else ""
        rest_high = (high[1:] if high else "") if on_high else None
        # Digits that end here: the fraction's rest is zero.
        tails: list[Pattern] = []
        too_low = on_low and (rest_low != "" or low_open)
        too_high = on_high and rest_high == "" and high_open
        if not too_low and not too_high:
            tails.append(EMPTY)
        more = _fraction_digits(
            rest_low, rest_high, on_low and low_open, on_high and high_open, room - 1
        )
        if more != NOTHING:
            tails.append(more)
        if tails:
            found.append(cat([literal(str(digit)), alt(tails)]))
    return alt(found)


def _fraction(value: Decimal, whole: int) -> str:
    """Return the decimals of a number that is not negative, without trailing zeros."""
    text = format(value - whole, "f")
    return text.partition(".")[2].rstrip("0")


def _num_decimals(low: Decimal, high: Decimal) -> int:
    width = len(str(int(max(abs(low), abs(high)))))
    said = max(len(_fraction(abs(b), int(abs(b)))) for b in (low, high))
    return max(1, said, SIGNIFICANT - width)


def signed(low: int, high: int, unsigned: Callable[[int, int], Pattern]) -> Pattern:
    """Return low..high, of whose magnitudes `unsigned` gives the spellings."""
    found: list[Pattern] = []
    if high >= max(low, 0):
        found.append(unsigned(max(low, 0), high))
    if low < 0 and low <= high:
        found.append(cat([MINUS, unsigned(max(1, -high), -low)]))
    return alt(found)


def fractional(numbers: Pattern) -> Pattern:
    """Return those of `numbers` that are no integers: of SIGNIFICANT digits, without exponent."""
    near = len(str(NEAR)) - 1
    whole = cat([repeat(MINUS, 0, 1), repeat(_DIGIT, 1, near)])
    last = cat([literal("."), repeat(_DIGIT, 0, SIGNIFICANT - near - 1), _NOT_ZERO])
    return both([numbers, cat([whole, last])])
