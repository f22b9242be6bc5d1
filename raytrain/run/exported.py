"""Trained models that other runs use: from a run's directory, or an exported file."""

from __future__ import annotations

import json
import os
import warnings
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import nn

from raytrain import errors
from raytrain.checkpoint import layout
from raytrain.files import digest
from raytrain.run.run import Run
from raytrain.user_code import sources

METADATA = "raytrain.json"
"""The file in a .pt2 with the names of classes, the form of the input, and mean and std of images. Its program has the
model as `model`, behind the preprocessing; older files have none, and their program is the model alone."""
Normalisation = tuple[tuple[float, ...], tuple[float, ...]]
"""Mean and standard deviation of images, of all channels or of each."""


def _metadata(file: str) -> dict[str, Any]:
    """Return what `raytrain export` notes in a .pt2 file; empty for a file without it."""
    try:
        with zipfile.ZipFile(file) as archive:
            named = next(name for name in archive.namelist() if name.split("/")[-1] == METADATA)
            found = json.loads(archive.read(named))
    except (OSError, zipfile.BadZipFile, StopIteration, ValueError, KeyError):
        return {}
    return found if isinstance(found, dict) else {}


def classes_of(path: str) -> tuple[str, ...]:
    """Return the names of the classes that a model for `open_model` was trained on, in the order of its outputs; none
    for a file that does not name them, or is no .pt2 file.

    Raises:
        UserError: there is no such run, or it has no checkpoint.
    """
    where = os.path.expanduser(path)
    if not os.path.isfile(where):
        return Run(where).classes()
    found = _metadata(where).get("classes")
    return tuple(map(str, found)) if isinstance(found, list) else ()


def gets_more(path: str) -> bool:
    """Return whether a model for `open_model` was given more than the data's first field; as far as a file notes that.

    Raises:
        UserError: there is no such run.
    """
    where = os.path.expanduser(path)
    if os.path.isfile(where):
        return "inputs" in _metadata(where)
    before = sources.active()
    try:
        return Run(where).experiment.task.gives_more
    finally:
        sources.activate(before)


def sample_of(path: str) -> tuple[int, ...] | None:
    """Return the shape of a sample as a model for `open_model` saw it in training; None for a file, which notes that of
    the stored sample.

    Raises:
        UserError: there is no such run, or it has no checkpoint.
    """
    where = os.path.expanduser(path)
    return None if os.path.isfile(where) else tuple(layout.load_state(Run(where).checkpoint())["sample"])


def sha256_of(path: str) -> str:
    """Return the sha256 of the weights of a model for `open_model`; of a file, its own.

    Raises:
        UserError: there is no such run, or it has no checkpoint.
    """
    where = os.path.expanduser(path)
    return digest(Path(where)) if os.path.isfile(where) else layout.weights_sha256(Run(where).checkpoint())


def normalisation_of(path: str) -> Normalisation | None:
    """Return mean and standard deviation of the images that a model for `open_model` was trained on; None where its
    input is no image, and for a file that does not note them.

    Raises:
        UserError: there is no such run, or it has no checkpoint.
    """
    where = os.path.expanduser(path)
    if os.path.isfile(where):
        mean, std = (_metadata(where).get(name) for name in ("mean", "std"))
        return (tuple(mean), tuple(std)) if isinstance(mean, list) and isinstance(std, list) else None
    run, before = Run(where), sources.active()
    state = layout.load_state(run.checkpoint())
    if state.get("input_kind", "image") != "image":
        return None
    try:
        return run.experiment.data.normalisation(state["sample"][0])
    finally:
        sources.activate(before)


def open_model(path: str) -> nn.Module:
    """Return a trained model, in evaluation mode, without gradients and on the CPU. The names of this process's modules
    go on to import what they did before.

    Args:
        path: a run's directory, of which the best weights are taken, or a .pt2 file of `raytrain export`.

    Raises:
        UserError: there is no such model.
    """
    where = os.path.expanduser(path)
    if Path(where).suffix == ".pt2":
        if not os.path.isfile(where):
            raise errors.no_such_file(where, ".pt2 file")
        extra = {METADATA: ""}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of torch, where the file is an older one, and of its unflatten
                program = torch.export.load(where, extra_files=extra)
                module = torch.export.unflatten(program).model if extra[METADATA] else program.module()
        except Exception as error:  # of many types, for a file that is damaged or of another version
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise errors.UserError(f"the file is no exported model: {reason}", where, "export it again") from None
        assert isinstance(module, nn.Module)
        return module.requires_grad_(False)  # it was traced in evaluation mode
    if os.path.isfile(where):
        how = "give the run's directory, or write a .pt2 file by `raytrain export`"
        raise errors.UserError("this file has no model's code, or is none", where, how)
    before = sources.active()
    try:
        return Run(where).model().requires_grad_(False)
    finally:
        sources.activate(before)
