"""The display of a command, and when the command started."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from raytrain.report.console import Console


def console() -> Console:
    """Return the terminal's display of a run. Its import takes time that `--help` does not have."""
    from raytrain.report.console import Console

    return Console()


def command_started() -> float:
    """Unix time at which this process began, to the system's clock tick; its imports are part of the wait."""
    try:
        ticks = float(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        uptime = float(Path("/proc/uptime").read_text().split()[0])
        return time.time() - (uptime - ticks / os.sysconf("SC_CLK_TCK"))
    except (OSError, IndexError, ValueError):
        return time.time()
