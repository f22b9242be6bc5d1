"""The base of sources of encoded images, such as JPEG files: bytes to squares of pixels, and the cache of these."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np

from raytrain import errors, order
from raytrain.config import above, at_least, check
from raytrain.data.late import with_pillow
from raytrain.data.source import Data, Index
from raytrain.files import existing, is_url

if TYPE_CHECKING:
    from raytrain.data.crops import Crops
    from raytrain.data.decode_gpu import Decoder

CROP = 224
"""The largest side that `crop=auto` takes."""
IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Mean and standard deviation of ImageNet's RGB images."""
_GREY = (0.449,), (0.226,)
"""The same for grey: the means of the three."""
SPLITS = {
    "train": ("train", "training", "trainset"),
    "val": ("val", "valid", "validation", "valset"),
    "test": ("test", "testing", "testset"),
}
"""The names of splits, with their synonyms, in lower case."""
PROBES = 20_000
"""Files of a split that a first look reads at most."""
_THREADS = 8
_MEASURED = 32
"""Images whose size in pixels the plan looks up."""
_CUT = 0.1
"""Share of the pixels outside the central square above which the plan tells it."""
_ENLARGED = 1.5
"""Ratio of enlargement above which the plan suggests a smaller size."""


def splits_of(files: list[str]) -> np.ndarray | None:
    """Return the number in SPLITS of the split that each file's name tells, as train-00000-of-00002.parquet does, or
    the nearest of its folders below the one that all files are in, int64 [files]; None if none tells one.

    Raises:
        UserError: some tell a split, and others none.
    """

    def told(names: list[str]) -> str | None:
        for name in reversed(names):
            words = re.split(r"[^a-z]+", name.lower())
            if split := next((split for split, names in SPLITS.items() if not set(names).isdisjoint(words)), None):
                return split
        return None

    parts = [one.split("/") for one in files]
    same = takewhile(lambda names: len(set(names)) == 1, zip(*(one[:-1] for one in parts), strict=False))
    common = len(list(same))
    found = [told(one[common:]) for one in parts]
    if not any(found):
        return None
    if None in found:
        what = "the file's name tells no split, and those of others do"
        raise errors.UserError(what, files[found.index(None)], "put train, val or test into it, or leave it out")
    return np.array([list(SPLITS).index(split) for split in found if split])


def split_folders(names: Iterable[str]) -> dict[str, str]:
    """Return the name of each split's folder among some names, in any case; none for a split without one."""
    folders = {name.lower(): name for name in names}
    found = {split: next((name for name in known if name in folders), None) for split, known in SPLITS.items()}
    return {split: folders[name] for split, name in found.items() if name}


