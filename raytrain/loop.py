"""The worker: one rank's training loop. It knows torch and its files; of Ray it knows nothing."""

from __future__ import annotations

import contextlib
import json
import math
import resource
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from raytrain import checkpoint, order
from raytrain.data.loader import Loaded, Loader, Reader
from raytrain.data.source import Index
from raytrain.experiment import Experiment
from raytrain.metrics import Sums
from raytrain.precision import Precision
from raytrain.run import MetricsLog, Run
from raytrain.task import Batch

_FLUSH_SECONDS = 0.25


@dataclass
class Place:
    """Where a rank stands: its number, how many there are, and its device."""

    rank: int
    world: int
    device: torch.device


@dataclass
class Progress:
    """The position in a run and the figures so far; all of it is in every checkpoint."""

    step: int = 0
    """Optimizer steps done in the whole run."""
    epoch: int = 0
    """Epochs done, validation included."""
    epoch_loss: float = 0.0
    """Sum of the losses of this epoch's samples so far."""
    epoch_samples: int = 0
    epoch_seconds: float = 0.0
    train_seconds: float = 0.0
    """Seconds of training in all epochs but the first, and their samples: the steady state."""
    train_samples: int = 0
    seconds: float = 0.0
    best: dict[str, Any] = field(default_factory=dict)
    """The best epoch's row and the name of its checkpoint."""


@dataclass
class _Pending:
    """A step whose loss has not been reduced over the ranks yet."""

    step: int
    lr: float
    size: int
    loss: torch.Tensor


