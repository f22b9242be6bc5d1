"""Notes on a run's data: what its source says, and what is probably a mistake, though it can be trained on."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raytrain import errors
from raytrain.data import Data, Index

_MOST_PATHS = 5_000_000
"""Paths of more samples are not compared, which would take seconds."""
_SHOWN = 3


def notes(data: Data, indices: Mapping[str, Index], compared: bool) -> list[str]:
    """Return the notes of a source.

    Args:
        compared: whether to look for classes that differ in spelling alone or are in val alone, and for files that are
            listed twice.
    """
    train = indices["train"]
    found = [*data.notes(), *train.notes, *data.size_notes(train)]
    return [*found, *doubts(data, indices)] if compared else found


def doubts(data: Data, indices: Mapping[str, Index]) -> list[str]:
    """Return the notes on what is probably a mistake."""
    train, val, found = indices["train"], indices["val"], []
    if len(train) == len(val) and train.fingerprint() == val.fingerprint():
        return [*_alike(train.classes), "val has the samples of train: its metrics say nothing about new ones"]
    if getattr(data, "val_fraction", None) == 0:
        why = "data.folds holds out samples" if data.folds.count else "the data has a val split of its own"
        found.append(f"--data.val_fraction 0 has no effect: {why}")
    return [*found, *_alike(train.classes), *_untrained(train, val), *_twice(train, val)]


def _alike(classes: tuple[str, ...]) -> list[str]:
    """Return a note on classes whose names differ in spaces or capitals alone."""
    groups: dict[str, list[str]] = {}
    for name in classes:
        groups.setdefault(" ".join(name.split()).casefold(), []).append(name)
    found = [" and ".join(map(repr, names)) for names in groups.values() if len(names) > 1]
    if not found:
        return []
    return [f"classes differ in spaces or capitals alone: {errors.listed(found, _SHOWN)}"]


def _untrained(train: Index, val: Index) -> list[str]:
    """Return a note on classes of val that no training sample has."""
    if train.labels is None or val.labels is None:
        return []
    trained, there = (np.bincount(one.labels, minlength=len(train.classes)) for one in (train, val))
    found = [repr(train.classes[label]) for label in np.flatnonzero((trained == 0) & (there > 0))]
    if not found:
        return []
    return [f"train has no sample of {errors.listed(found, _SHOWN)}, and val has some"]


def _twice(train: Index, val: Index) -> list[str]:
    """Return notes on files that are in train and in val, and on those that are listed with several classes."""
    if train.paths is None or val.paths is None or len(train) + len(val) > _MOST_PATHS:
        return []
    both = pa.chunked_array([train.paths, val.paths])
    codes = pc.call_function("dictionary_encode", [both]).unify_dictionaries()
    files = np.concatenate([chunk.indices.to_numpy() for chunk in codes.chunks])
    found = []
    common = np.intersect1d(files[: len(train)], files[len(train) :])
    if len(common):
        one = both[int(np.argmax(files == common[0]))].as_py()
        found.append(f"{_counted(len(common))} both in train and in val, such as {one}")
    if train.labels is not None and val.labels is not None:
        pairs = np.unique(np.stack([files, np.concatenate([train.labels, val.labels])]), axis=1)
        repeated = np.flatnonzero(np.bincount(pairs[0]) > 1)
        if len(repeated):
            one = both[int(np.argmax(files == repeated[0]))].as_py()
            found.append(f"{_counted(len(repeated))} listed with several classes, such as {one}")
    return found


def _counted(count: int) -> str:
    return f"{count:,} files are" if count > 1 else "1 file is"
