"""Write a first experiment file for a folder or a table of images."""

from __future__ import annotations

import io
import os
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
from PIL import Image

from raytrain import errors
from raytrain.data import MNIST, Data, ImageFolder, Index, Manifest, MaskFolder
from raytrain.data.checks import checked_indices
from raytrain.data.images import FileImages
from raytrain.data.maskfolder import recognised
from raytrain.data.masks import MaskedImages
from raytrain.data.trees import tree
from raytrain.data.webdataset import COMPRESSED
from raytrain.files import expanded, is_url
from raytrain.order import spread
from raytrain.tools.new_table import Columns, as_flags, check_files, entries, is_table, of_table, table_in
from raytrain.tools.new_tasks import classification, code, lines, predicted, quoted, segmentation
from raytrain.tools.output import check_output

_SIZES = (32, 48, 64, 96, 128, 160, 192, 224, 256)
"""Sides of stored images to choose from: the largest that enlarges no typical image."""
_LOOKED_AT = 32
_SHOWN = 3
"""Images that cannot be read that are named."""


def check_new(out: Path) -> None:
    """Check that a new experiment file can be written.

    Raises:
        UserError: there is one already, or its place cannot be written.
    """
    check_output(out, (".py",))
    if out.exists() or out.is_symlink():
        raise errors.UserError("the file exists", out, "give another name with --out FILE")


def experiment_text(folder: str, out: Path, columns: Columns = Columns()) -> tuple[str, list[str]]:
    """Return the text of an experiment file for images, some 25 lines, and lines about images that cannot be read.

    Args:
        folder: in a layout of ImageFolder or MaskFolder, or with MNIST's files; or a table of images; here or at a URL.
        out: the file's name, for the command in its docstring.
        columns: those of a table.

    Raises:
        UserError: the folder has no such layout or one class alone, the table has no such columns, or none of a
            split's images can be read.
    """
    root = folder if is_url(folder) else _absolute(expanded(folder))
    with as_flags():
        data = _source(root, folder, columns)
        found = checked_indices(data)
    train, val = found["train"], found["val"]
    if train.labels is not None:
        _check_classes(root, train.classes)
    if isinstance(data, Manifest):
        check_files(data, train)
    notes = _unreadable(data, (train, val))
    if isinstance(data, MNIST):
        made = classification(train, "CNN(channels=(32, 64))")
        source = f"MNIST({quoted(data.root)})"
    else:
        side, channels = _form(data, train)
        model = "CNN(channels=(32, 64, 128))" if side <= 64 else 'Torchvision("resnet18", weights="hub")'
        if isinstance(data, MaskedImages) and data.masked:
            made, channels = segmentation(data, (train, val)), 3  # as the weights want
        else:
            made = predicted(data, train, model)
        given = [
            quoted(data.root),
            *_named(data),
            *made.fields,
            f"size={side}",
            *(["channels=1"] if channels == 1 else []),
            *(['on_bad_sample="skip"'] if notes else []),
            "augment=Augment(flip=0.5)",
        ]
        source = f"{type(data).__name__}({', '.join(given)})"
    large = len(train) >= 640 and not made.task.startswith("Segmentation")
    values = {
        "model": made.model,
        "data": source,
        **({"task": made.task} if made.task else {}),
        "optimizer": made.optimizer,
        "schedule": "Cosine(warmup_epochs=1)",
        "batch_size": 64 if large else 16,
        "epochs": 10,
    }
    names = {"Experiment", *(one.split("(")[0] for one in map(str, values.values()) if "(" in one)}
    names |= set() if isinstance(data, MNIST) else {"Augment"}
    about = f"{len(train):,} images to train on and {len(val):,} to validate on, {made.about}."
    notes = [*made.notes, *notes]
    return _text(about, out, names, [*made.comments, *notes], values), notes


def _absolute(path: Path) -> str:
    return str(path.resolve() if ".." in path.parts else path.absolute())


