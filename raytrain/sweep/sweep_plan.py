"""The plan of a sweep: its trials, how many run at once, and what they read."""

from __future__ import annotations

import contextlib
import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from raytrain import config, errors, files
from raytrain.data.folds import AXIS
from raytrain.driver import data_room, plan, sizing
from raytrain.driver.plan import Plan
from raytrain.driver.resources import THIS_MACHINE, Resources
from raytrain.experiment import Experiment, Scaling
from raytrain.loggers import check_loggers
from raytrain.sweep import fold_groups, record, ways
from raytrain.sweep.schedulers import Complete
from raytrain.sweep.space import Axis, Grid, check_path, combinations, longest, present
from raytrain.sweep.sweep import Sweep

_TAKES = 1 << 24
"""Bytes that the plan counts for a trial's logs and metrics, besides its checkpoints."""
_ROOM_CPUS = 0.25
"""CPUs from which a worker of another run has room: the fewest that one reserves by itself."""
_BY_FOLD = "trials rank by how easy their fold is: without its axis, by_fold=True ranks configurations by all folds"


@dataclass(frozen=True)
class SweepPlan:
    """The layout of a sweep.

    Attributes:
        base: the plan of the first trial.
        share: what each trial's plan is made for: the nodes, and how many trials share them.
        concurrent: trials at once; so many have room, however wide they are.
        widths: the numbers of workers that trials have.
        weights: bytes of checkpoints at the most, of all trials together.
        variants: what is read: a plan for each way of reading, by `record.reads` of its experiment.
        keys: the key of a trial's variant, or why it has none, by `ways.way` of its experiment.
    """

    sweep: Sweep
    base: Plan
    share: Resources
    concurrent: int
    widths: tuple[int, ...]
    weights: int
    variants: dict[str, Plan]
    keys: dict[str, str | errors.UserError]

    def reading(self, one: Experiment) -> Plan:
        """Return the plan of what a trial reads.

        Raises:
            UserError: its data cannot be read, or the plan has not found them.
        """
        found = self.keys.get(ways.way(one))
        if isinstance(found, str):
            return self.variants[found]
        how = "give the axes fewer values: the plan could not try every combination"
        raise found or errors.UserError("the plan has not found what this trial reads", "in Sweep.axes", how)

    def scaling(self, one: Experiment) -> Scaling:
        """Return a trial's scaling with what was left open decided.

        Raises:
            UserError: its workers do not fit on the nodes.
        """
        return _decided(one, self.sweep.scheduler.together, self.share)

    def at_once(self, now: Resources) -> int:
        """Return how many trials may run at once on the nodes of now: as many as planned, or more where nodes have
        joined and neither the sweep nor what it measures limits them."""
        s = self.sweep
        if s.concurrent or _of_machine(s):
            return self.concurrent
        return max(self.concurrent, min(_fits(s, replace(now, reserved=True)), s.count))

    @property
    def length(self) -> int:
        """Length of a whole trial, in the scheduler's units of time."""
        e, unit = self.sweep.experiment, self.sweep.scheduler.unit_steps
        if unit is None:
            epochs = longest(e, self.sweep.axes) if e.steps is None else self.base.epochs
            return math.ceil(epochs / self.sweep.scheduler.unit_epochs)
        return math.ceil(e.all_steps(self.base.steps_per_epoch) / unit)

    @property
    def fingerprints(self) -> dict[str, dict[str, str]]:
        """Of each split of each way of reading."""
        return {
            key: {split: index.fingerprint() for split, index in variant.indices.items()}
            for key, variant in self.variants.items()
        }

    def lines(self, path: str) -> list[tuple[str, str]]:
        """Return the plan for people: the base experiment's, and the sweep's own."""
        s = self.sweep
        widths, scaling = self.widths, self.base.experiment.scaling
        workers = f"{widths[0]} worker{'s' if widths[0] > 1 else ''}"
        if len(widths) > 1:
            workers = f"{', '.join(map(str, widths[:-1]))} or {widths[-1]} workers"
        each = (
            f"{scaling.gpus_per_worker:g} GPU"
            if scaling.gpus_per_worker
            else f"{scaling.threads_per_worker} thread{'s' if scaling.threads_per_worker != 1 else ''}"
        )
        grid = all(isinstance(axis, Grid) for axis in s.axes) and s.configurations == len(s.grid)
        whole = type(s.scheduler) is Complete
        compares = ""
        if not whole and self.base.experiment.validate_every_steps:
            unit, epochs = s.scheduler.unit_steps, s.scheduler.unit_epochs
            counted = f"units of {unit} steps" if unit else f"units of {epochs} epochs" if epochs > 1 else "epochs"
            compares = f" (at validations inside epochs too, counted in {counted})"
        base, left = self.base.experiment, len(s.first) > s.configurations
        axes = {axis.path: axis for axis in s.axes if _has(base, axis.path)}
        values = present([*axes.values()], {path: config.get(base, path) for path in axes})
        example = ", ".join(f"{path}={_label(axes[path], value)}" for path, value in values.items())
        own = {
            "sweep": f"{s.count} trial{'s' if s.count > 1 else ''} over {', '.join(axis.path for axis in s.axes)}"
            f"{_repeated(s)}; looking for " + " and ".join(f"the {superlative(o.mode)} {o.name}" for o in s.objectives),
            "search": ("every combination of the grid" if grid else type(s.search).__name__)
            + (", every trial to its end" if whole else f", {type(s.scheduler).__name__}{compares}"),
            "at once": f"{self.concurrent} trial{'s' if self.concurrent > 1 else ''} of {workers}"
            + (f" with {each}" if len(widths) == 1 else "")
            + (f"; {s.memory_gib:g} GiB each" if s.memory_gib else "")
            + (f"; {self._measured}" if _of_machine(s) else ""),
            "disk": f"{files.size(self.weights)} of checkpoints at most: those under way and the best "
            + (f"{s.keep} trials'" if s.keep > 1 else "trial's")
            + (", one of each configuration until its last repeat" if s.rounds else ""),
            **self._crowded,
            **({"limits": "; ".join(s.constraints)} if s.constraints else {}),
            **(
                {"first": f"{s.configurations} of its {len(s.first)} points, one for each of the trials"}
                if left
                else {}
            ),
            **({"budget": f"{s.budget_seconds:g} s"} if s.budget_seconds else {}),
            **({"note": _BY_FOLD} if AXIS in axes and len(axes) > 1 else {}),
        }
        of_base = [line for line in self.base.lines() if line[0] not in ("run", "workers", "batch")]
        return [*own.items(), ("example", f"a trial with {example}:"), *of_base, ("in", path)]

    @property
    def _crowded(self) -> dict[str, str]:
        """A line about the ways to read the data that would be resident, were they the only ones; none if none is."""
        found = [one for one in self.variants.values() if one.mode == "streaming"]
        found = [one for one in found if data_room.mode(one.experiment.data, one.indices, self.share) == "resident"]
        room = files.size(data_room.resident_room(self.share))
        said = f"{len(found)} of {len(self.variants)} ways to read the data are streamed: a node keeps {room} of all"
        return {"streamed": said} if found else {}

    @property
    def _measured(self) -> str:
        """How the objectives of the machine, and what has limits, are measured."""
        if self.concurrent > 1:
            limited = any(limit.figure.of_machine for limit in self.sweep.limits)
            return f"times and speeds{', and limits to them,' if limited else ''} are those of trials side by side"
        share, scaling = self.share, self.base.experiment.scaling
        cpus, gpus = scaling.cpus_per_worker or 0.0, scaling.gpus_per_worker or 0.0
        counts = share.placed(scaling.ranks, cpus, gpus, scaling.placement == "spread")
        left = max(node.cpus - cpus * count for node, count in zip(share.by_node, counts, strict=True) if count)
        if share.where == THIS_MACHINE or left < _ROOM_CPUS:
            return "each trial is measured alone"
        return f"one trial at a time, which leaves {left:g} CPUs of its node to other runs of the cluster"


