"""Runs counted in steps whose samples are streamed, by tasks or by threads: the bits of resident runs, whatever is
killed. Ray Data's part is replaced by blocks of uneven sizes."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.cut_runs import BASE, Cut, rows, weights
from helpers.ranks import Ranks, new_run, on_workers, train_rank

from raytrain import CNN, DDP, SGD, Checkpoint, Constant, Experiment, Hook
from raytrain.checkpoint import layout
from raytrain.data import Data, streaming
from raytrain.data.blocks import Arrays, Bad
from raytrain.data.checks import checked_read
from raytrain.data.reader import Direct
from raytrain.data.streaming import Streaming
from raytrain.parallel.strategy import RankContext
from raytrain.training.trainer import Trainer

STEPS = replace(
    BASE,
    model=CNN(channels=(8,), batch_norm=True, dropout=0.2),
    optimizer=SGD(lr=0.1, momentum=0.9),
    schedule=Constant(),
    parallel=DDP(reduction="torch"),
    steps=60,
    validate_every_steps=7,
    checkpoint=Checkpoint(every_steps=5),
)
VALIDATED = [7, 14, 21, 23, 28, 35, 42, 46, 49, 56, 60]


def streamed_rank(rank: int, world: int, e: Experiment, run: Path, threads: int, cut_at: int = 0) -> str:
    """One rank of a run whose samples are streamed, by threads if there are any; it is cut off after `cut_at` steps of
    this session, if that is not 0."""
    indices, seen = e.data.index(), []
    readers: dict[str, Any] = {split: Streaming(e.data, indices[split], split) for split in ("train", "val")}
    if threads:
        readers = {split: Direct(e.data, indices[split], threads, complete=True) for split in readers}

    def read_blocks(
        data: Data, split: str, samples: Callable[[np.ndarray], np.ndarray], total: int, *_: Any
    ) -> Iterator[tuple[Arrays, list[Bad]]]:
        chosen, sizes, start = samples(np.arange(total)), random.Random(total), 0
        while start < total:
            part = chosen[start : start + sizes.randint(1, 90)]
            yield checked_read(data, indices[split], part), []
            start += len(part)

    class CutAfter(Hook):
        def after_step(self, trainer: Trainer) -> None:
            seen.append(trainer.progress.step)
            if len(seen) == cut_at:
                raise Cut

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streaming, "read_blocks", read_blocks)
        ranks = RankContext(rank, world, torch.device("cpu"))
        try:
            return Trainer(e, run, indices, readers, None, ranks, time.time(), hooks=[CutAfter()]).fit()
        except Cut:
            return f"cut after step {seen[-1]}"


@pytest.mark.parametrize(("world", "threads"), [(1, 0), (2, 2)])
def test_a_streamed_run_killed_within_epochs_equals_the_resident_one(
    ranks: Ranks, tmp_path: Path, world: int, threads: int
) -> None:
    e = on_workers(STEPS, world)
    whole, cut = new_run(tmp_path / "whole", e), new_run(tmp_path / "cut", e)
    ranks.run(world, train_rank, e, whole)
    begun = []
    for steps in (9, 14, 8, 17):
        newest = layout.newest(cut / "checkpoints")
        begun.append((layout.step_of(newest.name) or 0) if newest else 0)
        assert (
            ranks.run(world, streamed_rank, e, cut, threads, steps) == [f"cut after step {begun[-1] + steps}"] * world
        )
    assert len(set(begun)) == 4 and any(step % 23 for step in begun), "the case shows nothing otherwise"
    assert ranks.run(world, streamed_rank, e, cut, threads) == ["completed"] * world
    assert rows(cut) == rows(whole) and weights(cut) == weights(whole)
    assert [row["step"] for row in rows(cut) if row["kind"] != "step"] == VALIDATED
