"""Images at a URL: the samples of the local folder, and what is wrong with a URL."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.s3_server import Gate
from PIL import Image
from pyarrow import fs

from raytrain.data import ImageFolder, byte_files
from raytrain.data.checks import checked_indices, checked_read
from raytrain.data.loader import Loader
from raytrain.data.reader import Direct
from raytrain.errors import BadSample, UserError


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An ImageFolder with folders inside a class, hidden and other files, and names that a URL must quote."""
    root = tmp_path_factory.mktemp("images")
    names = ("1.png", "10.PNG", "2.png", "a b%20?#ä.png", "deep/3.png", "deep-er/4.png", "deep/er/5.png")
    hidden = (".hidden.png", ".deep/6.png", "notes.txt")
    for number, (split, label) in enumerate((s, c) for s in ("train", "Validation") for c in ("ant", "bee")):
        for place, name in enumerate((*names, *hidden)):
            path = root / split / label / name
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (6 + place, 7), (number * 50, place * 20, 90)).save(path, "png")
    return root


@pytest.fixture(scope="module")
def url(folder: Path, s3: str) -> str:
    files, root = fs.FileSystem.from_uri(f"{s3}/images")
    fs.copy_files(str(folder), root, destination_filesystem=files)
    return f"{s3}/images"


def test_a_url_gives_the_samples_of_the_folder(folder: Path, url: str) -> None:
    here, there = ImageFolder(str(folder), size=8), ImageFolder(url + "/", size=8)
    expected, found = checked_indices(here), checked_indices(there)
    assert list(found) == list(expected) == ["train", "val"]
    for split, index in found.items():
        rows = np.arange(len(index))
        assert index.fingerprint() == expected[split].fingerprint()
        assert index.names(rows) == expected[split].names(rows) and len(index) == 14
        assert sorted(index.ignored) == sorted(expected[split].ignored)
        pixels, other = checked_read(there, index, rows)["image"], checked_read(here, expected[split], rows)["image"]
        np.testing.assert_array_equal(pixels, other)
        assert there.probe(index) == []
    assert there.where(found["train"], 0) == f"{url}/train/ant/1.png"
    assert there.pixel_size(found["train"], 0) == (6, 7)


def test_a_url_gives_the_batches_of_the_folder(folder: Path, url: str) -> None:
    batches = []
    for root in (str(folder), url):
        data = ImageFolder(root, size=8)
        index = data.index()["train"]
        loader = Loader(data, index, Direct(data, index), 4, 3, 0, 1, torch.device("cpu"), train=True)
        batches.append([step.arrays for step in loader.epoch(1)])
    assert len(batches[0]) == 4
    for one, other in zip(*batches, strict=True):
        assert list(one) == list(other) and all(torch.equal(one[name], other[name]) for name in one)


def test_a_request_is_made_again_until_it_succeeds(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(byte_files, "_PAUSE", 0.0)
    tries = []

    def located(path: str) -> tuple[fs.FileSystem, str]:
        tries.append(path)
        if len(tries) < 4:
            raise OSError("slow down")
        return known(path)

    known = byte_files.located
    monkeypatch.setattr(byte_files, "located", located)
    assert byte_files.content(f"{url}/train/ant/1.png")[:4] == b"\x89PNG" and len(tries) == 4
    assert byte_files.part(f"{url}/train/ant/1.png", 1, 3) == b"PNG"


def test_a_missing_object_is_a_bad_sample(folder: Path, url: str) -> None:
    data = ImageFolder(url, size=8)
    index = data.index()["val"]
    files, root = fs.FileSystem.from_uri(url)
    files.delete_file(f"{root}/Validation/ant/1.png")
    try:
        with pytest.raises(BadSample, match="Validation/ant") as found:
            data.read(index, np.arange(3))
        assert isinstance(found.value.__cause__, OSError)  # it may come back
        assert [bad.path for bad in data.probe(index)] == [f"{url}/Validation/ant/1.png"]
    finally:
        fs.copy_files(
            str(folder / "Validation/ant/1.png"), f"{root}/Validation/ant/1.png", destination_filesystem=files
        )


@pytest.mark.parametrize(
    ("root", "message"),
    [
        ("s3://bucket/nothing", "nothing is there, s3://bucket/nothing; check the address"),
        ("s3://no-such-bucket/x?region=us-east-1", "the URL cannot be read: .*, s3://no-such-bucket/x; check"),
        ("foo://bucket/x", "the URL cannot be read: Unrecognized filesystem type"),
        ("s3://key:secret@bucket/images", "the URL holds a password"),
    ],
)
def test_a_url_that_cannot_be_read_is_one_line(s3: str, root: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as found:
        ImageFolder(root).index()
    assert "secret" not in str(found.value)


def test_storage_that_never_answers_is_given_up(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(1)
    gate.shut()
    monkeypatch.setattr(byte_files, "FIRST_SECONDS", 0.2)
    start = time.monotonic()
    try:
        with pytest.raises(UserError, match="the URL cannot be read: no answer for 0 s"):
            ImageFolder(f"s3://bucket/images?scheme=http&endpoint_override=127.0.0.1:{gate.port}").index()
    finally:
        gate.close()
    assert time.monotonic() - start < 5
