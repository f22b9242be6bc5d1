"""MNIST in torchvision's layout, read from its IDX files, gzipped or not.

Source: Y. LeCun, C. Cortes and C. Burges, "The MNIST database of handwritten digits", 1998.
"""

from __future__ import annotations

import gzip
import hashlib
import http.client
import io
import math
import os
import urllib.request
import zlib
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np

from raytrain import errors
from raytrain.config import at_least, check
from raytrain.data.source import Data, Index
from raytrain.files import expanded, reason

_MIRROR = "https://ossci-datasets.s3.amazonaws.com/mnist/"
_FILES = {  # split -> images and labels, each with the sha256 of its decompressed bytes
    "train": (
        ("train-images-idx3-ubyte", "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"),
        ("train-labels-idx1-ubyte", "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"),
    ),
    "val": (
        ("t10k-images-idx3-ubyte", "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"),
        ("t10k-labels-idx1-ubyte", "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"),
    ),
}


@dataclass(frozen=True)
class MNIST(Data):
    """MNIST's 60,000 training and 10,000 test images of 28x28 pixels; the test images validate."""

    root: str = ""
    """Folder with torchvision's layout: ROOT/MNIST/raw/*-ubyte, plain or .gz."""
    download: bool = False
    """Download missing files (11 MB), checked by sha256."""
    mean: tuple[float, ...] = field(default=(0.1307,), kw_only=True)
    """Mean of the pixels."""
    std: tuple[float, ...] = field(default=(0.3081,), kw_only=True)
    """Standard deviation of the pixels."""

    def __post_init__(self) -> None:
        check(self, crop=at_least(1))
        super().__post_init__()

    def index(self) -> dict[str, Index]:
        """Return the labels, after checking that the images parse and that their number is the same."""
        if not self.root:
            raise errors.no_root("MNIST")
        if self.download:
            self._download()
        splits = {
            split: self._split(split, *(self._file(name) for name, _ in files)) for split, files in _FILES.items()
        }
        if splits["val"].shape != splits["train"].shape:
            (_, height, width), file = splits["val"].shape, self._file(_FILES["val"][0][0])
            raise errors.UserError(
                f"the file is broken: its images have {height} x {width} pixels, unlike the training images",
                file,
                _REMEDY,
            )
        return splits

    def read(self, index: Index, samples: np.ndarray) -> np.ndarray:
        """Return the images, uint8 [k, 1, 28, 28]."""
        assert index.rows is not None
        return _idx(str(self._file(_FILES[index.split][0][0])), 3)[index.rows[samples]][:, None]

    def _split(self, split: str, images_file: Path, labels_file: Path) -> Index:
        labels, images = _idx(str(labels_file), 1), _idx(str(images_file), 3)
        if not len(labels):
            raise errors.UserError("the file is broken: it has no labels", labels_file, _REMEDY)
        count, height, width = images.shape
        if not images.size:
            raise errors.UserError(
                f"the file is broken: {count} images of {height} x {width} pixels", images_file, _REMEDY
            )
        if len(labels) != count:
            raise errors.UserError(f"the file is broken: {count} images for {len(labels)} labels", images_file, _REMEDY)
        if labels.max(initial=0) > 9:
            raise errors.UserError(f"the file is broken: label {labels.max()} is above 9", labels_file, _REMEDY)
        return Index(
            labels.astype(np.int64),
            tuple(str(digit) for digit in range(10)),
            (1, *images.shape[1:]),
            split,
            rows=np.arange(len(labels)),
        )

    def _file(self, name: str) -> Path:
        raw = self._raw()
        for candidate in (raw / name, raw / f"{name}.gz"):
            if candidate.is_file():
                return candidate
        if raw.is_dir():
            raise errors.no_such_file(raw / f"{name}.gz", "MNIST file")
        how = "give --data.root the folder that holds MNIST/raw, or add --data.download"
        raise errors.UserError("no MNIST files there", raw, how)

    def _raw(self) -> Path:
        return expanded(self.root) / "MNIST" / "raw"

    def _download(self) -> None:
        raw = self._raw()
        for name, sha256 in (file for files in _FILES.values() for file in files):
            if (raw / name).is_file() or (raw / f"{name}.gz").is_file():
                continue
            url = f"{_MIRROR}{name}.gz"
            try:
                raw.mkdir(parents=True, exist_ok=True)
                with urllib.request.urlopen(url, timeout=60) as reply:
                    content = reply.read()
                if hashlib.sha256(gzip.decompress(content)).hexdigest() != sha256:
                    raise errors.UserError(
                        "the download failed: its sha256 is not the known one",
                        url,
                        "check the network, or put the file in place by hand",
                    )
                partial = raw / f"{name}.gz.{os.getpid()}"
                partial.write_bytes(content)
                partial.replace(raw / f"{name}.gz")
            except (OSError, EOFError, zlib.error, http.client.HTTPException) as error:
                raise errors.UserError(
                    f"the download failed: {error!s}", url, "check the network, or put the file in place by hand"
                ) from None


_DEFLATES = 1_032
"""Largest number of bytes that one byte of gzip can hold."""
_CHUNK = 1 << 20
_REMEDY = "remove it and run again with --data.download, or copy it anew"


@lru_cache(maxsize=4)
def _idx(path: str, dimensions: int) -> np.ndarray:
    """Return an IDX file of unsigned bytes, gzipped or not, as uint8 with that many dimensions."""
    try:
        with open(path, "rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            with gzip.GzipFile(fileobj=raw) if packed else raw as file:
                return _array(file, dimensions, os.fstat(raw.fileno()).st_size, packed)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise errors.UserError(f"the file is broken: truncated or damaged gzip ({error})", path, _REMEDY) from None
    except OSError as error:
        raise errors.UserError(f"the file is broken: {reason(error)}", path, "make it readable") from None
    except ValueError as error:
        raise errors.UserError(f"the file is broken: {error!s}", path, _REMEDY) from None


def _array(file: io.BufferedIOBase, dimensions: int, length: int, packed: bool) -> np.ndarray:
    """Return the array in an IDX file. Inflate and allocate no more than its header declares.

    Args:
        length: the size of the file on the disk, in bytes.
        packed: whether it is gzipped.

    Raises:
        ValueError: it is not such a file.
    """
    header = file.read(4 + 4 * dimensions)
    magic = bytes([0, 0, 8, dimensions])
    if header[:4] != magic:
        raise ValueError(f"IDX magic {header[:4].hex() or 'missing'} instead of {magic.hex()}")
    shape = tuple(int(n) for n in np.frombuffer(header[4:].ljust(4 * dimensions, b"\0"), ">u4"))
    size = math.prod(shape)
    if not packed and (len(header) < 4 + 4 * dimensions or length != len(header) + size):
        raise ValueError(f"its length {length:,} does not fit its header")
    if size > _DEFLATES * length:
        raise ValueError(f"{length:,} bytes of gzip cannot hold the {size:,} of its header")
    array, filled = np.empty(shape, np.uint8), 0
    view = array.ravel().data
    while filled < size and (read := file.readinto(view[filled : filled + _CHUNK])):
        filled += read
    if len(header) < 4 + 4 * dimensions or filled < size or file.read(1):  # to the end, where gzip has its checksum
        more = "of more than " if filled == size else ""
        raise ValueError(f"its length {more}{len(header) + filled:,} does not fit its header")
    array.flags.writeable = False
    return array
