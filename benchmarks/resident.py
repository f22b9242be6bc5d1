"""raytrain's loader on an array that is in memory: the equal loader of the loops that are compared without theirs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from benchmarks.side import MEAN, STD, Workload
from raytrain import MNIST
from raytrain.data import Index
from raytrain.data.loader import Loader
from raytrain.data.reader import Resident

DATA = MNIST(root="-", mean=(MEAN,), std=(STD,))
"""Only its normalisation counts here: images come from the array."""


def arrays(workload: Workload) -> tuple[np.ndarray, Index]:
    """The images, mapped from their file as Ray's object store maps them, and their index."""
    images, labels = (
        np.asarray(np.load(workload.folder / f"{name}.npy", mmap_mode="r"))[: workload.samples]
        for name in ("images", "labels")
    )
    return images, Index(labels, tuple("0123456789"), (1, 28, 28), "train")


class Batches:
    """One rank's batches of (float32 images, labels), as raytrain's own loop gets them; shuffled anew every time."""

    def __init__(self, workload: Workload):
        images, index = arrays(workload)
        device = torch.device("cpu")
        self.loader = Loader(DATA, index, Resident(images), workload.batch_size, 0, 0, 1, device, train=True)
        self.epoch = 0

    def __len__(self) -> int:
        return self.loader.steps

    def __iter__(self) -> Iterator[Any]:
        for loaded in self.loader.epoch(self.epoch):
            for _, images, labels in loaded.micro_batches(len(loaded.ids)):
                yield images, labels
        self.epoch += 1
