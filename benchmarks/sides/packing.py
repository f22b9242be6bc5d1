"""raytrain's first epoch from files that it has never seen: packed through Ray Data, trained on; and a second start.

A turn begins with a fresh cluster and an empty cache. Starting the cluster is not counted here: rows of their own time
whole commands.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
import time

import numpy as np
import ray
import ray.data

from benchmarks import resident
from benchmarks.resident import OPTIMIZER
from benchmarks.side import MEAN, MODELS, STD, Turns, Workload, join
from raytrain import Experiment, ImageFolder, Scaling
from raytrain.data import Index, packing


def main() -> None:
    """A first epoch a turn; `again` is the time in which a second start has the images."""
    workload, turns = Workload.from_argv(), Turns()
    join()
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)
    cache = tempfile.mkdtemp()
    data = ImageFolder(
        root=str(workload.folder / "png"), size=28, crop=None, channels=1, mean=(MEAN,), std=(STD,), cache=cache
    )
    while turns.wait():
        shutil.rmtree(cache)
        index = data.index()["train"]
        ray.init(address="local", include_dashboard=False, log_to_driver=False)
        started = time.perf_counter()
        arrays, index, _ = packing.pack(data, index)
        packed = time.perf_counter() - started
        assert arrays is not None
        loss, seconds = epoch(workload, data, index, arrays["image"])
        ray.shutdown()
        started = time.perf_counter()
        again, _, _ = packing.pack(data, index)  # no cluster is there: it could not be read anew
        turns.reply(
            len(index),
            packed + seconds,
            loss,
            packed=packed,
            epoch=seconds,
            again=time.perf_counter() - started,
            rows=0 if again is None else len(again["image"]),
        )
    shutil.rmtree(cache, ignore_errors=True)


def epoch(workload: Workload, data: ImageFolder, index: Index, images: np.ndarray) -> tuple[float, float]:
    """(mean loss, seconds) of one epoch, without validation."""
    experiment = Experiment(
        MODELS[workload.model],
        data,
        optimizer=OPTIMIZER,
        batch_size=workload.batch_size,
        scaling=Scaling(threads_per_worker=1),
    )
    with tempfile.TemporaryDirectory() as folder:
        trainer = resident.trainer(experiment, folder, images, index)
        trainer.fit()
        row = trainer.run.metrics().to_pylist()[0]
    return row["train_loss"], len(index) / row["samples_per_second"]


if __name__ == "__main__":
    main()
