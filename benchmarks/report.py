"""The table: on the console, and as a page of docs/."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import ROOT, Measured, SideFailed
from benchmarks.rows import Row

_PACKAGES = ("raytrain", "torch", "torchvision", "ray", "numpy", "lightning", "accelerate")
_TITLES = ("row", "against", "ours", "theirs", "ratio", "spread", "rounds", "goal", "met", "s", "")
_WIDTHS = (-17, -31, 14, 14, 7, 13, 6, 8, 4, 5, -1)


@dataclass(frozen=True)
class Line:
    """A row with what was found, or with why nothing was."""

    row: Row[Any]
    found: Measured | Exception
    seconds: float

    @property
    def met(self) -> bool | None:
        """Whether the goal is met, by sides that learnt the same; None where there is no goal or no ratio."""
        if isinstance(self.found, Exception) or self.row.goal is None:
            return None
        return self.row.goal.met(self.found.ratio) and not self.found.warning

    def miss(self, limit: Callable[[Measured], str]) -> str | None:
        """By how much the row misses its goal and what limits it, if it does.

        Args:
            limit: makes the sentence on that; called only then.
        """
        if self.met is not False or isinstance(self.found, Exception) or self.row.goal is None:
            return None
        if self.row.goal.met(self.found.ratio):
            return f"{self.found.ratio:.2f} would meet it, but the {self.found.warning}: the sides did different work."
        off = abs(self.found.ratio / self.row.goal.ratio - 1)
        unequal = f"The {self.found.warning}: the sides did not do the same work. " if self.found.warning else ""
        try:
            why = limit(self.found)
        except SideFailed as error:
            why = f"The profile failed: {error}"
        close = any(map(self.row.goal.met, self.found.ratios))
        noise = "Some of its rounds meet it, so that the machine's noise decides. " if close else ""
        return f"{self.found.ratio:.2f} instead of {self.row.goal}: {off:.0%} off. {unequal}{noise}{why}"

    def cells(self) -> list[str]:
        """The texts of the columns."""
        row, found = self.row, self.found
        goal = "-" if row.goal is None else str(row.goal)
        if isinstance(found, Exception):
            return [row.name, row.against, "", "", "", "", "", goal, "-", f"{self.seconds:.0f}", f"failed: {found}"]
        met = {None: "-", True: "yes", False: "no"}[self.met]
        spread = f"{min(found.ratios):.2f}-{max(found.ratios):.2f}"
        notes = ", ".join(note for note in (found.warning.upper(), found.note) if note)
        figures = [_figure(found.ours, found.unit), _figure(found.theirs, found.unit), f"{found.ratio:.2f}", spread]
        rounds = str(len(found.ratios))
        return [row.name, row.against, *figures, rounds, goal, met, f"{self.seconds:.0f}", notes]

    def __str__(self) -> str:
        return _aligned(self.cells())


def _figure(value: float, unit: str) -> str:
    if unit == "samples/s":
        return f"{value:,.0f}/s"
    return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"


def header() -> str:
    """The titles of the columns."""
    return _aligned(_TITLES)


def _aligned(cells: Sequence[str]) -> str:
    pairs = zip(cells, _WIDTHS, strict=True)
    return " ".join(f"{cell:<{-width}}" if width < 0 else f"{cell:>{width}}" for cell, width in pairs).rstrip()


def machine(data: str) -> list[str]:
    """What was measured, on what, with which versions.

    Args:
        data: what the sides trained on, how often, with how many threads.
    """
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    load = ", ".join(f"{number:.1f}" for number in os.getloadavg())
    return [
        f"machine: {_processor()}, {len(os.sched_getaffinity(0))} cores, {memory:.0f} GiB; load {load} at the start",
        f"data: {data}",
        f"versions: Python {platform.python_version()}, " + ", ".join(filter(None, map(_version, _PACKAGES))),
        f"command: {shlex.join(['python', f'benchmarks/{Path(sys.argv[0]).name}', *sys.argv[1:]])}",
        f"date: {time.strftime('%Y-%m-%d')}",
    ]


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _version(name: str) -> str:
    """A package's name and version; nothing for a peer that is not there."""
    try:
        return f"{name} {importlib.metadata.version(name)}"
    except importlib.metadata.PackageNotFoundError:
        return ""


def write(
    page: str, introduction: Sequence[str], machine: Sequence[str], lines: Sequence[Line], misses: Mapping[str, str]
) -> None:
    """Writes a page of docs/: its introduction, the table, and a section for every row that misses its goal."""
    titles = [*_TITLES[:-2], "seconds", "notes"]
    parts = [
        *introduction,
        "\n".join(f"- {line}" for line in machine),
        "\n".join("| " + " | ".join(cells) + " |"
                  for cells in [titles, ["---"] * len(titles), *(_escaped(line) for line in lines)]),
    ]  # fmt: skip
    for name, miss in misses.items():
        parts += [f"## {name} misses its goal", miss]
    (ROOT / "docs" / page).write_text("\n\n".join(parts) + "\n")


def _escaped(line: Line) -> list[str]:
    return [cell.partition("\n")[0].replace("|", "\\|") for cell in line.cells()]
