"""The data of the benchmarks: MNIST, or digits like it, in every form that a side reads. Written once, then kept."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image

from raytrain import MNIST, Digits, ImageFolder
from raytrain.tools.pack import pack
from raytrain.tools.pack_settings import Settings

CACHE = Path(__file__).parents[1] / "build" / "bench"
"""Where data sets are kept; git ignores it."""


def find_mnist(root: str | None) -> Path | None:
    """The folder that holds MNIST/raw: `root`, or RAYTRAIN_TEST_DATA/mnist, or ../shared/data/mnist; None if it is not
    there."""
    chosen = Path(root) if root else Path(os.environ.get("RAYTRAIN_TEST_DATA", "../shared/data")) / "mnist"
    return chosen if (chosen / "MNIST" / "raw").is_dir() else None


def prepare(samples: int, root: Path | None, files: bool = True) -> Path:
    """Writes the data set, unless it is there already.

    Args:
        samples: how many images; MNIST's 60,000 are repeated where that is more.
        root: folder that holds MNIST/raw; None generates digits.
        files: whether a side will read files, and not only arrays.

    Returns:
        A folder with images.npy (uint8 [samples, 1, 28, 28]), labels.npy (int64 [samples]) and, for sides that read
        files, the same as png/train/<digit>/<sample>.png and in MNIST's own layout.
    """
    folder = CACHE / f"{'mnist' if root else 'generated'}-{samples}{'' if files else '-arrays'}"
    if folder.is_dir():
        return folder
    CACHE.mkdir(parents=True, exist_ok=True)
    images, labels = _mnist(samples, root) if root else generate(samples)
    with tempfile.TemporaryDirectory(dir=CACHE) as temporary:
        whole = Path(temporary) / "whole"
        whole.mkdir()
        np.save(whole / "images.npy", images)
        np.save(whole / "labels.npy", labels)
        if files:
            _write_png(whole / "png" / "train", images, labels)
            _write_idx(whole / "MNIST" / "raw", (images, labels), (images[:64], labels[:64]))
        _keep(whole, folder)
    return folder


def idx(samples: int, root: Path | None) -> Path:
    """Writes training and validation images as torchvision keeps MNIST, unzipped, unless they are there already.

    Args:
        samples: how many training images.
        root: folder that holds MNIST/raw, whose 10,000 test images are what validates; None generates digits, and a
            sixth as many of them that validate.

    Returns:
        A folder with MNIST/raw.
    """
    folder = CACHE / f"{'mnist' if root else 'generated'}-{samples}-idx"
    if folder.is_dir():
        return folder
    CACHE.mkdir(parents=True, exist_ok=True)
    if root:
        train, val = _mnist(samples, root), _mnist(10_000, root, "val")
    else:
        images, labels = generate(samples + samples // 6)
        train, val = (images[:samples], labels[:samples]), (images[samples:], labels[samples:])
    with tempfile.TemporaryDirectory(dir=CACHE) as temporary:
        whole = Path(temporary) / "whole"
        _write_idx(whole / "MNIST" / "raw", train, val)
        _keep(whole, folder)
    return folder


def photographs(files: int) -> Path:
    """A folder train/<class>/ with that many JPEG files of about 500 x 375: hymenoptera's, each under many names, or
    pictures made for this where those are not there."""
    root = Path(os.environ.get("RAYTRAIN_TEST_DATA", "../shared/data")) / "hymenoptera"
    real = sorted(root.glob("**/train/*/*.jpg"))[:200]
    folder = CACHE / f"{'hymenoptera' if real else 'pictures'}-{files}"
    if folder.is_dir():
        return folder
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as temporary:
        whole, sources = Path(temporary) / "whole", Path(temporary) / "sources"
        sources.mkdir()
        if real:
            for number, file in enumerate(real):
                shutil.copyfile(file, sources / f"{number:03d}.jpg")
        else:
            generator = np.random.default_rng(0)
            for number in range(100):
                rough = Image.fromarray(generator.integers(0, 256, (24, 32, 3), dtype=np.uint8))
                large = rough.resize((500, 375), Image.Resampling.BICUBIC)
                large.save(sources / f"{number:03d}.jpg", quality=90)
        names = sorted(sources.iterdir())
        for split, count in (("train", files), ("val", 10)):
            for number in range(count):
                target = whole / split / str(number % 2)
                target.mkdir(parents=True, exist_ok=True)
                os.link(names[number % len(names)], target / f"{number:05d}.jpg")
        _keep(whole, folder)
    return folder


def packed(folder: Path, codec: Literal["jpeg", "raw"]) -> Path:
    """A pack of photographs, their shorter side 256 (quality 90), or their central squares of 256 x 256 pixels; written
    unless it is there already."""
    place = folder.with_name(f"{folder.name}-{codec}")
    if not place.is_dir():
        with tempfile.TemporaryDirectory(dir=CACHE) as temporary:
            source = ImageFolder(str(folder), size=256, crop=224, cache="off")
            pack(source, f"{temporary}/whole", Settings(codec, 256), lambda total, done: None, lambda done: None)
            _keep(Path(temporary) / "whole", place)
    return place


def _keep(whole: Path, folder: Path) -> None:
    """Move a data set to its place, unless another process or thread was faster."""
    try:
        whole.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise


def generate(samples: int) -> tuple[np.ndarray, np.ndarray]:
    """Images and labels like MNIST's: the embedded 8x8 digits, three times as large, each shifted at random."""
    source, generator = Digits(), np.random.default_rng(0)
    index = source.index()["train"]
    chosen = generator.integers(0, len(index), samples)
    large = source.read(index, chosen).repeat(3, axis=2).repeat(3, axis=3)
    images = np.zeros((samples, 1, 28, 28), np.uint8)
    for image, digit, (down, right) in zip(images, large, generator.integers(0, 5, (samples, 2)), strict=True):
        image[:, down : down + 24, right : right + 24] = digit
    return images, index.labels[chosen]


def _mnist(samples: int, root: Path, split: str = "train") -> tuple[np.ndarray, np.ndarray]:
    source = MNIST(root=str(root))
    index = source.index()[split]
    rows = np.arange(samples) % len(index)
    return source.read(index, rows), index.labels[rows]


def _write_png(folder: Path, images: np.ndarray, labels: np.ndarray) -> None:
    for digit in range(10):
        (folder / str(digit)).mkdir(parents=True)
    for sample, (image, label) in enumerate(zip(images, labels, strict=True)):
        Image.fromarray(image[0]).save(folder / str(label) / f"{sample:05d}.png")


def _write_idx(folder: Path, train: tuple[np.ndarray, np.ndarray], val: tuple[np.ndarray, np.ndarray]) -> None:
    """torchvision looks for all four files, unzipped."""
    folder.mkdir(parents=True)
    for name, (images, labels) in (("train", train), ("t10k", val)):
        for kind, values in (("images-idx3", images[:, 0]), ("labels-idx1", labels.astype(np.uint8))):
            header = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">u4").tobytes()
            (folder / f"{name}-{kind}-ubyte").write_bytes(header + values.tobytes())
