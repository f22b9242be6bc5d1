"""Workers that wait after each validation until they may train on: a sweep's trial of several workers does."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from raytrain.files import write_atomically
from raytrain.hooks import Hook
from raytrain.training.timing import Ask

GO = "go"
"""The file in the run's directory with the step up to whose validation the workers have leave to train on."""
_POLL_SECONDS = 0.02


class Gate(Hook):
    """Waits on rank 0; the other ranks wait for it in a collective, and all of them end alike."""

    def after_validation_saved(self, trainer: Any, row: Mapping[str, Any]) -> None:
        """Wait."""
        if trainer.over:
            return
        if trainer.ranks.rank == 0:
            while _leave(trainer.stop_request.run) < row["step"] and not trainer.stop_request.made():
                time.sleep(_POLL_SECONDS)
        trainer.clock = time.monotonic()  # the wait is no training
        trainer.stopping |= bool(trainer.flush() & Ask.STOP)

    after_epoch_saved = after_validation_saved


def let(run: Path, step: int) -> None:
    """Let the workers of a run train on after the validation of a step."""
    write_atomically(run / GO, str(step))


def _leave(run: Path) -> int:
    with contextlib.suppress(OSError, ValueError):
        return int((run / GO).read_text())
    return -1
