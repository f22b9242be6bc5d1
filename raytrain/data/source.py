"""What a data source is to raytrain: an index of samples, and a way to read any of them."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from raytrain import errors
from raytrain.config import at_least, check
from raytrain.data.augment import Augment
from raytrain.user_code.sources import calling, place

if TYPE_CHECKING:
    import pyarrow as pa

_TAKEN = ("bad", "label", "target")
"""Names of arrays that are no fields."""


@dataclass(frozen=True)
class Field:
    """One named array of each sample, as a source stores it.

    Attributes:
        name: a Python identifier; `bad`, `label` and `target` are taken.
        shape: of one sample: (channels, height, width) of an image, (height, width) or (channels, height, width) of a
            mask.
        dtype: the name of a NumPy type of numbers. An image of integers has their full range, one of floats 0 to 1.
        kind: what augmentation makes of it. An `image` is cropped, flipped, changed by a policy and normalised to
            float32; a `mask` is cropped and flipped as the images are; `plain` reaches the model and the task as it is.
        fill: the value beyond a mask's edges, where a random crop is padded.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str = "uint8"
    kind: Literal["image", "mask", "plain"] = "plain"
    fill: int = 0

    @property
    def bytes(self) -> int:
        """Size of one sample."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    @property
    def seen_as(self) -> str:
        """The type that the model and the task see."""
        return "float32" if self.kind == "image" else self.dtype


@dataclass(frozen=True, eq=False)
class Index:
    """The samples of one split, in a stable order; sample i is row i everywhere.

    A source of labelled images gives `labels`, `classes` and `shape`. Any other source gives `fields`, of which the
    first is the model's input, and `count` where nothing else says how many samples there are.

    Attributes:
        labels: int64 [n]; None for a source without classes.
        classes: the classes' names; a label is a position in it.
        shape: (channels, height, width) of the stored uint8 images: the one field `image`, whatever `fields` says.
        split: train, val or test.
        rows: int64 [n], the sample's row in its source, for sources that number their samples.
        paths: the sample's path below the root, for sources that keep a file a sample.
        sizes: int64 [n], bytes of each file.
        times: int64 [n], when each file was last changed; only the disk cache asks for it.
        ignored: files that were found and are no samples.
        fields: the arrays that `Data.read` returns for each sample.
        count: the number of samples.
    """

    # Typed as if they were always there: the code of a source that gives them need not ask.
    labels: np.ndarray = None  # type: ignore[assignment]
    classes: tuple[str, ...] = ()
    shape: tuple[int, int, int] = None  # type: ignore[assignment]
    split: str = ""
    rows: np.ndarray = None  # type: ignore[assignment]
    paths: pa.StringArray | None = None
    sizes: np.ndarray | None = None
    times: np.ndarray | None = None
    ignored: tuple[str, ...] = ()
    fields: tuple[Field, ...] = ()
    count: int | None = None

    def __post_init__(self) -> None:
        if self.shape is not None:  # also in a copy by dataclasses.replace()
            object.__setattr__(self, "fields", (Field("image", self.shape, kind="image"),))

    def __len__(self) -> int:
        columns = (self.labels, self.rows, self.paths, self.sizes)
        return next((len(column) for column in columns if column is not None), self.count or 0)

    @property
    def input(self) -> Field:
        """The model's input: the first field."""
        return self.fields[0]

    @property
    def sample_bytes(self) -> int:
        """Size of all arrays of a sample as they are stored."""
        return sum(field.bytes for field in self.fields)

    @property
    def bytes(self) -> int:
        """Size of all arrays of all samples as they are stored."""
        return len(self) * self.sample_bytes

    def empty(self, count: int) -> dict[str, np.ndarray]:
        """Return arrays of zeros for some samples, by the fields' names."""
        return {field.name: np.zeros((count, *field.shape), field.dtype) for field in self.fields}

    def name(self, sample: int) -> str:
        """What to call a sample in a message."""
        return str(self.paths[sample]) if self.paths is not None else f"sample {self._row(sample)}"

    def names(self, samples: np.ndarray) -> list[str]:
        """What to call each of some samples (int64 [k]); for many of them much faster than `name`."""
        if self.paths is None:
            return [self.name(sample) for sample in samples]
        return self.paths.take(samples).to_pylist()

    def take(self, samples: np.ndarray) -> Index:
        """The index of some samples, in the order given (int64 [k])."""

        def pick(array):
            return None if array is None else array[samples]

        return replace(
            self,
            labels=pick(self.labels),
            count=None if self.count is None else len(samples),
            rows=pick(self.rows),
            sizes=pick(self.sizes),
            times=pick(self.times),
            paths=None if self.paths is None else self.paths.take(samples),
        )

    def fingerprint(self) -> str:
        """A hash of which samples these are: names or rows, sizes, labels and classes. A copy of the files has the
        same, so times are left out."""
        stored = self.fields if self.shape is None else self.shape
        digest = hashlib.sha256(repr((self.classes, stored, len(self))).encode())
        for array in (self.labels, self.rows, self.sizes):
            digest.update(b"-" if array is None else np.ascontiguousarray(array).tobytes())
        if self.paths is not None:
            import pyarrow as pa
            import pyarrow.compute as pc

            lists = pa.ListArray.from_arrays([0, len(self)], self.paths.cast(pa.large_string()))
            joined = pc.call_function("binary_join", [lists, pa.scalar("\0", pa.large_string())])
            digest.update(joined[0].as_buffer())
        return digest.hexdigest()[:16]

    def _row(self, sample: int) -> int:
        return int(sample if self.rows is None else self.rows[sample])


