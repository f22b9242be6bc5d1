"""Images at a URL: the samples of the local folder, and what is wrong with a URL."""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path
from types import SimpleNamespace

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


@pytest.mark.parametrize(
    ("error", "tries"),
    [
        ("When reading information for key 'x': AWS Error ACCESS_DENIED during HeadObject operation: No body.", 1),
        ("AWS Error INVALID_ACCESS_KEY_ID during GetObject operation: The key does not exist in our records.", 1),
        ("AWS Error UNKNOWN (HTTP status 403) during ListObjectsV2 operation", 1),
        ("GetProperties for 'https://a/b' failed. Azure Error: [AuthorizationFailure] 403 This request is not ...", 1),
        ("google::cloud::Status(PERMISSION_DENIED: Permanent error ReadObjectMedia)", 1),
        ("When reading information for key 'ACCESS_DENIED/1.jpg': AWS Error SLOW_DOWN during HeadObject", 6),
        ("AWS Error UNKNOWN (HTTP status 503) during GetObject operation", 6),
        ("Azure Error: [ServerBusy] 503 The server is busy.", 6),
    ],
)
def test_a_refusal_is_not_asked_again(monkeypatch: pytest.MonkeyPatch, error: str, tries: int) -> None:
    pauses, asked = list[float](), list[str]()

    def located(path: str) -> tuple[fs.FileSystem, str]:
        asked.append(path)
        raise OSError(error)

    monkeypatch.setattr(byte_files, "time", SimpleNamespace(sleep=pauses.append))
    monkeypatch.setattr(byte_files, "located", located)
    with pytest.raises(OSError, match=re.escape(error)):
        byte_files.content("s3://bucket/1.jpg")
    assert (len(asked), len(pauses)) == (tries, tries - 1)


