"""The check of a distillation's teacher: its outputs must mean the same classes as the student's."""

from __future__ import annotations

from raytrain import errors
from raytrain.run.exported import classes_of
from raytrain.tasks.distillation import Distillation
from raytrain.tasks.task import Task


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
