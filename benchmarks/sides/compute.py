"""Compute alone: the same model, optimizer and DDP on random batches that are in memory. No loop can be faster."""

from __future__ import annotations

import time

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.side import Turns, Workload, join

BATCHES = 32


def main() -> None:
    """As many steps a turn as an epoch has."""
    workload, turns = Workload.from_argv(), Turns()
    rank, ranks = join()
    model: nn.Module = workload.build()
    if ranks > 1 and workload.exchange:
        model = DistributedDataParallel(model)
    criterion, optimizer = nn.CrossEntropyLoss(), workload.optimizer(model)
    generator, size = torch.Generator().manual_seed(rank), workload.batch_size
    batches = [
        (torch.randn(size, 1, 28, 28, generator=generator), torch.randint(10, (size,), generator=generator))
        for _ in range(BATCHES)
    ]
    steps = workload.samples // (size * ranks)
    while turns.wait():
        started = time.perf_counter()
        for step in range(steps):
            images, labels = batches[step % BATCHES]
            optimizer.zero_grad()
            criterion(model(images), labels).backward()
            optimizer.step()
        turns.reply(steps * size, time.perf_counter() - started)


if __name__ == "__main__":
    main()
