"""`deterministic`: the same bits on 1, 2 and 4 workers, and of a run that goes on with another number of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ranks import Ranks, new_run, on_workers, train_rank
from test_resume import rows, weights

from raytrain import CNN, SGD, AdamW, Augment, Checkpoint, Cosine, Digits, Experiment, Optimizer

WORLDS = (1, 2, 4)
BASE = Experiment(
    model=CNN(channels=(8, 16), batch_norm=True, dropout=0.2),
    data=Digits(augment=Augment(crop="random_resized", scale=(0.6, 1.0), flip=0.5)),
    schedule=Cosine(warmup_epochs=0.5),
    checkpoint=Checkpoint(every_steps=5),
    batch_size=64,
    epochs=2,
    ema_decay=0.9,
    deterministic=True,
)


def bits(ranks: Ranks, folder: Path, e: Experiment, world: int) -> tuple[list[dict], str]:
    """What a run on so many workers leaves: its metrics but for times, and its weights' sha256."""
    run = new_run(folder / f"{world}", on_workers(e, world))
    ranks.run(world, train_rank, on_workers(e, world), run)
    return rows(run), weights(run)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("optimizer", [SGD(lr=0.05, momentum=0.9), AdamW()])
def test_any_number_of_workers_gives_the_same_bits(
    ranks: Ranks, tmp_path: Path, precision: Any, optimizer: Optimizer
) -> None:
    e = replace(BASE, precision=precision, optimizer=optimizer)
    one, *others = (bits(ranks, tmp_path, e, world) for world in WORLDS)
    assert others == [one, one]
