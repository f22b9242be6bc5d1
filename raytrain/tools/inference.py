"""Evaluate, predict and export with a trained run, in this process, without Ray's workers."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from pyarrow import csv, parquet
from safetensors.torch import save
from torch import nn

from raytrain import config, errors
from raytrain.checkpoint.layout import load_state
from raytrain.data import Data, ImageFolder, Index
from raytrain.data.checks import checked_indices, classes_differ
from raytrain.data.image_files import EXTENSIONS
from raytrain.data.loader import Loader
from raytrain.data.reader import Direct
from raytrain.files import write_atomically
from raytrain.parallel.strategy import RankContext, Strategy
from raytrain.run.run import Run
from raytrain.tasks.classification import Classification
from raytrain.tools.output import PREDICTIONS, WEIGHTS, check_output
from raytrain.tools.views import Averaged, Views, check_tta
from raytrain.training.evaluation import evaluate as add_up
from raytrain.training.precision import Precision, memory_format

_CHUNK = 256


def evaluate(
    run: Run, root: str | None = None, split: str = "val", which: str = "best", tta: str = ""
) -> dict[str, Any]:
    """Evaluate a checkpoint on a whole split, every sample counted once.

    Args:
        root: another `data.root`, with the same classes.
        split: train, val or test.
        which: best or last.
        tta: test-time augmentation: `flip`, or the number of views of each image whose probabilities are averaged.

    Returns:
        The task's metrics, `count`, `confusion` where the task has one, and what was evaluated.

    Raises:
        UserError: the data or the checkpoint is not there, does not verify, or has other classes, or the data's samples
            have another shape or dtype than those that the model was trained on.
    """
    e = run.experiment
    data = e.data if root is None else config.replace(e.data, "root", root)
    if getattr(data, "download", False):  # it was for training; a wrong root must not be filled
        data = config.replace(data, "download", False)
    indices = checked_indices(data)
    if split not in indices:
        raise errors.UserError(
            f"the data has no {split} split",
            root or getattr(e.data, "root", type(data).__name__),
            "choose another --split",
        )
    index, path = indices[split], run.checkpoint(which)
    classes = tuple(load_state(path)["classes"])
    if index.classes != classes:
        raise classes_differ(classes, index.classes, split, root or getattr(e.data, "root", ""))
    _check_input(data, index, path)
    views, device = check_tta(tta, e, index.input.kind), _device()
    torch.set_num_threads(e.scaling.threads_per_worker or torch.get_num_threads())
    reader = Direct(data, index)
    layout = memory_format(e.memory_format)
    loader = Loader(data, index, reader, _CHUNK, e.seed, 0, 1, device, train=False, memory_format=layout)
    model = run.model(which).to(device, memory_format=layout)  # type: ignore[call-overload]
    if tta:
        loader.prepare, model = Views(loader.prepare, tta, views, e.seed), Averaged(model, layout)
    strategy = Strategy(model, RankContext(0, 1, device))
    sums = add_up(e.task, strategy, loader, Precision(e.precision, device), e.micro_batch).reduce(device)
    result = {name: value for name, value in e.task.metrics(sums).items()}
    result |= {
        "count": int(sums["count"]) if "count" in sums else len(index),
        "split": split,
        "checkpoint": path.name,
        "skipped": reader.skipped,
    } | ({"views": views} if tta else {})
    if "confusion" in sums:
        result |= {"classes": list(classes), "confusion": sums["confusion"].tolist()}
    return result


def predict(run: Run, paths: list[str], which: str = "best", tta: str = "") -> list[dict[str, Any]]:
    """Classify image files, and all images below folders.

    Args:
        tta: as for `evaluate`.

    Returns:
        For each image, in order: `path`, `label`, `probability` and `probabilities`, a list in the classes' order.

    Raises:
        UserError: a path is not there, holds no image, or one cannot be read; or the run does not classify images.
    """
    e, device = run.experiment, _device()
    if not isinstance(e.task, Classification):
        raise errors.UserError(
            f"predict classifies images, and this run's task is {type(e.task).__name__}",
            run.path,
            "use its model from Python: raytrain.Run(path).model()",
        )
    state = load_state(run.checkpoint(which))
    if state.get("input_kind", "image") != "image":  # an older run has images
        raise errors.UserError(
            f"predict classifies image files, and this run's model takes no images (kind={state['input_kind']!r})",
            run.path,
            "use its model from Python: raytrain.Run(path).model()",
        )
    views = check_tta(tta, e, "image")
    files = [file for path in paths for file in _images(Path(path))]
    source = _file_source(e.data, tuple(state["stored"]))
    layout = memory_format(e.memory_format)
    model = run.model(which).to(device, memory_format=layout)  # type: ignore[call-overload]
    index = _file_index(files, source, tuple(state["classes"]))
    precision = Precision(e.precision, device)
    torch.set_num_threads(e.scaling.threads_per_worker or torch.get_num_threads())
    reader = Direct(source, index)
    loader = Loader(source, index, reader, _CHUNK, 0, 0, 1, device, train=False, memory_format=layout)
    if tta:
        loader.prepare, model = Views(loader.prepare, tta, views, e.seed), Averaged(model, layout)
    rows = []
    with torch.inference_mode():
        for loaded in loader.epoch(0):
            for batch in loaded.micro_batches(_CHUNK):
                with precision.forward():
                    outputs = model(batch.input)
                shares = outputs.float().softmax(dim=1).cpu()
                for number, share in zip(batch.ids, shares, strict=True):
                    best = int(share.argmax())
                    rows.append(
                        {
                            "path": files[number],
                            "label": state["classes"][best],
                            "probability": float(share[best]),
                            "probabilities": share.tolist(),
                        }
                    )
    return rows


def _check_input(data: Data, index: Index, path: Path) -> None:
    """Check that the model of a checkpoint takes the input that the data gives.

    Raises:
        UserError: it does not.
    """
    state = load_state(path)
    before = state.get("input_dtype", "float32"), list(state["sample"])
    now = index.input.seen_as, list(data.sample(index))
    if now != before:
        raise errors.UserError(
            f"the model was trained on samples of {before[0]} {before[1]}, and the data has {now[0]} {now[1]}",
            getattr(data, "root", type(data).__name__),
            "give data of that shape and dtype",
        )


def write_predictions(rows: list[dict[str, Any]], classes: tuple[str, ...], file: Path) -> None:
    """Write predictions as .csv or .parquet (one column per class) or .jsonl.

    Raises:
        UserError: the suffix is none of these, or the place cannot be written.
    """
    check_output(file, PREDICTIONS)
    flat = [
        {
            "path": row["path"],
            "label": row["label"],
            "probability": row["probability"],
            **dict(zip((f"p_{name}" for name in classes), row["probabilities"], strict=True)),
        }
        for row in rows
    ]
    if file.suffix == ".jsonl":
        _write(file, "".join(json.dumps(row) + "\n" for row in flat).encode())
        return
    content = io.BytesIO()
    (csv.write_csv if file.suffix == ".csv" else parquet.write_table)(pa.Table.from_pylist(flat), content)
    _write(file, content.getbuffer())


def _write(file: Path, content: bytes | memoryview) -> None:
    """Replace a file that the user asked for; on failure, the old one stays.

    Raises:
        UserError: the place cannot be written.
    """
    try:
        write_atomically(file, content)
    except OSError as error:
        raise errors.cannot_write(file, error.strerror or str(error)) from None


def export(run: Run, file: Path, which: str = "best") -> None:
    """Write the plain weights, by the file's suffix.

    `.pth` is a state dict for `torch.load`, without any prefix, on the CPU; `.safetensors` the same tensors; `.pt2` a
    `torch.export` program that takes a batch of the first field: float32 images [batch, channels, height, width].

    Raises:
        UserError: another suffix, or the place cannot be written.
    """
    check_output(file, WEIGHTS)
    model = run.model(which)
    program: Any = _traced(run, model, which) if file.suffix == ".pt2" else None
    content = io.BytesIO()
    if file.suffix == ".safetensors":
        content.write(save({name: value.contiguous().clone() for name, value in model.state_dict().items()}))
    elif file.suffix == ".pth":
        torch.save(model.state_dict(), content)
    else:
        torch.export.save(program, content)
    _write(file, content.getbuffer())


def _traced(run: Run, model: nn.Module, which: str) -> torch.export.ExportedProgram:
    state = load_state(run.checkpoint(which))
    sample = torch.zeros(2, *state["sample"], dtype=getattr(torch, state.get("input_dtype", "float32")))
    logged = logging.root.manager.disable
    logging.disable(logging.WARNING)  # where it fails, it prints and logs whole graphs besides what it raises
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            return torch.export.export(model, (sample,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    except Exception as error:  # torch.export refuses in many types what it cannot trace
        reason = f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"
        raise errors.UserError(
            f"torch.export cannot trace the model: {reason}",
            f"in {type(run.experiment.model).__name__}",
            "correct what it names in the model, or export .pth or .safetensors",
        ) from None
    finally:
        logging.disable(logged)


def _device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _images(path: Path) -> list[str]:
    if os.path.isdir(path):
        below = [file for file in path.rglob("*") if file.suffix.lower() in EXTENSIONS and file.is_file()]
        hidden = {file for file in below if any(part.startswith(".") for part in file.relative_to(path).parts)}
        found = sorted(str(file) for file in below if file not in hidden)
        if not found:
            raise errors.UserError("no images there", path, "give image files or a folder of them")
        return found
    if not os.path.isfile(path):
        raise errors.no_such_file(path, "image")
    return [str(path)]


def _file_source(data: Data, stored: tuple[int, int, int]) -> ImageFolder:
    """Return a source that reads single files and prepares images as the run's own source did."""
    if stored[1] != stored[2]:
        raise errors.UserError(
            f"predict prepares square images, and this run's are {stored[1]}x{stored[2]}",
            "in its data",
            "use its model from Python: raytrain.Run(path).model()",
        )
    channels = 1 if stored[0] == 1 else 3
    if isinstance(data, ImageFolder):
        return replace(data, root="/", on_bad_sample="error")
    mean, std = data.normalisation(stored[0])
    side, augment = data.side, data.augment
    return ImageFolder("/", stored[1], crop=side, channels=channels, mean=mean, std=std, augment=augment)


def _file_index(files: list[str], source: ImageFolder, classes: tuple[str, ...]) -> Index:
    try:
        paths = pa.array([os.path.abspath(file) for file in files])
    except UnicodeEncodeError as error:
        raise errors.UserError("the file is broken: its name is not UTF-8", error.object, "rename it") from None
    return Index(
        np.zeros(len(files), np.int64),
        classes,
        (source.channels, source.size, source.size),
        "test",
        paths=paths,
        sizes=np.zeros(len(files), np.int64),
    )
