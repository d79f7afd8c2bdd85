"""The table and the picture of a load benchmark."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from hypothesis import given
from hypothesis import strategies as st

from mlxbun.adapters.bench import chart
from mlxbun.adapters.bench.chart import Panel, Series
from mlxbun.adapters.bench.load import LoadResult, RequestShape
from mlxbun.adapters.bench.percentiles import Percentiles
from mlxbun.adapters.bench.report import Arm, LoadReport, aligned, picture, table

SVG = "{http://www.w3.org/2000/svg}"


def result(
    num_clients: int, speed: float, *, cpu: float | None = 0.5, errors: int = 0
) -> LoadResult:
    spread = Percentiles(9, 10.0, 20.0, 30.0, 40.0)
    return LoadResult(
        num_clients,
        9,
        errors,
        ("503: no",) * errors,
        90,
        900,
        speed,
        spread,
        spread,
        cpu,
        0.05,
        1.5,
    )


def report(*arms: Arm) -> LoadReport:
    return LoadReport("2026-11-29", "a machine", RequestShape(temperature=0.0), 2, 3, arms)


OURS = Arm("ours", "http://x", (result(1, 300.0), result(8, 1500.0)))
THEIRS = Arm("theirs", "http://y", (result(1, 200.0), result(8, 1000.0, cpu=None, errors=1)))


def test_the_table_has_a_row_for_each_arm_and_number_of_clients_and_their_ratio() -> None:
    lines = table(report(OURS, THEIRS)).splitlines()
    [ours, theirs, ratio] = [line.split() for line in lines if line.startswith(("o", "t", "r"))][:3]
    assert ours == ["ours", "1", "300.0", *["10.0", "20.0", "30.0"] * 2, "0.50", "0"]
    assert theirs[:3] == ["theirs", "1", "200.0"]
    assert ratio == ["ratio", "to", "theirs", "1", "1.50x", *["1.00x"] * 7]


def test_what_was_not_measured_is_a_dash_and_errors_are_told() -> None:
    shown = table(report(THEIRS))
    assert [line.split()[-2:] for line in shown.splitlines() if line.startswith("theirs")] == [
        ["0.50", "0"],
        ["-", "1"],
    ]
    assert "error of theirs: 503: no" in shown


def test_every_column_of_the_table_ends_where_its_heading_does() -> None:
    lines = aligned([("", "", ""), ("name", "n", "long heading"), ("a", "1000", "2")])
    assert lines[1:] == ["name     n  long heading", "a     1000             2"]


def test_the_picture_is_well_formed_and_shows_every_value() -> None:
    drawn = ET.fromstring(picture(report(OURS, THEIRS)))
    texts = [element.text for element in drawn.iter(f"{SVG}text")]
    assert drawn.tag == f"{SVG}svg"
    assert {"ours", "theirs", "300", "200", "1,500", "1,000"} <= set(texts)


def test_the_picture_has_no_panel_for_a_cost_that_nobody_knows() -> None:
    titles = picture(report(OURS)), picture(report(THEIRS))
    assert ["Server CPU" in title for title in titles] == [True, False]


figures = st.one_of(st.none(), st.floats(0, 1e9))


@given(st.data(), st.lists(st.text(max_size=20), min_size=1, max_size=4), st.integers(1, 3))
def test_any_names_and_values_give_well_formed_xml(
    data: st.DataObject, names: list[str], num_series: int
) -> None:
    names = [name for name in names if name.isprintable()] or ["x"]
    values = st.lists(figures, min_size=len(names), max_size=len(names)).map(tuple)
    series = [Series(names[0], data.draw(values), data.draw(values)) for _ in range(num_series)]
    panels = [Panel(names[-1], "ms", tuple(names), tuple(series))]
    drawn = ET.fromstring(chart.draw(names[0], "\n".join(names), "clients", panels))
    assert float(drawn.attrib["height"]) > 0


@given(st.floats(1e-6, 1e9))
def test_ticks_are_evenly_spaced_and_just_reach_the_highest(highest: float) -> None:
    ticks = chart.ticks(highest)
    step = ticks[1] - ticks[0]
    assert ticks[0] == 0 and 3 <= len(ticks) <= 6
    assert ticks[-1] >= highest * (1 - 1e-9) > ticks[-1] - step * (1 + 1e-9)
