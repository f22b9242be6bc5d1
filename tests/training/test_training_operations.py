"""Operations in training: a plain loop's losses on any number of workers, and the same bits after a resume."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.cut_runs import BASE, cut_rank, weights
from helpers.ranks import Ranks, losses, new_run, on_workers, reference, train_rank

from raytrain import (
    CNN,
    SGD,
    Augment,
    ColorJitter,
    Deterministic,
    Digits,
    Experiment,
    GaussianBlur,
    RandAugment,
    RandomAffine,
    RandomCrop,
    RandomErasing,
    RandomResizedCrop,
)
from raytrain.data.prepare import Prepare

OPERATIONS = (
    RandomCrop(padding=1),
    RandomResizedCrop(scale=(0.5, 1.0)),
    RandAugment(num_ops=1, magnitude=4),
    RandomAffine(10.0, interpolation="bilinear"),
    ColorJitter(0.2, 0.2),
    GaussianBlur(kernel_size=3, p=0.3),
    RandomErasing(p=0.3),
)
DATA = Digits(augment=Augment(operations=OPERATIONS, mixup=0.3))
PLAIN = Experiment(CNN(channels=(8, 16)), DATA, optimizer=SGD(lr=0.05, momentum=0.9), batch_size=64, epochs=1)


def one_by_one(
    e: Experiment, images: torch.Tensor, labels: torch.Tensor, epoch: int, ids: np.ndarray
) -> tuple[torch.Tensor, torch.Tensor]:
    """A batch whose images are changed one at a time, and then mixed."""
    prepared, mixed = Prepare(e.data, e.data.index()["train"]), len(ids) == e.batch_size
    size = 2 if mixed else 1
    found = [
        prepared.augmented(
            {"image": images[k : k + size], "label": labels[k : k + size]}, ids[k : k + size], e.seed, epoch, mixed
        )
        for k in range(0, len(ids), size)
    ]
    return tuple(torch.cat([one[name] for one in found]) for name in ("image", "target" if mixed else "label"))  # type: ignore[return-value]


@pytest.mark.parametrize("world", [1, 2, 4])
def test_losses_equal_those_of_images_changed_one_by_one(ranks: Ranks, tmp_path: Path, world: int) -> None:
    run = new_run(tmp_path / "run", on_workers(PLAIN, world))
    assert ranks.run(world, train_rank, on_workers(PLAIN, world), run) == ["completed"] * world
    found = losses(run)
    assert len(found) == 23
    np.testing.assert_allclose(found[:3], expected(), rtol=1e-5)


_KNOWN: list[list[float]] = []


def expected() -> list[float]:
    if not _KNOWN:
        _KNOWN.append(reference(PLAIN, 3, one_by_one)[0])
    return _KNOWN[0]


@pytest.mark.parametrize("world", [2])
def test_a_run_resumes_bit_identical_from_the_middle_of_an_epoch(ranks: Ranks, tmp_path: Path, world: int) -> None:
    e = on_workers(replace(BASE, data=DATA, parallel=Deterministic(), epochs=1), world)
    whole, cut = new_run(tmp_path / "whole", e), new_run(tmp_path / "cut", e)
    alone = on_workers(e, 1)
    other = new_run(tmp_path / "alone", alone)
    ranks.run(world, train_rank, e, whole)
    ranks.run(1, train_rank, alone, other)
    ranks.run(world, cut_rank, e, cut, 17)  # of two passes a step
    assert not list(cut.glob("summary.json")) and len(list(cut.glob("checkpoints/step_*"))) > 0
    ranks.run(world, train_rank, e, cut)
    for run in (cut, other):
        assert np.array_equal(losses(run), losses(whole)) and weights(run) == weights(whole)
