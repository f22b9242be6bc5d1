"""Test-time augmentation: an image's answer is the mean of those to several views of it."""

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
from raytrain.tasks.segmentation import Segmentation
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
    if kind != "image":
        raise errors.UserError("--tta takes views of images, and this run's input is another", "", "leave it out")
    if type(e.task).mean_of_views is Task.mean_of_views:
        e.task.mean_of_views([])  # which says what is missing
    if tta != "flip" and _mask(e.task) is not None:
        what = "--tta with a number moves the pixels of an image, whose classes are asked for"
        raise errors.UserError(what, "", "take flip")
    if tta != "flip" and not e.data.augment.alters:
        what = "tta with a number takes views by the run's augmentation, and that changes no image by itself"
        raise errors.UserError(what, "in data.augment", "take flip")
    return 2 if tta == "flip" else int(tta)


class Views(Prepare):
    """Prepare several views of each image for `averaged`: float32 [n, views, channels, height, width]; also of masks
    and of further images, which are flipped and cropped alike, but for the mask that a task asks for.

    The first view is the image as it is evaluated without. The others are its mirror image (`flip`), or the image
    after the run's augmentation in epochs 1, 2, ...

    Args:
        like: prepares one view.
        tta: see `check_tta`.
        views: their number.
    """

    def __init__(self, like: Prepare, tta: str, views: int, seed: int, task: Task):
        super().__init__(like.data, like.index, like.device, like.memory_format)
        self.tta, self.views, self.seed = tta, views, seed
        self.moved = moved(self.index, task)

    def evaluated(self, arrays: Tensors, keys: np.ndarray) -> Tensors:
        """Return the arrays of samples with all views of their images."""
        found = self.plain(arrays)
        if self.tta == "flip":
            others = [{name: found[name].flip(-1) for name in self.moved}]
        else:
            others = [self.augmented(arrays, keys, self.seed, e, mixed=False) for e in range(1, self.views)]
        return found | {name: torch.stack([found[name], *(one[name] for one in others)], dim=1) for name in self.moved}


def moved(index: Index, task: Task) -> dict[str, str]:
    """Return the kinds of the fields that a sample has of each view, by name."""
    mask = _mask(task)
    return {field.name: field.kind for field in index.fields if field.kind != "plain" and field.name != mask}


def _mask(task: Task) -> str | None:
    """Return the field that a task's answers are compared with pixel by pixel; None of one that answers for a whole
    image, which each of its views may stand for."""
    return task.mask if isinstance(task, Segmentation) else None


def averaged(task: Task, model: nn.Module, index: Index, layout: torch.memory_format) -> tuple[Task, nn.Module]:
    """Return a task and a model that answer for samples of `Views` with the mean over their views.

    By default the model averages: a task of the user's may call it without `forward`. A `forward` of the task's own is
    called once for each view, since the model alone does not know which of its arguments have views.

    Args:
        index: for the fields of the samples.
        layout: the memory format of images.
    """
    if not task.gives_more:
        return task, _Averaged(model, layout, task)
    kinds = moved(index, task)

    def view(number: int, batch: Batch) -> Batch:
        arrays = dict(batch.arrays)
        for name, kind in kinds.items():
            one = arrays[name][:, number]
            arrays[name] = one.contiguous(memory_format=layout) if kind == "image" else one.contiguous()
        return Batch(arrays, batch.ids)

    def forward(model: nn.Module, batch: Batch) -> torch.Tensor:
        return _mean(task, [type(task).forward(task, model, view(k, batch)) for k in range(batch.input.shape[1])])

    task = copy(task)
    vars(task)["forward"] = forward  # a task is frozen
    return task, model


class _Averaged(nn.Module):
    """A model of views.

    Args:
        layout: the memory format of its input.
        task: averages what it returns.
    """

    def __init__(self, model: nn.Module, layout: torch.memory_format, task: Task):
        super().__init__()
        self.model, self.layout, self.task = model, layout, task

    def forward(self, views: torch.Tensor) -> torch.Tensor:
        """Return the answers [n, ...] for [n, views, channels, height, width]."""
        found = [self.model(view.contiguous(memory_format=self.layout)) for view in views.unbind(1)]
        return _mean(self.task, found)


def _mean(task: Task, outputs: list[torch.Tensor]) -> torch.Tensor:
    """Return the mean of the answers to views. Those for the pixels of mirror images are turned back before."""
    if _mask(task) is not None:
        outputs = [outputs[0], *(one.flip(-1) for one in outputs[1:])]
    return task.mean_of_views(outputs)
