"""The plan: check that a run can work, and lay it out, before any process is started."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from raytrain import errors
from raytrain.data import Data, Index
from raytrain.data.checks import check_samples, checked_indices
from raytrain.data.sampler import check_sampler
from raytrain.driver import (
    data_notes,
    data_room,
    first_step,
    gpu_decoding,
    initial_weights,
    length,
    model_input,
    plan_lines,
    sizing,
    teacher_check,
)
from raytrain.driver.baseline import UNKNOWN, Baseline, baseline
from raytrain.driver.first_batch import NotTried, blank, readable
from raytrain.driver.model_check import build_model, check_model, check_sides, count_parameters, memory_format
from raytrain.driver.resources import Resources
from raytrain.errors import BadSample
from raytrain.experiment import Experiment, Scaling
from raytrain.files import existing
from raytrain.hooks import Hook
from raytrain.loggers import Logger, RunInfo
from raytrain.optim.optimizers import backbone
from raytrain.run.experiment_file import to_json
from raytrain.run.run import Run
from raytrain.training import freezing, graph, memory, recomputing
from raytrain.training.precision import check_device
from raytrain.user_code.parts import check_called

_ASKED_FROM = 2**30
"""Bytes of state on a GPU from which the plan asks for the GPU's memory: less fits on any, and asking takes time."""


@dataclass(frozen=True)
class Plan:
    """The layout of a run.

    Attributes:
        experiment: the experiment, with what was left open decided.
        indices: the samples of each split.
        resources: what there is.
        spread: how the parallel strategy spreads the model.
        asked: the experiment's own scaling, of which `experiment` has what was made of it.
        mode: where images are kept.
        parameters: the model's parameters: all, and those that are trained.
        bad: unreadable samples of each split, left out: those of the first look, or once all have been read, all.
        notes: what the user should know.
        run: the run's directory, or `<out>/<stem>-N` while it has no number.
        baseline: what a constant answer scores.
        share: the largest share of the model's parameters that one device holds.
        whole: the bytes that a device with a share of the model takes besides it for a while, and what they are.
        factors, waiting: each parameter group's factor on the learning rate; the parameters that are trained later.
    """

    experiment: Experiment
    indices: dict[str, Index]
    resources: Resources
    spread: str
    asked: Scaling
    mode: Literal["resident", "streaming"]
    parameters: tuple[int, int]
    bad: dict[str, list[BadSample]]
    notes: tuple[str, ...]
    run: str
    baseline: Baseline = UNKNOWN
    share: float = 1.0
    whole: tuple[int, str] = (0, "")
    factors: tuple[float, ...] = (1.0,)
    waiting: int = 0

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps of an epoch."""
        return -(-self.samples_per_epoch // self.experiment.batch_size)

    @property
    def samples_per_epoch(self) -> int:
        """Training samples of an epoch."""
        return self.experiment.sampler.size(self.indices["train"])

    @property
    def epochs(self) -> int:
        """Epochs of the run, of which the last one may be a part of one."""
        return math.ceil(self.experiment.all_epochs(self.steps_per_epoch))

    @property
    def sizes(self) -> list[int]:
        """The numbers of workers that the run can go on with, most first."""
        return replace(self.experiment, scaling=replace(self.experiment.scaling, workers=self.asked.workers)).sizes

    def on(self, workers: int, resources: Resources) -> Experiment:
        """Return the planned experiment, laid out for another number of workers.

        Raises:
            UserError: there is no room for them.
        """
        gpus = self.experiment.scaling.gpus_per_worker
        asked = replace(self.asked, workers=workers, gpus_per_worker=gpus)
        streams = self.mode == "streaming" and not self.experiment.data.direct
        return replace(
            self.experiment, scaling=sizing.scaled(asked, resources, self.experiment.parallel.threads, streams)
        )

    @property
    def threads(self) -> int:
        """Threads of each worker that read samples while it trains."""
        return sizing.reading_threads(self.experiment.data, self.mode, self.experiment.scaling, self.resources)

    @property
    def state_bytes(self) -> int:
        """Bytes of a replica's weights, their averages, gradients and optimizer state (float32)."""
        e, slots = self.experiment, 2  # as Adam's
        if type(e.optimizer).__name__ == "SGD":
            slots = 1 if getattr(e.optimizer, "momentum", 0) > 0 else 0
        averages = e.ema_decay is not None or e.swa_start_epoch is not None
        copies = 1 + slots + averages + e.parallel.gradient_copies(e.scaling.ranks)
        return 4 * (self.parameters[0] + copies * self.parameters[1])

    @property
    def checkpoint_bytes(self) -> int:
        """A checkpoint's size, but for what is no parameter: weights, their averages and optimizer state, in bytes."""
        return self.state_bytes - 4 * self.parameters[1]

    def check_disk(self, folder: Path) -> None:
        """Check that the run's checkpoints fit on a disk: those that stay, and one that is being written.

        Args:
            folder: the run's directory, or the one that it will be made in; what it holds already counts as room.

        Raises:
            UserError: they do not.
        """
        settings, one = self.experiment.checkpoint, self.checkpoint_bytes
        copies = 2 if self.experiment.parallel.spreads else 1  # rank 0 collects a spread model's tensors in files
        stay = settings.keep + 1 + self.epochs // (settings.keep_every or self.epochs + 1)
        kept = stay * one if settings.max_gib is None else min(stay * one, int(settings.max_gib * 2**30))
        needs = copies * one + kept
        there = sum(file.stat().st_size for file in folder.glob("checkpoints/step_*/*"))
        disk = shutil.disk_usage(existing(folder))
        has = disk.free + there
        if needs > has and disk.total:  # a path that is no disk has no space, and fails for another reason
            what, where = f"keeping the run's {stay + 1} checkpoints", f"on the disk of {folder}"
            how = "free some, or keep fewer with --checkpoint.keep or --checkpoint.max_gib"
            raise errors.no_room(what, needs, has, where, how)

    def lines(self) -> list[tuple[str, str]]:
        """Return the plan for people: (what, how) of each line."""
        return plan_lines.lines(self)

    def info(self, run: Run, earlier: Sequence[dict[str, Any]] = ()) -> RunInfo:
        """Return what loggers are told of the run.

        Args:
            earlier: the run's rows so far.
        """
        steps, samples, kind = self.steps_per_epoch, self.samples_per_epoch, self.indices["train"].input.kind
        return RunInfo(run.path, run.where, self.experiment, steps, samples, earlier, kind)

    @property
    def resident_bytes(self) -> int:
        """Size of the samples that training and validation read."""
        return data_room.total_bytes(self.indices)


