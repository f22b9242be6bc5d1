"""Folds: the training samples of a source, split again into training and validation, for cross-validation."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from raytrain import errors, order
from raytrain.config import check

if TYPE_CHECKING:
    from raytrain.data.source import Index

AXIS = "data.folds.fold"
"""What `raytrain folds` varies: the field of an experiment that names the fold."""
_FOLDS = 0x464F4C44
"""Purpose of a seed, which keeps the split apart from other permutations."""


@dataclass(frozen=True)
class Folds:
    """Cross-validation: the training samples are split into `count` parts, part `fold` validates and the others train.
    The source's own val split is then left out; of data without one, no part of train is held out before. `raytrain
    folds EXPERIMENT --folds 5` trains all folds."""

    count: int = 0
    """Number of folds, at least 2; 0 keeps the source's own splits."""
    fold: int = 0
    """The part that validates, from 0."""
    stratify: bool | None = None
    """Give each fold the same share of every class, up to one sample, or for groups as nearly as they allow; None does
    so where there are classes."""
    group: str | None = None
    """Column of the index (`Index.columns`) that names the group of each sample, such as a patient. No group is spread
    over several folds. Where there are as many groups as folds, as in a column that names the fold of each sample, they
    are the folds in their order."""
    group_pattern: str | None = None
    """The same by a regular expression that is searched in the name of each sample's file: the group is its first pair
    of parentheses, as in `(patient_\\d+)`."""
    seed: int = 0
    """Seed of the split; all folds of a cross-validation have the same one."""

    def __post_init__(self) -> None:
        folds = (lambda count: count == 0 or count >= 2, "of at least 2, or 0 for the source's own splits")
        fold = (lambda fold: 0 <= fold < max(1, self.count), f"from 0 to {max(1, self.count) - 1}, a number of a fold")
        check(self, count=folds, fold=fold, seed=(lambda seed: seed >= 0, "of at least 0"))
        if self.group is not None and self.group_pattern is not None:
            raise errors.UserError("group and group_pattern both name groups", "in Folds", "leave one of them out")
        if self.group_pattern is not None:
            try:
                groups = re.compile(self.group_pattern).groups
            except re.error as error:
                what = f"group_pattern {self.group_pattern!r} is not a regular expression: {error}"
                raise errors.UserError(what, "in Folds", r"write one as (patient_\d+)") from None
            if groups < 1:
                what = f"group_pattern {self.group_pattern!r} has no pair of parentheses"
                raise errors.UserError(what, "in Folds", "put the part that names the group into parentheses")

    def split(self, indices: dict[str, Index]) -> dict[str, Index]:
        """Return the splits of a source with this fold's train and val.

        Raises:
            UserError: the samples cannot be split so.
        """
        if not self.count:
            return indices
        train, places = indices["train"], self.places(indices["train"])
        # It keeps the name of its split, by which a source may find its files.
        own = {"train": train.take(places["train"]), "val": replace(train.take(places["val"]), ignored=())}
        return own | {split: index for split, index in indices.items() if split not in own}

    def places(self, index: Index) -> dict[str, np.ndarray]:
        """Return where the samples of this fold's train and val are among those of the source, int64 [n] each.

        Raises:
            UserError: as of `of_samples`, or none of the samples that may validate is in this fold.
        """
        held = self.of_samples(index) == self.fold
        val = held if index.validates is None else held & index.validates
        if not val.any():
            what = f"fold {self.fold} of {self.count} has no sample of the source that validates"
            raise errors.UserError(what, "in data.folds", "use fewer folds, or let all sources validate")
        return {"train": np.flatnonzero(~held), "val": np.flatnonzero(val)}

    def of_samples(self, index: Index) -> np.ndarray:
        """Return the fold in which each sample validates, int64 [n].

        Raises:
            UserError: there are fewer samples, groups or samples of a class than folds, a sample has no group, or the
                groups cannot be read.
        """
        groups = self._groups(index)
        units = len(index) if groups is None else int(groups.max()) + 1
        if units < self.count:
            what = f"{self.count} folds need at least as many {'samples' if groups is None else 'groups'}, got {units}"
            how = f"use at most {units} folds" if units >= 2 else "use more data, or no folds"
            raise errors.UserError(what, "in data.folds", how)
        labels = self._labels(index)
        if index.validates is not None:  # those that validate are spread evenly by themselves
            labels = 2 * labels + index.validates
        if groups is not None:
            return groups if units == self.count else self._of_groups(labels, groups)[groups]
        found = np.empty(len(index), np.int64)
        ranked = np.concatenate([self._shuffled(np.flatnonzero(labels == one)) for one in np.unique(labels)])
        found[ranked] = np.arange(len(index)) % self.count  # each class goes on where the last one ended
        return found

    def _labels(self, index: Index) -> np.ndarray:
        """Return the labels to stratify by, int64 [n]; all 0 for none."""
        labels, grouped = index.labels, self.group is not None or self.group_pattern is not None
        if labels is None and self.stratify:
            what = "stratified folds go by classes, and the data has none"
            raise errors.UserError(what, "in data.folds.stratify", "leave stratify out")
        if labels is None or self.stratify is False:
            return np.zeros(len(index), np.int64)
        counts = np.bincount(labels, minlength=len(index.classes))
        few = [label for label in np.flatnonzero(counts) if counts[label] < self.count]
        if few and not grouped:
            least = min(few, key=lambda label: counts[label])
            what = f"class {index.classes[least]!r} has {counts[least]} samples, fewer than the {self.count} folds"
            how = f"use at most {counts[least]} folds, or " if counts[least] >= 2 else "add samples, or "
            raise errors.UserError(what, "in data.folds", f"{how}--data.folds.stratify False")
        return labels

    def _groups(self, index: Index) -> np.ndarray | None:
        """Return the number of each sample's group, int64 [n], without gaps; None for no groups."""
        if self.group is not None:
            names = index.column(self.group, "in data.folds.group")
            lacking = np.flatnonzero((names == "") | (names != names))  # no text, or NaN
            if len(lacking):
                what = f"{index.name(int(lacking[0]))} has no group in column {self.group!r}"
                more = f" ({len(lacking)} of {len(index)} samples)"
                raise errors.UserError(what + more, "in data.folds.group", "give each sample one")
            return _numbered(names)
        if self.group_pattern is None:
            return None
        where = "in data.folds.group_pattern"
        if not index.in_files:
            what = "group_pattern goes by the names of files, and the samples of this data have none"
            raise errors.UserError(what, where, "use --data.folds.group with a column of the index")
        names, pattern = index.names(np.arange(len(index))), re.compile(self.group_pattern)
        matches = [pattern.search(name) for name in names]
        lacking = [name for name, match in zip(names, matches, strict=True) if match is None or match[1] is None]
        if lacking:
            what = f"group_pattern {self.group_pattern!r} finds no group in {lacking[0]}"
            more = f" ({len(lacking)} of {len(names)} files)"
            raise errors.UserError(what + more, where, "let it match every file, as in (patient_\\d+)")
        return _numbered(np.array([match[1] for match in matches if match]))

    def _of_groups(self, labels: np.ndarray, groups: np.ndarray) -> np.ndarray:
        """Return the fold of each group, int64 [groups]: the largest groups first, each in the fold in which the
        squared shares of the classes grow least, so that shares stay as equal as they can one after the other."""
        members = np.zeros((int(groups.max()) + 1, int(labels.max()) + 1), np.int64)
        np.add.at(members, (groups, labels), 1)
        totals = np.maximum(members.sum(0), 1)
        shuffled = self._shuffled(np.arange(len(members)))
        held, folds = np.zeros((self.count, members.shape[1])), np.zeros(len(members), np.int64)
        for group in shuffled[np.argsort(-members[shuffled].sum(1), kind="stable")]:
            shares = members[group] / totals
            growth = (shares * (2 * held + shares)).sum(1)
            sizes = (held * totals).sum(1)
            least = np.flatnonzero(growth <= growth.min() * (1 + 1e-12))
            folds[group] = least[np.argmin(sizes[least])]
            held[folds[group]] += shares
        return folds

    def _shuffled(self, values: np.ndarray) -> np.ndarray:
        n = len(values)
        return values[order.samples(order.key(self.seed, _FOLDS), 0, n, np.arange(n))]


def _numbered(names: np.ndarray) -> np.ndarray:
    """Return the number of each name among all in their order, that of numbers if all are whole numbers, int64 [n]."""
    if names.dtype.kind not in "iuf" and all(re.fullmatch(r"-?\d{1,18}", str(name)) for name in np.unique(names)):
        names = names.astype(np.int64)
    return np.unique(names, return_inverse=True)[1].reshape(-1)
