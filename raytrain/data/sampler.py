"""Samplers: which sample stands at each position of an epoch, as a pure function of (seed, epoch, position)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from raytrain import errors, order
from raytrain.config import at_least, check
from raytrain.user_code.places import calling, place

if TYPE_CHECKING:
    from raytrain.data.source import Index

_REPLACED, _KEPT, _PARTS = 0x5245504C, 0x4B455054, 0x50415254
"""Purposes of a seed, which keep the draws of samplers apart from those of augmentation."""
_TRIED = 64
"""Positions at both ends of an epoch with which the plan tries a sampler."""
_BOTH = "leave one of them out"


@dataclass(frozen=True, kw_only=True)
class Sampler:
    """Every sample once per epoch, in random order. With a part of the samples per epoch, each epoch goes on where the
    last one ended: every sample comes once before any comes twice. Of a `Mixed` source with shares, each epoch has
    these shares.

    The base of all samplers: subclass it in an experiment file, as a frozen dataclass, and override `samples`, perhaps
    also `size`. Both must be pure functions of their arguments: each rank calls them for its own positions, in any
    order and again after a resume.
    """

    fraction: float = 1.0
    """Samples of an epoch, as a share of the training samples: above 0 and at most 1."""
    count: int | None = None
    """Samples of an epoch, as a number; None goes by `fraction`."""

    def __post_init__(self) -> None:
        fraction = (lambda share: 0 < share <= 1, "above 0 and at most 1 (a larger epoch has a count)")
        check(self, fraction=fraction, count=at_least(1))
        if self.count is not None and self.fraction != 1.0:
            raise errors.UserError("fraction and count both say how many", f"in {type(self).__name__}", _BOTH)

    def check(self, index: Index) -> None:
        """Check that it can draw these samples; the plan calls this. No-op by default.

        Raises:
            UserError: it cannot.
        """

    def size(self, index: Index) -> int:
        """Return the number of positions of an epoch, the same for all epochs."""
        return max(1, round(self.fraction * self.drawable(index))) if self.count is None else self.count

    def drawable(self, index: Index) -> int:
        """Return the number of samples that can be drawn at all."""
        return len(index)

    def samples(self, index: Index, seed: int, epoch: int, positions: np.ndarray) -> np.ndarray:
        """Return the samples at some positions of an epoch.

        Args:
            index: the training samples.
            epoch: from 0.
            positions: int64 [k], each in [0, size(index)).

        Returns:
            int64 [k], each in [0, len(index)).
        """
        size = self.size(index)
        if index.shares:
            sources = dict(enumerate(index.shares))
            return _in_parts(index, "source", sources, seed, epoch, size, positions)
        return order.passes(seed, len(index), epoch * size + positions)


@dataclass(frozen=True, kw_only=True)
class Balanced(Sampler):
    """Every class equally often in each epoch, up to one sample. Within a class every sample comes once before any
    comes twice, so that samples of small classes come more often. The size of an epoch is that of the training data,
    unless `fraction` or `count` says otherwise."""

    def check(self, index: Index) -> None:
        """Check that there are classes."""
        _labels(self, index)

    def samples(self, index: Index, seed: int, epoch: int, positions: np.ndarray) -> np.ndarray:
        """Return the samples at some positions of an epoch; see `Sampler.samples`."""
        equal = dict.fromkeys(range(len(index.classes)), 1.0)
        return _in_parts(index, "", equal, seed, epoch, self.size(index), positions)


@dataclass(frozen=True, kw_only=True)
class Weighted(Sampler):
    """Samples with probabilities proportional to weights, each draw independent of all others. Give the weights in one
    of three ways: `weights`, `classes` or `column`. Samples of weight 0 are never drawn.

    Without replacement no sample comes twice in an epoch: samples are drawn one after the other, each in proportion to
    the weights of those that are left (Efraimidis and Spirakis, "Weighted random sampling with a reservoir",
    Information Processing Letters 97, 2006). Then only a `fraction` or a `count` below the number of samples lets the
    weights change which samples an epoch has.
    """

    weights: tuple[float, ...] = ()
    """The weight of each class, in the order of the classes."""
    classes: tuple[tuple[str, float], ...] = ()
    """The weights of some classes, by name; the other classes have weight 1."""
    column: str | None = None
    """The column of the source's index (`Index.columns`) that has the weight of each sample."""
    replacement: bool = True
    """Whether a sample may come more than once in an epoch."""

    def __post_init__(self) -> None:
        super().__post_init__()
        where, names = f"in {type(self).__name__}", [name for name, _ in self.classes]
        given = [name for name in ("weights", "classes", "column") if getattr(self, name) not in ((), None)]
        if not given:
            how = "give weights (one per class), classes (by name) or column (one per sample)"
            raise errors.UserError(f"{type(self).__name__} has no weights", where, how)
        if len(given) > 1:
            what = f"{type(self).__name__} has weights of several kinds, {' and '.join(given)}"
            raise errors.UserError(what, where, "leave all but one out")
        if repeated := [name for name in names if names.count(name) > 1]:
            raise errors.UserError(f"class {repeated[0]!r} has two weights", where, _BOTH)
        _check_weights(np.array(self.weights or [weight for _, weight in self.classes] or [1.0]), where, bool(names))

    def check(self, index: Index) -> None:
        """Check that the weights fit the samples, and that there are enough for an epoch without replacement."""
        drawable = self.drawable(index)
        if not self.replacement and self.count is not None and self.count > drawable:
            allowed = f"of at most {drawable}, the samples with a weight above 0: none comes twice without replacement"
            raise errors.out_of_range("count", self.count, allowed, type(self).__name__)

    def drawable(self, index: Index) -> int:
        """Return the number of samples with a weight above 0."""
        return len(_cumulative(self, index)[0])

    def samples(self, index: Index, seed: int, epoch: int, positions: np.ndarray) -> np.ndarray:
        """Return the samples at some positions of an epoch; see `Sampler.samples`."""
        if not self.replacement:
            return _without_replacement(self, index, seed, epoch)[positions]
        chosen, bounds = _cumulative(self, index)
        draws = order.uniform(order.key(seed, _REPLACED), epoch, positions, 1)[:, 0] * bounds[-1]
        # A draw may be rounded up to the last bound.
        return chosen[np.minimum(np.searchsorted(bounds, draws, side="right"), len(chosen) - 1)]

    def of_samples(self, index: Index) -> np.ndarray:
        """Return the weight of each sample, float64 [n].

        Raises:
            UserError: the weights do not fit the samples.
        """
        where = f"in {type(self).__name__}"
        if self.column is not None:
            found = index.column(self.column, where)
            if found.dtype.kind not in "biuf":
                what = f"the weights in column {self.column!r} must be numbers, got {found.dtype}"
                raise errors.UserError(what, where, "give a column of numbers")
            _check_weights(found, where)
            return found.astype(np.float64)
        labels, names = _labels(self, index), index.classes
        if self.weights and len(self.weights) != len(names):
            what = f"weights must have one number per class, {len(names)}, got {len(self.weights)}"
            raise errors.UserError(what, where, f"the classes are {errors.listed(names, 12)}")
        unknown = [name for name, _ in self.classes if name not in names]
        if unknown:
            how = f"{errors.nearest(unknown[0], names)}the classes are {errors.listed(names, 12)}"
            raise errors.UserError(f"there is no class {unknown[0]!r}", where, how)
        named = dict(self.classes)
        found = np.array(self.weights or [named.get(name, 1.0) for name in names], np.float64)[labels]
        _check_weights(found, where)
        return found


