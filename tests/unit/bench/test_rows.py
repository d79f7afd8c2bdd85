"""Rows of the acceptance table."""

from __future__ import annotations

from mlxbun.adapters.bench.rows import best_of, failed, markdown


def test_a_row_shows_the_best_round_and_keeps_all() -> None:
    row = best_of(
        "x", "waiting", "at most 3 ms", {"ours": [4.0, 2.0], "theirs": [9.0]}, "ms", min, True
    )
    assert (row.ours, row.theirs, row.ours_rounds) == (2.0, 9.0, (4.0, 2.0))
    assert markdown([row]).splitlines()[2] == "| waiting | at most 3 ms | 2 ms | 9 ms | yes |  |"


def test_what_could_not_be_measured_is_a_row_that_says_why() -> None:
    row = failed("x", "waiting", RuntimeError("it | broke\nbadly"))
    assert not row.reached
    assert markdown([row]).splitlines()[2] == (
        "| waiting |  | - | - | **no** | RuntimeError: it \\| broke badly |"
    )


def test_a_side_that_was_left_out_is_a_dash() -> None:
    row = best_of("x", "lost", "none", {"ours": [0.0], "theirs": []}, "", max, True)
    assert markdown([row]).splitlines()[2] == "| lost | none | 0 | - | yes |  |"


def test_ratios_carry_their_sign_and_large_figures_their_commas() -> None:
    row = best_of("x", "speed", "-", {"ours": [1.234], "theirs": [12345.6]}, "x", max, True)
    assert "| 1.23x | 12,346x |" in markdown([row])
