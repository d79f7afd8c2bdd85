"""The gate: what was kept is compared with what is found, and only a loss that lasts fails."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxbun.adapters.bench import ratios
from mlxbun.adapters.bench.ratio_picture import picture
from mlxbun.adapters.bench.ratios import Entry, Kept, MachineKind, Measured, Verdict

HERE = MachineKind("Linux", "x86_64", "cpu, 2 cores")
THERE = MachineKind("Darwin", "arm64", "Apple M9")
SLOTS, PAGES = "static slots, compiled", "pages, plain"


def measured(ratio: float, rows: int = 8, path: str = SLOTS, model: str = "tiny-llama") -> Measured:
    return Measured(model, "greedy", rows, path, ratio, 100 * ratio, 100.0)


def entry(*results: Measured, kind: MachineKind = HERE, accepted: bool = False) -> Entry:
    return Entry("2026-11-29", "abc", kind, "a machine", "1", "2", results, accepted)


def test_the_best_ratio_of_the_same_kind_of_machine_counts() -> None:
    history = [
        entry(measured(2.0)),
        entry(measured(2.4), measured(9.0, rows=1)),
        entry(measured(2.2)),
        entry(measured(5.0), kind=THERE),
        entry(measured(7.0, model="demo")),
    ]
    assert ratios.kept_of(history, HERE, measured(1.0)) == Kept(SLOTS, 2.4)
    assert ratios.kept_of(history, THERE, measured(1.0)) == Kept(SLOTS, 5.0)
    assert ratios.kept_of(history, THERE, measured(1.0, rows=1)) is None


def test_what_was_accepted_is_where_counting_starts() -> None:
    history = [
        entry(measured(3.0), measured(4.0, rows=1)),
        entry(measured(2.0), accepted=True),
        entry(measured(2.1)),
    ]
    assert ratios.kept_of(history, HERE, measured(1.0)) == Kept(SLOTS, 2.1)
    assert ratios.kept_of(history, HERE, measured(1.0, rows=1)) == Kept(SLOTS, 4.0)


def test_the_newest_path_is_expected_with_the_best_ratio_on_it() -> None:
    history = [entry(measured(3.0, path=PAGES)), entry(measured(2.0)), entry(measured(1.9))]
    assert ratios.kept_of(history, HERE, measured(1.0)) == Kept(SLOTS, 2.0)


@pytest.mark.parametrize(
    ("ratio", "is_lost"), [(2.0, False), (1.901, False), (1.899, True), (3.0, False)]
)
def test_more_than_five_percent_less_is_a_loss(ratio: float, is_lost: bool) -> None:
    (verdict,) = ratios.judged([entry(measured(2.0))], HERE, [measured(ratio)])
    assert verdict.is_lost == is_lost
    assert verdict.holds != is_lost


def test_another_path_fails_however_fast_it_is() -> None:
    (verdict,) = ratios.judged([entry(measured(2.0))], HERE, [measured(9.0, path=PAGES)])
    assert verdict.is_moved and not verdict.is_lost and not verdict.holds
    assert "MOVED: was static slots, compiled" in ratios.table([verdict])


def test_what_was_never_kept_holds_and_is_called_new() -> None:
    (verdict,) = ratios.judged([], HERE, [measured(0.5)])
    assert verdict.holds and verdict.kept is None
    assert ratios.table([verdict]).splitlines()[1].split()[-1] == "new"


class Bench:
    """Measures what it is told to, one ratio a time for each number of rows."""

    def __init__(self, found: dict[int, list[float]], path: str = SLOTS) -> None:
        self._found = {rows: list(values) for rows, values in found.items()}
        self._path = path
        self.asked: list[list[int]] = []

    def __call__(self, rows: Sequence[int]) -> list[Verdict]:
        self.asked.append(list(rows))
        kept = Kept(SLOTS, 2.0)
        return [Verdict(measured(self._found[n].pop(0), n, self._path), kept) for n in rows]


def test_only_lost_rows_are_measured_again_and_one_good_time_is_enough() -> None:
    bench = Bench({1: [2.0], 8: [1.5, 1.6, 2.1], 32: [1.0, 2.0]})
    verdicts = ratios.settled(bench, [1, 8, 32], 3)
    assert bench.asked == [[1, 8, 32], [8, 32], [8]]
    assert [(v.now.rows, v.now.ratio, v.holds) for v in verdicts] == [
        (1, 2.0, True),
        (8, 2.1, True),
        (32, 2.0, True),
    ]


@given(st.integers(0, 5))
def test_a_loss_that_shows_each_time_is_one(tries: int) -> None:
    bench = Bench({8: [1.0 + 0.1 * i for i in range(tries + 1)]})
    (verdict,) = ratios.settled(bench, [8], tries)
    assert len(bench.asked) == tries + 1
    assert verdict.is_lost and verdict.now.ratio == 1.0 + 0.1 * tries


def test_another_path_is_not_forgiven_by_measuring_again() -> None:
    bench = Bench({8: [1.0, 2.5]}, PAGES)
    (verdict,) = ratios.settled(bench, [8], 3)
    assert verdict.is_moved and not verdict.holds


def test_a_history_is_read_as_it_was_written() -> None:
    history = [entry(measured(2.0)), entry(measured(2.5), kind=THERE, accepted=True)]
    assert ratios.read_history(ratios.written(history)) == history


def test_what_the_bench_writes_is_read_with_the_median_of_its_rounds() -> None:
    row = {
        "rows": 8, "path": SLOTS, "ratio": 2.5, "paired_ratio": 2.25,
        "ours_tps": 200.0, "theirs_tps": 80.0, "hand_tps": 90.0,
    }  # fmt: skip
    assert ratios.read_results("tiny-llama", "greedy", {"results": [row]}) == [
        Measured("tiny-llama", "greedy", 8, SLOTS, 2.25, 200.0, 80.0)
    ]
    with pytest.raises(msgspec.ValidationError):
        ratios.read_results("tiny-llama", "greedy", {"results": [{"rows": 8}]})


def test_what_was_measured_on_a_gpu_is_an_entry_of_that_machine() -> None:
    row = {"rows": 8, "path": PAGES, "paired_ratio": 3.0, "ours_tps": 9.0, "theirs_tps": 3.0}
    run: dict[str, object] = {
        "model": "random:qwen3-8b", "sampling": "greedy", "os": "Linux", "architecture": "x86_64",
        "device": "NVIDIA H200", "machine": "a processor", "mlx": "1", "mlx_lm": "2",
        "results": [row],
    }  # fmt: skip
    cut = {"model": "random:qwen3-8b-4bit", "status": "cut"}
    found: dict[str, object] = {"date": "2026-11-29T18:00:00+00:00", "commit": "abc"}
    found |= {"gpus": ["NVIDIA H200"], "complete": False, "runs": [run, cut]}
    kept = ratios.read_entry(msgspec.json.encode(found))
    assert kept.kind == MachineKind("Linux", "x86_64", "NVIDIA H200")
    assert (kept.date, kept.machine) == ("2026-11-29", "NVIDIA H200, a processor")
    assert kept.results == (Measured("random:qwen3-8b", "greedy", 8, PAGES, 3.0, 9.0, 3.0),)
    with pytest.raises(msgspec.ValidationError, match="nothing was measured"):
        ratios.read_entry(msgspec.json.encode(found | {"runs": [cut]}))


def test_the_table_says_kept_now_change_and_floor() -> None:
    history = [entry(measured(2.0))]
    lost = ratios.table(ratios.judged(history, HERE, [measured(1.5)])).splitlines()
    assert lost[0].split() == [
        "model",
        "sampling",
        "rows",
        "kept",
        "now",
        "change",
        "floor",
        "path",
    ]
    words = ["tiny-llama", "greedy", "8", "2.00x", "1.50x", "-25.0", "%", "2x"]
    assert lost[1].split() == [*words, *SLOTS.split(), "LOST"]


def test_the_picture_has_a_panel_a_subject_a_line_a_machine_and_a_dot_an_entry() -> None:
    history = [
        entry(measured(2.0), measured(1.2, rows=1)),
        entry(measured(3.0), kind=THERE),
        entry(measured(2.2, path="a<b"), measured(0.4, model="other")),
    ]
    root = ElementTree.fromstring(picture(history))
    name = "{http://www.w3.org/2000/svg}"
    titles = [text.text for text in root.iter(f"{name}text") if text.get("font-weight") == "600"]
    assert titles[1:] == [
        "other, 8 rows, greedy",
        "tiny-llama, 1 row, greedy",
        "tiny-llama, 8 rows, greedy",
    ]
    assert len(list(root.iter(f"{name}polyline"))) == 4
    told = [title.text for title in root.iter(f"{name}title")]
    assert len(told) == 5 and "2026-11-29 abc: 2.20x, a<b" in told
    floors = [p for p in root.iter(f"{name}path") if p.get("stroke-dasharray")]
    assert len(floors) == 2  # none is set for the other model


@given(
    st.lists(st.floats(0.001, 1000), min_size=1, max_size=20),
    st.sampled_from(["tiny-llama", "demo"]),
)
def test_every_dot_of_the_picture_is_inside_of_it(values: list[float], model: str) -> None:
    root = ElementTree.fromstring(picture([entry(measured(v, model=model)) for v in values]))
    dots = list(root.iter("{http://www.w3.org/2000/svg}circle"))
    assert len(dots) == len(values)
    for dot in dots:
        assert 0 < float(dot.get("cx", "-1")) < float(root.get("width", "0"))
        assert 76 < float(dot.get("cy", "-1")) < float(root.get("height", "0"))
