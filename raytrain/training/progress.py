"""Progress: the position in a run, its figures so far, and what they become at a validation and at the run's end."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from raytrain.optim.schedules import History
from raytrain.tasks.task import Task
from raytrain.training.phases import added, are_seconds, columns


@dataclass
class Progress:
    """All of it is in every checkpoint."""

    step: int = 0
    """Optimizer steps done in the whole run."""
    epoch: int = 0
    """Epochs done, validation included."""
    validated: int = 0
    """The step of the newest validation, at the end of an epoch or inside one."""
    stalled: int = 0
    """Validations since the best one."""
    epoch_loss: float = 0.0
    """Sum of the losses of this epoch's samples so far."""
    epoch_samples: int = 0
    skipped: int = 0
    """Steps of the run that left the weights as they were, because the loss or the gradients were not finite."""
    epoch_seconds: float = 0.0
    """Seconds of training in this epoch so far, without validation."""
    epoch_validating: float = 0.0
    """Seconds of validation inside this epoch so far."""
    train_seconds: float = 0.0
    """Seconds of training in all epochs but the first, and their samples: the steady state."""
    train_samples: int = 0
    seconds: float = 0.0
    """Seconds of training and validation in the epochs that are done."""
    phases: dict[str, float] = field(default_factory=dict)
    """Of these, the seconds of each of `phases.PHASES`; a checkpoint after an epoch counts in the next one."""
    epoch_phases: dict[str, float] = field(default_factory=dict)
    """The seconds of each phase in this epoch so far, without validation."""
    best: dict[str, Any] = field(default_factory=dict)
    """The best validation's row and the name of its checkpoint."""
    history: list[list[Any]] = field(default_factory=list)
    """[steps done, value of task.monitor] of each validation; None for a value that was not finite."""
    tried: dict[str, float | None] = field(default_factory=dict)
    """What `precision=auto` measured: milliseconds of a pass in each precision; None where it was not finite."""

    @classmethod
    def from_state(cls, values: Any) -> Progress:
        """That of a checkpoint.

        Raises:
            ValueError: it is none.
        """
        default = cls()
        if not isinstance(values, dict) or values.keys() - vars(default).keys():
            raise ValueError("the progress has other fields")
        for name, value in values.items():
            kind = type(getattr(default, name))
            fits = type(value) in (int, float) and math.isfinite(value) if kind is float else type(value) is kind
            if not fits:
                raise ValueError(f"the progress has {name} = {str(value)[:50]}")
        found = cls(**values)
        if "validated" not in values:  # of an older version, which validated at the end of epochs only
            found.validated = 0 if found.epoch_seconds else found.step
            found.stalled = found.epoch - found.best.get("epoch", found.epoch)
        if not all(map(are_seconds, (found.phases, found.epoch_phases))):
            raise ValueError("the progress has other phases")
        if min(found.step, found.epoch, found.epoch_samples, found.validated, found.stalled) < 0:
            raise ValueError("the progress is negative")
        if found.validated > found.step:
            raise ValueError("the progress has a validation after its last step")
        if not all(map(_is_validation, found.history)):
            raise ValueError("the progress has another history of validations")
        return found

    @property
    def spent(self) -> float:
        """Seconds of training and validation of the whole run so far."""
        return self.seconds + self.epoch_seconds + self.epoch_validating

    def spend(self, seconds: float, each: Mapping[str, float]) -> None:
        """Count seconds of training, and those of each phase; validation has a clock of its own."""
        self.epoch_seconds += seconds
        self.epoch_phases = added(self.epoch_phases, each)  # a new dict: a checkpoint may be writing the old one

    def add(self, loss: float, samples: int) -> None:
        """Count a step: the sum of its samples' losses, and how many there were."""
        self.epoch_loss += loss
        self.epoch_samples += samples

    def validate(
        self, task: Task, metrics: dict[str, float], seconds: float, kind: str = "validation"
    ) -> dict[str, Any]:
        """Take in a validation: whether it is the best one, and its time.

        Args:
            metrics: of the validation, without `val_`.
            seconds: that it took.
            kind: `epoch` at an epoch's end.

        Returns:
            Its row of metrics.jsonl, whose figures of training are those of its epoch so far; a metric that is not
            finite, as of a validation that overflowed, is None.

        Raises:
            ValueError: the metric that chooses the best checkpoint is not among them.
        """
        found = {f"val_{name}": value if math.isfinite(value) else None for name, value in metrics.items()}
        if task.monitor not in found:
            raise ValueError(f"task.monitor is {task.monitor!r} and the task's metrics are {sorted(found)}")
        self.epoch_validating += seconds
        row = {
            "kind": kind,
            "epoch": self.epoch + 1,
            "step": self.step,
            "train_loss": self.epoch_loss / self.epoch_samples if self.epoch_samples else None,
            **found,
            "samples_per_second": self.epoch_samples / max(self.epoch_seconds, 1e-9),
            "seconds": self.epoch_seconds + self.epoch_validating,
            **columns(self._spent_in_epoch),
        }
        value, best = row[task.monitor], self.best.get(task.monitor)
        self.history = [*self.history, [self.step, value]]  # a new list: a checkpoint may be writing the old one
        better = value is not None and (best is None or (value > best if task.highest_is_best else value < best))
        self.validated, self.stalled = self.step, self.stalled + 1
        if not self.best or better:
            self.best, self.stalled = {**row, "checkpoint": f"step_{self.step:08d}"}, 0
        return row

    def forget_best(self, step: int) -> bool:
        """Forget the best validation if it came no later than the first one from a step on. Return whether it did."""
        end = next((one for one, _ in self.history if one >= step), step)
        old = bool(self.best) and self.best.get("step", 0) <= end
        if old:
            self.best, self.stalled = {}, 0
        return old

    def end_epoch(self, task: Task, metrics: dict[str, float], seconds: float, epochs: float) -> dict[str, Any]:
        """Close an epoch with its validation; as `validate`.

        Args:
            epochs: of the whole run.
        """
        row = self.validate(task, metrics, seconds, "epoch")
        if self.epoch > 0 or epochs <= 1:
            self.train_seconds += self.epoch_seconds
            self.train_samples += self.epoch_samples
        self.seconds += row["seconds"]
        self.phases = added(self.phases, self._spent_in_epoch)
        self.epoch += 1
        self.epoch_loss, self.epoch_samples, self.epoch_seconds, self.epoch_validating = 0.0, 0, 0.0, 0.0
        self.epoch_phases = {}
        return row

    @property
    def _spent_in_epoch(self) -> dict[str, float]:
        """Seconds of each phase in this epoch so far; none of a run of an older version."""
        if not self.epoch_phases:
            return {}
        return self.epoch_phases | {"validation": self.epoch_validating}

    def validations(self, task: Task) -> History:
        """Return the validations so far, for the schedule."""
        return History(tuple((step, value) for step, value in self.history), task.highest_is_best)

    def over(self, epochs: int, patience: int | None, steps: int | None = None) -> bool:
        """Return whether there is nothing left to train: by the number of steps (or that of epochs, where it is None),
        of which the last one is validated, or by the validations since the best one. Validation's sums are reduced over
        the ranks, so that all of them find the same."""
        ended = self.epoch >= epochs if steps is None else self.step >= steps and self.validated == self.step
        return ended or (patience is not None and self.stalled >= patience)

    def summary(self) -> dict[str, Any]:
        """Return the summary of the run so far: the best metrics, its position, its time and its speed."""
        samples, seconds = self.train_samples, self.train_seconds
        if not seconds:
            samples, seconds = self.epoch_samples, self.epoch_seconds
        return {
            **{name: value for name, value in self.best.items() if name.startswith("val_")},
            "best_epoch": self.best.get("epoch"),
            "best_step": self.best.get("step"),
            "stalled": self.stalled,
            "epochs": self.epoch,
            "steps": self.step,
            **({"skipped_steps": self.skipped} if self.skipped else {}),
            **({"precision_milliseconds": self.tried} if self.tried else {}),
            "seconds": self.spent,
            **columns(added(self.phases, self._spent_in_epoch)),
            "samples_per_second": samples / seconds if seconds else None,
        }


def _is_validation(entry: Any) -> bool:
    """Return whether an entry of a checkpoint's history is one."""
    if not isinstance(entry, list) or len(entry) != 2 or type(entry[0]) is not int:
        return False
    return entry[1] is None or (type(entry[1]) in (int, float) and math.isfinite(entry[1]))
