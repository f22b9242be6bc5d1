"""raytrain's worker on a resident array, with metrics, validation and checkpoints as every run has them.

Timed is what the others' clocks see too: from before the first batch is asked for to after the losses of the last
step are read back. The checkpoint at the end of an epoch is written in the same turn, outside of that time.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from itertools import islice

import numpy as np
import torch

from benchmarks import resident
from benchmarks.resident import DATA, OPTIMIZER, Batches, arrays
from benchmarks.side import MODELS, Turns, Workload, join
from raytrain import Experiment, Scaling, config
from raytrain.data.batch import Batch
from raytrain.data.loader import Loaded, Loader
from raytrain.driver import model_check
from raytrain.experiment import with_strategy
from raytrain.training.trainer import Trainer


class Cut(Loader):
    """The worker's own loader, which waits for a turn before each segment.

    Args:
        size: steps of a segment.
    """

    def __init__(self, trainer: Trainer, turns: Turns, size: int):
        vars(self).update(vars(trainer.loaders["train"]))
        self.trainer, self.turns, self.size = trainer, turns, size
        self.done: tuple[int, float, float] | None = None

    def epoch(self, number: int, first_step: int = 0) -> Iterator[Loaded]:
        """All steps of an epoch; the last segment takes those that fill none of their own."""
        batches, segments = super().epoch(number, first_step), self.steps // self.size
        for segment in range(1, segments + 1):
            # Only now is the last turn over: an epoch's checkpoint was written since.
            if self.done:
                self.turns.reply(*self.done)
            asked = time.monotonic()
            if not self.turns.wait():
                raise SystemExit
            if self.trainer.writer:  # others' turns are no time of this training, of which it may wait a share
                self.trainer.writer.began += time.monotonic() - asked
            started, samples = time.perf_counter(), 0
            for loaded in islice(batches, self.size if segment < segments else None):
                samples += len(loaded.ids)
                yield loaded
            self.trainer.flush()
            seconds, progress = time.perf_counter() - started, self.trainer.progress
            self.done = samples, seconds, progress.epoch_loss / progress.epoch_samples


def experiment(workload: Workload) -> Experiment:
    """What is trained, for ever: the harness says when it is enough."""
    value = Experiment(
        MODELS[workload.model],
        DATA,
        optimizer=OPTIMIZER,
        batch_size=workload.batch_size * workload.ranks,
        epochs=1_000_000,
        scaling=Scaling(workers=workload.ranks, threads_per_worker=1),
    )
    for path, override in workload.overrides.items():
        if path == "parallel.strategy":
            value = with_strategy(value, override)
        else:
            value = config.replace(value, path, override)
    one, classes = Batch({"image": torch.zeros(1, 1, 28, 28)}, np.zeros(1, np.int64)), 10
    layout = model_check.memory_format(value, one, classes, model_check.check_model(value, one, classes)[0])
    return config.replace(value, "memory_format", layout)


def main() -> None:
    """A segment a turn."""
    workload, turns = Workload.from_argv(), Turns()
    if workload.loader_alone:
        return load(workload, turns)
    rank, ranks = join()
    images, index = arrays(workload)
    value = experiment(workload)
    with tempfile.TemporaryDirectory() as folder:
        trainer = resident.trainer(value, folder, images, index, rank, ranks, workload.build().state_dict())
        with trainer.started():
            steps = trainer.steps_per_epoch
            if workload.segment:
                steps = min(steps, workload.segment // value.batch_size)
            trainer.loaders["train"] = Cut(trainer, turns, steps)
            trainer.train()


def load(workload: Workload, turns: Turns) -> None:
    """An epoch of batches a turn, float32 and normalised, and no model."""
    join()
    batches = Batches(workload)
    while turns.wait():
        started, samples = time.perf_counter(), 0
        for images, _ in batches:
            samples += len(images)
        turns.reply(samples, time.perf_counter() - started)


if __name__ == "__main__":
    main()
