"""Steady training speed of one rank against the tutorials' loop, on the same model, data, batch and threads.

    python benchmarks/loop.py [--root DIR_WITH_MNIST] [--rounds 5] [--samples 12800]

The tutorials' loop is torchvision-style samples (a Pillow image, `ToTensor`, `Normalize`) behind a DataLoader with one
process, as their scripts have it. Without `--root` the images are random. The two sides alternate; what counts is the
ratio of medians.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from raytrain import CNN, MLP, MNIST, SGD, Experiment, Model, Scaling
from raytrain.data import Index
from raytrain.data.reader import Resident
from raytrain.experiment import save
from raytrain.loop import Place, Worker


@dataclass(frozen=True)
class Settings:
    """What to measure."""

    root: str = ""
    """Folder that holds MNIST/raw; random images without it."""
    rounds: int = 5
    """Runs of each side."""
    samples: int = 12_800
    """Images in an epoch."""
    batch_size: int = 64
    """Images in a step."""


class Tutorial(Dataset):
    """MNIST as torchvision serves it."""

    def __init__(self, images: np.ndarray, labels: np.ndarray):
        self.images, self.labels = images, labels
        self.transform: Any = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.1307,), (0.3081,))])

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, sample: int) -> tuple[torch.Tensor, int]:
        return self.transform(Image.fromarray(self.images[sample, 0])), int(self.labels[sample])


def tutorial(model: Model, images: np.ndarray, labels: np.ndarray, batch_size: int) -> tuple[float, float]:
    """(samples/s, mean loss) of the second epoch."""
    torch.manual_seed(0)
    net = model.build((1, 28, 28), 10)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    loader = DataLoader(Tutorial(images, labels), batch_size=batch_size, shuffle=True)
    seconds, total = 0.0, 0.0
    for _ in range(2):
        started, total = time.perf_counter(), 0.0
        for data, target in loader:
            optimizer.zero_grad()
            loss = criterion(net(data), target)
            loss.backward()
            optimizer.step()
            total += loss.item() * len(target)
        seconds = time.perf_counter() - started
    return len(labels) / seconds, total / len(labels)


def raytrain(model: Model, images: np.ndarray, labels: np.ndarray, batch_size: int) -> tuple[float, float]:
    """(samples/s, mean loss) of the second epoch, checkpoints and metrics written as always."""
    index = Index(labels, tuple("0123456789"), (1, 28, 28))
    experiment = Experiment(model, MNIST(root="-"), optimizer=SGD(lr=0.05, momentum=0.9), batch_size=batch_size,
                            epochs=2, scaling=Scaling(threads_per_worker=1))  # fmt: skip
    indices = {"train": index, "val": index.take(np.arange(64))}
    readers = {"train": Resident(images), "val": Resident(images[:64])}
    with tempfile.TemporaryDirectory() as folder:
        save(replace(experiment), Path(folder) / "experiment.json")
        Worker(experiment, Path(folder), indices, readers, None, Place(0, 1, torch.device("cpu")), time.time()).fit()
        rows = [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]
    last = [row for row in rows if row["kind"] == "epoch"][-1]
    return last["samples_per_second"], last["train_loss"]


def main() -> None:
    """Prints a table."""
    settings = tyro.cli(Settings, use_underscores=True, description=__doc__)
    torch.set_num_threads(1)
    if settings.root:
        source = MNIST(root=settings.root)
        index = source.index()["train"].take(np.arange(settings.samples))
        images, labels = source.read(index, np.arange(settings.samples)), index.labels
    else:
        generator = np.random.default_rng(0)
        images = generator.integers(0, 256, (settings.samples, 1, 28, 28), dtype=np.uint8)
        labels = generator.integers(0, 10, settings.samples)
    print(f"torch {torch.__version__}, 1 rank, 1 thread, batch {settings.batch_size}, {settings.samples:,} images")
    print(f"{'model':<24}{'tutorial/s':>12}{'raytrain/s':>12}{'ratio':>8}{'losses':>18}")
    for name, model in {"MLP 784-512-512-10": MLP(hidden=(512, 512)), "CNN 16-32": CNN(channels=(16, 32))}.items():
        sides: dict[str, list[tuple[float, float]]] = {"tutorial": [], "raytrain": []}
        for _ in range(settings.rounds):
            sides["tutorial"].append(tutorial(model, images, labels, settings.batch_size))
            sides["raytrain"].append(raytrain(model, images, labels, settings.batch_size))
        theirs, ours = (statistics.median(speed for speed, _ in sides[side]) for side in sides)
        losses = "/".join(f"{statistics.median(loss for _, loss in sides[side]):.4f}" for side in sides)
        print(f"{name:<24}{theirs:>12,.0f}{ours:>12,.0f}{ours / theirs:>8.2f}{losses:>18}")


if __name__ == "__main__":
    main()
