"""The search for the largest micro-batch that fits into a worker's memory, and for the fastest.

The search never changes `batch_size`: gradients of micro-batches accumulate to it. A micro-batch is a forward pass of
its own, so BatchNorm's statistics and dropout's random numbers depend on it. `micro_batch_trials` tries real
steps. Without Ray.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from raytrain import errors
from raytrain.config import above, check
from raytrain.experiment import Experiment

_MARGIN = 0.95
"""A less exact precision is suggested if its step takes at most this share of a more exact one's time."""


@dataclass(frozen=True)
class Search:
    """The precisions to try, and the memory limit."""

    precisions: tuple[Literal["fp32", "tf32", "bf16", "fp16"], ...] = ()
    """The precisions to try; by default all that the workers support, except fp16 on CPUs."""
    memory: float | None = None
    """GiB that a worker may use, not counting PyTorch itself; by default its share of this machine's memory or of its
    GPU's."""

    def __post_init__(self) -> None:
        check(self, memory=above(0))


@dataclass(frozen=True)
class Trial:
    """The result of one micro-batch.

    Attributes:
        micro_batch: samples in one forward pass of a worker.
        accumulation: forward passes of a worker in a step.
        outcome: it fits, is too large for the memory (full), or fails for another reason.
        peak_bytes: memory of the worker that took most, beside what PyTorch takes by itself; on a GPU the device's.
            None where it does not fit.
        samples_per_second: of all workers together; None where it does not fit.
        why: the reason why it does not fit or fails, in one line.
    """

    micro_batch: int
    accumulation: int
    outcome: Literal["fits", "full", "fails"]
    peak_bytes: int | None = None
    samples_per_second: float | None = None
    why: str | None = None


@dataclass(frozen=True)
class Found:
    """The results of one precision.

    Attributes:
        precision: its name.
        trials: one per micro-batch that was tried, by size.
    """

    precision: str
    trials: tuple[Trial, ...]

    @property
    def largest(self) -> Trial | None:
        """The largest micro-batch that fits."""
        return max(self._fitting, key=lambda trial: trial.micro_batch, default=None)

    @property
    def fastest(self) -> Trial | None:
        """The micro-batch with the most samples a second, of those that were tried."""
        return max(self._fitting, key=lambda trial: trial.samples_per_second or 0.0, default=None)

    @property
    def _fitting(self) -> list[Trial]:
        return [trial for trial in self.trials if trial.outcome == "fits"]


def best(found: Sequence[Found]) -> tuple[str, Trial] | None:
    """Return the precision and the micro-batch to train with; None if nothing fits.

    They are the fastest, but a less exact precision must be clearly faster.
    """
    chosen: tuple[str, Trial] | None = None
    for one in found:
        rate = (one.fastest.samples_per_second if one.fastest else None) or 0.0
        if one.fastest and (chosen is None or _MARGIN * rate >= (chosen[1].samples_per_second or 0.0)):
            chosen = one.precision, one.fastest
    return chosen


def sizes(value: Experiment) -> list[int]:
    """Return the micro-batches that an experiment can have, ascending: divisors of its `part` of the batch."""
    part, found = value.part, []
    for size in range(1, part + 1):
        if part % size == 0:
            with contextlib.suppress(errors.UserError):  # such as an odd one for mixup's pairs
                replace(value, micro_batch_size=size)
                found.append(size)
    return found


def doubling(sizes: Sequence[int], attempt: Callable[[int], Trial]) -> tuple[Trial, ...]:
    """Try ascending sizes by doubling until one does not fit, then by bisection between the last two.

    A size that fails for another reason than memory, as BatchNorm does on one sample, ends the doubling only if a
    smaller size fitted.
    """
    trials: list[Trial] = []
    low, high, at = -1, len(sizes), 0
    while True:
        trials.append(attempt(sizes[at]))
        if trials[-1].outcome == "full" or (trials[-1].outcome == "fails" and _fitted(trials)):
            high = at
            break
        low = at
        if at == len(sizes) - 1:
            break
        at = next((i for i, size in enumerate(sizes) if size >= 2 * sizes[at]), len(sizes) - 1)
    while high - low > 1:
        middle = (low + high) // 2
        trials.append(attempt(sizes[middle]))
        low, high = (middle, high) if trials[-1].outcome == "fits" else (low, middle)
    return tuple(sorted(trials, key=lambda trial: trial.micro_batch))


def _fitted(trials: list[Trial]) -> bool:
    return any(trial.outcome == "fits" for trial in trials)