def survey(data: Data) -> tuple[dict[str, Index], dict[str, list[BadSample]]]:
    """Return the samples of each split, and those of them that a first look finds unreadable.

    Raises:
        UserError: there is no data, or a sample is bad and may not be.
    """
    indices = checked_indices(data)
    bad = {split: data.probe(index) for split, index in indices.items() if split != "test"}
    for split, samples in bad.items():
        readable(indices[split], samples)  # refuses a split of which nothing is left
        if samples and data.on_bad_sample == "error":
            raise errors.bad_sample(samples[0].path, samples[0].reason)
    for split in bad:
        check_samples(data, indices[split])
    return indices, bad


def make(
    experiment: Experiment,
    find_resources: Callable[[], Resources],
    run: str,
    resumed: bool = False,
    surveyed: tuple[dict[str, Index], dict[str, list[BadSample]]] | None = None,
) -> Plan:
    """Plan a run: read the data's index and build the model without memory. Nothing is started.

    Args:
        find_resources: asked last, since to count GPUs takes seconds.
        run: what to call the run's directory.
        resumed: whether the weights will come from a checkpoint.
        surveyed: what `survey` found, of a sweep's trial; the sweep's own plan has tried a step.

    Raises:
        UserError: the run cannot work.
    """
    to_json(experiment)
    experiment.task.check_monitor()
    check_called({Hook: experiment.hooks, Logger: experiment.loggers})
    experiment = model_input.sized(replace(experiment, data=(given := experiment.data.absolute())))
    indices, bad = surveyed or survey(experiment.data)
    train = indices["train"]
    experiment = model_input.normalised(experiment, train.input).bound(train)
    experiment.task.check_data(train)
    experiment = replace(experiment, task=experiment.task.absolute())
    left, one = readable(train, bad.get("train", ())), blank(experiment, train)
    epochs = _check_epoch(experiment, left)
    teacher_check.check_all(experiment, train, epochs, new=not resumed)
    module, output = check_model(experiment, one, len(train.classes))
    begin = [*model_input.notes(given, experiment.data), *given.augment.idle()]
    begin += freezing.check(experiment, module, epochs)
    begin += recomputing.check(experiment.activation_checkpointing, module)
    begin += [] if resumed else initial_weights.check(experiment.model, module, train.classes)
    begin += [*check_sides(experiment, module, one, epochs), *experiment.schedule.unreached(epochs)]
    notes, doubt = _try_step(experiment, left, module, not resumed) if surveyed is None else ([], None)
    _check_means(experiment, module)
    resources = find_resources()
    asked, mode = experiment.scaling, data_room.mode(experiment.data, indices, resources)
    experiment = _sized(experiment, resources, mode == "streaming" and not experiment.data.direct)
    scaling = experiment.scaling
    if doubt and doubt.error and not (scaling.gpus_per_worker if doubt.needs == "gpu" else scaling.workers):
        raise doubt.error
    check_device(experiment.precision, torch.device("cuda" if scaling.gpus_per_worker else "cpu"))
    begin += [*graph.check(experiment), *gpu_decoding.check(experiment.data, train, scaling)]
    begin += sizing.notes(scaling, resources)
    spread = experiment.parallel.check(module, scaling.ranks, scaling.gpus_per_worker or 0.0, experiment.accumulation)
    held = _held(experiment, module)
    experiment = replace(experiment, memory_format=memory_format(experiment, one, len(train.classes), module))
    counts = count_parameters(module), sum(p.numel() for p in module.parameters() if p.requires_grad)
    of_data = data_notes.notes(experiment.data, indices, compared=surveyed is None)
    notes = [*begin, *experiment.model.notes(), *of_data, *notes]
    notes += data_room.notes(experiment, indices, resources, mode, module, resumed) if surveyed is None else []
    floor = baseline(experiment, indices, output) if surveyed is None else UNKNOWN
    found = Plan(experiment, indices, resources, spread, asked, mode, counts, bad, tuple(notes), run, floor, *held)
    notes += length.check(experiment, found.steps_per_epoch, found.epochs)
    _check_gpu_memory(found)
    return replace(found, notes=(*notes, *_check_budget(found)))