def _repeated(s: Sweep) -> str:
    """Return how configurations are repeated; empty for one trial each."""
    if s.repeats == 1:
        return ""
    turns = "in turn" if s.rounds else "one after the other"
    each = f"on {s.repeats} folds" if s.by_fold else f"with {s.repeats} seeds"
    return f", {s.configurations} configurations {each} each, {turns}"


def make(value: Sweep, find_resources: Callable[[], Resources], out: Path) -> SweepPlan:
    """Plan a sweep: the data it reads, the number of concurrent trials, and their space on disk. Nothing is started.

    Raises:
        UserError: the sweep cannot work.
    """
    check_loggers(value.experiment.loggers)
    resources = replace(find_resources(), reserved=True)
    scalings = _scalings(value)
    _check_room(value, scalings, resources)
    first = _first(value)
    variants, keys = _variants(value, first, resources)
    fits = _fits(value, resources)
    if value.concurrent and value.concurrent > fits:
        raise errors.UserError(
            f"{value.concurrent} trials at once do not fit, {fits} do",
            "in Sweep.concurrent",
            f"use --concurrent {fits}",
        )
    concurrent = min(value.concurrent or (1 if _of_machine(value) else fits), value.count)
    share = replace(resources, runs=concurrent)
    base = variants[str(keys[ways.way(first)])]
    scaling = _decided(first, value.scheduler.together, share)
    base = replace(base, experiment=replace(base.experiment, scaling=scaling), resources=share)
    kept = max(value.keep, value.configurations if value.rounds else 0)
    weights = base.state_bytes * ((first.checkpoint.keep + 1) * (concurrent + kept))
    free = shutil.disk_usage(files.existing(out)).free
    needs = weights + _TAKES * concurrent
    if needs > free:
        raise errors.no_room("keeping the sweep's checkpoints", needs, free, f"on the disk of {out}", "free some")
    widths = tuple(sorted({scaling.ranks for scaling, _ in scalings}))
    found = SweepPlan(value, base, share, concurrent, widths, weights, variants, keys)
    value.scheduler.check(value.axes, value.objectives, value.count, found.length)
    _check_unit(value, base.steps_per_epoch)
    return found


