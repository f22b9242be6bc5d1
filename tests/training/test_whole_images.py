"""Runs on random crops of whole images, which the ranks read."""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from helpers.cut_runs import Cut, rows, weights
from helpers.ranks import Ranks, new_run, on_workers
from PIL import Image

from raytrain import CNN, SGD, Augment, Checkpoint, Deterministic, Experiment, Hook, ImageFolder
from raytrain.data.reader import Direct
from raytrain.parallel.strategy import RankContext
from raytrain.training.trainer import Trainer


def direct_rank(rank: int, world: int, e: Experiment, run: Path, cut_at: int = 0) -> str:
    """One rank of a run that reads its samples; it is cut off after `cut_at` steps, if that is not 0."""
    indices, left = e.data.index(), [cut_at]

    class CutAfter(Hook):
        def after_step(self, trainer: Trainer) -> None:
            left[0] -= 1
            if not left[0]:
                raise Cut

    readers = {split: Direct(e.data, index) for split, index in indices.items()}
    ranks = RankContext(rank, world, torch.device("cpu"))
    try:
        return Trainer(e, run, indices, readers, None, ranks, time.time(), hooks=[CutAfter()]).fit()
    except Cut:
        return "cut"


def test_a_run_is_the_same_on_1_2_and_4_workers_and_after_a_kill(ranks: Ranks, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    for number in range(40):
        path = tmp_path / "photos" / ("train" if number % 4 else "val") / f"class {number % 3}"
        path.mkdir(parents=True, exist_ok=True)
        pixels = random.integers(0, 256, (*random.integers(20, 60, 2), 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path / f"{number:02d}.jpg")
    crops = Augment(crop="random_resized", flip=0.5)
    experiment = Experiment(
        model=CNN(channels=(4,)),
        data=ImageFolder(str(tmp_path / "photos"), size=20, crop=16, whole=True, augment=crops),
        optimizer=SGD(lr=0.1, momentum=0.9),
        parallel=Deterministic(),
        checkpoint=Checkpoint(every_steps=3),
        batch_size=8,
        epochs=2,
    )
    runs = []
    for world in (1, 2, 4):
        e = on_workers(experiment, world)
        runs.append(new_run(tmp_path / str(world), e))
        assert ranks.run(world, direct_rank, e, runs[-1]) == ["completed"] * world
    e = on_workers(experiment, 2)
    cut = new_run(tmp_path / "cut", e)
    assert ranks.run(2, direct_rank, e, cut, 5) == ["cut"] * 2
    assert ranks.run(2, direct_rank, e, cut) == ["completed"] * 2
    for one, other in pairwise([*runs, cut]):
        assert rows(one) == rows(other) and weights(one) == weights(other)
