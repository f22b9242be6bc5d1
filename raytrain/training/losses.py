"""The losses of a rank's steps, from tensors on the device to rows of metrics."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from raytrain import errors
from raytrain.checkpoint import layout
from raytrain.parallel.strategy import Strategy
from raytrain.tasks.task import Task
from raytrain.training import phases
from raytrain.training.timing import Ask
from raytrain.user_code import places
from raytrain.watchdog import MEETING, doing

_REDUCE_SECONDS = 0.5
"""Seconds between reductions of losses. In each, the host waits for the device, and all ranks wait for each other."""
_MOST_STEPS = 200


@dataclass
class Step:
    """A step whose loss has not been reduced over the ranks yet.

    Attributes:
        step: its number, from 1.
        lr: the learning rate.
        size: samples of the global batch.
        loss: [slots of the strategy], on the device: this rank's sums over samples, as the task's loss if it is one
            micro-batch's, and float64 otherwise.
        updated: whether the weights were updated; a tensor of one element if the device alone knows.
        columns: the hooks' columns for its row.
    """

    step: int
    lr: float
    size: int
    loss: torch.Tensor
    updated: bool | torch.Tensor
    columns: dict[str, Any]


@dataclass
class Reduced:
    """A step with the mean loss of its samples over all ranks.

    Attributes:
        total: the sum over samples.
        mean: the mean.
    """

    step: int
    lr: float
    size: int
    total: float
    mean: float
    updated: bool
    columns: dict[str, Any]


class LossLog:
    """Keeps steps until their losses are reduced. In the same collective all ranks agree on two more things: what rank
    0 asks for, such as to stop, and after how many steps to reduce next. They also learn each other's seconds.

    Losses are float64 sums of a few float32 values, exact but for the last bits if the values are of very different
    size. So it does not matter when they are reduced, nor, for the slots of a deterministic strategy, on which ranks.

    Attributes:
        unit: what the task counts for one sample: 1, or for example its pixels. None before the first step.
        seconds: those of each phase between the last two reductions, of the rank that holds the others back.
    """

    def __init__(self, strategy: Strategy, task: Task):
        self.strategy, self.task = strategy, task
        self.unit: float | None = None
        self.seconds: dict[str, float] = {}
        self.clock = phases.Clock()
        self._steps: list[Step] = []
        self._every, self._last = 1, time.monotonic()

    @property
    def due(self) -> bool:
        """Whether to reduce now, on all ranks alike."""
        return len(self._steps) >= self._every

    def add(self, step: Step) -> None:
        """Keep one more."""
        self._steps.append(step)

    def check_unit(self, count: float, samples: int) -> float:
        """Return what the task counts for a sample, from its count for several. All samples count alike, so that ranks
        know the global batch's count without asking.

        Raises:
            UserError: it differs from earlier steps.
        """
        unit = count / samples
        if self.unit is None:
            self.unit = unit
        if not math.isclose(unit, self.unit, rel_tol=1e-9):  # a count that is not whole is rounded
            raise errors.UserError(
                f"the task's loss counted {unit:g} per sample, and {self.unit:g} before",
                f"in {places.place(type(self.task).loss)}",
                "count the same for every sample, and give samples a weight in the sum instead",
            )
        return self.unit

    def reduce(self, ask: Ask) -> tuple[list[Reduced], Ask]:
        """Return the steps since the last time, and what rank 0 asks for. A collective.

        Args:
            ask: what rank 0 asks for; the value on other ranks is ignored.
        """
        steps, self._steps = self._steps, []
        ranks, now = self.strategy.ranks, time.monotonic()
        every = _REDUCE_SECONDS * len(steps) / max(now - self._last, 1e-6)
        tail = [float(ask), max(1.0, min(_MOST_STEPS, every))] if ranks.rank == 0 else [0.0, 0.0]
        tail += [self.unit or 0.0, float(self.unit is not None)]  # known on ranks that have had samples
        losses = torch.cat([step.loss for step in steps]).cpu().double() if steps else torch.empty(0).double()
        spent = list(self.clock.phases().values())  # the device has been waited for, and other ranks have not
        seconds = [0.0] * (len(spent) * ranks.world)  # each rank fills its own part, so that the sum has all of them
        seconds[len(spent) * ranks.rank : len(spent) * (ranks.rank + 1)] = spent
        sums = torch.cat([losses, torch.tensor([*tail, *seconds], dtype=torch.float64)]).to(ranks.device)
        doing.at(MEETING)
        self.strategy.all_reduce(sums)
        found = sums.tolist()
        *values, asked, every, units, holders = found[: -len(seconds)]
        doing.at("adding up losses")
        self.seconds = phases.slowest(found[-len(seconds) :])
        if self.unit is None and holders:
            self.unit = units / holders
        self._every, self._last = int(every), time.monotonic()
        slots = self.strategy.slots
        totals = [sum(values[start : start + slots]) for start in range(0, len(values), slots)]
        unit = self.unit or 1.0
        return [
            Reduced(one.step, one.lr, one.size, total / unit, total / unit / one.size, updated, one.columns)
            for one, total, updated in zip(steps, totals, _decisions(steps), strict=True)
        ], Ask(int(asked))


def diverged(step: Reduced, checkpoints: Path, clipped: bool) -> FloatingPointError:
    """Return the error that ends a run whose loss is not finite; see `errors.diverged`."""
    committed = layout.committed(checkpoints)
    at_once = bool(committed) and layout.step_of(committed[-1]) == step.step - 1
    return errors.diverged(f"the loss became {step.total} at step {step.step}", committed, at_once, clipped)


def _decisions(steps: list[Step]) -> list[bool]:
    """Return whether each step has updated the weights; what the device alone knows is read at once."""
    unknown = [step.updated.reshape(1) for step in steps if isinstance(step.updated, torch.Tensor)]
    read = iter(torch.cat(unknown).tolist() if unknown else ())
    return [bool(next(read)) if isinstance(step.updated, torch.Tensor) else step.updated for step in steps]
