"""What the engine's speed was over mlx-lm's, entry by entry, and whether it was lost since.

Ratios, because both arms run in the same minute on the same machine: milliseconds of a shared
machine say little, and those of another one nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec
from msgspec import Struct

from mlxbun.adapters.bench.report import NOTHING, aligned

ALLOWED_LOSS = 0.05

# The least that each is meant to reach: (model, sampling, rows) -> times mlx-lm.
FLOORS = {
    **{("tiny-llama", "greedy", rows): 2.0 for rows in (1, 8, 32)},
    **{("demo", "mixed", rows): x for rows, x in ((1, 1.0), (8, 1.4), (32, 1.8))},
    **{
        ("random:qwen3-0.6b", "greedy", rows): x
        for rows, x in ((1, 2.5), (8, 2.5), (32, 3.0), (64, 3.0))
    },
    **{
        ("random:qwen3-8b", "greedy", rows): x
        for rows, x in ((1, 1.5), (8, 1.8), (32, 2.0), (64, 2.0))
    },
    ("random:qwen3-8b-4bit", "greedy", 32): 6.0,
}


class MachineKind(Struct, frozen=True):
    """Machines whose ratios are compared with each other."""

    os: str
    machine: str
    device: str

    def __str__(self) -> str:
        return f"{self.os} {self.machine}, {self.device}"


class Measured(Struct, frozen=True):
    """One number of rows.  `path` says what ran: the layout, compiled or plain."""

    model: str
    sampling: str
    rows: int
    path: str
    ratio: float
    ours_tps: float
    theirs_tps: float

    @property
    def subject(self) -> tuple[str, str, int]:
        return self.model, self.sampling, self.rows


class Entry(Struct, frozen=True):
    """One recorded run of the gate.

    `accepted`: somebody took these ratios and paths on purpose, so that what was kept before of
    the same subjects no longer counts.
    """

    date: str
    commit: str
    kind: MachineKind
    machine: str
    mlx: str
    mlx_lm: str
    results: tuple[Measured, ...]
    accepted: bool = False


class Kept(Struct, frozen=True):
    """What a new figure has to hold: the newest path, and the best ratio on it."""

    path: str
    ratio: float


class Verdict(Struct, frozen=True):
    """A figure beside what was kept, None where nothing was."""

    now: Measured
    kept: Kept | None

    @property
    def is_moved(self) -> bool:
        """Another path ran than the one that is expected."""
        return self.kept is not None and self.now.path != self.kept.path

    @property
    def is_lost(self) -> bool:
        return self.kept is not None and self.change < -ALLOWED_LOSS

    @property
    def holds(self) -> bool:
        return not (self.is_moved or self.is_lost)

    @property
    def change(self) -> float:
        """Return how much faster than kept, as a fraction: -0.1 is a loss of 10 %."""
        return self.now.ratio / self.kept.ratio - 1 if self.kept else 0.0


def read_history(text: bytes) -> list[Entry]:
    """Raises msgspec.ValidationError for what is no history."""
    return msgspec.json.decode(text, type=list[Entry])


def written(history: Sequence[Entry]) -> bytes:
    return msgspec.json.format(msgspec.json.encode(history), indent=2) + b"\n"


def kept_of(history: Sequence[Entry], kind: MachineKind, now: Measured) -> Kept | None:
    """Return what was kept for this subject on this kind of machine, since it was accepted."""
    counting: list[Measured] = []
    for entry, result in _results(history, now.subject):
        if entry.kind == kind:
            counting = [result] if entry.accepted else [*counting, result]
    if not counting:
        return None
    path = counting[-1].path
    return Kept(path, max(result.ratio for result in counting if result.path == path))


def read_results(model: str, sampling: str, found: Mapping[str, object]) -> list[Measured]:
    """Return the figures of what engine.py wrote: each with the median of its rounds' ratios.

    Raises msgspec.ValidationError for something else.
    """
    rows = msgspec.convert(found["results"], list[_Row])
    return [
        Measured(model, sampling, r.rows, r.path, r.paired_ratio, r.ours_tps, r.theirs_tps)
        for r in rows
    ]


def read_kind(found: Mapping[str, object]) -> MachineKind:
    """Return the kind of machine that engine.py wrote."""
    return MachineKind(str(found["os"]), str(found["architecture"]), str(found["device"]))


def read_entry(text: bytes) -> Entry:
    """Return an entry of what `scripts/bench/gpu measure` wrote: all that it could measure.

    Raises msgspec.ValidationError for something else.
    """
    table = msgspec.json.decode(text, type=_GpuTable)
    runs = [run for run in table.runs if run.get("results")]
    if not runs:
        raise msgspec.ValidationError("nothing was measured")
    results = [
        result
        for run in runs
        for result in read_results(str(run["model"]), str(run["sampling"]), run)
    ]
    return Entry(
        table.date[:10],
        table.commit,
        read_kind(runs[0]),
        ", ".join([*table.gpus, str(runs[0]["machine"])]),
        str(runs[0]["mlx"]),
        str(runs[0]["mlx_lm"]),
        tuple(results),
    )


class _GpuTable(Struct, frozen=True):
    date: str
    commit: str
    gpus: tuple[str, ...]
    runs: tuple[dict[str, object], ...]


class _Row(Struct, frozen=True):
    """One of engine.py's results."""

    rows: int
    path: str
    paired_ratio: float
    ours_tps: float
    theirs_tps: float


