"""The work of a large prediction in Ray Data's actors, each of which loads the model once.

Ray reads environment variables when it is imported: `batch_predict` imports this module once the session has set them.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import ray
import torch

from raytrain.data.batch import Batch
from raytrain.data.blocks import Arrays
from raytrain.experiment import Experiment
from raytrain.tools import columns
from raytrain.tools.batch_reading import Read, read
from raytrain.tools.batch_settings import Workers
from raytrain.tools.features import Layer
from raytrain.tools.inference import device, file_index, file_source
from raytrain.tools.listing import Listing
from raytrain.tools.parts import ERROR, ROW
from raytrain.tools.predictor import Predictor
from raytrain.user_code.shipping import Shipped

_TASKS, _BATCHES = 4, 16
"""Tasks for each worker, so that all end at the same time; and batches of a task at most."""
_REASON = "reason"


@dataclass(frozen=True)
class Job:
    """What each process needs.

    Attributes:
        experiment: the run's.
        sample, stored, classes: of the checkpoint: the shapes of the model's input and of stored images, the classes.
        tta, layer: see `Predictor`.
        batch_size: images in one forward pass.
        schema: the columns of a row.
    """

    experiment: Shipped[Experiment]
    sample: tuple[int, ...]
    stored: tuple[int, int, int]
    classes: tuple[str, ...]
    tta: str
    layer: Layer | None
    batch_size: int
    schema: pa.Schema


def stream(
    job: Job, weights: dict[str, torch.Tensor], listing: Listing, batches: list[tuple[int, int]], workers: Workers
) -> Iterator[pa.Table]:
    """Yield the rows of each batch, in any order, with the columns `row`, `error` and those of the schema.

    Where the workers have GPUs, Ray Data's tasks read the images for them. Otherwise each worker reads its own: then
    all CPUs have work, whether reading or the model takes longer.

    Args:
        batches: the first image of each batch, and the one after its last.
    """
    images, state = ray.put(listing), ray.put(weights)
    tasks = min(len(batches), max(_TASKS * workers.count, -(-len(batches) // _BATCHES)))
    dataset = ray.data.from_items(
        [{"start": start, "stop": stop} for start, stop in batches], override_num_blocks=tasks
    )
    call: dict[str, Any] = {"batch_format": "numpy", "zero_copy_batch": True}
    if workers.gpus:
        reading: Any = _read
        dataset = dataset.map_batches(reading, fn_args=(job, images), num_cpus=workers.cpus, batch_size=None, **call)
    predicting: Any = _Predicting
    dataset = dataset.map_batches(
        predicting,
        fn_constructor_args=(job, state, images, workers.cpus),
        compute=ray.data.ActorPoolStrategy(size=workers.count),
        num_cpus=workers.cpus,
        num_gpus=workers.gpus,
        batch_size=job.batch_size if workers.gpus else None,
        **call,
    )
    dataset.context.enable_progress_bars = False
    found = iter(dataset.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=1))
    with _quiet_core():  # until the actors have started
        first: Any = next(found, None)
    if first is not None:
        yield first
    rest: Any = found
    yield from rest


@contextlib.contextmanager
def _quiet_core() -> Iterator[None]:
    """Keep Ray's core, which writes to descriptor 2, from printing for each actor that a restarted one may lack its
    arguments: this process holds them (ray-project/ray issue 53727)."""
    kept, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(null)


def _read(batch: dict[str, np.ndarray], job: Job, listing: Any) -> Iterator[dict[str, np.ndarray]]:
    """Yield the stored arrays of each batch. This is the task of Ray Data."""
    images: Any = ray.get(listing)
    data = file_source(job.experiment.value.data, job.stored)
    for start, stop in zip(batch["start"], batch["stop"], strict=True):
        found = read(images.images(int(start), int(stop)), data, job.classes)
        reasons = np.array([reason or "" for reason in found.reasons], object)
        yield {ROW: np.arange(start, stop), _REASON: reasons, **found.arrays}


class _Predicting:
    """The actor of Ray Data: a model that is loaded once."""

    def __init__(self, job: Job, weights: Any, listing: Any, cpus: float):
        torch.set_num_threads(max(1, int(cpus)))
        e = job.experiment.value
        self.job, self.data = job, file_source(e.data, job.stored)
        self.listing: Any = ray.get(listing)
        module = e.model.build(job.sample, len(job.classes))
        module.load_state_dict(ray.get(weights))
        index = file_index([], self.data, job.classes)
        self.predictor = Predictor(module.eval(), e, self.data, index, job.classes, device(), job.tta, job.layer)

    def __call__(self, batch: dict[str, np.ndarray]) -> Iterator[pa.Table]:
        if ROW in batch:
            arrays = {name: array for name, array in batch.items() if name not in (ROW, _REASON)}
            yield self._table(batch[ROW], Read(arrays, [reason or None for reason in batch[_REASON]]))
            return
        for start, stop in zip(batch["start"], batch["stop"], strict=True):
            images = self.listing.images(int(start), int(stop))
            yield self._table(np.arange(start, stop), read(images, self.data, self.job.classes))

    def _table(self, rows: np.ndarray, found: Read) -> pa.Table:
        good = np.array([row for row, reason in enumerate(found.reasons) if reason is None], np.int64)
        said: list[dict[str, Any]] = [{} for _ in rows]
        for row, one in zip(good, self._rows(found.arrays, good, rows[good]) if len(good) else (), strict=True):
            said[row] = one
        table = columns.table(said, self.job.schema)
        return table.append_column(ERROR, pa.array(found.reasons, pa.string())).add_column(
            0, ROW, pa.array(rows, pa.int64())
        )

    def _rows(self, arrays: Arrays, good: np.ndarray, keys: np.ndarray) -> list[dict[str, Any]]:
        e, predictor = self.job.experiment.value, self.predictor
        tensors = {name: torch.from_numpy(array[good]).to(predictor.prepare.device) for name, array in arrays.items()}
        batch = Batch(predictor.prepare.evaluated(tensors, keys), keys)
        names = e.task.class_names(self.job.classes)
        return [columns.written(row, names) for row in predictor.rows(batch)]
