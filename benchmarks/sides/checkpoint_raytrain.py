"""How long a checkpoint keeps raytrain's loop from its next step, while it trains."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable

import numpy as np

from benchmarks import resident
from benchmarks.resident import DATA, OPTIMIZER, arrays
from benchmarks.side import LARGE, Turns, Workload, join
from raytrain import Checkpoint, Experiment, Scaling

EVERY, COUNT = 20, 3
"""Steps between two checkpoints, and checkpoints in a turn."""


def timed(save: Callable[[], None], stalls: list[float]) -> Callable[[], None]:
    """Return a trainer's `save` that notes how long each checkpoint keeps it, in seconds."""

    def timed_save() -> None:
        started = time.perf_counter()
        save()
        stalls.append(time.perf_counter() - started)

    return timed_save


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
            trainer, stalls = resident.trainer(experiment, folder, images, index), list[float]()
            trainer.save = timed(trainer.save, stalls)
            trainer.fit()
        turns.reply(1, sum(stalls[:COUNT]) / COUNT)


if __name__ == "__main__":
    main()
