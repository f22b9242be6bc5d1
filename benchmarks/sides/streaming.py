"""raytrain's streaming reader and loader over the same JPEG files, as for data larger than memory; no model."""

from __future__ import annotations

import time

import torch

from benchmarks.side import Turns, Workload, join
from raytrain import ImageFolder
from raytrain.data.loader import Loader, keep_memory
from raytrain.data.reader import Direct


def main() -> None:
    """An epoch a turn."""
    workload, turns = Workload.from_argv(), Turns()
    join()
    data = ImageFolder(root=str(workload.folder), size=256, crop=224)
    index = data.index()["train"]
    loader = Loader(data, index, Direct(data, index), workload.batch_size, 0, 0, 1, torch.device("cpu"), train=True)
    epoch = 0
    keep_memory()  # as raytrain's worker does
    while turns.wait():
        started, samples, first = time.perf_counter(), 0, 0.0
        for loaded in loader.epoch(epoch):
            for batch in loaded.micro_batches(workload.batch_size):
                samples += len(batch)
                first = first or time.perf_counter() - started
        turns.reply(samples, time.perf_counter() - started, first=first)
        epoch += 1


if __name__ == "__main__":
    main()
