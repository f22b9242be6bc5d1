"""TuneScheduler: any scheduler of Ray Tune that stops or pauses trials."""

from __future__ import annotations

import importlib
import math
from dataclasses import dataclass
from typing import Any, ClassVar

from raytrain import config, errors
from raytrain.config import at_least
from raytrain.sweep.objective import Objective
from raytrain.sweep.schedulers import Early
from raytrain.sweep.space import Axis
from raytrain.sweep.steady import LEAST_REDUCTION, SCORE, TIME, steady
from raytrain.user_code.wrappers import Wrapped, Wraps, target_of, where_is


@dataclass(frozen=True, repr=False)
class TuneScheduler(Wrapped, Early):
    """A scheduler of Ray Tune: `TuneScheduler(AsyncHyperBandScheduler, grace_period=2)`.

    The first argument is a class derived from `ray.tune.schedulers.TrialScheduler`, or a function of your own that
    returns such a scheduler. All other arguments are given by name and become fields. Times are counted in epochs, or
    in units of `unit_steps` optimizer steps: such is the figure `trained`, which is the `time_attr` that is left out. A
    `max_t` that is left out is the length of a trial. Only `PBT` and `PB2` may change values of trials under way.
    """

    unit_steps: int | None = None  # type: ignore[assignment]
    """Optimizer steps of its unit of time; None counts in epochs."""
    pauses: bool = False
    """Whether a scheduler of your own pauses trials until others have come as far: then all of them are proposed at the
    beginning, as under HyperBandScheduler."""

    _wraps: ClassVar[Wraps] = Wraps(
        "a class derived from ray.tune.schedulers.TrialScheduler or a function that returns a scheduler",
        "AsyncHyperBandScheduler",
        ("ray.tune.schedulers", "TrialScheduler"),
        hidden=(
            ("metric", "the objective of the sweep is its metric"),
            ("mode", "the objective of the sweep has a direction"),
        ),
        derived=("time_attr", "max_t"),
    )
    """What it wraps."""

    def __post_init__(self) -> None:
        config.check(self, unit_steps=at_least(1))

    @property
    def together(self) -> bool:
        """Whether its trials wait for each other."""
        tune = importlib.import_module("ray.tune.schedulers")
        return self.pauses or isinstance(self._scheduler(2), tune.HyperBandScheduler | tune.MedianStoppingRule)

    def check(self, axes: tuple[Axis, ...], objectives: tuple[Objective, ...], trials: int, length: float) -> None:
        """Check that it can be made, changes no values, and takes the objective."""
        super().check(axes, objectives, trials, length)
        made, where = self._scheduler(2 if math.isinf(length) else int(length)), f"in {where_is(target_of(type(self)))}"
        if not made.set_search_properties(SCORE, objectives[0].mode):  # Tune finds that when the data has been read
            how = "leave metric and mode out: the objective of the sweep is its metric, and has a direction"
            raise errors.UserError(f"{type(self).__name__} has a metric or a mode of its own", where, how)

    def build(self, tune: Any, axes: tuple[Axis, ...], length: int, seed: int) -> Any:
        """Return Tune's scheduler."""
        found = self._scheduler(length)
        found.__class__ = steady(type(found), tune)
        return found

    def _scheduler(self, length: int) -> Any:
        """Return a new scheduler.

        Raises:
            UserError: it cannot be made, or is none that a sweep can run.
        """
        tune, name, target = importlib.import_module("ray.tune.schedulers"), type(self).__name__, target_of(type(self))
        if isinstance(target, type):  # before it asks for arguments that are of no use
            _check_kind(target, tune)
        found = self._made("scheduler", time_attr=TIME, max_t=length)
        _check_kind(type(found), tune)
        if isinstance(found, tune.HyperBandScheduler) and found._eta < LEAST_REDUCTION:
            raise errors.out_of_range("reduction_factor", found._eta, f"of at least {LEAST_REDUCTION}", name)
        return found


def _check_kind(kind: type, tune: Any) -> None:
    """Check that a class of schedulers is one that a sweep can run.

    Raises:
        UserError: it is not.
    """
    changing = (tune.PopulationBasedTraining, tune.PopulationBasedTrainingReplay, tune.ResourceChangingScheduler)
    if issubclass(kind, changing):
        what = f"{kind.__name__} changes trials under way, which only PBT and PB2 may"
        raise errors.UserError(what, "in Sweep.scheduler", "use PBT() or PB2()")
    if issubclass(kind, tune.HyperBandForBOHB):
        what = f"{kind.__name__} tells a TuneBOHB of each pause, and a sweep has none"
        raise errors.UserError(what, "in Sweep.scheduler", "use HyperBand(), or ASHA() with TPE()")
