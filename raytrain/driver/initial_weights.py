"""Pretrained weights of a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from raytrain import order
from raytrain.data import Index
from raytrain.experiment import Experiment
from raytrain.models import Model


def pretrained(e: Experiment, train_index: Index, path: Path) -> Any:
    """Return the state dict of a model that brings its own weights; None for other models, and for a run, in the
    directory `path`, that has a checkpoint."""
    if type(e.model).load is Model.load or any((path / "checkpoints").glob("step_*/manifest.json")):
        return None
    torch.manual_seed(order.key(e.seed, 0) >> 1)
    module = e.model.build(e.data.sample(train_index), len(train_index.classes))
    e.model.load(module)
    return module.state_dict()
