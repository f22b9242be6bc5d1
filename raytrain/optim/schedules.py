"""Learning-rate schedules."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from raytrain.config import Rule, above, at_least, between, check


def _rises(numbers: tuple[float, ...]) -> bool:
    return all(low < high < math.inf for low, high in zip((0, *numbers), numbers, strict=False))


milestone_rule: Rule = (lambda milestones: len(milestones) > 0 and _rises(milestones), "above 0 and in rising order")
"""The rule for milestones."""


class History(NamedTuple):
    """What a run has found of the metric that chooses its best checkpoint.

    Attributes:
        values: (optimizer steps done, value) of each validation, the oldest first; None for a value that was not
            finite.
        highest_is_best: as the task declares it.
    """

    values: tuple[tuple[int, float | None], ...] = ()
    highest_is_best: bool = False

    def after(self, step: int) -> History:
        """Return the history of what comes after a step, with steps counted from there."""
        values = tuple((done - step, value) for done, value in self.values if done > step)
        return History(values, self.highest_is_best)


@dataclass(frozen=True)
class Schedule:
    """The base of all schedules: the learning rate as a pure function of the step, and of the validations before it.
    Constant by default. Override `factor`; or `lr`, if the rates are absolute or depend on validations."""

    def factor(self, step: int, steps_per_epoch: int, epochs: float) -> float:
        """Return the factor on `optimizer.lr` for a step, counted from 0 over the whole run."""
        return 1.0

    def lr(self, base: float, step: int, steps_per_epoch: int, epochs: float, history: History = History()) -> float:
        """Return the learning rate of a step.

        Args:
            base: the optimizer's learning rate, scaled to the batch.
            step: counted from 0 over the whole run.
            epochs: of the whole run; may be a fraction.
            history: the validations before the step.
        """
        return base * self.factor(step, steps_per_epoch, epochs)

    def unreached(self, epochs: float) -> list[str]:
        """Return a line for the plan if a run of so many epochs ends before a part of the schedule begins; by default
        none."""
        return []


@dataclass(frozen=True)
class Constant(Schedule):
    """A constant learning rate."""


@dataclass(frozen=True)
class StepLR(Schedule):
    """Multiply the learning rate by `gamma` every `step_size` epochs (torch.optim.lr_scheduler.StepLR)."""

    step_size: int = 7
    """Epochs between two drops."""
    gamma: float = 0.1
    """Factor of each drop."""

    def __post_init__(self) -> None:
        check(self, step_size=at_least(1), gamma=above(0))

    def factor(self, step: int, steps_per_epoch: int, epochs: float) -> float:
        """Return gamma to the power of the number of drops so far."""
        return self.gamma ** (step // steps_per_epoch // self.step_size)


@dataclass(frozen=True)
class MultiStepLR(Schedule):
    """Multiply the learning rate by `gamma` at each milestone (torch.optim.lr_scheduler.MultiStepLR)."""

    milestones: tuple[float, ...] = (30, 60)
    """Epochs after which it drops, in rising order; may be fractions."""
    gamma: float = 0.1
    """Factor of each drop."""

    def __post_init__(self) -> None:
        check(self, milestones=milestone_rule, gamma=above(0))

    def factor(self, step: int, steps_per_epoch: int, epochs: float) -> float:
        """Return gamma to the power of the number of milestones so far."""
        return self.gamma ** sum(step >= round(epoch * steps_per_epoch) for epoch in self.milestones)


@dataclass(frozen=True)
class ExponentialLR(Schedule):
    """Multiply the learning rate by `gamma` after each epoch (torch.optim.lr_scheduler.ExponentialLR)."""

    gamma: float = 0.95
    """Factor of each epoch."""

    def __post_init__(self) -> None:
        check(self, gamma=above(0))

    def factor(self, step: int, steps_per_epoch: int, epochs: float) -> float:
        """Return gamma to the power of the number of epochs so far."""
        return self.gamma ** (step // steps_per_epoch)


@dataclass(frozen=True)
class LinearLR(Schedule):
    """Change the learning rate linearly with the steps (torch.optim.lr_scheduler.LinearLR)."""

    start: float = 1 / 3
    """Factor of the first step."""
    end: float = 1.0
    """Factor from the end of the change on."""
    epochs: float | None = None
    """Epochs that the change takes; None takes the whole run."""

    def __post_init__(self) -> None:
        check(self, start=above(0), end=at_least(0), epochs=above(0))

    def factor(self, step: int, steps_per_epoch: int, epochs: float) -> float:
        """Return the factor on the line, or its end."""
        return self.start + (self.end - self.start) * _share(step, steps_per_epoch, self.epochs or epochs)


@dataclass(frozen=True)
class PolynomialLR(Schedule):
    """Let the learning rate fall to zero as a power of what is left (torch.optim.lr_scheduler.PolynomialLR)."""

    power: float = 1.0
    """The power; 1 falls linearly."""
    epochs: float | None = None
    """Epochs until it is zero; None takes the whole run."""

    def __post_init__(self) -> None:
        check(self, power=above(0), epochs=above(0))

    def factor(self, step: int, steps_per_epoch: int, epochs: float) -> float:
        """Return the power of the share of steps that is left."""
        return (1 - _share(step, steps_per_epoch, self.epochs or epochs)) ** self.power


@dataclass(frozen=True)
class CosineRestarts(Schedule):
    """Half a cosine to `final`, again and again from the full learning rate (Loshchilov and Hutter, 2017;
    torch.optim.lr_scheduler.CosineAnnealingWarmRestarts, stepped after every batch)."""

    epochs: float = 10
    """Epochs of the first cycle; may be a fraction."""
    multiple: int = 1
    """How many times as long as the one before each cycle is."""
    final: float = 0.0
    """Factor at the end of a cycle."""

    def __post_init__(self) -> None:
        check(self, epochs=above(0), multiple=at_least(1), final=at_least(0))

    def factor(self, step: int, steps_per_epoch: int, epochs: float) -> float:
        """Return the factor on the cosine of the present cycle."""
        length = max(1, round(self.epochs * steps_per_epoch))
        if self.multiple == 1:
            step %= length
        while step >= length:
            step, length = step - length, length * self.multiple
        return _cosine(1.0, self.final, step / length)


@dataclass(frozen=True)
class Cosine(Schedule):
    """Linear warm-up, then half a cosine to `final` at the run's end (Loshchilov and Hutter, 2017)."""

    warmup_epochs: float = 0.0
    """Epochs of linear warm-up from zero; may be a fraction."""
    final: float = 0.0
    """Factor at the end."""

    def __post_init__(self) -> None:
        check(self, warmup_epochs=at_least(0), final=at_least(0))

    def factor(self, step: int, steps_per_epoch: int, epochs: float) -> float:
        """Return the factor on the ramp or on the cosine."""
        warmup, total = round(self.warmup_epochs * steps_per_epoch), round(steps_per_epoch * epochs)
        if step < warmup:
            return (step + 1) / warmup
        progress = (step - warmup) / max(1, total - warmup)
        return self.final + (1 - self.final) * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))

    def unreached(self, epochs: float) -> list[str]:
        """Return a line if the warm-up takes the whole run."""
        return warm_throughout(self.warmup_epochs, epochs)


