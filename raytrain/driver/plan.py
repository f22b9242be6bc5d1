"""The preflight: whether a run can work, and how it will be laid out, before any process is started."""

from __future__ import annotations

import contextlib
import math
import os
import re
import shutil
import subprocess
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

from raytrain import errors, order
from raytrain.data import Data, Index
from raytrain.data.source import check_samples, checked_indices
from raytrain.errors import BadSample
from raytrain.experiment import Experiment, Scaling, to_json
from raytrain.files import existing, size
from raytrain.models import Model
from raytrain.optim.optimizers import backbone
from raytrain.parallel import STRATEGIES
from raytrain.user_code import sources

if TYPE_CHECKING:
    from torch import nn

    from raytrain.driver.first_step import NotTried

_RESIDENT_SHARE = 0.25
"""Share of the smallest node's memory up to which `data.mode=auto` keeps all images resident."""
_TRIED_FOR_REAL = 30_000_000
"""Parameters of the largest model that is tried on the CPU: the meta device needs none of its memory, but torch's
decompositions, which are long to import."""
_LEAST_CPUS = 0.25
"""CPUs that a worker gets at the least, where cpus_per_worker is not set."""
_ASKED_FROM = 2**30
"""Bytes of state on a GPU from which the plan asks for the GPU's memory: less fits on any, and asking takes time."""
_DATA_CPUS = 0.5
"""CPUs that streaming needs on a node beside the workers: a task of Ray Data asks for one CPU, or for what is left."""

_THREADS, _LEAST_THREADS = 4, 64
"""Threads of a worker for each CPU of its node at most; so many are allowed on a small node too, where an experiment of
a larger one is repeated with its bits. torch itself takes any number and crashes the process beyond the system's."""


@dataclass(frozen=True)
class Node:
    """One node of a cluster, or this machine.

    Attributes:
        memory: bytes.
    """

    name: str
    cpus: float
    gpus: float
    memory: int

    def room(self, cpus: float, gpus: float) -> int:
        """Return the number of workers of so many CPUs and GPUs that the node holds."""
        return int(min(self.cpus / cpus if cpus else math.inf, self.gpus / gpus if gpus else math.inf) + 1e-6)


@dataclass(frozen=True)
class Resources:
    """What there is to train on: this machine, or a cluster.

    Attributes:
        by_node: the nodes, each with what it has.
        where: the cluster's address, or this machine.
        runs: equal runs, such as a sweep's trials, that share the nodes at the same time.
        gpu_memory: asks for the bytes of the smallest GPU; None where that cannot be known.
    """

    by_node: tuple[Node, ...]
    where: str
    runs: int = 1
    gpu_memory: Callable[[], int | None] = field(default=lambda: None, compare=False)

    @property
    def cpus(self) -> float:
        """CPUs of all nodes."""
        return sum(node.cpus for node in self.by_node)

    @property
    def gpus(self) -> float:
        """GPUs of all nodes."""
        return sum(node.gpus for node in self.by_node)

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return len(self.by_node)

    @property
    def memory(self) -> int:
        """Bytes of the smallest node's memory."""
        return min(node.memory for node in self.by_node)

    def room(self, cpus: float, gpus: float = 0.0) -> int:
        """Return the number of workers of so many CPUs and GPUs that fit, each on one node."""
        return sum(node.room(cpus, gpus) for node in self.by_node)

    def placed(self, workers: int, cpus: float, gpus: float, spread: bool) -> list[int]:
        """Return the workers on each node, as Ray places them where the cluster is free: PACK fills one node after
        another, SPREAD takes the nodes in turn. Workers without room are left out."""
        rooms = [node.room(cpus, gpus) for node in self.by_node]
        order = sorted(range(len(rooms)), key=lambda place: (-rooms[place], place))
        counts = [0] * len(rooms)
        left = min(workers, sum(rooms))
        while left:
            for place in order:
                more = min(left, rooms[place] - counts[place], 1 if spread else left)
                counts[place] += more
                left -= more
        return counts

    def beside(self, workers: int, cpus: float, gpus: float) -> float:
        """Return the most CPUs that one node can keep free beside the workers."""
        total = self.room(cpus, gpus)
        return max(node.cpus - cpus * max(0, workers - total + node.room(cpus, gpus)) for node in self.by_node)

    @property
    def for_data(self) -> float:
        """CPUs that must stay free on a node for a task of Ray Data: one, or half of the largest node."""
        return min(1.0, max(node.cpus for node in self.by_node) / 2)

    def holds(self, workers: int, cpus: float, gpus: float, spare: float) -> bool:
        """Return whether so many workers have room, each on one node, and some node keeps `spare` CPUs wherever Ray
        places them."""
        roomy = [node for node in self.by_node if node.cpus >= spare]
        fill = sum(int((node.cpus - spare) / cpus + 1e-6) + 1 for node in roomy)  # workers that leave no node enough
        return self.room(cpus, gpus) >= workers and (not spare or fill > workers)

    def most_cpus(self, workers: int, gpus: float, spare: float) -> float | None:
        """Return the most CPUs, in hundredths, with which `holds` is true; None where no number is."""
        left = {node.cpus - kept for node in self.by_node for kept in (0.0, spare)}
        shares = {int(100 * cpus / count + 1e-6) / 100 for cpus in left for count in range(1, workers + 1)}
        return max((cpus for cpus in shares if cpus > 0 and self.holds(workers, cpus, gpus, spare)), default=None)

    @property
    def listed(self) -> str:
        """The nodes for people."""
        names = [
            f"{node.name} ({node.cpus:g} CPUs" + (f", {node.gpus:g} GPUs)" if node.gpus else ")")
            for node in self.by_node
        ]
        return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


