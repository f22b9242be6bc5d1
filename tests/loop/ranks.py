"""Ranks without Ray: four processes that live as long as the session, joined by gloo for each job."""

from __future__ import annotations

import multiprocessing as mp
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from raytrain import Experiment, config
from raytrain.data import Index
from raytrain.data.reader import Resident
from raytrain.loop import Place, Worker


def _serve(number: int, jobs: Any, results: Any) -> None:
    torch.set_num_threads(1)
    while (job := jobs.get()) is not None:
        function, rank, world, store, arguments = job
        try:
            dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
            results.put((rank, True, function(rank, world, *arguments)))
        except BaseException:
            results.put((rank, False, traceback.format_exc()))
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()


class Ranks:
    """Runs a function on some ranks at once and returns what each returned, in the order of ranks."""

    def __init__(self, folder: Path):
        context = mp.get_context("spawn")
        self.folder, self.jobs, self.results = folder, [context.Queue() for _ in range(4)], context.Queue()
        self.processes = [
            context.Process(target=_serve, args=(number, jobs, self.results), daemon=True)
            for number, jobs in enumerate(self.jobs)
        ]
        for process in self.processes:
            process.start()

    def run(self, world: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        store = self.folder / f"store-{time.time_ns()}"
        for rank in range(world):
            self.jobs[rank].put((function, rank, world, store, arguments))
        found = [self.results.get(timeout=300) for _ in range(world)]
        for rank, good, result in found:
            assert good, f"rank {rank}:\n{result}"
        return [result for _, _, result in sorted(found, key=lambda one: one[0])]

    def close(self) -> None:
        for jobs in self.jobs:
            jobs.put(None)
        for process in self.processes:
            process.join(10)


def train_rank(
    rank: int, world: int, experiment: Experiment, run: Path, indices: dict[str, Index] | None = None
) -> str:
    """One rank of a run over resident data, as Ray Train's workers do it."""
    indices = indices or experiment.data.index()
    readers = {
        split: Resident(experiment.data.read(indices[split], np.arange(len(indices[split]))))
        for split in ("train", "val")
    }
    place = Place(rank, world, torch.device("cpu"))
    return Worker(experiment, run, indices, readers, None, place, time.time()).fit()


def new_run(folder: Path, experiment: Experiment) -> Path:
    """A run directory as the driver makes it."""
    from raytrain.experiment import save

    folder.mkdir(parents=True)
    save(experiment, folder / "experiment.json")
    return folder


def on_workers(experiment: Experiment, workers: int) -> Experiment:
    return config.replace(experiment, "scaling.workers", workers)
