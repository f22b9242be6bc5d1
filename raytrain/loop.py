"""The worker: one rank's training loop. It knows torch and its files; of Ray it knows nothing."""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from raytrain import checkpoint, config, errors, memory, order, sources
from raytrain.data.loader import Loaded, Loader, Pass, Reader, keep_memory
from raytrain.data.source import Index
from raytrain.ema import EMA
from raytrain.experiment import Experiment
from raytrain.files import known_json, write_atomically
from raytrain.metrics import Sums
from raytrain.optim import backbone
from raytrain.parallel import Parallel
from raytrain.precision import Precision, check_device, fastest, memory_format
from raytrain.progress import Progress
from raytrain.rows import check_rows
from raytrain.run import MetricsLog, Run, no_way_back
from raytrain.storage import Storage
from raytrain.task import Batch
from raytrain.watchdog import BACKWARD, FORWARD, doing
from raytrain.writer import CheckpointWriter

_FLUSH_SECONDS = 0.5
_AWAY_SECONDS = 30.0
"""How long the run's directory may be away, as where its disk is not mounted for a moment."""


@dataclass
class Place:
    """Where a rank stands.

    Attributes:
        rank: its number.
        world: how many ranks there are.
        device: where its model and batches are.
        more: further GPUs of its own, over which a strategy may spread the model.
    """

    rank: int
    world: int
    device: torch.device
    more: tuple[torch.device, ...] = ()

    @property
    def devices(self) -> tuple[torch.device, ...]:
        """All devices of the rank."""
        return self.device, *self.more

    @classmethod
    def alone(cls, gpus: float | None, rank: int = 0, world: int = 1) -> Place:
        """Return the place of a rank without Ray Train, whose GPUs are the first `gpus` that its process sees."""
        if not gpus:
            return cls(rank, world, torch.device("cpu"))
        first, *more = (torch.device("cuda", number) for number in range(max(1, int(gpus))))
        return cls(rank, world, first, tuple(more))


@dataclass
class _Pending:
    """A step whose loss has not been reduced over the ranks yet.

    Attributes:
        loss: float64 [1], this rank's sum, or [shards of the batch] with zeros for other ranks' shards.
    """

    step: int
    lr: float
    size: int
    loss: torch.Tensor
    updated: bool


