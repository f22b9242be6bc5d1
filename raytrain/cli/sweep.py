"""The commands sweep and folds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from raytrain import errors
from raytrain.cli.answer import answered
from raytrain.cli.started import command_started
from raytrain.driver.observe import watched
from raytrain.driver.options import Options
from raytrain.files import is_url
from raytrain.loggers import Logger
from raytrain.report import sweep_page
from raytrain.report.sweep import GrowingCSV, Table, write_files
from raytrain.sweep import Sweep, at_url, driver
from raytrain.sweep.sweep_file import load
from raytrain.sweep.sweep_run import SweepRun


def swept(
    wanted: Sweep,
    options: Options,
    source: Path | None,
    started: float,
    loggers: Sequence[Logger] = (),
    path: Path | None = None,
) -> SweepRun | None:
    """Run a sweep, or go on with one, and return it; None for a dry run.

    Args:
        source: the sweep's file.
        started: the Unix time at which the user's wait began.
        loggers: follow the sweep as a whole.
        path: the directory of the sweep to go on with.
    """

    def work() -> SweepRun | None:
        with watched(Logger() if options.quiet else Table(), loggers) as observer:
            if path is not None:
                return driver.resume(path, wanted, options, observer, started, _files(options, observer))
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
    swept(wanted, options, source, command_started(), path=path if path.is_dir() else None)


def begun(found: Sweep | SweepRun | Path | str) -> tuple[Path | None, Sweep]:
    """Return the directory of a sweep, at a URL the one on this machine that has its files, and the sweep; None for
    the directory of a sweep that was not begun.

    Raises:
        UserError: there is none.
    """
    if isinstance(found, Sweep):
        return None, found
    where = found.where if isinstance(found, SweepRun) else str(found)
    path = at_url.opened(where) if is_url(where) else Path(where)
    if path is None or not (path / "sweep.json").is_file():
        raise errors.not_a_sweep(where)
    return path, load(path)[0]
