"""TorchOptimizer: a plain optimizer of PyTorch, or one that follows its interface."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from raytrain import errors
from raytrain.config import check
from raytrain.optim.optimizers import Optimizer, implementation
from raytrain.user_code.wrappers import Wrapped, Wraps, takes, target_of, where_is

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, repr=False)
class TorchOptimizer(Wrapped, Optimizer):
    """A plain optimizer: `TorchOptimizer(torch.optim.RMSprop, lr=0.01, alpha=0.9)`.

    The first argument is a class derived from `torch.optim.Optimizer`, or a function of your own that takes the
    parameters and returns an optimizer. All other arguments are given by name and become fields: numbers, strings,
    booleans, None and tuples of them. `lr` is the learning rate before the schedule, and must be one of them.
    """

    _wraps: ClassVar[Wraps] = Wraps(
        "a class derived from torch.optim.Optimizer or a function that returns an optimizer",
        "torch.optim.RMSprop",
        ("torch.optim", "Optimizer"),
        given=("parameters",),
        shared=("lr", "weight_decay"),
    )
    """What it wraps."""

    def __post_init__(self) -> None:
        kind = type(self)
        check(self, **self._rules())
        target, where = target_of(kind), f"in {kind.__name__}"
        if "lr" not in takes(kind):
            how = "write a function of your own, `def my_optimizer(parameters, lr=0.1): ...`, and wrap that"
            raise errors.UserError(f"{target.__name__} has no argument 'lr', which schedules change", where, how)
        if self.weight_decay and "weight_decay" not in takes(kind):
            raise errors.UserError(f"{target.__name__} has no weight_decay", where, "leave weight_decay out")

    @classmethod
    def _check(cls, target: Any) -> None:
        if isinstance(target, type):
            check_kind(target, "in TorchOptimizer")

    def build(self, parameters: Iterable[Any]) -> torch.optim.Optimizer:
        """Return the optimizer over parameters, or over groups of them."""
        parameters, kind = list(parameters), type(self)
        # PyTorch computes a mixture of sharded and plain tensors one by one only.
        given = {name: value for name, value in implementation(parameters).items() if not value}
        optimizer = self._called(parameters, **given)
        target = target_of(kind)
        if not hasattr(optimizer, "param_groups"):
            what = f"{target.__name__} must return an optimizer, got {type(optimizer).__name__}"
            raise errors.UserError(what, f"in {where_is(target)}", "let it end in `return optimizer`")
        check_kind(type(optimizer), f"in {where_is(target)}")
        return optimizer


def check_kind(kind: type, where: str) -> None:
    """Check that the loop can use an optimizer's class.

    Args:
        where: of the error.

    Raises:
        UserError: its step must be given a function that computes the loss, or it has other weights in evaluation.
    """
    closure = inspect.signature(kind.step).parameters.get("closure")  # type: ignore[attr-defined]
    if closure is not None and closure.default is inspect.Parameter.empty:
        what = f"{kind.__name__} evaluates the loss several times in a step, which raytrain does not support"
        raise errors.UserError(what, where, "use an optimizer whose step() needs no closure")
    # Schedule-free optimizers: validations and checkpoints would silently have the weights of training.
    if callable(getattr(kind, "train", None)) and callable(getattr(kind, "eval", None)):
        what = f"{kind.__name__} puts other weights into the model by eval(), and raytrain validates and keeps those of"
        raise errors.UserError(f"{what} training", where, "use another optimizer; --ema_decay averages its weights")
