"""Folds that share one copy of their data: they differ only in which training samples of the source validate."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from raytrain import errors
from raytrain.data import Index, packing
from raytrain.data.blocks import Arrays, Bad
from raytrain.data.checks import own_indices
from raytrain.data.streaming import ignore
from raytrain.driver.plan import Plan
from raytrain.sweep import fold_groups

Parts = dict[str, dict[str, tuple[Index, np.ndarray]]]
"""By the key of a variant and by split: the samples, and their rows (int64 [n]) in the arrays of all."""


class Shared(NamedTuple):
    """The training samples of a source, read once for several folds.

    Attributes:
        arrays: of all samples that could be read, each [n, ...].
        parts: what each fold has of them.
        bad: the samples that could not be read, and were skipped.
    """

    arrays: Arrays
    parts: Parts
    bad: list[Bad]


def read(variants: Mapping[str, Plan], waits: Callable[[float], None] = ignore) -> Shared | None:
    """Read the samples of a group of `fold_groups.groups`, each once.

    Args:
        waits: called with the seconds for which Ray Data has read nothing.

    Returns:
        None where the files have changed since the plan, so that each fold is read by itself.

    Raises:
        UserError: as of `packing.pack`, or no sample of a fold's split could be read.
    """
    first = next(iter(variants.values()))
    data, indices = fold_groups.whole(first).data, own_indices(first.experiment.data)
    split = {key: variant.experiment.data.folds.split(indices) for key, variant in variants.items()}
    for key, variant in variants.items():
        if any(split[key][name].fingerprint() != variant.indices[name].fingerprint() for name in ("train", "val")):
            return None
    arrays, _, bad = packing.pack(data, indices["train"], waits=waits)
    assert arrays is not None
    good = np.setdiff1d(np.arange(len(indices["train"])), [one.row for one in bad])
    parts: Parts = {}
    for key, variant in variants.items():
        places = variant.experiment.data.folds.places(indices["train"])
        parts[key] = {name: _part(split[key][name], place, good, bad) for name, place in places.items()}
    return Shared(arrays, parts, bad)


def _part(index: Index, places: np.ndarray, good: np.ndarray, bad: list[Bad]) -> tuple[Index, np.ndarray]:
    """Return a split without its bad samples, and where the others are among all that could be read.

    Args:
        places: where its samples are among those of the source, int64 [n].
        good: where those that could be read are among them, ascending.
    """
    readable = np.isin(places, good)
    if not readable.any():
        first = next(one for one in bad if one.row in places)
        raise errors.all_samples_bad(first.path, first.reason)
    kept = index if readable.all() else index.take(np.flatnonzero(readable))
    return kept, np.searchsorted(good, places[readable])
