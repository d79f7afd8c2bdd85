"""One line of the acceptance table, and the table as Markdown.

Machines that others share disturb single runs, so the arms of a comparison take turns, and a
figure is the best of its rounds: the least time, the most tokens.  All rounds are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct

from mlxbun.adapters.bench.workbench import Side

Samples = dict[Side, list[float]]


class Row(Struct, frozen=True):
    """One line of the table.  `theirs` is None where nothing compares.

    `ours_rounds` and `theirs_rounds` hold what `ours` and `theirs` are the best of.
    """

    scenario: str
    quantity: str
    target: str
    ours: float | None
    theirs: float | None
    unit: str
    reached: bool
    ours_rounds: tuple[float, ...] = ()
    theirs_rounds: tuple[float, ...] = ()
    note: str = ""
    details: tuple[str, ...] = ()  # for the JSON alone


def best_of(
    scenario: str,
    quantity: str,
    target: str,
    samples: Samples,
    unit: str,
    best: Callable[[Sequence[float]], float],
    reached: bool,
    note: str = "",
    details: Sequence[str] = (),
) -> Row:
    """Return a row whose figures are the `best` (min or max) of each side's samples."""
    ours, theirs = samples["ours"], samples["theirs"]
    return Row(
        scenario,
        quantity,
        target,
        best(ours) if ours else None,
        best(theirs) if theirs else None,
        unit,
        reached,
        tuple(ours),
        tuple(theirs),
        note,
        tuple(details),
    )


def each(read: Callable[[Side], list[float]]) -> Samples:
    """Return what `read` gives for each side."""
    return {"ours": read("ours"), "theirs": read("theirs")}


def sides() -> Samples:
    """Return no samples yet, for each side."""
    return {"ours": [], "theirs": []}


def failed(scenario: str, quantity: str, error: Exception) -> Row:
    """Return the row of a scenario that could not be measured."""
    note = f"{type(error).__name__}: {error}".replace("\n", " ")[:300]
    return Row(scenario, quantity, "", None, None, "", False, note=note)


def markdown(rows: Sequence[Row]) -> str:
    """Return the rows as a Markdown table."""
    lines = [
        "| quantity | target | mlxbun | mlx_lm.server | reached | note |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        cells = (
            row.quantity,
            row.target,
            _figure(row.ours, row.unit),
            _figure(row.theirs, row.unit),
            "yes" if row.reached else "**no**",
            row.note,
        )
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines)


def _figure(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    places = 0 if abs(value) >= 100 or value == int(value) else 1 if abs(value) >= 10 else 2
    figure = f"{value:,.{places}f}"
    return figure + unit if unit == "x" else f"{figure} {unit}".rstrip()
