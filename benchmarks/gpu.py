"""Checks and measures raytrain on one GPU, in one file and a few minutes; needs no package index and no data.

    python benchmarks/gpu.py [--small] [--rows NAME ...]

`--small` is for trying this file out where there is no GPU: tiny sizes on the CPU. Sides alternate; what counts is the
ratio of medians. Images are generated: MNIST's sizes as PNG files for the tutorials' loop, photographs' sizes as JPEG.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

from raytrain import MLP, MNIST, SGD, Experiment, ImageFolder, Model, Scaling, Torchvision
from raytrain.data import Index
from raytrain.data.reader import Direct, Resident
from raytrain.driver import model_check
from raytrain.parallel.strategy import RankContext
from raytrain.run.experiment_file import save
from raytrain.training.precision import memory_format
from raytrain.training.trainer import Trainer

ROUNDS = 5
CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda:0" if CUDA else "cpu")


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    digits: int = 60_000
    png_files: int = 6_400
    photographs: int = 4_096
    side: int = 224
    stored: int = 256
    batch: int = 256
    steps: int = 20


SIZES = Sizes()
SMALL = Sizes(640, 640, 16, 32, 40, 8, 2)


def wait() -> None:
    """Lets the GPU finish."""
    if CUDA:
        torch.cuda.synchronize()


def digits(count: int) -> tuple[np.ndarray, Index]:
    """Random images of MNIST's size."""
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (count, 1, 28, 28), dtype=np.uint8)
    return images, Index(generator.integers(0, 10, count), tuple("0123456789"), (1, 28, 28), "train")


@cache
def png_folder() -> str:
    """The same as an ImageFolder of PNG files."""
    folder = Path(tempfile.mkdtemp())
    images, index = digits(SIZES.png_files)
    for number, (image, label) in enumerate(zip(images, index.labels, strict=True)):
        (folder / str(label)).mkdir(exist_ok=True)
        Image.fromarray(image[0]).save(folder / str(label) / f"{number}.png")
    return str(folder)


@cache
def jpeg_folder() -> str:
    """Smooth random images of 500 x 375 as JPEG files, which decode as photographs do."""
    folder, generator = Path(tempfile.mkdtemp()), np.random.default_rng(0)
    for number in range(64):
        rough = generator.integers(0, 256, (24, 32, 3), dtype=np.uint8)
        picture = Image.fromarray(rough).resize((500, 375), Image.Resampling.BICUBIC)
        picture.save(first := folder / f"{number}.jpg", quality=90)
        for copy in range(number, SIZES.photographs, 64):
            (folder / str(copy % 10)).mkdir(exist_ok=True)
            os.link(first, folder / str(copy % 10) / f"{copy}.jpg")
    return str(folder)


def tutorial(batch: int) -> Callable[[], float]:
    """The tutorials' loop: ImageFolder, ToTensor, DataLoader, `.to(device)`, `loss.item()`."""
    steps = transforms.Compose([transforms.Grayscale(), transforms.ToTensor(), transforms.Normalize((0.13,), (0.31,))])
    loader = DataLoader(datasets.ImageFolder(png_folder(), steps), batch_size=batch, shuffle=True)
    net = MLP(hidden=(512, 512)).build((1, 28, 28), 10).to(DEVICE)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)

    def run() -> float:
        started, total = time.perf_counter(), 0.0
        for images, labels in loader:
            images, labels = images.to(DEVICE), labels.to(DEVICE)
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(images), labels)
            loss.backward()
            optimizer.step()
            total += loss.item()
        return len(loader.dataset) / (time.perf_counter() - started)  # type: ignore[arg-type]

    return run


