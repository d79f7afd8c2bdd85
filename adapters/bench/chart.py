"""Draws grouped bars as SVG: small panels side by side, values written on the bars."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from xml.sax.saxutils import escape

from msgspec import Struct

COLOURS = ("#2563eb", "#94a3b8", "#f59e0b", "#10b981")
INK, FAINT, GRID, PAPER = "#0f172a", "#64748b", "#e2e8f0", "#ffffff"
FONT = "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif"
PANEL_WIDTH, PANEL_HEIGHT = 430, 250
MARGIN, GUTTER = 32, 28
AXIS_WIDTH, TITLE_HEIGHT, LABEL_HEIGHT = 46, 34, 38
TICKS = 4
LETTER = 0.55  # the mean width of a letter, in font sizes


class Series(Struct, frozen=True):
    """One colour: a bar a group, and a thin line up to `upper` where there is one."""

    name: str
    values: tuple[float | None, ...]
    upper: tuple[float | None, ...] = ()


class Panel(Struct, frozen=True):
    """One set of axes.  Every series has a value, or None, for each group."""

    title: str
    unit: str
    groups: tuple[str, ...]
    series: tuple[Series, ...]


def draw(title: str, subtitle: str, groups_are: str, panels: Sequence[Panel]) -> str:
    """Return the picture as an SVG document.

    `subtitle` may have several lines; `groups_are` names what the groups count.
    """
    columns = 1 if len(panels) == 1 else 2
    rows = math.ceil(len(panels) / columns)
    notes = subtitle.splitlines()
    width = 2 * MARGIN + columns * PANEL_WIDTH + (columns - 1) * GUTTER
    top = MARGIN + 58 + 18 * len(notes)
    height = top + rows * (PANEL_HEIGHT + GUTTER) - GUTTER + MARGIN
    parts = heading(title, notes, width, height)
    names = [series.name for series in panels[0].series] if panels else []
    parts += legend(names, MARGIN, MARGIN + 42 + 18 * len(notes))
    for i, panel in enumerate(panels):
        x = MARGIN + (i % columns) * (PANEL_WIDTH + GUTTER)
        y = top + (i // columns) * (PANEL_HEIGHT + GUTTER)
        parts += _panel(panel, groups_are, x, y)
    return "\n".join([*parts, "</svg>", ""])


def heading(title: str, notes: Sequence[str], width: float, height: float) -> list[str]:
    """Return the start of a document: its paper, its title, and a line for each of `notes`."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="{escape(FONT, {chr(34): "&quot;"})}" '
        f'role="img" aria-label="{attribute(title)}">',
        f'<rect width="{width}" height="{height}" fill="{PAPER}"/>',
        text_at(MARGIN, MARGIN + 14, title, 20, INK, weight=600),
    ]
    for i, note in enumerate(notes):
        parts.append(text_at(MARGIN, MARGIN + 38 + 18 * i, note, 12, FAINT))
    return parts


def ticks(highest: float) -> list[float]:
    """Return round values from 0 that reach `highest`, about as many as TICKS."""
    if highest < sys.float_info.min:
        return [0.0, 1.0]
    raw = highest / TICKS
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * m for m in (1, 2, 2.5, 5, 10) if power * m >= raw * (1 - 1e-9))
    return [step * i for i in range(math.ceil(highest / step - 1e-9) + 1)]


def number(value: float) -> str:
    """Return `value` with about three figures and no more than it needs."""
    if value == 0:
        return "0"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.{1 if abs(value) >= 10 else 2}f}".rstrip("0").rstrip(".")


def legend(names: Sequence[str], x: float, y: float) -> list[str]:
    """Return a coloured square and a name for each series, side by side."""
    parts: list[str] = []
    for i, name in enumerate(names):
        parts.append(
            f'<rect x="{x:.0f}" y="{y - 9:.0f}" width="10" height="10" rx="2" '
            f'fill="{colour_of(i)}"/>'
        )
        parts.append(text_at(x + 16, y, name, 12, INK))
        x += 16 + len(name) * 12 * LETTER + 26
    return parts


