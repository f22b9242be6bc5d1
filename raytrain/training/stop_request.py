"""The request to stop a run: a file named `stop` in its directory."""

from __future__ import annotations

import os
import time
from pathlib import Path

from raytrain import errors

_MISSING_SECONDS = 30.0
"""How long the run's directory may be missing, for example while its disk is remounted."""


class StopRequest:
    """A watch for the file `stop` in a run's directory."""

    def __init__(self, run: Path):
        self.run, self._last_seen = run, time.monotonic()

    def made(self) -> bool:
        """Return whether the run was asked to stop.

        Raises:
            UserError: the run's directory has gone, so that no checkpoint can be written.
        """
        if os.path.isdir(self.run):
            self._last_seen = time.monotonic()
        elif time.monotonic() - self._last_seen > _MISSING_SECONDS:
            raise errors.UserError(
                f"the run's directory has been missing for {_MISSING_SECONDS:.0f} s",
                self.run,
                "it was moved or removed, or its disk is not mounted: resume the run where its directory is",
            )
        return os.path.exists(self.run / "stop")
