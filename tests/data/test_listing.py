"""Lists of files that are kept between starts: what is noticed, and what is not kept."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from raytrain.data import ImageFolder, Index, listing, trees


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep lists of any length, of folders that were made just now."""
    monkeypatch.setattr(listing, "FROM", 1)
    monkeypatch.setattr(listing, "RECENT", 0.0)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two splits of three classes, one of which has a folder inside and one is a link."""
    for split in ("train", "val"):
        for name in ("ant", "bee/inner"):
            folder = tmp_path / "images" / split / name
            folder.mkdir(parents=True)
            for number in range(4):
                (folder / f"{number}.jpg").write_bytes(bytes([number, len(name)]))
        (tmp_path / "images" / split / "ant" / "notes.txt").write_text("x")
    for place in ("here", "there"):
        (tmp_path / place).mkdir()
        (tmp_path / place / f"{place}.png").write_bytes(b"x")
    for split in ("train", "val"):
        (tmp_path / "images" / split / "cat").symlink_to(tmp_path / "here")
    return tmp_path / "images"


def indices(root: Path, cache: str = "kept", verify: str = "auto") -> dict[str, Index]:
    folder = "off" if cache == "off" else str(root.parent / cache)
    return ImageFolder(str(root), size=8, cache=folder, verify=verify).index()  # type: ignore[arg-type]


def shown(found: dict[str, Index]) -> dict[str, tuple[object, ...]]:
    """All that an index holds."""
    return {
        split: (
            *(index.names(np.arange(len(index))), index.labels.tolist(), index.classes, index.shape, index.ignored),
            *(None if one is None else one.tolist() for one in (index.sizes, index.times)),
            index.fingerprint(),
        )
        for split, index in found.items()
    }


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The folders that are listed from now on."""
    names, real = [], trees._folder
    monkeypatch.setattr(trees, "_folder", lambda root, name, *more: names.append(name) or real(root, name, *more))
    return names


def test_a_second_start_lists_nothing_and_finds_the_same(root: Path, listed: list[str]) -> None:
    first = shown(indices(root))
    assert len(listed) == 8 and first == shown(indices(root, "off"))
    listed.clear()
    assert shown(indices(root)) == first and not listed
    assert ImageFolder(str(root), size=9, cache=str(root.parent / "kept")).index()["val"].shape == (3, 9, 9)
    assert not listed, "one list for all sizes"
    indices(root, verify="all")
    assert len(listed) == 8


def _rename_class(root: Path) -> None:
    os.rename(root / "train" / "ant", root / "train" / "ape")
    os.rename(root / "val" / "ant", root / "val" / "ape")


def _replace(root: Path) -> None:
    old = root / "train" / "ant" / "1.jpg"
    status = old.stat()
    (root / "new").write_bytes(b"zz")
    os.utime(root / "new", ns=(status.st_atime_ns, status.st_mtime_ns))
    os.replace(root / "new", old)


def _write_in_place(root: Path) -> None:
    file = root / "val" / "bee" / "inner" / "3.jpg"
    status = file.stat()
    with open(file, "r+b") as open_file:
        open_file.write(b"zz")
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


def _retarget(root: Path) -> None:
    (root / "train" / "cat").unlink()
    (root / "train" / "cat").symlink_to(root.parent / "there")


def _exchange_target(root: Path) -> None:
    os.rename(root.parent / "here", root.parent / "gone")
    os.rename(root.parent / "there", root.parent / "here")


