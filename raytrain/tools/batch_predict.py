"""Predict many images in Ray Data's actors, and write the result in parts that a killed command goes on with."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from raytrain import errors
from raytrain.checkpoint import layout
from raytrain.data.batch import Batch
from raytrain.driver.interrupts import Interrupts, Leave, Stopped
from raytrain.driver.resources import Resources
from raytrain.driver.session import Session
from raytrain.run.run import Run
from raytrain.tools import columns, listing, parts
from raytrain.tools.batch_settings import Settings, Workers
from raytrain.tools.inference import Follow, blank_input, check_task, device, file_index, file_source, find_layer
from raytrain.tools.predictor import Predictor
from raytrain.user_code.shipping import Shipped

_RAY_ADDS = "Failed to apply UDF"
"""How the text begins that Ray Data adds to an error."""


class Progress(NamedTuple):
    """How far a prediction is.

    Attributes:
        images: of the whole result.
        done: those in parts that are written, also by earlier commands.
        bad: those among them that could not be read.
        before: those that earlier commands have written.
        left_out: images beside them of kinds that are not read.
    """

    images: int
    done: int
    bad: int
    before: int
    left_out: tuple[str, ...] = ()


class PredictionFailed(Exception):
    """A worker failed while it predicted. What is written stays."""


def predict(
    run: Run,
    sources: Sequence[str],
    out: str,
    settings: Settings = Settings(),
    which: str = "best",
    tta: str = "",
    features: str | None = None,
    follow: Follow = lambda done, total: None,
) -> Progress:
    """Predict image files, and all images below folders and URLs, with a run's model.

    Args:
        out: a folder or a URL, for `_manifest.json` and `part-00000.parquet`, ... A part has a row for each image:
            `path`, the columns of `inference.predict` (probabilities as a column for each class, a mask as the bytes of
            a PNG), and `error`, why the image could not be read, or null. A result that is there is completed.
        which, tta, features: as for `inference.predict`.
        follow: called after each part with the images that are written, and all of them.

    Raises:
        UserError: a source or the layer is not there, `out` holds another result, or the cluster lacks the resources.
        PredictionFailed: a worker failed; the same command goes on.
    """
    path = run.checkpoint(which)
    state = layout.load_state(path)
    check_task(run, state, images=True, features=features, tta=tta)
    e, classes, stored = run.experiment, tuple(state["classes"]), tuple(state["stored"])
    data, model = file_source(e.data, stored), run.model(which)
    weights = model.state_dict()
    layer = None if features is None else find_layer(run, model, state, features)
    predictor = Predictor(model, e, data, file_index([], data, classes), classes, device(), tta, layer)
    schema = _schema(predictor, state, e.task.class_names(classes), bool(tta))
    found = listing.listed(sources)
    place, where = parts.opened(out), out.partition("?")[0]
    known = _manifest(run, path, found, sources) | {
        "part_size": settings.part_size,
        "features": None if layer is None else [*layer[:2], *filter(None, layer[2:])],
        "tta": tta,
    }
    done, whole = parts.begin(place, where, known), parts.ranges(len(found), settings.part_size)
    before = sum(whole[part][1] - whole[part][0] for part in done)
    now = Progress(len(found), before, sum(done.values()), before, found.left_out)
    follow(now.done, now.images)
    if len(done) == len(whole):
        parts.tidy(place, where)
        return now
    batches = [
        batch for part, rows in enumerate(whole) if part not in done for batch in _cut(rows, settings.batch_size)
    ]
    with _on_ray(settings, found, len(batches)) as workers:
        pipeline = importlib.import_module("raytrain.tools.batch_pipeline")
        job = pipeline.Job(Shipped(e), tuple(state["sample"]), stored, classes, tta, layer, settings.batch_size, schema)
        tables = pipeline.stream(job, weights, found, batches, workers)
        with contextlib.closing(tables), _explained():
            for part, table in parts.assembled(tables, found.paths, settings.part_size):
                now = now._replace(done=now.done + len(table), bad=now.bad + parts.write(place, where, part, table))
                follow(now.done, now.images)
    parts.tidy(place, where)
    return now


def _manifest(run: Run, checkpoint: Path, found: listing.Listing, sources: Sequence[str]) -> dict[str, Any]:
    """Return what decides a result, and where it comes from."""
    return {
        "run": run.where.partition("?")[0],
        "step": checkpoint.name,
        "sources": [source.partition("?")[0] for source in sources],
        "images": len(found),
        "listing": found.digest,
        "checkpoint": hashlib.sha256((checkpoint / layout.MANIFEST).read_bytes()).hexdigest(),
    }


def _cut(rows: tuple[int, int], size: int) -> list[tuple[int, int]]:
    """Return the batches of a part: the first image of each, and the one after its last."""
    return [(first, min(first + size, rows[1])) for first in range(*rows, size)]


def shape(resources: Resources, settings: Settings, batches: int) -> Workers:
    """Return the workers that predict so many batches.

    Workers with GPUs leave CPUs for the tasks that read. Workers without share all CPUs.

    Raises:
        UserError: the machines have no room for them.
    """
    gpus = settings.gpus_per_worker
    if gpus is None:
        gpus = 1.0 if resources.gpus else 0.0
    if gpus:
        count = settings.workers or min(max(1, resources.room(0, gpus)), batches)
        cpus = min(1.0, int(100 * resources.cpus / (count + 1)) / 100)
    else:
        count = settings.workers or min(max(1, resources.room(1)), batches)
        most = max(1, int(resources.cpus // count))
        cpus = float(next((each for each in range(most, 1, -1) if resources.room(each) >= count), 1))
    if resources.room(cpus, gpus) < count:
        needs = f"{count} workers of {cpus:g} CPUs" + (f" and {gpus:g} GPUs" if gpus else "")
        raise errors.UserError(
            f"{needs} do not fit into {resources.cpus:g} CPUs and {resources.gpus:g} GPUs",
            resources.where,
            "give fewer --workers, or another --gpus_per_worker",
        )
    return Workers(count, cpus, gpus)


def _schema(predictor: Predictor, state: dict[str, Any], names: tuple[str, ...], several: bool) -> pa.Schema:
    """Return the columns of a prediction, from that of a blank sample.

    Args:
        several: whether the model takes several views of each.
    """
    inputs = blank_input(state).to(predictor.prepare.device)
    batch = Batch({"image": inputs[:, None] if several else inputs}, np.zeros(1, np.int64))
    return columns.schema(columns.written(predictor.rows(batch)[0], names))


@contextlib.contextmanager
def _on_ray(settings: Settings, found: listing.Listing, batches: int) -> Generator[Workers]:
    """A Ray session, in which a signal ends the command; yield the workers to start."""
    first = found.first_here()
    with Session(settings.address, verbose=False) as session, Interrupts(Path()) as interrupts:
        workers = shape(session.resources(), settings, batches)
        try:
            with interrupts.while_ray_starts():
                session.start()
            if first is not None and not session.own:
                _check_seen(Path(first))
            yield workers
        except Leave:
            raise Stopped(interrupts.signal) from None


def _check_seen(file: Path) -> None:
    """Check that all nodes see the images.

    Raises:
        UserError: one of them does not.
    """
    try:
        importlib.import_module("raytrain.driver.ray_cluster").check_shared(file)
    except errors.UserError as error:
        raise errors.UserError(
            error.what.replace("the output cannot be written", "the images cannot be read"),
            file.parent,
            "give images at a URL, or in a folder that all nodes share",
        ) from None


@contextlib.contextmanager
def _explained() -> Generator[None]:
    """Turn what Ray says of an error in a worker into the error itself, in a line."""
    try:
        yield
    except Exception as error:
        cause: BaseException | None = error
        while cause is not None and type(cause).__module__.startswith("ray."):
            cause = getattr(cause, "cause", None) or cause.__cause__
        if isinstance(cause, errors.UserError):
            raise cause from None
        cause = cause or error
        said = str(cause.args[0] if len(cause.args) == 1 else cause).partition(_RAY_ADDS)[0].rstrip(": '\n")
        raise PredictionFailed(errors.one_line(f"{type(cause).__name__}: {said}")) from error
