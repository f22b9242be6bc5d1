"""When a run ends early, and which layers train when."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from ranks import Ranks, new_run, on_workers, train_rank
from test_resume import rows, weights
from test_strategies import BASE

from raytrain import SGD, Run

# Early stopping

STALLS = replace(BASE, optimizer=SGD(lr=1e-12), patience=2, epochs=6, micro_batch_size=None)


@pytest.mark.parametrize("world", [1, 4])
def test_a_run_that_gets_no_better_ends_and_a_kill_after_that_changes_nothing(
    ranks: Ranks, tmp_path: Path, world: int
) -> None:
    e = on_workers(STALLS, world)
    run = new_run(tmp_path / "run", e)
    assert ranks.run(world, train_rank, e, run) == ["completed"] * world
    summary, found = Run(run).summary, rows(run)
    assert (summary["epochs"], summary["best_epoch"], summary["stopped_early"]) == (3, 1, True)
    (run / "summary.json").unlink()
    assert ranks.run(world, train_rank, e, run) == ["completed"] * world
    assert Run(run).summary["stopped_early"] and rows(run) == found


def test_with_more_patience_it_goes_on_as_if_it_had_never_stopped(ranks: Ranks, tmp_path: Path) -> None:
    e = replace(STALLS, epochs=4)
    run, whole = new_run(tmp_path / "run", e), new_run(tmp_path / "whole", e)
    ranks.run(1, train_rank, e, run)
    ranks.run(1, train_rank, replace(e, patience=None), run)
    ranks.run(1, train_rank, replace(e, patience=None), whole)
    assert rows(run) == rows(whole) and weights(run) == weights(whole)
    assert Run(run).summary["epochs"] == 4 and "stopped_early" not in Run(run).summary


def test_a_run_that_gets_better_to_its_end_is_not_said_to_have_stopped(ranks: Ranks, tmp_path: Path) -> None:
    e = replace(BASE, patience=1, micro_batch_size=None)
    ranks.run(1, train_rank, e, run := new_run(tmp_path / "run", e))
    assert Run(run).summary["epochs"] == 2 and "stopped_early" not in Run(run).summary
