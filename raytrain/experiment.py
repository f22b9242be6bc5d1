"""Experiment: everything that decides a run's outcome, as one value."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from raytrain import errors
from raytrain.config import above, at_least, check
from raytrain.data import Data
from raytrain.hooks import Hook
from raytrain.loggers import Logger
from raytrain.models import Model
from raytrain.optim.optimizers import SGD, Optimizer
from raytrain.optim.schedules import Constant, Schedule
from raytrain.parallel import DDP, STRATEGIES, Deterministic, Parallel
from raytrain.parallel.base import multiples
from raytrain.tasks.classification import Classification
from raytrain.tasks.task import Task
from raytrain.user_code import parts
from raytrain.user_code.upgrades import old_argument


@dataclass(frozen=True)
class Scaling:
    """How many workers, and what each of them gets. Changes speed, never the order of samples or the global batch."""

    workers: int | str = 1
    """Ray Train workers, each a rank with a replica; 0 trains in the calling process, for debugging. MIN:MAX is
    elastic: as many as there is room for and divide the batch, more or fewer as nodes come and go."""
    gpus_per_worker: float | None = None
    """GPUs of each worker; None gives one where the cluster has enough, and none otherwise."""
    cpus_per_worker: float | None = None
    """CPUs that Ray reserves for each worker; None shares them out and keeps one for Ray Data."""
    threads_per_worker: int | None = None
    """Threads of PyTorch in each worker; None shares the cores out. The run keeps the number: it changes last bits."""
    placement: Literal["pack", "spread"] = "pack"
    """Workers on as few nodes as they fit on, whose memory they share and which exchange gradients fastest, or on as
    many as there are, each of which then reads and decodes less. Ray does so as far as there is room."""
    max_failures: int = 3
    """How often in a row a run goes on by itself from its newest checkpoint after a worker or a node was lost; a new
    checkpoint begins the count anew. Errors of the training itself, which would come again, end a run at once."""
    hang_seconds: float = 300.0
    """How long a run may make no progress before the rank that hangs is named with its stack and ended, and the run
    goes on from its newest checkpoint, as after a lost worker. Three times as long for what a rank does for the first
    time, such as to compile, and for checkpoints. 0 lets it wait for ever."""
    resize_seconds: float = 60.0
    """How long an elastic run keeps its number of workers before it looks for room for more."""

    def __post_init__(self) -> None:
        check(
            self,
            workers=(lambda workers: isinstance(workers, str) or 0 <= workers < math.inf, "of at least 0"),
            gpus_per_worker=at_least(0),
            cpus_per_worker=above(0),
            threads_per_worker=at_least(1),
            max_failures=at_least(0),
            hang_seconds=at_least(0),
            resize_seconds=above(0),
        )
        if isinstance(self.workers, str):
            least, _, most = self.workers.partition(":")
            if not (least.isdecimal() and most.isdecimal() and 1 <= int(least) <= int(most)):
                raise errors.UserError(
                    f"{self.workers!r} is no number of workers",
                    "in scaling.workers",
                    "take a number, or MIN:MAX such as 2:8, with MIN >= 1",
                )

    @property
    def elastic(self) -> bool:
        """Whether the number of workers may change while the run goes on."""
        return isinstance(self.workers, str)

    @property
    def least(self) -> int:
        """The fewest ranks that the run goes on with."""
        return int(self.workers.partition(":")[0]) if isinstance(self.workers, str) else max(1, self.workers)

    @property
    def ranks(self) -> int:
        """The ranks that there are; of an elastic run, the most that there may be."""
        return int(self.workers.partition(":")[2]) if isinstance(self.workers, str) else max(1, self.workers)


@dataclass(frozen=True)
class Checkpoint:
    """When checkpoints are written and how many are kept."""

    every_steps: int | None = None
    """Write one every so many steps, besides the one after each epoch."""
    keep: int = 2
    """How many of the newest to keep; the best one as of each of them is kept besides."""
    keep_every: int | None = None
    """Keep those after every so many epochs too, such as 10, for good."""
    max_gib: float | None = None
    """GiB that the checkpoints may take: beyond it the oldest go first, the best one last, and never the newest. While
    one is written, it comes on top."""

    def __post_init__(self) -> None:
        check(self, every_steps=at_least(1), keep=at_least(1), keep_every=at_least(1), max_gib=above(0))


def _convert_deterministic(value: bool, arguments: dict[str, Any]) -> None:
    """Replace `deterministic=True` of 0.1, a field beside DDP, by the strategy."""
    parallel = arguments.get("parallel", DDP())
    if value and isinstance(parallel, DDP):
        arguments["parallel"] = Deterministic(reduction=parallel.reduction)
    elif value and not isinstance(parallel, Deterministic):
        what = f"deterministic=True does not work with parallel={type(parallel).__name__}(...)"
        raise errors.UserError(what, "in Experiment", "write `parallel=Deterministic()`")


@old_argument("deterministic", _convert_deterministic)
@dataclass(frozen=True)
class Experiment:
    """One training experiment: a model, the data, and how to train. Pass it to `raytrain.train`, or put it in a file
    as `experiment` for the command line."""

    model: Model
    """What is trained."""
    data: Data
    """What it is trained on."""
    task: Task = field(default_factory=Classification)
    """What is learnt."""
    optimizer: Optimizer = field(default_factory=SGD)
    """How weights are updated."""
    schedule: Schedule = field(default_factory=Constant)
    """How the learning rate changes."""
    parallel: Parallel = field(default_factory=DDP)
    """How the model is spread over the workers."""
    scaling: Scaling = field(default_factory=Scaling)
    """How many workers there are."""
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    """When checkpoints are written."""
    epochs: int = 1
    """Passes over the training data."""
    patience: int | None = None
    """Stop after so many epochs without a better value of task.monitor."""
    batch_size: int = 64
    """Samples in a step, over all workers together."""
    micro_batch_size: int | None = None
    """Samples in one forward pass of a worker; smaller ones accumulate gradients. None takes a worker's whole part, or
    a quarter of the batch under the deterministic strategy."""
    lr_scaling: Literal["none", "linear", "sqrt"] = "none"
    """How the learning rate follows batch_size: times batch_size / lr_batch_size (Goyal et al., 2017, for SGD), or
    times the square root of that (Krizhevsky, 2014)."""
    lr_batch_size: int | None = None
    """The batch size that optimizer.lr was chosen for, where lr_scaling is not none."""
    precision: Literal["fp32", "tf32", "bf16", "fp16", "auto"] = "fp32"
    """What forward and backward passes compute in; weights stay float32. tf32 rounds the factors of matrix products, on
    GPUs alone, where convolutions do so in fp32 too by PyTorch's default. auto tries all that the workers have before
    the first step and takes the fastest whose loss and gradients are finite, which the run keeps."""
    memory_format: Literal["auto", "contiguous", "channels_last"] = "auto"
    """Order of images and convolutions' weights in memory. channels_last is faster; auto takes it for models that have
    convolutions and can work so, and the run keeps the choice."""
    compile: bool = False
    """Compile the model with torch.compile before training; on CPUs that needs a C++ compiler."""
    clip_norm: float | None = None
    """Largest norm of the whole gradient; longer ones are scaled down to it."""
    unfreeze_epoch: int | None = None
    """Train the last layer alone in the first so many epochs, and all layers then, for fine-tuning. It saves no time,
    and BatchNorm's statistics follow the data from the beginning."""
    ema_decay: float | None = None
    """Average the weights over steps, such as 0.999 for the last thousand or so; the average is what is validated,
    kept and exported. BatchNorm's statistics are not averaged."""
    on_nonfinite: Literal["error", "skip"] = "error"
    """What to do with a step whose loss or gradients are not finite: end the run, or leave the weights as they are and
    count it. fp16 leaves out steps whose gradients overflow in any case."""
    seed: int = 0
    """Decides the initial weights, the order of samples, augmentation and dropout."""
    hooks: tuple[Hook, ...] = ()
    """Called while each rank trains; they may add columns to metrics.jsonl."""
    loggers: tuple[Logger, ...] = ()
    """Follow the run in the driver and get its metrics; of a sweep, those of each trial."""

    def __post_init__(self) -> None:
        for name, base in _PARTS.items():
            parts.check_part(name, getattr(self, name), base, _PARTS)
        parts.check_parts("hooks", self.hooks, Hook, _PARTS)
        parts.check_parts("loggers", self.loggers, Logger, _PARTS)
        check(
            self,
            epochs=at_least(1),
            patience=at_least(1),
            unfreeze_epoch=at_least(1),
            batch_size=at_least(1),
            micro_batch_size=at_least(1),
            lr_batch_size=at_least(1),
            clip_norm=above(0),
            ema_decay=(lambda decay: 0 < decay < 1, "between 0 and 1"),
            seed=at_least(0),
        )
        if self.lr_scaling != "none" and self.lr_batch_size is None:
            raise errors.UserError(
                f"lr_scaling {self.lr_scaling} needs lr_batch_size, the batch size that optimizer.lr was chosen for",
                "",
                "add --lr_batch_size N, or take --lr_scaling none",
            )
        if self.precision == "fp16" and not self.parallel.scales:
            raise errors.UserError(
                f"fp16's gradients cannot be scaled under {type(self.parallel).__name__}",
                "in precision",
                "take --precision bf16",
            )
        if self.compile and not self.parallel.compiles:
            raise errors.UserError(
                f"torch.compile does not work with {type(self.parallel).__name__}",
                "in compile",
                "take --no_compile, or --parallel.strategy ddp",
            )
        if self.scaling.elastic:
            _ = self.sizes  # which checks what follows for each of them
            return
        self.parallel.check_settings(self.batch_size, self.scaling.ranks, self.precision, self.compile)
        part = self.part
        if self.micro_batch_size and part % self.micro_batch_size:
            fitting = max(m for m in range(1, min(part, self.micro_batch_size) + 1) if part % m == 0)
            raise errors.UserError(
                f"a worker's batch of {part} does not divide by micro_batch_size {self.micro_batch_size}",
                "",
                f"take --micro_batch_size {fitting}",
            )
        if self.data.augment.mixes and self.micro_batch % 2:
            if part % 2:
                how = f"take --batch_size {multiples(self.batch_size, 2 * self.batch_size // part)}"
                how += " and an even --micro_batch_size" if self.micro_batch_size else ""
            else:
                even = max(m for m in range(2, self.micro_batch + 2, 2) if part % m == 0)
                how = f"take --micro_batch_size {even}"
            raise errors.UserError(
                f"a worker's micro-batch of {self.micro_batch} does not divide by mixup's and cutmix's pairs of 2",
                "",
                how,
            )

    @property
    def lr(self) -> float:
        """The learning rate before the schedule's factor: the optimizer's, scaled to the batch."""
        if self.lr_scaling == "none" or self.lr_batch_size is None:
            return self.optimizer.lr
        ratio = self.batch_size / self.lr_batch_size
        return self.optimizer.lr * (math.sqrt(ratio) if self.lr_scaling == "sqrt" else ratio)

    @property
    def sizes(self) -> list[int]:
        """The numbers of workers that it can be trained on, most first; one, where it is not elastic.

        Raises:
            UserError: the batch suits none of an elastic run's.
        """
        if isinstance(self.scaling.workers, int):
            return [self.scaling.workers]
        found, refused = [], None
        for workers in range(self.scaling.ranks, self.scaling.least - 1, -1):
            if self.parallel.replicas(workers) != workers:
                raise errors.UserError(
                    f"{type(self.parallel).__name__} cuts the model for a number of workers",
                    "in scaling.workers",
                    "take one number, or --parallel.strategy ddp",
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
        """Copies of the model, each of which trains on its share of a batch."""
        return self.parallel.replicas(self.scaling.ranks)

    @property
    def part(self) -> int:
        """Samples of a step that micro-batches divide: those of a copy of the model, or of a shard of the batch."""
        return self.parallel.part(self.batch_size, self.scaling.ranks)

    @property
    def micro_batch(self) -> int:
        """Samples in one forward pass of a copy of the model."""
        return self.parallel.micro_batch(self.part, self.micro_batch_size, self.scaling.ranks)

    @property
    def accumulation(self) -> int:
        """Forward passes of a copy of the model in a step."""
        return self.batch_size // self.replicas // self.micro_batch


_PARTS = {
    "model": Model,
    "data": Data,
    "task": Task,
    "optimizer": Optimizer,
    "schedule": Schedule,
    "parallel": Parallel,
    "scaling": Scaling,
    "checkpoint": Checkpoint,
}


def with_strategy(value: Experiment, name: str) -> Experiment:
    """The experiment with another parallel strategy, by its name on the command line; as it is where it has that one.

    Raises:
        UserError: there is none of that name.
    """
    if name not in STRATEGIES:
        raise errors.UserError(
            f"there is no parallel strategy {name!r}",
            "in parallel.strategy",
            f"{errors.nearest(name, list(STRATEGIES))}they are {errors.listed(list(STRATEGIES), 12)}",
        )
    return value if type(value.parallel) is STRATEGIES[name] else replace(value, parallel=STRATEGIES[name]())
