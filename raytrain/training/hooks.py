"""The hooks of one rank: calling them, their columns in metrics.jsonl, their state in checkpoints."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from raytrain import errors
from raytrain.hooks import Hook
from raytrain.user_code import places
from raytrain.user_code.shipping import fresh
from raytrain.watchdog import HOOK, doing

if TYPE_CHECKING:
    from raytrain.training.trainer import Trainer

_STEP_COLUMNS = ("kind", "step", "epoch", "loss", "lr", "skipped")


class Hooks:
    """An experiment's hooks, of which this rank has its own copies, and those of whoever drives the trainer.

    Args:
        declared: the experiment's.
        more: called after them. Checkpoints do not keep their state.
    """

    def __init__(self, declared: Sequence[Hook], more: Sequence[Hook] = ()):
        self._declared: list[Hook] = [fresh(hook) for hook in declared]
        self._all = [*self._declared, *more]

    def start(self, trainer: Trainer) -> None:
        """Call each hook before the first step."""
        for hook in self._all:
            hook.start(trainer)

    def after_backward(self, trainer: Trainer) -> dict[str, Any]:
        """Call each hook, and return their columns for the step's row."""
        columns: dict[str, Any] = {}
        self._begin()
        for hook in self._all:
            _add(columns, hook.after_backward(trainer), type(hook).after_backward, _STEP_COLUMNS)
        return columns

    def after_step(self, trainer: Trainer, columns: dict[str, Any]) -> None:
        """Call each hook, and add their columns to those of `after_backward`."""
        self._begin()
        for hook in self._all:
            _add(columns, hook.after_step(trainer), type(hook).after_step, _STEP_COLUMNS)

    def after_losses(self, trainer: Trainer, rows: Sequence[Mapping[str, Any]]) -> None:
        """Call each hook, if there are rows."""
        self._begin()
        if not rows:
            return
        for hook in self._all:
            hook.after_losses(trainer, rows)

    def after_validation(self, trainer: Trainer, row: dict[str, Any]) -> dict[str, Any]:
        """Call each hook's `after_epoch`, or its `after_validation` where the row is of a validation inside an epoch;
        return their columns for the row."""
        method = "after_epoch" if row["kind"] == "epoch" else "after_validation"
        columns: dict[str, Any] = {}
        self._begin()
        for hook in self._all:
            _add(columns, getattr(hook, method)(trainer, row), getattr(type(hook), method), (*row, "checkpoint"))
        return {name: read(value) for name, value in columns.items()}

    def after_saved(self, trainer: Trainer, row: dict[str, Any]) -> None:
        """Call each hook's `after_epoch_saved`, or its `after_validation_saved`, as in `after_validation`.
        A trial waits for its sweep there, which is not time of the run."""
        doing.at("between two epochs")
        for hook in self._all:
            if row["kind"] == "epoch":
                hook.after_epoch_saved(trainer, row)
            else:
                hook.after_validation_saved(trainer, row)

    def _begin(self) -> None:
        if self._declared:
            doing.at(HOOK)

    def state_dict(self) -> list[dict[str, Any]]:
        """Return copies of the states of the experiment's hooks.

        Raises:
            UserError: one of them would not be the same after a resume.
        """
        return [_copied(hook) for hook in self._declared]

    def load_state_dict(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Restore what `state_dict` returned."""
        for hook, state in zip(self._declared, states, strict=True):
            hook.load_state_dict(state)

    def fit(self, states: Any) -> bool:
        """Return whether a checkpoint's states are as many objects as there are hooks."""
        whole = isinstance(states, list) and all(isinstance(state, dict) for state in states)
        return whole and len(states) == len(self._declared)


def read(value: Any) -> Any:
    """Return a column's value for JSON: a tensor's number; None for a number that is not finite."""
    if isinstance(value, torch.Tensor):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _add(columns: dict[str, Any], found: Mapping[str, Any] | None, method: Any, taken: Collection[str]) -> None:
    """Add what a hook's method returned.

    Raises:
        UserError: it is no column, or the row has one of that name.
    """
    if found is None:
        return
    if not isinstance(found, Mapping):
        raise _refused(
            f"a hook returned {found!r}"[:200], method, "return a dict of columns by their names, or nothing"
        )
    for name, value in found.items():
        if name in taken or name in columns:
            raise _refused(f"the row has a column {name!r} already", method, "return it under another name")
        if isinstance(value, torch.Tensor):
            if value.numel() != 1:
                what = f"the column {name!r} is a tensor of shape {tuple(value.shape)}"
                raise _refused(what, method, "return a tensor of one number, such as its mean")
            value = value.detach().clone()  # the hook may go on to change it before the row is written
        elif isinstance(value, np.generic):
            value = value.item()
        if not isinstance(value, torch.Tensor | bool | int | float | str | None):
            what = f"the column {name!r} is of type {type(value).__name__}"
            raise _refused(what, method, "return a number, a text or a tensor of one number")
        columns[str(name)] = value


def _copied(hook: Hook) -> dict[str, Any]:
    state = hook.state_dict()
    try:
        copy = json.loads(json.dumps(state, allow_nan=False))
        same = repr(copy) == repr(state)
    except (TypeError, ValueError) as error:
        raise _not_json(hook, str(error)) from None
    if not same:  # such as tuples, or keys that are numbers
        raise _not_json(hook, f"JSON turns {state!r} into {copy!r}"[:300])
    return copy


def _not_json(hook: Hook, why: str) -> errors.UserError:
    how = "keep only finite numbers, strings, lists, None and dicts with string keys in `state`"
    return _refused(f"the state of a hook cannot be kept in a checkpoint: {why}", type(hook), how)


def _refused(what: str, thing: Any, how: str) -> errors.UserError:
    return errors.UserError(what, f"in {places.place(thing)}", how)
