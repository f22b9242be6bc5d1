"""MNIST: the real files, plain and gzipped, and what can be wrong with them."""

from __future__ import annotations

import gzip
import http.client
import io
import struct
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from torchvision import datasets

from raytrain.data import MNIST
from raytrain.errors import UserError

FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A root with 12 training and 5 test images, gzipped."""
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    generator = np.random.default_rng(0)
    for name in FILES:
        count = 12 if name.startswith("train") else 5
        shape = (count, 28, 28) if "idx3" in name else (count,)
        array = generator.integers(0, 10, shape).astype(np.uint8)
        (raw / f"{name}.gz").write_bytes(gzip.compress(idx(array), mtime=0))
    return tmp_path


def file(root: Path, name: str) -> Path:
    return root / "MNIST" / "raw" / f"{name}.gz"


@pytest.fixture(scope="module")
def plain(data_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with the real files, not gzipped, as torchvision wants them."""
    root = tmp_path_factory.mktemp("mnist")
    (root / "MNIST/raw").mkdir(parents=True)
    for name in FILES:
        (root / "MNIST/raw" / name).write_bytes(gzip.decompress(file(data_root / "mnist", name).read_bytes()))
    return root


def test_the_gzipped_files_have_60_000_and_10_000_samples(data_root: Path) -> None:
    indices = MNIST(root=str(data_root / "mnist")).index()
    assert {split: len(index) for split, index in indices.items()} == {"train": 60_000, "val": 10_000}
    assert indices["train"].labels[:5].tolist() == [5, 0, 4, 1, 9]
    assert indices["val"].labels[:5].tolist() == [7, 2, 1, 0, 4]
    for split, index in indices.items():
        assert (index.split, index.shape, index.classes) == (split, (1, 28, 28), tuple("0123456789"))
        assert index.labels.dtype == np.int64


def test_pixels_and_labels_are_torchvisions_plain_and_gzipped(data_root: Path, plain: Path) -> None:
    for root in (plain, data_root / "mnist"):
        data = MNIST(root=str(root))
        for split, index in data.index().items():
            expected = datasets.MNIST(str(plain), train=split == "train")
            images = data.read(index, np.arange(len(index)))
            assert images.dtype == np.uint8
            assert np.array_equal(images[:, 0], expected.data.numpy())
            assert np.array_equal(index.labels, expected.targets.numpy())


def test_read_gives_samples_in_the_order_asked_also_of_a_part(small: Path) -> None:
    data = MNIST(root=str(small))
    index = data.index()["train"]
    whole = data.read(index, np.arange(12))
    assert np.array_equal(data.read(index, np.array([7, 0, 7])), whole[[7, 0, 7]])
    part = index.take(np.array([9, 4]))
    assert np.array_equal(data.read(part, np.array([1, 0])), whole[[4, 9]])


def test_the_default_mean_and_deviation_are_the_training_pixels(plain: Path) -> None:
    data = MNIST(root=str(plain))
    counts = np.bincount(data.read(data.index()["train"], np.arange(60_000)).ravel(), minlength=256)
    levels = np.arange(256) / 255
    mean = np.average(levels, weights=counts)
    assert data.mean == (round(mean, 4),)
    assert data.std == (round(np.sqrt(np.average((levels - mean) ** 2, weights=counts)), 4),)


def test_no_root_no_folder_and_a_missing_file_are_errors(small: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"data\.root is not set, in MNIST"):
        MNIST().index()
    with pytest.raises(UserError, match=rf"no MNIST files there, {tmp_path}/none/MNIST/raw; .*--data\.download"):
        MNIST(root=str(tmp_path / "none")).index()
    missing = file(small, FILES[3])
    missing.unlink()
    with pytest.raises(UserError, match=f"no such MNIST file, {missing}"):
        MNIST(root=str(small)).index()


