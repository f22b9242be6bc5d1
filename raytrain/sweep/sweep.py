"""A sweep as one value: an experiment, the fields to vary, and the objectives."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import Any

from raytrain import config, errors
from raytrain.config import above, at_least, between
from raytrain.data.folds import AXIS
from raytrain.experiment import Experiment
from raytrain.sweep.constraint import Constraint, parse_constraints
from raytrain.sweep.objective import Objective, parse
from raytrain.sweep.points import check_points
from raytrain.sweep.repeats import seed_of
from raytrain.sweep.schedulers import Complete, Scheduler
from raytrain.sweep.search import RandomSearch, Search
from raytrain.sweep.space import Axis, Grid, apply, check_axes, check_path, combinations, longest, present
from raytrain.sweep.tune_callback import TuneCallback
from raytrain.user_code import parts

FLAGS = (
    *("experiment", "objective", "search", "scheduler", "trials", "budget_seconds", "concurrent", "memory_gib"),
    *("timeout_seconds", "retries", "keep", "constraints", "repeats", "by_fold", "confidence"),
)
"""The fields that the command line can set: all but the axes, the first points and the callbacks."""
_PARTS = {"axes[]": Axis, "search": Search, "scheduler": Scheduler, "callbacks[]": TuneCallback}
ENUMERABLE = 10_000
"""Combinations that are checked one by one before anything starts."""


@dataclass(frozen=True)
class Sweep:
    """Many trials of one experiment that differ in some fields. Pass it to `raytrain.sweep`, or put it in a file as
    `sweep` for the command line."""

    experiment: Experiment
    """What all trials have in common."""
    axes: tuple[Axis, ...]
    """The fields that differ: `Grid`, `Choice`, `Uniform`, `LogUniform`, `Int`."""
    objective: str | tuple[str, ...] | None = None
    """What to look for; None takes the metric that the task monitors. A metric of the task such as val_accuracy or
    val_loss, samples_per_second, peak_memory_bytes, seconds or time_to_accuracy(0.95); two or three of them make a
    Pareto front, of which the first chooses the best. Whether the highest or the lowest metric is the best, the task's
    `directions` say."""
    search: Search = field(default_factory=RandomSearch)
    """What to try next."""
    scheduler: Scheduler = field(default_factory=Complete)
    """Which trials end early, or change on the way."""
    trials: int | None = None
    """How many; None tries every combination of `Grid` axes once. With `repeats`, how many configurations."""
    budget_seconds: float | None = None
    """Seconds after which the sweep ends, with checkpoints of the trials under way, from the first trial on that this
    command trains."""
    concurrent: int | None = None
    """Trials at once; None takes as many as have room: a CPU for each thread of the widest trial's workers, or their
    GPUs, also on nodes that join. None takes one where a time, a speed or memory is an objective or has a limit: trials
    side by side slow each other down."""
    memory_gib: float | None = None
    """Memory that a trial of one worker may take, beyond what torch and Ray take before it begins: on GPUs of the
    device's, on CPUs of the address space. A trial that wants more does not fit, and the sweep goes on."""
    timeout_seconds: float = 600.0
    """Seconds without a finished step after which a trial is taken for stuck."""
    retries: int = 1
    """How often a trial goes on after its process died or was stuck. Lost hosts do not count."""
    keep: int = 1
    """The best so many trials keep their weights; of the others the figures stay."""
    first: tuple[dict[str, Any], ...] = ()
    """Points that the first trials try, by the axes' paths: `({"optimizer.lr": 0.1},)`. The search chooses what a point
    leaves out."""
    constraints: tuple[str, ...] = ()
    """Limits to figures of a trial: `("peak_memory_bytes <= 8 GiB", "val_loss < 0.5")`. A trial that breaks one is
    never the best nor on the front, and searches are told that it failed. Figures are those that `objective` takes; a
    metric is that of the weights that are kept."""
    callbacks: tuple[TuneCallback, ...] = ()
    """Callbacks and loggers of Ray Tune: `(TuneCallback(CSVLoggerCallback),)`."""
    repeats: int = 1
    """Trials of each configuration, with seeds of their own. Configurations rank by their mean, and a search is told
    the mean. One of which a repeat has no result, or breaks a constraint, has no mean."""
    by_fold: bool = False
    """Let the repeats of a configuration be the folds of `data.folds`, with the experiment's own seed: it is trained
    once for each of them, and ranks by the mean of the cross-validation. `repeats` is then the number of folds."""
    confidence: float = 0.95
    """With `repeats` or `by_fold`: the confidence of the means' intervals, and of all statements together that two
    configurations differ."""

    def __post_init__(self) -> None:
        parts.check_kinds(self, _PARTS)
        if self.by_fold and self.repeats == 1:
            object.__setattr__(self, "repeats", max(1, self.experiment.data.folds.count))
        config.check(
            self,
            trials=at_least(1),
            budget_seconds=above(0),
            concurrent=at_least(1),
            memory_gib=above(0),
            timeout_seconds=above(0),
            retries=at_least(0),
            keep=at_least(1),
            repeats=at_least(1),
            confidence=between(0, 1),
        )
        check_axes(self.axes)
        known = [axis.path for axis in self.axes]
        check_points(self.axes, self.first)
        objectives, _ = self.objectives, self.limits
        if not 1 <= len(objectives) <= 3 or len({objective.name for objective in objectives}) < len(objectives):
            raise errors.out_of_range("objective", self.objective, "of one, two or three different names", "Sweep")
        if objectives[0].every_epoch and "task.monitor" in known:
            what, how = f"each trial monitors the objective, {objectives[0].name}", "leave out the axis task.monitor"
            raise errors.UserError(what, "in Sweep.axes", how)
        crossed = all(isinstance(axis, Grid) for axis in self.axes)
        if self.trials is None and not crossed:
            raise errors.UserError(
                "trials must be set, because "
                f"{errors.listed([axis.path for axis in self.axes if not isinstance(axis, Grid)])} is not a Grid",
                "in Sweep",
                "set trials=20, or --trials 20",
            )
        if self.trials is not None and crossed and self.trials > (grid := len(self.grid)):
            what = f"the grid has {grid} combinations and {self.trials} trials are asked for, which would repeat some"
            raise errors.UserError(what, "in Sweep", "leave trials out, or make an axis of another kind")
        for axis in self.axes:
            _check_axis(self.experiment, axis, self.axes)
        decided = [axis.path for axis in self.axes if isinstance(axis, Grid)]
        if not self.search.completes and (decided or self.first):
            name, where = type(self.search).__name__, "in Sweep.axes" if decided else "in Sweep.first"
            what = f"{name} cannot choose values beside those that {decided[0] if decided else 'first'} decides"
            how = "make the axis a Choice" if decided else "let a function give it points_to_evaluate, and wrap that"
            raise errors.UserError(what, where, how)
        self.search.check(self.axes, objectives)
        self._check_steps(known)
        self._check_repeats(known)
        steps, unit = self.experiment.steps, self.scheduler.unit_steps
        # Only the plan knows how many steps an epoch has: until then a trial is as long as it can be.
        most = longest(self.experiment, self.axes) if steps is None else steps
        length = math.ceil(most / self.scheduler.unit_epochs)
        if unit is not None:
            length = math.inf if steps is None else math.ceil(steps / unit)
        self.scheduler.check(self.axes, objectives, self.count, length)

    def _check_steps(self, axes: list[str]) -> None:
        """Check that trials which are counted in steps can be compared.

        Raises:
            UserError: they have no epochs to vary, or a scheduler would compare them after other numbers of steps.
        """
        e, unit = self.experiment, self.scheduler.unit_steps
        lengths = next((axis.examples() for axis in self.axes if axis.path == "steps"), (e.steps,))
        in_steps, kind = lengths != (None,), type(self.scheduler).__name__
        if in_steps and "epochs" in axes:
            what = "an axis over epochs has no effect where steps is set"
            raise errors.UserError(what, "in Sweep.axes", 'use Grid("steps", ...), or leave steps out')
        if isinstance(self.scheduler, Complete) or not (in_steps or unit):
            return
        apart = {"steps", "batch_size"}  # what would have them compared after different times
        if unit is not None:
            apart |= {"epochs", "validate_every_steps"}
            if in_steps and e.validate_every_steps:  # then all validate after the same steps
                apart -= {"batch_size"}
        varied = [path for path in axes if path in apart]
        if varied and unit is None:
            what = f"{kind} compares trials after equal epochs, and with steps set these differ along the axis"
            how = "count the trials in epochs, or use Complete()"
            raise errors.UserError(f"{what} {varied[0]}", "in Sweep.scheduler", how)
        if varied:
            why = "differ in them" if varied[0] == "steps" else "do not validate after equal steps"
            what = f"{kind} counts in steps, and trials {why} along the axis {varied[0]}"
            how = "let the scheduler count in epochs, leave the axis out, or use Complete()"
            raise errors.UserError(what, "in Sweep.scheduler", how)

    def _check_repeats(self, axes: list[str]) -> None:
        """Check that repeats can be compared.

        Raises:
            UserError: their seeds are an axis, there are not as many as folds, or a scheduler ends or changes some of
                them.
        """
        if self.by_fold:
            self._check_folds(axes)
        elif self.repeats > 1 and "seed" in axes:
            what = "an axis over seed has no effect beside repeats, which have seeds of their own"
            raise errors.UserError(what, "in Sweep.axes", "leave the axis out, or set repeats=1")
        if self.repeats > 1 and not isinstance(self.scheduler, Complete):
            what = f"{type(self.scheduler).__name__} would compare repeats that it has ended or changed at other times"
            how = "use Complete(), or let the scheduler find the best values first and repeat those"
            raise errors.UserError(what, "in Sweep.repeats", how)

    def _check_folds(self, axes: list[str]) -> None:
        """Check that each configuration can be repeated on all folds.

        Raises:
            UserError: the experiment has no folds, or other ones than repeats, or an axis changes them.
        """
        count = self.experiment.data.folds.count
        if not count:
            how = "set data=...(folds=Folds(5)), or --data.folds.count 5"
            raise errors.UserError("by_fold repeats on the folds of data.folds, and it has none", "in Sweep", how)
        if self.repeats != count:
            what = f"by_fold repeats each configuration on {count} folds, got repeats={self.repeats}"
            raise errors.UserError(what, "in Sweep.repeats", "leave repeats out")
        if split := [path for path in axes if path == "data" or config.is_below(path, "data.folds")]:
            what = f"an axis over {split[0]} would change the folds on which by_fold compares configurations"
            raise errors.UserError(what, "in Sweep.axes", "leave the axis out, or by_fold")

    @property
    def objectives(self) -> tuple[Objective, ...]:
        """What to look for, read."""
        task, names = self.experiment.task, self.objective
        if names is None:
            task.check_monitor()
            names = task.monitor
        return tuple(parse(name, task.declared()) for name in ((names,) if isinstance(names, str) else names))

    @property
    def limits(self) -> tuple[Constraint, ...]:
        """The constraints, read."""
        return parse_constraints(self.constraints, self.experiment.task.declared())

    @property
    def count(self) -> int:
        """How many trials, over all repeats."""
        return self.configurations * self.repeats

    @property
    def configurations(self) -> int:
        """How many configurations, each of which has `repeats` trials."""
        return self.trials or len(self.grid)

    @cached_property
    def grid(self) -> list[dict[str, Any]]:
        """All combinations of the `Grid` axes' values, in the order in which trials get them."""
        return combinations(axis for axis in self.axes if isinstance(axis, Grid))

    @property
    def rounds(self) -> bool:
        """Whether all configurations are repeated in turn, since no search waits for the mean of one of them."""
        return self.repeats > 1 and (not self.search.learns or all(isinstance(axis, Grid) for axis in self.axes))

    def trial(self, values: dict[str, Any], repeat: int = 0) -> Experiment:
        """Return a trial's experiment.

        Args:
            repeat: which repeat of the configuration, from 0.

        Raises:
            UserError: the values do not fit together.
        """
        found = apply(self.experiment, values)
        if found.scaling.elastic:
            raise errors.elastic_trial(str(found.scaling.workers))
        if self.by_fold:
            found = config.replace(found, AXIS, repeat)
        elif repeat:
            found = replace(found, seed=seed_of(found.seed, repeat))
        first = self.objectives[0]
        if first.every_epoch:  # the weights that are kept are those of the best epoch
            found = config.replace(found, "task.monitor", first.name)
        return found


