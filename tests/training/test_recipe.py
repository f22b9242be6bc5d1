"""When a run ends early, and which layers train when."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from helpers.cut_runs import cut_rank, rows, weights
from helpers.ranks import Ranks, new_run, on_workers, train_rank
from helpers.strategies import BLOCKS, SHORT

from raytrain import DDP, MLP, SGD, AdamW, Checkpoint, Optimizer, Parallel, Pipeline, Run, TensorParallel, order
from raytrain.checkpoint.checkpoints import load_model

# Early stopping

STALLS = replace(SHORT, optimizer=SGD(lr=1e-12), patience=2, epochs=6, micro_batch_size=None)


@pytest.mark.parametrize("world", [1, 4])
def test_early_stop_survives_a_kill(ranks: Ranks, tmp_path: Path, world: int) -> None:
    e = on_workers(STALLS, world)
    run = new_run(tmp_path / "run", e)
    assert ranks.run(world, train_rank, e, run) == ["completed"] * world
    summary, found = Run(run).summary, rows(run)
    assert (summary["epochs"], summary["best_epoch"], summary["stopped_early"]) == (3, 1, True)
    (run / "summary.json").unlink()
    assert ranks.run(world, train_rank, e, run) == ["completed"] * world
    assert Run(run).summary["stopped_early"] and rows(run) == found


def test_more_patience_resumes_an_early_stop_exactly(ranks: Ranks, tmp_path: Path) -> None:
    e = replace(STALLS, epochs=4)
    run, whole = new_run(tmp_path / "run", e), new_run(tmp_path / "whole", e)
    ranks.run(1, train_rank, e, run)
    ranks.run(1, train_rank, replace(e, patience=None), run)
    ranks.run(1, train_rank, replace(e, patience=None), whole)
    assert rows(run) == rows(whole) and weights(run) == weights(whole)
    assert Run(run).summary["epochs"] == 4 and "stopped_early" not in Run(run).summary


def test_run_that_improves_to_its_end_did_not_stop_early(ranks: Ranks, tmp_path: Path) -> None:
    e = replace(SHORT, patience=1, micro_batch_size=None)
    ranks.run(1, train_rank, e, run := new_run(tmp_path / "run", e))
    assert Run(run).summary["epochs"] == 2 and "stopped_early" not in Run(run).summary


# The head first

MOMENTUM, ADAM = SGD(lr=0.05, momentum=0.9, weight_decay=0.1), AdamW(lr=1e-2)
OTHERS = (ADAM, "fp32"), (MOMENTUM, "fp16")
HEAD_FIRST = replace(
    SHORT, model=MLP(hidden=(32, 32)), unfreeze_epoch=2, epochs=3, micro_batch_size=None, checkpoint=Checkpoint(keep=9)
)


@pytest.mark.parametrize(
    ("optimizer", "precision"),
    [(MOMENTUM, "fp32"), (ADAM, "fp16"), *(pytest.param(*one, marks=pytest.mark.slow) for one in OTHERS)],
    ids=["sgd-fp32", "adamw-fp16", "adamw-fp32", "sgd-fp16"],
)
@pytest.mark.parametrize(
    "parallel",
    [DDP(), DDP(reduction="torch"), BLOCKS, Pipeline(), TensorParallel()],
    ids=["shared", "ddp", "fsdp", "pipeline", "tensor"],
)
def test_frozen_layers_keep_their_bits_until_unfreeze_epoch(
    ranks: Ranks, tmp_path: Path, parallel: Parallel, optimizer: Optimizer, precision: str
) -> None:
    if isinstance(parallel, TensorParallel) and precision == "fp16":
        precision = "fp32"  # it cannot scale gradients
    e = on_workers(replace(HEAD_FIRST, parallel=parallel, optimizer=optimizer, ema_decay=0.9), 2)
    e = replace(e, precision=precision)  # type: ignore[arg-type]
    ranks.run(2, train_rank, e, run := new_run(tmp_path / "run", e))
    torch.manual_seed(order.key(e.seed, 0) >> 1)
    start = e.model.build((1, 8, 8), 10).state_dict()
    after = [load_model(run / "checkpoints" / f"step_{12 * epoch:08d}") for epoch in (1, 2, 3)]
    *below, weight, bias = start
    for name in below:
        assert torch.equal(start[name], after[0][name]) and torch.equal(start[name], after[1][name])
        assert not torch.equal(start[name], after[2][name])
    for name in (weight, bias):
        assert not any(torch.equal(one[name], other[name]) for one, other in pairwise([start, *after]))


@pytest.mark.parametrize("parallel", [DDP(), BLOCKS], ids=["shared", "fsdp"])
def test_a_run_resumes_in_either_stage(ranks: Ranks, tmp_path: Path, parallel: Parallel) -> None:
    e = replace(HEAD_FIRST, optimizer=AdamW(lr=1e-2), parallel=parallel, checkpoint=Checkpoint(every_steps=5), epochs=4)
    e = on_workers(e, 2)
    whole, cut = new_run(tmp_path / "whole", e), new_run(tmp_path / "cut", e)
    ranks.run(2, train_rank, e, whole)
    for call in (13, 20, 7):  # with the head alone, and after that
        ranks.run(2, cut_rank, e, cut, call)
    ranks.run(2, train_rank, e, cut)
    assert rows(cut) == rows(whole) and weights(cut) == weights(whole)
