"""Mistakes in what data is named by: columns, codecs, URLs, credentials, sizes, versions. One line each."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import numpy as np
import pytest
from helpers.commands import fails, no_runs, succeeds, without_ray
from helpers.s3_server import settings
from PIL import Image

from raytrain import UserError, cli
from raytrain.checkpoint import storage
from raytrain.data import byte_files, packs
from raytrain.data.shards import manifest_text

__all__ = ["no_runs", "without_ray"]

pytestmark = pytest.mark.usefixtures("without_ray")
Capture = pytest.CaptureFixture[str]
DENIED = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"


def experiment(folder: Path, data: str, before: str = "") -> Path:
    lines = ["from dataclasses import dataclass", "import numpy as np", "from raytrain import *", before]
    (folder / "exp.py").write_text("\n".join([*lines, f"experiment = Experiment(CNN(channels=(4,)), {data})"]))
    return folder / "exp.py"


@pytest.fixture
def images(tmp_path: Path) -> Path:
    for split in ("train", "val"):
        for number in range(4):
            file = tmp_path / "images" / split / f"class {number % 2}" / f"{number}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.full((9, 8 + number, 3), number, np.uint8)).save(file)
    return tmp_path / "images"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ("label='labels'", "the manifest has no column 'labels', {}; did you mean label? the columns are path, label"),
        ("path='file'", "the manifest has no column 'file', {}; the columns are path, label; name the one"),
        ("label='species'", "{}; the columns are path, label; name the one with the classes by --data.label COLUMN"),
        ("columns=('patient',)", "the manifest has no column 'patient', {}; did you mean path? the columns are"),
        ("target=('age',)", "the manifest has no column 'age', {}; the columns are path, label"),
    ],
)
def test_a_missing_column(
    capsys: Capture, tmp_path: Path, images: Path, no_runs: Path, fields: str, message: str
) -> None:
    table = tmp_path / "labels.csv"
    table.write_text("path,label\nimages/train/class 0/0.png,a\nimages/train/class 1/1.png,b\n")
    file = experiment(tmp_path, f"Manifest({str(table)!r}, {fields})")
    assert message.format(table) in fails(capsys, "train", file, "--out", no_runs)


@pytest.mark.parametrize("flags", [(), ("--data.on_bad_sample", "skip")])
def test_a_table_whose_images_are_elsewhere(
    capsys: Capture, tmp_path: Path, images: Path, no_runs: Path, flags: tuple[str, ...]
) -> None:
    table = tmp_path / "labels.csv"
    table.write_text("path,label\n" + "".join(f"train/class {n % 2}/{n}.png,{n % 2}\n" for n in range(4)))
    file = experiment(tmp_path, f"Manifest({str(table)!r}, folder={str(images)!r}, val_fraction=0.5)")
    succeeds(capsys, "train", file, "--dry_run", "--out", no_runs)
    said = fails(capsys, "train", file, "--data.folder", tmp_path / "no", *flags, "--out", no_runs)
    assert f"no sample can be read; the first error: No such file or directory, {tmp_path}/no/train/class" in said
    assert "where a table's paths begin (data.folder)" in said


def test_numbers_are_not_taken_for_classes(capsys: Capture, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("path,age,nodule\n0.png,1.5,0\n1.png,2.5,1\n")
    said = fails(capsys, "data", tmp_path / "a.csv")
    assert "a.csv; the columns are path, age, nodule; name the one with the classes by --data.label COLUMN" in said
    said = fails(capsys, "data", tmp_path / "a.csv", "--data.target", "ages")
    assert "did you mean age?" in said


@pytest.mark.parametrize(
    ("name", "mark", "message"),
    [("a.csv", ";", "commas in place of ';'; its first row is path;label"), ("a.tsv", ",", "tabs in place of ','")],
)
def test_another_mark_between_columns(capsys: Capture, tmp_path: Path, name: str, mark: str, message: str) -> None:
    (tmp_path / name).write_text(f"path{mark}label\n0.png{mark}a\n")
    said = fails(capsys, "data", tmp_path / name)
    assert f"the manifest has one column, {tmp_path / name}; separate the columns with {message}" in said


def test_text_among_numbers(capsys: Capture, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('path,price\n0.png,1e-3\n1.png,"51,7"\n')
    said = fails(capsys, "data", tmp_path / "a.csv", "--data.target", "price")
    assert "column 'price' must hold numbers" in said and "got '51,7' in line 3 (1.png), " in said


def test_a_flag_that_is_not_there_suggests_one_that_is(capsys: Capture, images: Path) -> None:
    said = fails(capsys, "data", images, "--data.samples", 9)
    assert "unknown flag --data.samples; did you mean --samples?" in said


def test_an_unknown_codec(capsys: Capture, tmp_path: Path, images: Path) -> None:
    said = fails(capsys, "pack", images, tmp_path / "pack", "--codec", "jpg")
    assert "--codec must be one of 'auto', 'original', 'jpeg', 'raw', got 'jpg'" in said
    assert not (tmp_path / "pack").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"version": 2},
            "the pack has version 2, and this raytrain reads version 1, {}/manifest.json; use the",
        ),
        ({"version": None}, "the pack has version None, and this raytrain reads version 1"),
        ({"codec": "jpg"}, "the pack has an unknown codec 'jpg', {}/manifest.json; did you mean jpeg? the codecs are"),
        ({"format": "other"}, "this is no pack's manifest, {}/manifest.json; give a folder that `raytrain pack` wrote"),
    ],
)
def test_a_pack_of_another_kind(
    capsys: Capture, tmp_path: Path, images: Path, no_runs: Path, change: dict[str, Any], message: str
) -> None:
    pack = tmp_path / "pack"
    assert cli.run(["pack", str(images), str(pack)]) == 0
    capsys.readouterr()
    values = json.loads((pack / "manifest.json").read_text())
    del values["sha256"]
    (pack / "manifest.json").write_text(manifest_text(values | change))
    said = fails(capsys, "train", experiment(tmp_path, f"Packed({str(pack)!r})"), "--out", no_runs)
    assert message.format(pack) in said


MIXED = """
@dataclass(frozen=True)
class Mixed2(Data):
    def index(self):
        return {split: Index(np.arange(6) % 2, ("a", "b"), (3, 8, 8), split) for split in ("train", "val")}
    def read(self, index, samples):
        images = [np.zeros((3, 8, 8 + 2 * (i // 3)), np.uint8) for i in samples]
        return np.stack(images)
"""


def test_images_of_mixed_sizes(capsys: Capture, tmp_path: Path, no_runs: Path) -> None:
    said = fails(capsys, "train", experiment(tmp_path, "Mixed2()", MIXED), "--out", no_runs)
    assert "must return uint8 [1, 3, 8, 8], got uint8 [1, 3, 8, 10] for sample 3, train, in Mixed2.read" in said
    assert "return one array per sample, of the shape that index() declares for 'image'" in said


class _Refuses(BaseHTTPRequestHandler):
    """Answers every request as S3 does where the credentials are wrong, but for lists where `listed` says so."""

    listed = False
    refused: list[str]

    def do_GET(self) -> None:
        address = urlsplit(self.path)
        options = dict(parse_qsl(address.query))
        if self.listed and "list-type" in options:
            self._send(200, _list(options.get("prefix", ""), options.get("delimiter", "")).encode())
            return
        self.refused.append(f"{self.command} {address.path}")
        self._send(403, DENIED)

    def _send(self, status: int, text: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)

    do_HEAD = do_PUT = do_POST = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


def _list(prefix: str, delimiter: str) -> str:
    """S3's list of some of 200 images below `images`."""
    names = [f"images/{split}/{label}/{n}.png" for split in ("train", "val") for label in "ab" for n in range(50)]
    below = [name for name in names if name.startswith(prefix)]
    inside = {name for name in below if not delimiter or delimiter not in name[len(prefix) :]}
    folders = {prefix + name[len(prefix) :].split(delimiter)[0] + delimiter for name in {*below} - inside}
    files = "".join(f"<Contents><Key>{name}</Key><Size>9</Size></Contents>" for name in sorted(inside))
    files += "".join(f"<CommonPrefixes><Prefix>{name}</Prefix></CommonPrefixes>" for name in sorted(folders))
    count = f"<KeyCount>{len(inside) + len(folders)}</KeyCount>"
    return f"<ListBucketResult><Name>bucket</Name><IsTruncated>false</IsTruncated>{count}{files}</ListBucketResult>"


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A server that refuses the credentials; and processes that opened other file systems are as new."""
    monkeypatch.setattr(_Refuses, "refused", [], raising=False)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Refuses)
    threading.Thread(target=server.serve_forever, args=[0.01], daemon=True).start()
    yield from _at(server.server_address[1], monkeypatch)
    server.shutdown()
    server.server_close()


@pytest.fixture
def absent(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No server, for which the user waits less than three seconds."""
    monkeypatch.setattr(byte_files, "FIRST_SECONDS", 0.3)
    monkeypatch.setattr(packs, "FIRST_SECONDS", 0.3)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Refuses)
    server.server_close()
    yield from _at(server.server_address[1], monkeypatch)


def _at(port: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, value in settings(port).items():
        monkeypatch.setenv(name, value)
    byte_files._system.cache_clear()
    packs._PACKS.clear()
    yield
    byte_files._system.cache_clear()


SOURCES = {
    "ImageFolder": "ImageFolder('s3://bucket/images')",
    "Manifest": "Manifest('s3://bucket/labels.csv')",
    "WebDataset": "WebDataset('s3://bucket/shards')",
    "Packed": "Packed('s3://bucket/pack')",
}


@pytest.mark.usefixtures("refusing")
@pytest.mark.parametrize("source", SOURCES)
def test_wrong_credentials(capsys: Capture, tmp_path: Path, no_runs: Path, source: str) -> None:
    said = fails(capsys, "train", experiment(tmp_path, SOURCES[source]), "--out", no_runs)
    assert "s3://bucket/" in said and "the credentials (AWS_ACCESS_KEY_ID and the like)" in said
    assert "ACCESS_DENIED" in said or "Access Denied" in said or "403" in said


@pytest.mark.usefixtures("refusing")
@pytest.mark.parametrize("bad", ["error", "skip"])
@pytest.mark.parametrize("source", ["a bucket that may be listed", "a table here"])
def test_images_that_may_not_be_read_are_asked_for_once(
    capsys: Capture, tmp_path: Path, no_runs: Path, monkeypatch: pytest.MonkeyPatch, source: str, bad: str
) -> None:
    pauses = list[float]()
    monkeypatch.setattr(byte_files, "time", SimpleNamespace(sleep=pauses.append))
    monkeypatch.setattr(_Refuses, "listed", True)
    rows = [
        f"{split}/{label}/{n}.png,{label},{split}" for split in ("train", "val") for label in "ab" for n in range(50)
    ]
    (tmp_path / "labels.csv").write_text("\n".join(["path,label,split", *rows]))
    data = f"ImageFolder('s3://bucket/images', on_bad_sample={bad!r})"
    if source == "a table here":
        data = f"Manifest('{tmp_path}/labels.csv', folder='s3://bucket/images', on_bad_sample={bad!r})"
    said = fails(capsys, "train", experiment(tmp_path, data), "--out", no_runs)
    assert "the URL cannot be read: " in said and "ACCESS_DENIED" in said
    assert "s3://bucket/images/train/a/0.png; check the address, its bucket, and the credentials" in said
    assert _Refuses.refused == ["HEAD /bucket/images/train/a/0.png"] and not pauses


@pytest.mark.usefixtures("absent")
@pytest.mark.parametrize("source", SOURCES)
def test_a_server_that_is_not_there(capsys: Capture, tmp_path: Path, no_runs: Path, source: str) -> None:
    said = fails(capsys, "train", experiment(tmp_path, SOURCES[source]), "--out", no_runs)
    assert "the URL cannot be read" in said and "check the address" in said


def test_google_storage_without_credentials(
    capsys: Capture, tmp_path: Path, no_runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(byte_files, "FIRST_SECONDS", 0.3)
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GCE_METADATA_ROOT", "127.0.0.1:9")
    said = fails(capsys, "train", experiment(tmp_path, "ImageFolder('gs://bucket/images')"), "--out", no_runs)
    assert "the URL cannot be read" in said and "gs://bucket/images" in said
    assert "the credentials (GOOGLE_APPLICATION_CREDENTIALS, or" in said and "AWS" not in said


@pytest.mark.parametrize(
    ("url", "remedy"),
    [
        ("hdfs://127.0.0.1:1/a", "that Java and Hadoop are on this machine and all nodes (JAVA_HOME,"),
        ("abfss://a@b.dfs.core.windows.net/a", "its container, and the credentials (AZURE_CLIENT_ID"),
        ("gs://bucket/a", "its bucket, and the credentials (GOOGLE_APPLICATION_CREDENTIALS"),
        ("s3://bucket/a", "its bucket, and the credentials (AWS_ACCESS_KEY_ID"),
        ("file:///a", "check the address, and who may read and write there"),
    ],
)
def test_storage_that_refuses_says_what_its_kind_needs(url: str, remedy: str) -> None:
    def refuses() -> None:
        raise OSError("Unable to load libjvm\ndlopen(/usr/lib/jvm) failed\ndlopen(/usr/java) failed")

    with pytest.raises(UserError) as refused:
        storage.answered(url, refuses)
    for error in (refused.value, byte_files.refused(url, OSError("Unable to load libjvm\nfailed"))):
        said = str(error)
        assert f": Unable to load libjvm, {url}; check the address" in said and remedy in said


def test_an_unknown_scheme(capsys: Capture, tmp_path: Path, no_runs: Path) -> None:
    said = fails(capsys, "train", experiment(tmp_path, "ImageFolder('s4://bucket/images')"), "--out", no_runs)
    assert "s4://bucket/images" in said
