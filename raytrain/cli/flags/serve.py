"""The flags of the command serve."""

from __future__ import annotations

from typing import Annotated

import tyro

from raytrain.cli.flags.parsing import FLAT, RUN, parse
from raytrain.run.run import Run
from raytrain.tools.serving import Serving, check_installed


def serve(arguments: list[str]) -> tuple[Run, Serving, str | None, bool]:
    """Return the run, how it is served, the cluster's address, and whether Ray's messages are shown."""

    def command(
        run: tyro.conf.Positional[Annotated[str, RUN]],
        options: Annotated[Serving, FLAT] = Serving(),
        address: str | None = None,
        verbose: bool = False,
    ) -> tuple:
        """Answer images over HTTP with the model of a run's best checkpoint, until Ctrl-C.

        GET / is a page to drop an image on, POST /predict takes an image and answers in JSON, GET /health says what is
        served.

        Args:
            address: Address of a running Ray cluster, or `auto`; by default RAY_ADDRESS, or else this machine alone.
            verbose: Show Ray's messages.
        """
        return run, options, address, verbose

    path, how, address, verbose = parse(command, arguments, "raytrain serve")
    check_installed()
    return Run(path), how, address, verbose
