"""The bar of a command that is not a run's: what is done of all, and the time that is left."""

from __future__ import annotations

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
