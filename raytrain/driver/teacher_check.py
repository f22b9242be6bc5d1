"""The checks of a distillation's teacher: its outputs must mean the student's classes, its input the same images."""

from __future__ import annotations

from raytrain import errors
from raytrain.data import Data, Field, Index
from raytrain.experiment import Experiment
from raytrain.run.exported import classes_of, normalisation_of
from raytrain.tasks.distillation import Distillation
from raytrain.tasks.task import Task


def check_all(e: Experiment, index: Index, new: bool) -> None:
    """Check the classes of the task's teacher, where it has one, and of a new run its images.

    Args:
        index: the training samples.

    Raises:
        UserError: they are not the student's.
    """
    check(e.task, index.classes)
    if new:
        check_normalisation(e.task, e.data, index.input)


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


def _each(values: tuple[float, ...], channels: int) -> tuple[float, ...]:
    return tuple(values) * channels if len(values) == 1 else tuple(values)


def _listed(values: tuple[float, ...]) -> str:
    return " ".join(f"{value:g}" for value in values)
