"""The command report."""

from __future__ import annotations

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
    print(f"wrote {run_page.write([Run(place) for place in places], out, evaluate)}")
