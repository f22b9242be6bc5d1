"""Learning-rate schedules."""

from __future__ import annotations

import math
from dataclasses import dataclass

from raytrain.config import above, at_least, check


@dataclass(frozen=True)
class Schedule:
    """The base of all schedules: a factor on the learning rate as a pure function of the step. Constant by default."""

    def factor(self, step: int, steps_per_epoch: int, epochs: int) -> float:
        """Return the factor for a step, counted from 0 over the whole run."""
        return 1.0


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

    def factor(self, step: int, steps_per_epoch: int, epochs: int) -> float:
        """Return gamma to the power of the number of drops so far."""
        return self.gamma ** (step // steps_per_epoch // self.step_size)


@dataclass(frozen=True)
class Cosine(Schedule):
    """Linear warm-up, then half a cosine to `final` at the run's end (Loshchilov and Hutter, 2017)."""

    warmup_epochs: float = 0.0
    """Epochs of linear warm-up from zero; may be a fraction."""
    final: float = 0.0
    """Factor at the end."""

    def __post_init__(self) -> None:
        check(self, warmup_epochs=at_least(0), final=at_least(0))

    def factor(self, step: int, steps_per_epoch: int, epochs: int) -> float:
        """Return the factor on the ramp or on the cosine."""
        warmup, total = round(self.warmup_epochs * steps_per_epoch), steps_per_epoch * epochs
        if step < warmup:
            return (step + 1) / warmup
        progress = (step - warmup) / max(1, total - warmup)
        return self.final + (1 - self.final) * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))


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
        check(self, rise=(lambda share: 0 < share < 1, "between 0 and 1"), first=above(0), final=at_least(0))

    def factor(self, step: int, steps_per_epoch: int, epochs: int) -> float:
        """Return the factor on one of the two cosines."""
        total = steps_per_epoch * epochs
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

    def factor(self, step: int, steps_per_epoch: int, epochs: int) -> float:
        """Return the learning rate, which grows by the same factor in every step."""
        return self.low * (self.high / self.low) ** (step / (self.steps - 1))


def _cosine(start: float, end: float, way: float) -> float:
    return end + (start - end) * 0.5 * (1 + math.cos(math.pi * way))
