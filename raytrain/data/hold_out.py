"""The validation samples of a source that has no splits of its own, or lacks one."""

from __future__ import annotations

from copy import copy
from typing import Any, TypeVar

import numpy as np

from raytrain import order
from raytrain.data.source import Data

FRACTION = (lambda share: 0 <= share < 1, "from 0 (all samples train and validate) to below 1")
"""What `val_fraction` must be."""
_MARK = "_evaluated"
_Split = TypeVar("_Split")


def for_evaluation(data: Data) -> Data:
    """Return a source of data that were not trained on: where they have no split val, it is all that would be train;
    and they need no train."""
    found = copy(data)
    vars(found)[_MARK] = True  # no field, as no experiment has it
    return found


def told(data: Any, of: str = "each class is") -> str:
    """Return what is held out, for notes.

    Args:
        of: what a share is held out of, with its verb.
    """
    if not data.val_fraction:
        return "all samples train and validate (--data.val_fraction 0)"
    return f"{data.val_fraction:.0%} of {of} used for validation (--data.val_fraction)"


def hold_out(data: Any, strata: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the places of the samples that train, and of those that validate, sorted int64 arrays: the source's
    `val_fraction` of each class; or all of them in both, where that is 0 and for an evaluation of other data.

    Args:
        strata: the samples' classes, int64 [n].
    """
    if _MARK in vars(data) or not data.val_fraction:
        every = np.arange(len(strata))
        return every, every
    return order.stratified(strata, data.val_fraction, data.split_seed)


def with_train(data: Data, splits: dict[str, _Split]) -> dict[str, _Split]:
    """Return the splits; for an evaluation of data without train another one in its place, which names the classes."""
    if _MARK in vars(data) and splits and "train" not in splits:
        return {"train": next(iter(splits.values())), **splits}
    return splits
