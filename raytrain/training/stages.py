"""A training in stages: each one goes on from the checkpoint of the one before, with values of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from raytrain.experiment import Experiment
from raytrain.hooks import Hook
from raytrain.optim.stages import staged, uncounted
from raytrain.training.trainer import Trainer


def fit(value: Experiment, made: Callable[[Experiment, Hook], AbstractContextManager[Trainer]]) -> str:
    """Train from the newest checkpoint, or from the start, to the end or to a request to stop.

    Args:
        made: makes the trainer of a stage, with its experiment and a further hook.

    Returns:
        `completed` or `interrupted`, after the summary is written.
    """
    step = 0  # if there is a checkpoint of a later stage, it tells the right one
    while True:
        part, until = staged(value, step)
        end = _End(until, uncounted(value, step))
        with made(part, end) as trainer, trainer.started():
            step = trainer.progress.validated
            value = replace(value, precision=trainer.experiment.precision)  # the first one may choose
            if staged(value, step)[1] == until:
                status = trainer.train()
                if status == "completed" or not end.reached:
                    return status
                step = trainer.progress.validated


class _End(Hook):
    """Ends a stage at its last validation, as a request to stop would; without steps it does nothing.

    Args:
        uncounted: no validation up to the first one from this step on can be the best; 0 for none.
    """

    def __init__(self, until: int | None, uncounted: int):
        self.until, self.uncounted, self.reached = until, uncounted, False

    def start(self, trainer: Any) -> None:
        """Forget the best validation where it is one that does not count."""
        if self.uncounted and trainer.progress.forget_best(self.uncounted) and trainer.writer:
            trainer.writer.forget_best()

    def after_validation_saved(self, trainer: Any, row: Mapping[str, Any]) -> None:
        """End it."""
        if self.until is not None and trainer.progress.step >= self.until and not trainer.stopping:
            self.reached = trainer.stopping = True

    after_epoch_saved = after_validation_saved
