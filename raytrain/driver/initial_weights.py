"""The weights that a run starts from: found or downloaded, checked in the plan, and loaded before the workers start."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from raytrain import order
from raytrain.checkpoint import layout
from raytrain.data import Index
from raytrain.driver import download
from raytrain.experiment import Experiment
from raytrain.files import expanded, is_url, write_atomically
from raytrain.models import Model
from raytrain.run.run import Run

REPORT = "logs/weights.txt"
"""The file of a run that names all tensors, where the plan's line leaves some out."""


def check(model: Model, module: nn.Module, classes: tuple[str, ...]) -> list[str]:
    """Check that the model's weights are there and fit.

    Args:
        module: the built model; it may be changed.
        classes: the data's.

    Returns:
        Notes for the plan.

    Raises:
        UserError: they are missing or do not fit.
    """
    fit = _local(model, classes).check_weights(module)
    if fit is None:
        return []
    return [fit.line() + (f" (all are named in the run's {REPORT})" if fit.shortened else "")]


def pretrained(e: Experiment, train_index: Index, path: Path) -> Any:
    """Return the state dict of a model that brings its own weights; None for other models, and for a run, in the
    directory `path`, that has a checkpoint."""
    if not e.model.brings_weights or any((path / "checkpoints").glob("step_*/manifest.json")):
        return None
    torch.manual_seed(order.key(e.seed, 0) >> 1)
    module = e.model.build(e.data.sample(train_index), len(train_index.classes))
    fit = _local(e.model, train_index.classes).load(module)
    if fit is not None and fit.shortened:
        (path / REPORT).parent.mkdir(exist_ok=True)
        write_atomically(path / REPORT, fit.text())
    return module.state_dict()


def _local(model: Model, classes: tuple[str, ...]) -> Model:
    """Return the model with the file that a URL or a run stands for; its head starts anew if the run has other classes.

    Raises:
        UserError: the download fails, or the run has no checkpoint.
    """
    if not model.declares_weights:
        return model
    named = model.weights
    if is_url(named) and download.is_file(named):
        return replace(model, weights=str(download.fetched(named)))
    if is_url(named) or expanded(named).is_dir():
        run = Run(named if is_url(named) else expanded(named))
        checkpoint = run.checkpoint()
        other = tuple(layout.load_state(checkpoint)["classes"]) != classes
        return replace(model, weights=str(checkpoint / layout.MODEL), **({"new_head": True} if other else {}))
    return model
