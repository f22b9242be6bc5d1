"""The command serve."""

from __future__ import annotations

import sys

from raytrain.run.run import Run
from raytrain.tools import serve as serving
from raytrain.tools.serving import Serving


def serve(run: Run, how: Serving, address: str | None, verbose: bool) -> int:
    """Serve a run until a signal ends the command. The exit status is 1 if the cluster dies."""
    serving.serve(run, how, address, verbose, lambda line: print(line, flush=True))
    print("error: the cluster no longer answers; start the command again", file=sys.stderr)
    return 1
