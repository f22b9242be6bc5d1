"""The trainer: one rank's training loop. It uses torch and files, not Ray."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import nn

from raytrain.checkpoint.storage import Storage
from raytrain.data.loader import Loaded, Loader, Pass, Reader, keep_memory, return_memory
from raytrain.data.source import Index
from raytrain.experiment import Experiment
from raytrain.hooks import Hook
from raytrain.parallel.strategy import RankContext
from raytrain.run.exported import open_model
from raytrain.run.metrics_log import MetricsLog
from raytrain.run.run import Run
from raytrain.run.writer import CheckpointWriter
from raytrain.training import averages, building, freezing, graph, resume, summary
from raytrain.training.auto_precision import choose_precision
from raytrain.training.cuda_graph import own_stream
from raytrain.training.evaluation import evaluate
from raytrain.training.hooks import Hooks, read
from raytrain.training.losses import LossLog, Reduced, Step, diverged
from raytrain.training.optimizer import build_optimizer
from raytrain.training.precision import Precision, check_device, memory_format
from raytrain.training.progress import Progress
from raytrain.training.seeding import seed
from raytrain.training.stop_request import StopRequest
from raytrain.training.timing import Ask, Timing
from raytrain.watchdog import BACKWARD, FORWARD, doing


class Trainer:
    """One rank of a run: strategy, optimizer, data and logs.

    `fit` trains a whole run. Finders call `started` and `step`; a sweep's trial calls `fit` with a hook.

    Args:
        value: the experiment, with its open choices decided by the plan.
        run: the run's directory.
        indices: the samples of `train` and `val`.
        readers: where their images come from.
        weights: the initial state dict, for models with pretrained weights.
        ranks: this rank.
        command_started: Unix time at which the user's command began.
        storage: the run's files at a URL; `run` is then a directory of this machine alone.
        hooks: further hooks, called after the experiment's.
        baseline: what a constant answer scores, for the summary.
    """

    def __init__(
        self,
        value: Experiment,
        run: Path,
        indices: dict[str, Index],
        readers: Mapping[str, Reader],
        weights: dict[str, torch.Tensor] | None,
        ranks: RankContext,
        command_started: float,
        storage: Storage | None = None,
        hooks: Sequence[Hook] = (),
        baseline: dict[str, float] | None = None,
    ):
        value = value.bound(indices["train"])
        self.experiment, self.indices, self.readers = value, indices, readers
        self.ranks = replace(ranks, folder=run) if value.parallel.spreads else ranks
        self.hooks, self.run = Hooks(value.hooks, hooks), Run(run)
        self.sample, self.classes = value.data.sample(indices["train"]), indices["train"].classes
        self.command_started, self.storage, self.weights, self.baseline = command_started, storage, weights, baseline
        torch.set_num_threads(value.scaling.threads_per_worker or 1)
        if ranks.device.type == "cpu":
            return_memory() if value.parallel.sharded else keep_memory()  # sharding is there to save memory
        check_device(value.precision, ranks.device)
        self.precision = Precision(value.precision, ranks.device)
        self.averages, self.progress = averages.of(value), Progress()
        self.log: MetricsLog | None = None
        self.writer: CheckpointWriter | None = None
        self.stop_request, self.stopping = StopRequest(run), False
        self.first_step_seconds, self.sums = math.nan, {}
        self.zero = torch.zeros((), dtype=torch.float64, device=ranks.device)

    # A whole training

    def fit(self) -> str:
        """Train from the newest checkpoint, or from the start, to the end or to a request to stop.

        Returns:
            `completed` or `interrupted`, after the summary is written.
        """
        with self.started():
            return self.train()

    @contextlib.contextmanager
    def started(self) -> Iterator[None]:
        """Restore the newest checkpoint, if there is one, and make everything that a step needs. The end of the context
        writes what is pending."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(own_stream(self.ranks.device))
            e, saved = self.experiment, resume.restore(self)
            if e.compile:
                torch.compiler.reset()  # what a process compiled before counts towards torch's limit of graphs
            e.task.start(open_model, self.ranks.device)
            self.strategy = building.start(self)
            self.loaders = {split: self._loader(split) for split in self.readers}
            self.steps_per_epoch = self.loaders["train"].steps
            self.epochs = e.all_epochs(self.steps_per_epoch)
            self.loaders["train"].epochs = math.ceil(self.epochs)
            self.timing = Timing(e, self.steps_per_epoch, self.progress.spent)
            self.history = self.progress.validations(e.task)
            self.losses = LossLog(self.strategy, e.task)
            self.losses.unit = saved.unit if saved else None
            resume.open_logs(self, saved)
            if self.log and self.writer:
                stack.callback(self.log.close)
                stack.callback(self.writer.close)  # also after an error, the last checkpoint is written
            if e.precision == "auto":
                choose_precision(self)
            self.optimizer, self.parameters = build_optimizer(e.optimizer, self.strategy, saved and saved.optimizer)
            self.waiting = freezing.Waiting(e, self.strategy.module)
            if self.averages:
                buffers = [buffer for buffer in self.strategy.module.buffers() if self.strategy.owns(buffer)]
                here = {id(tensor) for tensor in (*self.parameters, *buffers)}
                self.averages.start(self.strategy.module, self.strategy.shard, here)
            self.weights = None
            self.forward_backward, self.update_weights = graph.of(self)
            self.hooks.start(self)
            stack.enter_context(self.strategy.kernels())
            yield

    def build(self) -> nn.Module:
        """Return the model; see `building.build`."""
        return building.build(self)

    def _loader(self, split: str) -> Loader:
        e = self.experiment
        replicas = e.parallel.replicas(self.ranks.world)
        return Loader(
            e.data,
            self.indices[split],
            self.readers[split],
            e.batch_size,
            e.seed,
            self.strategy.replica,
            replicas,
            self.ranks.device,
            train=split == "train",
            memory_format=memory_format(e.memory_format),
            shards=e.parallel.batch_shards(self.ranks.world),
            sampler=e.sampler,
        )

    def train(self) -> str:
        """Train up to the end or a request to stop, within `started`; see `fit`."""
        self.losses.clock.activities()  # what it took to start does not count
        while not self.over:
            self.clock = time.monotonic()
            freezing.train_mode(self.strategy.module, self.experiment.freeze)
            for loaded in self.batches():
                self.losses.add(self.step(loaded))
                due = self.timing.saves(self.progress.step)
                asked = self.flush() if due or self.losses.due else Ask.NOTHING
                if due or asked & (Ask.STOP | Ask.SAVE):
                    self.save()
                if asked & Ask.STOP:
                    return self.finish("interrupted")
                if asked & Ask.END:
                    break
            self.stopping = bool(self.flush() & Ask.STOP)
            row = self._validate()
            self.save()
            self.strategy.copies.fence()
            self.hooks.after_saved(self, row)
            if self.stopping and not self.over:
                return self.finish("interrupted")
        return self.finish("completed")

    @property
    def over(self) -> bool:
        """Whether nothing is left to train and the last step is validated."""
        e, progress = self.experiment, self.progress
        ended = self.timing.ended and progress.validated == progress.step
        return ended or progress.over(e.epochs, e.patience, e.steps)

    def batches(self) -> Iterator[Loaded]:
        """Return this rank's parts of the batches that are left before the next validation."""
        progress = self.progress
        first = progress.step - progress.epoch * self.steps_per_epoch
        left = self.timing.remaining(progress.step, progress.validated)
        epoch = self.loaders["train"].epoch(progress.epoch, first) if left else iter(())
        return epoch if first + left == self.steps_per_epoch else islice(epoch, left)

    # A step

    def step(self, batch: Loaded) -> Step:
        """Update the weights by one global batch. A collective."""
        strategy, progress = self.strategy, self.progress
        doing.begin("preparing a batch", progress.step)
        lr, self.sums = self._set_learning_rate(), {}
        for number, shard in batch.shards():
            # Randomness inside the model (dropout) is a function of the step and the shard: there is no state to save.
            self.seed(1, progress.step, strategy.random_stream(number))
            micro_batches = shard.passes(self.experiment.micro_batch, strategy.lockstep)
            loss = partial(self._loss, slot=strategy.slot(number))
            with self.precision.products(), strategy.buffers.finite(self.experiment.on_nonfinite == "skip"):
                self.forward_backward(micro_batches, loss, self.precision.forward)
        doing.begin("exchanging gradients", progress.step)
        strategy.reduce_gradients()
        columns = self.hooks.after_backward(self)
        found = torch.cat([self.sums.get(slot, self.zero).reshape(1) for slot in range(strategy.slots)])
        if self.writer:
            self.writer.settle()
        doing.begin("updating the weights", progress.step)
        updated = self._update()
        for parameter in self.parameters:  # all that the optimizer's zero_grad does, but for its hooks
            parameter.grad = None
        progress.step += 1
        doing.begin("between two steps", progress.step)
        self.hooks.after_step(self, columns)
        return Step(progress.step, lr, batch.size, found, updated, columns)

    def _loss(self, model: nn.Module, one: Pass, slot: int) -> torch.Tensor:
        """Return what to call backward() on for a micro-batch, and add its loss to its slot."""
        doing.at(FORWARD)
        with self.precision.forward():
            loss, count = self.experiment.task.loss(model, one.batch)
        unit = self.losses.check_unit(count, len(one.batch))
        if self.strategy.counts and not one.blank:
            found = loss.detach()
            self.sums[slot] = self.sums[slot].double() + found if slot in self.sums else found
        doing.at(BACKWARD)
        return self.precision.scaled(loss, 0.0 if one.blank else self.strategy.gradient_scale / (unit * one.size))

    def _set_learning_rate(self) -> float:
        e = self.experiment
        lr = float(e.schedule.lr(e.lr, self.progress.step, self.steps_per_epoch, self.epochs, self.history))
        for group in self.optimizer.param_groups:
            group["lr"] = lr * group["factor"]  # of Python: a checkpoint gives no NumPy number back
        return lr

    def _update(self) -> bool | torch.Tensor:
        """Update the weights and their averages; return whether it did, on all ranks alike."""
        self.strategy.copies.fence()
        for parameter in self.waiting.in_epoch(self.progress.epoch):  # optimizers skip what has no gradient, and do
            parameter.grad = None  # not decay it either
        updated = self.update_weights()
        if self.averages:
            self.averages.after_step(updated)
        return updated

    def clip_and_step(self) -> bool | torch.Tensor:
        """Clip the gradients and update the weights; return whether it did."""
        e, strategy = self.experiment, self.strategy
        clips = e.clip_norm is not None or e.on_nonfinite == "skip"
        if clips or strategy.sharded:
            self.precision.unscale(self.optimizer, strategy.sharded)
        finite = None
        if clips:
            norm = strategy.clip(self.parameters, math.inf if e.clip_norm is None else e.clip_norm)
            finite = norm.isfinite() if e.on_nonfinite == "skip" else None
        return self.precision.step(self.optimizer, finite)

    # Losses, metrics

    def flush(self) -> Ask:
        """Write the rows of the steps since the last time; return what rank 0 asks for. A collective."""
        doing.begin("adding up losses", self.progress.step)
        ask = Ask.NOTHING
        if self.ranks.rank == 0:
            spent = self.progress.spent + time.monotonic() - self.clock
            ask = self.timing.asks(self.progress.step, spent, self.stop_request.made())
        steps, asked = self.losses.reduce(ask)
        self.timing.out_of_time |= bool(asked & Ask.END)
        rows = [self._row(step) for step in steps]
        now = time.monotonic()
        self.progress.spend(now - self.clock, self.losses.seconds)
        self.clock = now
        if math.isnan(self.first_step_seconds) and rows:
            self.first_step_seconds = time.time() - self.command_started
        self.hooks.after_losses(self, rows)
        if self.log and rows:
            self.log.write(rows)
        return asked | (Ask.END if self.timing.reason else Ask.NOTHING)

    def _row(self, step: Reduced) -> dict[str, Any]:
        """Return a step's row of metrics.jsonl, and count the step.

        Raises:
            FloatingPointError: the loss is not finite, which ends the run.
        """
        finite = math.isfinite(step.total)
        if not finite and self.experiment.on_nonfinite == "error":
            raise diverged(step, self.run.checkpoints, clipped=self.experiment.clip_norm is not None)
        if finite:
            self.progress.add(step.total, step.size)
        self.progress.skipped += not step.updated
        row = {
            "kind": "step",
            "step": step.step,
            "epoch": self.progress.epoch + 1,
            "loss": step.mean if finite else None,
            "lr": step.lr,
            **{name: read(value) for name, value in step.columns.items()},
        }
        return row if step.updated else row | {"skipped": True}

    def evaluate(self, split: str = "val") -> dict[str, float]:
        """Return the task's metrics over a whole split, every sample counted once. A collective."""
        e = self.experiment
        doing.begin("validating", self.progress.step)
        self.strategy.broadcast_buffers()
        with self.averaged():
            sums = evaluate(e.task, self.strategy, self.loaders[split], self.precision, e.micro_batch)
        doing.begin("adding up the validation's metrics", self.progress.step)
        return e.task.results(sums.reduce(self.ranks.device))

    def _validate(self) -> dict[str, Any]:
        """Validate, and write the row: the epoch's, if this is its end."""
        started, task, progress = time.monotonic(), self.experiment.task, self.progress
        at_end = progress.step == (progress.epoch + 1) * self.steps_per_epoch
        if at_end and self.averages:
            self.strategy.broadcast_buffers()
            self.averages.after_epoch(progress.epoch + 1)
        metrics = self.evaluate()
        seconds = time.monotonic() - started
        if at_end:
            row = progress.end_epoch(task, metrics, seconds, self.epochs)
        else:
            row = progress.validate(task, metrics, seconds)
        self.history = progress.validations(task)
        columns = self.hooks.after_validation(self, row)
        row |= columns
        if progress.best["step"] == row["step"]:
            progress.best |= columns
        if self.log:
            self.log.write([row])
        return row

    # State

    def save(self) -> None:
        """Write a checkpoint in a side thread. A collective."""
        doing.begin("writing a checkpoint", self.progress.step)
        hooks = self.hooks.state_dict()
        self.strategy.broadcast_buffers()
        if self.writer:
            self.writer.wait()  # before the copy: there are never more than two states in memory
        tensors = self.snapshot()
        if self.log is None or self.writer is None or tensors is None:
            return
        model = tensors.pop("model")
        tensors["precision"] = self.precision.state_dict()
        state = resume.state_of(self, hooks, self.log)
        self.writer.start(self.progress.step, model, tensors, state, self.strategy.copies.wait)
        self.timing.saved()

    def snapshot(self) -> dict[str, Any] | None:
        """Return copies of a checkpoint's tensors on rank 0, None on others. A collective."""
        strategy = self.strategy
        with self.averaged():
            model = strategy.gather({"model": strategy.module.state_dict()})
        rest = {"optimizer": self.optimizer.state_dict()}
        if self.averages:
            rest[self.averages.name] = self.averages.state_dict(strategy.module)
        rest = strategy.gather(rest)
        return model | rest if model and rest else None

    @contextlib.contextmanager
    def averaged(self) -> Iterator[None]:
        """The context in which the model has its averaged weights, where there are any."""
        if self.averages is None:
            yield
            return
        self.strategy.copies.fence()  # the last checkpoint's copies of the weights may not be made yet
        with self.averages.in_place():
            self.strategy.weights_changed()
            yield
            self.strategy.copies.fence()
        self.strategy.weights_changed()

    def finish(self, status: str) -> str:
        """Write the summary. A collective, so that no rank leaves before the others have come."""
        doing.begin("ending the run", self.progress.step)
        found = summary.of(self, status)
        if self.writer:
            self.writer.finish(found)
        return status

    def seed(self, *parts: int) -> None:
        """Seed this rank's random numbers by the run's seed and by `parts`."""
        seed((self.experiment.seed, *parts), self.ranks.devices if self.ranks.device.type == "cuda" else ())
