"""Augmentation by operations on batches against torchvision v2 image by image: images per second (A B A B).

    python benchmarks/augmentation.py [ROUNDS]

Random images of uint8, 64 in a batch, one thread. Both sides return normalised float32 images; v2's transforms run on
tensors, as in a DataLoader's worker without its processes.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import numpy as np
import torch
from torchvision.transforms import v2

from benchmarks import report
from raytrain import (
    Augment,
    ColorJitter,
    GaussianBlur,
    HorizontalFlip,
    ImageFolder,
    Index,
    Operation,
    RandAugment,
    RandomCrop,
    RandomErasing,
    RandomResizedCrop,
)
from raytrain.data.prepare import Prepare

ROUNDS, BATCH, SECONDS = 7, 64, 1.5
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CROP, FLIP, ERASE = RandomResizedCrop(), HorizontalFlip(), RandomErasing(p=0.25)
JITTER = ColorJitter(brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1)
ROWS: tuple[tuple[str, int, int, tuple[Operation, ...]], ...] = (
    ("resized crop, flip, colour jitter, blur, erasing", 256, 224, (CROP, FLIP, JITTER, GaussianBlur(p=0.1), ERASE)),
    ("resized crop, flip, RandAugment, erasing", 256, 224, (CROP, FLIP, RandAugment(), ERASE)),
    ("resized crop, flip", 256, 224, (CROP, FLIP)),
    ("padded crop, flip, colour jitter, erasing", 32, 32, (RandomCrop(padding=4), FLIP, JITTER, ERASE)),
    ("padded crop, flip, RandAugment, erasing", 32, 32, (RandomCrop(padding=4), FLIP, RandAugment(), ERASE)),
)


def ours(stored: int, side: int, operations: tuple[Operation, ...], images: torch.Tensor) -> Callable[[], object]:
    """Return a function that changes a batch by raytrain."""
    data = ImageFolder(size=stored, crop=side, augment=Augment(operations=operations), mean=MEAN, std=STD)
    ids = np.arange(len(images))
    index = Index(np.zeros(len(images), np.int64), ("a",), (3, stored, stored), "train")
    prepare = Prepare(data, index)
    return lambda: prepare.augmented({"image": images, "label": torch.zeros(len(images))}, ids, 0, 0, mixed=False)


def theirs(side: int, operations: tuple[Operation, ...], images: torch.Tensor) -> Callable[[], object]:
    """Return a function that changes a batch by torchvision, image by image."""
    made: dict[type, Callable[[Operation], v2.Transform]] = {
        RandomResizedCrop: lambda _: v2.RandomResizedCrop(side),
        RandomCrop: lambda one: v2.RandomCrop(side, padding=vars(one)["padding"]),
        HorizontalFlip: lambda _: v2.RandomHorizontalFlip(),
        ColorJitter: lambda one: v2.ColorJitter(**vars(one)),
        GaussianBlur: lambda one: v2.RandomApply([v2.GaussianBlur(5)], p=vars(one)["p"]),
        RandAugment: lambda _: v2.RandAugment(),
    }
    before = [made[type(one)](one) for one in operations if not isinstance(one, RandomErasing)]
    after = [v2.RandomErasing(p=one.p) for one in operations if isinstance(one, RandomErasing)]
    scaled = [v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
    transform = v2.Compose([*before, *scaled, *after])
    return lambda: torch.stack([transform(image) for image in images])


def rate(change: Callable[[], object]) -> float:
    """Return batches per second, over at least `SECONDS`."""
    began, count = time.perf_counter(), 0
    while (spent := time.perf_counter() - began) < SECONDS:
        change()
        count += 1
    return count / spent


def main() -> None:
    """Print a row for each list of operations."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    torch.set_num_threads(1)
    print("\n".join(report.machine(f"{BATCH} random images; {rounds} rounds; 1 thread")))
    print("| images | operations | images/s, raytrain by v2 (range) |\n|---|---|---|")
    for name, stored, side, operations in ROWS:
        images = torch.randint(0, 256, (BATCH, 3, stored, stored), dtype=torch.uint8)
        mine, other = ours(stored, side, operations, images), theirs(side, operations, images)
        mine()
        other()
        ratios = [rate(mine) / rate(other) for _ in range(rounds)]
        shown = f"{statistics.median(ratios):.1f} ({min(ratios):.1f} to {max(ratios):.1f})"
        print(f"| {stored} -> {side} | {name} | {shown} |", flush=True)


if __name__ == "__main__":
    main()
