"""Ray Tune's schedulers: they stop trials early or change their values."""

from __future__ import annotations

import contextlib
import importlib.util
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from typing import TYPE_CHECKING, Any

import numpy

from raytrain import config, errors
from raytrain.config import above, at_least, within
from raytrain.optim.stages import MUTABLE, changes
from raytrain.sweep.objective import Objective
from raytrain.sweep.population import Taker, perturbed
from raytrain.sweep.space import Axis, Int
from raytrain.sweep.steady import LEAST_REDUCTION, TIME, steady

if TYPE_CHECKING:
    from ray.tune.schedulers import TrialScheduler


@dataclass(frozen=True)
class Scheduler:
    """The base of all schedulers: every trial is trained to its end."""

    @property
    def unit_steps(self) -> int | None:
        """Optimizer steps of its unit of time; None counts in epochs, of which each trial has its own."""
        return None

    @property
    def unit_epochs(self) -> int:
        """Epochs of its unit of time, where that is not counted in steps."""
        return 1

    def check(self, axes: tuple[Axis, ...], objectives: tuple[Objective, ...], trials: int, length: float) -> None:
        """Check that it can work with this sweep.

        Args:
            trials: how many.
            length: of a whole trial, in units of time.

        Raises:
            UserError: it cannot.
        """

    def build(self, tune: Any, axes: tuple[Axis, ...], length: int, seed: int) -> TrialScheduler | None:
        """Return Tune's scheduler; None for its default.

        Args:
            tune: the module `ray.tune.schedulers`, which only a sweep that runs imports.
            axes: the sweep's axes.
            length: of a whole trial, in units of time.
            seed: of what it draws.
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
class Early(Scheduler):
    """The base of schedulers that compare trials by validations."""

    def check(self, axes: tuple[Axis, ...], objectives: tuple[Objective, ...], trials: int, length: float) -> None:
        """It compares trials after validations, by one number."""
        kind = type(self).__name__
        if len(objectives) != 1:
            raise _scheduler_misfit(kind, "compares by one objective", "Sweep.objective")
        if not objectives[0].every_epoch:
            raise _scheduler_misfit(kind, "compares by a metric of the task", "Sweep.objective")


class _Graced(Early):
    """The base of schedulers that give every trial some training before they compare it.

    It is no dataclass: each subclass has the fields in an order of its own.
    """

    grace_epochs: int
    grace_steps: int | None

    @property
    def unit_steps(self) -> int | None:
        """The steps that every trial gets."""
        return self.grace_steps

    def check(self, axes: tuple[Axis, ...], objectives: tuple[Objective, ...], trials: int, length: float) -> None:
        """Trials must be longer than what every one of them gets."""
        super().check(axes, objectives, trials, length)
        if length > self.grace_epochs // self.unit_epochs:
            return
        given, where, how = f"{self.grace_steps} steps", "steps", "change that, or use another scheduler"
        if not self.grace_steps:
            given, where, epochs = f"{self.grace_epochs} epochs", "epochs", self.grace_epochs
            how = f"change that, set grace_steps to fewer steps than {epochs} epochs have, or use another scheduler"
        why = f"has nothing to save: all trials get {given} and have no more"
        raise _scheduler_misfit(type(self).__name__, why, where, how)


@dataclass(frozen=True)
class ASHA(_Graced):
    """Asynchronous successive halving (Li et al., 2020): a trial goes on beyond a rung, of which each has
    `reduction_factor` times the length of the one before, if it is among the best 1/`reduction_factor` there so far."""

    grace_epochs: int = 1
    """Epochs that every trial gets."""
    reduction_factor: float = 3.0
    """One of so many goes on."""
    grace_steps: int | None = None
    """Optimizer steps that every trial gets, in place of `grace_epochs`; with `validate_every_steps` they may end
    inside an epoch."""

    def __post_init__(self) -> None:
        config.check(self, grace_epochs=at_least(1), reduction_factor=above(1), grace_steps=at_least(1))
        _check_unit(self, "grace")

    def build(self, tune: Any, axes: tuple[Axis, ...], length: int, seed: int) -> TrialScheduler:
        """Return Tune's AsyncHyperBandScheduler with one bracket."""
        return steady(tune.ASHAScheduler, tune)(
            time_attr=TIME, max_t=length, grace_period=self.grace_epochs, reduction_factor=self.reduction_factor
        )


