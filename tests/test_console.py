"""The console: what is printed of a run whose task monitors a metric of its own."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass, replace
from pathlib import Path

from commands import VALUE
from rich.console import Console as RichConsole

from raytrain import Classification, Run, experiment, plan
from raytrain.report.console import Console


@dataclass(frozen=True)
class Graded(Classification):
    """Classification that monitors its error."""

    directions = {"error": "min"}  # noqa: RUF012
    monitor: str = "val_error"


def test_the_table_and_the_closing_line_show_the_monitored_metric(tmp_path: Path) -> None:
    value = replace(VALUE, task=Graded())
    experiment.save(VALUE, tmp_path / "experiment.json")
    summary = {"status": "completed", "monitor": "val_error", "val_accuracy": 0.9877, "val_error": 0.0123}
    summary |= {"val_loss": 0.5, "best_epoch": 2, "epochs": 3, "steps": 9}
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    out = io.StringIO()
    console, run = Console(RichConsole(file=out, soft_wrap=True, width=200)), Run(tmp_path)
    console.started(run, plan.make(value, plan.local_resources, ""), [])
    row = {"kind": "epoch", "epoch": 1, "step": 3, "train_loss": 2.0, "val_loss": 0.5, "val_accuracy": 0.9877}
    console.rows([{**row, "val_error": 0.0123, "samples_per_second": 10.0, "seconds": 1.0}])
    console.finished(run)
    titles, figures, *rest = out.getvalue().splitlines()
    assert titles.split("  ")[-1].strip() == "seconds" and "val error" in titles and "0.0123" in figures
    assert "best val_error 0.0123, epoch 2 of " in rest[0] and "0.9877" not in rest[0]


def test_the_closing_line_of_an_interrupted_run_counts_the_planned_epochs(tmp_path: Path) -> None:
    value = replace(VALUE, epochs=3000)
    experiment.save(value, tmp_path / "experiment.json")
    summary = {"status": "interrupted", "val_accuracy": 0.5, "best_epoch": 2, "epochs": 2, "steps": 9}
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    out = io.StringIO()
    console, run = Console(RichConsole(file=out, soft_wrap=True, width=200)), Run(tmp_path)
    console.started(run, plan.make(value, plan.local_resources, ""), [])
    console.finished(run)
    assert "interrupted: step 9, best val_accuracy 0.5000, epoch 2 of 3,000" in out.getvalue()