IMAGES, LABELS = np.zeros((12, 28, 28), np.uint8), np.arange(12, dtype=np.uint8) % 10


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        (FILES[0], gzip.compress(idx(IMAGES), mtime=0)[:-20], "truncated or damaged gzip"),
        (FILES[0], b"\x1f\x8b not gzip at all", "truncated or damaged gzip"),
        (FILES[0], gzip.compress(idx(IMAGES), mtime=0)[:-8] + bytes(8), "truncated or damaged gzip"),
        (FILES[0], b"", "IDX magic missing instead of 00000803"),
        (FILES[0], b"<html>404</html>", "IDX magic 3c68746d instead of 00000803"),
        (FILES[0], gzip.compress(idx(LABELS), mtime=0), "IDX magic 00000801 instead of 00000803"),
        (FILES[0], idx(IMAGES)[:-1], "its length 9,423 does not fit its header"),
        (FILES[0], idx(IMAGES)[:10], "its length 10 does not fit its header"),
        (FILES[0], idx(IMAGES) + b"!", "its length 9,425 does not fit its header"),
        (FILES[0], bytes([0, 0, 8, 3]) + b"\xff" * 12, "its length 16 does not fit its header"),
        (FILES[0], idx(IMAGES[:11]), "11 images for 12 labels"),
        (FILES[1], idx(LABELS[:11]), "12 images for 11 labels"),
        (FILES[1], idx(LABELS + 1), "label 10 is above 9"),
    ],
)
def test_a_broken_file_is_named_with_the_reason(small: Path, name: str, content: bytes, reason: str) -> None:
    file(small, name).write_bytes(content)
    with pytest.raises(UserError) as caught:
        MNIST(root=str(small)).index()
    assert f"the file is broken: {reason}" in str(caught.value)
    assert f"{small}/MNIST/raw/train-" in str(caught.value) and "remove it and run again" in str(caught.value)


def test_a_mended_file_is_read_again(small: Path) -> None:
    whole = file(small, FILES[0]).read_bytes()
    file(small, FILES[0]).write_bytes(whole[:-20])
    with pytest.raises(UserError, match="broken"):
        MNIST(root=str(small)).index()
    file(small, FILES[0]).write_bytes(whole)
    assert len(MNIST(root=str(small)).index()["train"]) == 12


class Mirror:
    """Stands in for the network: serves files by name and counts what was asked."""

    def __init__(self, files: dict[str, bytes | Exception]):
        self.files = files
        self.asked: list[str] = []

    def __call__(self, url: str, timeout: float) -> io.BytesIO:
        assert url.startswith("https://") and timeout
        self.asked.append(url.rpartition("/")[2])
        content = self.files[self.asked[-1]]
        if isinstance(content, Exception):
            raise content
        return io.BytesIO(content)


@pytest.fixture(scope="module")
def originals(data_root: Path) -> dict[str, bytes]:
    return {f"{name}.gz": file(data_root / "mnist", name).read_bytes() for name in FILES}


def test_download_fetches_what_is_missing_and_no_more(
    tmp_path: Path, originals: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror = Mirror(dict(originals))
    monkeypatch.setattr(urllib.request, "urlopen", mirror)
    data = MNIST(root=str(tmp_path / "new"), download=True)
    assert {split: len(index) for split, index in data.index().items()} == {"train": 60_000, "val": 10_000}
    raw = tmp_path / "new/MNIST/raw"
    assert {path.name: path.read_bytes() for path in raw.iterdir()} == originals
    (raw / f"{FILES[1]}.gz").unlink()
    (raw / FILES[3]).write_bytes(gzip.decompress((raw / f"{FILES[3]}.gz").read_bytes()))
    (raw / f"{FILES[3]}.gz").unlink()
    data.index()
    assert mirror.asked == [*originals, f"{FILES[1]}.gz"]


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (gzip.compress(idx(IMAGES), mtime=0), "its sha256 is not the known one"),
        (gzip.compress(idx(IMAGES), mtime=0)[:-20], "ended before"),
        (b"<html>404</html>", "[Nn]ot a gzipped file"),
        (b"", "its sha256 is not the known one"),
        (urllib.error.URLError("no route to host"), "no route to host"),
        (TimeoutError("timed out"), "timed out"),
        (http.client.IncompleteRead(b"12345", 95), "IncompleteRead"),
    ],
)
def test_a_failed_download_is_an_error_and_leaves_nothing_behind(
    tmp_path: Path, reply: bytes | Exception, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(urllib.request, "urlopen", Mirror({f"{FILES[0]}.gz": reply}))
    with pytest.raises(UserError, match=rf"the download failed: .*{reason}.*, https://.*{FILES[0]}\.gz; check the"):
        MNIST(root=str(tmp_path), download=True).index()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_nothing_is_downloaded_unless_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mirror = Mirror({})
    monkeypatch.setattr(urllib.request, "urlopen", mirror)
    with pytest.raises(UserError, match="no MNIST files there"):
        MNIST(root=str(tmp_path)).index()
    assert mirror.asked == []
