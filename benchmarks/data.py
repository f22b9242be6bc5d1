"""Images a second, and CPU seconds for 1,000 images, of ways from files to batches: `python benchmarks/data.py FOLDER`.

All give batches of 64 photographs, of which the model sees the central 224 pixels, normalised; the model costs nothing.
The ways alternate A B A B, and the medians of the rounds count. A round is two epochs of each way, one after the other;
the time to the first batch is that of the second one. CPU seconds are those of all processes.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import ray
import torch
from PIL import Image
from torchvision import datasets, transforms

from raytrain.data import Data, ImageFolder, Packed
from raytrain.data.checks import checked_indices
from raytrain.data.images import IMAGENET
from raytrain.data.loader import Loader, Reader, keep_memory
from raytrain.data.packing import pack as resident
from raytrain.data.reader import Direct, Resident
from raytrain.data.streaming import Streaming
from raytrain.tools.pack import pack
from raytrain.tools.pack_settings import Settings

_MARK = "RAYTRAIN_DATA_BENCHMARK"
_BATCH, _TICKS = 64, os.sysconf("SC_CLK_TCK")


def photographs(source: Path, folder: Path, count: int) -> None:
    """Write copies of photographs, each cut and compressed in another way, to train/ and val/."""
    files = sorted(path for path in source.rglob("*.jpg"))
    for number in range(count):
        path = folder / ("train" if number % 10 else "val") / f"class {number // 10 % 2}" / f"{number:06d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        with Image.open(files[number % len(files)]) as image:
            cut = number // len(files)
            image.convert("RGB").crop((cut, cut, image.width - cut, image.height - cut)).save(path, quality=93)


def cpu_seconds() -> float:
    """Return the CPU seconds of all processes that began in this benchmark, with those of their ended children."""
    found = 0.0
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if process.name == str(os.getpid()) or _MARK.encode() in (process / "environ").read_bytes():
                fields = (process / "stat").read_text().rpartition(")")[2].split()
                found += sum(map(int, fields[11:15])) / _TICKS
    return found


Way = Callable[[int], Iterator[torch.Tensor]]
"""Yields the batches of an epoch."""


def of_loader(data: Data, reader: Reader) -> Way:
    """Return what yields the batches of an epoch from raytrain's loader."""
    index = checked_indices(data)["train"]
    loader = Loader(data, index, reader, _BATCH, 0, 0, 1, torch.device("cpu"), train=True)

    def epoch(number: int) -> Iterator[torch.Tensor]:
        loader.epochs = number + 2 - number % 2  # an epoch of the next round is not read while other ways run
        for loaded in loader.epoch(number):
            yield from (batch.images for batch in loaded.micro_batches(_BATCH))

    return epoch


def of_torch(folder: Path) -> Way:
    """Return what yields the batches of an epoch from PyTorch's loader, with two processes."""
    mean, std = IMAGENET
    steps = [transforms.Resize(256), transforms.CenterCrop(224), transforms.ToTensor(), transforms.Normalize(mean, std)]
    data = datasets.ImageFolder(str(folder / "train"), transforms.Compose(steps))

    def epoch(number: int) -> Iterator[torch.Tensor]:
        loader = torch.utils.data.DataLoader(data, _BATCH, shuffle=True, num_workers=2)
        yield from (images for images, _ in loader)

    return epoch


def ways(folder: Path, packs: Path) -> dict[str, Way]:
    """Return the ways, by name."""
    source = ImageFolder(str(folder), cache="off")
    found = {"DataLoader, 2 processes": of_torch(folder)}

    def streaming(data: Data) -> Reader:
        index = checked_indices(data)["train"]
        return Streaming(data, index, ray.put(index))

    def threads(data: Data) -> Reader:
        return Direct(data, checked_indices(data)["train"])

    found["folder, Ray Data"] = of_loader(source, streaming(source))
    found["folder, threads"] = of_loader(source, threads(source))
    for name, settings in (
        ("original pack", Settings("original")),
        ("JPEG pack (256, q90)", Settings("jpeg", 256)),
        ("raw pack", Settings("raw", 256)),
    ):
        place = str(packs / settings.codec)
        pack(source, place, settings, lambda total, done: None, lambda count: None)
        data = Packed(place, cache="off")
        if not data.raw:
            found[f"{name}, Ray Data"] = of_loader(data, streaming(data))
        found[f"{name}, threads"] = of_loader(data, threads(data))
    arrays = ray.get(ray.put(resident(source, checked_indices(source)["train"])[0] or {}))  # where a run has them
    found["resident"] = of_loader(source, Resident(arrays))
    return found


def measured(way: Way, number: int) -> tuple[float, float, float]:
    """Return images a second, CPU seconds for 1,000 images and milliseconds to the second epoch's first batch."""
    began, spent, seen, first = time.perf_counter(), cpu_seconds(), 0, 0.0
    for epoch in (2 * number, 2 * number + 1):
        asked, first = time.perf_counter(), 0.0
        for images in way(epoch):
            first = first or time.perf_counter() - asked
            seen += len(images)
    seconds = time.perf_counter() - began
    return seen / seconds, (cpu_seconds() - spent) / seen * 1000, 1000 * first


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("photographs", type=Path, help="a folder with some photographs (.jpg)")
    parser.add_argument("--count", type=int, default=1000, help="the number of copies")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    os.environ[_MARK] = "1"
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    keep_memory()
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    found: dict[str, list[tuple[float, float, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        photographs(given.photographs, Path(folder, "photos"), given.count)
        known = ways(Path(folder, "photos"), Path(folder, "packs"))
        for number in range(given.rounds + 1):  # the first round warms up
            for name, way in known.items():
                found.setdefault(name, []).append(measured(way, number))
    print("| way | images/s | range | CPU s per 1,000 | first batch, ms |\n|---|---|---|---|---|")
    for name, (_, *rounds) in found.items():
        rates, cpus, firsts = zip(*rounds, strict=True)
        rate, cpu, first = map(statistics.median, (rates, cpus, firsts))
        print(f"| {name} | {rate:,.0f} | {min(rates):,.0f}-{max(rates):,.0f} | {cpu:.2f} | {first:,.0f} |")
    ray.shutdown()


if __name__ == "__main__":
    main()
