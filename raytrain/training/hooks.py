"""Hooks: what a user adds to training without changing the trainer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raytrain.training.trainer import Trainer


class Hook:
    """The base of all hooks, which does nothing. Each rank has its own; all ranks must do the same collectives."""

    def after_backward(self, trainer: Trainer) -> None:
        """Called in each step when the gradients are those of the global batch, before they are clipped."""

    def after_step(self, trainer: Trainer) -> None:
        """Called when a step is done, whether or not the weights were updated."""

    def after_epoch(self, trainer: Trainer, row: dict[str, Any]) -> None:
        """Called after each epoch's validation and checkpoint, with the epoch's row of metrics.jsonl. It may set
        `trainer.stopping`, on all ranks alike."""

    def state_dict(self) -> Mapping[str, Any]:
        """Return what a checkpoint keeps: JSON values."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
