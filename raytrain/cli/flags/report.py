"""The flags of the command report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from raytrain import errors
from raytrain.cli.flags.parsing import parse


def report(arguments: list[str]) -> tuple[list[str], Path | None, bool]:
    """Return the places of runs, or of a sweep; the page's file; and whether classes are computed in any case."""

    def command(
        places: tyro.conf.Positional[Annotated[list[str], tyro.conf.arg(metavar="RUN|SWEEP ...")]],
        out: Path | None = None,
        evaluate: bool = False,
    ) -> tuple[list[str], Path | None, bool]:
        """Write an HTML page of a run, or of several over each other; or print a sweep's table, and write its
        page, trials.csv and plots again.

        Args:
            places: The directories of runs, or one sweep's.
            out: The page of runs. Default: report.html in the run's directory, comparison.html for several runs.
            evaluate: Compute the rows per class of a run however long that takes.
        """
        return places, out, evaluate

    places, out, evaluate = parse(command, arguments, "raytrain report")
    if not places:
        raise errors.bad_flag("RUN or SWEEP must be given", "raytrain report")
    return places, out, evaluate
