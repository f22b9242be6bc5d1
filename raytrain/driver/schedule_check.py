"""The check of a schedule before a run: the learning rates of its first and its last step."""

from __future__ import annotations

import math
from typing import Any

from raytrain.errors import UserError
from raytrain.experiment import Experiment
from raytrain.optim.schedules import History, Schedule
from raytrain.user_code.places import line_of, place, reason


def check_schedule(e: Experiment, steps: int) -> None:
    """Check the factors of the first and of the last step, or their learning rates.

    Args:
        steps: of an epoch.

    Raises:
        UserError: the schedule fails, or returns no number.
    """
    kind, history = type(e.schedule), History((), e.task.highest_is_best)
    by_factor = kind.lr is Schedule.lr
    name = "factor" if by_factor else "lr"
    where = f"in {place(kind.factor if by_factor else kind)}"
    how = "write `def factor(self, step, steps_per_epoch, epochs)`"
    last, epochs = e.all_steps(steps) - 1, e.all_epochs(steps)
    for step in (0, last):
        try:
            found: Any = (
                e.schedule.factor(step, steps, epochs)
                if by_factor
                else e.schedule.lr(e.lr, step, steps, epochs, history)
            )
        except UserError:
            raise
        except Exception as error:
            what = f"the schedule fails at step {step} of {last + 1}: {reason(error)}"
            how = "correct that line" if line_of(error) else how if by_factor else "correct its arguments"
            raise UserError(what, line_of(error) or where, how) from None
        number = isinstance(found, int | float) and not isinstance(found, bool)
        if not number or not 0 <= found < math.inf:
            got = found if isinstance(found, int | float) else type(found).__name__
            what = f"{name}() must return a finite number of at least 0, got {got} at step {step}"
            raise UserError(what, where, "return 0 or more" if number else "return a float")
