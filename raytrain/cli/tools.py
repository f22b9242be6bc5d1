"""The commands lr, batch, evaluate, predict and export."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from raytrain import errors
from raytrain.driver.observe import watched
from raytrain.experiment import Experiment
from raytrain.loggers import Logger
from raytrain.optim.schedules import Rising
from raytrain.report import batch as batch_report
from raytrain.report import card
from raytrain.report import lr as lr_report
from raytrain.report import parts as parts_report
from raytrain.report.console import show_evaluation
from raytrain.report.output import aside_where
from raytrain.run.run import Run
from raytrain.tools import batch_predict, batch_size, batch_trials, columns, inference, lr_range
from raytrain.tools import export as exporting
from raytrain.tools.batch_settings import Settings
from raytrain.tools.output import write_file


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
    with aside_where(as_json), watched(Logger() if as_json else batch_report.Spinner()) as observer:
        found = batch_trials.find(value, search, source, observer)
    if as_json:
        print(batch_report.to_json(found, value, following))
    else:
        batch_report.show(found, value, following)


def evaluate(run: Run, root: str | None, split: str, which: str, tta: str, as_json: bool) -> None:
    """Evaluate a checkpoint and print its metrics."""
    with aside_where(as_json):
        result = inference.evaluate(run, root, split, which, tta)
    if as_json:
        print(json.dumps(columns.for_json(result)))
    else:
        show_evaluation(result, run.where)


def predict(
    run: Run,
    images: list[str],
    out: str | None,
    which: str,
    tta: str,
    split: str | None,
    features: str | None,
    folder: str,
    spread: Settings | None,
) -> int:
    """Predict images, a table or a split; print rows, write a file, or write a result in parts. The exit status is 1 if
    a worker failed."""
    if out is not None and spread is not None:
        return _predict_in_parts(run, images, out, spread, which, tta, features)
    rows = inference.predict(run, images, which, tta, split=split, features=features, folder=folder)
    classes = run.experiment.task.class_names(run.classes(which))
    if out is None:
        for row in rows:
            cells = (_cell(name, value, classes) for name, value in row.items())
            print("  ".join(text for text in cells if text is not None))
    else:
        inference.write_predictions(rows, classes, Path(out))
        print(f"wrote {len(rows)} {'predictions' if features is None else 'feature vectors'} to {out}")
    return 0


def _predict_in_parts(
    run: Run, images: list[str], out: str, spread: Settings, which: str, tta: str, features: str | None
) -> int:
    where = out.partition("?")[0]
    try:
        with parts_report.Bar() as bar:
            found = batch_predict.predict(run, images, out, spread, which, tta, features, bar.follow)
    except batch_predict.PredictionFailed as error:
        print(f"error: a worker failed: {error}; correct it, and the same command goes on", file=sys.stderr)
        return 1
    print(parts_report.line(found, where))
    return 0


def _cell(name: str, value: Any, classes: tuple[str, ...]) -> str | None:
    """Return a prediction's column for a table: of a mask the classes' shares, "(none)" where a sample has no label;
    None for one that only a file has."""
    if name == "probabilities":
        return None
    if name == "mask":
        found, counts = np.unique(value, return_counts=True)
        names = [classes[each] if each < len(classes) else str(each) for each in found.tolist()]
        shares = zip(names, counts.tolist(), strict=True)
        return errors.one_line(" ".join(f"{each}:{count / value.size:.3f}" for each, count in shares))
    return f"{value:.4f}" if isinstance(value, float) else errors.one_line(str(value)) or "(none)"


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