@dataclass(frozen=True, kw_only=True)
class Data:
    """The base of all data sources. Subclass it in an experiment file, as a frozen dataclass, to bring your own.

    The base's fields are given by name, so that `ImageFolder("shapes")` is a folder and a field of your own needs no
    default.
    """

    mode: Literal["auto", "resident", "streaming"] = "auto"
    """resident keeps all decoded images in shared memory, streaming decodes them as they are needed, auto takes
    resident where it fits. Both give the same batches."""
    on_bad_sample: Literal["error", "skip"] = "error"
    """What to do with a sample that cannot be read: stop and name it, or leave it out on all workers."""
    crop: int | None = None
    """Side of the square that the model sees, cut from the stored image; None takes all of it."""
    augment: Augment = dataclasses.field(default_factory=Augment)
    """Random changes to training images."""
    mean: tuple[float, ...] = (0.5,)
    """Mean to subtract, one number or one a channel, in units of the full range."""
    std: tuple[float, ...] = (0.5,)
    """Standard deviation to divide by, likewise."""

    def __post_init__(self) -> None:
        check(
            self,
            crop=at_least(1),
            std=(lambda std: len(std) > 0 and min(std) > 0, "above 0 in each channel"),
            mean=(lambda mean: len(mean) > 0, "of one number or one a channel"),
        )

    def index(self) -> dict[str, Index]:
        """Lists the samples of each split: `train`, `val` and perhaps `test`. Runs on the driver, without Ray.

        Raises:
            UserError: the data is not there or does not parse.
        """
        raise NotImplementedError(f"{type(self).__name__} needs an index()")

    def read(self, index: Index, samples: np.ndarray) -> np.ndarray | dict[str, np.ndarray]:
        """Read samples (int64 [k]) as the arrays that `index.fields` declares, each [k, ...], by name; a source with
        one field may return the array alone. Runs in any process of the cluster.

        Raises:
            BadSample: one of them cannot be read.
        """
        raise NotImplementedError(f"{type(self).__name__} needs a read(index, samples)")

    def cache_entry(self, index: Index) -> Path | None:
        """The file that keeps a split's decoded images from run to run (`data/cache.py`), named by all that decides
        their pixels; None, as here, keeps none."""
        return None

    def notes(self) -> list[str]:
        """Lines that the plan shows about this data."""
        return []

    def probe(self, index: Index) -> list[errors.BadSample]:
        """Looks, on the driver and in little time, for samples that cannot be read."""
        return []

    def sample(self, index: Index) -> tuple[int, ...]:
        """Return the shape of the model's input for one sample, such as (channels, height, width) of an image after the
        crop.

        Raises:
            UserError: the crop is larger than a stored image, mean, std or the policy do not fit its channels or its
                type, a mask does not fit the images, or there are no images or labels for what is asked for.
        """
        images = [field for field in index.fields if field.kind == "image"]
        if not images and (self.crop is not None or self.augment.random):
            what = "crop" if self.crop is not None else "augment"
            raise errors.UserError(
                f"{what} is for images, and the data has none", f"in {type(self).__name__}", f"leave {what} out"
            )
        if self.augment.mixes and (index.labels is None or len(index.fields) > 1):
            raise errors.UserError(
                "mixup and cutmix mix one image and one label a sample, and the data has other arrays",
                f"in {type(self).__name__}",
                "leave them out",
            )
        for field in images:
            self._check_image(field)
        sides = {field.shape[-2:] for field in index.fields if field.kind in ("image", "mask")}
        if len(sides) > 1:
            raise errors.UserError(
                f"images and masks of a sample must have one height and width, got {sorted(sides)}",
                f"in {type(self).__name__}",
                "resize them in read()",
            )
        first = index.input
        if self.crop is None or first.kind == "plain":
            return first.shape
        return (*first.shape[:-2], self.crop, self.crop)

    def _check_image(self, field: Field) -> None:
        channels, height, width = field.shape
        where = type(self).__name__
        for name in ("mean", "std"):
            values = getattr(self, name)
            if len(values) not in (1, channels):
                raise errors.out_of_range(name, values, f"of 1 number or one a channel ({channels})", where)
        policy = self.augment.policy
        if policy != "none" and channels not in (1, 3):
            raise errors.UserError(
                f"{policy} takes images of 1 or 3 channels and these have {channels}",
                "in data.augment.policy",
                "take --data.augment.policy none",
            )
        if policy != "none" and field.dtype != "uint8":
            raise errors.UserError(
                f"{policy} changes images of uint8, got {field.dtype}", f"in {where}", "leave augment.policy out"
            )
        if self.crop is not None and self.crop > min(height, width):
            raise errors.out_of_range(
                "crop",
                self.crop,
                f"of at most {min(height, width)}, the stored image's side, or None for all of it"
                + (" (padding is added in training only)" if self.augment.padding else ""),
                where,
            )


