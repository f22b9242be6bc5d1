"""What a first experiment file says of what is to be predicted: classes, numbers or masks."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from raytrain import errors
from raytrain.data import Index, Manifest, masks
from raytrain.data.images import FileImages
from raytrain.data.masks import MaskedImages
from raytrain.order import spread

_MASKS = 200
"""Masks whose numbers are looked at."""
_UNEVEN = 1.5
"""Ratio of the largest to the smallest class above which weights are suggested."""
_SHOWN = 3
"""Columns of numbers whose ranges are shown."""
_WEIGHTS = "The weights are torchvision's, downloaded once. Without them: --model.weights none"
"""Pretrained weights: from nothing, a few hundred photographs teach a ResNet little."""


class Task(NamedTuple):
    """What a file says of what is to be predicted.

    Attributes:
        about: what each image has, for the first line.
        comments: of the values to predict.
        model, optimizer: their code.
        task: its code; empty for a classification.
        fields: code of further fields of the source.
        notes: what may be wrong, in lines that are also printed.
    """

    about: str
    comments: list[str]
    model: str
    optimizer: str
    task: str = ""
    fields: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def classification(train: Index, model: str, column: str = "") -> Task:
    """Return what a file says of classes.

    Args:
        column: that of a table.
    """
    counts = np.bincount(train.labels, minlength=len(train.classes))
    tuned = model.startswith("Torchvision")
    comments = [*_comments(train.classes, counts), *([_WEIGHTS] if tuned else [])]
    numbers = column and all(re.fullmatch(r"-?\d+\.\d*", name) for name in train.classes)
    notes = lines(f"Each number in column {column!r} is a class: --target predicts numbers") if numbers else []
    optimizer = f"SGD(lr={0.005 if tuned else 0.05}, momentum=0.9)"
    return Task(f"in {len(counts)} classes", comments, model, optimizer, notes=tuple(notes))


def predicted(data: FileImages, train: Index, model: str) -> Task:
    """Return what a file says of classes, or of numbers or several classes in a table."""
    if not isinstance(data, Manifest) or train.labels is not None:
        return classification(train, model, data.label if isinstance(data, Manifest) else "")
    (values,) = data.further(train, np.arange(len(train))).values()
    values = values.reshape(len(values), -1)
    count = values.shape[1]
    tuned = model.startswith("Torchvision")
    optimizer = "Adam(lr=1e-3, backbone_lr_factor=0.1)" if tuned else "Adam(lr=1e-3)"
    weights = [_WEIGHTS] if tuned else []
    with_outputs = f"{model.removesuffix(')')}, outputs={count})"
    several = f"with any of {count} class{'es' * (count != 1)} each"
    if data.labels:
        comments = [*_counted(train.classes, values), *weights]
        notes = _separators(data, train.classes)
        return Task(several, comments, model, optimizer, "MultiLabel()", notes=notes)
    names = data.target if len(data.target) == count else [f"{data.target[0]} {number}" for number in range(count)]
    if np.isin(values, (0, 1)).all():
        task = f"MultiLabel(classes={code(data.target)})" if len(data.target) == count else "MultiLabel()"
        comments = [*_counted(names, values), *weights]
        return Task(several, comments, with_outputs, optimizer, task)
    of_each = f"with {f'{count} numbers' if count > 1 else 'a number'} each to predict"
    values = values.astype(np.float64)
    comments = [*_ranges(names, values), *weights]
    named = f", names={code(data.target)}" if len(data.target) == count > 1 else ""
    return Task(of_each, comments, with_outputs, optimizer, f'Regression(monitor="val_mae"{_scaled(values)}{named})')


def _scaled(values: np.ndarray) -> str:
    """Return the code of the fields of Regression that scale some numbers, float64 [n, k]."""
    mean, std = values.mean(0), values.std(0)
    if not (std > 0).all():
        return ""
    return "".join(f", {name}=({_listed(one)})" for name, one in (("mean", mean), ("std", std)))


def _listed(numbers: np.ndarray) -> str:
    """Return the code of a tuple's numbers."""
    return ", ".join(f"{number:.4g}" for number in numbers) + ("," if len(numbers) == 1 else "")


