"""How many operations torch dispatches for a batch, and for a step: on a GPU each is a kernel to launch.

Images of the device `meta` have shapes and no values. They take the code of GPUs, and refuse any read-back.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.ranks import new_run
from helpers.strategies import BASE
from torch.utils._python_dispatch import TorchDispatchMode

from raytrain import (
    CNN,
    MLP,
    Augment,
    AugMix,
    ColorJitter,
    Data,
    GaussianBlur,
    Hook,
    HorizontalFlip,
    Index,
    Model,
    Operation,
    RandAugment,
    RandomAffine,
    RandomCrop,
    RandomErasing,
    RandomGrayscale,
    RandomResizedCrop,
    RandomRotation,
    Torchvision,
    TrivialAugmentWide,
    VerticalFlip,
)
from raytrain.data import geometry
from raytrain.data.checks import checked_read
from raytrain.data.geometry import boxes, resized_boxes, resized_by_weights
from raytrain.data.prepare import Prepare
from raytrain.data.reader import Resident
from raytrain.parallel.strategy import RankContext
from raytrain.training.trainer import Trainer

VIEWS = {
    *"view _unsafe_view unsqueeze squeeze slice select split split_with_sizes unbind expand".split(),
    *"unfold permute transpose t alias detach as_strided".split(),
}


class Counted(TorchDispatchMode):
    """Counts operations, but for views, which launch nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.names: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        name = str(func).split(".")[1]
        if name not in VIEWS:
            self.names[name] += 1
        return func(*args, **(kwargs or {}))


class NoPageable(TorchDispatchMode):
    """Refuses copies from the host for which it would wait: of memory that is not pinned, or not asynchronous."""

    def __init__(self, patch: pytest.MonkeyPatch):
        super().__init__()
        self.pinned: dict[int, torch.Tensor] = {}
        patch.setattr(geometry, "pins", lambda device: device.type == "meta")
        patch.setattr(torch.Tensor, "pin_memory", lambda tensor: self.pin(tensor.clone()))

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        return self.pinned.setdefault(tensor.data_ptr(), tensor)

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        out, name = func(*args, **(kwargs or {})), str(func).split(".")[1]
        if name in ("_to_copy", "copy_") and out.device.type == "meta":
            source, how = args[-1], kwargs or {}
            waits = source.data_ptr() not in self.pinned or not how.get("non_blocking")
            assert source.device.type == "meta" or not waits, "the host waits for a copy"
        return out


def batch(augment: Augment, n: int, mode: Callable[[], TorchDispatchMode]) -> Any:
    """Prepare a batch, crop to normalisation, and return the mode it is done under; a first batch fills caches."""
    index = Index(np.zeros(n, np.int64), tuple("abcdefg"), (3, 32, 32), "train")
    prepared = Prepare(Data(mean=(0.4,), std=(0.3,), augment=augment), index, device="meta")
    arrays = {"image": torch.zeros(n, 3, 32, 32, dtype=torch.uint8), "label": torch.zeros(n, dtype=torch.int64)}
    arrays = {name: array.to("meta") for name, array in arrays.items()}
    prepared.augmented(arrays, np.arange(n), 0, 0, mixed=True)
    with mode() as found:
        prepared.augmented(arrays, np.arange(n), 0, 0, mixed=True)
    return found


def count(augment: Augment, n: int) -> int:
    """Return the operations for a batch."""
    return sum(batch(augment, n, Counted).names.values())


def by(*operations: Operation) -> Augment:
    return Augment(operations=operations)


ALWAYS_ALIKE = (
    (Augment(), 3),
    (Augment(crop="random", padding=4), 10),
    (Augment(crop="random_resized"), 12),
    (Augment(flip=0.5), 8),
    (Augment(mixup=0.2), 24),
    (Augment(cutmix=1.0), 30),
    (Augment(mixup=0.2, cutmix=1.0), 38),
    (by(RandomCrop(padding=4)), 14),
    (by(RandomCrop(padding=4, padding_mode="reflect")), 20),
    (by(RandomResizedCrop()), 32),
    (by(HorizontalFlip(), VerticalFlip()), 20),
    (by(RandomAffine(20, (0.1, 0.2), (0.8, 1.2), 8.0)), 36),
    (by(RandomAffine(20, (0.1, 0.2), (0.8, 1.2), 8.0, "bilinear", 0.5)), 30),
    (by(RandomRotation(30)), 36),
    (by(RandomGrayscale()), 20),
    (by(GaussianBlur(p=0.5)), 36),
    (by(RandomErasing()), 28),
)
BY_KINDS = (
    (Augment(erase=0.5), 22),
    (Augment(policy="randaugment"), 115),
    (Augment(policy="trivialaugment"), 62),
    (by(RandAugment()), 120),
    (by(TrivialAugmentWide()), 66),
    (by(AugMix()), 185),
    (by(ColorJitter(0.4, 0.4, 0.4, 0.1)), 175),
)


