"""What the plan says of what a loss is given: the model's outputs, and the labels of mixed images."""

from __future__ import annotations

import torch
from torch import nn

from raytrain.data.batch import Batch
from raytrain.errors import UserError
from raytrain.experiment import Experiment
from raytrain.tasks.classification import Classification
from raytrain.user_code.places import place

_CLOSE = 1e-3
"""By how much a sum of probabilities may differ from 1, as that of half precision does."""


def notes(e: Experiment, module: nn.Module, batch: Batch) -> list[str]:
    """Return a line for the plan if the model gives probabilities to a cross entropy, which takes logits.

    Raises:
        UserError: images are mixed, and the loss takes the label of one of the two.
    """
    module.eval()
    with torch.no_grad():
        if e.data.augment.mixes and _takes_labels(e, module, batch):
            what = "the loss reads batch.labels, and mixup and cutmix give shares of two classes, batch.targets"
            how = "take `batch.labels if batch.targets is None else batch.targets`"
            raise UserError(what, f"in {place(type(e.task))}", how)
        if not isinstance(e.task, Classification) or not type(e.task).loss.__module__.startswith("raytrain."):
            return []
        outputs = e.task.forward(module, batch)
    if outputs.is_meta or bool((outputs < 0).any()) or bool(((outputs.sum(1) - 1).abs() > _CLOSE).any()):
        return []
    return ["the model gives probabilities, and the loss takes logits: leave softmax out, or the model learns badly"]


def _takes_labels(e: Experiment, module: nn.Module, batch: Batch) -> bool:
    """Return whether the loss changes with the labels, and not with the targets."""
    label, target = batch.labels, batch["target"]
    others = ({}, {"label": (label + 1) % target.shape[1]}, {"target": target.roll(1, dims=1)})
    found = []
    for changed in others:
        torch.default_generator.manual_seed(0)  # for a loss that draws random numbers
        try:
            found.append(float(e.task.loss(module, Batch(batch.arrays | changed, batch.ids))[0]))
        except Exception:  # such as of a loss that takes gradients
            return False
    return found[0] != found[1] and found[0] == found[2]
