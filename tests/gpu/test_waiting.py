"""On a GPU: steps make the host wait for nothing, however batches are prepared."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.ranks import new_run

from raytrain import CNN, Augment, Digits, Experiment, HorizontalFlip, RandomCrop, Scaling
from raytrain.data.checks import checked_read
from raytrain.data.reader import Resident
from raytrain.parallel.strategy import RankContext
from raytrain.training.trainer import Trainer

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
E = Experiment(CNN(channels=(8,), batch_norm=True), Digits(), epochs=4, scaling=Scaling(threads_per_worker=2))


@pytest.mark.parametrize("resident", [True, False], ids=["on the device", "on the host"])
@pytest.mark.parametrize(
    "augment",
    [
        Augment(),
        Augment(crop="random", padding=1, flip=0.5),
        Augment(crop="random_resized", erase=0.5),
        Augment(policy="randaugment"),
        Augment(mixup=0.2, cutmix=1.0),
        Augment(operations=(RandomCrop(padding=1), HorizontalFlip())),
    ],
    ids=["none", "crop and flip", "resized", "randaugment", "mixed", "operations"],
)
def test_no_step_waits(tmp_path: Path, augment: Augment, resident: bool) -> None:
    e = replace(E, data=replace(E.data, augment=augment))
    indices = e.data.index()
    arrays = {split: checked_read(e.data, one, np.arange(len(one))) for split, one in indices.items()}
    readers = {split: Resident(one) for split, one in arrays.items()}
    gpu = RankContext(0, 1, torch.device("cuda", 0))
    trainer = Trainer(e, new_run(tmp_path / "run", e), indices, readers, None, gpu, time.time())
    with trainer.started():
        loader = trainer.loaders["train"]
        if not resident:
            loader.on_device = None
        first, second = (loader.epoch(number) for number in range(2))
        for loaded in first:  # fills caches
            trainer.losses.add(trainer.step(loaded))
        torch.cuda.set_sync_debug_mode("error")
        try:
            for loaded in second:
                trainer.losses.add(trainer.step(loaded))
        finally:
            torch.cuda.set_sync_debug_mode("default")
