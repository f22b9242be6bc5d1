"""WebDataset: tar shards give the samples and batches of the folder that they were written from."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from pyarrow import fs

from raytrain.data import ImageFolder, WebDataset, tars
from raytrain.data.checks import checked_indices, checked_read
from raytrain.errors import BadSample, UserError


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("images")
    for number in range(14):
        split, name = ("train", "val")[number >= 8], ("ant", "bee")[number % 2]
        path = root / split / name / f"{number:03d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (6 + number % 3, 5), (number * 17, 40, 255 - number * 9)).save(path)
    return root


def add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))


def write(folder: Path, target: Path) -> Path:
    """Write four shards, three of train, in the order of the ImageFolder."""
    target.mkdir(exist_ok=True)
    for split, count in (("train", 3), ("val", 1)):
        files = sorted((folder / split).rglob("*.png"))
        for shard in range(count):
            with tarfile.open(target / f"shapes-{split}-{shard:03d}.tar", "w") as tar:
                for path in files[len(files) * shard // count : len(files) * (shard + 1) // count]:
                    label = path.parent.name
                    add(tar, f"./{path.stem}.cls", label.encode() + b"\n")
                    add(tar, f"./{path.stem}.json", json.dumps({"number": ["ant", "bee"].index(label)}).encode())
                    add(tar, f"./{path.stem}.png", path.read_bytes())
                    add(tar, f"./{path.stem}.mask.png", b"of the same sample")
    return target


@pytest.fixture(scope="module")
def places(folder: Path, tmp_path_factory: pytest.TempPathFactory, s3: str) -> list[str]:
    """The same shards: in a folder, by patterns, and at a URL."""
    here = write(folder, tmp_path_factory.mktemp("shards"))
    files, root = fs.FileSystem.from_uri(f"{s3}/shards")
    fs.copy_files(str(here), root, destination_filesystem=files)
    names = "shapes-{train-{000..002},val-000}.tar"
    return [str(here), f"{here}/*.tar", f"{here}/{names}", f"{s3}/shards", f"{s3}/shards/*.tar", f"{s3}/shards/{names}"]


@pytest.mark.parametrize("place", range(6))
def test_shards_give_the_samples_of_the_folder(folder: Path, places: list[str], place: int) -> None:
    data, here = WebDataset(places[place], size=8, image="png"), ImageFolder(str(folder), size=8)
    found, expected = checked_indices(data), checked_indices(here)
    assert list(found) == ["train", "val"]
    for split, index in found.items():
        order = np.array([5, 0, 3, 1, 1])
        assert index.classes == ("ant", "bee") and index.labels.tolist() == expected[split].labels.tolist()
        assert index.sizes is not None and index.sizes.tolist() == expected[split].sizes.tolist()  # type: ignore[union-attr]
        pixels = checked_read(data, index, order)["image"]
        np.testing.assert_array_equal(pixels, checked_read(here, expected[split], order)["image"])
        part = index.take(np.array([4, 2]))
        np.testing.assert_array_equal(
            checked_read(data, part, np.array([1, 0]))["image"],
            checked_read(here, expected[split], np.array([2, 4]))["image"],
        )
    assert data.where(found["train"], 7).endswith("shapes-train-002.tar: ./007.png")
    again = WebDataset(places[place], size=8, image=".PNG", label="json.number", classes=("ant", "bee")).index()
    assert {split: index.fingerprint() for split, index in again.items()} == {
        split: index.fingerprint() for split, index in found.items()
    }


def test_headers_are_read_once(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = WebDataset(str(write(folder, tmp_path / "shards")), size=8, image="png", cache=str(tmp_path / "cache"))
    first = data.index()["train"]
    monkeypatch.setattr(tars, "_scan", None)
    second = data.index()["train"]
    assert first.fingerprint() == second.fingerprint()
    np.testing.assert_array_equal(data.read(first, np.arange(8)), data.read(second, np.arange(8)))
    monkeypatch.undo()
    (kept,) = (tmp_path / "cache").glob("*.tars")
    raw = kept.read_bytes()
    kept.write_bytes(raw[:-40] + bytes([raw[-40] ^ 1]) + raw[-39:])  # a damaged list is read again
    assert data.index()["train"].fingerprint() == first.fingerprint() and kept.read_bytes() == raw
    (tmp_path / "shards" / "shapes-val-000.tar").unlink()
    fewer = data.index()  # another set of shards is another entry
    assert len(fewer["train"]) + len(fewer["val"]) == 8 and "is used for validation" in data.notes()[0]


def test_a_shard_that_was_cut_later_is_a_bad_sample(folder: Path, tmp_path: Path) -> None:
    data = WebDataset(str(write(folder, tmp_path / "shards")), size=8, image="png", cache="off")
    index = data.index()["train"]
    shard = tmp_path / "shards" / "shapes-train-000.tar"
    shard.write_bytes(shard.read_bytes()[:600])
    with pytest.raises(BadSample, match="the file is empty") as found:
        data.read(index, np.array([0]))
    assert found.value.path == f"{shard}: ./000.png"
    shard.unlink()
    with pytest.raises(BadSample, match="No such file") as found:
        data.read(index, np.array([0]))
    assert isinstance(found.value.__cause__, OSError)


@pytest.mark.parametrize("first", ["depth.png", "jpg"])
def test_the_image_of_several_is_the_named_one(s3: str, tmp_path: Path, first: str) -> None:
    def raw(red: int, kind: str) -> bytes:
        file = io.BytesIO()
        Image.new("RGB", (8, 8), (red, 0, 0)).save(file, kind)
        return file.getvalue()

    reds = {"jpg": 200, "depth.png": 10}
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for number in range(4):
            for suffix in sorted(reds, key=lambda one: one != first):
                add(tar, f"{number:03d}.{suffix}", raw(reds[suffix] + number, "PNG" if "png" in suffix else "JPEG"))
            add(tar, f"{number:03d}.cls", str(number % 2).encode())
    files, root = fs.FileSystem.from_uri(f"{s3}/several-{first}")
    fs.copy_files(str(tmp_path), root, destination_filesystem=files)
    for place in (str(tmp_path), f"{s3}/several-{first}"):
        for suffix, red in reds.items():
            data = WebDataset(place, size=8, image=suffix, cache=str(tmp_path / "cache"))
            index = data.index()["train"]
            found = checked_read(data, index, np.arange(len(index)))["image"][:, 0].astype(int)
            assert index.names(np.arange(len(index)))[0].endswith(f".{suffix}")
            np.testing.assert_allclose(found, np.full_like(found, red) + index.rows[:, None, None], atol=2)
        told = r"the sample '000' has several images, .jpg, .depth.png, .*a.tar; name .*--data.image jpg or depth.png$"
        with pytest.raises(UserError, match=told):
            WebDataset(place, size=8, cache=str(tmp_path / "cache")).index()
        with pytest.raises(UserError, match=r"the sample '000' has no image .jpeg, but .jpg, .depth.png, .*a.tar"):
            WebDataset(place, size=8, image="jpeg", cache=str(tmp_path / "cache")).index()


def test_a_sample_that_is_there_twice_is_one_line(tmp_path: Path) -> None:
    def write(*names: str) -> WebDataset:
        with tarfile.open(tmp_path / "a.tar", "w") as tar:
            for name in names:
                add(tar, name, b"1" if name.endswith("cls") else b"an image")
        return WebDataset(str(tmp_path / "a.tar"), classes=("a", "b"), cache="off")

    for again in ("1.jpg", "1.JPG", "1.cls"):
        told = f"the sample '1' is there twice, with two members {again[1:].lower()}, {tmp_path}/a.tar; give each"
        with pytest.raises(UserError, match=told):
            write("0.jpg", "0.cls", "1.jpg", "1.cls", "2.jpg", "2.cls", again).index()
    apart = write("1.jpg", "0.jpg", "a/1.jpg", "0.cls", "1.cls", "a/1.cls", "2.txt")  # other folders are other samples
    assert sorted(name for one in apart.index().values() for name in one.names(np.arange(len(one)))) == [
        "0.jpg",
        "1.jpg",
        "a/1.jpg",
    ]


def shard(path: Path, **members: bytes) -> str:
    with tarfile.open(path, "w") as tar:
        for name, content in members.items():
            add(tar, name.replace("_", "."), content)
    return str(path)


@pytest.mark.parametrize(
    ("members", "settings", "message"),
    [
        ({"a_png": b"x"}, {}, "'a.png' has no label, .*a.tar; add a member of the suffix .cls"),
        ({"a_png": b"x", "a_json": b"{}"}, {"label": "json.kind"}, "'a.png' has no label 'kind' in its .json"),
        (
            {"a_png": b"x", "a_json": b'{"kind": [1, 2]}'},
            {"label": "json.kind"},
            r"the label 'kind' of the sample 'a' is \[1, 2\], not a text or number, .*a.tar; name an entry",
        ),
        ({"a_png": b"x", "a_json": b'{"kind": {"of": 3}}'}, {"label": "json.kind"}, 'sample .a. is {"of": 3}, not a'),
        ({"a_txt": b"x"}, {}, "no shard holds an image"),
        ({"a_png": b"x", "a_cls": b"3"}, {}, "labels must be 0 to n - 1 without gaps, got 3"),
        ({"a_png": b"x", "a_cls": b"3"}, {"classes": ("a", "b")}, "labels must be 0 to n - 1"),
        ({"a_png": b"x", "a_cls": b"ant"}, {"classes": ("a", "b")}, "the labels are ant, in data.classes"),
        ({"a_png": b"x", "a_cls": b"ant"}, {}, "no class has two images"),
    ],
)
def test_shards_that_do_not_suit_are_one_line(
    tmp_path: Path, members: dict[str, bytes], settings: dict, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        WebDataset(shard(tmp_path / "a.tar", **members), **settings).index()


@pytest.mark.parametrize(
    ("root", "message"),
    [
        ("", "data.root is not set"),
        ("none.tar", "no shard is there, none.tar"),
        ("none-{0..3}.tar", "no shard is there, none-0.tar"),
        ("s3://bucket/none-{0..3}.tar", "no shard is there, s3://bucket/none-0.tar"),
    ],
)
def test_shards_that_are_not_there_are_one_line(s3: str, root: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        WebDataset(root).index()


def test_what_is_no_tar_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(b"no tar" * 1000)
    with pytest.raises(UserError, match=r"no tar file, or damaged: .*, .*a.tar; write it again"):
        WebDataset(str(tmp_path)).index()
    with pytest.raises(UserError, match="label names a"):
        WebDataset(str(tmp_path), label="json")


def test_folders_tell_the_splits_where_names_do_not(folder: Path, tmp_path: Path) -> None:
    for split in ("train", "val"):
        (tmp_path / split).mkdir()
        (write(folder, tmp_path / "all") / f"shapes-{split}-000.tar").rename(tmp_path / split / "000.tar")
    found = WebDataset(f"{tmp_path}/{{train,val}}", size=8, image="png").index()
    assert {split: len(index) for split, index in found.items()} == {"train": 2, "val": 6}