@dataclass(frozen=True)
class Images(Data):
    """Labelled images that are stored encoded. A subclass lists them in `index` and returns their bytes from
    `encoded`; `read` decodes them."""

    root: str = ""
    """The folder, or its URL such as s3://bucket/images, with credentials from the environment."""
    size: int = 256
    """Side of the stored images: the central square of each image, resized."""
    crop: int | Literal["auto"] | None = field(default="auto", kw_only=True)  # type: ignore[override]
    """Side of the square that the model sees, cut from the stored image. auto takes 224, or all of a smaller image and
    of one that was squashed; None takes all of any image."""
    channels: Literal[1, 3] = 3
    """3 for RGB, 1 for grey."""
    whole: bool = field(default=False, kw_only=True)  # type: ignore[override]
    """Train on random crops of the whole images in place of their stored central squares, as torchvision's
    RandomResizedCrop takes them. It needs augment.crop=random_resized, or operations that begin with
    RandomResizedCrop. Images are then decoded again in every epoch."""
    cache: str = "auto"
    """Folder that caches the decoded images, so that the next run on the same files starts without decoding. `auto` is
    $XDG_CACHE_HOME/raytrain or ~/.cache/raytrain; `off` caches nothing. It may be removed at any time."""
    cache_size: float | None = field(default=None, kw_only=True)  # type: ignore[override]
    """GiB that decoded images may take in the folder `cache`, of all runs together. Those used least recently are
    removed first. None takes 20, or a tenth of the free disk if that is less."""
    mean: tuple[float, ...] | None = field(default=None, kw_only=True)  # type: ignore[override]
    """Mean of the pixels. None takes ImageNet's: (0.485, 0.456, 0.406) for RGB, 0.449 for grey."""
    std: tuple[float, ...] | None = field(default=None, kw_only=True)  # type: ignore[override]
    """Standard deviation of the pixels. None takes ImageNet's: (0.229, 0.224, 0.225) for RGB, 0.226 for grey."""

    interpolation: Literal["auto", "bilinear", "bicubic"] = field(default="auto", kw_only=True)
    """How images are resized, with antialiasing. auto takes what the model's weights were trained with, or bilinear."""
    fit: Literal["auto", "cut", "squash"] = field(default="auto", kw_only=True)
    """What becomes of an image that is no square: cut takes its central square, squash the whole image, whose
    proportions change. auto is cut."""
    decode: Literal["auto", "cpu", "gpu"] = field(default="auto", kw_only=True)
    """What decodes JPEGs while a run trains. gpu streams the images and takes nvJPEG on each worker's GPU, whose pixels
    are not quite the CPU's; it leaves other images to the CPU. auto is cpu, on every machine. gpu has not yet been run
    on a GPU."""

    def __post_init__(self) -> None:
        per_channel = (
            lambda values: len(values) in (1, self.channels or len(values)),  # a subclass may leave channels open
            f"of 1 number or one per channel ({self.channels}), or None for ImageNet's",
        )
        check(self, size=at_least(1), cache_size=above(0), mean=per_channel, std=per_channel)
        super().__post_init__()

    def absolute(self) -> Self:
        """Return the source with an absolute path."""
        return replace(self, root=absolute(self.root))

    @property
    def input_side(self) -> int | None:
        """Side of the square that the model sees; None is the whole stored image."""
        if self.crop != "auto":
            return self.crop
        return self.size if self.squashed else min(CROP, self.size)

    @property
    def resampling(self) -> Literal["bilinear", "bicubic"]:
        """How images are resized."""
        return "bicubic" if self.interpolation == "bicubic" else "bilinear"

    @property
    def squashed(self) -> bool:
        """Whether whole images are resized to squares, in place of their central squares."""
        return self.fit == "squash"

    @property
    def on_gpu(self) -> bool:
        """Whether workers decode on their GPU."""
        return self.decode == "gpu"

    def normalisation(self, channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return mean and std for images of that many channels, ImageNet's where they are None."""
        mean, std = IMAGENET if channels == 3 else _GREY
        return self.mean or mean, self.std or std

    def encoded(self, index: Index, samples: np.ndarray) -> Iterator[bytes]:
        """Yield the encoded images of some samples (int64 [k]), in their order. Runs in any process of the cluster.

        Raises:
            BadSample: one of them cannot be read; its cause is an OSError if that may pass.
        """
        raise NotImplementedError(f"{type(self).__name__} needs an encoded(index, samples)")

    def where(self, index: Index, sample: int) -> str:
        """Return where a sample is, for messages."""
        return index.name(sample)

    @property
    def direct(self) -> bool:
        """Whether each rank decodes images by itself, in threads: where a subclass has no `read` of its own."""
        return self.decodes

    def further(self, index: Index, samples: np.ndarray) -> dict[str, np.ndarray]:
        """Return the arrays of the fields after the image for some samples (int64 [k]), each [k, ...] by name; none by
        default."""
        return {}

    def beside(self, index: Index, samples: np.ndarray, raws: list[bytes]) -> dict[str, np.ndarray]:
        """Return the arrays of all fields after the image for some samples (int64 [k]), each [k, ...] by name; `raws`
        are their encoded images, if these are `masked`."""
        return self.further(index, samples)

    @property
    def masked(self) -> bool:
        """Whether each image has a mask, which must fit it."""
        return False

    def read(
        self,
        index: Index,
        samples: np.ndarray,
        out: dict[str, np.ndarray] | None = None,
        crops: Crops | None = None,
        decoder: Decoder | None = None,
    ) -> Any:
        """Decode images to their central squares, uint8 [k, channels, size, size], or to `crops` of whole images, uint8
        [k, channels, height, width] as the index declares; in the place of `out` if given. A `decoder` decodes what it
        can. With further fields, return all by name."""
        raws = self.encoded(index, samples)
        kept = list(raws) if self.masked else []
        images = self._decoded(index, samples, kept or raws, out, crops, decoder)
        more = self.beside(index, samples, kept)
        return {index.input.name: images} | more if more else images

    def _decoded(
        self,
        index: Index,
        samples: np.ndarray,
        raws: Iterable[bytes],
        out: dict[str, np.ndarray] | None,
        crops: Crops | None,
        decoder: Decoder | None,
    ) -> np.ndarray:
        """Return encoded images decoded, as `read` does."""
        decode = with_pillow().decode
        images = np.empty((len(samples), *index.input.shape), np.uint8) if out is None else out[index.input.name]
        rows = enumerate(raw for _, raw in zip(samples, raws, strict=True))
        if decoder is not None:
            rows = decoder.fill(images, rows, crops, self.resampling, self.squashed)
        for row, raw in rows:
            try:
                if crops is None:
                    images[row] = decode.square(raw, self.size, self.channels, self.resampling, self.squashed)
                else:
                    own, (channels, side, _) = crops.rows(slice(row, row + 1)), images.shape[1:]
                    images[row] = decode.crop(raw, own, side, channels, self.resampling)
            except ValueError as error:
                raise errors.BadSample(self.where(index, int(samples[row])), str(error)) from error
        return images

    def pixel_size(self, index: Index, sample: int) -> tuple[int, int] | None:
        """Return an image's width and height; None if it cannot be read."""
        try:
            (raw,) = self.encoded(index, np.array([sample]))
        except errors.BadSample:
            return None
        return with_pillow().image_files.pixel_size_of(raw)

    @property
    def decodes(self) -> bool:
        """Whether `read` decodes images as it does here, beside `further` arrays."""
        return type(self).read is Images.read

    @property
    def own_code(self) -> str:
        """What of a subclass of the user's changes the samples, such as `encoded`: their values follow from more than
        files and fields. Empty for raytrain's own sources."""
        names = ("encoded", "further", "beside", "encoded_masks")
        theirs = (name for name in names if not _is_ours(getattr(type(self), name, None)))
        return next(theirs, "")

    def notes(self) -> list[str]:
        """Return notes for the plan: that decoded images are not kept, or cannot be cached."""
        if self.whole:
            return ["every epoch decodes the images again: memory and cache have room for their squares alone"]
        if self.cache == "off":
            return []
        if self.own_code and self.decodes:
            what = f"{type(self).__name__}.{self.own_code}"
            return [f"decoded images are not cached, since {what} may change them: the next run decodes them again"]
        folder = self._cache_folder()
        there = existing(folder)
        if os.path.isdir(there) and os.access(there, os.W_OK | os.X_OK):
            return []
        return [f"decoded images cannot be kept in {folder}: the next run decodes them again (--data.cache FOLDER)"]

    def size_notes(self, index: Index) -> list[str]:
        """Return what becomes of the images' pixels, and a size that fits if they are enlarged much."""
        if index.paths is None or not self.decodes:
            return []
        chosen = order.spread(len(index), _MEASURED)
        found = [self.pixel_size(index, int(sample)) for sample in chosen]
        found = sorted((size for size in found if size), key=min)
        if not found:
            return []
        width, height = found[len(found) // 2]
        side = self.input_side or self.size
        if not self.whole and side == self.size and set(found) == {(side, side)}:
            return []
        seen = "" if side == self.size else f", of which the model sees {side} x {side}"
        becomes = f"become {self.size} x {self.size}{seen}"
        if self.whole:
            becomes = f"train as random crops of {side} x {side}; for validation they {becomes}"
        note = f"files of about {width} x {height} pixels {becomes}"
        short = min(width, height)
        if self.size > _ENLARGED * short:
            fits = f"--data.size {short}" + (" --data.crop auto" if self.crop != "auto" and side > short else "")
            note += f": enlarged {self.size / short:.1f} times, and {fits} would fit"
        outside = 1 - short / max(width, height)
        if self.squashed or outside <= _CUT:
            return [note]
        seen = "validation sees" if self.whole else "the model sees"
        return [note, f"{outside:.0%} of their pixels are outside the central square that {seen}: --data.fit squash"]

    def cache_entry(self, index: Index) -> Path | None:
        """Return the cache entry, named by the files, their times and how they are decoded."""
        if self.cache == "off" or index.times is None or not self.decodes or self.own_code:
            return None
        base = self._base()
        root = base if is_url(base) else os.path.abspath(base)
        entry = with_pillow().image_files.cache_entry
        return entry(self._cache_folder(), index, root, self.size, self.channels, self.resampling, self.squashed)

    def _cache_folder(self) -> Path:
        return with_pillow().cache.folder(self.cache)

    def _base(self) -> str:
        """Return the folder or URL that the samples' paths are relative to."""
        return self.root if is_url(self.root) else os.path.expanduser(self.root)


def absolute(path: str) -> str:
    """Return a path as it holds in any folder; URLs, and an empty text, as they are."""
    return path if not path or is_url(path) else os.path.abspath(os.path.expanduser(path))


def _is_ours(method: Any) -> bool:
    return method is None or method.__module__.partition(".")[0] == "raytrain"


@dataclass(frozen=True)
class FileImages(Images):
    """The base of sources with a file for each image, which `Index.paths` names."""

    def encoded(self, index: Index, samples: np.ndarray) -> Iterator[bytes]:
        """Yield the bytes of the files of some samples."""
        return with_pillow().image_files.contents(self._base(), index.names(samples))

    def where(self, index: Index, sample: int) -> str:
        """Return a file's path or URL."""
        files = with_pillow().byte_files
        return files.shown(files.joined(self._base(), index.name(sample)))

    def pixel_size(self, index: Index, sample: int) -> tuple[int, int] | None:
        """Return an image's width and height in pixels, of a file from its header."""
        where = self.where(index, sample)
        if is_url(where) or not index.in_files:  # such as bytes in a table
            return super().pixel_size(index, sample)
        return with_pillow().image_files.pixel_size(where)

    def probe(self, index: Index) -> list[errors.BadSample]:
        """Look at both ends of each file (at most 20,000, evenly chosen; 64 at a URL), and decode files that look
        damaged. The disk cache answers for a split that it has."""
        files, entry = with_pillow().image_files, self.cache_entry(index)
        known = None if entry is None else files.known_bad(entry, index)
        if known is not None:
            return known
        chosen = order.spread(len(index), PROBES)
        root, names = self._base(), index.names(chosen)
        if is_url(root) or any(is_url(name) for name in names):
            return files.probe_some(root, names, self.channels)
        shares = [names[start : start + 500] for start in range(0, len(names), 500)]  # a future for each costs more
        with ThreadPoolExecutor(_THREADS) as pool:
            probed = pool.map(
                lambda share: [files.probe(os.path.join(root, name), self.channels) for name in share], shares
            )
            return [bad for share in probed for bad in share if bad]
