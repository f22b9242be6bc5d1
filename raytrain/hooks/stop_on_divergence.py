"""Ending a run whose loss has risen for good."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raytrain.config import above, at_least, check
from raytrain.hooks.base import Hook


@dataclass(frozen=True)
class StopOnDivergence(Hook):
    """Ends the run, with a validation and a checkpoint, when the training loss was above `factor` times its best
    smoothed value in `steps` steps in a row. The smoothed value is the mean of the losses so far, and after `steps`
    steps an exponential mean over about as many. A loss that is not finite (`on_nonfinite=skip`) counts as above. For
    losses that are not negative.

    Losses are known about half a second late, and the run trains on until then. The state takes in no step after the
    one at which the run diverged, so it and the message do not depend on the delay.
    """

    factor: float = 2.0
    """How far above the best smoothed loss, above 1."""
    steps: int = 100
    """Steps in a row."""

    def __post_init__(self) -> None:
        check(self, factor=above(1), steps=at_least(1))

    def start(self, trainer: Any) -> None:
        """End a resumed run at once where the checkpoint's already had diverged."""
        if not self.state:
            self.state.update(seen=0, smoothed=None, best=None, above=0, step=0)
        self._end(trainer)

    def after_losses(self, trainer: Any, rows: Sequence[Mapping[str, Any]]) -> None:
        """Take the losses in, up to the step at which the run diverged."""
        state = self.state
        for row in rows:
            if state["above"] >= self.steps:
                break
            loss = row["loss"]
            risen = loss is None or (state["best"] is not None and loss > self.factor * state["best"])
            state["above"], state["step"] = state["above"] + 1 if risen else 0, row["step"]
            if loss is not None:
                state["seen"] += 1
                last = loss if state["smoothed"] is None else state["smoothed"]
                state["smoothed"] = smoothed = last + (loss - last) / min(state["seen"], self.steps)
                state["best"] = smoothed if state["best"] is None else min(state["best"], smoothed)
        self._end(trainer)

    def _end(self, trainer: Any) -> None:
        state = self.state
        if state["above"] < self.steps:
            return
        than = "" if state["best"] is None else f" or above {self.factor:g} times its best, {state['best']:.4g}"
        trainer.timing.end(f"the loss diverged: not finite{than}, for {self.steps:,} steps up to {state['step']:,}")
