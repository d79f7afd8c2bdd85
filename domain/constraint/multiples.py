"""The spellings of multiples within bounds, as patterns of digits.

Where the last digits of a number tell, all of them; else those that are nearest to zero.
"""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from functools import partial

from mlxbun.domain.constraint.bounds import Bounds
from mlxbun.domain.constraint.numbers import MINUS, decimals, integers, limits, naturals, signed
from mlxbun.domain.constraint.patterns import NOTHING, Pattern, alt, cat, literal

MAX_MULTIPLES = 256
MAX_SUFFIX = 3  # last digits that tell a multiple


def multiples(bounds: Bounds, multiple: int) -> Pattern:
    """Return the integers within `bounds` that `multiple` divides, or the nearest to zero."""
    if multiple == 1:
        return integers(bounds)
    least, most = limits(bounds)
    for digits in range(1, MAX_SUFFIX + 1):
        if 10**digits % multiple == 0:
            return signed(least, most, partial(_by_suffix, multiple=multiple, digits=digits))
    span = (MAX_MULTIPLES - 1) * multiple
    least, most = max(least, min(most, 0) - span), min(most, max(least, 0) + span)
    first = -(-least // multiple) * multiple
    return alt(literal(str(n)) for n in range(first, most + 1, multiple))


def steps(bounds: Bounds, step: Fraction) -> Pattern:
    """Return the numbers within `bounds` that are multiples of `step`; maybe whole ones alone."""
    whole = multiples(bounds, step.numerator)
    per_unit = 1 / step
    if per_unit.denominator != 1 or per_unit > MAX_MULTIPLES:
        return whole
    decimals_of_step = 1
    while decimals_of_step < 9 and (step * 10**decimals_of_step).denominator != 1:
        decimals_of_step += 1
    if step == Fraction(1, 10**decimals_of_step):
        return decimals(bounds, decimals_of_step)
    if (step * 10**decimals_of_step).denominator != 1:
        return whole
    fractions = alt(
        literal(format(Decimal(n) * step.numerator / step.denominator, "f")[1:])
        for n in range(1, int(per_unit))
    )
    low, high = limits(bounds)

    def between(first: int, last: int) -> Pattern:
        return cat([naturals(first, last - 1), fractions]) if first < last else NOTHING

    above = between(max(low, 0), high)
    below = cat([MINUS, between(max(0, -high), -low)]) if low < 0 else NOTHING
    return alt([whole, above, below])


def _by_suffix(low: int, high: int, *, multiple: int, digits: int) -> Pattern:
    """Return the multiples from low >= 0 to high, of a number that 10 ** digits is divided by."""
    unit = 10**digits
    first, last = -(-low // unit), high // unit  # whole units from first to before last
    first = max(first, 1)
    found: list[Pattern] = []
    if first < last:
        suffixes = alt(literal(str(n).zfill(digits)) for n in range(0, unit, multiple))
        found.append(cat([naturals(first, last - 1), suffixes]))
    else:
        first = last = max(first, last)
    for start, end in ((low, min(high, first * unit - 1)), (max(low, last * unit), high)):
        begin = -(-start // multiple) * multiple
        found.append(alt(literal(str(n)) for n in range(begin, end + 1, multiple)))
    return alt(found)
