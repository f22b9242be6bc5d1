"""raytrain on an array in memory: its worker, and its loader alone, which is the equal loader of other loops."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from benchmarks.side import MEAN, STD, Workload
from raytrain import MNIST, SGD, Experiment
from raytrain.data import Index
from raytrain.data.loader import Loader, keep_memory
from raytrain.data.reader import Resident
from raytrain.parallel.strategy import RankContext
from raytrain.run.experiment_file import save
from raytrain.training.trainer import Trainer

DATA = MNIST(root="-", mean=(MEAN,), std=(STD,))
"""Only its normalisation counts here: images come from the array."""
OPTIMIZER = SGD(lr=0.05, momentum=0.9)
"""What `Workload.optimizer` is to the others."""


def arrays(workload: Workload) -> tuple[np.ndarray, Index]:
    """The images, mapped from their file as Ray's object store maps them, and their index."""
    images, labels = (
        np.asarray(np.load(workload.folder / f"{name}.npy", mmap_mode="r"))[: workload.samples]
        for name in ("images", "labels")
    )
    return images, Index(labels, tuple("0123456789"), (1, 28, 28), "train")


def trainer(
    experiment: Experiment,
    folder: str,
    images: np.ndarray,
    index: Index,
    rank: int = 0,
    ranks: int = 1,
    weights: dict[str, torch.Tensor] | None = None,
) -> Trainer:
    """Make raytrain's trainer, validated on the first 64 images; `folder` becomes its run's directory."""
    save(experiment, Path(folder) / "experiment.json")
    indices = {"train": index, "val": index.take(np.arange(64))}
    readers = {"train": Resident({"image": images}), "val": Resident({"image": images[:64]})}
    context = RankContext(rank, ranks, torch.device("cpu"))
    return Trainer(experiment, Path(folder), indices, readers, weights, context, time.time())


class Batches:
    """One rank's batches of (float32 images, labels), as raytrain's own loop gets them; shuffled anew every time."""

    def __init__(self, workload: Workload):
        images, index = arrays(workload)
        device = torch.device("cpu")
        keep_memory()  # as raytrain's worker does
        self.loader = Loader(DATA, index, Resident({"image": images}), workload.batch_size, 0, 0, 1, device, train=True)
        self.epoch = 0

    def __len__(self) -> int:
        return self.loader.steps

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for loaded in self.loader.epoch(self.epoch):
            for batch in loaded.micro_batches(len(loaded.ids)):
                yield batch.images, batch.labels
        self.epoch += 1
