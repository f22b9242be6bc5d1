"""How long a checkpoint keeps raytrain's loop from its next step, while it trains."""

from __future__ import annotations

import tempfile
import time
from typing import Any, cast

import numpy as np

from benchmarks import resident
from benchmarks.resident import DATA, OPTIMIZER, arrays
from benchmarks.side import LARGE, Turns, Workload, join
from raytrain import Checkpoint, Experiment, Scaling

EVERY, COUNT = 20, 3
"""Steps between two checkpoints, and checkpoints in a turn."""


def main() -> None:
    """A run with `COUNT` checkpoints a turn; `stall` is the mean time that one of them takes from the loop."""
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
            worker = resident.worker(experiment, folder, images, index)
            stalls, commit = [], worker.save

            def timed(row: Any = None, stalls: list[float] = stalls, commit: Any = commit) -> None:
                started = time.perf_counter()
                commit(row)
                stalls.append(time.perf_counter() - started)

            cast(Any, worker).save = timed
            worker.fit()
        turns.reply(1, sum(stalls[:COUNT]) / COUNT)


if __name__ == "__main__":
    main()