@dataclass(frozen=True)
class Plan:
    """How a run will be laid out.

    Attributes:
        experiment: the experiment, with what was left open decided.
        indices: the samples of each split.
        resources: what there is.
        spread: how the parallel strategy spreads the model.
        asked: the experiment's own scaling, of which `experiment` has what was made of it.
        mode: where images are kept.
        parameters: the model's parameters: all, and those that are trained.
        bad: samples that were found unreadable, per split, and are left out: those that the preflight's first look
            found, and once all have been read, all of them.
        notes: what the user should know.
        run: the run's directory, or `<out>/<stem>-N` while it has no number.
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

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps of an epoch."""
        return -(-len(self.indices["train"]) // self.experiment.batch_size)

    @property
    def sizes(self) -> list[int]:
        """The numbers of workers that the run can go on with, most first."""
        return replace(self.experiment, scaling=replace(self.experiment.scaling, workers=self.asked.workers)).sizes

    def on(self, workers: int, resources: Resources) -> Experiment:
        """The planned experiment, laid out for another number of workers.

        Raises:
            UserError: there is no room for them.
        """
        gpus = self.experiment.scaling.gpus_per_worker
        asked = replace(self.asked, workers=workers, gpus_per_worker=gpus)
        streams = self.mode == "streaming"
        return replace(self.experiment, scaling=scaled(asked, resources, self.experiment.parallel.threads, streams))

    @property
    def state_bytes(self) -> int:
        """A copy's weights, their averages, gradients and optimizer state, in bytes (float32)."""
        slots = {"SGD": int(getattr(self.experiment.optimizer, "momentum", 0) > 0)}.get(
            type(self.experiment.optimizer).__name__, 2
        )
        e, workers = self.experiment, self.experiment.scaling.ranks
        averages = e.ema_decay is not None
        copies = 1 + slots + averages + e.parallel.gradient_copies(workers)
        return 4 * (self.parameters[0] + copies * self.parameters[1])

    @property
    def checkpoint_bytes(self) -> int:
        """A checkpoint's size, but for what is no parameter: weights, their averages and optimizer state, in bytes."""
        return self.state_bytes - 4 * self.parameters[1]

    def check_disk(self, folder: Path) -> None:
        """Checks that the run's checkpoints fit on a disk: those that stay, and one that is being written.

        Args:
            folder: the run's directory, or the one that it will be made in; what it holds already counts as room.

        Raises:
            UserError: they do not.
        """
        settings, one = self.experiment.checkpoint, self.checkpoint_bytes
        stay = settings.keep + 1 + self.experiment.epochs // (settings.keep_every or self.experiment.epochs + 1)
        needs = one + (stay * one if settings.max_gib is None else min(stay * one, int(settings.max_gib * 2**30)))
        there = sum(file.stat().st_size for file in folder.glob("checkpoints/step_*/*"))
        disk = shutil.disk_usage(existing(folder))
        has = disk.free + there
        if needs > has and disk.total:  # what is no disk has none at all, and cannot be written for another reason
            how = "free some, or keep fewer with --checkpoint.keep or --checkpoint.max_gib"
            raise errors.no_room(f"the run's {stay + 1} checkpoints", needs, has, f"on the disk of {folder}", how)

    def lines(self) -> list[tuple[str, str]]:
        """The plan for people: (what, how) of each line."""
        e, train, scaling = self.experiment, self.indices["train"], self.experiment.scaling
        workers = scaling.ranks
        each = (
            f"{scaling.gpus_per_worker:g} GPU"
            if scaling.gpus_per_worker
            else (
                f"{scaling.cpus_per_worker:g} CPU, {scaling.threads_per_worker} thread"
                + ("s" if scaling.threads_per_worker != 1 else "")
            )
        )
        place = (
            "this process (no workers)"
            if scaling.workers == 0
            else (f"{workers} worker{'s' if workers > 1 else ''} of {each}")
        )
        if self.asked.elastic:
            place += f" (elastic, {' or '.join(map(str, sorted(self.sizes)))} as there is room)"
        shape = "x".join(map(str, e.data.sample(train)))
        splits = ", ".join(f"{len(index):,} {split}" for split, index in self.indices.items())
        rows = len(train) / e.replicas
        lines = [
            (
                "model",
                f"{type(e.model).__name__}, {self.parameters[0]:,} parameters"
                + (f", {self.parameters[1]:,} of them trained" if self.parameters[1] != self.parameters[0] else ""),
            ),
            ("data", f"{type(e.data).__name__}: {splits}; {_arrays(train, shape)}"),
            (
                "workers",
                f"{place} on {self.resources.where} "
                f"({self.resources.cpus:g} CPUs, {self.resources.gpus:g} GPUs, {self.resources.nodes} node"
                f"{'s' if self.resources.nodes > 1 else ''})",
            ),
            ("parallel", _strategy(e) + (f": {self.spread}" if self.spread else "")),
            (
                "batch",
                f"{e.replicas} {'worker' if e.replicas == workers else 'replica'}{'s' if e.replicas > 1 else ''} x "
                f"{e.micro_batch} micro-batch x "
                f"{e.accumulation} accumulation = {e.batch_size} global",
            ),
            *([("lr", _scaled_lr(e))] if e.lr_scaling != "none" else []),
            (
                "epochs",
                f"{e.epochs} x {self.steps_per_epoch:,} steps; about {rows:,.0f} samples per rank; {e.precision}",
            ),
            (
                "memory",
                f"{size(self.state_bytes)} of weights, gradients and optimizer state "
                + ("per copy, shared out among its workers" if e.parallel.sharded and workers > 1 else "per worker")
                + "; images "
                + (f"resident, {size(self._resident_bytes)} per node" if self.mode == "resident" else "streamed"),
            ),
            ("run", self.run),
        ]
        for split, index in self.indices.items():
            if index.ignored:
                names = ", ".join(index.ignored[:3]) + (" ..." if len(index.ignored) > 3 else "")
                lines.append(
                    (
                        "ignored",
                        f"{len(index.ignored)} file{'s' if len(index.ignored) > 1 else ''} of {split} "
                        f"{'are no images' if len(index.ignored) > 1 else 'is no image'}: {names}",
                    )
                )
        lines += self.skipped
        return lines + [("note", note) for note in self.notes]

    @property
    def skipped(self) -> list[tuple[str, str]]:
        """The lines that say which samples are left out."""
        return [
            (
                "skipped",
                f"{len(bad)} of {split} cannot be read: {bad[0].path} ({bad[0].reason})"
                + (" ..." if len(bad) > 1 else ""),
            )
            for split, bad in self.bad.items()
            if bad
        ]

    @property
    def _resident_bytes(self) -> int:
        return sum(self.indices[split].bytes for split in ("train", "val"))


class Tensors(NamedTuple):
    """What a checkpoint consists of.

    Attributes:
        shapes: shape and dtype of each parameter and buffer, by its name.
        trained: the names of the parameters that are trained, in the order of the optimizer's groups: it numbers them.
        optimizer: the class of PyTorch's optimizer.
    """

    shapes: dict[str, str]
    trained: list[list[str]]
    optimizer: str


def survey(data: Data) -> tuple[dict[str, Index], dict[str, list[BadSample]]]:
    """The samples of each split, and those of them that a first look finds unreadable.

    Raises:
        UserError: there is no data, or a sample is bad and may not be.
    """
    indices = checked_indices(data)
    bad = {split: data.probe(index) for split, index in indices.items() if split != "test"}
    for samples in bad.values():
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
    """Plans a run; it reads the data's index and builds the model without memory, and starts nothing.

    Args:
        find_resources: asked last, since to count GPUs takes seconds.
        run: what to call the run's directory.
        resumed: whether the weights will come from a checkpoint.
        surveyed: what `survey` found, of a sweep's trial; the sweep's own plan has tried a step.

    Raises:
        UserError: the run cannot work.
    """
    import torch

    from raytrain.training.precision import check_device

    to_json(experiment)
    experiment.task.check_monitor()
    indices, bad = surveyed or survey(experiment.data)
    train = indices["train"]
    sample, dtype = experiment.data.sample(train), train.input.seen_as
    if experiment.data.augment.mixes and experiment.batch_size > len(train):
        allowed = f"of at most {len(train)}, the training samples: mixup and cutmix leave a smaller batch as it is"
        raise errors.out_of_range("batch_size", experiment.batch_size, allowed, "Experiment")
    module = check_model(experiment, sample, len(train.classes), not resumed, dtype)
    notes, doubt = _try_step(experiment, train, module, not resumed) if surveyed is None else ([], None)
    if experiment.unfreeze_epoch is not None and not backbone(module):
        raise errors.nothing_to_unfreeze(type(experiment.model).__name__)
    compilers = (os.environ.get("CXX", "g++"), "clang++")
    if experiment.compile and not any(map(shutil.which, compilers)):
        raise errors.no_compiler(", ".join(compilers))
    resources = find_resources()
    asked, mode = experiment.scaling, _mode(experiment.data, indices, resources)
    experiment = _sized(experiment, resources, mode == "streaming")
    scaling = experiment.scaling
    if doubt and doubt.error and not (scaling.gpus_per_worker if doubt.needs == "gpu" else scaling.workers):
        raise doubt.error
    check_device(experiment.precision, torch.device("cuda" if scaling.gpus_per_worker else "cpu"))
    workers = scaling.ranks
    spread = experiment.parallel.check(module, workers, scaling.gpus_per_worker or 0.0, experiment.accumulation)
    experiment = replace(
        experiment,
        memory_format=memory_format(experiment, sample, len(train.classes), module, dtype),
    )
    counts = _parameters(module), sum(p.numel() for p in module.parameters() if p.requires_grad)
    notes = [*experiment.model.notes(), *experiment.data.notes(), *notes]
    if (experiment.unfreeze_epoch or 0) >= experiment.epochs:
        notes.append(f"the last layer alone is trained: unfreeze_epoch is {experiment.unfreeze_epoch}, after the end")
    found = Plan(experiment, indices, resources, spread, asked, mode, counts, bad, tuple(notes), run)
    _check_gpu_memory(found, sum(each.numel() * each.element_size() for each in module.state_dict().values()))
    if experiment.checkpoint.max_gib is not None:
        one, budget = found.checkpoint_bytes, int(experiment.checkpoint.max_gib * 2**30)
        if one > budget:
            raise errors.no_room("one checkpoint", one, budget, "in checkpoint.max_gib", "allow more")
        if 2 * one > budget:
            note = "checkpoint.max_gib has room for one checkpoint: the best one goes when a newer one is there"
            found = replace(found, notes=(*notes, note))
    return found


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
    from raytrain.driver import first_step

    shape = experiment.data.sample(index), len(index.classes)
    fresh = new and type(experiment.model).load is Model.load
    try:
        return first_step.check(experiment, index, module, lambda: _build(experiment, *shape, "cpu"), fresh), None
    except first_step.NotTried as found:
        return [str(found)], found


def _mode(data: Data, indices: dict[str, Index], resources: Resources) -> Literal["resident", "streaming"]:
    """Return where images are kept.

    Raises:
        UserError: they are to be resident and do not fit.
    """
    size = sum(indices[split].bytes for split in ("train", "val"))
    room = int(resources.memory * _RESIDENT_SHARE)
    if data.mode == "auto":
        return "resident" if size <= room else "streaming"
    if data.mode == "resident" and size > room:
        raise errors.no_room(
            "keeping all images resident", size, room, "in data.mode", "take --data.mode streaming, or smaller images"
        )
    return data.mode


def local_resources() -> Resources:
    """This machine, as Ray would count it."""
    import torch

    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    node = Node("this machine", cpus, torch.cuda.device_count(), host_memory())
    return Resources((node,), "this machine", gpu_memory=lambda: smallest_gpu(int(node.gpus)))


def smallest_gpu(count: int) -> int | None:
    """Return the bytes of the smallest of this machine's GPUs, without taking any of them; None where nvidia-smi does
    not say. Where more GPUs are there than `count`, the largest ones are counted."""
    command = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout
        sizes = sorted((int(line) * 2**20 for line in said.split("\n") if line.strip()), reverse=True)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return min(sizes[:count], default=None)


def _check_gpu_memory(planned: Plan, model: int) -> None:
    """Check that what a worker's GPU holds beside activations can fit.

    Args:
        planned: the plan but for this check.
        model: bytes of the model's parameters and buffers.

    Raises:
        UserError: it cannot.
    """
    e, scaling = planned.experiment, planned.experiment.scaling
    if not scaling.gpus_per_worker:
        return
    name, state = type(e.parallel).__name__, e.parallel.on_device(planned.state_bytes, scaling.ranks)
    # A model that is spread is whole on each rank's device before; precision=auto goes forth and back through it there.
    tried = 4 * planned.parameters[1] if e.precision == "auto" else 0
    whole = model + tried if state < planned.state_bytes else 0
    if max(state, whole) < _ASKED_FROM or (memory := planned.resources.gpu_memory()) is None:
        return
    room, where = int(memory * min(1.0, scaling.gpus_per_worker)), "on the smallest GPU"
    if whole > room:
        what = f"the whole model{' with gradients' if tried else ''}, which {name} has on each GPU before it is spread,"
        how = "take larger GPUs, or a smaller model" + (", or a --precision other than auto" if model <= room else "")
        raise errors.no_room(what, whole, room, where, how)
    if state > room:
        more = "more workers" if whole else "--parallel.strategy fsdp with more workers"
        what = f"what {name} has of weights, gradients and optimizer state on a GPU"
        raise errors.no_room(what, state, room, where, f"take {more}, larger GPUs or a smaller model")


def check_model(
    experiment: Experiment, sample: tuple[int, ...], classes: int, weights: bool = True, dtype: str = "float32"
) -> nn.Module:
    """Builds the model and passes one sample through it; a large one on the meta device where its code allows that.

    Args:
        sample: the shape of the model's input for one sample.
        weights: whether to check also the weights that it will start from.
        dtype: the input's type.

    Returns:
        The model, in the CPU's memory or on the meta device.

    Raises:
        UserError: it cannot take the sample, its head does not suit the task, its weights do not fit, or nothing in
            it is trained.
    """
    import torch

    where = sources.place(type(experiment.model))
    try:
        module = _build(experiment, sample, classes, "meta")
        if _parameters(module) <= _TRIED_FOR_REAL:
            module = _build(experiment, sample, classes, "cpu")
        output = _pass(module, sample, dtype)
    except errors.UserError:
        raise
    except Exception:  # it looks at values, or mixes devices, which the meta device does not allow
        module = _checked_build(experiment, sample, classes)
        try:
            output = _pass(module, sample, dtype)
        except Exception as error:
            what = f"the model cannot take a sample of this data: {sources.reason(error)}"
            axes = " (channels, height, width)" if len(sample) == 3 else ""
            how = f"make build(sample, classes) use the sample's shape{axes}, which is {sample} here"
            raise errors.UserError(what, sources.line_of(error) or f"in {where}", how) from None
    experiment.task.check_model(tuple(output.shape) if isinstance(output, torch.Tensor) else (), classes, where)
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise errors.nothing_to_train(where)
    if weights:
        experiment.model.check_weights(module)
    return module


def memory_format(
    experiment: Experiment, sample: tuple[int, ...], classes: int, module: nn.Module, dtype: str = "float32"
) -> Literal["contiguous", "channels_last"]:
    """Decides `memory_format=auto`: channels_last for models with convolutions that can work so.

    Args:
        module: the model as `check_model` returned it; it may be changed.

    Raises:
        UserError: channels_last was asked for, and the model cannot.
    """
    import torch

    asked = experiment.memory_format
    convolves = any(isinstance(part, torch.nn.Conv2d) for part in module.modules())
    if asked == "contiguous" or (asked == "auto" and not convolves):
        return "contiguous"
    try:  # on real memory: a model that calls view() after a convolution fails there and not on the meta device
        if _on_meta(module):
            module = _build(experiment, sample, classes, "cpu")
        _pass(module, sample, dtype, torch.channels_last)
    except Exception as error:
        if asked == "channels_last":
            raise errors.no_channels_last(type(error).__name__, f"in {type(experiment.model).__name__}") from None
        return "contiguous"
    return "channels_last"


def tensors(experiment: Experiment, sample: tuple[int, ...], classes: int) -> Tensors:
    """Return what a checkpoint of the experiment's model and optimizer consists of, without taking its memory.

    Raises:
        UserError: `build` fails.
    """
    try:
        module = _build(experiment, sample, classes, "meta")
    except Exception:  # it looks at values, or mixes devices
        module = _checked_build(experiment, sample, classes)
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    groups, kind = experiment.optimizer.groups(module), ""
    with contextlib.suppress(Exception):  # one that works with tensors in memory alone
        optimizer = experiment.optimizer.build(groups)
        groups, kind = optimizer.param_groups, type(optimizer).__name__
    return Tensors(
        {name: f"{list(value.shape)} of {value.dtype}" for name, value in module.state_dict().items()},
        [[names.get(id(one), "?") for one in group["params"]] for group in groups],
        kind,
    )


def _build(experiment: Experiment, sample: tuple[int, ...], classes: int, device: str) -> nn.Module:
    import torch

    silence = _loads_on_meta_unsaid() if device == "meta" else contextlib.nullcontext()
    with torch.device(device), torch.random.fork_rng(devices=[]), silence:
        torch.default_generator.manual_seed(order.key(experiment.seed, 0) >> 1)  # the weights that training begins with
        module = experiment.model.build(sample, classes)
        return module.eval() if hasattr(module, "eval") else module


def _checked_build(experiment: Experiment, sample: tuple[int, ...], classes: int) -> nn.Module:
    """Return the model on the CPU.

    Raises:
        UserError: `build` fails, or returns none.
    """
    from torch import nn

    kind = type(experiment.model)
    own = kind if kind.build is Model.build else kind.build
    where, how = f"in {sources.place(own)}", "write `def build(self, sample, classes)`, which returns an nn.Module"
    try:
        module = _build(experiment, sample, classes, "cpu")
    except errors.UserError:
        raise
    except Exception as error:
        line = sources.line_of(error)
        how = "correct that line" if line else how
        raise errors.UserError(f"{kind.__name__}.build fails: {sources.reason(error)}", line or where, how) from None
    if not isinstance(module, nn.Module):
        raise errors.UserError(f"build() must return an nn.Module, got {type(module).__name__}", where, how)
    return module


_LOADED_ON_META = (
    "ignore",
    re.compile("for .*: copying from a non-meta parameter in the checkpoint to a meta parameter"),
    UserWarning,
    re.compile(r"torch\.nn\.modules\.module$"),
    0,
)


@contextlib.contextmanager
def _loads_on_meta_unsaid() -> Iterator[None]:
    """Leave out torch's warning for each weight that a model loads on the meta device, and no other warning."""
    filters = cast(list[Any], warnings.filters)  # filterwarnings() would make Python repeat the user's own warnings
    filters.insert(0, _LOADED_ON_META)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):  # build() may have called resetwarnings()
            filters.remove(_LOADED_ON_META)


