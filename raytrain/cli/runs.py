"""The command runs."""

from __future__ import annotations

from pathlib import Path

from raytrain.report import runs as report


def runs(root: Path, by: str, as_json: bool) -> None:
    """List the runs and sweeps below a directory."""
    found = report.ordered(report.find(root), by)
    if as_json:
        print(report.to_json(found))
    else:
        report.show(found, root)
