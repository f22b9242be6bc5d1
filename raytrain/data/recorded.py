"""Batches of samples on the device that a CUDA graph can gather and prepare: one tensor tells which and how.

The host draws the random numbers of many steps at once and copies them with the samples' numbers. So a graph neither
hashes nor waits, and its images have the bits of those that are prepared without it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np

from raytrain.data.batch import Batch
from raytrain.data.drawn import Columns, Drawn, table
from raytrain.data.prepare import Prepare, Tensors
from raytrain.watchdog import PREPARING, doing

ROWS = ""
"""The only array of samples for a graph, float64 [n, columns], see `drawn.table`. No field has this name."""


class Waiting(Batch):
    """A batch whose arrays are made when they are first asked for, or by a graph.

    Args:
        rows: the array `ROWS`, on the device.
        recorded: makes the arrays from such rows by operations of the device alone.
        make: makes the arrays as without a graph.
    """

    def __init__(
        self,
        rows: Tensors,
        recorded: Callable[[Tensors], Tensors],
        make: Callable[[], Tensors],
        ids: np.ndarray,
    ):
        self.rows, self.recorded, self.make, self.ids = rows, recorded, make, ids

    @cached_property
    def arrays(self) -> Tensors:  # type: ignore[override]
        """As for any batch."""
        doing.at(PREPARING)
        return self.make()


class Recorder:
    """Gathers and prepares samples by their rows.

    Args:
        prepare: of a split for which `why_not` has no reason.
        whole: all samples' arrays, on the device.
    """

    def __init__(self, prepare: Prepare, whole: Tensors):
        self.prepare, self.whole = prepare, whole
        (self.size,) = _sizes(prepare)

    def rows(self, ids: np.ndarray, keys: np.ndarray, seed: int, epoch: int) -> np.ndarray:
        """Return the rows of samples, float64 [n, columns]."""
        return table(Drawn(self.prepare.augment, seed, epoch, keys), ids, *self.size)

    def gathered(self, rows: Tensors) -> Tensors:
        """Return the stored arrays of samples."""
        return self._at(Columns(self.prepare.augment, rows[ROWS]))

    def recorded(self, rows: Tensors) -> Tensors:
        """Return the prepared arrays of samples, without the host."""
        columns = Columns(self.prepare.augment, rows[ROWS])
        return self.prepare.recorded(self._at(columns), columns)

    def batch(
        self, rows: Tensors, ids: np.ndarray, keys: np.ndarray, prepare: Callable[[Tensors, np.ndarray], Tensors]
    ) -> Waiting:
        """Return a batch of samples.

        Args:
            prepare: makes what a task sees of stored arrays and keys, as without a graph.
        """
        return Waiting(rows, self.recorded, lambda: prepare(self.gathered(rows), keys), ids)

    def _at(self, columns: Columns) -> Tensors:
        return {name: array.index_select(0, columns.samples) for name, array in self.whole.items()}


def why_not(prepare: Prepare) -> str:
    """Return why a graph cannot prepare the batches of a split; empty where it can."""
    augment = prepare.augment
    if augment.progressive.on:
        return "the size of the images changes"
    if augment.operations:
        return f"{type(augment.operations[0]).__name__} takes its random numbers on the host"
    if augment.policy != "none":
        return f"{augment.policy} sorts the images on the host"
    return "" if len(_sizes(prepare)) == 1 else "images have several sizes"


def _sizes(prepare: Prepare) -> set[tuple[int, ...]]:
    """Return the heights and widths that the model sees; (0, 0) without images."""
    side = prepare.data.input_side
    found = {(side, side) if side else field.shape[1:] for field in prepare.fields if field.kind == "image"}
    return found or {(0, 0)}
