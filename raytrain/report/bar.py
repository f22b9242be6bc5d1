"""The bar of a run on a terminal, and its figures below it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from raytrain.report.layout import joined
from raytrain.training.phases import read

_SHORTEST = 8


@dataclass(frozen=True)
class Bar:
    """How far a run is; laid out when it is drawn, since a window may change its size.

    Attributes:
        share: of the run that is done, from 0 to 1.
        epoch: stands before the bar.
        place: stand behind it: rank and text of each. What has no room is left out, the lowest rank first.
        figures: stand below it, likewise.
    """

    share: float
    epoch: str
    place: tuple[tuple[int, str], ...]
    figures: tuple[tuple[int, str], ...]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = options.max_width
        room = width - cell_len(self.epoch) - 1
        place = joined(self.place, room - _SHORTEST - 1)
        if cell_len(place) > room - _SHORTEST - 1:
            place = ""
        size = room - (cell_len(place) + 1 if place else 0)
        mark = "-" if options.ascii_only else "━"
        done = round(max(0.0, min(1.0, self.share)) * size)
        rest = mark if console.color_system and not console.no_color else " "
        bar = [(mark * done, "bar.complete"), (rest * (size - done), "bar.back")] if size > 0 else []
        yield _line(Text.assemble(self.epoch, " ", *bar, f" {place}" if place else ""), width)
        if below := joined(self.figures, width):
            yield _line(Text(below), width)


def waiting(row: Mapping[str, Any]) -> str:
    """Return the share of a validation's epoch that its run waited for data; empty if the row does not say."""
    seconds = read(row)
    total = sum(seconds.values())
    return f"data wait {seconds['data'] / total:.0%}" if total > 0 and "data" in seconds else ""


def memory(row: Mapping[str, Any]) -> str:
    """Return the memory in use that the hook `SystemMetrics` has put into a row: of the GPU, or else of the system."""
    for name, text in (("gpu_memory_bytes", "GPU memory"), ("memory_bytes", "memory")):
        if isinstance(value := row.get(name), int | float):
            return f"{text} {value / 2**30:.1f} GiB"
    return ""


def _line(text: Text, width: int) -> Text:
    text.no_wrap, text.overflow = True, "ellipsis"
    text.truncate(width, overflow="ellipsis")
    return text
