"""The commands lr, batch, evaluate and export."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from raytrain.driver.observe import watched
from raytrain.experiment import Experiment
from raytrain.loggers import Logger
from raytrain.optim.schedules import Rising
from raytrain.report import card
from raytrain.report import lr as lr_report
from raytrain.report import micro_batch as batch_report
from raytrain.report.console import show_evaluation
from raytrain.report.output import aside_where
from raytrain.report.progress import Bar
from raytrain.run.run import Run
from raytrain.sweep import cross_validation
from raytrain.tools import columns, folds, inference, lr_range, micro_batch, micro_batch_trials
from raytrain.tools import export as exporting
from raytrain.tools.output import write_file


def lr(path: Path, value: Experiment, rising: Rising, file: Path | None, as_json: bool, following: list[str]) -> None:
    """Find a learning rate, and print the command that trains with it."""
    with aside_where(as_json), watched(Logger() if as_json else lr_report.Bar(rising.steps)) as observer:
        curve = lr_range.find(value, rising, observer)
    if file:
        lr_report.write(curve, path, file)
    scale = value.lr / value.optimizer.lr
    if as_json:
        print(lr_report.to_json(curve, file, following, scale))
    else:
        lr_report.show(curve, file, following, scale)


def batch(
    value: Experiment, search: micro_batch.Search, source: Path | None, as_json: bool, following: list[str]
) -> None:
    """Find a micro-batch size, and print the command that trains with it."""
    with aside_where(as_json), watched(Logger() if as_json else batch_report.Spinner()) as observer:
        found = micro_batch_trials.find(value, search, source, observer)
    if as_json:
        print(batch_report.to_json(found, value, following))
    else:
        batch_report.show(found, value, following)


def evaluate(place: str, root: str | None, split: str, which: str, tta: str, by: str, as_json: bool) -> None:
    """Evaluate a checkpoint, or all folds of a cross-validation, and print the metrics."""
    found = cross_validation.opened(place, split, root)
    with aside_where(as_json), Bar("evaluate", shown=not as_json) as bar:
        if isinstance(found, Run):
            result = inference.evaluate(found, root, split, which, tta, by=by, follow=bar.follow)
        else:
            result = folds.evaluate(found, split, which, tta, by=by, follow=bar.follow)
    if as_json:
        print(json.dumps(columns.for_json(result)))
    else:
        show_evaluation(result, place)


def export(run: Run, file: Path, which: str) -> int:
    """Write a run's weights or a program, and its model card. The exit status is 1 if the program's outputs differ from
    the model's."""
    beside = card.place(file)
    found = exporting.export(run, file, which)
    if found and not found.holds:
        print(
            f"error: {file} is not written: its outputs differ from the model's by up to {found.difference:.1e} on "
            f"{found.samples} validation samples; export .pth or .safetensors",
            file=sys.stderr,
        )
        return 1
    write_file(beside, card.text(run, file, which, found).encode())
    print(f"wrote {file} and {beside.name}")
    if found:
        print(f"greatest difference to the run's model: {found.difference:.1e} on {found.samples} validation samples")
    return 0
