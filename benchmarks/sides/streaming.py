"""raytrain's loader over photographs, as for data larger than memory, in each form that they can have; no model."""

from __future__ import annotations

import time

import numpy as np
import torch

from benchmarks import dataset
from benchmarks.side import Turns, Workload, join
from raytrain import ImageFolder, Packed
from raytrain.data.checks import checked_read
from raytrain.data.images import Images
from raytrain.data.loader import Loader, Reader, keep_memory
from raytrain.data.reader import Direct, Resident

_EPOCHS = {"files": 1, "jpeg": 2, "raw": 8, "resident": 8}
"""Epochs of a turn, in which reading ahead goes on from one to the next."""


def main() -> None:
    """Some epochs a turn."""
    workload, turns = Workload.from_argv(), Turns()
    join()
    form = workload.form
    data: Images = ImageFolder(root=str(workload.folder), size=256, crop=224, cache="off")
    if form in ("jpeg", "raw"):
        data = Packed(str(dataset.packed(workload.folder, form)), cache="off")
    index = data.index()["train"]
    reader: Reader = Direct(data, index)
    if form == "resident":
        reader = Resident(checked_read(data, index, np.arange(len(index))))
    loader = Loader(data, index, reader, workload.batch_size, 0, 0, 1, torch.device("cpu"), train=True)
    epoch = 0
    keep_memory()  # as raytrain's worker does
    while turns.wait():
        started, busy, samples, first = time.perf_counter(), time.thread_time(), 0, 0.0
        loader.epochs = epoch + _EPOCHS[form]  # nothing is read while others have their turn
        while epoch < loader.epochs:
            for loaded in loader.epoch(epoch):
                for batch in loaded.micro_batches(workload.batch_size):
                    samples += len(batch)
                    first = first or time.perf_counter() - started
            epoch += 1
        seconds, each = time.perf_counter() - started, 1e6 / samples
        turns.reply(samples, seconds, first=first, wall=seconds * each, own=(time.thread_time() - busy) * each)


if __name__ == "__main__":
    main()
