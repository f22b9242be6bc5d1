"""The command sweep."""

from __future__ import annotations

from pathlib import Path

from raytrain.cli.started import command_started
from raytrain.driver.fit import Options
from raytrain.driver.observe import watched
from raytrain.report.sweep import Table
from raytrain.sweep import Sweep, driver


def sweep(path: Path, wanted: Sweep, options: Options, source: Path | None) -> None:
    """Run the sweep of a file, or resume that of a directory."""
    with watched(Table()) as observer:
        if path.is_dir():
            driver.resume(path, wanted, options, observer, command_started())
        else:
            driver.sweep(wanted, options, observer, source, command_started())
