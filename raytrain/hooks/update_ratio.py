"""The size of an update relative to the weights."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from raytrain.config import at_least, check
from raytrain.hooks.base import Hook

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class UpdateRatio(Hook):
    """Adds the column `update_ratio`: the norm of a step's change of all trained weights, divided by the norm of the
    weights before it. A rule of thumb is 0.001 (see docs/hooks.md). It is 0 for a step
    that was skipped. In the steps that it measures it holds a copy of this rank's weights."""

    every: int = 10
    """Steps from one value to the next; steps count from 1."""

    def __post_init__(self) -> None:
        check(self, every=at_least(1))

    @cached_property
    def _before(self) -> list[torch.Tensor]:
        """The weights before the step, on the device; empty between the steps that are measured."""
        return []

    def after_backward(self, trainer: Any) -> None:
        """Copy the weights."""
        if (trainer.progress.step + 1) % self.every == 0:
            self._before.extend(parameter.detach().clone() for parameter in trainer.parameters)

    def after_step(self, trainer: Any) -> dict[str, torch.Tensor] | None:
        """See the base class."""
        if trainer.progress.step % self.every:
            return None
        before, norm = list(self._before), trainer.strategy.norm
        self._before.clear()
        changes = [parameter.detach() - old for parameter, old in zip(trainer.parameters, before, strict=True)]
        return {"update_ratio": norm(changes) / norm(before)}
