"""Shards that Ray Data's tasks write, on all nodes of a cluster."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import ray

from raytrain import errors
from raytrain.data import Index
from raytrain.driver.session import Session
from raytrain.tools.pack import Progress, write_shard
from raytrain.tools.pack_places import PLAN, AtUrl, Place
from raytrain.tools.pack_samples import Job, Part
from raytrain.user_code.shipping import Shipped


def write(
    job: Job, indices: dict[str, Index], parts: list[Part], place: Place, address: str, progress: Progress
) -> None:
    """Write shards by tasks of one CPU; each returns nothing but how it went, so that memory stays bounded.

    Raises:
        UserError: no cluster answers, its nodes do not share the folder, or a task has failed as `write_shard` does.
    """
    with Session(address, verbose=False) as session:
        session.start(None if isinstance(place, AtUrl) else Path(place.where, PLAN))
        task: Any = _write
        items = [part._asdict() for part in parts]
        context = (Shipped(replace(job, parts=())), ray.put(indices), place)
        dataset = ray.data.from_items(items, override_num_blocks=len(items))
        dataset = dataset.map_batches(task, fn_args=context, batch_size=1, num_cpus=1)
        dataset.context.enable_progress_bars = False
        rows: Any = dataset.iter_rows()
        for row in rows:
            if row["error"]:
                raise errors.UserError(*str(row["error"]).split("\0"))
            progress(int(row["samples"]))
        place.refresh()


def _write(batch: dict[str, np.ndarray], job: Shipped[Job], indices: Any, place: Place) -> dict[str, np.ndarray]:
    part, error = Part(*(batch[name].tolist()[0] for name in ("number", "split", "start", "stop"))), ""
    try:
        found: Any = ray.get(indices)
        write_shard(job.value, found[part.split], part, place, lambda _: None)
    except errors.UserError as failed:  # Ray would wrap it in a traceback
        error = "\0".join((failed.what, failed.where, failed.how))
    return {"samples": np.array([part.stop - part.start]), "error": np.array([error], object)}