@dataclass(frozen=True)
class HyperBand(ASHA):
    """HyperBand (Li et al., 2018): successive halving with several trades of trials against their length at once;
    trials of a rung wait for each other. Rungs are `grace_epochs`, or a multiple of them. `reduction_factor` is 2 or
    more."""

    def __post_init__(self) -> None:
        super().__post_init__()
        config.check(self, reduction_factor=at_least(LEAST_REDUCTION))

    @property
    def unit_epochs(self) -> int:
        """The epochs that every trial gets: Tune's scheduler compares after one unit of time at the earliest."""
        return self.grace_epochs

    @property
    def together(self) -> bool:
        """Trials of a rung wait for each other."""
        return True

    def build(self, tune: Any, axes: tuple[Axis, ...], length: int, seed: int) -> TrialScheduler:
        """Return Tune's HyperBandScheduler."""
        kind = steady(tune.HyperBandScheduler, tune)
        return kind(time_attr=TIME, max_t=length, reduction_factor=self.reduction_factor)


@dataclass(frozen=True)
class MedianStopping(_Graced):
    """Ends a trial whose best validation is worse than the median of the others' means up to the same time (Golovin et
    al., 2017)."""

    grace_epochs: int = 1
    """Epochs that every trial gets."""
    samples: int = 3
    """Other trials that a median is taken of, at the least: a sweep of no more trials than these ends none early."""
    grace_steps: int | None = None
    """Optimizer steps that every trial gets, in place of `grace_epochs`; with `validate_every_steps` they may end
    inside an epoch."""

    def __post_init__(self) -> None:
        config.check(self, grace_epochs=at_least(1), samples=at_least(1), grace_steps=at_least(1))
        _check_unit(self, "grace")

    def build(self, tune: Any, axes: tuple[Axis, ...], length: int, seed: int) -> TrialScheduler:
        """Return Tune's MedianStoppingRule."""
        return steady(tune.MedianStoppingRule, tune)(
            time_attr=TIME,
            grace_period=self.grace_epochs,
            min_samples_required=self.samples,
            min_time_slice=length,  # or trials would take turns until there are enough to compare
        )


@dataclass(frozen=True)
class PBT(Early):
    """Population-based training (Jaderberg et al., 2017): every few epochs the worst trials take the weights, with the
    optimizer's state, of one of the best, and change its values a little. The trials are the population, and wait for
    each other before each comparison."""

    every_epochs: int = 1
    """Epochs between two comparisons."""
    quantile: float = 0.25
    """Share of the population that takes weights, and that gives them."""
    resample: float = 0.25
    """Chance that a value is drawn anew; otherwise it becomes 1.2 or 0.8 times what it was, or a neighbour."""
    every_steps: int | None = None
    """Optimizer steps between two comparisons, in place of `every_epochs`; with `validate_every_steps` these may be
    inside an epoch."""

    def __post_init__(self) -> None:
        config.check(
            self,
            every_epochs=at_least(1),
            quantile=(lambda share: 0 < share <= 0.5, "above 0 and at most 0.5"),
            resample=within(0, 1),
            every_steps=at_least(1),
        )
        _check_unit(self, "every")

    @property
    def unit_steps(self) -> int | None:
        """The steps between two comparisons."""
        return self.every_steps

    @property
    def mutates(self) -> bool:
        """PBT changes values of running trials."""
        return True

    def check(self, axes: tuple[Axis, ...], objectives: tuple[Objective, ...], trials: int, length: float) -> None:
        """A population, epochs to compare after, and axes that may change on the way."""
        super().check(axes, objectives, trials, length)
        kind = type(self).__name__
        if trials < 2:
            raise _scheduler_misfit(kind, "needs a population of 2 trials or more", "Sweep.trials")
        if self.every_steps and length <= 1:
            raise _scheduler_misfit(kind, f"never compares: trials have no more than {self.every_steps} steps", "steps")
        if not self.every_steps and length <= self.every_epochs:
            raise _scheduler_misfit(
                kind, f"never compares: {length} epochs, one comparison in {self.every_epochs}", "epochs"
            )
        for axis in axes:
            if axis.when or any(axis.path.startswith(f"{other.path}.") for other in axes):
                why = f"cannot change {axis.path}, which depends on another axis"
                raise _scheduler_misfit(kind, why, "Sweep.axes", "leave it out, or use another scheduler")
            if not changes(axis.path):
                raise _scheduler_misfit(
                    kind, f"cannot change {axis.path} on the way (only {', '.join(MUTABLE)})", "Sweep.axes"
                )
            if len(classes := {type(value).__name__ for value in axis.examples() if is_dataclass(value)}) > 1:
                raise _scheduler_misfit(
                    kind, f"cannot turn {axis.path} from {' into '.join(sorted(classes))} on the way", "Sweep.axes"
                )

    def build(self, tune: Any, axes: tuple[Axis, ...], length: int, seed: int) -> TrialScheduler:
        """Return the scheduler that lets trials wait for each other."""
        from raytrain.sweep.lockstep import Lockstep  # Ray Tune

        return Lockstep()

    def explored(self, taker: Taker) -> dict[str, Any]:
        """Return the values that a trial goes on with, as `population.Explores` says."""
        return perturbed(taker.axes, taker.values, self.resample, taker.words)


