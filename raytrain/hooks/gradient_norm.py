"""The norm of the gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from raytrain.config import at_least, check
from raytrain.hooks.base import Hook

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class GradientNorm(Hook):
    """Adds the column `gradient_norm`: the norm of the global batch's gradients over all parameters, before they are
    clipped, as torch.nn.utils.clip_grad_norm_ returns it. In fp16 it is that of the unscaled gradients, and null where
    they overflowed."""

    every: int = 1
    """Steps from one value to the next; steps count from 1."""

    def __post_init__(self) -> None:
        check(self, every=at_least(1))

    def after_backward(self, trainer: Any) -> dict[str, torch.Tensor] | None:
        """See the base class."""
        progress = trainer.progress
        if (progress.step + 1) % self.every:
            return None
        waiting = {id(parameter) for parameter in trainer.waiting.in_epoch(progress.epoch)}
        used = [parameter for parameter in trainer.parameters if id(parameter) not in waiting]
        norm = trainer.strategy.norm([parameter.grad for parameter in used if parameter.grad is not None])
        return {"gradient_norm": norm / trainer.precision.scale}