def judged(history: Sequence[Entry], kind: MachineKind, found: Sequence[Measured]) -> list[Verdict]:
    return [Verdict(now, kept_of(history, kind, now)) for now in found]


def settled(
    measure: Callable[[Sequence[int]], Sequence[Verdict]], rows: Sequence[int], tries: int
) -> list[Verdict]:
    """Return a verdict for each of `rows`, measured up to `tries` more times while it is lost.

    A loss that is one shows each time; what a busy machine made of it does not.
    """
    verdicts = {verdict.now.rows: verdict for verdict in measure(rows)}
    for _ in range(tries):
        lost = [number for number, verdict in verdicts.items() if verdict.is_lost]
        if not lost:
            break
        for verdict in measure(lost):
            verdicts[verdict.now.rows] = _better(verdicts[verdict.now.rows], verdict)
    return list(verdicts.values())


def _better(one: Verdict, other: Verdict) -> Verdict:
    """Another path is never forgiven; on the same one, the higher ratio counts."""
    return max(one, other, key=lambda verdict: (verdict.is_moved, verdict.now.ratio))


def table(verdicts: Sequence[Verdict]) -> str:
    """Return the verdicts as lines of text."""
    head = ("model", "sampling", "rows", "kept", "now", "change", "floor", "path", "")
    lines = aligned([head, head, *map(_row, verdicts)])  # it does not measure its first row
    return "\n".join(lines[1:])


def _row(verdict: Verdict) -> tuple[str, ...]:
    now, kept = verdict.now, verdict.kept
    floor = FLOORS.get(now.subject)
    word = "new"
    if kept is not None:
        word = "holds" if verdict.holds else "LOST"
        if verdict.is_moved:
            word = f"MOVED: was {kept.path}"
    return (
        now.model,
        now.sampling,
        f"{now.rows}",
        f"{kept.ratio:.2f}x" if kept else NOTHING,
        f"{now.ratio:.2f}x",
        f"{100 * verdict.change:+.1f} %" if kept else NOTHING,
        f"{floor:g}x" if floor else NOTHING,
        now.path,
        word,
    )


def subjects(history: Sequence[Entry]) -> list[tuple[str, str, int]]:
    """Return what was ever measured, in order of names and rows."""
    return sorted({result.subject for entry in history for result in entry.results})


def series_of(
    history: Sequence[Entry], subject: tuple[str, str, int]
) -> dict[str, list[tuple[Entry, Measured]]]:
    """Return the figures of a subject over time, for each kind of machine by its words."""
    found: dict[str, list[tuple[Entry, Measured]]] = {}
    for entry, result in _results(history, subject):
        found.setdefault(str(entry.kind), []).append((entry, result))
    return found


def _results(
    history: Sequence[Entry], subject: tuple[str, str, int]
) -> Iterator[tuple[Entry, Measured]]:
    for entry in history:
        for result in entry.results:
            if result.subject == subject:
                yield entry, result
