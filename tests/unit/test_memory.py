"""The ledger: its parts are all of what the allocator reports."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxbun.domain.memory import PRESSURE, MemoryUse, measured

sizes = st.integers(0, 1 << 45)
PARTS = (
    "weights_bytes",
    "live_kv_bytes",
    "prefix_cache_bytes",
    "writing_bytes",
    "draft_bytes",
    "other_bytes",
)


@given(st.builds(MemoryUse, *[sizes] * 7), sizes, sizes, sizes)
def test_the_parts_sum_to_what_is_in_use(
    use: MemoryUse, prefix_cache: int, writing: int, restoring: int
) -> None:
    ledger = measured(
        use,
        prefix_cache_bytes=prefix_cache,
        writing_bytes=writing,
        restoring_bytes=restoring,
    )
    assert sum(getattr(ledger, part) for part in PARTS) == ledger.active_bytes == use.active_bytes
    assert ledger.prefix_cache_bytes == prefix_cache and ledger.writing_bytes == writing


@pytest.mark.parametrize(
    ("active", "working_set", "short"),
    [(850, 1000, 0), (851, 1000, 1), (2000, 1000, 1150), (2000, 0, 0), (0, 1000, 0)],
)
def test_memory_is_short_beyond_its_share_of_the_working_set(
    active: int, working_set: int, short: int
) -> None:
    assert PRESSURE == 0.85
    ledger = measured(MemoryUse(active, working_set_bytes=working_set))
    assert ledger.short_bytes == short
