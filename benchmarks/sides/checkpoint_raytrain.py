"""How long a checkpoint keeps raytrain's loop from its next step, while it trains."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from benchmarks.resident import DATA, arrays
from benchmarks.side import LARGE, Turns, Workload, join
from raytrain import SGD, Checkpoint, Experiment, Scaling
from raytrain.data.reader import Resident
from raytrain.experiment import save
from raytrain.loop import Place, Worker

EVERY, COUNT = 20, 5
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
        optimizer=SGD(lr=0.05, momentum=0.9),
        batch_size=workload.batch_size,
        checkpoint=Checkpoint(every_steps=EVERY),
        scaling=Scaling(threads_per_worker=1),
    )
    indices = {"train": index, "val": index.take(np.arange(64))}
    while turns.wait():
        with tempfile.TemporaryDirectory() as folder:
            save(experiment, Path(folder) / "experiment.json")
            readers = {"train": Resident(images), "val": Resident(images[:64])}
            worker = Worker(
                experiment, Path(folder), indices, readers, None, Place(0, 1, torch.device("cpu")), time.time()
            )
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