@pytest.mark.parametrize(("augment", "most"), ALWAYS_ALIKE, ids=lambda one: str(one)[:200])
def test_operations_do_not_depend_on_the_size_of_a_batch(augment: Augment, most: int) -> None:
    assert count(augment, 64) == count(augment, 256) <= most <= 40


@pytest.mark.parametrize(("augment", "most"), BY_KINDS, ids=lambda one: str(one)[:200])
def test_operations_depend_on_the_kinds_of_changes_alone(augment: Augment, most: int) -> None:
    counts = [count(augment, n) for n in (8, 64, 256)]
    assert max(counts) <= most and counts[-1] - counts[-2] <= 8, counts


@pytest.mark.parametrize(
    "augment", [augment for augment, _ in (*ALWAYS_ALIKE, *BY_KINDS)], ids=lambda one: str(one)[:200]
)
def test_the_host_waits_for_no_copy(augment: Augment, monkeypatch: pytest.MonkeyPatch) -> None:
    found = batch(augment, 64, lambda: NoPageable(monkeypatch))
    assert found.pinned or augment == Augment(), "random numbers reach the device"


@pytest.mark.parametrize("side", [16, 32, 50])
def test_resizing_by_weights_is_a_cpus_resizing(side: int) -> None:
    numbers = np.random.default_rng(0).uniform(size=(40, 22))
    found = boxes(numbers, 70, 45, (0.05, 1.0), (0.5, 2.0))[0]
    values = torch.randint(0, 256, (40, 3, 70, 45), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    floats = values / 255
    same = resized_boxes(floats, found, side, side, blended=True)
    torch.testing.assert_close(resized_by_weights(floats, found, side, side), same, atol=1e-5, rtol=0)
    error = (resized_by_weights(values, found, side, side).int() - resized_boxes(values, found, side, side, True)).abs()
    assert error.max() <= 2 and (error > 1).double().mean() < 1e-3


# A step


@dataclass(frozen=True)
class Noise(Data):
    def index(self) -> dict[str, Index]:
        return {split: Index(np.arange(16) % 4, tuple("abcd"), (3, 32, 32), split) for split in ("train", "val")}

    def read(self, index: Index, samples: np.ndarray) -> np.ndarray:
        return np.random.default_rng(0).integers(0, 256, (len(samples), 3, 32, 32)).astype(np.uint8)


class PerStep(Hook):
    def __init__(self, counted: Counted):
        self.counted, self.at = counted, []

    def after_step(self, trainer: Trainer) -> None:
        self.at.append(sum(self.counted.names.values()))


@pytest.mark.parametrize(
    ("model", "most"), [(MLP(), 55), (CNN(channels=(8, 16)), 56), (Torchvision(name="resnet18"), 230)], ids=str
)
def test_a_step_stays_within_its_budget(tmp_path: Path, model: Model, most: int) -> None:
    augment = Augment(crop="random", padding=4, flip=0.5)
    data = Noise(mean=(0.5,), std=(0.3,), augment=augment)
    e = replace(BASE, model=model, data=data, batch_size=4, micro_batch_size=None, epochs=1)
    run, indices = new_run(tmp_path / "run", e), data.index()
    (run / "logs").mkdir()
    readers = {split: Resident(checked_read(data, index, np.arange(16))) for split, index in indices.items()}
    cpu = RankContext(0, 1, torch.device("cpu"))
    with Counted() as counted:
        hook = PerStep(counted)
        Trainer(e, run, indices, readers, None, cpu, time.time(), hooks=[hook]).fit()
    steps = np.diff(hook.at)
    assert len(steps) == 3 and steps.min() > 10
    assert np.median(steps) <= most, (steps, counted.names)