class Worker:
    """One rank of a run: model, optimizer, data and the log.

    Args:
        value: the experiment, with its open choices decided by the plan.
        run: the run's directory.
        indices: the samples of `train` and `val`.
        readers: where their images come from.
        weights: the initial state dict, for models with pretrained weights.
        place: this rank's place.
        command_started: Unix time at which the user's command began.
        storage: the URL that the run is at; its directory is then this machine's alone.
    """

    def __init__(
        self,
        value: Experiment,
        run: Path,
        indices: dict[str, Index],
        readers: Mapping[str, Reader],
        weights: dict[str, torch.Tensor] | None,
        place: Place,
        command_started: float,
        storage: Storage | None = None,
    ):
        e = self.experiment = value
        self.run, self.place, self.command_started, self.storage = Run(run), place, command_started, storage
        self.sample, self.stored = e.data.image(indices["train"]), indices["train"].shape
        self.classes = indices["train"].classes
        torch.set_num_threads(e.scaling.threads_per_worker or 1)
        if place.device.type == "cpu" and not e.parallel.sharded:  # which is there to take little of it
            keep_memory()
        self._seed(0)
        self.model: nn.Module = e.model.build(self.sample, len(self.classes))
        if weights is not None:
            self.model.load_state_dict(weights)
        layout = memory_format(e.memory_format)
        self.model.to(place.device, memory_format=layout)  # type: ignore[call-overload]
        check_device(e.precision, place.device)
        self.precision = Precision(e.precision, place.device)
        self.replica, self.counts = e.parallel.replica(place.rank, place.world)
        self.stream = e.parallel.stream(place.rank, place.world)
        replicas = e.parallel.replicas(place.world)
        self.ema = None if e.ema_decay is None else EMA(e.ema_decay)
        self.loaders = {
            split: Loader(
                e.data,
                indices[split],
                readers[split],
                e.batch_size,
                e.seed,
                self.replica,
                replicas,
                place.device,
                train=split == "train",
                memory_format=layout,
                shards=order.SHARDS // replicas if e.deterministic else None,
            )
            for split in readers
        }
        self.steps_per_epoch = self.loaders["train"].steps
        self.progress = Progress()
        self.log: MetricsLog | None = None
        self.writer: CheckpointWriter | None = None
        self.pending: list[_Pending] = []
        self.flush_every, self.last_flush = 1, time.monotonic()
        self._there = self.last_flush  # when the run's directory was seen
        self.unit: float | None = None
        self.first_step_seconds = math.nan

    def fit(self) -> str:
        """Trains from the newest checkpoint, or from the start, to the end or to a request to stop.

        Returns:
            `completed` or `interrupted`; the summary is written then.
        """
        optimizer = self.restore()
        if self.experiment.precision == "auto":
            self.choose_precision()
        self._spread(optimizer)
        with contextlib.ExitStack() as stack:
            if self.log and self.writer:
                stack.callback(self.log.close)
                stack.callback(self.writer.close)  # whatever happens, the last checkpoint is written
            if self.experiment.deterministic:
                stack.enter_context(_deterministic_kernels())
            return self._train()

    def _train(self) -> str:
        e, progress = self.experiment, self.progress
        every = e.checkpoint.every_steps
        while not progress.over(e.epochs, e.patience):
            self.clock = time.monotonic()
            self.model.train()
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
            self.save()
            stop = self.stops_after(row) or stop
            if stop and not progress.over(e.epochs, e.patience):
                return self.finish("interrupted")
        return self.finish("completed")

    def stops_after(self, row: dict[str, Any]) -> bool:
        """Whether to stop after the epoch of this row, on all ranks alike; for a subclass that says when to go on."""
        return False

    def _spread(self, state: dict[str, Any] | None) -> None:
        """Hands the model, whose weights are known now, to the parallel strategy, and builds the optimizer.

        Args:
            state: the optimizer's, of a checkpoint.
        """
        e, place = self.experiment, self.place
        if e.compile:
            torch.compiler.reset()  # what a process compiled before counts towards torch's limit of graphs
            # Each shape has a graph of its own. Else one graph for all shapes takes over with the first short batch.
            self.model.compile(dynamic=False)
        wrap = e.parallel.wrap_deterministic if e.deterministic else e.parallel.wrap
        self.wrapped = wrap(self.model, place.devices, place.world)
        self.scale = e.parallel.gradient_scale(self.wrapped, place.world)
        groups = e.optimizer.groups(self.model)
        parameters = [parameter for group in groups for parameter in group["params"]]
        self.parameters = e.parallel.own(self.wrapped, parameters)
        self.backbone = backbone(self.model)
        self.optimizer = e.optimizer.build(groups)
        here = {id(parameter) for parameter in self.parameters}
        for parameter in parameters:
            if id(parameter) not in here:
                self.optimizer.state.pop(parameter, None)
        if state is not None:
            state["state"] = {
                number: {
                    name: e.parallel.part(value, parameters[number]) if isinstance(value, torch.Tensor) else value
                    for name, value in values.items()
                }
                for number, values in state["state"].items()
                if id(parameters[number]) in here
            }
            own = self.optimizer.state_dict()["param_groups"]
            # How it computes depends on the strategy. What the experiment declares is not the checkpoint's: a sweep's
            # scheduler may have changed it. The other names of a group are the optimizer's state.
            declared = ("fused", "foreach", "factor", *(field.name for field in fields(e.optimizer)))
            for saved, group in zip(state["param_groups"], own, strict=True):
                saved |= {name: group[name] for name in declared if name in group}
            self.optimizer.load_state_dict(state)
        if self.ema:
            self.ema.start(self.model, e.parallel.part, here)

    def train_step(self, loaded: Loaded) -> None:
        """One optimizer step over one global batch."""
        e, progress = self.experiment, self.progress
        doing.begin("preparing a batch", progress.step)
        lr = e.lr * e.schedule.factor(progress.step, self.steps_per_epoch, e.epochs)
        for group in self.optimizer.param_groups:
            group["lr"] = lr * group["factor"]
        losses: dict[int, torch.Tensor] = {}

        def loss_of(model: nn.Module, one: Pass) -> torch.Tensor:
            doing.at(FORWARD)
            with self.precision.forward():
                loss, count = e.task.loss(model, Batch(one.images, one.labels, one.ids, one.targets))
            unit = self._unit(count, len(one.ids))
            if self.counts and not one.blank:
                found = loss.detach().double()
                losses[number] = losses[number] + found if number in losses else found
            doing.at(BACKWARD)
            return self.precision.scaled(loss * (0.0 if one.blank else self.scale / (unit * loaded.size)))

        shape = (e.accumulation, e.micro_batch)
        for number, shard in loaded.shards():
            # Randomness inside the model (dropout) is a function of the step and the shard: there is no state to save.
            self._seed(1, progress.step, number if e.deterministic else self.stream)
            passes = shard.passes(e.micro_batch, e.parallel.lockstep and not e.deterministic)
            with e.parallel.shard(self.wrapped), self.precision.products():
                e.parallel.accumulate(self.wrapped, passes, loss_of, self.precision.forward, shape)
        doing.begin("exchanging gradients", progress.step)
        e.parallel.sync_gradients(self.wrapped)
        zero = torch.zeros((), dtype=torch.float64, device=self.place.device)
        numbers = range(order.SHARDS) if e.deterministic else [self.replica]
        total = torch.stack([losses.get(each, zero) for each in numbers])
        doing.begin("updating the weights", progress.step)
        if self.writer:
            self.writer.settle()
        updated = self._update()
        if self.ema and updated:
            self.ema.update()
        for parameter in self.parameters:  # all that the optimizer's zero_grad does, but for its hooks
            parameter.grad = None
        progress.step += 1
        doing.begin("between two steps", progress.step)
        self.pending.append(_Pending(progress.step, lr, loaded.size, total, updated))

    def _update(self) -> bool:
        """Clips the gradients and updates the weights; returns whether it did, on all ranks alike."""
        e = self.experiment
        if e.unfreeze_epoch is not None and self.progress.epoch < e.unfreeze_epoch:
            for parameter in self.backbone:  # optimizers leave alone what has no gradient, weight decay included
                parameter.grad = None
        clips = e.clip_norm is not None or e.on_nonfinite == "skip"
        together = e.parallel.sharded and self.place.world > 1
        if clips or together:
            self.precision.unscale(self.optimizer, together)
        if clips:
            norm = e.parallel.clip(self.wrapped, self.parameters, math.inf if e.clip_norm is None else e.clip_norm)
            if e.on_nonfinite == "skip" and e.precision != "fp16" and not norm.isfinite():
                return False
        return self.precision.step(self.optimizer)

    def flush(self) -> bool:
        """Reduces the losses of the steps since the last flush, writes them, and asks whether to stop. A collective.

        Losses are sums of a few float32 values in float64, which is exact: their bits do not depend on when a flush
        happens or on the order of the ranks. (Almost: 29 bits are left for values of different size. Those of shards
        are added up in the shards' order.)
        """
        progress, pending, self.pending = self.progress, self.pending, []
        doing.begin("adding up losses", progress.step)
        now = time.monotonic()
        wanted = self._asked_to_stop() if self.place.rank == 0 else False
        pace = _FLUSH_SECONDS * len(pending) / max(now - self.last_flush, 1e-6)
        tail = [float(wanted), max(1.0, min(200.0, pace))] if self.place.rank == 0 else [0.0, 0.0]
        tail += [self.unit or 0.0, float(self.unit is not None)]  # known where there are losses
        sums = torch.cat(
            [
                torch.cat([p.loss for p in pending]).cpu() if pending else torch.empty(0, dtype=torch.float64),
                torch.tensor(tail, dtype=torch.float64),
            ]
        ).to(self.place.device)
        if self.place.world > 1:
            self.experiment.parallel.total(self.wrapped, sums)
        *losses, stop, every, units, holders = sums.tolist()
        if self.unit is None and holders:
            self.unit = units / holders
        self.flush_every, self.last_flush = int(every), time.monotonic()
        rows, each = [], order.SHARDS if self.experiment.deterministic else 1
        for step, loss in zip(pending, (sum(losses[i : i + each]) for i in range(0, len(losses), each)), strict=True):
            finite = math.isfinite(loss)
            if not finite and self.experiment.on_nonfinite == "error":
                committed = sorted(path.parent.name for path in self.run.checkpoints.glob("step_*/manifest.json"))
                raise FloatingPointError(
                    f"the loss became {loss} at step {step.step}: train a new run with a lower learning rate, or go on "
                    "with --clip_norm 1, or with --on_nonfinite skip to leave such steps out; "
                    + (f"the last checkpoint is {committed[-1]}" if committed else "there is no checkpoint yet")
                )
            loss /= self.unit or 1.0
            if finite:
                progress.add(loss, step.size)
            progress.skipped += not step.updated
            rows.append(
                {
                    "kind": "step",
                    "step": step.step,
                    "epoch": progress.epoch + 1,
                    "loss": loss / step.size if finite else None,
                    "lr": step.lr,
                    **({} if step.updated else {"skipped": True}),
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
        e = self.experiment
        doing.begin("validating", self.progress.step)
        e.parallel.sync_buffers(self.wrapped, self.model, self.place.world)
        with self._averaged():
            sums = evaluate(e, self.model, self.loaders[split], self.precision, self.wrapped, self.counts)
        doing.begin("adding up the validation's metrics", self.progress.step)
        return e.task.metrics(sums.reduce(self.place.device))

    def end_epoch(self) -> dict[str, Any]:
        """Validates and writes the epoch's row."""
        started, e = time.monotonic(), self.experiment
        metrics = self.evaluate()
        row = self.progress.end_epoch(e.task, metrics, time.monotonic() - started, e.epochs)
        if self.log:
            self.log.write([row])
        return row

    def save(self) -> None:
        """Writes a checkpoint in the side thread."""
        parallel = self.experiment.parallel
        doing.begin("writing a checkpoint", self.progress.step)
        parallel.sync_buffers(self.wrapped, self.model, self.place.world)
        if self.writer:
            self.writer.wait()  # before the copy: there are never more than two states in memory
        tensors = self._snapshot()
        if self.log is None or self.writer is None or tensors is None:
            return
        progress = self.progress
        state = {
            "progress": dict(vars(progress)),
            "metrics_bytes": self.log.size,
            "metrics_sha256": self.log.sha256,
            "sample": self.sample,
            "stored": self.stored,
            "classes": self.classes,
            "workers": self.place.world,
            "unit": self.unit,
        }
        model = tensors.pop("model")
        tensors["precision"] = self.precision.state_dict()
        self.writer.start(progress.step, model, tensors, state)

    def _snapshot(self) -> dict[str, Any] | None:
        """Copies of a checkpoint's tensors on rank 0; of others, where they hold parts of them, they are asked for."""
        first, gather = self.log is not None, self.experiment.parallel.gather
        with self._averaged():
            model = gather(self.wrapped, {"model": self.model.state_dict()}, first, checkpoint.snapshot)
        rest = {"optimizer": self.optimizer.state_dict()}
        if self.ema:
            rest["ema"] = self.ema.state_dict(self.model)
        rest = gather(self.wrapped, rest, first, checkpoint.snapshot)
        return model | rest if model and rest else None

    @contextlib.contextmanager
    def _averaged(self) -> Iterator[None]:
        """The context in which the model has its averaged weights, where there are any."""
        if self.ema is None:
            yield
            return
        with self.ema.in_place():
            self.experiment.parallel.refresh(self.wrapped)
            yield
        self.experiment.parallel.refresh(self.wrapped)

    def restore(self) -> dict[str, Any] | None:
        """Takes up the newest checkpoint that verifies and can be read, and cuts the metrics back to it; returns the
        optimizer's state in it."""
        folder, first = self.run.checkpoints, self.place.rank == 0
        found = self._newest(folder) if first else None
        if found and self.storage:  # it may be in this rank's mirror alone, and the other ranks read it from storage
            self.storage.push_checkpoint(self.run.path, found.path.name, self.storage.names("checkpoints"))
        chosen = [found.path if found else None]
        if self.place.world > 1:
            dist.broadcast_object_list(chosen)
        path, offset, optimizer = chosen[0], 0, None
        if path is not None:
            if self.storage and not first:
                path = self.storage.fetch(path.name, folder)
            _, model, tensors, state = found or checkpoint.load(path, self._loads_on)
            self.model.load_state_dict(self.ema.load(model, tensors["ema"]) if self.ema else model)
            optimizer = tensors["optimizer"]
            self.precision.load_state_dict(tensors["precision"])
            self.progress = Progress.from_state(state["progress"])
            self.unit, offset = state["unit"], state["metrics_bytes"]
        if first:
            checkpoint.drop_after(folder, self.progress.step if path else -1)
            self.log = MetricsLog(self.run.path / "metrics.jsonl", offset)
            settings = self.experiment.checkpoint
            self.writer = CheckpointWriter(self.run.path, self.log, settings, self.steps_per_epoch, self.storage)
            self.writer.resume(path.name if path else None, self.progress.step, self.progress.best)
        return optimizer

    @property
    def _loads_on(self) -> torch.device:
        """Where a checkpoint is read to, which holds the whole state: of a sharded one, a GPU has no room for that."""
        return torch.device("cpu") if self.experiment.parallel.sharded else self.place.device

    def _newest(self, folder: Path) -> checkpoint.Loaded | None:
        """Return the newest checkpoint that is one of a run and has the metrics before it; None for a run without any.

        Raises:
            UserError: there are checkpoints, and none of them will do: to begin anew would remove them.
        """
        device, there = self._loads_on, self.storage
        for found in there.loadable(self.run.path, device) if there else checkpoint.loadable(folder, device):
            with contextlib.suppress(KeyError, ValueError, TypeError):
                state, tensors = found.state, {"optimizer", "precision", *(["ema"] if self.ema else [])}
                step = Progress.from_state(state["progress"]).step
                figures = state["metrics_bytes"] >= 0 and (state["unit"] is None or math.isfinite(state["unit"]))
                if figures and tensors <= found.optimizer.keys() and checkpoint.name_of(step) == found.path.name:
                    check_rows(self.run.path / "metrics.jsonl", state)
                    return found
        if names := list(there.committed()) if there else checkpoint.committed(folder):
            raise no_way_back(there.url if there else self.run.path, f"{names[-1]} cannot be read or lacks its metrics")
        return None

    def finish(self, status: str) -> str:
        """Writes the summary. A collective, so that no rank leaves before the others have come."""
        progress = self.progress
        doing.begin("ending the run", progress.step)
        peak = torch.tensor(
            [float(memory.peak(self.place.device.type == "cuda"))], dtype=torch.float64, device=self.place.device
        )
        if self.place.world > 1:
            dist.all_reduce(peak, op=dist.ReduceOp.MAX)
        if self.writer:
            early = status == "completed" and progress.epoch < self.experiment.epochs
            summary = {
                "status": status,
                "monitor": self.experiment.task.monitor,
                **progress.summary(),
                **({"stopped_early": True} if early else {}),
                "first_step_seconds": None if math.isnan(self.first_step_seconds) else self.first_step_seconds,
                "workers": self.place.world,
                "device": self.place.device.type,
                "precision": self.experiment.precision,
                "peak_memory_bytes": int(peak.item()),
            }
            self.writer.finish(summary)
        return status

    def choose_precision(self) -> None:
        """Decides `precision=auto` by trying on the run's own images; the run keeps the decision for its resumption and
        repetition, and says what it measured."""
        e, device = self.experiment, self.place.device
        loaded = next(self.loaders["train"].epoch(self.progress.epoch))
        first = next(loaded.passes(e.micro_batch, together=False))
        batch = Batch(first.images, first.labels, first.ids)
        kept = [buffer.clone() for buffer in self.model.buffers()]

        def step(precision: Precision) -> list[torch.Tensor]:
            self.model.zero_grad()
            with precision.forward():
                loss, count = e.task.loss(self.model, batch)
            with precision.products():
                (loss / count).backward()  # not scaled as in fp16, since a scale that is too large soon mends itself
            return [loss, *(parameter.grad for parameter in self.model.parameters() if parameter.grad is not None)]

        self.model.train()
        found = [
            fastest(step, device, e.parallel.scales)
        ]  # on all ranks at once, as they will compute; rank 0's counts
        self.model.zero_grad()
        if self.place.world > 1:
            dist.broadcast_object_list(found)
        for buffer, value in zip(self.model.buffers(), kept, strict=True):
            buffer.copy_(value)
        chosen, self.progress.tried = found[0]
        self.experiment = config.replace(e, "precision", chosen)
        self.precision = Precision(chosen, device)
        if self.log:
            # What was decided for this cluster, such as the CPUs of a worker, is no part of the experiment.
            file, e = self.run.path / "experiment.json", self.experiment
            decided = {"precision": chosen, "memory_format": e.memory_format}
            write_atomically(file, json.dumps((known_json(file) or config.to_dict(e)) | decided, indent=2) + "\n")
            self.log.write([{"kind": "precision", "chosen": chosen, "milliseconds": self.progress.tried}])

    def _asked_to_stop(self) -> bool:
        """Return whether the run was asked to stop.

        Raises:
            UserError: its directory has gone, so that nothing of it can be kept.
        """
        if os.path.isdir(self.run.path):
            self._there = time.monotonic()
        elif time.monotonic() - self._there > _AWAY_SECONDS:
            raise errors.UserError(
                f"the run's directory has not been there for {_AWAY_SECONDS:.0f} s",
                self.run.path,
                "it was moved or removed, or its disk is not mounted: resume the run where its directory is",
            )
        return os.path.exists(self.run.path / "stop")

    def _seed(self, *parts: int) -> None:
        seed = order.key(self.experiment.seed, *parts) >> 1
        torch.default_generator.manual_seed(seed)  # torch.manual_seed also visits all other backends, at every step
        for number, device in enumerate(self.place.devices if self.place.device.type == "cuda" else ()):
            with torch.cuda.device(device):
                # Each GPU draws its own numbers: replicas or layers on two GPUs must not drop the same units.
                torch.cuda.manual_seed(order.key(seed, number) >> 1 if number else seed)

    def _unit(self, count: int, samples: int) -> float:
        """What a task counts for one sample: 1, or for example its pixels. The global batch's count is then known
        to all ranks without asking."""
        unit = count / samples
        if self.unit is None:
            self.unit = unit
        if unit != self.unit:
            raise errors.UserError(
                f"the task's loss counted {unit:g} for a sample and {self.unit:g} before",
                f"in {sources.place(type(self.experiment.task).loss)}",
                "count the same for every sample, and give samples a weight in the sum instead",
            )
        return unit


def evaluate(
    value: Experiment,
    model: nn.Module,
    loader: Loader,
    precision: Precision,
    wrapped: nn.Module | None = None,
    counts: bool = True,
) -> Sums:
    """Adds up the task's sums over this rank's part of a split.

    Args:
        wrapped: the model as the experiment's strategy has spread it; by default it is not spread.
        counts: whether this rank's sums are wanted.
    """
    parallel = Parallel() if wrapped is None else value.parallel
    together = parallel.lockstep and parallel.sharded  # a rank with a whole copy evaluates alone
    sums, shape = Sums(order.SHARDS if value.deterministic else 1), (value.accumulation, value.micro_batch)
    model.eval()
    # What sharded strategies allocate for a pass serves training too, where it must not be an inference tensor.
    with torch.no_grad() if parallel.sharded else torch.inference_mode():
        for number, shard in (shard for loaded in loader.epoch(0) for shard in loaded.shards()):
            passes = shard.passes(value.micro_batch, together)
            for one, answering in parallel.answers(wrapped or model, model, passes, precision.forward, shape):
                if one.blank and not together:
                    continue
                doing.at("validating")
                with precision.forward():
                    found = value.task.sums(answering, Batch(one.images, one.labels, one.ids))
                if counts and not one.blank:
                    sums.add(found, number if value.deterministic else 0)
    return sums


@contextlib.contextmanager
def _deterministic_kernels() -> Iterator[None]:
    """The context in which PyTorch takes kernels that give the same bits every time; where it has none for what a model
    does, it raises a RuntimeError that names it."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it cuBLAS is refused
    memory: Any = torch.utils.deterministic
    cudnn: Any = torch.backends.cudnn
    before = torch.get_deterministic_debug_mode(), memory.fill_uninitialized_memory, cudnn.benchmark
    torch.set_deterministic_debug_mode("error")  # use_deterministic_algorithms would import the compiler
    memory.fill_uninitialized_memory = cudnn.benchmark = False
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(before[0])
        memory.fill_uninitialized_memory, cudnn.benchmark = before[1:]
