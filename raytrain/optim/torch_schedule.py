"""Schedules that PyTorch's schedulers compute: `TorchSchedule` for any of them, `Plateau` for ReduceLROnPlateau."""

from __future__ import annotations

import inspect
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from raytrain import errors
from raytrain.config import at_least, between, check
from raytrain.optim import simulation
from raytrain.optim.optimizers import torch_module
from raytrain.optim.schedules import History, Schedule
from raytrain.user_code.wrappers import Wrapped, Wraps, target_of, where_is

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Simulated(Schedule):
    """The base of schedules whose rates a scheduler of PyTorch computes (`simulation.py`)."""

    def scheduler(self, optimizer: torch.optim.Optimizer, updates: int, mode: Literal["min", "max"]) -> Any:
        """Return PyTorch's scheduler.

        Args:
            optimizer: one that trains nothing, with the true learning rate.
            updates: how often the scheduler is stepped in the whole run.
            mode: whether the lowest or the highest value of `task.monitor` is the best.
        """
        raise NotImplementedError(f"{type(self).__name__} needs a scheduler(optimizer, updates, mode)")

    def lr(self, base: float, step: int, steps_per_epoch: int, epochs: float, history: History = History()) -> float:
        """Return the learning rate of the scheduler, stepped after each epoch or after each validation."""
        seen = History(tuple(one for one in history.values if one[0] <= step), history.highest_is_best)
        return simulation.rate(self, base, step // steps_per_epoch, math.ceil(epochs), seen)


@dataclass(frozen=True)
class Plateau(Simulated):
    """Multiply the learning rate by `gamma` when `task.monitor` has not improved for more than `patience` validations
    (torch.optim.lr_scheduler.ReduceLROnPlateau). The task declares whether its lowest or its highest value is best."""

    gamma: float = 0.1
    """Factor of each drop."""
    patience: int = 10
    """Validations without improvement in a row before the learning rate drops at the next one."""
    threshold: float = 1e-4
    """Smallest change that counts as an improvement."""
    threshold_mode: Literal["rel", "abs"] = "rel"
    """Whether the threshold is a share of the best value so far, or absolute."""
    cooldown: int = 0
    """Validations after a drop that are not counted."""
    min_lr: float = 0.0
    """Lowest learning rate."""
    eps: float = 1e-8
    """Changes of the learning rate that are not larger than this are not made."""

    def __post_init__(self) -> None:
        check(
            self,
            gamma=between(0, 1),
            patience=at_least(0),
            threshold=at_least(0),
            cooldown=at_least(0),
            min_lr=at_least(0),
            eps=at_least(0),
        )

    def scheduler(self, optimizer: torch.optim.Optimizer, updates: int, mode: Literal["min", "max"]) -> Any:
        """Return torch's ReduceLROnPlateau."""
        arguments = (self.patience, self.threshold, self.threshold_mode, self.cooldown, self.min_lr, self.eps)
        return torch_module().optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode, self.gamma, *arguments)


@dataclass(frozen=True, repr=False)
class TorchSchedule(Wrapped, Simulated):
    """A plain scheduler of PyTorch: `TorchSchedule(torch.optim.lr_scheduler.ReduceLROnPlateau, factor=0.5)`.

    The first argument is a class derived from `torch.optim.lr_scheduler.LRScheduler`, or a function of your own that
    takes an optimizer and returns a scheduler. All other arguments are given by name and become fields: numbers,
    strings, booleans, None and tuples of them. `total_steps` that is not given, or None, is the number of the
    scheduler's steps in the run. ReduceLROnPlateau is stepped after each validation with the value of `task.monitor`,
    and takes `mode` from the task. Schedulers that change the momentum too need `cycle_momentum=False`.
    """

    every: Literal["epoch", "step"] = "epoch"
    """Whether the scheduler is stepped after each epoch or after each optimizer step."""

    _wraps: ClassVar[Wraps] = Wraps(
        "a class derived from LRScheduler or a function that returns a scheduler",
        "torch.optim.lr_scheduler.ReduceLROnPlateau",
        ("torch.optim.lr_scheduler", "LRScheduler"),
        given=("optimizer",),
        hidden=(("last_epoch", "leave it out: a resumed run goes on where it was"),),
        derived=("total_steps", "mode"),
        shared=("factor",),  # ReduceLROnPlateau's argument: the trainer calls lr()
    )
    """What it wraps."""

    def __post_init__(self) -> None:
        check(self)

    @classmethod
    def _check(cls, target: Any) -> None:
        if isinstance(target, type) and "schedulers" in inspect.signature(target).parameters:
            what = f"{target.__name__} takes a list of schedulers, which saved JSON cannot hold"
            how = "write `def my_schedule(optimizer)`, which makes and returns it, and wrap that"
            raise errors.UserError(what, f"in TorchSchedule({where_is(target)})", how)

    def scheduler(self, optimizer: torch.optim.Optimizer, updates: int, mode: Literal["min", "max"]) -> Any:
        """Return the scheduler that the class or function makes."""
        plateau = torch_module().optim.lr_scheduler.ReduceLROnPlateau
        directed = isinstance(target_of(type(self)), type) and issubclass(target_of(type(self)), plateau)
        counted = getattr(self, "epochs", None) is None  # OneCycleLR takes epochs and steps_per_epoch instead
        made = self._called(optimizer, total_steps=updates if counted else None, mode=mode if directed else None)
        if not hasattr(made, "step") or getattr(made, "optimizer", None) is not optimizer:
            target, how = target_of(type(self)), "let it end in `return scheduler`, made with the optimizer it is given"
            what = f"{target.__name__} must return a scheduler, got {type(made).__name__}"
            raise errors.UserError(what, f"in {where_is(target)}", how)
        if isinstance(made, plateau) and self.every == "step":
            how = 'leave every="step" out'
            raise errors.UserError(
                "ReduceLROnPlateau is stepped after validations, not after steps", "in schedule", how
            )
        return made

    def lr(self, base: float, step: int, steps_per_epoch: int, epochs: float, history: History = History()) -> float:
        """Return the learning rate of the scheduler, stepped as `every` says."""
        if self.every == "epoch":
            return super().lr(base, step, steps_per_epoch, epochs, history)
        return simulation.rate(self, base, step, round(steps_per_epoch * epochs), History())
