"""What the rows are made of, each part by itself: passes, optimizer, decoding, listing. One turn, one thread."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

from benchmarks import dataset, resident
from benchmarks.side import Turns, Workload, join
from benchmarks.sides.raytrain import experiment
from raytrain import ImageFolder

STEPS, FILES = 400, 2_000


def main() -> None:
    """Answers with milliseconds a step and microseconds a file."""
    workload, turns = Workload.from_argv(), Turns()
    join()
    while turns.wait():
        started = time.perf_counter()
        figures: dict[str, float] = {}
        for model in ("mlp", "small"):
            chosen = replace(workload, model=model)
            passes, optimizer = step(chosen)
            figures |= {f"{model}_passes": passes, f"{model}_optimizer": optimizer, f"{model}_step": loop(chosen)}
        small = ImageFolder(root=str(workload.folder / "png"), size=28, crop=None, channels=1, mean=(0.5,), std=(0.5,))
        photographs = ImageFolder(root=str(dataset.photographs(2_048)))
        figures |= {"png": decode(small, FILES), "jpeg": decode(photographs, FILES // 10)}
        figures |= listing(workload.folder / "png" / "train" / "0")
        turns.reply(1, time.perf_counter() - started, **figures)


def step(workload: Workload) -> tuple[float, float]:
    """Milliseconds of forward and backward pass, and of the optimizer, on a batch that is there."""
    model = workload.build()
    criterion, optimizer = nn.CrossEntropyLoss(), resident.OPTIMIZER.build(model.parameters())
    images, labels = torch.randn(workload.batch_size, 1, 28, 28), torch.randint(10, (workload.batch_size,))
    passes, updates = [], []
    for _ in range(STEPS):
        optimizer.zero_grad()
        started = time.perf_counter()
        criterion(model(images), labels).backward()
        between = time.perf_counter()
        optimizer.step()
        passes.append(between - started)
        updates.append(time.perf_counter() - between)
    return statistics.median(passes) * 1e3, statistics.median(updates) * 1e3


def loop(workload: Workload) -> float:
    """Milliseconds of a step of raytrain's loop."""
    images, index = resident.arrays(workload)
    with tempfile.TemporaryDirectory() as folder:
        trainer = resident.trainer(replace(experiment(workload), epochs=3), folder, images, index)
        trainer.fit()
        rows = [row for row in trainer.run.metrics().to_pylist() if row["kind"] == "epoch"]
    return workload.batch_size / max(row["samples_per_second"] for row in rows) * 1e3


def decode(data: ImageFolder, files: int) -> float:
    """Microseconds to read, decode and resize a file."""
    index = data.index()["train"]
    chosen = np.linspace(0, len(index) - 1, files).astype(np.int64)
    return best(lambda: data.read(index, chosen)) / files * 1e6


def listing(folder: Path) -> dict[str, float]:
    """Microseconds a file to list a folder's names, and to ask for their sizes and times."""
    names = os.listdir(folder)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        listed = best(lambda: [entry.name for entry in os.scandir(folder)])
        stated = best(lambda: [os.stat(name, dir_fd=descriptor).st_size for name in names])
    finally:
        os.close(descriptor)
    return {"list": listed / len(names) * 1e6, "stat": stated / len(names) * 1e6}


def best(work: Callable[[], object]) -> float:
    """Seconds of the best of three."""
    seconds = []
    for _ in range(3):
        started = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - started)
    return min(seconds)


if __name__ == "__main__":
    main()
