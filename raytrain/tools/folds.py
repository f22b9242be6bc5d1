"""A cross-validation as a whole: each of its own samples is evaluated and predicted by the model of the fold that left
it out, and other samples by all models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from raytrain import errors
from raytrain.run.run import Run
from raytrain.tasks.task import Task
from raytrain.tools import inference
from raytrain.tools.measured import Measured


def evaluate(
    runs: Mapping[int, Run],
    split: str = "val",
    which: str = "best",
    tta: str = "",
    *,
    by: str = "",
    follow: inference.Follow | None = None,
) -> dict[str, Any]:
    """Evaluate all samples that the folds left out (`val`), or those of the split test by the mean of all models'
    answers.

    Args:
        runs: by fold.
        which, tta, by, follow: as for `inference.evaluate`.

    Returns:
        What `inference.evaluate` returns, of all samples; and for `val` `folds`, the metrics and `count` of each fold,
        for `test` `models`, their number.

    Raises:
        UserError: as of `inference.evaluate`, or the run's task averages no answers.
    """
    if split != "val":
        run, model = _together(runs, which)
        found = inference.evaluate(run, None, split, which, tta, by=by, follow=follow, model=model)
        return found | {"checkpoint": which, "models": len(runs)}
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
    paths: Sequence[str] = (),
    which: str = "best",
    tta: str = "",
    *,
    split: str | None = None,
    features: str | None = None,
    folder: str = "",
    follow: inference.Follow | None = None,
) -> list[dict[str, Any]]:
    """Predict all samples that the folds left out (`val`); or those of the split test, or images, by the mean of all
    models' answers.

    Args:
        runs: by fold.
        paths, which, tta, features, folder, follow: as for `inference.predict`.

    Returns:
        The rows of `inference.predict`; for `val` with `fold` after the sample's name.

    Raises:
        UserError: as of `inference.predict`, or the run's task averages no answers.
    """
    if split != "val":
        if features is not None:
            raise errors.UserError("the models of several folds have no features in common", "", "use that of one fold")
        run, model = _together(runs, which)
        return inference.predict(run, paths, which, tta, split=split, folder=folder, follow=follow, model=model)
    found = []
    for fold, run in runs.items():
        for row in inference.predict(run, (), which, tta, split="val", features=features, follow=follow):
            key = next(iter(row))  # `path` or `sample`
            found.append({key: row[key], "fold": fold} | row)
    return found


def _together(runs: Mapping[int, Run], which: str) -> tuple[Run, nn.Module]:
    """Return a run for its data and task, and a model that answers as all folds' models do together."""
    models = [run.model(which) for run in runs.values()]
    first = next(iter(runs.values()))
    return first, _Together(models, first.experiment.task)


class _Together(nn.Module):
    """The mean of several models' answers."""

    def __init__(self, models: Sequence[nn.Module], task: Task):
        super().__init__()
        self.models, self.task = nn.ModuleList(models), task

    def forward(self, *inputs: torch.Tensor, **more: torch.Tensor) -> torch.Tensor:
        """Return the answers [n, ...] that each of the models gives for such inputs."""
        return self.task.mean_of_views([model(*inputs, **more) for model in self.models])
