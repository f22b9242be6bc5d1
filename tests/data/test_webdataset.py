"""WebDataset: tar shards give the samples and batches of the folder that they were written from."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from pyarrow import fs

from raytrain.data import ImageFolder, WebDataset, tars
from raytrain.data.checks import checked_indices, checked_read
from raytrain.data.images import splits_of
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
        ({"a_v1_png": b"x", "a_v1_cls": b"0"}, {}, "'a.v1.png' has no label, .*--data.label v1.cls$"),
        ({f"a_{n}_png": b"x" for n in range(4)}, {}, ".2.png and 1 more, .*; or write no dots into the names of samp"),
        (
            {"a_png": b"x", "a_json": b'{"kind": [1, 2]}'},
            {"label": "json.kind"},
            r"the label 'kind' of the sample 'a' is \[1, 2\], not a text or number, .*a.tar; name an entry",
        ),
        ({"a_png": b"x", "a_json": b'{"kind": {"of": 3}}'}, {"label": "json.kind"}, 'sample .a. is {"of": 3}, not a'),
        ({"a_txt": b"x"}, {}, "no shard holds an image"),
        ({"a_png": b"x", "a_cls": b"3"}, {}, "labels must be 0 to n - 1 without gaps, got 3"),
        ({"a_png": b"x", "a_cls": b"9" * 20}, {}, "labels must be 0 to n - 1 without gaps, got 99999999999999999999,"),
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


def test_folders_above_the_nearest_tell_the_splits_too(folder: Path, tmp_path: Path) -> None:
    for split in ("train", "val"):
        (tmp_path / "old-train" / split / "a").mkdir(parents=True)
        (write(folder, tmp_path / "all") / f"shapes-{split}-000.tar").rename(
            tmp_path / "old-train" / split / "a" / "000.tar"
        )
    found = WebDataset(str(tmp_path / "old-train"), size=8, image="png").index()
    assert {split: len(index) for split, index in found.items()} == {"train": 2, "val": 6}
    at_a_url = splits_of(["s3://train/val/a/0.tar", "s3://train/test/val/0.tar", "s3://train/b/train-1.tar"])
    assert at_a_url is not None and at_a_url.tolist() == [1, 1, 0]
    assert splits_of(["train/a/0.tar", "train/b/1.tar"]) is None


def ten(path: Path) -> Path:
    with tarfile.open(path, "w") as tar:
        for number in range(10):
            add(tar, f"{number:03d}.png", b"an image")
            add(tar, f"{number:03d}.cls", str(number % 2).encode())
    return path


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda raw: raw[: 2048 * 5], r"it is cut: an archive's end is missing \(at byte 10,240\)"),
        (lambda raw: raw[: 2048 * 5 + 300], r"truncated header \(at byte 10,240\)"),
        (lambda raw: raw[:10240] + b"x" * 512 + raw[10752:], r"(bad checksum|invalid header) \(at byte 10,240\)"),
        (lambda raw: raw[:10240] + bytes(2048) + raw[12288:], "an empty block ends it, and at byte 12,288 more data"),
        (lambda raw: b"", r"it is empty \(at byte 0\)"),
    ],
    ids=["cut", "cut header", "damaged", "zeros", "empty"],
)
def test_a_shard_that_is_cut_or_damaged_is_one_line(
    tmp_path: Path, damage: Callable[[bytes], bytes], message: str
) -> None:
    path = ten(tmp_path / "a.tar")
    raw = path.read_bytes()
    assert sum(map(len, WebDataset(str(path), cache="off").index().values())) == 10
    path.write_bytes(damage(raw))
    with pytest.raises(UserError, match=rf"no tar file, or damaged: {message}.*{path}; write") as found:
        WebDataset(str(path), cache="off").index()
    assert "\n" not in str(found.value)


def test_a_label_may_have_dots_in_its_suffix(tmp_path: Path) -> None:
    members = {f"{n}_V1_{kind}": str(n % 2).encode() for n in range(8) for kind in ("jpg", "cls")}
    found = WebDataset(shard(tmp_path / "a.tar", **members), label=".v1.Cls", cache="off").index()
    assert found["train"].classes == ("0", "1")
    assert sum(map(len, found.values())) == 8


def test_compressed_shards_must_be_unpacked(tmp_path: Path) -> None:
    ten(tmp_path / "a.tar").rename(tmp_path / "a.tar.gz")
    for place in (tmp_path, tmp_path / "a.tar.gz", tmp_path / "*.tar.gz"):
        with pytest.raises(UserError, match=r"compressed \(.tar.gz\), .*/a.tar.gz; unpack .*: gunzip \*.gz$"):
            WebDataset(str(place), cache="off").index()
    ten(tmp_path / "b.tar")
    assert sum(map(len, WebDataset(str(tmp_path), cache="off").index().values())) == 10


def test_a_cut_shard_at_a_url_is_one_line(s3: str, tmp_path: Path) -> None:
    files, root = fs.FileSystem.from_uri(f"{s3}/cut")
    (tmp_path / "a.tar").write_bytes(ten(tmp_path / "b.tar").read_bytes()[:10240])
    files.create_dir(root)
    with files.open_output_stream(f"{root}/a.tar") as target:
        target.write((tmp_path / "a.tar").read_bytes())
    with pytest.raises(UserError, match=r"it is cut: .*s3://.*/cut/a.tar"):
        WebDataset(f"{s3}/cut/a.tar", cache="off").index()


def test_the_plan_says_how_many_samples_have_no_image(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for number in range(8):
            add(tar, f"{number:03d}.{'gif' if number % 2 else 'png'}", b"an image")
            add(tar, f"{number:03d}.cls", b"0")
            add(tar, f"{number:03d}x.txt", b"of no sample")
    for _ in range(2):  # read, and as it was kept
        data = WebDataset(str(tmp_path / "a.tar"), cache=str(tmp_path / "cache"))
        assert sum(map(len, data.index().values())) == 4
        told = "4 samples have a label and no image, and are left out: a.tar: 001 ... (images are .jpg .jpeg .png"
        assert data.notes()[0].startswith(told)
        tars._LEFT_OUT.clear()
    (tmp_path / "whole.tar").write_bytes(ten(tmp_path / "b.tar").read_bytes())
    whole = WebDataset(str(tmp_path / "whole.tar"), cache="off")
    assert whole.index() and not any("left out" in note for note in whole.notes())


def test_hard_links_are_followed(tmp_path: Path) -> None:
    def link(tar: tarfile.TarFile, name: str, to: str) -> None:
        member = tarfile.TarInfo(name)
        member.type, member.linkname = tarfile.LNKTYPE, to
        tar.addfile(member)

    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        add(tar, "0.png", b"first")
        add(tar, "0.cls", b"1")
        add(tar, "1.png", b"other one")
        link(tar, "1.cls", "0.cls")
        link(tar, "2.png", "1.png")
        add(tar, "2.cls", b"0")
        add(tar, "3.png", b"last")
        link(tar, "3.cls", "2.cls")
    data = WebDataset(str(tmp_path / "a.tar"), cache="off")
    found = {}
    for index in data.index().values():
        every = np.arange(len(index))
        found |= zip(
            index.names(every), zip(index.labels.tolist(), data.encoded(index, every), strict=True), strict=True
        )
    assert found == {
        "0.png": (1, b"first"),
        "1.png": (1, b"other one"),
        "2.png": (0, b"other one"),
        "3.png": (0, b"last"),
    }
    for name in ("0.png", "0.cls"):
        with tarfile.open(tmp_path / "a.tar", "w") as tar:
            link(tar, name, "elsewhere")
        with pytest.raises(UserError, match=f"'{name}' is a hard link to 'elsewhere', which is no such member before"):
            data.index()


def test_names_that_are_not_utf8_are_shown(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.GNU_FORMAT, encoding="latin-1") as tar:
        for number in range(4):
            add(tar, f"caf\u00e9{number}.png", b"an image")
            add(tar, f"caf\u00e9{number}.cls", b"0")
        add(tar, "caf\u00e9.cls", b"0")
    data = WebDataset(str(tmp_path / "a.tar"), cache="off")
    names = [name for index in data.index().values() for name in index.names(np.arange(len(index)))]
    assert sorted(names) == [f"caf\ufffd{number}.png" for number in range(4)]
    assert "a.tar: caf\ufffd (" in data.notes()[0]


@pytest.mark.parametrize("label", [".cls", "CLS", ".JSON.number", "json.number"])
def test_a_label_is_named_in_any_case(folder: Path, tmp_path: Path, label: str) -> None:
    classes = ("ant", "bee")
    data = WebDataset(str(write(folder, tmp_path)), image="png", label=label, classes=classes, cache="off")
    assert sum(map(len, data.index().values())) == 14


def test_files_of_macos_are_no_shards(tmp_path: Path) -> None:
    (tmp_path / "._a.tar").write_bytes(b"\0\5\x16\7" + bytes(200))
    with pytest.raises(UserError, match=rf"no shard is there, but files ._NAME of macOS, {tmp_path}; copy"):
        WebDataset(str(tmp_path), cache="off").index()
    ten(tmp_path / "a.tar")
    assert sum(map(len, WebDataset(str(tmp_path), cache="off").index().values())) == 10