def _check_epoch(experiment: Experiment, index: Index) -> float:
    """Check the sampler, and that mixup and cutmix have a whole batch to mix; return the epochs of the run.

    Raises:
        UserError: the sampler fails, or an epoch is smaller than a batch.
    """
    check_sampler(experiment.sampler, index, experiment.seed)
    size = experiment.sampler.size(index)
    if experiment.data.augment.mixes and experiment.batch_size > size:
        allowed = (
            f"of at most {size}, the training samples of an epoch: mixup and cutmix leave a smaller batch as it is"
        )
        raise errors.out_of_range("batch_size", experiment.batch_size, allowed, "Experiment")
    return experiment.all_epochs(-(-size // experiment.batch_size))


def _check_means(experiment: Experiment, module: nn.Module) -> None:
    """Check that there are layers to unfreeze, and a compiler to compile with.

    Raises:
        UserError: there are none.
    """
    if experiment.unfreeze_epoch is not None and not backbone(module):
        raise errors.UserError(
            "all layers but the last stay frozen throughout",
            f"in {type(experiment.model).__name__}",
            "leave out --unfreeze_epoch, or the model's freeze",
        )
    compilers = (os.environ.get("CXX", "g++"), "clang++")
    if experiment.compile and not any(map(shutil.which, compilers)):
        what = f"torch.compile needs a C++ compiler and there is none ({', '.join(compilers)})"
        raise errors.UserError(what, "in compile", "install g++, or use --no_compile")


def _check_budget(planned: Plan) -> list[str]:
    """Check that `checkpoint.max_gib` has room for a checkpoint; return notes for the plan.

    Raises:
        UserError: it has not.
    """
    if planned.experiment.checkpoint.max_gib is None:
        return []
    one, budget = planned.checkpoint_bytes, int(planned.experiment.checkpoint.max_gib * 2**30)
    if one > budget:
        raise errors.no_room("one checkpoint", one, budget, "in checkpoint.max_gib", "allow more")
    if 2 * one <= budget:
        return []
    return ["checkpoint.max_gib has room for one checkpoint: the best one goes when a newer one is there"]


def _try_step(experiment: Experiment, index: Index, module: nn.Module, new: bool) -> tuple[list[str], NotTried | None]:
    """Try a training step and an evaluation.

    Args:
        index: the training samples.
        new: whether the run begins now.

    Returns:
        Notes for the plan, and why the step could not be tried, where it could not.

    Raises:
        UserError: it does not work.
    """
    shape = experiment.data.sample(index), len(index.classes)
    fresh = new and not experiment.model.brings_weights
    try:
        return first_step.check(experiment, index, module, lambda: build_model(experiment, *shape, "cpu"), fresh), None
    except NotTried as found:
        return [str(found)], found


def _held(experiment: Experiment, module: nn.Module) -> tuple[float, tuple[int, str], tuple[float, ...], int]:
    """Return `Plan.share`, `Plan.whole`, `Plan.factors` and `Plan.waiting`."""
    factors = tuple(group.get("factor", 1.0) for group in experiment.optimizer.groups(module))
    share = experiment.parallel.share(module, experiment.scaling.ranks)
    whole = experiment.parallel.whole(module, experiment.accumulation) if share < 1 else (0, "")
    return share, whole, factors, sum(p.numel() for p in freezing.Waiting(experiment, module).in_epoch(0))


def _check_gpu_memory(planned: Plan) -> None:
    """Check that a worker's state, without activations, fits on its GPU.

    Args:
        planned: the plan but for this check.

    Raises:
        UserError: it cannot.
    """
    e, scaling = planned.experiment, planned.experiment.scaling
    if not scaling.gpus_per_worker:
        return
    name, state = type(e.parallel).__name__, int(planned.state_bytes * planned.share)
    whole, part = planned.whole
    if state + whole < _ASKED_FROM or (whole_gpu := planned.resources.gpu_memory()) is None:
        return
    room, where = memory.gpu_room(int(whole_gpu), scaling.gpus_per_worker), "on the smallest GPU"
    if state > room:
        more = "more workers" if whole else "--parallel.strategy fsdp with more workers"
        what = f"what {name} has of weights, gradients and optimizer state on a GPU"
        raise errors.no_room(what, state, room, where, f"use {more}, larger GPUs or a smaller model")
    if state + whole > room:
        what = f"what {name} has on a GPU together with {part}, whole there for a while,"
        raise errors.no_room(what, state + whole, room, where, "use larger GPUs, or a model with smaller layers")


def _sized(experiment: Experiment, resources: Resources, streams: bool) -> Experiment:
    """Decide the scaling; of an elastic experiment with the most workers that there is room for now.

    Raises:
        UserError: there is room for none of its numbers.
    """
    asked, sizes = experiment.scaling, experiment.sizes
    if asked.elastic and asked.gpus_per_worker is None:  # what workers compute on stays while their number changes
        asked = replace(asked, gpus_per_worker=1.0 if resources.gpus >= sizes[-1] else 0.0)
    for workers in sizes:
        try:
            scaling = sizing.scaled(replace(asked, workers=workers), resources, experiment.parallel.threads, streams)
            return replace(experiment, scaling=scaling)
        except errors.UserError:
            if workers == sizes[-1]:
                raise
    raise AssertionError("there is at least one size")