def _check_axis(base: Experiment, axis: Axis, axes: tuple[Axis, ...]) -> None:
    """Check that the axis' field is there and takes its values: in the base experiment, or beside the others' first;
    within an object that another axis chooses, and under a condition, beside each of those axes' values.

    Raises:
        UserError: it does not.
    """
    if axis.path == "data.root" or axis.path.startswith("checkpoint"):
        raise errors.UserError(
            f"{axis.path} cannot be an axis", "in Sweep.axes", "set it in the experiment; it is not part of the recipe"
        )
    above = [other for other in axes if axis.path.startswith(f"{other.path}.")]
    if not above:
        check_path(base, axis.path)
    for needed, others in _contexts(axis, axes, above):
        for value in axis.examples():
            refused = _refusal(base, {**needed, axis.path: value})
            if refused is None or _refusal(base, {**others, axis.path: value}) is None:
                continue
            if above and refused.what.startswith("unknown field"):
                raise _no_field(base, axis, above[-1], needed) from None
            if not (needed and _refusal(base, needed)):
                raise errors.UserError(
                    f"axis {axis.path} has a value that its field refuses", "in Sweep.axes", str(refused)
                ) from None


def _contexts(axis: Axis, axes: tuple[Axis, ...], above: list[Axis]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield the values that an axis may exist beside: of the axes that it needs, and of all others, which have their
    first value.

    Args:
        above: the axes that choose an object which it is within.
    """
    needed, wanted = list(above), [axis, *above]
    while wanted:
        condition = wanted.pop().when
        found = [other for other in axes if condition and other.path == condition[0] and other not in needed]
        needed, wanted = [*needed, *found], [*wanted, *found]
    firsts = {other.path: other.examples()[0] for other in axes}
    for chosen in product(*(other.examples() for other in needed)):
        values = dict(zip((other.path for other in needed), chosen, strict=True))
        beside = present(axes, {**firsts, **values})
        if axis.path in beside:
            del beside[axis.path]
            yield {path: value for path, value in beside.items() if path in values}, beside


def _refusal(base: Experiment, values: dict[str, Any]) -> errors.UserError | None:
    try:
        apply(base, values)
    except errors.UserError as refused:
        return refused
    return None


def _no_field(base: Experiment, axis: Axis, above: Axis, needed: dict[str, Any]) -> errors.UserError:
    """Return the error of an axis whose field some value of another axis lacks."""
    have = [one for one in above.examples() if _refusal(base, {above.path: one, axis.path: axis.examples()[0]}) is None]
    what = f"{type(needed[above.path]).__name__} has no field {axis.path}"
    names = ", ".join(dict.fromkeys(f'"{type(one).__name__}"' for one in have))
    how = f'give the axis when=("{above.path}", {names})' if have else "change the path, or leave the axis out"
    return errors.UserError(what, "in Sweep.axes", how)


def impossible(sweep: Sweep) -> str | None:
    """Why no combination of the axes' values makes an experiment; None where one does, or there are too many to look.
    A combination that is refused beside others that are not is left to its trial."""
    if math.prod(math.inf if axis.finite is None else len(axis.finite) for axis in sweep.axes) > ENUMERABLE:
        return None
    reason = ""
    for values in combinations(sweep.axes):
        try:
            sweep.trial(values)
            return None
        except errors.UserError as refused:
            reason = str(refused)
    return reason