def checked_indices(data: Data) -> dict[str, Index]:
    """Return what `data.index()` does, checked: int64 labels of the classes, at least one sample a split.

    Raises:
        UserError: it fails, or returns something else.
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
    for split in ("train", "val"):
        if split not in found:
            raise errors.UserError(f"index() returns no {split} split", where, f'add "{split}": Index(...)')
    for split, index in found.items():
        wrong = _wrong(index)
        if wrong:
            raise errors.UserError(f"{split}: {wrong[0]}", where, wrong[1])
    if found["val"].classes != found["train"].classes:
        raise errors.UserError(
            "train and val must have the same classes in the same order", where, "give both Index the same classes"
        )
    return found


def checked_read(data: Data, index: Index, samples: np.ndarray) -> dict[str, np.ndarray]:
    """Return what `data.read(index, samples)` does, checked: the fields' arrays by name, each [k, *shape].

    Raises:
        BadSample: a sample cannot be read.
        UserError: `read` fails in another way, or an array is missing or has another dtype or shape; the first such
            sample is named.
    """
    try:
        return _read(data, index, samples)
    except errors.UserError:
        for sample in samples if len(samples) > 1 else ():
            _read(data, index, np.array([sample], np.int64))
        raise  # no sample is wrong alone


def _read(data: Data, index: Index, samples: np.ndarray) -> dict[str, np.ndarray]:
    name = index.name(int(samples[0])) + (f" to {index.name(int(samples[-1]))}" if len(samples) > 1 else "")
    called, of = f"{type(data).__name__}.read", f"{name}, {index.split}" if index.split else name
    with calling(f"{called} of {of}," if index.split else f"{called} of {of}"):
        found: Any = data.read(index, samples)
    where = f"in {place(type(data).read)}"
    if not isinstance(found, dict):
        if len(index.fields) > 1:
            names = ", ".join(repr(field.name) for field in index.fields)
            what = f"read() must return a dict of {names}, got {_kind(found)} for {of}"
            raise errors.UserError(what, where, "return an array for each field, by its name")
        found = {index.input.name: found}
    for field in index.fields:
        if field.name not in found:
            known = ", ".join(repr(name) for name in found) or "nothing"
            what = f"read() must return {field.name!r}, got {known} for {of}"
            raise errors.UserError(what, where, "return an array for each field, by its name")
        array, expected = found[field.name], (len(samples), *field.shape)
        if isinstance(array, np.ndarray) and array.dtype == field.dtype and array.shape == expected:
            continue
        got = f"{array.dtype} {list(array.shape)}" if isinstance(array, np.ndarray) else _kind(array)
        named = f" as {field.name!r}" if len(index.fields) > 1 else ""
        what = f"read() must return {field.dtype} {list(expected)}{named}, got {got} for {of}"
        raise errors.UserError(what, where, _remedy(array, field))
    # PyTorch takes no read-only memory, such as Arrow's.
    return {field.name: np.require(found[field.name], requirements="W") for field in index.fields}


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
    """What is wrong with an index, and the remedy; None where nothing is."""
    if wrong := _wrong_fields(index):
        return wrong
    labels = index.labels
    if labels is not None and (wrong := _wrong_labels(index, labels)):
        return wrong
    if not len(index):
        return "there are no samples", "let index() list at least one"
    for name in ("rows", "sizes", "times", "paths"):
        column = getattr(index, name)
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
            return f"a field cannot be called {field.name!r}", "give each field a name of its own, as a variable's"
        if not (isinstance(field.shape, tuple) and all(type(side) is int and side > 0 for side in field.shape)):
            return f"the shape of {field.name!r} must be a tuple of whole numbers, got {field.shape!r}", (
                "write (3, 32, 32), or () for one number a sample"
            )
        try:
            known = np.dtype(field.dtype).kind in "biuf" and np.dtype(field.dtype).name == field.dtype
        except TypeError:
            known = False
        if not known or field.dtype in ("uint32", "uint64", "longdouble"):
            return f"the dtype of {field.name!r} must be the name of a type of numbers, got {field.dtype!r}", (
                'write dtype="float32", "int64" or "uint8"'
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
        return f"classes must be a tuple of strings, got {_kind(classes)}", 'write classes=("a", "b")'
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= len(classes):
        sample = int(labels.argmin() if low < 0 else labels.argmax())
        got = f"{labels[sample]} ({index.name(sample)})"
        return f"labels must be 0 to {len(classes) - 1}, the {len(classes)} classes, got {got}", (
            "number the classes from 0, and leave samples without a label out"
        )
    return None


def _kind(value: Any) -> str:
    """A value's type for a message; of a tuple or a list, that of its first item too."""
    inner = f" of {type(value[0]).__name__}" if isinstance(value, tuple | list) and value else ""
    return f"a {type(value).__module__.partition('.')[0]}.{type(value).__name__}{inner}".replace("a builtins.", "a ")


def _remedy(array: Any, field: Field) -> str:
    """How to make a field's array of what `read` has returned."""
    if not isinstance(array, np.ndarray):
        return "return a NumPy array"
    if array.dtype == field.dtype:
        return f"return one array a sample, of the shape that index() declares for {field.name!r}"
    if field.kind == "image" and field.dtype == "uint8":
        return (
            "scale values to 0 to 255 and round them, `np.rint(255 * (x - low) / (high - low)).astype(np.uint8)`, or "
            f'declare fields=(Field("{field.name}", ..., "{array.dtype}", "image"),) in index()'
        )
    return f'write `.astype("{field.dtype}")` where that loses nothing, or declare {array.dtype} in index()'


def classes_differ(train: Sequence[str], other: Sequence[str], split: str, root: object) -> errors.UserError:
    """Return the error for a split whose classes are not those of `train`."""
    lacks, more = sorted(set(train) - set(other)), sorted(set(other) - set(train))
    parts = ([f"{split} lacks {errors.listed(lacks)}"] if lacks else []) + (
        [f"train lacks {errors.listed(more)}"] if more else []
    )
    return errors.UserError(
        f"train and {split} have different classes: {' and '.join(parts)}", root, "give both the same class folders"
    )