def _pass(module: nn.Module, sample: tuple[int, ...], dtype: str, layout: Any = None) -> Any:
    """The model's output for one sample of zeros."""
    import torch

    layout = layout or torch.contiguous_format
    device = torch.device("meta" if _on_meta(module) else "cpu")
    with device, torch.no_grad(), torch.random.fork_rng(devices=[]):
        module.to(memory_format=layout)  # type: ignore[call-overload]
        return module(torch.zeros(1, *sample, dtype=getattr(torch, dtype)).contiguous(memory_format=layout))


def _arrays(index: Index, shape: str) -> str:
    """What a split's samples are, for the plan's table.

    Args:
        shape: of the model's input.
    """
    first, *others = index.fields
    count = len(index.classes)
    classes = [f"{count:,} class" + ("es" if count != 1 else "")] if index.labels is not None else []
    named = f"{'images' if first.name == 'image' else first.name} {shape}".rstrip()
    return ", ".join([*classes, named, *(field.name for field in others)])


def _strategy(experiment: Experiment) -> str:
    """Its name on the command line, or its class's, where the experiment brings its own."""
    kind = type(experiment.parallel)
    return next((name for name, known in STRATEGIES.items() if known is kind), kind.__name__)


def _scaled_lr(e: Experiment) -> str:
    ratio = f"{e.batch_size}/{e.lr_batch_size}"
    return f"{e.optimizer.lr:g} x {ratio if e.lr_scaling == 'linear' else f'sqrt({ratio})'} = {e.lr:.4g}"


