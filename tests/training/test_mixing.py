"""Policies, erasing, mixup and cutmix in training: those of torchvision, on any number of workers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.ranks import Ranks, losses, new_run, on_workers, reference, train_rank
from torch import nn
from torchvision.transforms import v2

from raytrain import CNN, SGD, Augment, Batch, Classification, Cosine, Digits, Experiment, order
from raytrain.data.drawn import DRAWS, spread
from raytrain.data.transforms import Normalise, crop_and_flip

EVERYTHING = Augment(crop="random", padding=1, flip=0.5, policy="randaugment", erase=0.5, mixup=0.4, cutmix=1.0)
BASE = Experiment(
    model=CNN(channels=(8, 16)),
    data=Digits(augment=EVERYTHING),
    optimizer=SGD(lr=0.05, momentum=0.9),
    schedule=Cosine(warmup_epochs=0.5),
    batch_size=64,
    epochs=2,
)
RESIZED = replace(EVERYTHING, crop="random_resized", policy="trivialaugment", cutmix=0.0)


def seeded(e: Experiment, epoch: int, sample: int, purpose: int) -> None:
    torch.default_generator.manual_seed(order.key(e.seed, epoch, int(sample), purpose << 32) >> 1)


def prepared(
    e: Experiment, images: torch.Tensor, labels: torch.Tensor, epoch: int, ids: np.ndarray
) -> tuple[torch.Tensor, torch.Tensor]:
    """A batch by torchvision, a sample and a pair at a time."""
    a = e.data.augment
    policy = v2.RandAugment(a.policy_ops, a.policy_magnitude) if a.policy == "randaugment" else v2.TrivialAugmentWide()
    erase = v2.RandomErasing(p=a.erase)
    draws = spread(a, order.uniform(e.seed, epoch, ids, DRAWS))
    images = crop_and_flip(a, images, None, draws).round().to(torch.uint8)
    batch = []
    for sample, image in zip(ids, images, strict=True):
        seeded(e, epoch, sample, 1)
        image = Normalise(e.data.mean, e.data.std)(policy(image)[None])[0]
        seeded(e, epoch, sample, 2)
        batch.append(erase(image))
    images = torch.stack(batch)
    if len(ids) < e.batch_size:
        return images, labels
    mixup = v2.MixUp(alpha=a.mixup, num_classes=10)
    mix = v2.RandomChoice([mixup, v2.CutMix(alpha=a.cutmix, num_classes=10)]) if a.cutmix else mixup
    pairs = []
    for k in range(0, len(ids), 2):
        seeded(e, epoch, ids[k], 3)
        pairs.append(mix(images[k : k + 2], labels[k : k + 2]))
    return torch.cat([mixed for mixed, _ in pairs]), torch.cat([targets for _, targets in pairs])


@cache
def expected(augment: Augment, steps: int) -> list[float]:
    return reference(replace(BASE, data=Digits(augment=augment)), steps, prepared)[0]


@pytest.mark.parametrize(
    ("world", "augment", "micro"),
    [(1, EVERYTHING, None), (2, EVERYTHING, None), (4, EVERYTHING, None), (2, RESIZED, 8)],
)
def test_losses_equal_a_plain_loop_with_torchvisions_transforms(
    ranks: Ranks, tmp_path: Path, world: int, augment: Augment, micro: int | None
) -> None:
    e = on_workers(replace(BASE, data=Digits(augment=augment), micro_batch_size=micro), world)
    run = new_run(tmp_path / "run", e)
    assert ranks.run(world, train_rank, e, run) == ["completed"] * world
    found = losses(run)
    assert len(found) == 46
    np.testing.assert_allclose(found, expected(augment, len(found)), rtol=1e-5)


@dataclass(frozen=True)
class Noting(Classification):
    """Notes the state of the generator that dropout will draw from, and whether the batch is mixed."""

    file: str = ""

    def loss(self, model: nn.Module, batch: Batch) -> tuple[torch.Tensor, int]:
        with open(self.file, "a") as file:
            state = int(torch.default_generator.get_state().long().mul(torch.arange(5056) % 97).sum())
            file.write(f"{state} {batch.targets is not None}\n")
        return super().loss(model, batch)


def test_dropout_is_independent_of_augmentation(ranks: Ranks, tmp_path: Path) -> None:
    found = {}
    for name, augment in (("with", EVERYTHING), ("without", Augment())):
        task = Noting(file=str(tmp_path / f"{name}.txt"))
        e = replace(BASE, model=CNN(channels=(8,), dropout=0.3), data=Digits(augment=augment), task=task, epochs=1)
        e = replace(e, micro_batch_size=16)
        ranks.run(1, train_rank, e, new_run(tmp_path / name, e))
        lines = [line.split() for line in Path(task.file).read_text().splitlines()]
        found[name] = [state for state, _ in lines]
        # 22 full batches of four micro-batches, and a short one of two, which stays unmixed.
        mixed = [mixed == "True" for _, mixed in lines[:90]]
        assert mixed == ([True] * 88 + [False] * 2 if name == "with" else [False] * 90)
    assert found["with"] == found["without"] and len(set(found["with"])) == 90
