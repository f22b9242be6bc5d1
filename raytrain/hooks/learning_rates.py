"""The learning rate of each parameter group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from raytrain.hooks.base import Hook


@dataclass(frozen=True)
class LearningRates(Hook):
    """Adds the columns `lr_0`, `lr_1` and so on: the learning rates of the optimizer's parameter groups in their order,
    that of the first parameter of each in the model. A single group's rate is the column `lr`, and none is added."""

    def after_step(self, trainer: Any) -> dict[str, float] | None:
        """See the base class."""
        groups = trainer.optimizer.param_groups
        return {f"lr_{number}": float(group["lr"]) for number, group in enumerate(groups)} if len(groups) > 1 else None
