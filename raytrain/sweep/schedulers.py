"""Ray Tune's schedulers: they stop trials early or change their values."""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Callable
from dataclasses import dataclass, is_dataclass
from typing import TYPE_CHECKING, Any

from raytrain import config, errors
from raytrain.config import above, at_least, within
from raytrain.sweep.objective import Objective
from raytrain.sweep.space import Axis, Int

if TYPE_CHECKING:
    from ray.tune.schedulers import TrialScheduler

EPOCH, SCORE = "epoch", "score"
"""The names under which trials report to Tune."""

MUTABLE = ("optimizer", "schedule", "task", "clip_norm", "data.augment")
"""Fields that may change while a run goes on: those that neither the order of samples nor the model depends on."""


@dataclass(frozen=True)
class Scheduler:
    """The base of all schedulers: every trial is trained to its end."""

    def check(self, axes: tuple[Axis, ...], objectives: tuple[Objective, ...], trials: int, epochs: int) -> None:
        """Check that it can work with this sweep.

        Raises:
            UserError: it cannot.
        """

    def build(self, tune: Any, axes: tuple[Axis, ...], epochs: int) -> TrialScheduler | None:
        """Return Tune's scheduler; None for its default.

        Args:
            tune: the module `ray.tune.schedulers`, which only a sweep that runs imports.
            axes: the sweep's axes.
            epochs: of a trial.
        """
        return None

    @property
    def mutates(self) -> bool:
        """Whether it changes the values of trials under way."""
        return False

    @property
    def together(self) -> bool:
        """Whether trials take turns, so that all of them must be there from the beginning."""
        return self.mutates


@dataclass(frozen=True)
class Complete(Scheduler):
    """Every trial is trained to its end."""


@dataclass(frozen=True)
class _Early(Scheduler):
    def check(self, axes: tuple[Axis, ...], objectives: tuple[Objective, ...], trials: int, epochs: int) -> None:
        """It compares trials after each epoch, by one number."""
        kind = type(self).__name__
        if len(objectives) != 1:
            raise _scheduler_misfit(kind, "compares by one objective", "Sweep.objective")
        if not objectives[0].every_epoch:
            raise _scheduler_misfit(kind, "compares by a metric of the task", "Sweep.objective")


@dataclass(frozen=True)
class ASHA(_Early):
    """Asynchronous successive halving (Li et al., 2020): a trial goes on beyond a rung, of which each has
    `reduction_factor` times the epochs of the one before, if it is among the best 1/`reduction_factor` there so far."""

    grace_epochs: int = 1
    """Epochs that every trial gets."""
    reduction_factor: float = 3.0
    """One of so many goes on."""

    def __post_init__(self) -> None:
        config.check(self, grace_epochs=at_least(1), reduction_factor=above(1))

    def check(self, axes: tuple[Axis, ...], objectives: tuple[Objective, ...], trials: int, epochs: int) -> None:
        """There must be an epoch to save."""
        super().check(axes, objectives, trials, epochs)
        if epochs <= self.grace_epochs:
            raise _scheduler_misfit(
                type(self).__name__, f"has nothing to save: {epochs} epochs, {self.grace_epochs} for all", "epochs"
            )

    def build(self, tune: Any, axes: tuple[Axis, ...], epochs: int) -> TrialScheduler:
        """Return Tune's AsyncHyperBandScheduler with one bracket."""
        return tune.ASHAScheduler(
            time_attr=EPOCH, max_t=epochs, grace_period=self.grace_epochs, reduction_factor=self.reduction_factor
        )


@dataclass(frozen=True)
class HyperBand(ASHA):
    """HyperBand (Li et al., 2018): successive halving with several trades of trials against epochs at once; trials of a
    rung wait for each other."""

    @property
    def together(self) -> bool:
        """Trials of a rung wait for each other."""
        return True

    def build(self, tune: Any, axes: tuple[Axis, ...], epochs: int) -> TrialScheduler:
        """Return Tune's HyperBandScheduler."""
        return tune.HyperBandScheduler(time_attr=EPOCH, max_t=epochs, reduction_factor=self.reduction_factor)


@dataclass(frozen=True)
class MedianStopping(_Early):
    """Ends a trial whose best epoch is worse than the median of the others' means up to that epoch (Golovin et al.,
    2017)."""

    grace_epochs: int = 1
    """Epochs that every trial gets."""
    samples: int = 3
    """Trials that a median is taken of, at the least."""

    def __post_init__(self) -> None:
        config.check(self, grace_epochs=at_least(1), samples=at_least(1))

    def build(self, tune: Any, axes: tuple[Axis, ...], epochs: int) -> TrialScheduler:
        """Return Tune's MedianStoppingRule."""
        return tune.MedianStoppingRule(
            time_attr=EPOCH,
            grace_period=self.grace_epochs,
            min_samples_required=self.samples,
            min_time_slice=epochs,  # or trials would take turns until there are enough to compare
        )