def segmentation(data: MaskedImages, indices: tuple[Index, ...]) -> Task:
    """Return what a file says of masks."""
    numbers = set[int]().union(*(_numbers(data, index) for index in indices))
    numbers |= set() if data.missing_mask is None else {data.missing_mask}
    values, classes = _meaning(numbers)
    comments = [
        *lines(f"Numbers in masks: {errors.listed(sorted(numbers), 24)}"),
        "The weights are torchvision's, downloaded once. Larger models: fcn_resnet50, deeplabv3_resnet50",
    ]
    model = f'Torchvision("lraspp_mobilenet_v3_large", weights="hub", outputs={classes})'
    fields = (f"mask_values={values}",) if values else ()
    return Task("with a mask each", comments, model, "Adam(lr=1e-3)", "Segmentation()", fields)


def _numbers(data: MaskedImages, index: Index) -> set[int]:
    """Return the numbers in some masks.

    Raises:
        UserError: none of these masks can be read.
    """
    found, bad = set[int](), None
    for sample in spread(len(index), _MASKS):
        try:
            raws = [raw for raw in data.encoded_masks(index, np.array([sample])) if raw is not None]
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


def _comments(classes: tuple[str, ...], counts: np.ndarray) -> list[str]:
    """Return the images of each class, and weights where they are uneven."""
    found = _of_classes(classes, counts)
    present = counts[counts > 0]
    if present.max() > _UNEVEN * present.min():
        found.append("The classes are uneven: consider sampler=Balanced()")
        if len(counts) <= 12 and len(present) == len(counts):
            weights = ", ".join(f"{weight:.3g}" for weight in counts.sum() / (len(counts) * counts))
            found[-1] += f", or task=Classification(class_weights=({weights},))"
    return found


def _counted(classes: Sequence[str], values: np.ndarray) -> list[str]:
    """Return the images of each of several classes (0 and 1 in values [n, classes]), and those without any."""
    none = int((values.sum(1) == 0).sum())
    return [*_of_classes(classes, (values > 0).sum(0)), *([f"Training images of no class: {none}"] if none else [])]


def _of_classes(classes: Sequence[str], counts: np.ndarray) -> list[str]:
    shown = errors.listed((f"{name!r} {count}" for name, count in zip(classes, counts, strict=True)), 12)
    return lines(f"Training images of each class: {shown}")


def _separators(data: Manifest, classes: Sequence[str]) -> tuple[str, ...]:
    """Return a note where the names of several classes seem to be separated otherwise."""
    mark = next((mark for mark in "|;," if mark != data.separator and any(mark in name for name in classes)), None)
    name = next((name for name in classes if mark and mark in name), "")
    how = f"The class {name!r} has {mark!r} in its name: --separator {mark!r} takes it apart"
    return tuple(lines(how)) if mark else ()


def _ranges(names: Sequence[str], values: np.ndarray) -> list[str]:
    """Return the ranges of some numbers, float64 [n, names]."""
    found = [
        f"{name!r} {one.min():.4g} to {one.max():.4g}, mean {one.mean():.4g}, standard deviation {one.std():.4g}"
        for name, one in zip(names, values.T, strict=True)
    ]
    more = [f"and {len(found) - _SHOWN} more"] if len(found) > _SHOWN else []
    return [line for one in ["Numbers of the training images:", *found[:_SHOWN], *more] for line in lines(one)]


def lines(text: str, indent: str = "") -> list[str]:
    """Return a text in lines that have room in 80 columns behind "# ", where words are not longer."""
    return textwrap.wrap(
        text,
        78,
        initial_indent=indent,
        subsequent_indent=f"{indent}  ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def code(value: int | str | tuple[str, ...]) -> str:
    """Return a number, a string, or a tuple of strings, as Python code."""
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        return quoted(value)
    return f"({', '.join(map(quoted, value))}{',' if len(value) == 1 else ''})"


def quoted(text: str) -> str:
    """Return a string as Python code, in double quotes unless it holds some."""
    found = repr(text)
    return found if '"' in found else f'"{found[1:-1]}"'
