"""The base of all hooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any


@dataclass(frozen=True)
class Hook:
    """The base of all hooks, which does nothing. Subclass it in an experiment file, as a frozen dataclass.

    Its fields are values of the experiment; what changes while it trains is in `state`. Each rank has a copy of the
    hook. All ranks must call the same collectives and reach the same `state`: rank 0's is in the checkpoint, and every
    rank resumes from it.

    `trainer` is the rank's `raytrain.training.trainer.Trainer`; `trainer.progress`, `strategy`, `parameters` and
    `optimizer` are what hooks use most.

    `after_backward`, `after_step`, `after_validation` and `after_epoch` may return columns for the row in
    metrics.jsonl, by their names: numbers (also of NumPy), texts or tensors of one number, of which rank 0's are
    written. A tensor is read when the row is written, so that a step does not wait for the device.
    """

    @cached_property
    def state(self) -> dict[str, Any]:
        """JSON values that a checkpoint keeps."""
        return {}

    def start(self, trainer: Any) -> None:
        """Called before the first step, when the newest checkpoint is restored."""

    def after_backward(self, trainer: Any) -> Mapping[str, Any] | None:
        """Called in each step when the gradients are those of the global batch, before they are clipped. In fp16 they
        are still multiplied by the loss scale."""

    def after_step(self, trainer: Any) -> Mapping[str, Any] | None:
        """Called when a step is done, whether or not the weights were updated."""

    def after_losses(self, trainer: Any, rows: Sequence[Mapping[str, Any]]) -> None:
        """Called about twice a second, and before each validation and checkpoint, with the rows of the steps since the
        last call, when their losses are known; on each rank, where columns of hooks are the rank's own. When it is
        called depends on the machine, so `state` must not. It may call `trainer.timing.end(why)`, on all ranks alike,
        to end the run with a validation and a checkpoint."""

    def after_validation(self, trainer: Any, row: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Called after each validation inside an epoch (`validate_every_steps`, or where the run ends within an epoch),
        with its row, before the checkpoint. It may set `trainer.stopping` too. `after_epoch` is called for the
        validation at an epoch's end."""

    def after_epoch(self, trainer: Any, row: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Called after each epoch's validation, with the epoch's row, before the checkpoint. It may set
        `trainer.stopping`, on all ranks alike, to end the run after the checkpoint as a signal does."""

    def after_epoch_saved(self, trainer: Any, row: Mapping[str, Any]) -> None:
        """Called when the checkpoint after an epoch is being written, with the epoch's row. It may set
        `trainer.stopping` too. The checkpoint does not have what it changes in `state`."""

    def after_validation_saved(self, trainer: Any, row: Mapping[str, Any]) -> None:
        """As `after_epoch_saved`, after a validation inside an epoch."""

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps: JSON values, whose numbers are finite."""
        return self.state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.state.clear()
        self.state.update(state)
