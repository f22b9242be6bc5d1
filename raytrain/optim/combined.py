"""Schedules of schedules: a warm-up before another one, and several in a row. Each counts its steps from its start."""

from __future__ import annotations

from dataclasses import dataclass, field

from raytrain import errors
from raytrain.config import above, check
from raytrain.optim.schedules import Constant, History, Schedule, counted, milestone_rule, warm_throughout


@dataclass(frozen=True)
class WarmUp(Schedule):
    """Rise linearly from zero to the first learning rate of another schedule, which then begins."""

    schedule: Schedule = field(default_factory=Constant)
    """What comes after the warm-up; it ends with the run."""
    epochs: float = 1.0
    """Epochs of the warm-up; may be a fraction."""

    def __post_init__(self) -> None:
        check(self, epochs=above(0))

    def factor(self, step: int, steps_per_epoch: int, epochs: float) -> float:
        """Return the factor without validations."""
        return self.lr(1.0, step, steps_per_epoch, epochs)

    def lr(self, base: float, step: int, steps_per_epoch: int, epochs: float, history: History = History()) -> float:
        """Return the learning rate on the ramp, or that of the other schedule."""
        ramp = round(self.epochs * steps_per_epoch)
        left = max(epochs - ramp / steps_per_epoch, 1 / steps_per_epoch)
        if step < ramp:
            return self.schedule.lr(base, 0, steps_per_epoch, left, History((), history.highest_is_best)) * (
                (step + 1) / ramp
            )
        return self.schedule.lr(base, step - ramp, steps_per_epoch, left, history.after(ramp))

    def unreached(self, epochs: float) -> list[str]:
        """Return a line if the warm-up takes the whole run."""
        return warm_throughout(self.epochs, epochs) or self.schedule.unreached(epochs - self.epochs)


@dataclass(frozen=True)
class SequentialLR(Schedule):
    """One schedule after the other (torch.optim.lr_scheduler.SequentialLR)."""

    schedules: tuple[Schedule, ...] = ()
    """The schedules; each ends where the next one begins, and the last one with the run."""
    milestones: tuple[float, ...] = ()
    """The epochs at which the second schedule and those after it begin; may be fractions."""

    def __post_init__(self) -> None:
        check(self, milestones=(lambda epochs: not epochs or milestone_rule[0](epochs), milestone_rule[1]))
        if len(self.schedules) != len(self.milestones) + 1:
            raise errors.UserError(
                f"{len(self.schedules)} schedules need {max(len(self.schedules) - 1, 0)} milestones between them, got "
                f"{len(self.milestones)}",
                "in SequentialLR",
                "write SequentialLR((LinearLR(epochs=2), StepLR()), milestones=(2,))",
            )

    def factor(self, step: int, steps_per_epoch: int, epochs: float) -> float:
        """Return the factor without validations."""
        return self.lr(1.0, step, steps_per_epoch, epochs)

    def lr(self, base: float, step: int, steps_per_epoch: int, epochs: float, history: History = History()) -> float:
        """Return the learning rate of the schedule whose turn it is."""
        starts = [0, *(round(epoch * steps_per_epoch) for epoch in self.milestones)]
        place = sum(step >= start for start in starts) - 1
        end = starts[place + 1] if place + 1 < len(starts) else round(epochs * steps_per_epoch)
        length = max(end - starts[place], 1) / steps_per_epoch
        schedule, start = self.schedules[place], starts[place]
        return schedule.lr(base, step - start, steps_per_epoch, length, history.after(start))

    def unreached(self, epochs: float) -> list[str]:
        """Return a line if the last schedule never begins."""
        if not self.milestones or self.milestones[-1] < epochs:
            return []
        last, start = type(self.schedules[-1]).__name__, self.milestones[-1]
        return [f"{last} never begins: its milestone is {counted(start)}, and training ends after {epochs:.3g}"]
