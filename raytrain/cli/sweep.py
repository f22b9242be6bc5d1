"""The commands sweep and folds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from raytrain.cli.answer import answered
from raytrain.cli.started import command_started
from raytrain.driver.observe import watched
from raytrain.driver.options import Options
from raytrain.loggers import Logger
from raytrain.report import sweep_page
from raytrain.report.sweep import GrowingCSV, Table, write_files
from raytrain.sweep import Sweep, driver
from raytrain.sweep.sweep_run import SweepRun


def swept(
    wanted: Sweep,
    options: Options,
    source: Path | None,
    started: float,
    loggers: Sequence[Logger] = (),
) -> SweepRun | None:
    """Run a sweep and return it; None for a dry run.

    Args:
        source: the sweep's file.
        started: the Unix time at which the user's wait began.
        loggers: follow the sweep as a whole.
    """

    def work() -> SweepRun | None:
        with watched(Logger() if options.quiet else Table(), loggers) as observer:
            return driver.sweep(wanted, options, observer, source, started, _files(options, observer))

    return answered(options, work)


def _files(options: Options, observer: Logger) -> Callable[[Path, dict[str, Any]], None]:
    """Return what writes the files of a sweep: its table while it goes on, all of them when it has ended."""
    growing = GrowingCSV()

    def write(path: Path, answer: dict[str, Any]) -> None:
        if answer["status"] == "running":
            return growing.update(path, answer)
        write_files(path, answer)
        if options.report:
            sweep_page.at_end(path, answer, observer.note)

    return write


def folds(path: Path, wanted: Sweep, options: Options, source: Path | None) -> None:
    """Train all folds of an experiment, or resume the sweep of a directory that does."""
    if (path / "sweep.json").is_file():
        sweep(path, wanted, options, source)
    else:
        swept(wanted, options, source, command_started())


def sweep(path: Path, wanted: Sweep, options: Options, source: Path | None) -> None:
    """Run the sweep of a file, or resume that of a directory."""
    if not path.is_dir():
        swept(wanted, options, source, command_started())
        return

    def work() -> SweepRun | None:
        with watched(Logger() if options.quiet else Table()) as observer:
            return driver.resume(path, wanted, options, observer, command_started(), _files(options, observer))

    answered(options, work)
