"""The command runs."""

from __future__ import annotations

from pathlib import Path

from raytrain.files import is_url
from raytrain.report import runs as report
from raytrain.report import runs_at_url


def runs(root: str, by: str, as_json: bool) -> None:
    """List the runs and sweeps below a directory or a URL."""
    found = report.ordered(runs_at_url.find(root) if is_url(root) else report.find(Path(root)), by)
    if as_json:
        print(report.to_json(found))
    else:
        report.show(found, root.partition("?")[0])
