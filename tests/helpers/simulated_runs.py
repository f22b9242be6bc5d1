"""Runs without a training, and the feed of a logger without its thread."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from raytrain import CNN, Digits, Experiment, Logger, RunInfo
from raytrain.driver.feed import Feed
from raytrain.files import write_atomically
from raytrain.run.metrics_log import MetricsLog

EPOCH = 7
"""Steps of an epoch."""
VALUE = Experiment(CNN(channels=(4,)), Digits())


class Killed(BaseException):
    """Ends the driver where it is raised."""


@dataclass
class Simulated:
    """A run's files, as rank 0 writes them, without a training.

    Attributes:
        every: steps between validations inside epochs.
        checkpoints: step, bytes of metrics, epochs.
    """

    path: Path
    steps: int
    every: int | None = None
    step: int = 0
    epoch: int = 0
    checkpoints: list[tuple[int, int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        (self.path / "logs").mkdir(parents=True, exist_ok=True)
        self.log = MetricsLog(self.path / "metrics.jsonl", 0)

    @property
    def info(self) -> RunInfo:
        return RunInfo(self.path, str(self.path), VALUE, EPOCH, 1438)

    def train(self) -> None:
        """Do a step, and the validation and the checkpoint that follow it: of an epoch's end, or inside an epoch."""
        self.step += 1
        self.log.write([{"kind": "step", "step": self.step, "epoch": self.epoch + 1, "loss": 1 / self.step}])
        if self.step == (self.epoch + 1) * EPOCH:
            self.epoch += 1
            self.log.write([{"kind": "epoch", "epoch": self.epoch, "step": self.step, "val_loss": 1 / self.step}])
            self.save()
        elif self.every and self.step % self.every == 0:
            inside = {"kind": "validation", "epoch": self.epoch + 1, "step": self.step, "val_loss": 1 / self.step}
            self.log.write([inside])
            self.save()

    def save(self) -> None:
        self.log.commit()
        self.checkpoints.append((self.step, self.log.size, self.epoch))
        self.point()

    def point(self) -> None:
        name = f"step_{self.checkpoints[-1][0]:08d}"
        write_atomically(self.path / "last.json", json.dumps({"checkpoint": name, "step": self.checkpoints[-1][0]}))

    def resume(self, damaged: int = 0) -> None:
        """Cut the run back to its newest checkpoint, or to one before some damaged ones."""
        self.log.close()
        del self.checkpoints[max(0, len(self.checkpoints) - damaged) :]
        self.step, size, self.epoch = (self.checkpoints or [(0, 0, 0)])[-1]
        self.log = MetricsLog(self.path / "metrics.jsonl", size)
        if self.checkpoints:
            self.point()
        else:
            (self.path / "last.json").unlink(missing_ok=True)


def feed_of(run: Simulated, logger: Logger, note: Callable[[str], None] = print) -> Feed:
    """A feed that the test drives by itself, without its thread."""
    feed = Feed(logger, 1, note)
    feed._run = run.info
    return feed