def _source(root: str, typed: str, columns: Columns) -> MNIST | FileImages:
    """Return the source that a place is.

    Raises:
        UserError: it is no table, and columns are given; or a table without columns that are needed.
    """
    if is_table(root):
        return of_table(root, typed, columns)
    given = columns.given()
    missing = given.pop("missing_mask", None)
    if given:
        if not is_url(root) and not os.path.exists(root):
            raise errors.no_such_file(root, "table of images")
        kind = "none" if os.path.isfile(root) else "a folder"
        what = f"--{next(iter(given))} is for a table, and this is {kind}"
        raise errors.UserError(what, root, "leave it out, or give a .csv, .tsv, .jsonl, .parquet or .arrow file")
    if (masked := _masked(root)) is not None:
        return replace(masked, missing_mask=missing)
    if missing is not None:
        raise errors.UserError("--missing_mask is for masks, and there are none", root, "leave it out")
    if os.path.isdir(os.path.join(root, "MNIST", "raw")):
        return MNIST(root)
    files, folders = entries(root)
    if not folders and any(name.endswith((".tar", *COMPRESSED)) for name in files):
        how = f"write data=WebDataset({quoted(root)}) into an experiment file; raytrain data tells what is in them"
        raise errors.UserError("there are no folders of images, but tar shards", root, how)
    if not folders and (how := table_in(root)):
        raise errors.UserError("there are no folders of images, but a table", root, how)
    return ImageFolder(root)


def _text(about: str, out: Path, names: set[str], comments: list[str], values: dict[str, object]) -> str:
    """Return an experiment file.

    Args:
        about: the first line of its docstring.
        names: what it imports.
        comments: lines above the experiment.
        values: the code of the experiment's fields.
    """
    text = [
        f'"""{about}',
        "",
        f"    raytrain train {out} --dry_run",
        f"    raytrain train {out}",
        "",
        "The second command writes a folder below runs/, with report.html.",
        '"""',
        "",
        f"from raytrain import {', '.join(sorted(names, key=lambda name: (not name.isupper(), name)))}",
        "",
        *(f"# {line}" for line in comments),
        "experiment = Experiment(",
        *(f"    {name}={value}," for name, value in values.items()),
        ")",
    ]
    return "\n".join(text) + "\n"


def _masked(root: str) -> MaskFolder | None:
    """Return the source of a folder with images and masks; None for another folder."""
    try:
        return recognised(root, tree(root))
    except OSError:  # reported when it is read
        return None


def _check_classes(root: str, classes: tuple[str, ...]) -> None:
    """Check that there are classes to tell apart."""
    if len(classes) != 1:
        return
    table = is_table(root)
    how = "give a table with several" if table else table_in(root) or "give a folder with a folder for each class"
    raise errors.UserError(f"there is one class of images, {classes[0]!r}", root, how)


def _unreadable(data: Data, indices: tuple[Index, ...]) -> list[str]:
    """Return lines about the images that a first look finds unreadable, as a plan does; none where all are whole.

    Raises:
        UserError: all of a split are.
    """
    found = []
    for index in indices:
        bad = data.probe(index)
        if len(bad) == len(index):
            raise errors.all_samples_bad(bad[0].path, bad[0].reason)
        found += [errors.one_line(f"{one.path} ({one.reason})") for one in bad]
    if not found:
        return []
    are = "1 image cannot be read and is" if len(found) == 1 else f"{len(found):,} images cannot be read and are"
    more = [f"and {len(found) - _SHOWN:,} more"] if len(found) > _SHOWN else []
    shown = [line for one in [*found[:_SHOWN], *more] for line in lines(one, "  ")]
    return [f"{are} left out, by on_bad_sample:", *shown]


def _named(data: FileImages) -> list[str]:
    """Return the code of a source's fields that name its columns or folders, where they are not the defaults."""
    folders = ("images", "masks", "image_ending", "mask_ending", "missing_mask") if isinstance(data, MaskFolder) else ()
    names = [field.name for field in fields(Columns)] if isinstance(data, Manifest) else folders
    given = {name: getattr(data, name) for name in names}
    return [f"{name}={code(value)}" for name, value in given.items() if value != getattr(type(data), name)]


def _form(data: FileImages, index: Index) -> tuple[int, int]:
    """Return the side that fits typical images, and 1 channel where all that are looked at are grey."""
    chosen = spread(len(index), _LOOKED_AT)
    sides = sorted(min(size) for sample in chosen if (size := data.pixel_size(index, int(sample))))
    typical = sides[len(sides) // 2] if sides else _SIZES[-1]
    side = max((size for size in _SIZES if size <= typical), default=typical)
    return side, 1 if all(_is_grey(data, index, sample) for sample in chosen) else 3


def _is_grey(data: FileImages, index: Index, sample: int) -> bool:
    try:
        with Image.open(io.BytesIO(next(data.encoded(index, np.array([sample]))))) as image:
            return image.mode in ("1", "L", "LA", "I;16")
    except (errors.BadSample, OSError, ValueError, Image.DecompressionBombError):
        return True  # a damaged file decides nothing