@dataclass(frozen=True)
class OneCycle(Schedule):
    """Rise along half a cosine to the optimizer's learning rate, then fall along another (Smith and Topin, 2018;
    torch.optim.lr_scheduler.OneCycleLR)."""

    rise: float = 0.3
    """Share of the run's steps in which the learning rate rises."""
    first: float = 0.04
    """Factor of the first step."""
    final: float = 4e-6
    """Factor of the last step."""

    def __post_init__(self) -> None:
        check(self, rise=between(0, 1), first=above(0), final=at_least(0))

    def factor(self, step: int, steps_per_epoch: int, epochs: float) -> float:
        """Return the factor on one of the two cosines."""
        total = round(steps_per_epoch * epochs)
        top = max(self.rise * total - 1, 1e-9)
        if step <= top:
            return _cosine(self.first, 1.0, step / top)
        return _cosine(1.0, self.final, min(1.0, (step - top) / max(total - 1 - top, 1e-9)))


@dataclass(frozen=True)
class Rising(Schedule):
    """Rise exponentially from `low` to `high`: the range test, with an optimizer whose learning rate is 1."""

    steps: int = 100
    """Steps from the lowest learning rate to the highest."""
    low: float = 1e-7
    """Learning rate of the first step."""
    high: float = 10.0
    """Learning rate of the last step."""

    def __post_init__(self) -> None:
        check(
            self,
            steps=at_least(10),
            low=above(0),
            high=(lambda high: self.low < high < math.inf, f"above low, which is {self.low}"),
        )

    def factor(self, step: int, steps_per_epoch: int, epochs: float) -> float:
        """Return the learning rate, which grows by the same factor in every step."""
        return self.low * (self.high / self.low) ** (step / (self.steps - 1))


def warm_throughout(warmup: float, epochs: float) -> list[str]:
    """Return a line for the plan if a warm-up of so many epochs does not end before the run."""
    if warmup < epochs:
        return []
    return [f"the learning rate rises to the end: the warm-up takes {counted(warmup)}, and training {epochs:.3g}"]


def counted(epochs: float) -> str:
    """Return a number of epochs for people."""
    return f"{epochs:g} epoch{'' if epochs == 1 else 's'}"


def _share(step: int, steps_per_epoch: int, epochs: float) -> float:
    """Return the share of some epochs that is done, at most 1."""
    return min(1.0, step / max(1, round(steps_per_epoch * epochs)))


def _cosine(start: float, end: float, way: float) -> float:
    return end + (start - end) * 0.5 * (1 + math.cos(math.pi * way))
