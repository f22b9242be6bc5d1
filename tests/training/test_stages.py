"""A training in stages is the training whose schedule drops at the same steps, also where it is cut off between."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from helpers.cut_runs import BASE, cut_rank, rows, weights
from helpers.ranks import Ranks, new_run, on_workers, train_rank

from raytrain import SGD, AdamW, Constant, Experiment, Hook, MultiStepLR, Run, Stage, UserError
from raytrain.optim.stages import staged, switched, uncounted
from raytrain.run import experiment_file

WHOLE = replace(BASE, optimizer=SGD(lr=0.08, momentum=0.9), validate_every_steps=10)
DROPS = replace(WHOLE, schedule=MultiStepLR((10 / 23, 30 / 23), gamma=0.5))
LAST = replace(WHOLE, schedule=Constant(), optimizer=SGD(lr=0.02, momentum=0.9))
STAGED = replace(LAST, stages=(Stage(10, {"optimizer.lr": 0.08}), Stage(30, {"optimizer.lr": 0.04})))


@dataclass(frozen=True)
class StopAt(Hook):
    """Ends the run as a signal does, after the validation of a step."""

    step: int = 0

    def after_validation_saved(self, trainer: Any, row: Mapping[str, Any]) -> None:
        trainer.stopping |= row["step"] == self.step


@pytest.mark.parametrize("world", [1, 2])
def test_stages_are_the_schedule_that_drops_there(ranks: Ranks, tmp_path: Path, world: int) -> None:
    drops, whole = on_workers(DROPS, world), on_workers(STAGED, world)
    for name, value in (("drops", drops), ("whole", whole)):
        ranks.run(world, train_rank, value, new_run(tmp_path / name, value))
    assert rows(tmp_path / "whole") == rows(tmp_path / "drops")
    assert weights(tmp_path / "whole") == weights(tmp_path / "drops")
    assert {row["lr"] for row in rows(tmp_path / "whole") if row["kind"] == "step"} == {0.08, 0.04, 0.02}
    assert Run(tmp_path / "whole").summary["status"] == "completed"


def test_a_run_in_stages_that_is_cut_off_goes_on_in_the_right_one(ranks: Ranks, tmp_path: Path) -> None:
    e = replace(STAGED, hooks=(StopAt(0),))
    whole, cut = new_run(tmp_path / "whole", e), new_run(tmp_path / "cut", e)
    ranks.run(1, train_rank, e, whole)
    for call in (7, 8, 12, 9):
        ranks.run(1, cut_rank, e, cut, call)
    ends = [ranks.run(1, train_rank, replace(e, hooks=(StopAt(step),)), cut)[0] for step in (30, 40)]
    assert ends == ["interrupted", "interrupted"] and rows(cut)[-1]["step"] == 40
    assert ranks.run(1, train_rank, e, cut) == ["completed"]
    assert rows(cut) == rows(whole) and weights(cut) == weights(whole)


def test_a_stage_ends_with_the_first_validation_from_its_step_on(ranks: Ranks, tmp_path: Path) -> None:
    early = replace(STAGED, stages=(Stage(7, {"optimizer.lr": 0.08}), Stage(24, {"optimizer.lr": 0.04})))
    whole, cut = new_run(tmp_path / "whole", STAGED), new_run(tmp_path / "cut", early)
    ranks.run(1, train_rank, STAGED, whole)
    ranks.run(1, cut_rank, early, cut, 28)
    ranks.run(1, train_rank, early, cut)
    assert rows(cut) == rows(whole) and weights(cut) == weights(whole)


def test_the_best_checkpoint_is_of_the_stages_that_count(ranks: Ranks, tmp_path: Path) -> None:
    worse = replace(STAGED, optimizer=SGD(lr=3.0, momentum=0.9))
    ranks.run(1, train_rank, worse, all_ := new_run(tmp_path / "all", worse))
    assert Run(all_).checkpoint("best").name == "step_00000030"
    first, second = STAGED.stages
    last = replace(worse, stages=(first, replace(second, counts=False)))
    whole, cut = new_run(tmp_path / "whole", last), new_run(tmp_path / "cut", last)
    ranks.run(1, train_rank, last, whole)
    assert rows(whole) == rows(all_)
    own = [row for row in rows(whole) if row["kind"] != "step" and row["step"] > 30]
    best = max(own, key=lambda row: row["val_accuracy"])
    found = json.loads((whole / "best.json").read_text())
    assert len(own) == 2 and (found["step"], found["val_accuracy"]) == (best["step"], best["val_accuracy"])
    assert Run(whole).checkpoint("best").name == f"step_{best['step']:08d}"
    assert Run(whole).summary["best_step"] == best["step"]
    for call in (32, 5, 6):
        ranks.run(1, cut_rank, last, cut, call)
    ranks.run(1, train_rank, last, cut)
    assert rows(cut) == rows(whole) and json.loads((cut / "best.json").read_text())["step"] == best["step"]


def test_the_precision_is_chosen_once_for_all_stages(ranks: Ranks, tmp_path: Path) -> None:
    e = replace(STAGED, precision="auto")
    ranks.run(1, train_rank, e, run := new_run(tmp_path / "run", e))
    assert [row["step"] for row in rows(run) if row["kind"] == "epoch"] == [23, 46]
    assert sum(row["kind"] == "precision" for row in rows(run)) == 1
    assert Run(run).experiment == replace(e, precision=Run(run).experiment.precision) != e


def test_the_stage_of_a_step_and_the_stages_of_a_switch() -> None:
    lrs = [staged(STAGED, step)[0].optimizer.lr for step in (0, 9, 10, 29, 30, 99)]
    assert lrs == [0.08, 0.08, 0.04, 0.04, 0.02, 0.02]
    assert [staged(STAGED, step)[1] for step in (9, 10, 30)] == [10, 30, None] and not staged(STAGED, 0)[0].stages
    other = replace(LAST, optimizer=SGD(lr=0.5, momentum=0.9), stages=(Stage(5, {"optimizer.lr": 9.0}),))
    for step, kept in ((40, (10, 30)), (30, (10,)), (12, (10,)), (10, ()), (4, ())):
        found = switched(STAGED, step, other, ["optimizer.lr"])
        assert [(one.until, one.counts) for one in found.stages] == [*((one, True) for one in kept), (step, False)]
        assert [uncounted(found, at) for at in (step - 1, step, step + 1)] == [0, step, step]
        for at in range(60):
            wanted = STAGED if at < step else other
            lr = staged(wanted, at)[0].optimizer.lr if at < step else 0.5
            assert staged(found, at)[0] == replace(LAST, optimizer=SGD(lr=lr, momentum=0.9)), (step, at)


def test_stages_are_saved_and_bad_ones_refused(tmp_path: Path) -> None:
    value = replace(STAGED, stages=(Stage(7, {"optimizer": AdamW(lr=0.3), "clip_norm": None}),))
    experiment_file.save(value, tmp_path / "experiment.json")
    again = experiment_file.load(tmp_path / "experiment.json")[0]
    assert again == value and isinstance(staged(again, 0)[0].optimizer, AdamW)
    assert staged(again, 0)[0].optimizer.lr == 0.3

    def refused(message: str, *stages: tuple[int, dict[str, Any]]) -> None:
        with pytest.raises(UserError, match=message):
            replace(LAST, stages=tuple(Stage(*one) for one in stages))

    refused("stages end after 9, 9 steps", (9, {}), (9, {}))
    refused("a stage has optimizer and optimizer.lr", (9, {"optimizer.lr": 0.1, "optimizer": AdamW()}))
    refused("a stage cannot change batch_size", (9, {"batch_size": 32}))
    refused("lr = -1.0 is out of range", (9, {"optimizer.lr": -1.0}))
    refused("unknown field 'moment'", (9, {"optimizer.moment": 0.1}))
    refused("until = 0 is out of range", (0, {}))


def test_last_values_alone_of_an_older_sweep_are_refused(tmp_path: Path) -> None:
    (path := tmp_path / "best.json").write_text(
        json.dumps(json.loads(experiment_file.to_json(LAST)) | {experiment_file.HISTORY: [{"epoch": 0}]})
    )
    with pytest.raises(UserError, match="the last values of a trial that changed them on the way"):
        experiment_file.load(path)


def test_an_experiment_without_stages_is_its_only_one() -> None:
    value, until = staged(LAST, 0)
    assert value == LAST and until is None and isinstance(value, Experiment)
