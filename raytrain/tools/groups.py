"""The metrics of groups of samples, such as those of a site, from the outputs of one evaluation."""

from __future__ import annotations

from copy import copy
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from raytrain import errors
from raytrain.data import Data, Index, Manifest
from raytrain.data.batch import Batch
from raytrain.data.checks import checked_indices
from raytrain.tasks.metrics import Sums
from raytrain.tasks.supervised import Supervised
from raytrain.tasks.task import Task


def with_column(data: Data, index: Index, split: str, column: str) -> Index:
    """Return the index of a split with a column; of a table also one that the experiment does not name.

    Args:
        split: the one that the index is of; a fold's index names the split that its samples were taken from.

    Raises:
        UserError: there is none.
    """
    if column in index.columns:
        return index
    if isinstance(data, Manifest):
        more = copy(data)
        vars(more)["columns"] = (*data.columns, column)  # all else of it stays, such as what it is read for
        return checked_indices(more)[split]
    how = errors.nearest(column, index.columns)
    how += f"there are {', '.join(index.columns)}" if index.columns else "only tables and sources of your own have some"
    raise errors.UserError(f"the data has no column {column!r}", "in --by", how)


class Groups:
    """Adds up the sums of each group, batch by batch: see `inference.evaluate`, argument `watch`.

    Args:
        task: one that evaluates in the usual way.
        values: the group of each sample of the split, [n].

    Raises:
        UserError: the task evaluates in a way of its own.
    """

    def __init__(self, task: Task, values: np.ndarray):
        if not isinstance(task, Supervised) or type(task).sums is not Supervised.sums:
            what = f"--by needs the outputs of the model, and {type(task).__name__} has `sums` of its own"
            raise errors.UserError(what, "in task", "derive it from Supervised, or leave --by out")
        self.task = task
        names, self._group = np.unique(values, return_inverse=True)
        self._names: list[str] = [str(name) for name in names.tolist()]
        self._sums = {name: Sums() for name in self._names}

    def add(self, outputs: torch.Tensor, batch: Batch) -> None:
        """Add a batch's samples."""
        of = self._group[batch.ids]
        for group in np.unique(of):
            rows = np.flatnonzero(of == group)
            places = torch.from_numpy(rows).to(batch.input.device)
            part = Batch({name: array[places] for name, array in batch.arrays.items()}, batch.ids[rows])
            chosen = pytree.tree_map(lambda one, places=places: one[places], outputs)  # a dict or tuple of the user's
            self._sums[self._names[group]].add(self.task.compare(chosen, part))

    def merge(self, other: Groups) -> None:
        """Add the groups of other samples of the same task."""
        for name, sums in other._sums.items():
            self._sums.setdefault(name, Sums()).merge(sums)

    def results(self, device: torch.device) -> dict[str, dict[str, Any]]:
        """Return the metrics and `count` of each group, by its value; without those whose samples were all skipped."""
        added = ((name, one.reduce(device)) for name, one in self._sums.items())
        return {name: {**self.task.results(sums), "count": int(sums["count"])} for name, sums in added if sums}
