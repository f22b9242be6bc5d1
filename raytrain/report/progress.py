"""The bar of a command that is not a run's: what is done of all, and the time that is left."""

from __future__ import annotations

import contextlib

from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn

from raytrain.report.console import terminal


def progress(title: str, *more: ProgressColumn) -> Progress:
    """Return a bar, which is hidden where the output is no terminal.

    Args:
        title: stands before it.
        more: columns before the time that is left.
    """
    console = terminal(lasting=True)
    columns = TextColumn(title), BarColumn(bar_width=None), MofNCompleteColumn(), *more, TimeRemainingColumn()
    return Progress(*columns, console=console, transient=True, expand=True, disable=not console.is_terminal)


class Bar(contextlib.AbstractContextManager["Bar"]):
    """The bar of what goes over samples."""

    def __init__(self, title: str, shown: bool = True) -> None:
        self._progress = progress(title)
        self._progress.disable |= not shown
        self._task = self._progress.add_task("", total=None)

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def follow(self, done: int, total: int) -> None:
        """Move the bar."""
        self._progress.update(self._task, total=total, completed=done)
