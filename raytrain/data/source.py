"""The base class of data sources: an index of samples, and a way to read any of them."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from raytrain import errors
from raytrain.config import check
from raytrain.data.augment import Augment, mixed_field
from raytrain.data.folds import Folds

if TYPE_CHECKING:
    import pyarrow as pa

Kind = Literal["image", "mask", "plain"]


@dataclass(frozen=True)
class Field:
    """One named array of each sample, as a source stores it.

    Attributes:
        name: a Python identifier; `bad`, `label` and `target` are taken.
        shape: of one sample: (channels, height, width) of an image, (height, width) or (channels, height, width) of a
            mask.
        dtype: the name of a NumPy type of numbers. Integers of an image use their type's full range, floats 0 to 1.
        kind: how augmentation treats it. An `image` is cropped, flipped, changed by a policy and normalised to
            float32; a `mask` is cropped and flipped as the images are; `plain` fields reach the task unchanged.
        fill: the value of a mask beyond its edges, in a padded random crop; its dtype must be able to hold it.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str = "uint8"
    kind: Kind = "plain"
    fill: int = 0

    @property
    def bytes(self) -> int:
        """Size of one sample."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    @property
    def seen_as(self) -> str:
        """The dtype that the model and the task see."""
        return "float32" if self.kind == "image" else self.dtype


@dataclass(frozen=True, eq=False)
class Index:
    """The samples of one split, in a stable order; sample i is row i everywhere.

    A source of labelled images gives `labels`, `classes` and `shape`. Any other source gives `fields`, of which the
    first is the model's input, and `count` if `labels`, `rows`, `paths` and `sizes` are all None.

    Attributes:
        labels: int64 [n]; None for a source without classes.
        classes: the classes' names; a label is a position in it.
        shape: (channels, height, width) of stored uint8 images; `image` is then the only field, whatever `fields` says.
        split: train, val or test.
        rows: int64 [n], the sample's row in its source, for sources that number their samples.
        paths: the sample's path below the root, for sources with one file per sample.
        sizes: int64 [n], bytes of each file.
        times: int64 [n], when each file was last changed; used by the disk cache only.
        ignored: files that are not samples.
        fields: the arrays that `Data.read` returns for each sample.
        count: the number of samples.
        columns: values of samples that are known without reading them, [n] each, by name: weights, groups.
        shares: the shares of an epoch of the parts 0, 1, ... that the column `source` names; set by `Mixed`.
        notes: lines that the plan shows; those of train.
        validate: the number of the part whose samples alone validate in folds; None for all. Set by `Mixed`.
    """

    # Typed as if they were never None, so that a source that sets them need not check.
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
    columns: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    shares: tuple[float, ...] = ()
    notes: tuple[str, ...] = ()
    validate: int | None = None

    def __post_init__(self) -> None:
        if self.shape is not None:  # also in a copy by dataclasses.replace()
            if len(self.fields) > 1:
                what = f"shape stands for one image, and fields has {len(self.fields)} fields"
                raise errors.UserError(what, "in Index", "leave shape out: Index(fields=..., shape=None)")
            object.__setattr__(self, "fields", (Field("image", self.shape, kind="image"),))

    def __len__(self) -> int:
        columns = (self.labels, self.rows, self.paths, self.sizes)
        return next((len(column) for column in columns if column is not None), self.count or 0)

    @property
    def input(self) -> Field:
        """The model's input: the first field."""
        return self.fields[0]

    @property
    def in_files(self) -> bool:
        """Whether each sample is a file."""
        return self.paths is not None

    @property
    def validates(self) -> np.ndarray | None:
        """Which samples may validate in a fold, bool [n]; None for all."""
        return None if self.validate is None else self.columns["source"] == self.validate

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
        """Return the name of a sample for messages."""
        row = sample if self.rows is None else self.rows[sample]
        return str(self.paths[sample]) if self.paths is not None else f"sample {row}"

    def names(self, samples: np.ndarray) -> list[str]:
        """Return the names of some samples (int64 [k]); for many samples much faster than `name`."""
        if self.paths is None:
            return [self.name(sample) for sample in samples]
        return self.paths.take(samples).to_pylist()

    def column(self, name: str, where: object) -> np.ndarray:
        """Return a column, [n].

        Raises:
            UserError: the source gives none of that name.
        """
        if name not in self.columns:
            how = f'name it in `columns` of a Manifest, or let index() return Index(..., columns={{"{name}": array}})'
            how += f', or let the dataset of a TorchData have columns = {{"{name}": values}}'
            if self.columns:
                how = f"{errors.nearest(name, self.columns)}the columns are {errors.listed(self.columns, 12)}; {how}"
            raise errors.UserError(f"the data has no column {name!r}", where, how)
        return self.columns[name]

    def take(self, samples: np.ndarray) -> Index:
        """Return the index of some samples (int64 [k]), in their order."""

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
            columns={name: pick(column) for name, column in self.columns.items()},
        )

    def reshaped(self, shape: tuple[int, int, int]) -> Index:
        """Return the index with another shape of the model's input."""
        first, *others = self.fields
        return replace(self, shape=None if self.shape is None else shape, fields=(replace(first, shape=shape), *others))

    def fingerprint(self) -> str:
        """Return a hash of names or rows, sizes, labels, classes and columns; not of times, which copies lose."""
        stored = self.fields if self.shape is None else self.shape
        digest = hashlib.sha256(repr((self.classes, stored, len(self))).encode())
        for array in (self.labels, self.rows, self.sizes):
            digest.update(b"-" if array is None else np.ascontiguousarray(array).tobytes())
        if self.paths is not None:
            import pyarrow.compute  # 0.1 s, which `--help` does not need

            lists = pyarrow.ListArray.from_arrays([0, len(self)], self.paths.cast(pyarrow.large_string()))
            joined = pyarrow.compute.call_function("binary_join", [lists, pyarrow.scalar("\0", pyarrow.large_string())])
            digest.update(joined[0].as_buffer())
        if self.columns or self.shares:
            digest.update(repr((self.shares, list(self.columns))).encode())
            for column in self.columns.values():
                digest.update(np.ascontiguousarray(column).tobytes())
        return digest.hexdigest()[:16]


