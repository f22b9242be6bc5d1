from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from raytrain import MNIST, Packed, UserError, files
from raytrain.run.begin import check_writable


def test_write_atomically_replaces_the_whole_content_or_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "best.json"
    for text in ("long " * 1000, "short", ""):
        files.write_atomically(file, text)
        assert file.read_text() == text and [path.name for path in tmp_path.iterdir()] == ["best.json"]
    files.write_atomically(file, b"kept")
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("power cut")))
    with pytest.raises(OSError, match="power cut"):
        files.write_atomically(file, "new")
    assert file.read_text() == "kept" and [path.name for path in tmp_path.iterdir()] == ["best.json"]


def test_write_atomically_leaves_the_target_of_a_link_alone(tmp_path: Path) -> None:
    (tmp_path / "good").write_text("good")
    (tmp_path / "link").symlink_to("good")
    files.write_atomically(tmp_path / "link", "new")
    assert (tmp_path / "good").read_text() == "good" and (tmp_path / "link").read_text() == "new"
    (tmp_path / "log").symlink_to("good")
    with pytest.raises(OSError, match="Too many levels of symbolic links"):
        files.append(tmp_path / "log", "line\n")
    assert (tmp_path / "good").read_text() == "good"


def test_a_home_that_is_not_there_is_one_line() -> None:
    where = "~nosuchuser/x"
    for use in (
        files.expanded,
        lambda at: MNIST(at).index(),
        lambda at: Packed(at).index(),
        lambda at: check_writable(at, None),
    ):
        with pytest.raises(UserError, match=r"^no user has this home, ~nosuchuser/x; check the spelling$"):
            use(where)
    assert files.expanded("~/x") == Path.home() / "x" and files.expanded("a~b") == Path("a~b")


def damage(path: Path, how: str) -> None:
    content = {"empty": b"", "cut": b'{"a": ', "garbage": b"\xff\xfe\0", "list": b"[1]", "deep": b"[" * 100_000}
    if how in content:
        path.write_bytes(content[how])
    elif how == "folder":
        path.mkdir()
    elif how == "pipe":
        os.mkfifo(path)
    elif how == "device":
        path.symlink_to("/dev/zero")
    elif how == "circle":
        path.symlink_to(path.name)
    elif how == "large":
        with open(path, "wb") as file:
            file.truncate(files.LARGEST + 1)


DAMAGES = ("empty", "cut", "garbage", "list", "deep", "folder", "pipe", "device", "circle", "large")


@pytest.mark.parametrize("how", DAMAGES)
def test_damaged_file_is_one_line_without_waiting(tmp_path: Path, how: str) -> None:
    damage(tmp_path / "file.json", how)
    with pytest.raises(ValueError):
        files.read_json(tmp_path / "file.json")
    assert files.known_json(tmp_path / "file.json") == {}
    with pytest.raises(UserError, match=r"this file cannot be read.*; restore it") as caught:
        files.needed_json(tmp_path / "file.json", "restore it")
    assert str(tmp_path / "file.json") in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        files.read_json(tmp_path / "none.json")
    with pytest.raises(UserError, match=r"this file is missing.*none.json; restore it"):
        files.needed_json(tmp_path / "none.json", "restore it")


def test_a_good_file_is_read_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "there").write_text(json.dumps({"a": 1}))
    (tmp_path / "link.json").symlink_to("there")
    assert files.needed_json(tmp_path / "link.json", "") == {"a": 1}


@pytest.mark.parametrize("what", ["file", "link", "folder", "nothing"])
def test_remove_removes_whatever_is_there(tmp_path: Path, what: str) -> None:
    (tmp_path / "good").write_text("good")
    path = tmp_path / "path"
    if what == "file":
        path.touch()
    elif what == "link":
        path.symlink_to("good")
    elif what == "folder":
        (path / "more").mkdir(parents=True)
        (path / "more" / "file").touch()
    files.remove(path)
    assert [one.name for one in tmp_path.iterdir()] == ["good"]
