"""The flags of the command runs."""

from __future__ import annotations

from typing import Annotated

import tyro

from raytrain.cli.flags.parsing import parse


def runs(arguments: list[str]) -> tuple[str, str, bool]:
    """Return the directory or URL, the order, and whether JSON is wanted."""

    def command(
        directory: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="[DIR]")]] = "runs",
        sort: Annotated[str, tyro.conf.arg(metavar="{when,name,metric,size,METRIC}")] = "when",
        json: bool = False,
    ) -> tuple[str, str, bool]:
        """List the runs and sweeps below a directory or a URL: status, when written, progress, best metric and size.

        Args:
            directory: The directory or URL to search.
            sort: By name, or the newest, the best value of each metric or the largest first; or the name of a metric,
                such as val_auroc, the best first.
            json: Print a JSON list.
        """
        return directory, sort, json

    return parse(command, arguments, "raytrain runs")
