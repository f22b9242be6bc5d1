"""The command runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from raytrain import errors
from raytrain.files import is_url
from raytrain.report import runs as report
from raytrain.report import runs_at_url


def runs(root: str, by: str, as_json: bool) -> None:
    """List the runs and sweeps below a directory or a URL."""
    found = _found(root, by)
    if as_json:
        print(json.dumps(report.to_dicts(found)))
    else:
        report.show(found, root.partition("?")[0])


def listed(root: str) -> list[dict[str, Any]]:
    """Return the runs and sweeps below a directory or a URL, the newest first."""
    return report.to_dicts(_found(root, "when"))


def _found(root: str, by: str) -> list[report.Found]:
    if not is_url(root) and not Path(root).is_dir():
        raise errors.no_such_file(root, "folder")
    return report.ordered(runs_at_url.find(root) if is_url(root) else report.find(Path(root)), by)
