"""CPU time of a process tree, from what the system lists."""

from __future__ import annotations

import pytest

from mlxbun.adapters.bench import cpu


def test_a_tree_is_a_process_with_all_its_descendants() -> None:
    table = {1: (0, 100.0), 10: (1, 1.0), 11: (10, 2.0), 12: (11, 4.0), 20: (1, 8.0)}
    assert cpu.tree_seconds(table, 10) == 7.0


def test_a_process_that_is_not_there_is_named() -> None:
    with pytest.raises(cpu.NoSuchProcess, match="10"):
        cpu.tree_seconds({}, 10)


def test_a_name_with_brackets_and_blanks_does_not_shift_the_fields() -> None:
    stat = "7 (a) b (c) S 3 7 7 0 -1 4194304 1 2 3 4 150 50 9 9 20 0 1 0 100 1 1"
    assert cpu.parse_stat(stat, 0.01) == (3, 2.0)


@pytest.mark.parametrize(
    ("line", "seconds"), [("12 1 0:01.23", 1.23), (" 12 1 183:04.56", 10984.56)]
)
def test_a_line_of_macos_ps_is_read(line: str, seconds: float) -> None:
    pid, (parent, used) = cpu.parse_ps(line)
    assert (pid, parent) == (12, 1)
    assert used == pytest.approx(seconds)
