"""What a load benchmark found, as a table to read and a picture to look at."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct

from mlxbun.adapters.bench.chart import Panel, Series, draw
from mlxbun.adapters.bench.load import LoadResult, RequestShape
from mlxbun.adapters.bench.percentiles import Percentiles

NOTHING = "-"

_Read = Callable[[LoadResult], tuple[float | None, float | None]]


class Arm(Struct, frozen=True):
    """One server, with a result for each number of clients."""

    name: str
    url: str
    results: tuple[LoadResult, ...]


class LoadReport(Struct, frozen=True):
    """Everything that one command measured.  The first arm is the one that ratios favour."""

    date: str
    machine: str
    shape: RequestShape
    requests_per_client: int
    rounds: int
    arms: tuple[Arm, ...]


def described(report: LoadReport) -> str:
    """Return in one line what was asked of the servers."""
    shape = report.shape
    sampling = [f"temperature {shape.temperature:g}"] if shape.temperature is not None else []
    sampling += [f"top_p {shape.top_p:g}"] if shape.top_p is not None else []
    sampling += ["a seed each"] if shape.seeded else []
    return ", ".join(
        [
            "chat" if shape.chat else "completions",
            f"prompts of about {shape.prompt_tokens} tokens",
            f"at most {shape.max_tokens} new ones",
            *(sampling or ["the server's sampling"]),
            f"{report.requests_per_client} requests a client",
            f"{report.rounds} rounds",
        ]
    )


HEAD = (
    ("", "", "", "first text, ms", "", "", "between texts, ms", "", "", "CPU ms", ""),
    ("server", "clients", "tok/s", "p50", "p95", "p99", "p50", "p95", "p99", "a token", "errors"),
)


def table(report: LoadReport) -> str:
    """Return the results as lines of text, every column with its unit."""
    rows: list[tuple[str, ...]] = []
    for results in zip(*(arm.results for arm in report.arms), strict=True):
        rows += [_row(arm.name, result) for arm, result in zip(report.arms, results, strict=True)]
        rows += [
            _ratio_row(f"ratio to {arm.name}", results[0], result)
            for arm, result in zip(report.arms[1:], results[1:], strict=True)
        ]
    lines = [described(report), report.machine, "", *aligned([*HEAD, *rows])]
    errors = {e: arm.name for arm in report.arms for r in arm.results for e in r.errors}
    lines += [f"error of {name}: {error}" for error, name in errors.items()]
    loads = [result.load_average for arm in report.arms for result in arm.results]
    lines += ["", f"load average while measuring: {min(loads):.1f} to {max(loads):.1f}"]
    return "\n".join(lines)


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return lines with the first column to the left and the others to the right.

    A cell that is followed by empty ones may run on over them.
    """
    widths = [max(map(len, column)) for column in zip(*rows[1:], strict=True)]
    lines: list[str] = []
    for row in rows:
        line, end = row[0].ljust(widths[0]), widths[0]
        for cell, width in zip(row[1:], widths[1:], strict=True):
            end += 2 + width
            if cell:
                line = line.ljust(end - max(width, 0))
                line += cell.rjust(width)
        lines.append(line)
    return lines


def picture(report: LoadReport) -> str:
    """Return an SVG with a panel for each of speed, latencies and cost."""
    groups = [f"{result.num_clients}" for result in report.arms[0].results]
    title = " and ".join(arm.name for arm in report.arms)

    def panel(name: str, unit: str, read: _Read) -> Panel:
        series = [
            Series(
                arm.name,
                tuple(read(r)[0] for r in arm.results),
                tuple(read(r)[1] for r in arm.results),
            )
            for arm in report.arms
        ]
        return Panel(name, unit, tuple(groups), tuple(series))

    panels = [
        panel("Tokens a second, all clients", "tok/s", lambda r: (r.tokens_per_second, None)),
        panel("Time to first text, p50 and p95", "ms", lambda r: _spread(r.ttft_ms, 95)),
        panel("Time between texts, p50 and p99", "ms", lambda r: _spread(r.gap_ms, 99)),
    ]
    if all(r.server_cpu_ms_per_token is not None for arm in report.arms for r in arm.results):
        panels.append(
            panel("Server CPU for a token", "ms", lambda r: (r.server_cpu_ms_per_token, None))
        )
    return draw(title, f"{described(report)}\n{report.machine}, {report.date}", "clients", panels)


def _row(name: str, result: LoadResult) -> tuple[str, ...]:
    return (
        name,
        f"{result.num_clients}",
        f"{result.tokens_per_second:.1f}",
        *_three(result.ttft_ms),
        *_three(result.gap_ms),
        _number(result.server_cpu_ms_per_token),
        f"{result.num_errors}",
    )


def _ratio_row(name: str, ours: LoadResult, theirs: LoadResult) -> tuple[str, ...]:
    pairs = [
        (ours.tokens_per_second, theirs.tokens_per_second),
        *zip(_values(ours.ttft_ms), _values(theirs.ttft_ms), strict=True),
        *zip(_values(ours.gap_ms), _values(theirs.gap_ms), strict=True),
        (ours.server_cpu_ms_per_token, theirs.server_cpu_ms_per_token),
    ]
    cells = [f"{a / b:.2f}x" if a is not None and b else NOTHING for a, b in pairs]
    return (name, f"{ours.num_clients}", *cells, "")


def _values(found: Percentiles | None) -> tuple[float | None, float | None, float | None]:
    return (None, None, None) if found is None else (found.p50, found.p95, found.p99)


def _three(found: Percentiles | None) -> tuple[str, ...]:
    return tuple(map(_number, _values(found)))


def _number(value: float | None) -> str:
    if value is None:
        return NOTHING
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def _spread(found: Percentiles | None, percent: int) -> tuple[float | None, float | None]:
    if found is None:
        return None, None
    return found.p50, found.p95 if percent == 95 else found.p99
