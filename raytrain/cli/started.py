"""When the command started."""

from __future__ import annotations

import os
import time
from pathlib import Path


def command_started() -> float:
    """Return the Unix time at which this process began, to the system's clock tick.

    The user also waits for the command's imports, so the measured time includes them.
    """
    try:
        ticks = float(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        uptime = float(Path("/proc/uptime").read_text().split()[0])
        return time.time() - (uptime - ticks / os.sysconf("SC_CLK_TCK"))
    except (OSError, IndexError, ValueError):
        return time.time()