def _panel(panel: Panel, groups_are: str, x: float, y: float) -> list[str]:
    seen = [v for s in panel.series for v in (*s.values, *s.upper) if v is not None]
    marks = ticks(max(seen, default=0.0))
    left, right = x + AXIS_WIDTH, x + PANEL_WIDTH
    bottom = y + PANEL_HEIGHT - LABEL_HEIGHT
    scale = (bottom - y - TITLE_HEIGHT) / marks[-1]
    parts = [text_at(x, y + 12, panel.title, 14, INK, weight=600)]
    for mark in marks:
        at = bottom - mark * scale
        parts.append(
            f'<path d="M{left:.1f} {at:.1f}H{right:.1f}" stroke="{FAINT if not mark else GRID}"/>'
        )
        unit = f" {panel.unit}" if mark == marks[-1] else ""
        label = number(mark)
        parts.append(text_at(left - 8, at + 4, label, 11, FAINT, anchor="end"))
        if unit:
            parts.append(text_at(left + 2, at - 5, panel.unit, 11, FAINT))
    slot = (right - left) / max(1, len(panel.groups))
    bar = min(44.0, slot * 0.78 / max(1, len(panel.series)))
    for g, group in enumerate(panel.groups):
        middle = left + slot * (g + 0.5)
        first = middle - bar * len(panel.series) / 2
        parts.append(text_at(middle, bottom + 16, group, 12, INK, anchor="middle"))
        for s, series in enumerate(panel.series):
            upper = series.upper[g] if series.upper else None
            parts += _bar(
                series.values[g], upper, first + s * bar, bar, bottom, scale, colour_of(s)
            )
    parts.append(text_at((left + right) / 2, bottom + 32, groups_are, 11, FAINT, anchor="middle"))
    return parts


def _bar(
    value: float | None,
    upper: float | None,
    x: float,
    width: float,
    bottom: float,
    scale: float,
    colour: str,
) -> list[str]:
    middle = x + width / 2
    if value is None:
        return [text_at(middle, bottom - 4, "-", 11, FAINT, anchor="middle")]
    top = bottom - value * scale
    parts = [
        f'<rect x="{x + 1.5:.1f}" y="{top:.1f}" width="{width - 3:.1f}" '
        f'height="{max(0.5, bottom - top):.1f}" rx="2" fill="{colour}"/>'
    ]
    label_at, size = top - 5, 10 if width >= 30 else 9
    if upper is not None and upper > value:
        high = bottom - upper * scale
        parts.append(
            f'<path d="M{middle:.1f} {top:.1f}V{high:.1f}m-4 0h8" stroke="{INK}" '
            'stroke-opacity=".45" fill="none"/>'
        )
        apart = top - high > 2.2 * size  # else both labels stand above the line
        label_at = top - 5 if apart else high - 5
        upper_at = high - 5 if apart else high - 6 - size
        parts.append(text_at(middle, upper_at, number(upper), size, FAINT, anchor="middle"))
    parts.append(text_at(middle, label_at, number(value), size, INK, anchor="middle", halo=True))
    return parts


def text_at(
    x: float,
    y: float,
    text: str,
    size: int,
    colour: str,
    *,
    anchor: str = "start",
    weight: int = 400,
    halo: bool = False,
) -> str:
    """Return a text whose baseline is at `y`; `halo` keeps it readable over lines."""
    around = f'stroke="{PAPER}" stroke-width="3" paint-order="stroke" ' if halo else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" font-weight="{weight}" {around}'
        f'fill="{colour}" text-anchor="{anchor}">{escape(text)}</text>'
    )


def colour_of(index: int) -> str:
    """Return the colour of a series."""
    return COLOURS[index % len(COLOURS)]


def attribute(text: str) -> str:
    """Return `text` as it stands between the quotes of an attribute."""
    return escape(text, {'"': "&quot;"})
