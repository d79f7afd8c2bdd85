"""Summaries of samples: percentiles, and nothing else."""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct


class Percentiles(Struct, frozen=True):
    """Of samples in one unit, which the field that holds them names.  NaN-free: see `of`."""

    num_samples: int
    p50: float
    p95: float
    p99: float
    max: float


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Return the value below which `percent` % of `ordered` lie, interpolated linearly.

    `ordered` is ascending and not empty.  Source: Hyndman and Fan, 1996, definition 7.
    """
    position = (len(ordered) - 1) * percent / 100
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def of(samples: Sequence[float], scale: float = 1.0) -> Percentiles | None:
    """Return the percentiles of `samples` times `scale`; None if there are none."""
    if not samples:
        return None
    ordered = sorted(sample * scale for sample in samples)
    p50, p95, p99 = (percentile(ordered, percent) for percent in (50, 95, 99))
    return Percentiles(len(ordered), p50, p95, p99, ordered[-1])


def median(samples: Sequence[float]) -> float:
    """Return the middle of `samples`, which must not be empty."""
    return percentile(sorted(samples), 50)