def _on_meta(module: nn.Module) -> bool:
    return any(parameter.is_meta for parameter in module.parameters())


def _parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


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
            scaling = scaled(replace(asked, workers=workers), resources, experiment.parallel.threads, streams)
            return replace(experiment, scaling=scaling)
        except errors.UserError:
            if workers == sizes[-1]:
                raise
    raise AssertionError("there is at least one size")


def scaled(scaling: Scaling, resources: Resources, threads: int | None, streams: bool) -> Scaling:
    """Decide what was left open: GPUs where there are enough, CPUs such that all workers have room, each on one node,
    and that a node keeps a CPU for Ray Data, or half of one: where a task of Ray Data never gets its CPU, a run that
    streams would wait for ever.

    Args:
        threads: see `Parallel.threads`.

    Raises:
        UserError: the workers do not fit on the nodes.
    """
    all_workers = scaling.ranks * resources.runs
    gpus = scaling.gpus_per_worker
    if gpus is None:
        gpus = 1.0 if resources.room(_LEAST_CPUS, 1.0) >= scaling.ranks else 0.0
    if 0 < gpus < 1 and scaling.ranks > 1:
        raise errors.shared_gpu(scaling.ranks, gpus)
    if gpus * scaling.ranks > resources.gpus:
        raise errors.too_few("GPUs", gpus * scaling.ranks, resources.gpus, "scaling.workers x scaling.gpus_per_worker")
    cpus = scaling.cpus_per_worker
    if cpus is None:
        if gpus and resources.room(0, gpus) < scaling.ranks:
            raise _no_room_for(scaling.ranks, 0, gpus, resources)
        cpus = _cpus_per_worker(all_workers, gpus, resources, streams)
        cpus = cpus or _cpus_per_worker(scaling.ranks, gpus, resources, streams)
        if cpus is None:
            raise _too_many(scaling.ranks, gpus, resources, streams)
    elif resources.room(cpus, gpus) < scaling.ranks:
        raise _no_room_for(scaling.ranks, cpus, gpus, resources)
    elif streams and resources.beside(scaling.ranks, cpus, gpus) < _DATA_CPUS:
        raise errors.UserError(
            f"{scaling.ranks} workers of {cpus:g} CPUs leave no CPU of {resources.listed} to Ray Data, which streams "
            "the images",
            "in scaling.cpus_per_worker",
            "take less for each worker, fewer workers, or --data.mode resident",
        )
    threads = scaling.threads_per_worker or threads
    if threads is None:
        counts = resources.placed(all_workers, cpus, gpus, scaling.placement == "spread")
        used = [(node, count) for node, count in zip(resources.by_node, counts, strict=True) if count]
        threads = max(1, min((int(node.cpus) // count for node, count in used), default=1))
    most = max(_LEAST_THREADS, *(_THREADS * int(node.cpus) for node in resources.by_node))
    if threads > most:
        raise errors.UserError(
            f"scaling.threads_per_worker must be at most {most}, got {threads}",
            f"with {resources.listed}",
            "leave it out to share the cores among the workers",
        )
    return replace(scaling, gpus_per_worker=gpus, cpus_per_worker=cpus, threads_per_worker=threads)


def _cpus_per_worker(workers: int, gpus: float, resources: Resources, streams: bool) -> float | None:
    """Return the largest share of at most one CPU with which all workers have room and a CPU is left; None where
    there is none."""
    spare = max(resources.cpus - 1, resources.cpus / 2)
    for share in range(int(min(1.0, spare / workers) * 100 + 1e-6), int(_LEAST_CPUS * 100) - 1, -1):
        cpus = share / 100
        fits = resources.room(cpus, gpus) >= workers
        if fits and (not streams or resources.beside(workers, cpus, gpus) >= _DATA_CPUS):
            return cpus
    return None


def _too_many(workers: int, gpus: float, resources: Resources, streams: bool) -> errors.UserError:
    """Return the error for more workers than fit; it names the largest number that does."""
    most = min(workers - 1, resources.room(_LEAST_CPUS, gpus))
    while most and _cpus_per_worker(most, gpus, resources, streams) is None:
        most -= 1
    return errors.too_few(
        "workers",
        workers,
        most,
        f"scaling.workers ({resources.listed}; a worker takes {_LEAST_CPUS} CPUs at the least and one CPU stays "
        "with Ray Data)",
    )


def _no_room_for(workers: int, cpus: float, gpus: float, resources: Resources) -> errors.UserError:
    """Return the error for workers of a given size that do not fit on the nodes."""
    needs = {"cpus": f"{cpus:g} CPUs" if cpus else "", "gpus": f"{gpus:g} GPUs" if gpus else ""}
    each, room = " and ".join(filter(None, needs.values())), resources.room(cpus, gpus)
    return errors.UserError(
        f"{workers} worker{'s' if workers > 1 else ''} of {each} cannot be placed: each needs one node, and "
        f"{resources.listed} hold{'s' if resources.nodes == 1 else ''} {room or 'none'}",
        "in " + " and ".join(f"scaling.{kind}_per_worker" for kind, need in needs.items() if need),
        "take less for each worker" + (", or fewer workers" if room else ""),
    )


def host_memory() -> int:
    """Bytes of this machine's memory, or of the container's where that is less."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        return min(memory, int(limit)) if limit.isdigit() else memory
    except OSError:
        return memory