CHANGES: dict[str, Callable[[Path], object]] = {
    "a file added": lambda root: (root / "train" / "ant" / "9.jpg").write_bytes(b"x"),
    "a file added deep inside": lambda root: (root / "val" / "bee" / "inner" / "9.jpg").write_bytes(b"x"),
    "a file removed": lambda root: (root / "train" / "ant" / "2.jpg").unlink(),
    "a file renamed": lambda root: os.rename(root / "train" / "ant" / "2.jpg", root / "train" / "ant" / "8.jpg"),
    "a file moved to another class": lambda root: os.rename(
        root / "train" / "ant" / "2.jpg", root / "train" / "bee" / "8.jpg"
    ),
    "a class renamed": _rename_class,
    "a class added": lambda root: [shutil.copytree(root / s / "ant", root / s / "dog") for s in ("train", "val")],
    "a class removed": lambda root: [shutil.rmtree(root / s / "bee") for s in ("train", "val")],
    "a split added": lambda root: shutil.copytree(root / "val", root / "test"),
    "a split renamed": lambda root: os.rename(root / "val", root / "validation"),
    "a file replaced, of equal size and time": _replace,
    "a file written to in place, of equal size and time": _write_in_place,
    "a link to a class led elsewhere": _retarget,
    "a link's target exchanged": _exchange_target,
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_later_start_notices(root: Path, change: str) -> None:
    before = shown(indices(root))
    CHANGES[change](root)
    after = shown(indices(root))
    assert after == shown(indices(root, "off")) and after != before
    assert shown(indices(root)) == after


@pytest.mark.parametrize("damage", ["a bit", "cut", "empty", "text"])
def test_a_damaged_list_is_as_good_as_none(root: Path, listed: list[str], damage: str) -> None:
    first = shown(indices(root))
    (file,) = (root.parent / "kept").iterdir()
    raw = file.read_bytes()
    changed = bytearray(raw)
    changed[len(raw) // 2] ^= 1
    file.write_bytes({"a bit": bytes(changed), "cut": raw[:-100], "empty": b"", "text": b"no list " * 9}[damage])
    listed.clear()
    assert shown(indices(root)) == first and len(listed) == 8
    assert file.read_bytes() == raw, "it is written anew"


def test_a_list_of_another_version_is_not_taken(root: Path, listed: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    indices(root)
    listed.clear()
    monkeypatch.setattr(listing, "VERSION", listing.VERSION + 1)
    indices(root)
    assert len(listed) == 8


@pytest.mark.parametrize("where", ["train/dog", "train/ant/x.jpg", "train/ant/inside"])
def test_what_links_that_lead_nowhere_hide_is_found_later(root: Path, where: str) -> None:
    target = root.parent / "mounted"
    (root / where).symlink_to(target)
    indices(root)
    (root.parent / "elsewhere").mkdir()
    (root.parent / "elsewhere" / "0.jpg").write_bytes(b"x")
    (root / "val" / "dog").mkdir()
    (root / "val" / "dog" / "0.jpg").write_bytes(b"x")
    if where != "train/dog":
        (root / "train" / "dog").symlink_to(root.parent / "elsewhere")
    if where.endswith(".jpg"):
        target.write_bytes(b"xy")
    else:
        os.rename(root.parent / "elsewhere", target) if where == "train/dog" else shutil.copytree(
            root.parent / "elsewhere", target
        )
    assert shown(indices(root)) == shown(indices(root, "off"))


def test_lists_of_folders_that_change_just_now_and_of_few_files_are_not_kept(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "RECENT", 3600.0)
    indices(root)
    monkeypatch.setattr(listing, "RECENT", 0.0)
    monkeypatch.setattr(listing, "FROM", 20)
    indices(root)
    assert not (root.parent / "kept").exists()
    indices(root, "off")
    assert not (root.parent / "off").exists()


def test_without_time_for_all_files_no_decoded_image_is_taken_from_the_disk(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = indices(root)
    data = ImageFolder(str(root), size=8, cache=str(root.parent / "kept"))
    assert data.cache_entry(first["train"]) is not None and not any("--data.verify" in n for n in notes(data, first))
    monkeypatch.setattr(listing, "SECONDS", -1.0)
    second = data.index()
    assert data.cache_entry(second["train"]) is None and any("--data.verify all" in n for n in notes(data, second))
    assert [index.fingerprint() for index in second.values()] == [index.fingerprint() for index in first.values()]


def notes(data: ImageFolder, found: dict[str, Index]) -> list[str]:
    return data.size_notes(found["train"])


def test_a_folder_without_splits_keeps_its_list_too(root: Path, listed: list[str]) -> None:
    first = shown(indices(root / "train"))
    listed.clear()
    assert shown(indices(root / "train")) == first and not listed
    (root / "train" / "0").mkdir()
    (root / "train" / "0" / "0.jpg").write_bytes(b"x")
    assert shown(indices(root / "train")) == shown(indices(root / "train", "off")) != first