@dataclass(frozen=True, kw_only=True)
class Data:
    """The base of all data sources. Subclass it in an experiment file, as a frozen dataclass, to bring your own: these
    fields are keyword-only, so that yours come first and need no defaults."""

    mode: Literal["auto", "resident", "streaming"] = "auto"
    """resident keeps all decoded samples in shared memory, streaming decodes them when they are needed, auto takes
    resident if it fits. Both give the same batches."""
    on_bad_sample: Literal["error", "skip"] = "error"
    """What to do with a sample that cannot be read: stop and name it, or skip it on all workers."""
    crop: int | None = None
    """Side of the square that the model sees, cut from the stored image; None takes the whole image."""
    augment: Augment = dataclasses.field(default_factory=Augment)
    """Random changes of training images."""
    mean: tuple[float, ...] = (0.5,)
    """Mean to subtract, one number or one per channel, in units of the full range."""
    std: tuple[float, ...] = (0.5,)
    """Standard deviation to divide by, one number or one per channel."""
    folds: Folds = dataclasses.field(default_factory=Folds)
    """Cross-validation: another split into training and validation."""

    def __post_init__(self) -> None:
        check(
            self,
            crop=(lambda crop: crop == "auto" or 1 <= crop < math.inf, "of at least 1"),
            std=(lambda std: len(std) > 0 and min(std) > 0, "above 0 in each channel"),
            mean=(lambda mean: len(mean) > 0, "of one number or one per channel"),
        )

    @property
    def input_side(self) -> int | None:
        """Side of the square that the model sees, which a source may derive; None is the whole stored image."""
        return self.crop

    @property
    def resizes(self) -> bool:
        """Whether a field `size` may be changed, as to that of a model's weights."""
        return True

    @property
    def direct(self) -> bool:
        """Whether threads of each rank read its samples while it trains, and Ray Data does not: most of `read` must run
        outside Python, whose lock lets only one thread run. `read` then takes `out`, arrays to fill and return."""
        return False

    @property
    def raw(self) -> bool:
        """Whether samples are stored as they are used, so that to keep them in Ray's memory saves little."""
        return False

    @property
    def whole(self) -> bool:
        """Whether `read` returns random crops of whole images to training, as `Images.read` does."""
        return False

    @property
    def on_gpu(self) -> bool:
        """Whether `read` takes `decoder`, by which workers decode on their GPU, as `Images.read` does."""
        return False

    @property
    def resampling(self) -> Literal["bilinear", "bicubic"]:
        """How image files are resized, for sources that do; predictions of files do the same."""
        return "bilinear"

    @property
    def squashed(self) -> bool:
        """Whether whole image files are resized to squares, in place of their central squares; see `resampling`."""
        return False

    def normalisation(self, channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return mean and std for images of that many channels, which a source may derive."""
        return self.mean, self.std

    def absolute(self) -> Data:
        """Return the source with absolute paths, where workers need them: they run in other folders."""
        return self

    def index(self) -> dict[str, Index]:
        """Return the samples of each split: `train`, `val` and perhaps `test`. Runs on the driver, without Ray.

        Raises:
            UserError: the data is not there or does not parse.
        """
        raise NotImplementedError(f"{type(self).__name__} needs an index()")

    def read(self, index: Index, samples: np.ndarray) -> np.ndarray | dict[str, np.ndarray]:
        """Return the arrays that `index.fields` declares for some samples (int64 [k]), each [k, ...], by name; a source
        with one field may return the array alone. Runs in any process of the cluster.

        Raises:
            BadSample: one of them cannot be read.
        """
        raise NotImplementedError(f"{type(self).__name__} needs a read(index, samples)")

    def at_hand(self, index: Index, samples: np.ndarray, out: dict[str, np.ndarray]) -> int:
        """Fill the arrays of the first samples (int64 [k]) that need no waiting, of a source that is `direct` and
        `raw`; return how many."""
        return 0

    def cache_entry(self, index: Index) -> Path | None:
        """Return the file that caches a split's decoded samples (`data/cache.py`), named by all that determines their
        values; None, the default, caches nothing."""
        return None

    @property
    def cache_size(self) -> float | None:
        """GiB that cached samples may take; None is the default (`cache.limit`)."""
        return None

    def notes(self) -> list[str]:
        """Return lines that the plan shows about this data."""
        return []

    def size_notes(self, index: Index) -> list[str]:
        """Return lines that the plan shows about the sizes of the training images."""
        return []

    def probe(self, index: Index) -> list[errors.BadSample]:
        """Look for samples that cannot be read, quickly and on the driver. No-op by default."""
        return []

    def sample(self, index: Index) -> tuple[int, ...]:
        """Return the shape of the model's input for one sample, such as (channels, height, width) of an image after the
        crop.

        Raises:
            UserError: a crop, mean, std, policy or mask does not fit the images, or what a setting needs is missing.
        """
        images, where = [field for field in index.fields if field.kind == "image"], f"in {type(self).__name__}"
        if not images and (self.input_side is not None or self.augment.changes):
            what = "crop" if self.input_side is not None else "augment"
            like = [one for one in index.fields if len(one.shape) == 3 and one.dtype.startswith("float")]
            how = f"return {like[0].name!r} as a PIL image or uint8 (it is {like[0].dtype}), or " if like else ""
            raise errors.UserError(f"{what} is for images, and the data has none", where, f"{how}leave {what} out")
        if self.augment.mixes and mixed_field(index) is None:
            what = "mixup and cutmix mix an image and a label, or a field of numbers, per sample, and the data has more"
            raise errors.UserError(what, where, "leave them out")
        masks = tuple(field.name for field in index.fields if field.kind == "mask")
        if self.augment.policy != "none" and masks:
            raise errors.UserError(
                f"{self.augment.policy} rotates and shifts images, and would leave the mask {masks[0]!r} where it is",
                where,
                "write operations=(RandAugment(),) in its place, which move masks too",
            )
        for field in images:
            self._check_image(field)
            for operation in self.augment.operations:
                operation.check(field, masks)
        sides = {field.shape[-2:] for field in index.fields if field.kind in ("image", "mask")}
        if len(sides) > 1:
            what = f"images and masks of a sample must have one height and width, got {sorted(sides)}"
            raise errors.UserError(what, where, "resize them in read()")
        if self.whole:
            self._check_whole()
        if self.augment.progressive.on:
            if index.input.kind != "image":
                what = f"progressive resizing is for models of images, and the input is {index.input.name!r}"
                raise errors.UserError(what, where, "leave augment.progressive out")
            height, width = images[0].shape[1:] if self.input_side is None else (self.input_side, self.input_side)
            self.augment.progressive.check_full(height, width)
        first = index.input
        if self.input_side is None or first.kind == "plain":
            return first.shape
        return (*first.shape[:-2], self.input_side, self.input_side)

    def _check_whole(self) -> None:
        name = type(self).__name__
        if self.augment.first_crop is None:
            what = "whole images are for training on random resized crops, and data.augment begins with none"
            how = "use --data.augment.crop random_resized, or let operations begin with RandomResizedCrop()"
            raise errors.UserError(what, f"in {name}.whole", how)
        if self.mode == "resident":
            what = "resident memory has the central squares of images, and training takes crops of whole ones"
            raise errors.UserError(what, "in data.mode", "leave out --data.mode resident, or --data.whole")
        if "crops" not in inspect.signature(self.read).parameters:
            what = f"{name} has a read of its own, which returns no crops of whole images"
            how = "leave whole out, or write read(self, index, samples, crops=None) around that of Images"
            raise errors.UserError(what, f"in {name}.whole", how)

    def _check_image(self, field: Field) -> None:
        (channels, height, width), where = field.shape, type(self).__name__
        for name, values in zip(("mean", "std"), self.normalisation(channels), strict=True):
            if len(values) not in (1, channels):
                raise errors.out_of_range(name, values, f"of 1 number or one per channel ({channels})", where)
        policy = self.augment.policy
        if policy != "none" and channels not in (1, 3):
            what = f"{policy} takes images of 1 or 3 channels and these have {channels}"
            raise errors.UserError(what, "in data.augment.policy", "use --data.augment.policy none")
        if policy != "none" and field.dtype != "uint8":
            what = f"{policy} changes images of uint8, got {field.dtype}"
            raise errors.UserError(what, f"in {where}", "leave augment.policy out")
        if self.input_side is not None and self.input_side > min(height, width):
            allowed = f"of at most {min(height, width)}, the stored image's side, or None for all of it"
            allowed += " (padding is added in training only)" if self.augment.padding else ""
            raise errors.out_of_range("crop", self.input_side, allowed, where)
