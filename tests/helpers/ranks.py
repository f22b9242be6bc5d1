"""Ranks without Ray: processes that live as long as their pool, joined by gloo for each job."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import multiprocessing as mp
import os
import pickle
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from raytrain import SGD, Experiment, Hook, Run, config, order
from raytrain.data import Index
from raytrain.data.checks import checked_read
from raytrain.data.drawn import DRAWS, spread
from raytrain.data.reader import Resident
from raytrain.data.transforms import Normalise, crop_and_flip
from raytrain.driver.initial_weights import pretrained
from raytrain.parallel.strategy import RankContext
from raytrain.training import stages
from raytrain.training.trainer import Trainer

# Imported by most ranks at the first step: once before ranks are forked, and not by each of them.
BEFOREHAND = (
    "torch._dynamo",
    "torch.distributed.fsdp",
    "torch.distributed.pipelining",
    "torch.distributed.tensor.parallel",
    "torch.utils._sympy.reference",
    "torchvision",
)


def serve(jobs: Any, results: Any) -> None:
    """Answer the calls of a rank."""
    torch.set_num_threads(1)
    while (job := jobs.get()) is not None:
        store, rank, world, call = job
        try:
            function, arguments = pickle.loads(call)
            dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
            results.put((store, rank, True, function(rank, world, *arguments)))
        except BaseException:
            results.put((store, rank, False, traceback.format_exc()))
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def _fork_ranks(calls: Any, results: Any, count: int) -> None:
    """Hand calls to ranks that are forks of this process, and new ones where a call needs another module."""
    _die_with_parent()
    for name in BEFOREHAND:
        importlib.import_module(name)
    ranks: list[Any] = []
    known = 0
    while (call := calls.get()) is not None:
        with contextlib.suppress(Exception):  # the ranks fail alike, and tell
            pickle.loads(call[2])
        if len(sys.modules) > known:
            for jobs in ranks:
                jobs.put(None)
            gc.collect()
            gc.freeze()  # a collection in a fork would copy every page
            ranks, known = [mp.SimpleQueue() for _ in range(count)], len(sys.modules)
            for jobs in ranks:
                if not os.fork():
                    _die_with_parent()
                    serve(jobs, results)
                    results.close()
                    results.join_thread()
                    os._exit(0)
        store, world, pickled = call
        for rank, jobs in enumerate(ranks[:world]):
            jobs.put((store, rank, world, pickled))


class Ranks:
    """Runs a function on some ranks at once and returns what each returned, in the order of ranks."""

    def __init__(self, folder: Path, count: int = 4):
        context = mp.get_context("spawn")
        self.folder, self.calls, self.results = folder, context.Queue(), context.Queue()
        self.process = context.Process(target=_fork_ranks, args=(self.calls, self.results, count), daemon=True)
        self.process.start()

    def run(self, world: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        store = self.folder / f"store-{time.time_ns()}"
        self.send(store, world, pickle.dumps((function, arguments)))
        found: list[tuple[int, bool, Any]] = []
        while len(found) < world:
            of, rank, good, result = self.results.get(timeout=300)
            if of != store:
                continue  # of a job that failed on another rank
            assert good, f"rank {rank}:\n{result}"  # at once: the others may wait for it in vain
            found.append((rank, good, result))
        return [result for _, _, result in sorted(found, key=lambda one: one[0])]

    def send(self, store: Path, world: int, call: bytes) -> None:
        self.calls.put((store, world, call))

    def close(self) -> None:
        self.calls.put(None)
        self.process.join(10)


def train_rank(
    rank: int,
    world: int,
    experiment: Experiment,
    run: Path,
    indices: dict[str, Index] | None = None,
    hooks: Sequence[Hook] = (),
) -> str:
    """One rank of a run over resident data, as Ray Train's workers do it."""
    indices = indices or experiment.data.index()
    readers = {
        split: Resident(checked_read(experiment.data, indices[split], np.arange(len(indices[split]))))
        for split in ("train", "val")
    }
    ranks = RankContext(rank, world, torch.device("cpu"))
    weights = pretrained(experiment, indices["train"], run)

    @contextlib.contextmanager
    def made(value: Experiment, hook: Hook) -> Iterator[Trainer]:
        yield Trainer(value, run, indices, readers, weights, ranks, time.time(), hooks=[*hooks, hook])

    return stages.fit(experiment, made)


def new_run(folder: Path, experiment: Experiment) -> Path:
    """A run directory as the driver makes it."""
    from raytrain.run.experiment_file import save

    folder.mkdir(parents=True)
    save(experiment, folder / "experiment.json")
    return folder


def on_workers(experiment: Experiment, workers: int) -> Experiment:
    return config.replace(experiment, "scaling.workers", workers)


def losses(run: Path) -> np.ndarray:
    return np.array(Run(run).metrics("step")["loss"].to_pylist())


def cropped(
    e: Experiment, images: torch.Tensor, labels: torch.Tensor, epoch: int, ids: np.ndarray
) -> tuple[torch.Tensor, torch.Tensor]:
    """A batch of an experiment that only crops and flips: what the model sees, and what it shall answer."""
    draws = spread(e.data.augment, order.uniform(e.seed, epoch, ids, DRAWS))
    return Normalise(e.data.mean, e.data.std)(crop_and_flip(e.data.augment, images, None, draws)), labels


def reference(
    e: Experiment,
    steps: int,
    prepare: Callable[..., tuple[torch.Tensor, torch.Tensor]] = cropped,
    each: Callable[[nn.Module], object] = lambda model: None,
    index: Index | None = None,
) -> tuple[list[float], nn.Module]:
    """The same training as a plain loop in one process, written without the package's loop and loader; `each` sees the
    model after every step."""
    index = index or e.data.index()["train"]
    images = torch.from_numpy(e.data.read(index, np.arange(len(index))))
    torch.manual_seed(order.key(e.seed, 0) >> 1)
    model = e.model.build(index.shape, len(index.classes))
    assert isinstance(e.optimizer, SGD)
    optimizer = torch.optim.SGD(model.parameters(), lr=e.optimizer.lr, momentum=e.optimizer.momentum)
    found, per_epoch = [], -(-len(index) // e.batch_size)
    epochs: Any = e.all_epochs(per_epoch)
    for step in range(steps):
        epoch, k = divmod(step, per_epoch)
        positions = np.arange(k * e.batch_size, min((k + 1) * e.batch_size, len(index)))
        ids = order.samples(e.seed, epoch, len(index), positions)
        batch, wanted = prepare(e, images[ids], torch.from_numpy(index.labels[ids]), epoch, ids)
        for group in optimizer.param_groups:
            group["lr"] = e.optimizer.lr * e.schedule.factor(step, per_epoch, epochs)
        loss = nn.functional.cross_entropy(model(batch), wanted)
        optimizer.zero_grad()
        loss.backward()
        if e.clip_norm:
            nn.utils.clip_grad_norm_(model.parameters(), e.clip_norm)
        optimizer.step()
        each(model)
        found.append(loss.item())
    return found, model