@dataclass(frozen=True)
class PB2(PBT):
    """Population-based bandits (Parker-Holder et al., 2020): as PBT, with new values from a Gaussian process; while it
    has nothing to learn from, as at the first comparison, those of PBT. Needs scikit-learn."""

    def check(self, axes: tuple[Axis, ...], objectives: tuple[Objective, ...], trials: int, length: float) -> None:
        """Ranges alone, and scikit-learn."""
        super().check(axes, objectives, trials, length)
        if importlib.util.find_spec("sklearn") is None:
            raise errors.extra_missing("PB2", "scikit-learn", "sweep")
        for axis in axes:
            if axis.finite is not None or isinstance(axis, Int) or getattr(axis, "step", None):
                why = f"takes Uniform and LogUniform without steps alone, not {axis.path}"
                raise _scheduler_misfit("PB2", why, "axes")

    def explored(self, taker: Taker) -> dict[str, Any]:
        """Return those that Tune's PB2 chooses for what all comparisons have seen, in the order of the trials."""
        from raytrain.sweep.bandits import chosen  # scikit-learn

        with _seeded(taker.words):
            found = chosen(taker)
        # Tune's keeps the donor's values where it knows nothing: such a trial would repeat the donor bit for bit.
        return super().explored(taker) if found == {**taker.values} else found


@contextlib.contextmanager
def _seeded(words: str) -> Iterator[None]:
    """Let Tune's PB2, which draws from the generators of the process, draw what follows from some words."""
    kept, kept_numpy = random.getstate(), numpy.random.get_state()
    random.seed(words)
    numpy.random.seed(random.getrandbits(32))
    try:
        yield
    finally:
        random.setstate(kept)
        numpy.random.set_state(kept_numpy)


def trained(row: Mapping[str, Any] | None, steps_per_epoch: int, unit_steps: int | None, unit_epochs: int = 1) -> float:
    """Return how long a trial has trained by a validation, in a scheduler's units of time.

    Args:
        row: the validation's; None before the first.
        steps_per_epoch: the trial's.
        unit_steps, unit_epochs: the scheduler's.
    """
    if row is None:
        return 0.0
    return row["step"] / (unit_steps or steps_per_epoch * unit_epochs)  # exact where it is whole


def _check_unit(scheduler: Any, name: str) -> None:
    """Check that a scheduler's length is given in epochs or in steps.

    Raises:
        UserError: it is given in both.
    """
    if getattr(scheduler, f"{name}_epochs") != 1 and getattr(scheduler, f"{name}_steps") is not None:
        what = f"{name}_epochs and {name}_steps both say when trials are compared"
        raise errors.UserError(what, f"in {type(scheduler).__name__}", "leave one of them out")


def _scheduler_misfit(
    kind: str, why: str, where: str, how: str = "change that, or use another scheduler"
) -> errors.UserError:
    return errors.UserError(f"{kind} {why}", f"in {where}", how)
