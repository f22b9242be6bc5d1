"""When a run validates, writes checkpoints and ends."""

from __future__ import annotations

import time
from enum import IntFlag

from raytrain.experiment import Experiment


class Ask(IntFlag):
    """What rank 0 asks of all ranks. They agree on it in the collective that reduces losses (`LossLog.reduce`)."""

    NOTHING = 0
    STOP = 1
    """To write a checkpoint and leave."""
    SAVE = 2
    """To write a checkpoint and go on."""
    END = 4
    """To end the run, with a validation and a checkpoint."""


class Timing:
    """What is due after a step: by its number, which all ranks know, or by rank 0's clock.

    Args:
        value: the experiment.
        steps_per_epoch: optimizer steps of an epoch.
        spent: seconds of training and validation in earlier sessions, as the checkpoint has them.

    Attributes:
        out_of_time: whether the run ends because of `max_hours`.
        reason: why a hook ends the run; empty where none does.
    """

    def __init__(self, value: Experiment, steps_per_epoch: int, spent: float):
        self.steps_per_epoch, self.last = steps_per_epoch, value.all_steps(steps_per_epoch)
        self.every_steps, self.validate_every = value.checkpoint.every_steps, value.validate_every_steps
        minutes, hours = value.checkpoint.every_minutes, value.max_hours
        self._every_seconds = None if minutes is None else 60 * minutes
        self._most_seconds = None if hours is None else 3600 * hours
        self._saved = time.monotonic()
        self.out_of_time = self._out_of_time(spent)
        self.reason = ""

    def end(self, why: str) -> None:
        """End the run with a validation and a checkpoint, on all ranks alike. The first reason counts."""
        self.reason = self.reason or why

    @property
    def ended(self) -> bool:
        """Whether the run ends after the next validation, whatever is left to train."""
        return self.out_of_time or bool(self.reason)

    def next_validation(self, step: int) -> int:
        """Return the first step after `step` that a validation follows: the last one of an epoch or of the run, or a
        multiple of `validate_every_steps`."""
        every = (self.steps_per_epoch, self.validate_every or self.steps_per_epoch)
        found = min((step // steps + 1) * steps for steps in every)
        return min(found, self.last) if step < self.last else found

    def remaining(self, step: int, validated: int) -> int:
        """Return the number of steps up to the next validation; 0 if it is due after the present step, which a request
        to stop or a resume with an earlier end can leave without one.

        Args:
            step: steps done.
            validated: the step of the newest validation.
        """
        if validated == step:
            return self.next_validation(step) - step
        return 0 if self.ended or step >= self.last else self.next_validation(step - 1) - step

    def saves(self, step: int) -> bool:
        """Return whether `checkpoint.every_steps` asks for a checkpoint after a step. Each validation has its own."""
        return bool(self.every_steps and step % self.every_steps == 0 and not self._validates(step))

    def saved(self) -> None:
        """Count the time of `checkpoint.every_minutes` from here."""
        self._saved = time.monotonic()

    def asks(self, step: int, spent: float, stop: bool) -> Ask:
        """Return what rank 0 asks for after a step.

        Args:
            spent: seconds of training and validation so far.
            stop: whether the user asks to stop.
        """
        found = Ask.STOP if stop else Ask.NOTHING
        late = self._every_seconds is not None and time.monotonic() - self._saved >= self._every_seconds
        if late and not self._validates(step):
            found |= Ask.SAVE
        if self._out_of_time(spent):
            found |= Ask.END
        return found

    def _validates(self, step: int) -> bool:
        return self.next_validation(step - 1) == step

    def _out_of_time(self, spent: float) -> bool:
        return self._most_seconds is not None and spent >= self._most_seconds
