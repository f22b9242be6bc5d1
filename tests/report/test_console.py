"""The console: what is printed of a run, at 80 columns and in files."""

from __future__ import annotations

import io
import json
import re
import sys
import time
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.commands import VALUE
from rich.cells import cell_len
from rich.console import Console as RichConsole
from torch import nn

from raytrain import Batch, Classification, Regression, Run, Task
from raytrain.driver import plan, resources
from raytrain.experiment import Experiment
from raytrain.loggers import Held, RunInfo
from raytrain.report.console import Console, show_evaluation

ROW = {"kind": "epoch", "epoch": 1, "step": 3, "train_loss": 2.0, "val_loss": 0.5, "val_accuracy": 0.9877}
ROW |= {"samples_per_second": 10.0, "seconds": 1.0}


@dataclass(frozen=True)
class Graded(Classification):
    """Classification that monitors its error."""

    directions = {"error": "min"}  # noqa: RUF012
    monitor: str = "val_error"

    def results(self, sums: Mapping[str, np.ndarray]) -> dict[str, float]:
        found = super().results(sums)
        return found | {"error": 1 - found["accuracy"]}


@dataclass(frozen=True)
class LongNames(Task):
    directions = {"mean_absolute_percentage_error_of_the_left_lung": "min", "学习率误差平均绝对百分比误差的值": "min"}  # noqa: RUF012
    monitor: str = "val_mean_absolute_percentage_error_of_the_left_lung"

    def results(self, sums: Mapping[str, np.ndarray]) -> dict[str, float]:
        return super().results(sums) | dict.fromkeys(self.directions, 0.5)

    def loss(self, model: nn.Module, batch: Batch) -> tuple[torch.Tensor, int]:
        return model(batch.images).square().sum(), len(batch)


def shown(console: Console) -> str:
    assert isinstance(console.console.file, io.StringIO)
    return console.console.file.getvalue()


def pipe() -> Console:
    return Console(RichConsole(file=io.StringIO(), soft_wrap=True, width=200))


def terminal(width: int = 80) -> Console:
    file = io.StringIO()
    return Console(RichConsole(file=file, force_terminal=True, color_system=None, soft_wrap=True, width=width))


def planned(value: Experiment = VALUE, run: str = "") -> plan.Plan:
    return plan.make(value, resources.local_resources, run)


def info(run: Run, laid_out: plan.Plan, earlier: Sequence[Mapping[str, Any]] = ()) -> RunInfo:
    samples = len(laid_out.indices["train"])
    return RunInfo(run.path, run.where, laid_out.experiment, laid_out.steps_per_epoch, samples, earlier)


