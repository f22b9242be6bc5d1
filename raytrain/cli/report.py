"""The command report."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from raytrain import errors
from raytrain.files import is_url
from raytrain.report import run_page, sweep
from raytrain.run.run import Run


def report(places: list[str], out: Path | None, evaluate: bool) -> None:
    """Write the page of runs; or print a sweep's table, and write its page, trials.csv and plots again."""
    first = Path(places[0])
    if len(places) == 1 and not is_url(places[0]) and (first / "sweep.json").exists():
        if out or evaluate:
            raise errors.UserError("--out and --evaluate are for runs", places[0], "give the directory of a run")
        return sweep.report(first)
    others = [*filter(_is_another, places)]
    if 0 < len(others) < len(places):
        print(f"left out, as they are no runs: {errors.listed(others)}", file=sys.stderr)
        places = [place for place in places if place not in others]
    print(f"wrote {run_page.write([Run(place) for place in places], out, evaluate)}")


def _is_another(place: str) -> bool:
    """Return whether a place of this machine is there and is no run, as `runs/*` has sweeps and pages beside runs."""
    return not is_url(place) and os.path.exists(place) and not os.path.isfile(os.path.join(place, "experiment.json"))
