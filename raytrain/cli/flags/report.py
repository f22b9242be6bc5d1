"""The flags of the command report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from raytrain.cli.flags.parsing import parse


def report(arguments: list[str]) -> tuple[Path]:
    """Return the sweep's directory."""

    def command(sweep: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="SWEEP")]]) -> Path:
        """Print a sweep's table, and write its trials.csv and plots again.

        Args:
            sweep: The sweep's directory.
        """
        return Path(sweep)

    return (parse(command, arguments, "raytrain report"),)
