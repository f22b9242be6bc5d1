"""Test-time augmentation: an image's answer is the mean of the probabilities of several views of it."""

from __future__ import annotations

from copy import copy

import numpy as np
import torch
from torch import nn

from raytrain import errors
from raytrain.data import Index
from raytrain.data.batch import Batch
from raytrain.data.prepare import Prepare, Tensors
from raytrain.experiment import Experiment
from raytrain.tasks.classification import Classification
from raytrain.tasks.task import Task


def check_tta(tta: str, e: Experiment, kind: str) -> int:
    """Return the number of views of each image: 1 without test-time augmentation.

    Args:
        tta: empty, `flip` or a number.
        kind: of the model's input.

    Raises:
        UserError: it is something else, or the run's task or augmentation does not suit it.
    """
    if not tta:
        return 1
    if tta != "flip" and not (tta.isdecimal() and 2 <= int(tta) <= 1000):
        raise errors.UserError(
            f"tta must be flip or a number of views from 2 to 1000, got {tta!r}", "", "take flip, or 8"
        )
    if not isinstance(e.task, Classification) or kind != "image":
        what = "tta averages probabilities of classes of images, and this run's task or input is another"
        raise errors.UserError(what, "", "leave it out")
    augment = e.data.augment
    changes = (
        augment.crop != "center" or augment.flip or augment.policy != "none" or augment.erase or augment.operations
    )
    if tta != "flip" and not changes:
        what = "tta with a number takes views by the run's augmentation, and that changes no image by itself"
        raise errors.UserError(what, "in data.augment", "take flip")
    return 2 if tta == "flip" else int(tta)


class Views(Prepare):
    """Prepare several views of each image for `averaged`: float32 [n, views, channels, height, width]; also of masks
    and of further images, which are flipped and cropped alike.

    The first view is the image as it is evaluated without. The others are its mirror image (`flip`), or the image
    after the run's augmentation in epochs 1, 2, ...

    Args:
        like: prepares one view.
        tta: see `check_tta`.
        views: their number.
    """

    def __init__(self, like: Prepare, tta: str, views: int, seed: int):
        super().__init__(like.data, like.index, like.device, like.memory_format)
        self.tta, self.views, self.seed = tta, views, seed

    def evaluated(self, arrays: Tensors, keys: np.ndarray) -> Tensors:
        """Return the arrays of samples with all views of their images."""
        found = self.plain(arrays)
        moved = [field.name for field in self.fields if field.kind != "plain"]
        if self.tta == "flip":
            others = [{name: found[name].flip(-1) for name in moved}]
        else:
            others = [self.augmented(arrays, keys, self.seed, e, mixed=False) for e in range(1, self.views)]
        return found | {name: torch.stack([found[name], *(one[name] for one in others)], dim=1) for name in moved}


def averaged(task: Task, model: nn.Module, index: Index, layout: torch.memory_format) -> tuple[Task, nn.Module]:
    """Return a task and a model that answer for samples of `Views` with the mean over their views.

    Args:
        index: for the fields of the samples.
        layout: the memory format of images.
    """
    if not task.gives_more:  # whatever of the task calls the model gives it the images alone
        return task, _Averaged(model, layout)
    kinds = {field.name: field.kind for field in index.fields}

    def view(number: int, batch: Batch) -> Batch:
        arrays = dict(batch.arrays)
        for name, kind in kinds.items():
            if kind != "plain":
                one = arrays[name][:, number]
                arrays[name] = one.contiguous(memory_format=layout) if kind == "image" else one.contiguous()
        return Batch(arrays, batch.ids)

    def forward(model: nn.Module, batch: Batch) -> torch.Tensor:
        return _mean([type(task).forward(task, model, view(k, batch)) for k in range(batch.input.shape[1])])

    task = copy(task)
    vars(task)["forward"] = forward  # a task is frozen
    return task, model


class _Averaged(nn.Module):
    """A classifier of views.

    Args:
        model: returns logits [n, classes].
        layout: the memory format of its input.
    """

    def __init__(self, model: nn.Module, layout: torch.memory_format):
        super().__init__()
        self.model, self.layout = model, layout

    def forward(self, views: torch.Tensor) -> torch.Tensor:
        """Return float32 [n, classes] for [n, views, channels, height, width]."""
        return _mean([self.model(view.contiguous(memory_format=self.layout)) for view in views.unbind(1)])


def _mean(logits: list[torch.Tensor]) -> torch.Tensor:
    """Return the logarithm of the mean over views of the probabilities, float32 [n, classes]."""
    shares = torch.stack([one.float().softmax(dim=1) for one in logits]).mean(dim=0)
    return shares.clamp_min(torch.finfo(torch.float32).tiny).log()
