"""SWA: PyTorch's own equal averages with buffers, on several ranks and after kills."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.cut_runs import BASE as DROPOUT
from helpers.cut_runs import cut_between_steps_rank, cut_rank, rows, weights
from helpers.ranks import Ranks, losses, new_run, on_workers, train_rank
from helpers.strategies import BLOCKS
from torch.optim.swa_utils import AveragedModel

from raytrain import DDP, Checkpoint, Deterministic, Experiment, Parallel, Pipeline, Run, UserError
from raytrain.tools.inference import evaluate

E = replace(DROPOUT, batch_size=128, epochs=4, swa_start_epoch=2, checkpoint=Checkpoint(every_steps=5, keep=99))
WAYS: dict[str, tuple[Parallel, int]] = {
    "one": (DDP(), 1),
    "two": (DDP(), 2),
    "four": (Deterministic(), 4),
    "fsdp": (BLOCKS, 2),
    "pipeline": (Pipeline(), 2),
}


def of(way: str) -> tuple[Experiment, int]:
    parallel, world = WAYS[way]
    e = replace(E, parallel=parallel)
    if way == "fsdp":
        e = replace(e, model=replace(e.model, batch_norm=False))  # type: ignore[call-arg]
    return on_workers(e, world), world


SLOW = [pytest.param(way, marks=pytest.mark.slow) for way in ("fsdp", "pipeline")]


@pytest.mark.parametrize("way", ["one", "two", "four", *SLOW])
def test_the_average_is_torchs_over_the_ends_of_epochs(ranks: Ranks, tmp_path: Path, way: str) -> None:
    e, world = of(way)
    e = replace(e, checkpoint=Checkpoint(keep=99))
    run, plain = new_run(tmp_path / "run", e), new_run(tmp_path / "plain", e)
    ranks.run(world, train_rank, e, run)
    ranks.run(world, train_rank, replace(e, swa_start_epoch=None), plain)
    np.testing.assert_array_equal(losses(run), losses(plain))  # training does not notice
    averaged, steps = None, Run(plain).summary["steps"] // 4
    for epoch in range(1, 5):
        (plain / "last.json").write_text(f'{{"checkpoint": "step_{epoch * steps:08d}"}}')
        model = Run(plain).model("last")
        if epoch >= 2:
            averaged = averaged or AveragedModel(copy.deepcopy(model), use_buffers=True)
            averaged.update_parameters(model)
        (run / "last.json").write_text(f'{{"checkpoint": "step_{epoch * steps:08d}"}}')
        expected = (model if averaged is None else averaged.module).state_dict()
        found = Run(run).model("last").state_dict()
        assert list(found) == list(expected)
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, rtol=1e-6, atol=1e-7)
    assert averaged is not None and weights(run) != weights(plain)
    values = Run(run).metrics()["val_loss"].to_pylist()
    assert values[0] == Run(plain).metrics()["val_loss"].to_pylist()[0] and values[-1] != values[0]
    assert evaluate(Run(run), which="last")["loss"] == pytest.approx(values[-1], rel=1e-5)


@pytest.mark.parametrize("way", ["two", "four", SLOW[1]])
def test_a_killed_run_is_bit_identical(ranks: Ranks, tmp_path: Path, way: str) -> None:
    e, world = of(way)
    whole, cut = new_run(tmp_path / "whole", e), new_run(tmp_path / "cut", e)
    ranks.run(world, train_rank, e, whole)
    shards = 4 // world if way == "four" else 1
    for step in (8, 14, 27):  # before, at and after the first average, each resumed in mid-epoch
        done = max((int(path.name[5:]) for path in (cut / "checkpoints").glob("step_*")), default=0)
        kill = cut_between_steps_rank if way == "pipeline" else cut_rank
        ranks.run(world, kill, e, cut, (step - done) * shards)
    ranks.run(world, train_rank, e, cut)
    assert rows(cut) == rows(whole) and weights(cut) == weights(whole)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"swa_start_epoch": 5}, "swa_start_epoch = 5 is out of range, in Experiment; give a value of 1 to 4"),
        ({"swa_start_epoch": 0}, "swa_start_epoch = 0 is out of range"),
        ({"ema_decay": 0.9}, "ema_decay and swa_start_epoch ask for two averages"),
    ],
)
def test_an_average_that_cannot_be_is_refused(changes: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        replace(E, **changes)