def run_of(folder: Path, **summary: Any) -> Run:
    """A run whose experiment cannot be loaded: nothing does in order to print."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "experiment.json").write_text("damaged")
    (folder / "summary.json").write_text(json.dumps({"status": "completed", **summary}))
    return Run(folder)


@pytest.fixture(autouse=True)
def no_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)


def test_the_speed_after_a_restart_is_without_the_time_of_the_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    console, laid_out, now = pipe(), planned(replace(VALUE, epochs=3)), [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    console.start(info(run_of(tmp_path), laid_out), Held())
    for second, step in ((0, 1), (1, 2), (60, 2), (61, 3)):
        if second == 60:
            console.workers("lost", "rank 1 is gone", "step_00000001")
        now[0] = 100.0 + second
        console.rows([{"kind": "step", "step": step, "epoch": 1, "loss": 1.0, "lr": 0.05}])
    now[0] = 72.0 + 100.0
    console.rows([{"kind": "step", "step": 14, "epoch": 1, "loss": 1.0, "lr": 0.05}])
    assert "0:55 left" in shown(console).splitlines()[-1], "55 steps, at one in a second"


def test_table_and_closing_line_show_the_monitored_metric(tmp_path: Path) -> None:
    console, laid_out = pipe(), planned(replace(VALUE, task=Graded(), epochs=3))
    summary = {"monitor": "val_error", "val_accuracy": 0.9877, "val_error": 0.0123, "val_loss": 0.5}
    run = run_of(tmp_path, **summary, best_epoch=2, epochs=3, steps=69)
    console.planned(laid_out.lines())
    console.start(info(run, laid_out, []), Held())
    console.rows([{"kind": "step", "step": 3, "epoch": 1, "loss": 1.0, "lr": 0.04871}, {**ROW, "val_error": 0.0123}])
    console.finish(info(run, laid_out), run.summary)
    titles, figures, *rest = shown(console).splitlines()[-8:]
    assert titles.split() == "epoch step lr train loss val loss val accuracy val error samples/s seconds".split()
    assert figures.split() == "1/3 3 0.0487 2.0000 0.5000 0.9877 0.0123 10 1.0".split()
    assert rest[0] == "completed: epoch 3 of 3, best val_error 0.0123 in epoch 2"


@pytest.mark.parametrize(
    ("status", "steps", "said"),
    [
        ("interrupted", 0, "interrupted: no step was done"),
        ("interrupted", 1, "interrupted: epoch 1 of 3,000, step 1 of 69,000"),
        ("interrupted", 23, "interrupted: epoch 1 of 3,000, step 23 of 69,000, best val_accuracy 0.5000 in epoch 1"),
        ("interrupted", 24, "interrupted: epoch 2 of 3,000, step 24 of 69,000, best val_accuracy 0.5000 in epoch 1"),
        ("completed", 230, "completed: epoch 10 of 3,000, stopped early, best val_accuracy 0.5000 in epoch 1"),
        ("completed", 69_000, "completed: epoch 3,000 of 3,000, best val_accuracy 0.5000 in epoch 1"),
    ],
)
def test_epoch_n_of_m_counts_trained_and_requested_epochs(tmp_path: Path, status: str, steps: int, said: str) -> None:
    laid_out, console = planned(replace(VALUE, epochs=3000)), pipe()
    best: dict[str, Any] = {"val_accuracy": 0.5, "best_epoch": 1} if steps >= 23 else {"best_epoch": None}
    early = {"stopped_early": True} if steps == 230 else {}
    run = run_of(tmp_path, status=status, epochs=steps // 23, steps=steps, **best, **early)
    console.planned(laid_out.lines())  # Ctrl-C while Ray starts comes before `started`
    console.finish(info(run, laid_out), run.summary)
    assert f"\n{said}\n" in shown(console)


def test_validations_inside_epochs_have_lines_and_steps_are_counted(tmp_path: Path) -> None:
    console, laid_out = pipe(), planned(replace(VALUE, steps=500, validate_every_steps=10, max_hours=1.5))
    run = run_of(tmp_path, steps=500, epochs=21, val_accuracy=0.5, best_epoch=3, best_step=60, monitor="val_accuracy")
    console.planned(laid_out.lines())
    assert "steps  500 steps (21.7 epochs of 23), a validation every 10, at most 1.5 h; about" in shown(console)
    console.start(info(run, laid_out, [{**ROW, "kind": "validation", "epoch": 1, "step": 10}]), Held())
    console.rows([{**ROW, "epoch": 1, "step": 23}, {**ROW, "kind": "validation", "epoch": 2, "step": 30}])
    console.rows([{"kind": "step", "step": 31, "epoch": 2, "loss": 1.0, "lr": 0.1}])
    console.finish(info(run, laid_out), run.summary)
    said = shown(console).splitlines()
    table = [line.split()[:2] for line in said if line.split()[1:2] and "/22" in line.split()[0]]
    assert table == [["0.43/22", "10"], ["1/22", "23"], ["1.30/22", "30"]]
    assert len({line.index("/22") for line in said if line.split()[1:2] in (["10"], ["23"], ["30"])}) == 1, "aligned"
    assert "epoch 2/22  step 31/500  loss 1.0000  lr 0.1" in shown(console)
    assert "completed: step 500 of 500, best val_accuracy 0.5000 at step 60" in said


def test_closing_line_says_that_time_ran_out(tmp_path: Path) -> None:
    console, laid_out = pipe(), planned(replace(VALUE, epochs=3, max_hours=1.0))
    run = run_of(tmp_path, epochs=1, steps=30, val_accuracy=0.5, best_epoch=1, best_step=23, out_of_time=True)
    console.finish(info(run, laid_out), run.summary)
    assert "completed: epoch 2 of 3, out of time, best val_accuracy 0.5000 in epoch 1" in shown(console).splitlines()


@pytest.mark.parametrize(("count", "said_as"), [(1, ", 1 step skipped, "), (2, ", 2 steps skipped, ")])
def test_closing_line_counts_the_steps_that_were_skipped(tmp_path: Path, count: int, said_as: str) -> None:
    console, laid_out = pipe(), planned(replace(VALUE, epochs=3))
    run = run_of(tmp_path, epochs=3, steps=69, seconds=1.0, skipped_steps=count)
    console.finish(info(run, laid_out), run.summary)
    assert said_as in shown(console)


def test_closing_line_says_why_a_hook_ended_the_run(tmp_path: Path) -> None:
    console, laid_out, why = pipe(), planned(replace(VALUE, epochs=3)), "the loss diverged"
    ended = {"stopped_early": True, "stopped_because": why}
    run = run_of(tmp_path, epochs=1, steps=30, val_accuracy=0.5, best_epoch=1, best_step=23, **ended)
    console.finish(info(run, laid_out), run.summary)
    assert "completed: epoch 2 of 3, stopped early, the loss diverged, best val_accuracy" in shown(console)


def test_bar_counts_epochs_as_the_table_does(tmp_path: Path) -> None:
    laid_out, console = planned(replace(VALUE, epochs=44)), terminal()
    console.planned(laid_out.lines())
    steps = [{"kind": "step", "step": step, "epoch": 7, "loss": 1.0, "lr": 0.1} for step in (139, 140)]
    console.start(info(run_of(tmp_path), laid_out, [{**ROW, "epoch": 6, "step": 138}]), Held())
    console.rows(steps)
    bar = console._bar
    console.close()
    assert bar is not None and bar.epoch == "epoch 7/44" and bar.share == pytest.approx(140 / 1012)
    assert bar.place[0][1] == "step 140/1,012" and [text for _, text in bar.figures[:2]] == ["loss 1.0000", "lr 0.1"]
    assert [line.split()[0] for line in shown(console).splitlines() if line.startswith(" 6/")] == ["6/44"]


@pytest.mark.parametrize("width", [40, 80, 100, 200])
@pytest.mark.parametrize("epochs", [3, 44, 100, 999_999])
@pytest.mark.parametrize("task", [Classification(), Graded(), LongNames(), LongNames(monitor="val_loss")])
def test_no_line_of_a_run_wraps(tmp_path: Path, width: int, epochs: int, task: Task) -> None:
    long = tmp_path / ("long" * 12) / ("名前" * 20)
    laid_out = planned(replace(VALUE, epochs=epochs, task=task), str(long / "run"))
    laid_out = replace(laid_out, notes=("a note " * 30, f"see {long}/{'x' * 50}"))
    names = [name for name in task.declared() if name != "val_loss"]
    best = {"val_loss": 1e-9, **dict.fromkeys(names, 123456.789)}
    run = run_of(
        long / "run", monitor=task.monitor, **best, best_epoch=epochs, epochs=epochs, steps=epochs * 23, seconds=1e6
    )
    console = terminal(width)
    console.planned(laid_out.lines())
    console.status("reading " * 30)
    rows: list[dict[str, Any]] = [{"kind": "step", "step": 1, "epoch": 1, "loss": -1.23456e-7, "lr": 1.2345e-5}]
    figures = {"train_loss": -1.23456e-7, "val_loss": None, **dict.fromkeys(names, -98765.4321)}
    times = {"samples_per_second": 123456789.0, "seconds": 1234567.0}
    rows += [{"kind": "epoch", "epoch": epochs, "step": 23 * epochs, **figures, **times}]
    console.start(info(run, laid_out, rows), Held())
    console.rows([{**rows[0], "step": 2}])
    console.rows([{**rows[0], "step": 23 * epochs, "epoch": epochs}])
    console.workers("lost", "the node " * 20, "step_00000007")
    console.note(f"{long}/x: " + "refused " * 20)
    console.rows(
        [{"kind": "precision", "chosen": "fp32", "milliseconds": dict.fromkeys(("fp32", "bf16", "fp16"), 1e5)}]
    )
    console.finish(info(run, laid_out), run.summary)
    lines = (
        re.sub(r"\x1b\[[?\d;]*[a-zA-Z]", "", shown(console)).replace("\r", "\n").splitlines()
    )  # \r: the bar, drawn again
    for line in lines:
        one_word = width < 80 and len(line.split()) == 1  # words are never broken
        assert cell_len(line) <= width or one_word or str(long) in line.split()[0], line
    if width < 80:
        return
    table = next(line for line in lines if line.startswith(f"{'epoch':>{2 * len(str(epochs)) + 1}}  "))
    assert "lr" in table.split() and "step" in table.split(), "both fit at 80 columns"
    if type(task) is Classification and epochs <= 44:
        assert table.split()[-2:] == ["samples/s", "seconds"], "all columns fit at 80 columns"
    if width == 200:
        assert "seconds" in table


def test_a_file_has_a_line_for_each_fact(tmp_path: Path) -> None:
    laid_out, console = planned(VALUE, str(tmp_path / ("x" * 200))), pipe()
    console.planned(laid_out.lines())
    run = run_of(tmp_path / "a run", epochs=2, steps=46)
    console.finish(replace(info(run, laid_out), experiment=replace(VALUE, task=Regression())), run.summary)
    assert f"       raytrain predict '{run.path}' --split val\n" in shown(console), "the data may have no images"
    console.finish(replace(info(run, laid_out), kind="plain"), run.summary)
    assert shown(console).count(f"       raytrain predict '{run.path}' --split val\n") == 2, "float tensors are none"
    console.finish(info(run, laid_out), run.summary)
    out = shown(console).splitlines()
    assert f"     run  {laid_out.run}" in out and f"the run is in {run.path}" in out
    assert out[-4:] == [
        f"next:  raytrain evaluate '{run.path}'",
        f"       raytrain predict '{run.path}' IMAGE ...",
        f"       raytrain export '{run.path}' model.pth",
        f"       raytrain report '{run.path}'",
    ]


def test_the_console_prints_a_run_whose_experiment_is_gone(tmp_path: Path) -> None:
    console, run = pipe(), run_of(tmp_path, epochs=2, steps=46)
    (tmp_path / "experiment.json").unlink()
    laid_out = planned(replace(VALUE, task=LongNames(monitor="val_loss")))
    console.planned(laid_out.lines())
    console.finish(info(run, laid_out), run.summary)
    assert "completed: epoch 2 of 2" in shown(console)
    assert "raytrain predict" not in shown(console), "it is no classification"


def test_an_evaluation_fits_the_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    figures = {"mean_absolute_percentage_error_of_the_left_lung_and_of_the_right_lung": 1.5e-7, "学习率" * 10: 0.25}
    result = {"loss": 0.5, **figures, "nothing": float(np.nan), "count": 12345, "split": "val"}
    show_evaluation(
        {**result, "checkpoint": "step_1", "skipped": ["/a/" + "b" * 90, "c", "d", "e"]}, "/runs/" + "r" * 90
    )
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["step_1 on val, of", "/runs/" + "r" * 90]
    assert lines[2].split() == ["loss", "0.5000"] and "1.5e-07" in "".join(lines) and "12,345" in "".join(lines)
    assert all(cell_len(line) <= 80 or line.split()[0].startswith(("/runs/", "/a/")) for line in lines)
    assert lines[-1].split() == ["c,", "d", "and", "1", "more"]


def test_the_bar_moves_where_epochs_end_between_two_looks(tmp_path: Path) -> None:
    laid_out, console = planned(replace(VALUE, epochs=44)), terminal()
    console.planned(laid_out.lines())
    console.start(info(run_of(tmp_path), laid_out, []), Held())
    step = {"kind": "step", "step": 161, "epoch": 7, "loss": 1.0, "lr": 0.1}
    console.rows([step, {**ROW, "epoch": 7, "step": 161}])
    assert console._bar is not None and console._bar.epoch == "epoch 7/44"
    console.close()


def test_the_bar_leaves_room_for_the_echo_of_ctrl_c(tmp_path: Path) -> None:
    laid_out, console = planned(), terminal()
    console.planned(laid_out.lines())
    console.start(info(run_of(tmp_path), laid_out, []), Held())
    console.rows([{"kind": "step", "step": 16, "epoch": 1, "loss": 1.0, "lr": 0.1}])
    console.close()
    said = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "\r", shown(console))
    bars = [line for line in said.splitlines() if "━" in line]
    assert bars and all(cell_len(line.rstrip()) <= 77 for line in bars), bars


def test_a_notebook_has_one_line_that_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[tuple[str, str]] = []

    class Handle:
        def update(self, data: Mapping[str, str], raw: bool) -> None:
            shown.append(("again", data["text/plain"]))

    def display(data: Any, **how: Any) -> Handle:
        if how.get("display_id"):
            shown.append(("new", data["text/plain"]))
        return Handle()

    notebook = types.ModuleType("IPython.display")
    notebook.display = display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", notebook)
    console = Console(RichConsole(force_jupyter=True))
    laid_out = planned(replace(VALUE, epochs=44))
    console.planned(laid_out.lines())
    console.status("starting Ray")
    console.start(info(run_of(tmp_path), laid_out), Held())
    for step in (139, 140):
        console.rows([{"kind": "step", "step": step, "epoch": 7, "loss": 1.0, "lr": 0.1}])
    console.close()
    assert shown[0] == ("new", "starting Ray ...") and [kind for kind, _ in shown[1:]] == ["again"] * 3
    assert shown[2][1].startswith("epoch 7/44  step 140/1,012  loss 1.0000  lr 0.1") and shown[3][1] == ""
