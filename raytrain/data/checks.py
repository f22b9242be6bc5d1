"""Checks of what a data source returns: its index, and the arrays that it reads."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from raytrain import errors
from raytrain.data.crops import Crops
from raytrain.data.source import Data, Field, Index, Kind
from raytrain.files import is_url
from raytrain.user_code.places import calling, place

if TYPE_CHECKING:
    from raytrain.data.decode_gpu import Decoder
    from raytrain.data.images import Images

_TAKEN = ("bad", "label", "target")
"""Names of arrays that a field cannot have."""


def checked_indices(data: Data) -> dict[str, Index]:
    """Return the checked result of `data.index()`: int64 labels below the number of classes, and samples in each split.
    With `data.folds`, train and val are those of its fold.

    Raises:
        UserError: it fails, or returns something else.
    """
    return data.folds.split(own_indices(data))


def own_indices(data: Data) -> dict[str, Index]:
    """Return the same with the source's own splits. With `data.folds`, there may be no val: no part of train is held
    out for it.

    Raises:
        UserError: as `checked_indices`.
    """
    kind = type(data)
    with calling(f"{kind.__name__}.index"):
        found = data.index()
    where = f"in {place(kind.index)}"
    if not isinstance(found, dict) or not all(isinstance(index, Index) for index in found.values()):
        raise errors.UserError(
            f"index() must return a dict of Index, got {_kind(found)}",
            where,
            'return {"train": Index(...), "val": Index(...)}',
        )
    for split in ("train",) if data.folds.count else ("train", "val"):
        if split not in found:
            raise errors.UserError(f"index() returns no {split} split", where, f'add "{split}": Index(...)')
    for split, index in found.items():
        wrong = _wrong(index)
        if wrong:
            raise errors.UserError(f"{split}: {wrong[0]}", where, wrong[1])
    for split, index in found.items():
        # A test split without labels may be predicted, without names of classes.
        if index.classes != found["train"].classes and (split == "val" or index.labels is not None or index.classes):
            what = f"train and {split} must have the same classes in the same order"
            raise errors.UserError(what, where, "give both Index the same classes")
    return found


def checked_read(
    data: Data,
    index: Index,
    samples: np.ndarray,
    out: dict[str, np.ndarray] | None = None,
    crops: Crops | None = None,
    decoder: Decoder | None = None,
) -> dict[str, np.ndarray]:
    """Return the checked result of `data.read(index, samples)`: the fields' arrays by name, each [k, *shape].

    Args:
        out: arrays that a source whose ranks read by themselves fills and returns.
        crops: what `read` is to return of whole images; `index` then declares their shape.
        decoder: the GPU's, for a source that is `on_gpu`.

    Raises:
        BadSample: a sample cannot be read.
        UserError: `read` fails in another way, or an array is missing or has another dtype or shape; the first such
            sample is named.
    """
    if not len(samples):  # a rank may have none of an epoch's last batch
        return index.empty(0)
    try:
        return _read(data, index, samples, out if data.direct else None, crops, decoder)
    except errors.UserError:
        for row in range(len(samples)) if len(samples) > 1 else ():
            part = slice(row, row + 1)
            _read(data, index, samples[part], crops=crops and crops.rows(part))
        raise  # each sample by itself is right


def _read(
    data: Data,
    index: Index,
    samples: np.ndarray,
    out: dict[str, np.ndarray] | None = None,
    crops: Crops | None = None,
    decoder: Decoder | None = None,
) -> dict[str, np.ndarray]:
    of = _named(index, samples)
    with calling(f"{type(data).__name__}.read of {of}" + ("," if index.split else "")):
        read: Any = data.read
        given = ("out", out), ("crops", crops), ("decoder", decoder)
        more = {name: value for name, value in given if value is not None}
        found: Any = read(index, samples, **more)
    where = f"in {place(type(data).read)}"
    if not isinstance(found, dict):
        if len(index.fields) > 1:
            names = ", ".join(repr(field.name) for field in index.fields)
            what = f"read() must return a dict of {names}, got {_kind(found)} for {of}"
            raise errors.UserError(what, where, "return an array for each field, by its name")
        found = {index.input.name: found}
    return _arrays(found, index.fields, len(samples), of, where, "read()")


def checked_further(data: Images, index: Index, samples: np.ndarray) -> dict[str, np.ndarray]:
    """Return the checked result of `data.further(index, samples)`: the arrays of the fields after the image.

    Raises:
        BadSample: a sample cannot be read.
        UserError: it fails, or an array is missing or has another dtype or shape.
    """
    of = _named(index, samples)
    with calling(f"{type(data).__name__}.further of {of}" + ("," if index.split else "")):
        found = data.further(index, samples)
    return _arrays(found, index.fields[1:], len(samples), of, f"in {place(type(data).further)}", "further()")


def _named(index: Index, samples: np.ndarray) -> str:
    """Return the first and the last of some samples, and their split, for a message."""
    name = index.name(int(samples[0])) + (f" to {index.name(int(samples[-1]))}" if len(samples) > 1 else "")
    return f"{name}, {index.split}" if index.split else name


def _arrays(
    found: dict[str, Any], fields: tuple[Field, ...], count: int, of: str, where: str, called: str
) -> dict[str, np.ndarray]:
    """Return the fields' arrays, after comparing dtype and shape."""
    undeclared = [repr(key) for key in found if key not in {field.name for field in fields}]
    if undeclared:
        what = f"{called} returns {', '.join(undeclared)} for {of}, which index() does not declare"
        raise errors.UserError(what, where, "add a Field for it to the fields of Index, or leave it out")
    for field in fields:
        if field.name not in found:
            known = ", ".join(repr(name) for name in found) or "nothing"
            what = f"{called} must return {field.name!r}, got {known} for {of}"
            raise errors.UserError(what, where, "return an array for each field, by its name")
        array, expected = found[field.name], (count, *field.shape)
        if isinstance(array, np.ndarray) and array.dtype == field.dtype and array.shape == expected:
            continue
        got = f"{array.dtype} {list(array.shape)}" if isinstance(array, np.ndarray) else _kind(array)
        named = f" as {field.name!r}" if len(fields) > 1 else ""
        what = f"{called} must return {field.dtype} {list(expected)}{named}, got {got} for {of}"
        raise errors.UserError(what, where, _remedy(array, field))
    # Torch accepts neither read-only memory, such as a mapped file's, nor negative strides, as in `array[..., ::-1]`.
    return {field.name: np.require(found[field.name], requirements=("C", "W")) for field in fields}