def drawing(sampler: Sampler, index: Index) -> order.Draw | None:
    """Return what gives an epoch's samples; None where every sample comes once, in the order of `order.samples`."""
    return None if sampler == Sampler() and not index.shares else partial(_drawn, sampler, index)


def check_sampler(sampler: Sampler, index: Index, seed: int) -> None:
    """Check that a sampler suits the training samples, and try it at both ends of the first epochs.

    Raises:
        UserError: it does not, or it does not return samples.
    """
    kind = type(sampler)
    if index.shares and kind.samples is not Sampler.samples:
        raise errors.UserError(
            f"{kind.__name__} would draw without regard to the shares of the sources",
            "in sampler",
            "leave out the sampler, or the shares of Mixed",
        )
    with calling(f"{kind.__name__}.check"):
        sampler.check(index)
    with calling(f"{kind.__name__}.size"):
        size: Any = sampler.size(index)
    if isinstance(size, bool) or not isinstance(size, int | np.integer) or size < 1:
        what = f"size() must return a whole number of samples above 0, got {size!r}"
        raise errors.UserError(what, f"in {place(kind.size)}", "return an int, as len(index)")
    if kind.__module__.startswith("raytrain."):
        return
    ends = np.unique(np.concatenate([np.arange(min(size, _TRIED)), np.arange(max(0, size - _TRIED), size)]))
    for epoch in (0, 1):
        with calling(f"{kind.__name__}.samples"):
            found = _drawn(sampler, index, seed, epoch, ends)
            same = np.concatenate([_drawn(sampler, index, seed, epoch, one) for one in (ends[:1], ends[-1:])])
        if not np.array_equal(same, found[[0, -1]]):
            raise errors.UserError(
                f"samples() returns other samples for the same positions of epoch {epoch}",
                f"in {place(kind.samples)}",
                "compute each sample from seed, epoch and its position alone, as with raytrain.order.uniform",
            )


