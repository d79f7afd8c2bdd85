"""Percentiles, against numpy's."""

from __future__ import annotations

import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxbun.adapters.bench import percentiles

samples = st.lists(st.floats(0, 1e6), min_size=1, max_size=50)


@given(samples, st.floats(0, 100))
def test_a_percentile_is_numpys(values: list[float], percent: float) -> None:
    expected = float(np.percentile(values, percent))
    assert percentiles.percentile(sorted(values), percent) == pytest.approx(expected)


@given(samples)
def test_a_summary_holds_scaled_percentiles(values: list[float]) -> None:
    summary = percentiles.of(values, 1000)
    assert summary is not None
    expected = [float(x) * 1000 for x in np.percentile(values, (50, 95, 99, 100))]
    assert [summary.p50, summary.p95, summary.p99, summary.max] == pytest.approx(expected)
    assert summary.num_samples == len(values)


@given(samples)
def test_the_median_is_the_standard_librarys(values: list[float]) -> None:
    assert percentiles.median(values) == pytest.approx(statistics.median(values))


def test_no_samples_have_no_summary() -> None:
    assert percentiles.of([]) is None
