"""The learning-rate range test (Smith, 2017, "Cyclical Learning Rates for Training Neural Networks").

It trains some steps with a rising learning rate and suggests one to train with. It runs in this process, without Ray.
"""

from __future__ import annotations

import math
import tempfile
import time
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

import numpy as np
import torch

from raytrain import errors
from raytrain.data.reader import Direct
from raytrain.driver import initial_weights, plan, resources
from raytrain.experiment import Experiment
from raytrain.loggers import Logger
from raytrain.optim.schedules import Rising
from raytrain.parallel import DDP
from raytrain.parallel.strategy import RankContext
from raytrain.run import experiment_file
from raytrain.training import freezing
from raytrain.training.trainer import Trainer

_MEMORY = 0.9
"""Share that a smoothed loss keeps of the one before: a memory of ten steps, about a decade of the default range."""
_DIVERGED = 4.0
"""How many times the best smoothed loss ends the test."""
_NOISE = 2.0
"""Standard deviations of the first losses, by which the smoothed loss must fall below their mean to have fallen."""
_ROUNDING = 1e-6
"""Share of the first losses that is no fall either: their mean's own error, where they are all the same."""
_RISE = 0.25
"""Share of its fall by which the smoothed loss must rise to have ended its descent."""


@dataclass(frozen=True)
class Curve:
    """What a range test found.

    Attributes:
        lr: the learning rate of each step, as the optimizer gets it: after `lr_scaling`.
        loss: the loss of each step's batch; the last may not be finite.
        smoothed: its exponential mean, without the bias of its start.
    """

    lr: np.ndarray
    loss: np.ndarray
    smoothed: np.ndarray

    @property
    def lowest(self) -> int | None:
        """The step at the foot of the first descent of the smoothed loss: later ones only make good what a too high
        learning rate did. None where it never fell by more than its noise."""
        first = _first(len(self.lr))
        start = self.loss[:first].mean()
        noise = _NOISE * self.loss[:first].std() + _ROUNDING * abs(start)
        foot = None
        for step in range(first + 1, len(self.lr)):
            loss, best = self.smoothed[step], start if foot is None else self.smoothed[foot]
            if loss < min(best, start - noise):
                foot = step
            elif foot is not None and loss - best > max(noise, _RISE * (start - best)):
                break
        return foot

    @property
    def steepest(self) -> float | None:
        """The learning rate at which the smoothed loss falls fastest in the first descent, per decade: the one to
        train with."""
        if self.lowest is None:
            return None
        first = _first(len(self.lr))
        falling = slice(first, self.lowest + 1)
        slope = np.gradient(self.smoothed[falling], np.log(self.lr[falling]))
        return float(self.lr[first + int(slope.argmin())])

    @property
    def tenth(self) -> float | None:
        """A tenth of the learning rate with the lowest smoothed loss: the other rule in use."""
        return None if self.lowest is None else float(self.lr[self.lowest]) / 10


class Smoothed:
    """The exponential mean of losses, divided by the weight that they have so far."""

    def __init__(self) -> None:
        self._sum, self._weight = 0.0, 0.0

    def add(self, loss: float) -> float:
        """Add a loss and return the mean."""
        self._sum = _MEMORY * self._sum + (1 - _MEMORY) * loss
        self._weight = _MEMORY * self._weight + 1 - _MEMORY
        return self._sum / self._weight


def find(value: Experiment, rising: Rising, observer: Logger) -> Curve:
    """Train from the initial weights (those of the model's file, if it has one) with a rising learning rate.

    Everything but the learning rate, its scaling and its schedule is the experiment's. One worker computes the global
    batch, in the micro-batches of the experiment's workers.

    Args:
        observer: gets the plan, and a row after every step.

    Raises:
        UserError: the experiment cannot be run.
    """
    alone = replace(value.scaling, workers=0, cpus_per_worker=None, threads_per_worker=None)
    tested = replace(
        value,
        optimizer=replace(value.optimizer, lr=1.0),
        schedule=rising,
        lr_scaling="none",
        parallel=DDP(),  # unreadable samples are left out of their batch, which deterministic shards do not allow
        scaling=alone,
        micro_batch_size=value.micro_batch,
    )
    planned = plan.make(tested, resources.local_resources, "")
    observer.planned(planned.lines())
    tested = planned.experiment
    with tempfile.TemporaryDirectory(prefix="raytrain-lr-") as folder:
        run = Path(folder)
        experiment_file.save(tested, run / "experiment.json")
        reader = Direct(tested.data, planned.indices["train"])
        device = torch.device("cuda:0" if tested.scaling.gpus_per_worker else "cpu")
        weights = initial_weights.pretrained(tested, planned.indices["train"], run)
        ranks, readers = RankContext(0, 1, device), {"train": reader}
        trainer = Trainer(tested, run, planned.indices, readers, weights, ranks, time.time())
        with trainer.started():
            points = _points(trainer, rising.steps, reader, observer)
    return Curve(*map(np.array, zip(*points, strict=True)))


def _points(trainer: Trainer, steps: int, reader: Direct, observer: Logger) -> list[tuple[float, float, float]]:
    """Train until the learning rate is at its top or the loss has diverged; return (lr, loss, smoothed) of each step.

    Raises:
        UserError: no sample can be read.
    """
    points: list[tuple[float, float, float]] = []
    smoothed = Smoothed()
    freezing.train_mode(trainer.strategy.module, trainer.experiment.freeze)
    for trainer.progress.epoch in count():
        for loaded in trainer.loaders["train"].epoch(trainer.progress.epoch):
            if not len(loaded.ids):  # none of them can be read
                continue
            step = trainer.step(replace(loaded, size=len(loaded.ids)))
            loss = step.loss.item() / step.size / (trainer.losses.unit or 1.0)
            points.append((step.lr, loss, smoothed.add(loss)))
            observer.rows([{"kind": "step", "step": len(points), "lr": step.lr, "loss": loss}])
            if len(points) == steps or diverged([point[2] for point in points], steps):
                return points
        if not points:
            raise errors.all_samples_bad(type(trainer.experiment.data).__name__, reader.skipped[0])
    raise AssertionError("unreachable: the count of epochs has no end")


def diverged(smoothed: list[float], steps: int) -> bool:
    """Return whether the last smoothed loss of a test with `steps` steps is not finite or far above the best one."""
    if not math.isfinite(smoothed[-1]):
        return True
    best = min(smoothed)
    return len(smoothed) > _first(steps) and smoothed[-1] > best + (_DIVERGED - 1) * abs(best)


def _first(steps: int) -> int:
    """Return how many of the first steps show the noise of the loss, and are too few to smooth."""
    return max(3, steps // 10)
