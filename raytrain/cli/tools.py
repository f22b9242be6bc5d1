"""The commands lr, batch, evaluate, predict and export."""

from __future__ import annotations

import json
import math
from pathlib import Path

from raytrain.driver.observe import watched
from raytrain.experiment import Experiment
from raytrain.loggers import Logger
from raytrain.optim.schedules import Rising
from raytrain.report import batch as batch_report
from raytrain.report import lr as lr_report
from raytrain.report.console import show_evaluation
from raytrain.run.run import Run
from raytrain.tools import batch_size, batch_trials, inference, lr_range


def lr(path: Path, value: Experiment, rising: Rising, file: Path | None, following: list[str]) -> None:
    """Find a learning rate, and print the command that trains with it."""
    with watched(lr_report.Bar(rising.steps)) as observer:
        curve = lr_range.find(value, rising, observer)
    if file:
        lr_report.write(curve, path, file)
    lr_report.show(curve, file, following, value.lr / value.optimizer.lr)


def batch(
    value: Experiment, search: batch_size.Search, source: Path | None, as_json: bool, following: list[str]
) -> None:
    """Find a micro-batch size, and print the command that trains with it."""
    with watched(Logger() if as_json else batch_report.Spinner()) as observer:
        found = batch_trials.find(value, search, source, observer)
    if as_json:
        print(batch_report.to_json(found, value, following))
    else:
        batch_report.show(found, value, following)


def evaluate(run: Run, root: str | None, split: str, which: str, tta: str, as_json: bool) -> None:
    """Evaluate a checkpoint and print its metrics."""
    result = inference.evaluate(run, root, split, which, tta)
    if as_json:
        finite = {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in result.items()
        }
        print(json.dumps(finite))  # JSON has no NaN; metrics.jsonl has null there too
    else:
        show_evaluation(result, run.where)


def predict(run: Run, images: list[str], out: Path | None, which: str, tta: str) -> None:
    """Classify images; print a table or write a file."""
    rows = inference.predict(run, images, which, tta)
    if out is None:
        for row in rows:
            print(f"{row['path']}  {row['label']}  {row['probability']:.4f}")
    else:
        inference.write_predictions(rows, run.classes(which), out)
        print(f"wrote {len(rows)} predictions to {out}")


def export(run: Run, file: Path, which: str) -> None:
    """Write a run's weights."""
    inference.export(run, file, which)
    print(f"wrote {file}")