def synthetic(model: Model, batch: int, **fields: Any) -> Callable[[], float]:
    """Plain PyTorch on one batch that stays on the device: the limit of every loader."""
    e = experiment(model, batch, **fields)
    layout = memory_format(e.memory_format)
    net: Any = model.build((3, SIZES.side, SIZES.side), 10).to(DEVICE, memory_format=layout)  # type: ignore[call-overload]
    net = torch.compile(net) if e.compile else net
    images = torch.randn(batch, 3, SIZES.side, SIZES.side, device=DEVICE).contiguous(memory_format=layout)
    labels = torch.randint(0, 10, (batch,), device=DEVICE)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, fused=True)

    def run() -> float:
        wait()
        started = time.perf_counter()
        for _ in range(SIZES.steps):
            with torch.autocast(DEVICE.type, torch.bfloat16, enabled=e.precision == "bf16"):
                loss = nn.functional.cross_entropy(net(images), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        wait()
        return batch * SIZES.steps / (time.perf_counter() - started)

    return run


def experiment(model: Model, batch: int, **fields: Any) -> Experiment:
    """The experiment of a row."""
    values = {"data": MNIST(root="-"), "scaling": Scaling(threads_per_worker=4)} | fields
    return Experiment(model, optimizer=SGD(lr=1e-3, momentum=0.9), batch_size=batch, **values)


def raytrain(e: Experiment, index: Index, reader: Any) -> Callable[[], float]:
    """raytrain's worker over whole epochs, with its metrics and checkpoints; samples/s of the last epoch."""

    def run() -> float:
        with tempfile.TemporaryDirectory() as folder:
            image = e.data.sample(index)
            layout = model_check.memory_format(
                e, image, len(index.classes), model_check.check_model(e, image, len(index.classes))
            )
            value = replace(e, epochs=2, memory_format=layout)
            save(value, Path(folder) / "experiment.json")
            few = index.take(np.arange(min(64, len(index))))
            readers = {"train": reader, "val": Resident(few.empty(len(few)))}
            indices, ranks = {"train": index, "val": few}, RankContext(0, 1, DEVICE)
            Trainer(value, Path(folder), indices, readers, None, ranks, 0.0).fit()
            rows = [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]
        return [row for row in rows if row["kind"] == "epoch"][-1]["samples_per_second"]

    return run


def photographs() -> tuple[ImageFolder, Index]:
    """The JPEG files as a data source."""
    data = ImageFolder(root=jpeg_folder(), size=SIZES.stored, crop=SIZES.side, val_fraction=0.02)
    return data, data.index()["train"]


def compare(ours: Callable[[], float], theirs: Callable[[], float]) -> tuple[float, float]:
    """Median samples/s of both sides, in turns after one that warms up."""
    ours()
    theirs()
    turns = [(ours(), theirs()) for _ in range(ROUNDS)]
    mine, other = zip(*turns, strict=True)
    return statistics.median(mine), statistics.median(other)


def digits_row(batch: int) -> tuple[float, float]:
    """MNIST's size, resident on the device, against the tutorials' loop."""
    images, index = digits(SIZES.digits)
    e = experiment(MLP(hidden=(512, 512)), batch)
    return compare(raytrain(e, index, Resident({"image": images})), tutorial(batch))


def cached_row(name: str) -> tuple[float, float]:
    """A ResNet in bf16 from packed images, against the same on one synthetic batch."""
    data, index = photographs()
    images = np.random.default_rng(0).integers(0, 256, (len(index), *index.shape), dtype=np.uint8)
    e = experiment(Torchvision(name=name), SIZES.batch, data=data, precision="bf16")
    fields = {"precision": "bf16", "memory_format": "channels_last"}
    return compare(raytrain(e, index, Resident({"image": images})), synthetic(e.model, SIZES.batch, **fields))


def jpeg_row() -> tuple[float, float]:
    """ResNet-50 in bf16 from JPEG files, decoded while it trains, against the same on one synthetic batch."""
    data, index = photographs()
    e = experiment(Torchvision(name="resnet50"), SIZES.batch, data=data, precision="bf16")
    fields = {"precision": "bf16", "memory_format": "channels_last"}
    reader = Direct(data, index)
    return compare(raytrain(e, index, reader), synthetic(e.model, SIZES.batch, **fields))


def compile_row() -> tuple[float, float]:
    """bf16, channels_last and torch.compile against eager TF32, both on a synthetic batch."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    model, fields = Torchvision(name="resnet50"), {"precision": "bf16", "memory_format": "channels_last"}
    return compare(
        synthetic(model, SIZES.batch, compile=True, **fields),
        synthetic(model, SIZES.batch, memory_format="contiguous"),
    )


ROWS: dict[str, tuple[str, float, Callable[[], tuple[float, float]]]] = {
    "digits-64": ("tutorial", 8.0, lambda: digits_row(64)),
    "digits-1024": ("tutorial", 30.0, lambda: digits_row(1024)),
    "resnet18-cached": ("synthetic", 0.97, lambda: cached_row("resnet18")),
    "resnet50-cached": ("synthetic", 0.97, lambda: cached_row("resnet50")),
    "resnet50-jpeg": ("synthetic", 0.95, jpeg_row),
    "bf16-compiled": ("TF32 eager", 2.5, compile_row),
}
"""name: (against, goal, how)."""


def main() -> None:
    """Runs tests/gpu, measures, and prints a table."""
    global SIZES
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="tiny sizes")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS), help="only these")
    arguments = parser.parse_args()
    if not CUDA and not arguments.small:
        parser.error("there is no GPU here; --small tries this file out on the CPU")
    SIZES = SMALL if arguments.small else Sizes()
    if CUDA:
        checks = [sys.executable, "-m", "pytest", "-q", "tests/gpu"]
        print("tests/gpu:", "passed" if subprocess.run(checks, check=False).returncode == 0 else "FAILED", flush=True)
    import ray

    name = torch.cuda.get_device_name() if CUDA else "CPU, tiny sizes: the ratios mean nothing"
    print(f"{name}; torch {torch.__version__}, ray {ray.__version__}, Python {sys.version.split()[0]}\n")
    print("| row | against | raytrain/s | theirs/s | ratio | goal | met |\n|---|---|---|---|---|---|---|")
    for row in arguments.rows:
        against, goal, measure = ROWS[row]
        try:
            ours, theirs = measure()
        except Exception as error:  # one row must not cost the others
            print(f"| {row} | {against} | {type(error).__name__}: {str(error).splitlines()[0]} |||||", flush=True)
            continue
        met = "yes" if ours / theirs >= goal else "no"
        print(
            f"| {row} | {against} | {ours:,.0f} | {theirs:,.0f} | {ours / theirs:.2f} | >= {goal} | {met} |", flush=True
        )


if __name__ == "__main__":
    main()