class Worker:
    """One rank of a run: model, optimizer, data and the log.

    Args:
        experiment: what to train.
        run: the run's directory.
        indices: the samples of `train` and `val`.
        readers: where their images come from.
        weights: the initial state dict, for models with pretrained weights.
        place: this rank's place.
        command_started: Unix time at which the user's command began.
    """

    def __init__(
        self,
        experiment: Experiment,
        run: Path,
        indices: dict[str, Index],
        readers: Mapping[str, Reader],
        weights: dict[str, torch.Tensor] | None,
        place: Place,
        command_started: float,
    ):
        e = self.experiment = experiment
        self.run, self.place, self.command_started = Run(run), place, command_started
        self.sample, self.stored = e.data.image(indices["train"]), indices["train"].shape
        self.classes = indices["train"].classes
        torch.set_num_threads(e.scaling.threads_per_worker or 1)
        self._seed(0)
        self.model: nn.Module = e.model.build(self.sample, len(self.classes))
        if weights is not None:
            self.model.load_state_dict(weights)
        self.model.to(place.device)
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self.parameters = trained
        self.optimizer = e.optimizer.build(trained)
        self.precision = Precision(e.precision, place.device)
        self.loaders = {
            split: Loader(
                e.data,
                indices[split],
                readers[split],
                e.batch_size,
                e.seed,
                place.rank,
                place.world,
                place.device,
                train=split == "train",
            )
            for split in readers
        }
        self.steps_per_epoch = self.loaders["train"].steps
        self.progress = Progress()
        self.log: MetricsLog | None = None
        self.pending: list[_Pending] = []
        self.flush_every, self.last_flush = 1, time.monotonic()
        self.unit: float | None = None
        self.first_step_seconds = math.nan

    def fit(self) -> str:
        """Trains from the newest checkpoint, or from the start, to the end or to a request to stop.

        Returns:
            `completed` or `interrupted`; the summary is written then.
        """
        self.restore()
        with contextlib.closing(self.log) if self.log else contextlib.nullcontext():
            return self._train()

    def _train(self) -> str:
        e, progress = self.experiment, self.progress
        self.wrapped = e.parallel.wrap(self.model, self.place.device, self.place.world)
        every = e.checkpoint.every_steps
        while progress.epoch < e.epochs:
            self.clock = time.monotonic()
            first = progress.step - progress.epoch * self.steps_per_epoch
            for loaded in self.loaders["train"].epoch(progress.epoch, first) if first < self.steps_per_epoch else ():
                self.train_step(loaded)
                due = bool(every and progress.step % every == 0 and loaded.step + 1 < self.steps_per_epoch)
                stop = (due or len(self.pending) >= self.flush_every) and self.flush()
                if due or stop:
                    self.save()
                if stop:
                    return self.finish("interrupted")
            stop = self.flush()
            row = self.end_epoch()
            self.save(row)
            if stop and progress.epoch < e.epochs:
                return self.finish("interrupted")
        return self.finish("completed")

    def train_step(self, loaded: Loaded) -> None:
        """One optimizer step over one global batch."""
        e, progress, world = self.experiment, self.progress, self.place.world
        self.model.train()
        # Randomness inside the model (dropout) is a function of the step and the rank: there is no state to save.
        self._seed(1, progress.step, self.place.rank)
        lr = e.optimizer.lr * e.schedule.factor(progress.step, self.steps_per_epoch, e.epochs)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        total = torch.zeros((), dtype=torch.float64, device=self.place.device)
        batches = list(range(0, max(1, len(loaded.ids)), e.micro_batch))
        empty = len(loaded.ids) == 0  # a last short batch with fewer samples than ranks
        parts = [self._nothing(loaded)] if empty else loaded.micro_batches(e.micro_batch)
        for start, (ids, images, labels) in zip(batches, parts, strict=True):
            waits = start != batches[-1]
            with self._no_sync(waits):
                with self.precision.forward():
                    loss, count = e.task.loss(self.wrapped, Batch(images, labels, ids))
                    loss = loss / self._unit(count, len(ids)) * (0 if empty else 1)
                self.precision.backward(loss * (e.parallel.gradient_scale(world) / loaded.size))
            total += loss.detach()
        if e.clip_norm is not None:
            self.precision.unscale(self.optimizer)
            nn.utils.clip_grad_norm_(self.parameters, e.clip_norm)
        self.precision.step(self.optimizer)
        self.optimizer.zero_grad(set_to_none=True)
        progress.step += 1
        self.pending.append(_Pending(progress.step, lr, loaded.size, total))

    def flush(self) -> bool:
        """Reduces the losses of the steps since the last flush, writes them, and asks whether to stop. A collective.

        Losses are sums of a few float32 values in float64, which is exact: their bits do not depend on when a flush
        happens or on the order of the ranks.
        """
        progress, pending, self.pending = self.progress, self.pending, []
        now = time.monotonic()
        wanted = (self.run.path / "stop").exists() if self.place.rank == 0 else False
        pace = _FLUSH_SECONDS * len(pending) / max(now - self.last_flush, 1e-6)
        tail = [float(wanted), max(1.0, min(200.0, pace))] if self.place.rank == 0 else [0.0, 0.0]
        sums = torch.cat(
            [
                torch.stack([p.loss for p in pending]).cpu() if pending else torch.empty(0, dtype=torch.float64),
                torch.tensor(tail, dtype=torch.float64),
            ]
        ).to(self.place.device)
        if self.place.world > 1:
            dist.all_reduce(sums)
        *losses, stop, every = sums.tolist()
        self.flush_every, self.last_flush = int(every), time.monotonic()
        rows = []
        for step, loss in zip(pending, losses, strict=True):
            if not math.isfinite(loss):
                raise FloatingPointError(
                    f"the loss became {loss} at step {step.step}: lower the learning rate, or "
                    "clip gradients with --clip_norm 1"
                )
            progress.epoch_loss += loss
            progress.epoch_samples += step.size
            rows.append(
                {
                    "kind": "step",
                    "step": step.step,
                    "epoch": progress.epoch + 1,
                    "loss": loss / step.size,
                    "lr": step.lr,
                }
            )
        now = time.monotonic()
        progress.epoch_seconds += now - self.clock
        self.clock = now
        if math.isnan(self.first_step_seconds) and rows:
            self.first_step_seconds = time.time() - self.command_started
        if self.log and rows:
            self.log.write(rows)
        return stop > 0

    def evaluate(self, split: str = "val") -> dict[str, float]:
        """The task's metrics over a whole split, every sample counted once. A collective."""
        self.experiment.parallel.sync_buffers(self.model, self.place.world)
        sums = evaluate(self.experiment, self.model, self.loaders[split], self.precision)
        return self.experiment.task.metrics(sums.reduce(self.place.device))

    def end_epoch(self) -> dict[str, Any]:
        """Validates and writes the epoch's row."""
        progress, task = self.progress, self.experiment.task
        started = time.monotonic()
        metrics = {f"val_{name}": value for name, value in self.evaluate().items()}
        if task.monitor not in metrics:
            raise ValueError(f"task.monitor is {task.monitor!r} and the task's metrics are {sorted(metrics)}")
        row = {
            "kind": "epoch",
            "epoch": progress.epoch + 1,
            "step": progress.step,
            "train_loss": progress.epoch_loss / progress.epoch_samples,
            **metrics,
            "samples_per_second": progress.epoch_samples / max(progress.epoch_seconds, 1e-9),
            "seconds": progress.epoch_seconds + time.monotonic() - started,
        }
        if progress.epoch > 0 or self.experiment.epochs == 1:
            progress.train_seconds += progress.epoch_seconds
            progress.train_samples += progress.epoch_samples
        progress.seconds += row["seconds"]
        progress.epoch += 1
        progress.epoch_loss, progress.epoch_samples, progress.epoch_seconds = 0.0, 0, 0.0
        better = (lambda a, b: a > b) if task.highest_is_best else (lambda a, b: a < b)
        if not progress.best or better(row[task.monitor], progress.best[task.monitor]):
            progress.best = {**row, "checkpoint": f"step_{progress.step:08d}"}
        if self.log:
            self.log.write([row])
        return row

    def save(self, row: dict[str, Any] | None = None) -> None:
        """Commits a checkpoint; `row` is the epoch's, where one has just ended."""
        self.experiment.parallel.sync_buffers(self.model, self.place.world)
        if self.log is None:
            return
        progress, folder = self.progress, self.run.checkpoints
        state = {
            "progress": vars(progress),
            "metrics_bytes": self.log.commit(),
            "sample": self.sample,
            "stored": self.stored,
            "classes": self.classes,
            "workers": self.place.world,
            "unit": self.unit,
        }
        path = checkpoint.save(
            folder,
            progress.step,
            self.model.state_dict(),
            {"optimizer": self.optimizer.state_dict(), "precision": self.precision.state_dict()},
            state,
        )
        best = progress.best.get("checkpoint")
        if best == path.name and row is not None:
            checkpoint.write_atomically(self.run.path / "best.json", json.dumps(progress.best, indent=2))
        checkpoint.write_atomically(
            self.run.path / "last.json", json.dumps({"checkpoint": path.name, "step": progress.step}, indent=2)
        )
        checkpoint.prune(folder, self.experiment.checkpoint.keep, [best] if best else [])

    def restore(self) -> None:
        """Takes up the newest checkpoint that verifies, and cuts the metrics back to it."""
        folder = self.run.checkpoints
        chosen = [checkpoint.newest(folder) if self.place.rank == 0 else None]
        if self.place.world > 1:
            dist.broadcast_object_list(chosen)
        path, offset = chosen[0], 0
        if path is not None:
            device = self.place.device
            self.model.load_state_dict(checkpoint.load_model(path, device))
            tensors, state = checkpoint.load_optimizer(path, device), checkpoint.load_state(path)
            self.optimizer.load_state_dict(tensors["optimizer"])
            self.precision.load_state_dict(tensors["precision"])
            vars(self.progress).update(state["progress"])
            self.unit, offset = state["unit"], state["metrics_bytes"]
        if self.place.rank == 0:
            checkpoint.drop_after(folder, self.progress.step if path else -1)
            self.log = MetricsLog(self.run.path / "metrics.jsonl", offset)

    def finish(self, status: str) -> str:
        """Writes the summary. A collective, so that no rank leaves before the others have come."""
        progress = self.progress
        peak = torch.tensor([float(_peak_memory(self.place.device))], dtype=torch.float64, device=self.place.device)
        if self.place.world > 1:
            dist.all_reduce(peak, op=dist.ReduceOp.MAX)
        if self.log:
            self.log.commit()
            best = {name: value for name, value in progress.best.items() if name.startswith("val_")}
            rate = (
                progress.train_samples / progress.train_seconds
                if progress.train_seconds
                else (progress.epoch_samples / progress.epoch_seconds if progress.epoch_seconds else None)
            )
            summary = {
                "status": status,
                **best,
                "best_epoch": progress.best.get("epoch"),
                "epochs": progress.epoch,
                "steps": progress.step,
                "seconds": progress.seconds + progress.epoch_seconds,
                "first_step_seconds": None if math.isnan(self.first_step_seconds) else self.first_step_seconds,
                "samples_per_second": rate,
                "workers": self.place.world,
                "device": self.place.device.type,
                "peak_memory_bytes": int(peak.item()),
            }
            checkpoint.write_atomically(self.run.path / "summary.json", json.dumps(summary, indent=2))
        return status

    def _seed(self, *parts: int) -> None:
        seed = order.key(self.experiment.seed, *parts) >> 1
        torch.default_generator.manual_seed(seed)  # torch.manual_seed also visits all other backends, at every step
        if self.place.device.type == "cuda":
            torch.cuda.manual_seed(seed)

    def _no_sync(self, waits: bool) -> AbstractContextManager[Any]:
        return self.experiment.parallel.no_sync(self.wrapped) if waits else contextlib.nullcontext()

    def _unit(self, count: int, samples: int) -> float:
        """What a task counts for one sample: 1, or for example its pixels. The global batch's count is then known
        to all ranks without asking."""
        unit = count / samples
        if self.unit is None:
            self.unit = unit
        if unit != self.unit:
            raise ValueError(
                f"the task's loss counted {unit:g} for a sample and {self.unit:g} before: "
                "the count must be the same for every sample (give samples a weight in the sum instead)"
            )
        return unit

    def _nothing(self, loaded: Loaded) -> tuple[np.ndarray, torch.Tensor, torch.Tensor]:
        """One black image whose loss is multiplied by zero: the rank takes part in the exchange of gradients."""
        ids, images = np.zeros(1, np.int64), loaded.images.new_zeros((1, *loaded.images.shape[1:]))
        return ids, loaded.prepare(images, ids), loaded.labels.new_zeros(1)


def evaluate(experiment: Experiment, model: nn.Module, loader: Loader, precision: Precision) -> Sums:
    """Adds up the task's sums over this rank's part of a split."""
    sums = Sums()
    model.eval()
    with torch.inference_mode():
        for loaded in loader.epoch(0):
            for ids, images, labels in loaded.micro_batches(experiment.micro_batch):
                with precision.forward():
                    sums.add(experiment.task.sums(model, Batch(images, labels, ids)))
    return sums


def _peak_memory(device: torch.device) -> int:
    """Bytes: the device's peak on a GPU, the process's on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
