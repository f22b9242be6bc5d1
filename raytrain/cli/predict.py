"""The command predict."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from raytrain import errors
from raytrain.cli.flags.predict import Prediction
from raytrain.report.progress import Bar
from raytrain.run.run import Run
from raytrain.sweep import cross_validation
from raytrain.tools import batch_predict, columns, folds, inference, listing


def predict(wanted: Prediction) -> int:
    """Predict images, a table or a split; print rows, write a file, or write a result in parts. The exit status is 1 if
    a worker failed."""
    found = cross_validation.opened(wanted.run, wanted.split, wanted.root)
    whole = isinstance(found, Run)
    if wanted.out is not None and wanted.in_parts:
        if not whole:
            what = "a cross-validation is predicted by one process, which writes a file"
            raise errors.UserError(what, f"got --out {wanted.out}", "write --out predictions.parquet")
        return _predict_in_parts(found, wanted, wanted.out)
    more = {"split": wanted.split, "features": wanted.features, "folder": wanted.folder}
    with Bar("predict") as bar:
        if whole:
            rows = inference.predict(
                found, wanted.images, wanted.checkpoint, wanted.tta, root=wanted.root, follow=bar.follow, **more
            )
        else:
            rows = folds.predict(found, wanted.images, wanted.checkpoint, wanted.tta, follow=bar.follow, **more)
    run = found if whole else next(iter(found.values()))
    classes = run.experiment.task.class_names(run.classes(wanted.checkpoint))
    if wanted.out is None:
        for row in rows:
            cells = (_cell(name, value, classes) for name, value in row.items())
            print("  ".join(text for text in cells if text is not None))
    else:
        columns.write(rows, classes, Path(wanted.out))
        print(f"wrote {len(rows)} {'predictions' if wanted.features is None else 'feature vectors'} to {wanted.out}")
    _tell(listing.left_out(wanted.images))
    return 0


def _predict_in_parts(run: Run, wanted: Prediction, out: str) -> int:
    try:
        with Bar("predict") as bar:
            found = batch_predict.predict(
                run, wanted.images, out, wanted.spread, wanted.checkpoint, wanted.tta, wanted.features, bar.follow
            )
    except batch_predict.PredictionFailed as error:
        print(f"error: a worker failed: {error}; correct it, and the same command goes on", file=sys.stderr)
        return 1
    print(_line(found, out.partition("?")[0]))
    _tell(found.left_out)
    return 0


def _line(found: batch_predict.Progress, out: str) -> str:
    """Return what was written."""
    before = f", {found.before} of them before" if found.before else ""
    bad = f"; {found.bad} could not be read (see the column `error`)" if found.bad else ""
    return f"wrote {found.done} images to {out}{before}{bad}"


def _tell(left_out: Sequence[str]) -> None:
    """Tell on stderr which files are left out: rows on stdout may go into another program."""
    if left_out:
        print(listing.told(left_out), file=sys.stderr)


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
    shown = f"{value:.4f}" if isinstance(value, float) else errors.one_line(str(value)) or "(none)"
    return f"{name}={shown}" if name == "loss" or name.startswith("true_") else shown
