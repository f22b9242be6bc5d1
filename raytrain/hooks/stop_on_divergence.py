"""Ending a run whose loss has risen for good, or which has unlearnt."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raytrain.config import above, at_least, check
from raytrain.hooks.base import Hook

_LEARNT, _LEFT, _RISEN = 0.1, 0.2, 0.5
"""What has learnt: a loss lower than the constant answer's by this share. What has fallen back: gains of at most this
share of the best ones, and a smoothed training loss that is back by this share of the way from its best to the first
loss. Overfitting keeps accuracy, a validation whose statistics fail keeps the training loss, a short jump passes."""


@dataclass(frozen=True)
class StopOnDivergence(Hook):
    """Ends the run, with a validation and a checkpoint, when the training loss was above `factor` times its best
    smoothed value in `steps` steps in a row. The smoothed value is the mean of the losses so far, and after `steps`
    steps an exponential mean over about as many. A loss that is not finite (`on_nonfinite=skip`) counts as above. For
    losses that are not negative.

    It also ends a run that falls back to chance, when in `validations` in a row every metric has lost at least four
    fifths of what it had gained over a constant answer (the plan's baseline), and the smoothed training loss is half
    the way back to the first one. The validation loss must once have been a tenth below that of the constant answer.
    Without a baseline this is not looked at.

    Losses are known about half a second late, and the run trains on until then. The state takes in no step after the
    one at which the run diverged, so it and the message do not depend on the delay.
    """

    factor: float = 2.0
    """How far above the best smoothed loss, above 1."""
    steps: int = 100
    """Steps in a row."""
    validations: int = 3
    """Validations in a row; 0 looks at no validation."""

    def __post_init__(self) -> None:
        check(self, factor=above(1), steps=at_least(1), validations=at_least(0))

    def start(self, trainer: Any) -> None:
        """End a resumed run at once where the checkpoint's already had diverged."""
        new = {
            "seen": 0,
            "first": None,
            "smoothed": None,
            "best": None,
            "above": 0,
            "step": 0,
            "gains": {},
            "fallen": 0,
        }
        self.state.update(new | self.state)  # a checkpoint of an earlier version has fewer
        self._end(trainer)

    def after_losses(self, trainer: Any, rows: Sequence[Mapping[str, Any]]) -> None:
        """Take the losses in, up to the step at which the run diverged."""
        state = self.state
        for row in rows:
            if state["above"] >= self.steps or self._fallen:
                break
            loss = row["loss"]
            risen = loss is None or (state["best"] is not None and loss > self.factor * state["best"])
            state["above"], state["step"] = state["above"] + 1 if risen else 0, row["step"]
            if loss is not None:
                state["seen"] += 1
                state["first"] = loss if state["first"] is None else state["first"]
                last = loss if state["smoothed"] is None else state["smoothed"]
                state["smoothed"] = smoothed = last + (loss - last) / min(state["seen"], self.steps)
                state["best"] = smoothed if state["best"] is None else min(state["best"], smoothed)
        self._end(trainer)

    def after_validation(self, trainer: Any, row: Mapping[str, Any]) -> None:
        """Compare the metrics with those of a constant answer."""
        state, floor = self.state, trainer.baseline or {}
        if not self.validations or "val_loss" not in floor or self._fallen or state["above"] >= self.steps:
            return
        directions = trainer.experiment.task.declared()
        gains = {
            name: (row[name] - floor[name]) * (1 if directions[name] == "max" else -1)
            for name in floor.keys() & directions.keys()
            if isinstance(row.get(name), int | float) and math.isfinite(row[name])
        }
        best = state["gains"]
        learnt = best.get("val_loss", 0.0) >= _LEARNT * floor["val_loss"] > 0
        lost = all(gain <= _LEFT * best.get(name, 0.0) for name, gain in gains.items())
        state["fallen"] = state["fallen"] + 1 if learnt and lost and self._risen else 0
        state["gains"] = best | {name: max(0.0, gain, best.get(name, 0.0)) for name, gain in sorted(gains.items())}
        if self._fallen:
            state["step"] = row["step"]
        self._end(trainer)

    def after_epoch(self, trainer: Any, row: Mapping[str, Any]) -> None:
        """See `after_validation`."""
        self.after_validation(trainer, row)

    @property
    def _risen(self) -> bool:
        best, first = self.state["best"], self.state["first"]
        return best is None or self.state["smoothed"] >= best + _RISEN * (first - best)

    @property
    def _fallen(self) -> bool:
        return bool(self.validations) and self.state["fallen"] >= self.validations

    def _end(self, trainer: Any) -> None:
        state = self.state
        if self._fallen:
            what = "the model fell back to chance: no better than a constant answer"
            trainer.timing.end(f"{what} in {self.validations:,} validations up to step {state['step']:,}")
        if state["above"] < self.steps:
            return
        than = "" if state["best"] is None else f" or above {self.factor:g} times its best, {state['best']:.4g}"
        trainer.timing.end(f"the loss diverged: not finite{than}, for {self.steps:,} steps up to {state['step']:,}")
