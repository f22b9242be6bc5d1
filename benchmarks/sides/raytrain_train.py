"""A whole `raytrain.train` on a cluster of its own, as users run it; its worker says what memory it takes."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

import raytrain
from benchmarks.resident import OPTIMIZER
from benchmarks.side import MEAN, MODELS, STD, Turns, Workload, memory
from raytrain import config


@dataclass(frozen=True)
class Watched(raytrain.Classification):
    """Classification that measures its process at the end of every epoch."""

    def results(self, sums: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Its metrics, and the memory."""
        return super().results(sums) | {name: float(size) for name, size in memory().items()}


def main() -> None:
    """A run a turn."""
    workload, turns = Workload.from_argv(), Turns()
    experiment = raytrain.Experiment(
        MODELS[workload.model],
        raytrain.ImageFolder(
            root=str(workload.folder / "png"), size=28, crop=None, channels=1, mean=(MEAN,), std=(STD,)
        ),
        task=Watched(),
        optimizer=OPTIMIZER,
        batch_size=workload.batch_size * workload.ranks,
        epochs=3,
        scaling=raytrain.Scaling(workers=workload.ranks, threads_per_worker=1),
    )
    for path, override in workload.overrides.items():
        experiment = config.replace(experiment, path, override)
    while turns.wait():
        started = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            run = raytrain.train(experiment, out=folder, quiet=True)
            last = run.metrics().to_pylist()[-1]
        figures = {name: last[f"val_{name}"] for name in memory()}
        turns.reply(workload.samples * 3, time.perf_counter() - started, last["train_loss"], **figures)


if __name__ == "__main__":
    main()
