"""A sweep that has ended, opened again in a new Python process: what it found, and going on with it."""

from __future__ import annotations

import errno
import json
import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import raytrain
from raytrain import PBT, Choice, SweepRun, UserError
from raytrain.driver.endings import RunFailed
from raytrain.driver.options import Options
from raytrain.loggers import Logger
from raytrain.report.sweep import write_files
from raytrain.run.lock import Lock, LockHeld
from raytrain.sweep import driver
from raytrain.sweep.sweep_file import load, to_dict
from raytrain.sweep.trials import Trials

OLD = Path(__file__).parents[1] / "old_runs" / "sweep"


def test_a_sweep_is_opened_and_gone_on_with_by_its_directory(tmp_path: Path) -> None:
    path = shutil.copytree(OLD, tmp_path / "sweep")
    before = SweepRun(path)
    assert before.best is not None and before.configurations == []
    (path / "best.json").unlink()
    found = raytrain.sweep(str(path), keep=2, quiet=True, report=False)  # nothing is left to train
    assert found.trials and [one["status"] for one in found.trials] == ["completed", "completed"]
    assert (path / "best.json").is_file() and found.answer["sweep"]["keep"] == 2
    refused: list[tuple[dict[str, Any], str]]
    refused = [({"repeats": 4}, "cannot change repeats"), ({"epochs": 3}, "unknown field 'epochs'")]
    for change, message in refused:
        with pytest.raises(UserError, match=message):
            raytrain.sweep(found, quiet=True, **change)
    with pytest.raises(UserError, match="no sweep there"):
        raytrain.sweep(path / "trials" / "0000", quiet=True)


def test_trials_that_join_an_ended_population_are_refused(tmp_path: Path) -> None:
    path = shutil.copytree(OLD, tmp_path / "sweep")
    kept = load(path)[0]
    axes = (Choice("optimizer.lr", (0.1, 0.01)),)
    value = replace(
        kept, axes=axes, trials=2, scheduler=PBT(every_epochs=1), experiment=replace(kept.experiment, epochs=4)
    )
    answer = json.loads((path / "sweep.json").read_text()) | {"sweep": to_dict(value)}
    (path / "sweep.json").write_text(json.dumps(answer))
    with pytest.raises(UserError, match=r"PBT compares trials that train side by side, and all have ended.*--trials 4"):
        driver.resume(path, replace(load(path)[0], trials=4), Options(), Logger(), time.time(), write_files)


def test_a_sweep_without_anything_left_to_train_takes_no_longer(tmp_path: Path) -> None:
    path = shutil.copytree(OLD, tmp_path / "sweep")
    seconds, long_ago = SweepRun(path).answer["seconds"], time.time() - 600
    found = driver.resume(path, load(path)[0], Options(), Logger(), long_ago, write_files)
    assert found is not None and found.answer["seconds"] < seconds + 60


@pytest.mark.parametrize(("number", "how"), [(errno.ENOSPC, "free disk space"), (errno.EROFS, "make it writable")])
def test_a_disk_that_refuses_is_named_with_the_way_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, how: str
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    path = shutil.copytree(OLD, tmp_path / "sweep")
    monkeypatch.setattr(Trials, "write", refuse)
    with pytest.raises(RunFailed) as failed:
        driver.resume(path, load(path)[0], Options(), Logger(), time.time(), write_files)
    assert str(failed.value) == f"{path} cannot be written: {os.strerror(number)}"
    assert failed.value.how == f"{how}, then go on with `raytrain resume {path}`"


class Heard(Logger):
    """Keeps the plan."""

    def planned(self, lines: Sequence[tuple[str, str]]) -> None:
        vars(self)["plan"] = dict(lines)


def test_the_plan_says_what_a_sweep_has_done(tmp_path: Path) -> None:
    path, observer, dry = shutil.copytree(OLD, tmp_path / "sweep"), Heard(), Options(dry_run=True)
    value = load(path)[0]
    for status, said in (
        ("completed", "2 of 2 trials have ended"),
        ("running", "1 of 2 trials has ended, 1 began and goes on"),
    ):
        record = path / "trials" / "0001" / "trial.json"
        record.write_text(json.dumps(json.loads(record.read_text()) | {"status": status}))
        driver.resume(path, value, dry, observer, time.time(), write_files)
        assert vars(observer)["plan"]["goes on"] == said
    shutil.rmtree(path / "trials" / "0001")
    driver.resume(path, value, dry, observer, time.time(), write_files)
    assert vars(observer)["plan"]["goes on"] == "1 of 2 trials has ended"


def test_a_sweep_that_goes_on_is_called_a_sweep(tmp_path: Path) -> None:
    path = shutil.copytree(OLD, tmp_path / "sweep")
    with Lock(path), pytest.raises(LockHeld, match="the sweep is still going"):
        raytrain.sweep(path, quiet=True)


def test_the_table_has_repeats_and_broken_limits(tmp_path: Path) -> None:
    path = shutil.copytree(OLD, tmp_path / "sweep")
    answer = json.loads((path / "sweep.json").read_text())
    first, second = answer["trials"]
    first |= {"configuration": 0, "repeat": 0, "violates": ["seconds < 1 s"]}
    second |= {"configuration": 0, "repeat": 1}
    objectives = [{"name": "val_accuracy", "values": [0.5, 0.7], "n": 2, "mean": 0.6, "low": 0.1, "high": 1.1}]
    answer["configurations"] = [{"number": 0, "trials": [0, 1], "values": {}, "whole": True, "objectives": objectives}]
    (path / "sweep.json").write_text(json.dumps(answer))
    found = SweepRun(path)
    table = found.table()
    assert table["configuration"].to_pylist() == [0, 0] and table["repeat"].to_pylist() == [0, 1]
    assert table["violates"].to_pylist() == [["seconds < 1 s"], None]
    assert found.configurations[0]["objectives"][0]["mean"] == 0.6
