"""Reading a range of images for a large prediction: by the code that reads them for training, and from URLs too."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from raytrain.checkpoint.side_thread import retry
from raytrain.checkpoint.storage import Storage
from raytrain.data import ImageFolder
from raytrain.data.blocks import Arrays, arrays_and_bad, read_part
from raytrain.data.decode import MAX_BYTES
from raytrain.tools.inference import file_index
from raytrain.tools.listing import Image

_DOWNLOADS = 16
"""Downloads at once in a process."""


class Read(NamedTuple):
    """Images as they are stored.

    Attributes:
        arrays: their arrays, each [n, ...]; zeros for an image that cannot be read.
        reasons: why each cannot be read; None for those that can.
    """

    arrays: Arrays
    reasons: list[str | None]


def read(images: Sequence[Image], data: ImageFolder, classes: tuple[str, ...]) -> Read:
    """Read and decode images. A damaged or missing file is no error, and storage that is out of reach is.

    Args:
        data: the source that prepares files as the run's own source did.

    Raises:
        OSError: storage is out of reach.
    """
    with tempfile.TemporaryDirectory(prefix="raytrain-predict-") as folder:
        files, refused = [image.name for image in images], dict[int, str]()
        away = [row for row, image in enumerate(images) if image.root]
        with ThreadPoolExecutor(_DOWNLOADS) as pool:
            targets = [Path(folder, f"{row}{Path(images[row].name).suffix}") for row in away]
            reasons = pool.map(_download, [images[row] for row in away], targets)
            for row, target, reason in zip(away, targets, reasons, strict=True):
                files[row] = str(target)
                if reason is not None:
                    refused[row] = reason
        index = file_index(files, data, classes)
        good = np.array([row for row in range(len(images)) if row not in refused], np.int64)
        arrays = index.empty(len(images))
        if len(good):
            found, bad = arrays_and_bad(read_part(data, index, good))
            for name, array in found.items():
                arrays[name][good] = array
            for one in bad:
                image = images[good[one.row]]
                if not one.lasting and not image.root and not os.path.isdir(os.path.dirname(image.name)):
                    raise OSError(f"storage is out of reach: {one.reason}: {image.path}")
                refused[int(good[one.row])] = one.reason
    return Read(arrays, [refused.get(row) for row in range(len(images))])


def _download(image: Image, target: Path) -> str | None:
    """Write an object to a file; return why it cannot be read, if it alone cannot.

    Raises:
        OSError: storage is out of reach.
    """
    if image.size > MAX_BYTES:
        return f"{image.size:,} bytes are more than {MAX_BYTES:,}"

    def fetch() -> str | None:
        try:
            target.write_bytes(_storage(image.root).read(image.name))
        except FileNotFoundError:
            return "No such file or directory"
        return None

    return retry(fetch)


@cache
def _storage(root: str) -> Storage:
    return Storage(root)
