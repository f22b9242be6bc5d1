"""A plan for people: what it says, in lines of a name and a text."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from raytrain import config
from raytrain.data import Folds, Index
from raytrain.data.reader import RAW_THREADS
from raytrain.data.sampler import drawing
from raytrain.experiment import Experiment
from raytrain.files import size
from raytrain.parallel import STRATEGIES
from raytrain.tasks.classification import Classification
from raytrain.user_code.wrappers import Wrapped

if TYPE_CHECKING:
    from raytrain.driver.plan import Plan

_MOST_SHOWN = 12
"""Values of a tuple that a line shows."""


def lines(plan: Plan) -> list[tuple[str, str]]:
    """Return the lines of a plan: (what, how) of each."""
    e, train = plan.experiment, plan.indices["train"]
    shape = "x".join(map(str, e.data.sample(train)))
    splits = ", ".join(f"{len(index):,} {split}" for split, index in plan.indices.items())
    rows = plan.samples_per_epoch / e.replicas
    drawn = drawing(e.sampler, train) is not None
    replica = "worker" if e.replicas == e.scaling.ranks else "replica"
    found = [
        ("model", _model(plan)),
        ("data", f"{type(e.data).__name__}: {splits}; {_arrays(train, shape)}"),
        *([("task", _code(e.task))] if e.task != Classification() else []),
        *([("folds", _folds(e.data.folds))] if e.data.folds.count else []),
        *([("sampler", f"{type(e.sampler).__name__}: {plan.samples_per_epoch:,} samples per epoch")] if drawn else []),
        ("workers", _workers(plan)),
        ("parallel", _strategy(e) + (f": {plan.spread}" if plan.spread else "")),
        (
            "batch",
            f"{_count(e.replicas, replica)} x {e.micro_batch} micro-batch x {e.accumulation} accumulation "
            f"= {e.batch_size} global",
        ),
        *([("lr", rates)] if (rates := _rates(plan)) else []),
        *((f"up to step {one.until}", _values(one.values)) for one in e.stages),
        _length(plan, f"about {rows:,.0f} samples per rank; {e.precision}"),
        *([("baseline", plan.baseline.line)] if plan.baseline.line else []),
        ("memory", _memory(plan)),
        ("run", plan.run),
        *_ignored(plan),
        *skipped(plan),
    ]
    return found + [("note", note) for note in (*plan.notes, _one_step(plan), plan.baseline.note) if note]


def skipped(plan: Plan) -> list[tuple[str, str]]:
    """Return the lines about samples that are left out."""
    return [
        (
            "skipped",
            f"{len(bad)} of {split} cannot be read: {bad[0].path} ({bad[0].reason})" + (" ..." if len(bad) > 1 else ""),
        )
        for split, bad in plan.bad.items()
        if bad
    ]


def _ignored(plan: Plan) -> list[tuple[str, str]]:
    found = []
    for split, index in plan.indices.items():
        if count := len(index.ignored):
            names = ", ".join(index.ignored[:3]) + (" ..." if count > 3 else "")
            files = _count(count, "file")
            found.append(("ignored", f"{files} of {split}, hidden or without an image's suffix: {names}"))
    return found


def _code(value: Any) -> str:
    """Return a value as an experiment file has it: of dataclasses, the fields that differ from their defaults."""
    if isinstance(value, Wrapped):  # whose repr is that already
        return repr(value)
    if isinstance(value, tuple):
        shown = [*map(_code, value[:_MOST_SHOWN]), *(["..."] if len(value) > _MOST_SHOWN else [])]
        return f"({', '.join(shown)}{',' if len(value) == 1 else ''})"
    if dataclasses.is_dataclass(value):
        fields = [f"{name}={_code(now)}" for name, (now, _) in config.changed(value).items()]
        return f"{type(value).__name__}({', '.join(fields)})"
    return repr(value)


def _values(values: dict[str, Any]) -> str:
    return ", ".join(f"{path}={_code(value)}" for path, value in values.items())


def _model(plan: Plan) -> str:
    every, trained = plan.parameters
    part = f", {trained:,} of them trained" if trained != every else ""
    part += f", {plan.waiting:,} not from the first epoch on" if plan.waiting else ""
    return f"{type(plan.experiment.model).__name__}, {every:,} parameters{part}"


def _folds(folds: Folds) -> str:
    groups = folds.group or folds.group_pattern
    how = f", by groups of {groups}" if groups else ""
    return f"fold {folds.fold} of 0 to {folds.count - 1} validates{how}; the source's own val split is left out"


def _workers(plan: Plan) -> str:
    scaling, there = plan.experiment.scaling, plan.resources
    if scaling.gpus_per_worker:
        each = f"{scaling.gpus_per_worker:g} GPU"
    else:
        threads = scaling.threads_per_worker
        each = f"{scaling.cpus_per_worker:g} CPU, {threads} thread{'s' if threads != 1 else ''}"
    place = "this process (no workers)" if scaling.workers == 0 else f"{_count(scaling.ranks, 'worker')} of {each}"
    if plan.asked.elastic:
        place += f" (elastic, {' or '.join(map(str, sorted(plan.sizes)))} as there is room)"
    has = f"{there.cpus:g} CPUs, {there.gpus:g} GPUs, {_count(there.nodes, 'node')}"
    return f"{place} on {there.where} ({has})"


def _memory(plan: Plan) -> str:
    e, state = plan.experiment, plan.state_bytes
    part = int(state * plan.share)
    of = "per copy" if e.parallel.sharded and e.scaling.ranks > 1 else "per worker"
    if part < state and (of == "per copy" or e.scaling.gpus_per_worker):
        of += f", at most {size(part)} of it on each {'GPU' if e.scaling.gpus_per_worker else 'worker'}"
        of += f" and {size(plan.whole[0])} more for a while ({plan.whole[1]})"
    kept = "images" if plan.indices["train"].input.kind == "image" else "samples"
    where = f"resident, {size(plan.resident_bytes)} per node" if plan.mode == "resident" else _streamed(plan)
    return f"{size(state)} of weights, gradients and optimizer state {of}; {kept} {where}"


def _streamed(plan: Plan) -> str:
    """Return what reads samples while training goes on, and why."""
    if threads := plan.threads:
        data, share = plan.experiment.data, ", its share of the node's CPUs"
        if data.raw:  # they wait for the disk
            threads, share = max(threads, RAW_THREADS), ""
        of = f"each worker{share}" if plan.experiment.scaling.workers else "this process"
        decoded = ", JPEGs decoded by its GPU" if data.on_gpu else ""
        return f"streamed by {_count(threads, 'thread')} of {of}{decoded}"
    why = ": nodes without workers have more CPUs than those with workers" if plan.experiment.data.direct else ""
    return f"streamed by Ray Data{why}"


def _arrays(index: Index, shape: str) -> str:
    """Return what a split's samples are.

    Args:
        shape: of the model's input.
    """
    first, *others = index.fields
    count = len(index.classes)
    classes = [f"{count:,} class" + ("es" if count != 1 else "")] if index.labels is not None else []
    named = f"{'images' if first.name == 'image' else first.name} {shape}".rstrip()
    return ", ".join([*classes, named, *(field.name for field in others)])


def _strategy(experiment: Experiment) -> str:
    """Return the strategy's name on the command line, or its class's, where the experiment brings its own."""
    kind = type(experiment.parallel)
    return next((name for name, known in STRATEGIES.items() if known is kind), kind.__name__)


def _length(plan: Plan, more: str) -> tuple[str, str]:
    """Return the line about the length of the run.

    Args:
        more: what else the line says.
    """
    e, per_epoch = plan.experiment, plan.steps_per_epoch
    found = f"{e.epochs} x {per_epoch:,} steps"
    if e.steps is not None:
        found = f"{_count(e.steps, 'step')} ({e.all_epochs(per_epoch):.3g} epochs of {per_epoch:,})"
    if e.validate_every_steps is not None:
        found += f", a validation every {e.validate_every_steps:,}"
    if e.max_hours is not None:
        found += f", at most {e.max_hours:g} h"
    return "epochs" if e.steps is None else "steps", f"{found}; {more}"


def _one_step(plan: Plan) -> str:
    """Return a note where a batch has more room than an epoch has samples."""
    size, samples = plan.experiment.batch_size, plan.samples_per_epoch
    if size <= samples:
        return ""
    return f"a batch holds all {_count(samples, 'sample')} of an epoch, which is one step: batch_size is {size:,}"


def _rates(plan: Plan) -> str:
    """Return the line about the learning rate, where it is scaled, or parameters have several."""
    e, factors = plan.experiment, plan.factors
    scaled = _scaled_lr(e) if e.lr_scaling != "none" else ""
    if len(set(factors)) < 2:
        return scaled
    several = f"{e.lr * min(factors):.3g} to {e.lr * max(factors):.3g} in {len(factors)} groups of parameters"
    return f"{scaled}; {several}" if scaled else several


def _scaled_lr(e: Experiment) -> str:
    ratio = f"{e.batch_size}/{e.lr_batch_size}"
    return f"{e.optimizer.lr:g} x {ratio if e.lr_scaling == 'linear' else f'sqrt({ratio})'} = {e.lr:.4g}"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' if number > 1 else ''}"