@dataclass(frozen=True)
class PBT(_Early):
    """Population-based training (Jaderberg et al., 2017): every few epochs the worst trials take the weights, with the
    optimizer's state, of one of the best, and change its values a little. The trials are the population."""

    every_epochs: int = 1
    """Epochs between two comparisons."""
    quantile: float = 0.25
    """Share of the population that takes weights, and that gives them."""
    resample: float = 0.25
    """Chance that a value is drawn anew; otherwise it becomes 1.2 or 0.8 times what it was, or a neighbour."""

    def __post_init__(self) -> None:
        config.check(
            self,
            every_epochs=at_least(1),
            quantile=(lambda share: 0 < share <= 0.5, "above 0 and at most 0.5"),
            resample=within(0, 1),
        )

    @property
    def mutates(self) -> bool:
        """PBT changes values of running trials."""
        return True

    def check(self, axes: tuple[Axis, ...], objectives: tuple[Objective, ...], trials: int, epochs: int) -> None:
        """A population, epochs to compare after, and axes that may change on the way."""
        super().check(axes, objectives, trials, epochs)
        kind = type(self).__name__
        if trials < 2:
            raise _scheduler_misfit(kind, "needs a population of 2 trials or more", "Sweep.trials")
        if epochs <= self.every_epochs:
            raise _scheduler_misfit(
                kind, f"never compares: {epochs} epochs, one comparison in {self.every_epochs}", "epochs"
            )
        for axis in axes:
            if not any(axis.path == field or axis.path.startswith(f"{field}.") for field in MUTABLE):
                raise _scheduler_misfit(
                    kind, f"cannot change {axis.path} on the way (only {', '.join(MUTABLE)})", "Sweep.axes"
                )
            if len(classes := {type(value).__name__ for value in axis.examples() if is_dataclass(value)}) > 1:
                raise _scheduler_misfit(
                    kind, f"cannot turn {axis.path} from {' into '.join(sorted(classes))} on the way", "Sweep.axes"
                )

    def build(self, tune: Any, axes: tuple[Axis, ...], epochs: int) -> TrialScheduler:
        """Return Tune's PopulationBasedTraining."""
        return tune.PopulationBasedTraining(
            time_attr=EPOCH,
            perturbation_interval=self.every_epochs,
            hyperparam_mutations={axis.path: _drawn(axis) for axis in axes},
            quantile_fraction=self.quantile,
            resample_probability=self.resample,
            custom_explore_fn=lambda values: {**values, **{axis.path: axis.clip(values[axis.path]) for axis in axes}},
            log_config=False,
        )


@dataclass(frozen=True)
class PB2(PBT):
    """Population-based bandits (Parker-Holder et al., 2020): as PBT, with new values from a Gaussian process. Needs
    scikit-learn."""

    def check(self, axes: tuple[Axis, ...], objectives: tuple[Objective, ...], trials: int, epochs: int) -> None:
        """Ranges alone, and scikit-learn."""
        super().check(axes, objectives, trials, epochs)
        if importlib.util.find_spec("sklearn") is None:
            raise errors.extra_missing("PB2", "scikit-learn", "sweep")
        for axis in axes:
            if axis.finite is not None or isinstance(axis, Int):
                raise _scheduler_misfit("PB2", f"takes Uniform and LogUniform alone, not {axis.path}", "axes")

    def build(self, tune: Any, axes: tuple[Axis, ...], epochs: int) -> TrialScheduler:
        """Return Tune's PB2."""
        from ray.tune.schedulers.pb2 import PB2 as TunePB2  # scikit-learn: `tune` does not have it

        return TunePB2(
            time_attr=EPOCH,
            perturbation_interval=self.every_epochs,
            hyperparam_bounds={axis.path: list(axis.examples()) for axis in axes},
            quantile_fraction=self.quantile,
            log_config=False,
        )


def _drawn(axis: Axis) -> list[Any] | Callable[[], Any]:
    """Return what Tune draws new values from: a list, of which it also takes neighbours, or a function."""
    if axis.finite is not None:
        return list(axis.finite)
    return lambda: axis.draw(random.random())


def _scheduler_misfit(kind: str, why: str, where: str) -> errors.UserError:
    return errors.UserError(f"{kind} {why}", f"in {where}", "change that, or use another scheduler")
