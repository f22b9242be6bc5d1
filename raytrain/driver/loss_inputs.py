"""What the plan notes of a model's last layer."""

from __future__ import annotations

import torch
from torch import nn

from raytrain.data.batch import Batch
from raytrain.experiment import Experiment
from raytrain.tasks.classification import Classification

_CLOSE = 1e-3
"""By how much a sum of probabilities may differ from 1, as that of half precision does."""


def notes(e: Experiment, module: nn.Module, batch: Batch) -> list[str]:
    """Return a line for the plan if the model gives probabilities to a cross entropy, which takes logits."""
    if not isinstance(e.task, Classification) or not type(e.task).loss.__module__.startswith("raytrain."):
        return []
    module.eval()
    with torch.no_grad():
        outputs = e.task.forward(module, batch)
    if bool((outputs < 0).any()) or bool(((outputs.sum(1) - 1).abs() > _CLOSE).any()):
        return []
    return ["the model gives probabilities, and the loss takes logits: leave softmax out, or training is slow"]
