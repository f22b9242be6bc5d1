"""The checks of a distillation's teacher: its outputs must mean the student's classes, its input the same images."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from raytrain import errors
from raytrain.data import Data, Field, Index
from raytrain.experiment import Experiment
from raytrain.files import expanded
from raytrain.run.exported import classes_of, gets_more, normalisation_of, open_model, sample_of, sha256_of
from raytrain.tasks.distillation import Distillation
from raytrain.tasks.task import Task
from raytrain.training import memory
from raytrain.user_code import places


def check_all(e: Experiment, index: Index, epochs: float, new: bool) -> None:
    """Check the classes and the inputs of the task's teacher, where it has one, the sizes that it takes, and of a new
    run its images.

    Args:
        index: the training samples.
        epochs: of the whole run.

    Raises:
        UserError: they are not the student's.
    """
    check(e.task, index.classes)
    check_inputs(e.task)
    if new:
        check_normalisation(e.task, e.data, index.input)
    check_sizes(e, e.data.sample(index), index.input.seen_as, epochs)


def check(task: Task, classes: tuple[str, ...]) -> None:
    """Check that the task's teacher, where it has one, was trained on the same classes in the same order. Of a file
    without the names of classes, the first step compares the number of outputs.

    Args:
        classes: the data's.

    Raises:
        UserError: it was not, or there is no such run.
    """
    if not isinstance(task, Distillation):
        return
    known = classes_of(task.teacher)
    if not known or known == classes:
        return
    lacks, more = [name for name in classes if name not in known], [name for name in known if name not in classes]
    parts = [f"it lacks {errors.listed(lacks)}"] if lacks else []
    parts += [f"the data lacks {errors.listed(more)}"] if more else []
    what = f"the teacher knows other classes than the data has: {' and '.join(parts)}"
    if not parts:
        place = next(place for place, name in enumerate(known) if name != classes[place])
        what = "the teacher has the data's classes in another order: "
        what += f"class {place} is {known[place]!r} there, and {classes[place]!r} in the data"
    raise errors.UserError(
        what, f"in task.teacher {task.teacher}", "take a teacher of the same classes, in their order"
    )


def check_inputs(task: Task) -> None:
    """Check that the task's teacher, where it has one, takes images alone: it gets the batch's input, also where the
    task's `forward` gives the student more.

    Raises:
        UserError: it takes more.
    """
    if isinstance(task, Distillation) and gets_more(task.teacher):
        what = "the teacher was trained on several inputs, and Distillation gives it the data's first field alone"
        raise errors.UserError(what, f"in task.teacher {task.teacher}", "take a teacher of one input")


def check_normalisation(task: Task, data: Data, image: Field) -> None:
    """Check that the task's teacher, where it has one, was trained on images with the data's mean and std: it gets the
    student's batches. Of a file that does not note them, nothing is known.

    Args:
        data: the student's.
        image: the model's input.

    Raises:
        UserError: it was trained on others.
    """
    if not isinstance(task, Distillation) or image.kind != "image":
        return
    known, channels = normalisation_of(task.teacher), image.shape[0]
    if known is None:
        return
    for name, of_teacher, own in zip(("mean", "std"), known, data.normalisation(channels), strict=True):
        if _each(of_teacher, channels) == _each(own, channels):
            continue
        what = f"the teacher was trained on images with {name} {_listed(of_teacher)}, and the data has {_listed(own)}"
        how = f"--data.mean {_listed(known[0])} --data.std {_listed(known[1])}"
        how = f"let both have the same, as by {how}: the teacher sees the student's batches"
        raise errors.UserError(what, f"in task.teacher {task.teacher}", how)


def check_sizes(e: Experiment, sample: tuple[int, ...], dtype: str, epochs: float) -> None:
    """Check that the task's teacher, where it has one, takes samples of other sizes than it was trained on: the
    student's, and those of progressive resizing. It gets the student's batches.

    Args:
        sample: the shape of a sample as the student sees it in validation.
        dtype: of its input.
        epochs: of the whole run.

    Raises:
        UserError: it does not.
    """
    if not isinstance(e.task, Distillation):
        return
    known, grows = sample_of(e.task.teacher), e.data.augment.progressive
    sides = grows.sides(math.ceil(epochs), sample[-1]) if grows.on else {}
    sizes = [size for size in (sample, *((*sample[:-2], side, side) for side in sides)) if size != known]
    if not sizes:
        return
    model = open_model(e.task.teacher)
    for size in dict.fromkeys(sizes):
        try:
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                model(torch.zeros(2, *size, dtype=getattr(torch, dtype)))
        except Exception as error:
            if memory.lacks(error):
                return
            was = f", and was trained on {list(known)}" if known else ""
            what = f"the teacher cannot take the student's samples of {list(size)}{was}: {places.reason(error)}"
            how = "leave out --data.augment.progressive" if size != sample else "set --data.crop to its size"
            how = f"take a teacher of such samples, or {how}: the teacher sees the student's batches"
            raise errors.UserError(what, f"in task.teacher {e.task.teacher}", how) from None


def noted(task: Task) -> dict[str, str]:
    """Return what `environment.json` notes of the task's teacher: the sha256 of its weights, where it has one."""
    return {"teacher_sha256": sha256_of(task.teacher)} if isinstance(task, Distillation) else {}


def check_same(before: Task, task: Task, began_with: Mapping[str, Any]) -> None:
    """Check that the teacher of a run that goes on is the one that it began with, perhaps in another place.

    Args:
        before: the run's task, and `task` the one to go on with.
        began_with: `environment.json`.

    Raises:
        UserError: it has other weights, or has another path and the run, an older one, does not note its weights.
    """
    if not isinstance(task, Distillation) or not isinstance(before, Distillation):
        return
    where, known = f"in task.teacher {task.teacher}", began_with.get("teacher_sha256")
    if known is None and expanded(task.teacher).absolute() != expanded(before.teacher).absolute():
        how = f"put it back to {before.teacher}"
        raise errors.UserError("an older run does not note which weights its teacher has", where, how)
    if known is not None and known != sha256_of(task.teacher):
        how = "give the teacher as it was with --task.teacher, or train a new run with this one"
        raise errors.UserError("the teacher has other weights than when the run began", where, how)


def _each(values: tuple[float, ...], channels: int) -> tuple[float, ...]:
    return tuple(values) * channels if len(values) == 1 else tuple(values)


def _listed(values: tuple[float, ...]) -> str:
    return " ".join(f"{value:g}" for value in values)
