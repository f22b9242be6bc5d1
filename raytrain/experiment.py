"""Experiment: all that determines a run's result, as one value."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field, replace
from typing import Literal

from raytrain import errors
from raytrain.config import above, at_least, between, check
from raytrain.data import Data, Index, Sampler
from raytrain.hooks import Hook
from raytrain.loggers import Logger
from raytrain.models import Model
from raytrain.optim.optimizers import SGD, Optimizer
from raytrain.optim.schedules import Constant, Schedule
from raytrain.optim.stages import Stage, check_stages
from raytrain.parallel import DDP, STRATEGIES, Parallel
from raytrain.parallel.base import multiples
from raytrain.tasks.classification import Classification
from raytrain.tasks.task import Task
from raytrain.user_code import parts


@dataclass(frozen=True)
class Scaling:
    """The number of workers and the resources of each. They change the speed, never the order of samples or the global
    batch."""

    workers: int | str = 1
    """Ray Train workers, each a rank with a replica; 0 trains in the calling process, for debugging. MIN:MAX is
    elastic: as many workers as have room and divide the batch; the number follows nodes that join or leave."""
    gpus_per_worker: float | None = None
    """GPUs of each worker; None gives one if the cluster has enough, and none otherwise."""
    cpus_per_worker: float | None = None
    """CPUs that Ray reserves for each worker; None divides the CPUs among the workers and leaves one for Ray Data."""
    threads_per_worker: int | None = None
    """PyTorch threads of each worker; None shares the cores out. A resumed run keeps the number: it changes last
    bits."""
    placement: Literal["pack", "spread"] = "pack"
    """pack puts workers on as few nodes as possible, where they share memory and exchange gradients fastest; spread
    uses as many nodes as possible, so that each node reads and decodes less. Ray follows it as far as resources
    allow."""
    max_failures: int = 3
    """Restarts in a row, each from the newest checkpoint, after a worker or a node was lost; a new checkpoint resets
    the count. An error in the training itself would repeat, so it ends the run at once."""
    hang_seconds: float = 300.0
    """Seconds without progress after which the rank that hangs is reported with its stack and killed, and the run
    restarts from its newest checkpoint, as after a lost worker. The limit is three times as long for what a rank does
    for the first time, such as compiling, and for checkpoints. 0 waits for ever."""
    collective_seconds: float = 1800.0
    """Seconds that a rank waits for the others in one collective of gloo or NCCL, in any process group, before the run
    restarts from its newest checkpoint. With more than three times hang_seconds, the rank that hangs is found first."""
    resize_seconds: float = 60.0
    """Seconds that an elastic run keeps its number of workers before it looks for room for more."""

    def __post_init__(self) -> None:
        check(
            self,
            workers=(lambda workers: isinstance(workers, str) or 0 <= workers < math.inf, "of at least 0"),
            gpus_per_worker=at_least(0),
            cpus_per_worker=above(0),
            threads_per_worker=at_least(1),
            max_failures=at_least(0),
            hang_seconds=at_least(0),
            collective_seconds=above(0),
            resize_seconds=above(0),
        )
        if isinstance(self.workers, str):
            least, _, most = self.workers.partition(":")
            if not (least.isdecimal() and most.isdecimal() and 1 <= int(least) <= int(most)):
                raise errors.UserError(
                    f"workers must be an integer or MIN:MAX, got {self.workers!r}",
                    "in scaling.workers",
                    "give a number, or MIN:MAX such as 2:8, with MIN >= 1",
                )

    @property
    def elastic(self) -> bool:
        """Whether the number of workers may change while the run goes on."""
        return isinstance(self.workers, str)

    @property
    def least(self) -> int:
        """The smallest number of ranks."""
        return int(self.workers.partition(":")[0]) if isinstance(self.workers, str) else max(1, self.workers)

    @property
    def ranks(self) -> int:
        """The number of ranks; the largest number for an elastic run."""
        return int(self.workers.partition(":")[2]) if isinstance(self.workers, str) else max(1, self.workers)


@dataclass(frozen=True)
class Checkpoint:
    """When checkpoints are written and how many are kept."""

    every_steps: int | None = None
    """Steps between checkpoints, besides the checkpoint after each validation; None writes no others."""
    every_minutes: float | None = None
    """Minutes after which a checkpoint is written if none was, between two steps; None writes none by time."""
    keep: int = 2
    """Number of newest checkpoints to keep, besides the best checkpoint known at each of them."""
    keep_every: int | None = None
    """Epochs between checkpoints that are kept for good, such as 10; None keeps no others."""
    max_gib: float | None = None
    """Most GiB of checkpoints: beyond it the oldest are removed first, the best last, and the newest never. A
    checkpoint that is being written is not counted."""

    def __post_init__(self) -> None:
        some = at_least(1)
        check(self, every_steps=some, every_minutes=above(0), keep=some, keep_every=some, max_gib=above(0))


@dataclass(frozen=True)
class Experiment:
    """One training experiment: a model, the data, and how to train. Pass it to `raytrain.train`, or put it in a file
    as `experiment` for the command line."""

    model: Model
    """The model to train."""
    data: Data
    """The data to train on."""
    task: Task = field(default_factory=Classification)
    """The loss and the metrics."""
    optimizer: Optimizer = field(default_factory=SGD)
    """The optimizer, which updates the weights."""
    schedule: Schedule = field(default_factory=Constant)
    """The schedule of the learning rate."""
    parallel: Parallel = field(default_factory=DDP)
    """How the model is spread over the workers."""
    scaling: Scaling = field(default_factory=Scaling)
    """The workers and their resources."""
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    """When checkpoints are written and how many are kept."""
    epochs: int = 1
    """Passes over the training data; without effect where `steps` is set."""
    steps: int | None = None
    """Optimizer steps after which the run ends, in as many epochs as that takes; it may end within one. None ends the
    run after `epochs`."""
    validate_every_steps: int | None = None
    """Steps between validations inside epochs, besides the validation at the end of each epoch; a checkpoint follows
    each. None validates at the end of epochs only."""
    max_hours: float | None = None
    """Hours of training and validation, over all sessions of the run, after which it ends with a validation and a
    checkpoint; a resume with a larger value continues. None has no limit."""
    patience: int | None = None
    """Validations without a better value of task.monitor after which training stops: epochs, unless
    validate_every_steps is set. None never stops early."""
    batch_size: int = 64
    """Samples in a step, over all workers (the global batch)."""
    micro_batch_size: int | None = None
    """Samples in one forward pass of a worker; smaller ones accumulate gradients. None takes all samples of the worker,
    or a quarter of the batch under the deterministic strategy."""
    lr_scaling: Literal["none", "linear", "sqrt"] = "none"
    """How the learning rate follows batch_size: times batch_size / lr_batch_size (Goyal et al., 2017, for SGD), or
    times the square root of that (Krizhevsky, 2014)."""
    lr_batch_size: int | None = None
    """The batch size that optimizer.lr was chosen for; used by lr_scaling."""
    precision: Literal["fp32", "tf32", "bf16", "fp16", "auto"] = "fp32"
    """Precision of forward and backward passes; weights stay float32. tf32 rounds the factors of matrix products, on
    GPUs only; by PyTorch's default, convolutions on GPUs use it in fp32 too. auto times all precisions of the workers
    before the first step and takes the fastest with finite loss and gradients; the run keeps the choice."""
    memory_format: Literal["auto", "contiguous", "channels_last"] = "auto"
    """Memory layout of images and convolution weights. channels_last is faster; auto takes it for models with
    convolutions that support it, and the run keeps the choice."""
    compile: bool = False
    """Compile the model with torch.compile before training; on CPUs this needs a C++ compiler."""
    graph: Literal["off", "auto", "on"] = "off"
    """Replay preparation, forward and backward pass of a batch as one CUDA graph, and the update of SGD, Adam and AdamW
    as another, which saves a small model the launches of its kernels. For one worker or ddp, with one GPU each, and
    steps of one micro-batch; the task's loss must not read batch.ids. auto times both ways of the pass on the first
    steps and takes the faster one."""
    activation_checkpointing: str = "none"
    """Blocks of the model whose activations are computed again in the backward pass, and not kept for it: none, block
    (all of them), a number N for every N-th, or selective (all, but outputs of products, convolutions and attention are
    kept). Less memory, the same losses; about a third more time for `block`, little for `selective`."""
    clip_norm: float | None = None
    """Largest norm of the whole gradient; larger gradients are scaled down to it. None does not clip."""
    freeze: tuple[str, ...] = ()
    """Patterns of names, such as `backbone.*`: parameters that match one are never trained. A BatchNorm layer whose
    running_mean matches keeps its statistics and normalises by them."""
    unfreeze: tuple[tuple[int, str], ...] = ()
    """Epochs and patterns of names, such as `2 layer4.* 4 layer3.*`: parameters that match are trained after so many
    epochs. The first pattern that matches counts. BatchNorm's statistics follow the data from the beginning."""
    unfreeze_epoch: int | None = None
    """Epochs at the start in which only the last layer is trained, for fine-tuning; then all layers are. This saves no
    time, and BatchNorm's statistics follow the data from the beginning."""
    ema_decay: float | None = None
    """Decay of an exponential moving average of the weights, such as 0.999 for about the last thousand steps. The
    average begins with the weights after the first step; it is validated, kept and exported. BatchNorm's statistics are
    not averaged."""
    swa_start_epoch: int | None = None
    """First epoch, counted from 1, of an equal average of the weights at the ends of epochs (SWA). From there on the
    average is validated, kept and exported, with averaged statistics of BatchNorm."""
    on_nonfinite: Literal["error", "skip"] = "error"
    """What to do with a step whose loss or gradients are not finite: end the run, or skip the update and count the
    step; BatchNorm's statistics stay finite. fp16 always skips steps whose gradients overflow."""
    seed: int = 0
    """Seed of the initial weights, the order of samples, augmentation and dropout."""
    hooks: tuple[Hook, ...] = ()
    """Hooks, called on each rank during training; they may add columns to metrics.jsonl."""
    loggers: tuple[Logger, ...] = ()
    """Loggers, which receive the run's metrics in the driver; in a sweep, those of each trial."""
    sampler: Sampler = field(default_factory=Sampler)
    """The samples of each training epoch, and their order; validation takes every sample once."""
    stages: tuple[Stage, ...] = ()
    """Values that training has in its beginning, each up to a step, after which the experiment's own follow: the
    best.json of a sweep with PBT or PB2 has those of all trials whose weights the best one took."""

    def __post_init__(self) -> None:
        for name, base in _PARTS.items():
            parts.check_part(name, getattr(self, name), base, _PARTS)
        parts.check_parts("hooks", self.hooks, Hook, _PARTS)
        parts.check_parts("loggers", self.loggers, Logger, _PARTS)
        parts.check_parts("stages", self.stages, Stage, _PARTS)
        check(
            self,
            epochs=at_least(1),
            steps=at_least(1),
            validate_every_steps=at_least(1),
            max_hours=above(0),
            patience=at_least(1),
            unfreeze=(lambda pairs: all(epoch >= 0 for epoch, _ in pairs), "of epochs of at least 0"),
            unfreeze_epoch=at_least(1),
            batch_size=at_least(1),
            micro_batch_size=at_least(1),
            lr_batch_size=at_least(1),
            clip_norm=above(0),
            ema_decay=between(0, 1),
            swa_start_epoch=(
                lambda epoch: 1 <= epoch <= (self.epochs if self.steps is None else epoch),
                f"of 1 to {self.epochs}, the last epoch",
            ),
            seed=at_least(0),
            activation_checkpointing=(
                lambda text: text in ("none", "block", "selective") or (text.isdecimal() and int(text) > 0),
                "of none, block, selective, or a number of at least 1",
            ),
        )
        self._check_recipe()
        check_stages(self)
        if self.precision == "fp16" and not self.parallel.scales:
            what = f"fp16's gradients cannot be scaled under {type(self.parallel).__name__}"
            raise errors.UserError(what, "in precision", "use --precision bf16")
        if self.compile and not self.parallel.compiles:
            what = f"torch.compile does not work with {type(self.parallel).__name__}"
            raise errors.UserError(what, "in compile", "use --no_compile, or --parallel.strategy ddp")
        if self.activation_checkpointing != "none" and (self.compile or not self.parallel.recomputes):
            what = "compile" if self.compile else type(self.parallel).__name__
            how = "use --activation_checkpointing none" + (" or --no_compile" if self.compile else "")
            what = f"activation checkpointing does not work with {what}"
            raise errors.UserError(what, "in activation_checkpointing", how)
        if self.scaling.elastic:
            _ = self.sizes  # runs the checks below for each number of workers
            return
        self.parallel.check_settings(self.batch_size, self.scaling.ranks, self.precision, self.compile)
        self._check_micro_batch()

    def _check_micro_batch(self) -> None:
        """Check that micro-batches divide a worker's batch, and that mixing's pairs divide them.

        Raises:
            UserError: they do not.
        """
        part = self.part
        if self.micro_batch_size and part % self.micro_batch_size:
            fitting = max(m for m in range(1, min(part, self.micro_batch_size) + 1) if part % m == 0)
            raise errors.UserError(
                f"a worker's batch of {part} does not divide by micro_batch_size {self.micro_batch_size}",
                "",
                f"use --micro_batch_size {fitting}",
            )
        if self.data.augment.mixes and self.micro_batch % 2:
            if part % 2:
                how = f"use --batch_size {multiples(self.batch_size, 2 * self.batch_size // part)}"
                how += " and an even --micro_batch_size" if self.micro_batch_size else ""
            else:
                even = max(m for m in range(2, self.micro_batch + 2, 2) if part % m == 0)
                how = f"use --micro_batch_size {even}"
            raise errors.UserError(
                f"a worker's micro-batch of {self.micro_batch} does not divide by mixup's and cutmix's pairs of 2",
                "",
                how,
            )

    def _check_recipe(self) -> None:
        if self.lr_scaling != "none" and self.lr_batch_size is None:
            raise errors.UserError(
                f"lr_scaling {self.lr_scaling} needs lr_batch_size, the batch size that optimizer.lr was chosen for",
                "",
                "add --lr_batch_size N, or use --lr_scaling none",
            )
        if self.ema_decay is not None and self.swa_start_epoch is not None:
            what = "ema_decay and swa_start_epoch ask for two averages of the weights"
            raise errors.UserError(what, "in Experiment", "leave one of them out")

    def bound(self, index: Index) -> Experiment:
        """Return the experiment with its task bound to the classes of an index; see `Task.bound`."""
        task = self.task.bound(index)
        return self if task is self.task else replace(self, task=task)

    def all_steps(self, steps_per_epoch: int) -> int:
        """Return the optimizer steps of a whole run."""
        return self.epochs * steps_per_epoch if self.steps is None else self.steps

    def all_epochs(self, steps_per_epoch: int) -> float:
        """Return the epochs of a whole run, as schedules take them: an integer where the last epoch is whole, else a
        fraction whose product with `steps_per_epoch` rounds to the run's steps."""
        whole, rest = divmod(self.all_steps(steps_per_epoch), steps_per_epoch)
        return self.all_steps(steps_per_epoch) / steps_per_epoch if rest else whole

    @property
    def lr(self) -> float:
        """The learning rate before the schedule's factor: the optimizer's, scaled to the batch."""
        if self.lr_scaling == "none" or self.lr_batch_size is None:
            return self.optimizer.lr
        ratio = self.batch_size / self.lr_batch_size
        return self.optimizer.lr * (math.sqrt(ratio) if self.lr_scaling == "sqrt" else ratio)

    @property
    def sizes(self) -> list[int]:
        """The possible numbers of workers, the largest first; a single one unless the run is elastic.

        Raises:
            UserError: the batch suits no number of workers of an elastic run.
        """
        if isinstance(self.scaling.workers, int):
            return [self.scaling.workers]
        found, refused = [], None
        for workers in range(self.scaling.ranks, self.scaling.least - 1, -1):
            if self.parallel.replicas(workers) != workers:
                raise errors.UserError(
                    f"{type(self.parallel).__name__} cuts the model for a fixed number of workers",
                    "in scaling.workers",
                    "give one number, or --parallel.strategy ddp",
                )
            try:
                found.append(replace(self, scaling=replace(self.scaling, workers=workers)).scaling.ranks)
            except errors.UserError as error:
                refused = error
        if refused and not found:
            raise refused
        return found

    @property
    def replicas(self) -> int:
        """The number of replicas of the model, each of which trains on its part of a batch."""
        return self.parallel.replicas(self.scaling.ranks)

    @property
    def part(self) -> int:
        """Samples of a step that micro-batches divide: those of a replica, or of a shard of the batch."""
        return self.parallel.part(self.batch_size, self.scaling.ranks)

    @property
    def micro_batch(self) -> int:
        """Samples in one forward pass of a replica."""
        return self.parallel.micro_batch(self.part, self.micro_batch_size, self.scaling.ranks)

    @property
    def accumulation(self) -> int:
        """Forward passes of a replica in a step."""
        return self.batch_size // self.replicas // self.micro_batch


_PARTS = {
    "model": Model,
    "data": Data,
    "sampler": Sampler,
    "task": Task,
    "optimizer": Optimizer,
    "schedule": Schedule,
    "parallel": Parallel,
    "scaling": Scaling,
    "checkpoint": Checkpoint,
}


def with_strategy(value: Experiment, name: str) -> Experiment:
    """Return the experiment with another parallel strategy, by its name on the command line.

    The strategy is not checked against the other fields: flags may still change those, and the experiment that is built
    from all flags is checked.

    Raises:
        UserError: no strategy has that name.
    """
    if name not in STRATEGIES:
        raise errors.UserError(
            f"there is no parallel strategy {name!r}",
            "in parallel.strategy",
            f"{errors.nearest(name, list(STRATEGIES))}they are {errors.listed(list(STRATEGIES), 12)}",
        )
    if type(value.parallel) is STRATEGIES[name]:
        return value
    changed = copy.copy(value)
    object.__setattr__(changed, "parallel", STRATEGIES[name]())
    return changed
