"""Learning-rate schedules."""

from __future__ import annotations

import math
from dataclasses import dataclass

from raytrain.config import above, at_least, check


@dataclass(frozen=True)
class Schedule:
    """The base of all schedules: a factor on the learning rate, a pure function of the step. Constant by default."""

    def factor(self, step: int, steps_per_epoch: int, epochs: int) -> float:
        """The factor for a step, counted from 0 over the whole run."""
        return 1.0


@dataclass(frozen=True)
class Constant(Schedule):
    """The same learning rate throughout."""


@dataclass(frozen=True)
class StepLR(Schedule):
    """Multiplies the learning rate by `gamma` every `step_size` epochs (torch.optim.lr_scheduler.StepLR)."""

    step_size: int = 7
    """Epochs between two drops."""
    gamma: float = 0.1
    """Factor of each drop."""

    def __post_init__(self) -> None:
        check(self, step_size=at_least(1), gamma=above(0))

    def factor(self, step: int, steps_per_epoch: int, epochs: int) -> float:
        """gamma to the number of drops so far."""
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
        """The factor in the middle of the ramp or of the cosine."""
        warmup, total = round(self.warmup_epochs * steps_per_epoch), steps_per_epoch * epochs
        if step < warmup:
            return (step + 1) / warmup
        progress = (step - warmup) / max(1, total - warmup)
        return self.final + (1 - self.final) * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))


@dataclass(frozen=True)
class OneCycle(Schedule):
    """Up along half a cosine and down along another (Smith and Topin, 2018; torch.optim.lr_scheduler.OneCycleLR), with
    the optimizer's learning rate at the top."""

    rise: float = 0.3
    """Share of the run's steps that go up."""
    first: float = 0.04
    """Factor of the first step."""
    final: float = 4e-6
    """Factor of the last step."""

    def __post_init__(self) -> None:
        check(self, rise=(lambda share: 0 < share < 1, "between 0 and 1"), first=above(0), final=at_least(0))

    def factor(self, step: int, steps_per_epoch: int, epochs: int) -> float:
        """The factor on one of the two cosines."""
        total = steps_per_epoch * epochs
        top = max(self.rise * total - 1, 1e-9)
        if step <= top:
            return _cosine(self.first, 1.0, step / top)
        return _cosine(1.0, self.final, min(1.0, (step - top) / max(total - 1 - top, 1e-9)))


@dataclass(frozen=True)
class Rising(Schedule):
    """Exponentially from `low` to `high`, for the learning-rate range test: the factors are the rates, those of an
    optimizer whose learning rate is 1."""

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
        """The learning rate: the same multiple of the last step's in every step."""
        return self.low * (self.high / self.low) ** (step / (self.steps - 1))


def _cosine(start: float, end: float, way: float) -> float:
    return end + (start - end) * 0.5 * (1 + math.cos(math.pi * way))