@pytest.mark.parametrize(
    "url",
    [
        "s3://bucket/x?region=us-east-1&endpoint_override=localhost:9000",
        "abfss://container@account.dfs.core.windows.net/x",
        "abfs://account.blob.core.windows.net/x?credential_kind=environment&enable_tls=false",
        "abfss://container@account.dfs.core.windows.net/x?client_id=1",
        "hdfs://user@host:8020/x?replication=3&kerb_ticket=/tmp/ticket",
        "gs://anonymous@bucket/x?retry_limit_seconds=5",
        "gs://bucket/x",
    ],
)
def test_a_user_name_is_no_secret(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setattr(byte_files, "_system", lambda place, *_: (place, "base"))
    place, path = byte_files.located(url)
    scheme, _, rest = url.partition("?")[0].partition("://")
    assert (place, path) == (f"{scheme}://{rest.partition('/')[0]}/{url[len(scheme + rest) + 3 :]}", "base/x")


@pytest.mark.parametrize("name", ["container@account.dfs.core.windows.net", "account.blob.core.windows.net/container"])
def test_arrow_takes_both_forms_of_azures_urls(name: str) -> None:
    system, path = byte_files.located(f"abfss://{name}/a/b%20c.png?credential_kind=anonymous")
    assert system.type_name == "abfs" and path.strip("/") == "container/a/b c.png"


@pytest.mark.parametrize(
    ("url", "secret"),
    [
        ("s3://key:hidden@bucket/x", "a password"),
        ("s3://key:hid/den@bucket/hidden", "a password"),
        ("s3://hidden@bucket/x", "an access key"),
        ("hdfs://user:hidden@host/x", "a password"),
        ("abfs://:hidden@account/x", "a password"),
        ("s3://bucket/x?secret_key=hidden", "a secret (secret_key)"),
        ("s3://bucket/x?region=a&Session_Token=hidden", "a secret (Session_Token)"),
        ("s3://bucket/x?X-Amz-Signature=hidden", "a secret (X-Amz-Signature)"),
        ("abfss://c@account.dfs.core.windows.net/x?tenant_id=1&client_id=2&client_secret=hidden", "(client_secret)"),
        ("abfss://c@account.dfs.core.windows.net/x?client%5Fsecret=hidden", "a secret (client_secret)"),
        ("abfss://c@account.dfs.core.windows.net/x?sv=2022&se=2030&sig=hidden", "a secret (sig)"),
        ("gs://bucket/x?access_token=hidden", "a secret (access_token)"),
        ("s3://bucket/x?endpoint_override=http://me:hidden@host:9000", "a secret (endpoint_override)"),
        ("s3://bucket/x?endpoint_override=http%3A%2F%2Fme:hidden@host", "a secret (endpoint_override)"),
        ("hdfs://host/x?fs.azure.account.key=hidden", "(fs.azure.account.key)"),
    ],
)
def test_a_secret_in_a_url_is_refused(url: str, secret: str) -> None:
    with pytest.raises(UserError) as found:
        ImageFolder(url).index()
    assert secret in found.value.what and "hidden" not in str(found.value)


def test_files_of_a_pattern_are_asked_for_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    together, asked = threading.Barrier(byte_files.THREADS), list[tuple[str, bool]]()

    def information(url: str, first: bool) -> byte_files.File:
        asked.append((url, first))
        if not first:
            together.wait(10)
        return byte_files.File(url, 1, 0)

    monkeypatch.setattr(byte_files, "_information", information)
    found = byte_files.files(f"s3://bucket/{{00..{byte_files.THREADS:02}}}.tar?region=x", (".tar",))
    assert [one.path for one in found] == [f"s3://bucket/{number:02}.tar?region=x" for number in range(17)]
    assert asked[0] == (found[0].path, True) and sum(first for _, first in asked) == 1


def test_a_pattern_names_the_file_that_is_missing(s3: str) -> None:
    files, root = fs.FileSystem.from_uri(f"{s3}/braces")
    for number in (0, 1, 3):
        with files.open_output_stream(f"{root}/{number}.tar") as file:
            file.write(bytes(number))
    found = byte_files.files(f"{s3}/braces/{{0,1,3}}.tar", (".tar",))
    assert [(one.path, one.size) for one in found] == [(f"{s3}/braces/{number}.tar", number) for number in (0, 1, 3)]
    with pytest.raises(FileNotFoundError, match=r"braces/2\.tar"):
        byte_files.files(f"{s3}/braces/{{0..3}}.tar", (".tar",))


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
        ("https://host/x", "https://host/x; write a path, or a URL of s3, gs, abfss or hdfs$"),
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
    fs.FileSystem.from_uri(s3)  # waits until Arrow has given up too, which lets no new client in before


def test_links_to_folders_are_followed_once(tmp_path: Path) -> None:
    for name in ("set/train/0.tar", "set/train/deep/1.TAR", "elsewhere/0.tar", "elsewhere/0.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    links = {"a": "train/deep", "val": "../elsewhere", "latest": "train", "train/up": "..", "train/none": "nowhere"}
    for name, target in links.items():
        (tmp_path / "set" / name).symlink_to(target)
    found = [one.path for one in byte_files.files(f"{tmp_path}/set", (".tar",))]
    assert found == [f"{tmp_path}/set/{name}" for name in ("train/0.tar", "train/deep/1.TAR", "val/0.tar")]


def test_names_that_look_like_patterns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("my [old] data", "runs{1..2}", "runs1", "star*", "starry", "{a,b}"):
        Path(name).mkdir()
        for file in ("0.tar", "1.tar", "[2].tar"):
            Path(name, file).write_bytes(b"")
    for folder in ("my [old] data", "runs{1..2}", "star*", "{a,b}"):
        every = [f"{folder}/{file}" for file in ("0.tar", "1.tar", "[2].tar")]
        for root in (folder, f"{folder}/*", f"{folder}/{{0,1,[2]}}.tar", f"{tmp_path}/{folder}/*.tar"):
            assert [one.path.removeprefix(f"{tmp_path}/") for one in byte_files.files(root, (".tar",))] == every
        assert [one.path for one in byte_files.files(f"{folder}/[*", (".tar",))] == every[2:]
        assert [one.path for one in byte_files.files(f"{folder}/1.tar", (".tar",))] == every[1:2]
