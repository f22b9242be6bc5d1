"""What a data source is to raytrain: an index of samples, and a way to read any of them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from raytrain import errors
from raytrain.config import at_least, check
from raytrain.data.augment import Augment

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


@dataclass(frozen=True)
class Data:
    """The base of all data sources. Subclass it in an experiment file, as a frozen dataclass, to bring your own."""

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
