"""The trainer: one rank's training loop. It uses torch and files, not Ray."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from raytrain import order
from raytrain.checkpoint.storage import Storage
from raytrain.data.loader import Loaded, Loader, Pass, Reader, keep_memory
from raytrain.data.source import Index
from raytrain.experiment import Experiment
from raytrain.hooks import Hook
from raytrain.optim.optimizers import backbone
from raytrain.parallel.strategy import RankContext
from raytrain.run.metrics_log import MetricsLog
from raytrain.run.run import Run
from raytrain.run.writer import CheckpointWriter
from raytrain.training import memory, resume
from raytrain.training.auto_precision import choose_precision
from raytrain.training.ema import EMA
from raytrain.training.evaluation import evaluate
from raytrain.training.hooks import Hooks, read
from raytrain.training.losses import LossLog, Reduced, Step
from raytrain.training.optimizer import build_optimizer
from raytrain.training.precision import Precision, check_device, memory_format
from raytrain.training.progress import Progress
from raytrain.training.stop_request import StopRequest
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
    ):
        self.experiment, self.ranks, self.indices, self.readers = value, ranks, indices, readers
        self.hooks = Hooks(value.hooks, hooks)
        self.run, self.command_started, self.storage = Run(run), command_started, storage
        self.stop_request = StopRequest(run)
        self.sample, self.classes = value.data.sample(indices["train"]), indices["train"].classes
        self.weights = weights
        torch.set_num_threads(value.scaling.threads_per_worker or 1)
        if ranks.device.type == "cpu" and not value.parallel.sharded:  # sharding is there to save memory
            keep_memory()
        check_device(value.precision, ranks.device)
        self.precision = Precision(value.precision, ranks.device)
        self.ema = None if value.ema_decay is None else EMA(value.ema_decay)
        self.progress = Progress()
        self.log: MetricsLog | None = None
        self.writer: CheckpointWriter | None = None
        self.stopping = False
        self.first_step_seconds = math.nan

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
        e, saved = self.experiment, resume.restore(self)
        if e.compile:
            torch.compiler.reset()  # what a process compiled before counts towards torch's limit of graphs
        self.strategy = e.parallel.setup(self.build, self.ranks, (e.accumulation, e.micro_batch))
        self.loaders = {split: self._loader(split) for split in self.readers}
        self.steps_per_epoch = self.loaders["train"].steps
        self.losses = LossLog(self.strategy, e.task)
        self.losses.unit = saved.unit if saved else None
        with contextlib.ExitStack() as stack:
            resume.open_logs(self, saved)
            if self.log and self.writer:
                stack.callback(self.log.close)
                stack.callback(self.writer.close)  # also after an error, the last checkpoint is written
            if e.precision == "auto":
                choose_precision(self)
            self.optimizer, self.parameters = build_optimizer(e.optimizer, self.strategy, saved and saved.optimizer)
            self.backbone = backbone(self.strategy.module)
            if self.ema:
                self.ema.start(self.strategy.module, self.strategy.shard, {id(p) for p in self.parameters})
            self.weights = None
            self.hooks.start(self)
            stack.enter_context(self.strategy.kernels())
            yield

    def build(self) -> nn.Module:
        """Return the model on the CPU, with the weights that training starts from."""
        e = self.experiment
        self._seed(0)
        module = e.model.build(self.sample, len(self.classes))
        if self.weights is not None:
            module.load_state_dict(self.weights)
        module.to(memory_format=memory_format(e.memory_format))  # type: ignore[call-overload]
        if e.compile:
            # One graph per shape: otherwise the first short batch would bring in one graph for all shapes.
            module.compile(dynamic=False)
        return module

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
            epochs=e.epochs,
        )

    def train(self) -> str:
        """Train up to the end or a request to stop, within `started`; see `fit`."""
        e, progress = self.experiment, self.progress
        every = e.checkpoint.every_steps
        while not progress.over(e.epochs, e.patience):
            self.clock = time.monotonic()
            self.strategy.module.train()
            for loaded in self.batches():
                self.losses.add(self.step(loaded))
                due = bool(every and progress.step % every == 0 and loaded.step + 1 < self.steps_per_epoch)
                stop = (due or self.losses.due) and self.flush()
                if due or stop:
                    self.save()
                if stop:
                    return self.finish("interrupted")
            self.stopping = self.flush()
            row = self._end_epoch()
            self.save()
            self.hooks.after_epoch_saved(self, row)
            if self.stopping and not progress.over(e.epochs, e.patience):
                return self.finish("interrupted")
        return self.finish("completed")

    def batches(self) -> Iterator[Loaded]:
        """Return this rank's parts of the batches that are left of the present epoch."""
        first = self.progress.step - self.progress.epoch * self.steps_per_epoch
        return self.loaders["train"].epoch(self.progress.epoch, first) if first < self.steps_per_epoch else iter(())

    # A step

    def step(self, batch: Loaded) -> Step:
        """Update the weights by one global batch. A collective."""
        strategy, progress = self.strategy, self.progress
        doing.begin("preparing a batch", progress.step)
        lr, losses = self._set_learning_rate(), {}
        for number, shard in batch.shards():
            # Randomness inside the model (dropout) is a function of the step and the shard: there is no state to save.
            self._seed(1, progress.step, strategy.random_stream(number))
            micro_batches = shard.passes(self.experiment.micro_batch, strategy.lockstep)
            loss = partial(self._loss, losses=losses, slot=strategy.slot(number), size=batch.size)
            with self.precision.products():
                strategy.forward_backward(micro_batches, loss, self.precision.forward)
        doing.begin("exchanging gradients", progress.step)
        strategy.reduce_gradients()
        columns = self.hooks.after_backward(self)
        zero = torch.zeros((), dtype=torch.float64, device=self.ranks.device)
        found = torch.stack([losses.get(slot, zero) for slot in range(strategy.slots)])
        doing.begin("updating the weights", progress.step)
        if self.writer:
            self.writer.settle()
        updated = self._update()
        for parameter in self.parameters:  # all that the optimizer's zero_grad does, but for its hooks
            parameter.grad = None
        progress.step += 1
        doing.begin("between two steps", progress.step)
        self.hooks.after_step(self, columns)
        return Step(progress.step, lr, batch.size, found, updated, columns)

    def _loss(self, model: nn.Module, one: Pass, losses: dict[int, torch.Tensor], slot: int, size: int) -> torch.Tensor:
        """Return what to call backward() on for a micro-batch, and add its loss to its slot.

        Args:
            size: samples of the global batch.
        """
        doing.at(FORWARD)
        with self.precision.forward():
            loss, count = self.experiment.task.loss(model, one.batch)
        unit = self.losses.check_unit(count, len(one.batch))
        if self.strategy.counts and not one.blank:
            found = loss.detach().double()
            losses[slot] = losses[slot] + found if slot in losses else found
        doing.at(BACKWARD)
        return self.precision.scaled(loss * (0.0 if one.blank else self.strategy.gradient_scale / (unit * size)))

    def _set_learning_rate(self) -> float:
        e = self.experiment
        lr = e.lr * e.schedule.factor(self.progress.step, self.steps_per_epoch, e.epochs)
        for group in self.optimizer.param_groups:
            group["lr"] = lr * group["factor"]
        return lr

    def _update(self) -> bool:
        """Clip the gradients and update the weights; return whether it did, on all ranks alike."""
        e, strategy = self.experiment, self.strategy
        if e.unfreeze_epoch is not None and self.progress.epoch < e.unfreeze_epoch:
            for parameter in self.backbone:  # optimizers skip what has no gradient, and do not decay it either
                parameter.grad = None
        clips = e.clip_norm is not None or e.on_nonfinite == "skip"
        if clips or strategy.sharded:
            self.precision.unscale(self.optimizer, strategy.sharded)
        if clips:
            norm = strategy.clip(self.parameters, math.inf if e.clip_norm is None else e.clip_norm)
            if e.on_nonfinite == "skip" and e.precision != "fp16" and not norm.isfinite():
                return False
        updated = self.precision.step(self.optimizer)
        if self.ema and updated:
            self.ema.update()
        return updated

    # Losses, metrics

    def flush(self) -> bool:
        """Write the rows of the steps since the last time; return whether to stop. A collective."""
        doing.begin("adding up losses", self.progress.step)
        steps, stop = self.losses.reduce(self.stop_request.made() if self.ranks.rank == 0 else False)
        rows = [self._row(step) for step in steps]
        now = time.monotonic()
        self.progress.epoch_seconds += now - self.clock
        self.clock = now
        if math.isnan(self.first_step_seconds) and rows:
            self.first_step_seconds = time.time() - self.command_started
        if self.log and rows:
            self.log.write(rows)
        return stop

    def _row(self, step: Reduced) -> dict[str, Any]:
        """Return a step's row of metrics.jsonl, and count the step.

        Raises:
            FloatingPointError: the loss is not finite, which ends the run.
        """
        finite = math.isfinite(step.total)
        if not finite and self.experiment.on_nonfinite == "error":
            committed = sorted(path.parent.name for path in self.run.checkpoints.glob("step_*/manifest.json"))
            raise FloatingPointError(
                f"the loss became {step.total} at step {step.step}: train a new run with a lower learning rate, or go "
                "on with --clip_norm 1, or with --on_nonfinite skip to leave such steps out; "
                + (f"the last checkpoint is {committed[-1]}" if committed else "there is no checkpoint yet")
            )
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
        with self._averaged():
            sums = evaluate(e.task, self.strategy, self.loaders[split], self.precision, e.micro_batch)
        doing.begin("adding up the validation's metrics", self.progress.step)
        return e.task.metrics(sums.reduce(self.ranks.device))

    def _end_epoch(self) -> dict[str, Any]:
        """Validate and write the epoch's row."""
        started, e = time.monotonic(), self.experiment
        metrics = self.evaluate()
        row = self.progress.end_epoch(e.task, metrics, time.monotonic() - started, e.epochs)
        columns = self.hooks.after_epoch(self, row)
        row |= columns
        if self.progress.best["epoch"] == row["epoch"]:
            self.progress.best |= columns
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
        self.writer.start(self.progress.step, model, tensors, resume.state_of(self, hooks, self.log))

    def snapshot(self) -> dict[str, Any] | None:
        """Return copies of a checkpoint's tensors on rank 0, None on others. A collective."""
        strategy = self.strategy
        with self._averaged():
            model = strategy.gather({"model": strategy.module.state_dict()})
        rest = {"optimizer": self.optimizer.state_dict()}
        if self.ema:
            rest["ema"] = self.ema.state_dict(strategy.module)
        rest = strategy.gather(rest)
        return model | rest if model and rest else None

    @contextlib.contextmanager
    def _averaged(self) -> Iterator[None]:
        """The context in which the model has its averaged weights, where there are any."""
        if self.ema is None:
            yield
            return
        with self.ema.in_place():
            self.strategy.weights_changed()
            yield
        self.strategy.weights_changed()

    def finish(self, status: str) -> str:
        """Write the summary. A collective, so that no rank leaves before the others have come."""
        progress, device = self.progress, self.ranks.device
        doing.begin("ending the run", progress.step)
        peak = torch.tensor([float(memory.peak(device.type == "cuda"))], dtype=torch.float64, device=device)
        if self.ranks.world > 1:
            dist.all_reduce(peak, op=dist.ReduceOp.MAX)
        if self.writer:
            early = status == "completed" and progress.epoch < self.experiment.epochs
            summary = {
                "status": status,
                "monitor": self.experiment.task.monitor,
                **progress.summary(),
                **({"stopped_early": True} if early else {}),
                "first_step_seconds": None if math.isnan(self.first_step_seconds) else self.first_step_seconds,
                "workers": self.ranks.world,
                "device": device.type,
                "precision": self.experiment.precision,
                "peak_memory_bytes": int(peak.item()),
            }
            self.writer.finish(summary)
        return status

    def _seed(self, *parts: int) -> None:
        seed = order.key(self.experiment.seed, *parts) >> 1
        torch.default_generator.manual_seed(seed)  # torch.manual_seed also visits all other backends, at every step
        for number, device in enumerate(self.ranks.devices if self.ranks.device.type == "cuda" else ()):
            with torch.cuda.device(device):
                # Each GPU draws its own numbers: replicas or layers on two GPUs must not drop the same units.
                torch.cuda.manual_seed(order.key(seed, number) >> 1 if number else seed)