def _variants(
    value: Sweep, first: Experiment, resources: Resources
) -> tuple[dict[str, Plan], dict[str, str | errors.UserError]]:
    """Return the variants and the keys of the plan.

    Args:
        first: the experiment whose plan is the base.

    Raises:
        UserError: a variant cannot work with the first model. What no other model can read is left to its trials.
    """
    variants, keys = dict[str, Plan](), dict[str, str | errors.UserError]()
    for way, experiments in (ways.found(value) | {ways.way(first): [first]}).items():
        for one in experiments:
            try:
                made = plan.make(one, lambda: resources, "")
            except errors.UserError as refused:
                if one.model == first.model:
                    raise
                keys.setdefault(way, refused)
                continue
            keys[way] = key = record.reads(made.experiment)  # with what the data took from the model's weights
            if key not in variants or one is first:
                variants[key] = made
            break
    return _kept(variants, resources), keys


def _kept(variants: dict[str, Plan], resources: Resources) -> dict[str, Plan]:
    """Return the variants, of which those are streamed that a node cannot keep beside the ones before them. Folds that
    share a copy count once.

    Raises:
        UserError: such a variant is to be resident.
    """
    groups = {key: keys for keys in fold_groups.groups(variants) for key in keys}
    room, taken, found = data_room.resident_room(resources), 0, dict(variants)
    for key, variant in variants.items():
        keys, more = groups.get(key, [key]), variant.resident_bytes
        if variant.mode != "resident" or key != keys[0]:
            continue
        if taken + more <= room:
            taken += more
        elif variant.experiment.data.mode == "resident":
            what, how = "keeping all ways to read the data resident", "leave data.mode out: some stream then"
            raise errors.no_room(what, taken + more, room, "in data.mode", how)
        else:
            found |= {one: replace(variants[one], mode="streaming") for one in keys}
    return found


def _of_machine(value: Sweep) -> bool:
    """Return whether a time, a speed or memory decides: as an objective, or under a limit."""
    return any(one.of_machine for one in (*value.objectives, *(limit.figure for limit in value.limits)))


def _check_unit(value: Sweep, steps_per_epoch: int) -> None:
    """Check that a scheduler that counts in steps finds a validation in each of its units of time: else it would take
    one validation for several comparisons.

    Raises:
        UserError: validations are further apart.
    """
    unit, every = value.scheduler.unit_steps, min(value.experiment.validate_every_steps or math.inf, steps_per_epoch)
    if unit is not None and unit < every:
        what = f"{type(value.scheduler).__name__} compares trials after {unit} steps, and they validate after {every}"
        how = f"use --validate_every_steps {unit}, or let it compare after {every} steps or more"
        raise errors.UserError(what, "in Sweep.scheduler", how)


