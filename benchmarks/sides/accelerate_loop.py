# `make setup` does not install the package; calls of other modules are checked without it.
# pyright: reportMissingImports=false
"""Accelerate's loop, as its quick tour has it, on raytrain's batches.

https://huggingface.co/docs/accelerate/quicktour
"""

from __future__ import annotations

import time

import torch
from accelerate import Accelerator
from torch import nn

from benchmarks.resident import Batches
from benchmarks.side import Turns, Workload, join


def main() -> None:
    """An epoch a turn."""
    workload, turns = Workload.from_argv(), Turns()
    join()
    accelerator = Accelerator(cpu=True)
    model = workload.build()
    model, optimizer = accelerator.prepare(model, workload.optimizer(model))
    criterion, batches = nn.CrossEntropyLoss(), Batches(workload)
    model.train()
    while turns.wait():
        started, samples, total = time.perf_counter(), 0, torch.zeros(())
        for inputs, targets in batches:
            optimizer.zero_grad()
            loss = criterion(model(inputs), targets)
            accelerator.backward(loss)
            optimizer.step()
            total += loss.detach() * len(targets)
            samples += len(targets)
        loss = total.item() / samples
        turns.reply(samples, time.perf_counter() - started, loss)


if __name__ == "__main__":
    main()
