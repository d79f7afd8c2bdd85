"""What a number lies between."""

from __future__ import annotations

from decimal import Decimal

from msgspec import Struct


class Bounds(Struct, frozen=True):
    """None is without a bound.  `open` bounds are not in it themselves."""

    low: Decimal | None = None
    high: Decimal | None = None
    low_open: bool = False
    high_open: bool = False

    def meet(self, other: Bounds) -> Bounds:
        """Return what lies within both."""
        low, low_open = self.low, self.low_open
        if other.low is not None and (low is None or other.low >= low):
            low, low_open = other.low, other.low_open or (other.low == low and low_open)
        high, high_open = self.high, self.high_open
        if other.high is not None and (high is None or other.high <= high):
            high, high_open = other.high, other.high_open or (other.high == high and high_open)
        return Bounds(low, high, low_open, high_open)

    def has(self, value: Decimal) -> bool:
        above = self.low is None or value > self.low or (value == self.low and not self.low_open)
        below = (
            self.high is None or value < self.high or (value == self.high and not self.high_open)
        )
        return above and below

    def integers(self) -> tuple[int | None, int | None]:
        """Return the least and the greatest integer within."""
        low = high = None
        if self.low is not None:
            low = -int(-self.low // 1) if self.low != int(self.low) else int(self.low)
            if low < self.low:
                low += 1
            low += self.low_open and low == self.low
        if self.high is not None:
            high = int(self.high)
            if high > self.high:
                high -= 1
            high -= self.high_open and high == self.high
        return low, high
