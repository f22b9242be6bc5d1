"""What the plan notes of a loss: what it is given, and what it takes of the model."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import nn

from raytrain import errors
from raytrain.data.batch import Batch
from raytrain.errors import UserError
from raytrain.experiment import Experiment
from raytrain.tasks.classification import Classification
from raytrain.tasks.supervised import Supervised
from raytrain.user_code.places import place

_CLOSE = 1e-3
"""By how much a sum of probabilities may differ from 1, as that of half precision does."""


def notes(e: Experiment, module: nn.Module, batch: Batch) -> list[str]:
    """Return lines for the plan: of a model that gives probabilities to a cross entropy, which takes logits, and of a
    task that takes parts of the model.

    Raises:
        UserError: images are mixed, and the loss takes the label of one of the two.
    """
    module.eval()
    with torch.no_grad():
        if e.data.augment.mixes and "label" in batch.arrays and _takes_labels(e, module, batch):
            what = "the loss reads batch.labels, and mixup and cutmix give shares of two classes, batch.targets"
            how = "take `batch.labels if batch.targets is None else batch.targets`"
            if type(e.task).loss is Supervised.loss:
                how += " in wanted()"  # which gives a training_loss its target
            raise UserError(what, f"in {place(type(e.task))}", how)
        kind = type(e.task)
        methods = (kind.forward, kind.loss, getattr(kind, "training_loss", kind.loss))
        calls, *own = (not method.__module__.startswith("raytrain.") for method in methods)
        found = _parts(e, module, batch) if calls or any(own) else []
        if any(own) or not isinstance(e.task, Classification):
            return found
        outputs = e.task.forward(module, batch)
    if outputs.is_meta or bool((outputs < 0).any()) or bool(((outputs.sum(1) - 1).abs() > _CLOSE).any()):
        return found
    return [
        *found,
        "the model gives probabilities, and the loss takes logits: leave softmax out, or the model learns badly",
    ]


class _Called(nn.Module):
    """A model that can be called, as in DistributedDataParallel; notes what else is asked of it."""

    def __init__(self, module: nn.Module):
        super().__init__()
        self.module = module
        self.asked: dict[str, None] = {}

    def forward(self, *inputs: Any, **named: Any) -> Any:
        return self.module(*inputs, **named)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            found = getattr(self.module, name)
            self.asked[name] = None  # not of a part that it lacks, after which a task may ask
            return found


def _parts(e: Experiment, module: nn.Module, batch: Batch) -> list[str]:
    """Return a line if a task of the user's takes parts of the model, which DistributedDataParallel does not have."""
    called = _Called(module)
    try:
        e.task.loss(called, batch)
    except Exception:  # such as of a loss that takes gradients
        return []
    if not called.asked:
        return []
    what = f"{type(e.task).__name__} takes {errors.listed([f'model.{name}' for name in called.asked])}"
    how = "let the model return what the loss needs"
    return [f"{what}, and on several GPUs it gets DistributedDataParallel, which can only be called: {how}"]


def of_mean(e: Experiment, module: nn.Module, batch: Batch, count: float, where: str) -> list[str]:
    """Check that the user's loss counts the same for every sample, and that it is no mean over them.

    Args:
        count: what it has counted for the batch.
        where: the place of its code.

    Returns:
        A note about a mean.

    Raises:
        UserError: it counts another number.
    """
    doubled = {name: torch.cat([array, array]) for name, array in batch.arrays.items()}
    twice = Batch(doubled, np.concatenate([batch.ids, batch.ids]))
    try:
        module.eval()
        with torch.no_grad():
            once, _ = e.task.loss(module, batch)
            again, counted = e.task.loss(module, twice)
        same = math.isclose(float(once), float(again), rel_tol=1e-4) and abs(float(once)) > 1e-6
    except Exception:  # such as of a loss that takes gradients, or samples of a fixed number
        return []
    if counted != 2 * count:
        what = f"loss() counts {count:g} for {len(batch)} samples and {counted:g} for {len(twice)}"
        how = "count the same for every sample: write `return loss, len(batch)`, with the loss summed over them"
        raise UserError(what, where, how)
    if not same:
        return []
    return [
        f"the loss does not grow with the batch, {where}: if it is a mean over samples, return their sum "
        '(reduction="sum"), since it is divided by the count'
    ]


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
