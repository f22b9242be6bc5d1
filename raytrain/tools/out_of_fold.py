"""A cross-validation as a whole: each sample is evaluated and predicted by the model of the fold that left it out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from raytrain.run.run import Run
from raytrain.tools import inference
from raytrain.tools.measured import Measured


def evaluate(
    runs: Mapping[int, Run], which: str = "best", tta: str = "", *, by: str = "", follow: inference.Follow | None = None
) -> dict[str, Any]:
    """Evaluate all samples of a cross-validation.

    Args:
        runs: by fold.
        which, tta, by, follow: as for `inference.evaluate`.

    Returns:
        What `inference.evaluate` returns, of all samples; and `folds`, the metrics and `count` of each fold.

    Raises:
        UserError: as of `inference.evaluate`.
    """
    whole: Measured | None = None
    folds: dict[str, dict[str, Any]] = {}
    for fold, run in runs.items():
        one = inference.measured(run, which=which, tta=tta, by=by, follow=follow)
        folds[str(fold)] = one.metrics()
        whole = one if whole is None else whole.merged(one)
    assert whole is not None  # a cross-validation has at least two folds
    return {**whole.figures(), "checkpoint": which, "folds": folds}


def predict(
    runs: Mapping[int, Run],
    which: str = "best",
    tta: str = "",
    *,
    features: str | None = None,
    follow: inference.Follow | None = None,
) -> list[dict[str, Any]]:
    """Predict all samples of a cross-validation.

    Args:
        runs: by fold.
        which, tta, features, follow: as for `inference.predict`.

    Returns:
        The rows of `inference.predict` for each sample, with `fold` after its name.

    Raises:
        UserError: as of `inference.predict`.
    """
    found = []
    for fold, run in runs.items():
        for row in inference.predict(run, (), which, tta, split="val", features=features, follow=follow):
            key = next(iter(row))  # `path` or `sample`
            found.append({key: row[key], "fold": fold} | row)
    return found
