"""The teacher of a distillation that goes on: the weights that the run began with, wherever they lie."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.commands import fails, make_run, succeeds, without_ray

from raytrain import CNN, Digits, Distillation, Experiment
from raytrain.driver import fit, plan, teacher_check
from raytrain.driver.resources import Node, Resources
from raytrain.tools.export import export

__all__ = ["without_ray"]

pytestmark = pytest.mark.usefixtures("without_ray")
Capture = pytest.CaptureFixture[str]
BASE = Experiment(CNN(channels=(4,)), Digits(), epochs=2)


def student(folder: Path, teacher: Path, noted: bool = True) -> Path:
    """A run of two epochs, of which one is trained, that learns from a teacher."""
    task = Distillation(teacher=str(teacher))
    run = make_run(folder, replace(BASE, task=task), steps=4).path
    (run / "summary.json").write_text(json.dumps({"status": "failed", "epochs": 1, "steps": 4}))
    if noted:
        file = run / "environment.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | teacher_check.noted(task)))
    return run


def test_a_run_keeps_the_path_of_its_teacher_as_it_holds_in_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(tmp_path / "teacher", BASE, steps=4)
    monkeypatch.chdir(tmp_path)
    e = replace(BASE, task=Distillation(teacher="teacher"))
    planned = plan.make(e, lambda: Resources((Node("n0", 2.0, 0.0, 2**33),), "this machine"), "runs/x")
    assert fit.to_keep(e, planned).task == Distillation(teacher=str(tmp_path / "teacher"))


@pytest.mark.parametrize("exported", [False, True])
def test_a_run_goes_on_with_its_teacher_in_another_place(capsys: Capture, tmp_path: Path, exported: bool) -> None:
    teacher = make_run(tmp_path / "teacher", BASE, steps=4).path
    if exported:
        export(make_run(tmp_path / "taught", BASE, steps=4), teacher := tmp_path / "teacher.pt2")
    run = student(tmp_path / "student", teacher)
    succeeds(capsys, "resume", run, "--dry_run")
    moved = teacher.rename(tmp_path / f"moved{teacher.suffix}")
    assert "--task.teacher PATH" in fails(capsys, "resume", run, "--dry_run")
    succeeds(capsys, "resume", run, "--task.teacher", moved, "--dry_run")
    assert "cannot change task.alpha" in fails(capsys, "resume", run, "--task.alpha", 0.1, "--dry_run")


def test_a_run_does_not_go_on_with_other_weights_of_its_teacher(capsys: Capture, tmp_path: Path) -> None:
    teacher = make_run(tmp_path / "teacher", BASE, steps=4).path
    other = make_run(tmp_path / "other", BASE, steps=6).path
    run = student(tmp_path / "student", teacher)
    wrong = "the teacher has other weights than when the run began, in task.teacher"
    assert wrong in fails(capsys, "resume", run, "--task.teacher", other, "--dry_run")
    teacher.rename(tmp_path / "kept")
    other.rename(teacher)  # as of a teacher that was trained on in the meantime
    assert wrong in fails(capsys, "resume", run, "--dry_run")


def test_an_older_run_goes_on_with_the_teacher_where_it_was(capsys: Capture, tmp_path: Path) -> None:
    teacher = make_run(tmp_path / "teacher", BASE, steps=4).path
    run = student(tmp_path / "student", teacher, noted=False)
    succeeds(capsys, "resume", run, "--dry_run")
    moved = teacher.rename(tmp_path / "moved")
    said = fails(capsys, "resume", run, "--task.teacher", moved, "--dry_run")
    assert "an older run does not note which weights its teacher has" in said and f"put it back to {teacher}" in said