def _scalings(value: Sweep) -> list[tuple[Scaling, str]]:
    """Return every scaling that trials may have (of a range, that of both ends), and the axes' values that make it.

    Raises:
        UserError: one of them is elastic.
    """
    of_scaling = [axis for axis in value.axes if axis.path.partition(".")[0] == "scaling"]
    axes = sorted(ways.with_conditions(of_scaling, value.axes), key=lambda axis: len(axis.path))
    found = dict[str, Scaling]()
    for chosen in product(*(axis.examples() for axis in axes)):
        scaling, values = value.experiment.scaling, dict(zip((axis.path for axis in axes), chosen, strict=True))
        values = present(axes, values)
        values = {axis.path: values[axis.path] for axis in axes if axis in of_scaling and axis.path in values}
        for path, new in values.items():
            _, _, field = path.partition(".")
            scaling = config.replace(scaling, field, new) if field else new
        if scaling.elastic:
            raise errors.elastic_trial(str(scaling.workers))
        found[" and ".join(f"{path}={new}" for path, new in values.items())] = scaling
    return [(scaling, named) for named, scaling in found.items()]


def _check_room(value: Sweep, scalings: list[tuple[Scaling, str]], resources: Resources) -> None:
    """Check that every trial fits on the nodes where it has them for itself.

    Raises:
        UserError: one does not; where axes decide that, it names their values.
    """
    for scaling, named in scalings:
        try:
            sizing.scaled(scaling, resources, value.experiment.parallel.threads, streams=False)
        except errors.UserError as refused:
            if not named:
                raise
            raise errors.UserError(
                f"a trial with {named} can never start: {refused.what}", refused.where, refused.how
            ) from None


def _fits(value: Sweep, resources: Resources) -> int:
    """Return how many trials fit on the nodes at once, however wide they are."""
    return min(_at_once(value, scaling, resources) for scaling, _ in _scalings(value))


def _at_once(value: Sweep, scaling: Scaling, resources: Resources) -> int:
    """Return how many trials of a scaling fit on the nodes at once, with one CPU for each thread of their workers."""
    threads, each = value.experiment.parallel.threads, scaling.cpus_per_worker or 0.0
    gpus = sizing.scaled(scaling, resources, threads, streams=False).gpus_per_worker or 0.0
    count = resources.room(each if gpus else max(each, scaling.threads_per_worker or 1), gpus) // scaling.ranks
    return max(1, count)


def _decided(one: Experiment, together: bool, share: Resources) -> Scaling:
    """Return a trial's scaling with what was left open decided: CPUs are shared out among the trials that run at once,
    such that no further trial has room.

    Args:
        together: whether all trials are there from the beginning: what they reserve alone holds them back.

    Raises:
        UserError: its workers do not fit on the nodes.
    """
    asked = one.scaling
    alone = sizing.scaled(asked, replace(share, runs=1), one.parallel.threads, streams=False)
    most = share.most_cpus(share.runs * asked.ranks, alone.gpus_per_worker or 0.0)
    cpus = asked.cpus_per_worker or most or alone.cpus_per_worker or 1.0
    if together:
        cpus = max(cpus, most or 0.0)
    fixed = replace(asked, cpus_per_worker=cpus, gpus_per_worker=alone.gpus_per_worker)
    return sizing.scaled(fixed, share, one.parallel.threads, streams=False)


def _first(value: Sweep) -> Experiment:
    """Return the experiment of a valid trial: the base if it is valid."""
    with contextlib.suppress(errors.UserError):
        return value.trial(present(value.axes, {axis.path: axis.examples()[0] for axis in value.axes}))
    for values in combinations(value.axes):
        with contextlib.suppress(errors.UserError):
            return value.trial(values)
    return value.experiment


def _has(experiment: Experiment, path: str) -> bool:
    with contextlib.suppress(errors.UserError):
        check_path(experiment, path)
        return True
    return False


def _label(axis: Axis, value: Any) -> str:
    if axis.finite is not None and value in axis.finite:
        return str(config.labels(axis.finite)[axis.finite.index(value)])
    return f"{value:.6g}" if isinstance(value, float) else str(config.labels((value,))[0])


def superlative(mode: str) -> str:
    """Return "highest" or "lowest", for "max" or "min"."""
    return "highest" if mode == "max" else "lowest"
