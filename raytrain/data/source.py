"""What a data source is to raytrain: an index of samples, and a way to read any of them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from raytrain import errors
from raytrain.config import at_least, check
from raytrain.data.augment import Augment
from raytrain.sources import calling, place

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, eq=False)
class Index:
    """The samples of one split, in a stable order; sample i is row i everywhere.

    Attributes:
        labels: int64 [n].
        classes: the classes' names; a label is a position in it.
        shape: (channels, height, width) of the stored uint8 images.
        split: train, val or test.
        rows: int64 [n], the sample's row in its source, for sources that number their samples.
        paths: the sample's path below the root, for sources that keep a file a sample.
        sizes: int64 [n], bytes of each file.
        times: int64 [n], when each file was last changed; only the disk cache asks for it.
        ignored: files that were found and are no samples.
    """

    labels: np.ndarray
    classes: tuple[str, ...]
    shape: tuple[int, int, int]
    split: str = ""
    rows: np.ndarray | None = None
    paths: pa.StringArray | None = None
    sizes: np.ndarray | None = None
    times: np.ndarray | None = None
    ignored: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def bytes(self) -> int:
        """Size of all images as they are stored, in bytes."""
        return len(self) * int(np.prod(self.shape))

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
            labels=self.labels[samples],
            rows=pick(self.rows),
            sizes=pick(self.sizes),
            times=pick(self.times),
            paths=None if self.paths is None else self.paths.take(samples),
        )

    def fingerprint(self) -> str:
        """A hash of which samples these are: names or rows, sizes, labels and classes. A copy of the files has the
        same, so times are left out."""
        digest = hashlib.sha256(repr((self.classes, self.shape, len(self))).encode())
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
    augment: Augment = field(default_factory=Augment)
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

    def read(self, index: Index, samples: np.ndarray) -> np.ndarray:
        """Reads samples (int64 [k]) as uint8 images [k, channels, height, width]. Runs in any process of the cluster.

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

    def image(self, index: Index) -> tuple[int, int, int]:
        """(channels, height, width) of one image as the model sees it.

        Raises:
            UserError: the crop is larger than the stored image, or mean, std or the policy do not fit its channels.
        """
        channels, height, width = index.shape
        where = type(self).__name__
        for name in ("mean", "std"):
            values = getattr(self, name)
            if len(values) not in (1, channels):
                raise errors.out_of_range(name, values, f"of 1 number or one a channel ({channels})", where)
        if self.augment.policy != "none" and channels not in (1, 3):
            raise errors.policy_misfit(self.augment.policy, channels)
        if self.crop is None:
            return index.shape
        pad = 2 * self.augment.padding
        if self.crop > min(height, width):
            raise errors.out_of_range(
                "crop",
                self.crop,
                f"of at most {min(height, width)}, the stored image's side, or None for all of it"
                + (" (padding is added in training only)" if pad else ""),
                where,
            )
        return channels, self.crop, self.crop


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


def checked_read(data: Data, index: Index, samples: np.ndarray) -> np.ndarray:
    """Return what `data.read(index, samples)` does, checked: uint8 of shape [k, *index.shape].

    Raises:
        BadSample: a sample cannot be read.
        UserError: `read` fails in another way, or the array has another dtype or shape; the first such sample is named.
    """
    try:
        return _read(data, index, samples)
    except errors.UserError:
        for sample in samples if len(samples) > 1 else ():
            _read(data, index, np.array([sample], np.int64))
        raise  # no sample is wrong alone


def _read(data: Data, index: Index, samples: np.ndarray) -> np.ndarray:
    name = index.name(int(samples[0])) + (f" to {index.name(int(samples[-1]))}" if len(samples) > 1 else "")
    called = f"{type(data).__name__}.read"
    with calling(f"{called} of {name}, {index.split}," if index.split else f"{called} of {name}"):
        images = data.read(index, samples)
    expected = (len(samples), *index.shape)
    if isinstance(images, np.ndarray) and images.dtype == np.uint8 and images.shape == expected:
        return images
    got = f"{images.dtype} {list(images.shape)}" if isinstance(images, np.ndarray) else _kind(images)
    what = f"read() must return uint8 {list(expected)}, got {got} for {name}" + (
        f", {index.split}" if index.split else ""
    )
    raise errors.UserError(what, f"in {place(type(data).read)}", _remedy(images))


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
    labels, classes, shape = index.labels, index.classes, index.shape
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
    if not (isinstance(shape, tuple) and len(shape) == 3 and all(type(side) is int and side > 0 for side in shape)):
        return f"shape must be (channels, height, width), got {shape!r}", "write three whole numbers, as (3, 32, 32)"
    for name in ("rows", "sizes", "times", "paths"):
        column = getattr(index, name)
        if column is not None and len(column) != len(labels):
            return f"{name} must have an entry for each of the {len(labels)} labels, got {len(column)}", (
                "let all columns of the index have the same length"
            )
    return None


def _kind(value: Any) -> str:
    """A value's type for a message; of a tuple or a list, that of its first item too."""
    inner = f" of {type(value[0]).__name__}" if isinstance(value, tuple | list) and value else ""
    return f"a {type(value).__module__.partition('.')[0]}.{type(value).__name__}{inner}".replace("a builtins.", "a ")


def _remedy(images: Any) -> str:
    """How to make images of what `read` has returned."""
    if not isinstance(images, np.ndarray):
        return "return a NumPy array"
    if images.dtype == np.uint8:
        return "return one image a sample, of the shape that index() declares in Index(shape=...)"
    return (
        "images are stored as uint8: scale values to 0 to 255 and round them, "
        "`np.rint(255 * (x - low) / (high - low)).astype(np.uint8)`, and set mean and std to match"
    )