def _drawn(sampler: Sampler, index: Index, seed: int, epoch: int, positions: np.ndarray) -> np.ndarray:
    """Return the checked result of `sampler.samples`.

    Raises:
        UserError: it is not int64 [k] of sample numbers.
    """
    found: Any = sampler.samples(index, seed, epoch, positions)
    if not isinstance(found, np.ndarray):
        got = type(found).__name__
    elif found.dtype != np.int64 or found.shape != positions.shape:
        got = f"{found.dtype} {list(found.shape)}"
    elif len(found) and (found.min() < 0 or found.max() >= len(index)):
        got = f"{found.min()} to {found.max()}"
    else:
        return found
    what = f"samples() must return int64 [{len(positions)}] of 0 to {len(index) - 1}, got {got}"
    raise errors.UserError(what, f"in {place(type(sampler).samples)}", "return the number of a sample per position")


def _labels(sampler: Sampler, index: Index) -> np.ndarray:
    if index.labels is None:
        kind = type(sampler).__name__
        how = "use Weighted(column=...) with a column of the index" if kind == "Weighted" else "use another sampler"
        raise errors.UserError(f"{kind} goes by classes, and the data has none", "in sampler", how)
    return index.labels


def _check_weights(weights: np.ndarray, where: str, others: bool = False) -> None:
    """Check weights.

    Args:
        others: whether there are other classes, of weight 1.

    Raises:
        UserError: one is negative or not finite, or all are 0.
    """
    wrong = weights[~np.isfinite(weights) | (weights < 0)]
    if len(wrong):
        raise errors.UserError(f"a weight must be a finite number of at least 0, got {wrong[0]:g}", where, "correct it")
    if not others and not weights.any():
        raise errors.UserError("all weights are 0, so that no sample can be drawn", where, "make one of them positive")


@lru_cache(maxsize=2)
def _cumulative(sampler: Weighted, index: Index) -> tuple[np.ndarray, np.ndarray]:
    """Return the samples with a weight above 0, int64 [m], and the sums of the weights up to each, float64 [m]."""
    weights = sampler.of_samples(index)
    chosen = np.flatnonzero(weights)
    return chosen, np.cumsum(weights[chosen] / weights.max())


@lru_cache(maxsize=2)
def _without_replacement(sampler: Weighted, index: Index, seed: int, epoch: int) -> np.ndarray:
    """Return the samples of an epoch, int64 [size], none of them twice."""
    weights = sampler.of_samples(index)
    chosen = np.flatnonzero(weights)
    draws = order.uniform(order.key(seed, _KEPT), epoch, chosen, 1)[:, 0]
    # The smallest of -log(u) / w come first: the order of u ** (1 / w), without its underflow.
    arrivals = -np.log1p(-draws) / (weights[chosen] / weights.max())
    return chosen[np.argsort(arrivals, kind="stable")[: sampler.size(index)]]


@lru_cache(maxsize=2)
def _members(index: Index, column: str) -> Mapping[int, np.ndarray]:
    """Return the samples of each value of a column, or of each label for an empty name."""
    values = index.columns[column] if column else index.labels
    ranked = np.argsort(values, kind="stable")
    distinct, starts = np.unique(values[ranked], return_index=True)
    return dict(zip(distinct.tolist(), np.split(ranked, starts[1:]), strict=True))


def _in_parts(
    index: Index, column: str, shares: Mapping[int, float], seed: int, epoch: int, size: int, positions: np.ndarray
) -> np.ndarray:
    """Return samples of an epoch in which the parts of the data have their shares, in random order. Within a part the
    epochs go on with each other, pass after pass. A part without samples has none of an epoch either.

    Args:
        column: the column whose values name the parts; empty for the labels.
        shares: the share of each part, in any unit.
    """
    members = {part: rows for part, rows in _members(index, column).items() if shares[part]}
    counts = _counts([shares[part] for part in members], size)
    stops = np.cumsum(counts)
    places = order.samples(order.key(seed, _PARTS), epoch, size, positions)
    which = np.searchsorted(stops, places, side="right")
    found = np.empty(len(positions), np.int64)
    for number, (part, rows) in enumerate(members.items()):
        here = np.flatnonzero(which == number)
        if len(here):
            within = epoch * counts[number] + places[here] - (stops[number] - counts[number])
            found[here] = rows[order.passes(order.key(seed, _PARTS, part), len(rows), within)]
    return found


def _counts(shares: Sequence[float], size: int) -> np.ndarray:
    """Return how many of an epoch's samples each part has, int64: they add up to `size`, the largest remainders
    rounded up."""
    exact = np.array(shares, np.float64) / np.sum(shares) * size
    counts = exact.astype(np.int64)
    counts[np.argsort(counts - exact, kind="stable")[: size - counts.sum()]] += 1
    return counts
