"""How long a checkpoint keeps raytrain's loop from its next step, while it trains."""

from __future__ import annotations

import tempfile
import time

import numpy as np

from benchmarks import resident
from benchmarks.resident import DATA, OPTIMIZER, arrays
from benchmarks.side import LARGE, Turns, Workload, join
from raytrain import Checkpoint, Experiment, Scaling
from raytrain.loop import Worker

EVERY, COUNT = 20, 3
"""Steps between two checkpoints, and checkpoints in a turn."""


class Timed(Worker):
    """A worker that notes how long each checkpoint keeps it, in seconds."""

    def fit(self) -> str:
        """Train, and note the stalls."""
        self.stalls: list[float] = []
        return super().fit()

    def save(self) -> None:
        """Write a checkpoint."""
        started = time.perf_counter()
        super().save()
        self.stalls.append(time.perf_counter() - started)


def main() -> None:
    """Run `COUNT` checkpoints a turn; answer with the mean time that one of them takes from the loop."""
    workload, turns = Workload.from_argv(), Turns()
    join()
    images, index = arrays(workload)
    index = index.take(np.arange((COUNT * EVERY + 1) * workload.batch_size))
    experiment = Experiment(
        LARGE,
        DATA,
        optimizer=OPTIMIZER,
        batch_size=workload.batch_size,
        checkpoint=Checkpoint(every_steps=EVERY),
        scaling=Scaling(threads_per_worker=1),
    )
    while turns.wait():
        with tempfile.TemporaryDirectory() as folder:
            worker = resident.worker(experiment, folder, images, index, make=Timed)
            worker.fit()
        turns.reply(1, sum(worker.stalls[:COUNT]) / COUNT)


if __name__ == "__main__":
    main()
