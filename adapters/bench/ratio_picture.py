"""Draws how the engine's ratios over mlx-lm went: a small panel a model and number of rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from mlxbun.adapters.bench.chart import (
    FAINT,
    GRID,
    GUTTER,
    INK,
    MARGIN,
    attribute,
    colour_of,
    heading,
    legend,
    number,
    text_at,
    ticks,
)
from mlxbun.adapters.bench.ratios import FLOORS, Entry, Measured, series_of, subjects

COLUMNS = 3
PANEL_WIDTH, PANEL_HEIGHT = 280, 190
AXIS_WIDTH, TITLE_HEIGHT, LABEL_HEIGHT = 36, 26, 22
FLOOR = "#dc2626"
TITLE = "The engine over mlx-lm's BatchGenerator, tokens a second"

Line = list[tuple[Entry, Measured]]


class Frame(NamedTuple):
    """Where a panel's axes are, in pixels: from `left` to `right`, 0x at `bottom`."""

    left: float
    right: float
    bottom: float
    pixels_per_x: float

    def x(self, place: int, places: int) -> float:
        return self.left + (self.right - self.left) * (place + 0.5) / max(1, places)

    def y(self, ratio: float) -> float:
        return self.bottom - ratio * self.pixels_per_x


def picture(history: Sequence[Entry]) -> str:
    """Return an SVG: a line for each kind of machine, with 1x and the floor drawn across."""
    wanted = subjects(history)
    kinds = list(dict.fromkeys(str(entry.kind) for entry in history))
    rows = math.ceil(len(wanted) / COLUMNS)
    width = 2 * MARGIN + COLUMNS * PANEL_WIDTH + (COLUMNS - 1) * GUTTER
    top = MARGIN + 76
    height = top + rows * (PANEL_HEIGHT + GUTTER) - GUTTER + MARGIN
    last = f", the last of {history[-1].date}, commit {history[-1].commit}" if history else ""
    notes = [f"{len(history)} entries{last}; grey: as fast as mlx-lm, red: the floor"]
    parts = heading(TITLE, notes, width, height)
    parts += legend(kinds, MARGIN, MARGIN + 60)
    for i, subject in enumerate(wanted):
        x = MARGIN + (i % COLUMNS) * (PANEL_WIDTH + GUTTER)
        y = top + (i // COLUMNS) * (PANEL_HEIGHT + GUTTER)
        parts += _panel(history, subject, kinds, x, y)
    return "\n".join([*parts, "</svg>", ""])


def _panel(
    history: Sequence[Entry],
    subject: tuple[str, str, int],
    kinds: Sequence[str],
    x: float,
    y: float,
) -> list[str]:
    model, sampling, num_rows = subject
    lines = series_of(history, subject)
    floor = FLOORS.get(subject)
    highest = max(result.ratio for line in lines.values() for _, result in line)
    marks = ticks(max(highest, floor or 0.0, 1.0) * 1.08)
    bottom = y + PANEL_HEIGHT - LABEL_HEIGHT
    frame = Frame(x + AXIS_WIDTH, x + PANEL_WIDTH, bottom, (bottom - y - TITLE_HEIGHT) / marks[-1])
    title = f"{model}, {num_rows} {'row' if num_rows == 1 else 'rows'}, {sampling}"
    parts = [text_at(x, y + 12, title, 13, INK, weight=600)]
    for mark in marks:
        parts.append(_across(frame, mark, GRID))
        parts.append(
            text_at(frame.left - 6, frame.y(mark) + 4, f"{number(mark)}x", 10, FAINT, anchor="end")
        )
    parts.append(_across(frame, 1.0, FAINT))
    if floor is not None:
        parts.append(_across(frame, floor, FLOOR, dashed=True))
    first, last = history[0].date, history[-1].date
    parts.append(text_at(frame.left, bottom + 15, first, 10, FAINT))
    if last != first:
        parts.append(text_at(frame.right, bottom + 15, last, 10, FAINT, anchor="end"))
    places = {id(entry): place for place, entry in enumerate(history)}
    for kind, line in lines.items():
        at = [frame.x(places[id(entry)], len(history)) for entry, _ in line]
        parts += _line(line, at, frame, colour_of(kinds.index(kind)))
    return parts


def _line(line: Line, at: Sequence[float], frame: Frame, colour: str) -> list[str]:
    points = [(x, frame.y(result.ratio)) for x, (_, result) in zip(at, line, strict=True)]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    parts = [f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>']
    for (x, y), (entry, result) in zip(points, line, strict=True):
        told = f"{entry.date} {entry.commit}: {result.ratio:.2f}x, {result.path}"
        parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}" '
            f'aria-label="{attribute(told)}"><title>{attribute(told)}</title></circle>'
        )
    (x, y), (_, newest) = points[-1], line[-1]
    parts.append(text_at(x, y - 7, f"{newest.ratio:.2f}x", 11, INK, anchor="middle", halo=True))
    return parts


def _across(frame: Frame, ratio: float, colour: str, *, dashed: bool = False) -> str:
    dashes = ' stroke-dasharray="4 3"' if dashed else ""
    at = frame.y(ratio)
    return f'<path d="M{frame.left:.1f} {at:.1f}H{frame.right:.1f}" stroke="{colour}"{dashes}/>'
