"""Write a first experiment file for a folder or a table of images."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from PIL import Image

from raytrain import errors
from raytrain.data import MNIST, Data, ImageFolder, Index, Manifest, MaskFolder, masks
from raytrain.data.checks import checked_indices
from raytrain.data.image_files import tree
from raytrain.data.images import FileImages
from raytrain.data.late import with_pillow
from raytrain.data.manifest import TABLES
from raytrain.data.maskfolder import recognised
from raytrain.files import expanded
from raytrain.tools.output import check_output

_SIZES = (32, 64, 96, 128, 160, 192, 224, 256)
"""Sides of stored images to choose from: the largest that enlarges no typical image."""
_LOOKED_AT = 32
_MASKS = 200
"""Masks whose numbers are looked at."""
_UNEVEN = 1.5
"""Ratio of the largest to the smallest class above which weights are suggested."""
_WEIGHTS = "# The weights are torchvision's, downloaded once. Without them: --model.weights none"
"""Pretrained weights: from nothing, a few hundred photographs teach a ResNet little."""


def check_new(out: Path) -> None:
    """Check that a new experiment file can be written.

    Raises:
        UserError: there is one already, or its place cannot be written.
    """
    check_output(out, (".py",))
    if out.exists() or out.is_symlink():
        raise errors.UserError("the file exists", out, "give another name with --out FILE")


def experiment_text(folder: Path, out: Path) -> tuple[str, list[str]]:
    """Return the text of an experiment file for a folder of images, at most 25 lines, and what it says of images that
    cannot be read.

    Args:
        folder: in a layout of ImageFolder or MaskFolder, or with MNIST's files; or a table of images and their classes.
        out: the file's name, for the command in its docstring.

    Raises:
        UserError: the folder has no such layout or one class alone, the table has no classes, or none of a split's
            images can be read.
    """
    root = expanded(folder)
    root = root.resolve() if ".." in root.parts else root.absolute()
    table = root.is_file() and root.name.lower().endswith(TABLES)
    if not table and (masked := _masked(root)) is not None:
        return _of_masks(root, masked, out)
    mnist = (root / "MNIST" / "raw").is_dir()
    data: MNIST | FileImages = MNIST(str(root)) if mnist else _classes_of(root) if table else ImageFolder(str(root))
    found = checked_indices(data)
    train, val = found["train"], found["val"]
    _check_classes(root, train.classes)
    counts = np.bincount(train.labels, minlength=len(train.classes))
    notes = _unreadable(data, (train, val))
    if isinstance(data, MNIST):
        model, source = "CNN(channels=(32, 64))", f"MNIST({_quoted(str(root))})"
    else:
        side, channels = _form(data, train)
        small = side <= 64
        model = "CNN(channels=(32, 64, 128))" if small else 'Torchvision("resnet18", weights="hub")'
        grey = ", channels=1" if channels == 1 else ""
        skip = ', on_bad_sample="skip"' if notes else ""
        column = f", bytes={_quoted(data.bytes)}" if isinstance(data, Manifest) and data.bytes else ""
        given = f"{_quoted(str(root))}{column}, size={side}{grey}{skip}"
        source = f"{type(data).__name__}({given}, augment=Augment(flip=0.5))"
    tuned = model.startswith("Torchvision")
    names = {"Cosine", "Experiment", "SGD", *(each.split("(")[0] for each in (model, source))}
    names |= set() if mnist else {"Augment"}
    values = {
        "model": model,
        "data": source,
        "optimizer": f"SGD(lr={0.005 if tuned else 0.05}, momentum=0.9)",
        "schedule": "Cosine(warmup_epochs=1)",
        "batch_size": 64 if len(train) >= 640 else 16,
        "epochs": 10,
    }
    about = f"{len(train):,} images to train on and {len(val):,} to validate on, in {len(counts)} classes."
    comments = [*_comments(train.classes, counts), *(f"# {note}" for note in notes), *([_WEIGHTS] if tuned else ())]
    return _text(about, out, names, comments, values), notes


def _text(about: str, out: Path, names: set[str], comments: list[str], values: dict[str, object]) -> str:
    """Return an experiment file.

    Args:
        about: the first line of its docstring.
        names: what it imports.
        values: the code of the experiment's fields.
    """
    lines = [
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
        *comments,
        "experiment = Experiment(",
        *(f"    {name}={value}," for name, value in values.items()),
        ")",
    ]
    return "\n".join(lines) + "\n"


def _masked(root: Path) -> MaskFolder | None:
    """Return the source of a folder with images and masks; None for another folder."""
    try:
        return recognised(str(root), tree(str(root)))
    except OSError:  # reported when it is read
        return None


def _of_masks(root: Path, data: MaskFolder, out: Path) -> tuple[str, list[str]]:
    """Return the text for a folder with images and masks, as `experiment_text`."""
    found = checked_indices(data)
    train, val = found["train"], found["val"]
    notes = _unreadable(data, (train, val))
    numbers = _numbers(data, train) | _numbers(data, val)
    values, classes = _meaning(numbers)
    given = {name: getattr(data, name) for name in ("images", "masks", "image_ending", "mask_ending")}
    fields = [
        _quoted(str(root)),
        *(f"{name}={_quoted(value)}" for name, value in given.items() if value != getattr(MaskFolder, name)),
        *([f"mask_values={values}"] if values else []),
        f"size={_form(data, train)[0]}",
        *(['on_bad_sample="skip"'] if notes else []),
        "augment=Augment(flip=0.5)",
    ]
    code = {
        "model": f'Torchvision("lraspp_mobilenet_v3_large", weights="hub", outputs={classes})',
        "data": f"MaskFolder({', '.join(fields)})",
        "task": "Segmentation()",
        "optimizer": "Adam(lr=1e-3)",
        "schedule": "Cosine(warmup_epochs=1)",
        "batch_size": 16,
        "epochs": 10,
    }
    about = f"{len(train):,} images to train on and {len(val):,} to validate on, with a mask each."
    comments = [
        f"# Numbers in masks: {errors.listed(sorted(numbers), 24)}",
        *(f"# {note}" for note in notes),
        "# The weights are torchvision's, downloaded once. Larger models: fcn_resnet50, deeplabv3_resnet50",
    ]
    names = {"Adam", "Augment", "Cosine", "Experiment", "MaskFolder", "Segmentation", "Torchvision"}
    return _text(about, out, names, comments, code), notes


def _numbers(data: MaskFolder, index: Index) -> set[int]:
    """Return the numbers in some masks.

    Raises:
        UserError: none of these masks can be read.
    """
    found, bad = set[int](), None
    for sample in masks.looked_at(len(index), _MASKS):
        try:
            raws = list(data.encoded_masks(index, np.array([sample])))
            found |= masks.numbers(raws)
            if not found:
                data.read(index, np.array([sample]))
        except errors.BadSample as error:
            bad = bad or error
    if not found and bad is not None:
        how = "write the number of its class for each pixel, as a grey PNG"
        raise errors.UserError(
            f"no mask can be read; the first error: {bad.reason.removeprefix('mask: ')}", bad.path, how
        )
    return found


def _meaning(numbers: set[int]) -> tuple[tuple[int, ...], int]:
    """Return the `mask_values` of masks with some numbers, which may be empty, and how many classes there are."""
    counted = sorted(numbers - {masks.IGNORED})
    if len(counted) > 1 and counted[-1] < 4 * len(counted):  # numbers of classes, and perhaps pixels without one
        return ((), counted[-1] + 1) if counted[0] == 0 else (tuple(counted), len(counted))
    if 1 < len(numbers) <= 24:  # grey values, such as 0 and 255
        return tuple(sorted(numbers)), len(numbers)
    return (), max([1, *counted]) + 1


def _classes_of(table: Path) -> Manifest:
    """Return the source of a table.

    Raises:
        UserError: it has no column `label`, or none of images.
    """
    found, tables = Manifest(str(table)).with_images(), with_pillow().tables
    names = tables.schema(tables.files(str(table))[0]).names
    lacking = [one for one in ([] if found.bytes else [found.path]) + [found.label] if one not in names]
    if lacking:
        fields = 'label="COLUMN" for classes, labels="COLUMN" for several of an image, target=("COLUMN",) for numbers, '
        fields = fields + 'or mask="COLUMN" for masks' if lacking[0] == found.label else 'path="COLUMN"'
        what = f"the table has no column {lacking[0]!r}: its columns are {errors.listed(map(str, names), 12)}"
        raise errors.UserError(what, table, f"write {_manifest(table)} into an experiment file, with {fields}")
    return found


def _manifest(table: Path) -> str:
    """Return the code of a source that reads a table."""
    return f"data=Manifest({_quoted(str(table))})"


def _check_classes(root: Path, classes: tuple[str, ...]) -> None:
    """Check that there are classes to tell apart."""
    if len(classes) != 1:
        return
    tables = sorted(one for kind in TABLES for one in root.glob(f"*{kind}"))
    how = "give a table with several" if root.is_file() else "give a folder with a folder for each class"
    if tables:
        how = f"did you mean {errors.command('new', str(tables[0]))}? It reads images and labels from a table"
    raise errors.UserError(f"there is one class of images, {classes[0]!r}", root, how)


def _unreadable(data: Data, indices: tuple[Index, ...]) -> list[str]:
    """Return a line about the images that a first look finds unreadable, as a plan does; none where all are whole.

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
    return [f"{are} left out, by on_bad_sample: {errors.listed(found, 3)}"]


def _quoted(text: str) -> str:
    """Return a string as Python code, in double quotes unless it holds some."""
    found = repr(text)
    return found if '"' in found else f'"{found[1:-1]}"'


def _comments(classes: tuple[str, ...], counts: np.ndarray) -> list[str]:
    """Return the images of each class, and weights where they are uneven."""
    shown = errors.listed((f"{name!r} {count}" for name, count in zip(classes, counts, strict=True)), 12)
    lines = [f"# Training images of each class: {shown}"]
    present = counts[counts > 0]
    if present.max() > _UNEVEN * present.min():
        lines.append("# The classes are uneven: consider sampler=Balanced()")
        if len(counts) <= 12 and len(present) == len(counts):
            weights = ", ".join(f"{weight:.3g}" for weight in counts.sum() / (len(counts) * counts))
            lines[-1] += f", or task=Classification(class_weights=({weights},))"
    return lines


def _form(data: FileImages, index: Index) -> tuple[int, int]:
    """Return the side that fits typical images, and 1 channel where all that are looked at are grey."""
    chosen = np.unique(np.linspace(0, len(index) - 1, min(len(index), _LOOKED_AT)).astype(np.int64))
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
