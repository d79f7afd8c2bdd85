"""Reads how much CPU time a process and its children have used, and how busy the machine is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


class NoSuchProcess(LookupError):
    """The process whose time was asked for is not there."""


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds of `pid` and its living descendants since they started.

    Resolution is 10 ms.  Raises NoSuchProcess.
    """
    has_proc = Path("/proc/self/stat").is_file()
    return tree_seconds(_proc_table() if has_proc else _ps_table(), pid)


def tree_seconds(table: dict[int, tuple[int, float]], pid: int) -> float:
    """Sum the seconds of `pid` and its descendants in `table`: pid -> (parent, seconds)."""
    if pid not in table:
        raise NoSuchProcess(f"no process {pid}")
    children: dict[int, list[int]] = {}
    for child, (parent, _) in table.items():
        children.setdefault(parent, []).append(child)
    total, todo = 0.0, [pid]
    while todo:
        one = todo.pop()
        total += table[one][1]
        todo += children.get(one, [])
    return total


def load_average() -> float:
    """Return the one-minute load average."""
    return os.getloadavg()[0]


def num_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def machine() -> str:
    """Return the machine in words: processor, cores, memory, system."""
    name, memory_bytes = sys.platform, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if sys.platform == "linux":
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next((x.partition(":")[2].strip() for x in lines if x.startswith("model name")), "")
    elif sys.platform == "darwin":
        asked = ["sysctl", "-n", "machdep.cpu.brand_string"]
        name = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    return (
        f"{name or 'unknown'}, {num_cores()} cores, {memory_bytes / 2**30:.0f} GiB, {sys.platform}"
    )


def _proc_table() -> dict[int, tuple[int, float]]:
    tick = 1 / os.sysconf("SC_CLK_TCK")
    table: dict[int, tuple[int, float]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                stat = (folder / "stat").read_text()
            except (FileNotFoundError, ProcessLookupError):
                continue  # it ended while we were looking
            parent, seconds = parse_stat(stat, tick)
            table[int(folder.name)] = (parent, seconds)
    return table


def parse_stat(stat: str, tick_seconds: float) -> tuple[int, float]:
    """Return parent and CPU seconds from a line of /proc/PID/stat.  Source: proc(5)."""
    fields = stat.rpartition(")")[2].split()  # the name before it may hold anything
    return int(fields[1]), (int(fields[11]) + int(fields[12])) * tick_seconds


def _ps_table() -> dict[int, tuple[int, float]]:
    asked = ["ps", "-A", "-o", "pid=,ppid=,time="]
    listing = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    return dict(map(parse_ps, listing.splitlines()))


def parse_ps(line: str) -> tuple[int, tuple[int, float]]:
    """Return pid, and parent and CPU seconds, from a line of macOS's ps: `12 1 183:04.56`."""
    pid, parent, time = line.split()
    seconds = 0.0
    for part in time.split(":"):
        seconds = seconds * 60 + float(part)
    return int(pid), (int(parent), seconds)
