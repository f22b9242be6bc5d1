"""Learning rates of PyTorch's schedulers, which are run on an optimizer that trains nothing.

A scheduler has a state; run from its beginning, it gives rates that are a function of the number of updates, or of the
values of the validations. So nothing of it is saved, and a resumed run has the same rates.
"""

from __future__ import annotations

from array import array
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from raytrain import errors
from raytrain.optim.optimizers import torch_module
from raytrain.optim.schedules import History

if TYPE_CHECKING:
    from raytrain.optim.torch_schedule import Simulated

_OTHERS = ("momentum", "dampening", "weight_decay", "nesterov")
"""Entries of the optimizer that a scheduler must leave alone."""


def rate(schedule: Simulated, base: float, update: int, updates: int, history: History) -> float:
    """Return a learning rate.

    Args:
        schedule: makes the scheduler.
        base: the learning rate that the scheduler begins with.
        update: how many times the scheduler was stepped before.
        updates: how many times it is stepped in the whole run.
        history: the validations so far; they decide the rate of a ReduceLROnPlateau.

    Raises:
        UserError: the scheduler changes more than the learning rate, or has another direction than the task.
    """
    found = _simulation(schedule, base, updates, history.highest_is_best)
    return _after(schedule, base, updates, history) if found.validates else found.rate(update)


class Simulation:
    """A scheduler, run as far as it was asked for."""

    def __init__(self, schedule: Simulated, base: float, updates: int, highest_is_best: bool):
        self.schedule, mode = schedule, "max" if highest_is_best else "min"
        torch = torch_module()
        weight = torch.zeros(1, device="cpu", requires_grad=True)
        self.optimizer = torch.optim.SGD([weight], lr=base, momentum=0.9)
        self._others = self._read(*_OTHERS)
        self.scheduler: Any = schedule.scheduler(self.optimizer, updates, mode)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau
        self.validates = isinstance(self.scheduler, plateau)
        if isinstance(self.scheduler, plateau) and self.scheduler.mode != mode:
            what = f"{schedule} looks for the {self.scheduler.mode} of task.monitor, whose best value is the {mode}"
            raise errors.UserError(what, "in schedule", f"give it mode={mode!r}")
        self.rates = array("d", [self._lr()])

    def rate(self, update: int) -> float:
        """Return the learning rate after so many updates."""
        while len(self.rates) <= update:
            self.step()
            self.rates.append(self._lr())
        return self.rates[update]

    def step(self, *value: float) -> None:
        """Update the learning rate, after a validation with this value if the scheduler wants one."""
        self.optimizer.step()  # PyTorch warns of the other order
        self.scheduler.step(*value)

    def _lr(self) -> float:
        if self._read(*_OTHERS) != self._others:
            what = f"{self.schedule} changes the optimizer's momentum too, and schedules change the learning rate alone"
            raise errors.UserError(what, "in schedule", "give it cycle_momentum=False")
        return float(self.optimizer.param_groups[0]["lr"])

    def _read(self, *names: str) -> list[Any]:
        return [self.optimizer.param_groups[0][name] for name in names]


@lru_cache(maxsize=16)
def _simulation(schedule: Simulated, base: float, updates: int, highest_is_best: bool) -> Simulation:
    return Simulation(schedule, base, updates, highest_is_best)


@lru_cache(maxsize=16)
def _after(schedule: Simulated, base: float, updates: int, history: History) -> float:
    """Return the learning rate of a ReduceLROnPlateau after all validations of a history."""
    found = Simulation(schedule, base, updates, history.highest_is_best)
    for _, value in history.values:
        found.step(float("nan") if value is None else value)
    return found._lr()