def classes_differ(
    train: Sequence[str], other: Sequence[str], split: str, root: object, what: str = "the same class folders"
) -> errors.UserError:
    """Return the error for a split whose classes are not those of `train`; both are to be given `what`."""
    lacks, more = sorted(set(train) - set(other)), sorted(set(other) - set(train))
    if sorted(train) == sorted(other):
        place = next(place for place, (one, two) in enumerate(zip(train, other, strict=True)) if one != two)
        differ = f"train and {split} have the same classes in another order: class {place} is {train[place]!r} in train"
        return errors.UserError(f"{differ}, and {other[place]!r} in {split}", root, f"give both {what} in one order")
    parts = ([f"{split} lacks {errors.listed(lacks)}"] if lacks else []) + (
        [f"train lacks {errors.listed(more)}"] if more else []
    )
    return errors.UserError(
        f"train and {split} have different classes: {' and '.join(parts)}", root, f"give both {what}"
    )


def check_samples(data: Data, index: Index) -> None:
    """Read the first, the middle and the last sample of a split.

    Raises:
        UserError: `read` fails, or returns another dtype or shape than the index declares; or a sample cannot be read
            and may not be skipped.
    """
    for sample in sorted({0, len(index) // 2, len(index) - 1}):
        try:
            checked_read(data, index, np.array([sample], np.int64))
        except errors.BadSample as bad:
            if data.on_bad_sample == "error":
                raise errors.bad_sample(bad.path, bad.reason) from None


def _wrong(index: Index) -> tuple[str, str] | None:
    """Return what is wrong with an index, and the remedy; None if it is right."""
    if wrong := _wrong_fields(index):
        return wrong
    labels, count = index.labels, index.count
    if count is not None and (isinstance(count, bool) or not isinstance(count, int | np.integer) or count < 0):
        return f"count must be a whole number of samples, got {count!r}", "write count=1000"
    if labels is not None and (wrong := _wrong_labels(index, labels)):
        return wrong
    if not len(index):
        return "there are no samples", "let index() list at least one"
    if not isinstance(index.columns, dict):
        return f"columns must be a dict of arrays, got {_kind(index.columns)}", 'write columns={"weight": array}'
    for name, column in index.columns.items():
        if not isinstance(column, np.ndarray) or column.ndim != 1 or column.dtype.kind not in "biufU":
            got = f"{column.dtype} {list(column.shape)}" if isinstance(column, np.ndarray) else _kind(column)
            return f"column {name!r} must be an array of numbers or strings, [n], got {got}", "write np.array(values)"
    if (
        index.shares
        and not np.isin(index.columns.get("source", np.array(["none"])), np.arange(len(index.shares))).all()
    ):
        return "shares need a column 'source' with the number of each sample's share", "leave shares out"
    for name in ("rows", "sizes", "times"):
        column = getattr(index, name)
        if column is not None and not (
            isinstance(column, np.ndarray) and column.ndim == 1 and column.dtype.kind in "iu"
        ):
            return (
                f"{name} must be an array of whole numbers, [n], got {_kind(column)}",
                f"write {name}=np.array(numbers)",
            )
    kind = str(getattr(index.paths, "type", ""))
    if index.paths is not None and (kind not in ("string", "large_string") or hasattr(index.paths, "num_chunks")):
        return f"paths must be one Arrow array of text, got {_kind(index.paths)}", "write paths=pa.array(names)"
    columns = {name: getattr(index, name) for name in ("rows", "sizes", "times", "paths")} | index.columns
    for name, column in columns.items():
        if column is not None and len(column) != len(index):
            of = "labels" if labels is not None else "samples"
            return f"{name} must have an entry for each of the {len(index)} {of}, got {len(column)}", (
                "let all columns of the index have the same length"
            )
    return None


def _wrong_fields(index: Index) -> tuple[str, str] | None:
    shape = index.shape
    if shape is not None and not (
        isinstance(shape, tuple) and len(shape) == 3 and all(type(side) is int and side > 0 for side in shape)
    ):
        return f"shape must be (channels, height, width), got {shape!r}", "write three whole numbers, as (3, 32, 32)"
    example = 'write fields=(Field("image", (3, 32, 32), kind="image"),)'
    if not isinstance(index.fields, tuple) or not all(isinstance(field, Field) for field in index.fields):
        return f"fields must be a tuple of Field, got {_kind(index.fields)}", example
    if not index.fields:
        return "the index has neither a shape nor fields", f"write shape=(3, 32, 32) for images, or {example[6:]}"
    names = [field.name for field in index.fields]
    for field in index.fields:
        if not str(field.name).isidentifier() or field.name in _TAKEN or names.count(field.name) > 1:
            how = "give each field a name of its own, as a variable's"
            if field.name == "target":
                how = "call a sample's class `label`, and other targets as what they are, such as `price` or `tags`"
            return f"a field cannot be called {field.name!r}", how
        if not (isinstance(field.shape, tuple) and all(type(side) is int and side > 0 for side in field.shape)):
            return f"the shape of {field.name!r} must be a tuple of whole numbers, got {field.shape!r}", (
                "write (3, 32, 32), or () for one number per sample"
            )
        try:
            known = np.dtype(field.dtype).kind in "biuf" and np.dtype(field.dtype).name == field.dtype
        except TypeError:
            known = False
        if not known or field.dtype in ("uint32", "uint64", "longdouble"):
            text = "str" in str(field.dtype) or str(field.dtype)[:2] in ("<U", "|S") or field.dtype == "object"
            return f"the dtype of {field.name!r} must be the name of a type of numbers, got {field.dtype!r}", (
                "keep text in the source, and look it up by the samples' numbers, which a batch has as ids"
                if text
                else 'write dtype="float32", or bool, int8 to int64, uint8, uint16, float16 or float64'
            )
        if field.kind not in get_args(Kind):
            close = get_close_matches(str(field.kind), get_args(Kind), n=1)
            return f"the kind of {field.name!r} must be one of {', '.join(get_args(Kind))}, got {field.kind!r}", (
                f"did you mean {close[0]!r}?" if close else 'write kind="plain" for what augmentation must not change'
            )
        if field.kind == "mask" and not _holds(field.dtype, field.fill):
            return f"{field.dtype} of the mask {field.name!r} cannot hold its fill, {field.fill!r}", (
                f"give fill another value, or {field.name!r} another dtype"
            )
        if field.kind == "image" and len(field.shape) != 3:
            return f"an image's shape must be (channels, height, width), got {field.shape} for {field.name!r}", (
                'write three whole numbers, as (3, 32, 32), or kind="plain"'
            )
        if field.kind == "mask" and len(field.shape) not in (2, 3):
            return f"a mask's shape must be (height, width), got {field.shape} for {field.name!r}", (
                'write two whole numbers, as (32, 32), or kind="plain"'
            )
    return None


def _holds(dtype: str, value: Any) -> bool:
    """Return whether a numeric dtype can hold a value exactly."""
    try:
        return np.array(value, dtype).item() == value
    except (OverflowError, TypeError, ValueError):
        return False


def _wrong_labels(index: Index, labels: Any) -> tuple[str, str] | None:
    classes = index.classes
    if not isinstance(labels, np.ndarray) or labels.ndim != 1 or labels.dtype != np.int64:
        got = f"{labels.dtype} {list(labels.shape)}" if isinstance(labels, np.ndarray) else _kind(labels)
        lossless = isinstance(labels, np.ndarray) and labels.dtype.kind in "iub"
        how = "write labels.astype(np.int64)" if lossless else "give the number of each sample's class"
        return f"labels must be int64 [n], got {got}", how
    if not len(labels):
        return "there are no samples", "let index() list at least one"
    if not isinstance(classes, tuple) or not classes or not all(isinstance(name, str) for name in classes):
        got = _kind(classes) if classes else classes
        return f"classes must be a tuple of strings, got {got}", 'write classes=("a", "b")'
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= len(classes):
        sample = int(labels.argmin() if low < 0 else labels.argmax())
        got = f"{labels[sample]} ({index.name(sample)})"
        return f"labels must be 0 to {len(classes) - 1}, the {len(classes)} classes, got {got}", (
            "number the classes from 0, and leave samples without a label out"
        )
    return None


def _kind(value: Any) -> str:
    """Return a value's type for a message, for a tuple or a list with the type of its first item."""
    inner = f" of {type(value[0]).__name__}" if isinstance(value, tuple | list) and value else ""
    return f"a {type(value).__module__.partition('.')[0]}.{type(value).__name__}{inner}".replace("a builtins.", "a ")


def _remedy(array: Any, field: Field) -> str:
    """Return how to make a field's array from what `read` has returned."""
    if not isinstance(array, np.ndarray):
        return "return a NumPy array"
    if array.dtype == field.dtype:
        return f"return one array per sample, of the shape that index() declares for {field.name!r}"
    if field.kind == "image" and field.dtype == "uint8":
        return (
            "scale values to 0 to 255 and round them, `np.rint(255 * (x - low) / (high - low)).astype(np.uint8)`, or "
            f'declare fields=(Field("{field.name}", ..., "{array.dtype}", "image"),) in index()'
        )
    return f'write `.astype("{field.dtype}")` where that loses nothing, or declare {array.dtype} in index()'


def same_data(before: Mapping[str, str], now: Mapping[str, str]) -> bool:
    """Return whether data are those of before, by the fingerprints of their splits. Those of packs once lacked the
    part about their contents, which follows a dash."""
    if before.keys() != now.keys():
        return False
    return all(now[split] == one or now[split].startswith(f"{one}-") for split, one in before.items())


@contextlib.contextmanager
def perhaps_moved(data: Data, how: str) -> Iterator[None]:
    """Say what to do where a run's data are no longer in their place on this machine."""
    try:
        yield
    except errors.UserError as error:
        root = str(getattr(data, "root", ""))
        place, said = os.path.expanduser(root), f"{error.what} {error.where}"
        if not root or is_url(root) or "*" in root or os.path.lexists(place):
            raise
        if not any(one in said for one in (root, os.path.normpath(place), os.path.abspath(place))):
            raise  # of something else: a root may be the name of a data set
        raise errors.UserError(error.what, error.where, how) from None
