"""The command report."""

from __future__ import annotations

from pathlib import Path

from raytrain.report import sweep


def report(path: Path) -> None:
    """Print a sweep's table; write its trials.csv and plots again."""
    sweep.report(path)
