"""The result of a command that trains, as one line of JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from raytrain.driver.endings import Interrupted, RunFailed
from raytrain.driver.options import Options
from raytrain.report.output import aside
from raytrain.run.run import Run
from raytrain.sweep.sweep_run import SweepRun

_Done = TypeVar("_Done", bound=Run | SweepRun | None)


def answered(options: Options, work: Callable[[], _Done]) -> _Done:
    """Do a command's work, and print its result where the options ask for JSON, also that of a run or a sweep that
    failed or was interrupted."""
    if not options.json:
        return work()
    try:
        with aside():
            done = work()
    except (Interrupted, RunFailed) as ended:
        _print(ended.path if isinstance(ended, Interrupted) else ended.run)
        raise
    if done is not None:
        _print(done.path)
    return done


def _print(path: Path) -> None:
    """Print the result in the directory of a run or a sweep."""
    if (path / "sweep.json").is_file():
        found = SweepRun(path)
        result = {"sweep": found.where, **found.answer}
    else:
        run = Run(path)
        result = {"run": run.where, **run.summary}
    print(json.dumps(result), flush=True)
