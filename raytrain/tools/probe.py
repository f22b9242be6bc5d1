"""A process that tries training steps for `micro_batch_trials`, one per rank; running out of memory may kill it.

It reads commands from standard input and writes answers to standard output, one JSON object per line.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import queue
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from raytrain.data import Field, Index
from raytrain.data.blocks import Arrays
from raytrain.data.loader import Loaded, fits_device
from raytrain.data.reader import Epoch
from raytrain.driver.ray_internals import compiler
from raytrain.parallel.strategy import RankContext
from raytrain.run import experiment_file
from raytrain.training import freezing, memory
from raytrain.training.trainer import Trainer

_STEP_SECONDS, _ALL_SECONDS = 0.2, 0.4
"""How long a timed step is at the least, where the whole step is as long, and about how long all of them are."""
_LEAST_STEPS, _MOST_STEPS = 3, 30


def main() -> None:
    """Serve trials until standard input ends.

    Its arguments are the folder with the experiment and some samples, this rank, the world size, and the file for the
    rendezvous of the ranks.
    """
    folder, rank, world, store = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    driver = _Driver()
    try:
        trials = _Trials(folder, rank, world, store)
    except Exception as error:
        driver.say({"error": f"{type(error).__name__}: {error}"})
        os._exit(1)  # an orderly end would wait for the thread that reads
    driver.say({})
    for command in driver.commands():
        driver.say(trials.attempt(**command))


class _Driver:
    """The connection to the driver. The output of models goes to standard error."""

    def __init__(self) -> None:
        self._answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        self._commands: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True, name="commands").start()

    def commands(self) -> Iterator[dict[str, Any]]:
        """Yield the trials to run."""
        while True:
            yield self._commands.get()

    def say(self, answer: dict[str, Any]) -> None:
        """Send an answer."""
        print(json.dumps(answer), file=self._answers, flush=True)

    def _read(self) -> None:
        for line in sys.stdin:
            self._commands.put(json.loads(line))
        os._exit(0)  # the driver has gone, whatever this process is doing


class _Trials:
    """What one process's trials have in common: the device and its limit of memory, the group of ranks, the images."""

    def __init__(self, folder: Path, rank: int, world: int, store: str):
        with contextlib.suppress(OSError):  # where the system must end a process for its memory, let it be this one
            Path("/proc/self/oom_score_adj").write_text("1000")
        job = json.loads((folder / "job.json").read_text())
        self.folder, self.value = folder, experiment_file.load(folder)[0]
        if not (self.value.compile or self.value.parallel.sharded):
            compiler.defer_compiler()  # as the workers do
        gpu = bool(self.value.scaling.gpus_per_worker)
        self.ranks = RankContext.alone(self.value.scaling.gpus_per_worker, rank, world)
        with np.load(folder / "samples.npz") as samples:
            self.arrays = dict(samples)
        fields = tuple(Field(**(field | {"shape": tuple(field["shape"])})) for field in job["fields"])
        labels, classes = self.arrays.pop("label", None), tuple(job["classes"])
        self.index = Index(labels, classes, split="train", fields=fields, count=job["count"])
        if gpu:
            torch.cuda.set_device(self.ranks.device)
        if world > 1:
            backend = self.value.parallel.backend(gpu)
            dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=world)
        self._warm_up()
        self.resident = memory.pages().resident
        if gpu:
            memory.cap_gpus(min(1.0, self.value.scaling.gpus_per_worker or 1.0), job["memory"])
            # The images that a run keeps there.
            self.kept = [
                torch.empty(size, dtype=torch.uint8, device=self.ranks.device)
                for size in job["resident"]
                if fits_device(size, self.ranks.device)
            ]
        else:
            room = job["available"] - self.resident
            memory.cap(room if job["memory"] is None else min(room, job["memory"]))

    def attempt(self, precision: str, micro_batch: int) -> dict[str, Any]:
        """Train steps with a micro-batch of that size.

        Returns:
            `peak`, bytes of memory beside PyTorch's own, and `seconds` of a step; or `full` or `error`: why there are
            none, for want of memory or not.
        """
        memory.reset_peak(self.ranks.device.type == "cuda")
        try:
            if self.value.compile:
                torch.compiler.reset()
            value = replace(self.value, precision=precision, micro_batch_size=micro_batch)  # type: ignore[arg-type]
            indices, readers = {"train": self.index}, {"train": _Repeated(self.arrays)}
            trainer = Trainer(value, self.folder, indices, readers, None, self.ranks, time.time())
            with trainer.started():
                seconds = _Trial(trainer).run()
            answer: dict[str, Any] = {"peak": self._peak(), "seconds": seconds}
        except Exception as error:
            text = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            answer = {"full" if memory.lacks(error) else "error": text}
        trainer = None
        memory.give_back()
        return answer

    def _warm_up(self) -> None:
        """Start the threads and load the libraries that a step needs: they do not count as the model's memory."""
        torch.set_num_threads(self.value.scaling.threads_per_worker or 1)
        device = self.ranks.device
        layer = torch.nn.Conv2d(3, 16, 3, device=device)
        layer(torch.zeros(16, 3, 32, 32, device=device)).sum().backward()
        torch.optim.SGD(layer.parameters(), lr=0.1).step()
        if self.ranks.world > 1:
            dist.all_reduce(torch.zeros(1, device=device))

    def _peak(self) -> int:
        gpu = self.ranks.device.type == "cuda"
        return max(0, memory.peak(gpu) - (0 if gpu else self.resident))


class _Trial:
    """Some steps of a trainer, and their time."""

    def __init__(self, trainer: Trainer):
        self.trainer, self.experiment, self.ranks = trainer, trainer.experiment, trainer.ranks

    def run(self) -> float:
        """Return the seconds of a step."""
        e, trainer, batches = self.experiment, self.trainer, self._batches()
        freezing.train_mode(trainer.strategy.module, e.freeze)
        trainer.progress.epoch = math.ceil(trainer.epochs) - 1  # by then layers are trained that were not at first
        few = min(2, e.accumulation)  # the second one meets the gradients of the first
        self._step(next(batches), few)
        on_cpu = self.ranks.device.type == "cpu"
        copy = trainer.snapshot() if on_cpu else None  # as in the steps while a checkpoint is written
        self._step(next(batches), few)
        del copy
        return self._whole_step(batches, few)

    def _whole_step(self, batches: Iterator[Loaded], few: int) -> float:
        """Return the seconds of a step; a long step is extrapolated from one with fewer micro-batches."""
        all_, many = self.experiment.accumulation, few
        seconds = self._least(batches, few)
        if few < all_:
            many = max(few, min(all_, int(_STEP_SECONDS / seconds * few)))
            seconds = self._least(batches, many)
        if many == all_:
            return seconds
        half = many // 2
        more = (seconds - self._least(batches, half)) / (many - half)
        # The price of one more is not above the mean, which has the update's share. Below its half it is an accident.
        return seconds + (all_ - many) * min(seconds / many, max(more, 0.5 * seconds / many))

    def _batches(self) -> Iterator[Loaded]:
        """Yield global batches, without a short last one."""
        loader = self.trainer.loaders["train"]
        size = min(self.experiment.batch_size, len(loader))
        for epoch in count():
            yield from (loaded for loaded in loader.epoch(epoch) if loaded.size == size)

    def _least(self, batches: Iterator[Loaded], passes: int) -> float:
        """Return the shortest time of some steps: what the machine does beside them is no property of the micro-batch.
        A collective, so that all ranks make as many."""
        least, started = math.inf, time.perf_counter()
        for number in count(1):
            least = min(least, self._slowest(self._step(next(batches), passes)))
            spent = self._slowest(time.perf_counter() - started)
            if number == _MOST_STEPS or (number >= _LEAST_STEPS and spent > _ALL_SECONDS):
                break
        return least

    def _step(self, loaded: Loaded, passes: int) -> float:
        """Return the seconds of a step of `passes` micro-batches; its whole batch lies in memory."""
        e, device = self.experiment, self.ranks.device
        most = passes * e.micro_batch
        size = min(loaded.size, most * e.replicas)
        part = replace(loaded.rows(slice(most)), size=size, most=min(loaded.most, most))
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        started = time.perf_counter()
        self.trainer.step(part)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - started

    def _slowest(self, seconds: float) -> float:
        """Return the longest of all ranks' times. A collective."""
        found = torch.tensor(seconds, dtype=torch.float64, device=self.ranks.device)
        if self.ranks.world > 1:
            dist.all_reduce(found, op=dist.ReduceOp.MAX)
        return found.item()


class _Repeated:
    """A few samples that stand for all of a split.

    Args:
        arrays: each [few, ...].
    """

    def __init__(self, arrays: Arrays):
        self.arrays = arrays

    def read(self, epoch: Epoch) -> Iterator[tuple[np.ndarray, Arrays]]:
        """Yield (samples int64 [k], their arrays) of each step."""
        for samples in epoch.steps():
            yield samples, {name: array[samples % len(array)] for name, array in self.arrays.items()}
