"""cache: decoded images from run to run, and what is stale, damaged or in the way."""

from __future__ import annotations

import errno
import fcntl
import os
import pwd
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from raytrain.data import Data, Digits, ImageFolder, Images, Index, budget, cache, decode, packing
from raytrain.errors import UserError

N, SHAPE = 37, (3, 5, 7)
IMAGES = np.random.default_rng(0).integers(0, 256, (N, *SHAPE), dtype=np.uint8)
ARRAYS = {"image": IMAGES}
INDEX = Index(np.arange(N) % 2, ("a", "b"), SHAPE, "train", paths=pa.array(map(str, range(N))), times=np.arange(N))
BAD = [(3, "/data/ä.png", "the file is empty"), (5, "/data/b.png", "it is no image")]


@pytest.fixture
def entry(tmp_path: Path) -> Path:
    return cache.entry(tmp_path / "cache", INDEX, "recipe")


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Counts the samples that are read from files."""
    counted, read = SimpleNamespace(samples=0), Images.read

    def counting(data: ImageFolder, index: Index, samples: np.ndarray) -> np.ndarray:
        counted.samples += len(samples)
        return read(data, index, samples)

    monkeypatch.setattr(Images, "read", counting)
    return counted


def folder(root: Path, **fields: Any) -> ImageFolder:
    if not root.is_dir():
        for name in ("a", "b"):
            (root / name).mkdir(parents=True)
            for number in range(10):
                colour = (number * 20, 7, len(name) + ord(name))
                Image.new("RGB", (6, 6), colour).save(root / name / f"{number}.png", compress_level=0)
    fields = {"size": 6, "crop": None, "cache": str(root.parent / "cache")} | fields
    return ImageFolder(root=str(root), **fields)


def pack(data: ImageFolder) -> tuple[np.ndarray, Index, list[tuple[str, str]]]:
    arrays, index, skipped = packing.pack(data, data.index()["train"])
    assert arrays is not None
    return arrays["image"], index, [(bad.path, bad.reason) for bad in skipped]


def entries(root: Path) -> list[Path]:
    return inside(root / "cache")


def inside(folder: Path) -> list[Path]:
    """The files of a cache, without its lock."""
    return sorted(path for path in folder.iterdir() if path.name != budget.LOCK) if folder.is_dir() else []


@pytest.mark.parametrize("bad", [[], BAD])
def test_what_is_stored_is_loaded_from_a_map_of_the_file(entry: Path, bad: cache.Bad) -> None:
    assert cache.load(entry, INDEX) is None
    assert cache.store(entry, INDEX, ARRAYS, bad)
    found = cache.load(entry, INDEX)
    assert found is not None
    images, samples = found[0]["image"], found[1]
    assert np.array_equal(images, IMAGES) and images.dtype == np.uint8 and samples == bad
    assert not images.flags.writeable and not images.flags.owndata
    assert inside(entry.parent) == [entry]  # and no partial file


def test_an_entry_is_an_arrow_stream_that_others_can_read(entry: Path) -> None:
    cache.store(entry, INDEX, ARRAYS, [])
    with pa.memory_map(str(entry)) as file:
        table = pa.ipc.open_stream(file).read_all()
    assert table.column_names == ["image"] and table["image"][4].as_py() == IMAGES[4].tobytes()


def test_every_setting_of_the_pixels_names_another_entry(tmp_path: Path) -> None:
    names = [
        cache.entry(tmp_path, index, recipe)
        for index, recipe in [
            (INDEX, "recipe"),
            (INDEX, "another"),
            (replace(INDEX, times=np.arange(N) + 1), "recipe"),
            (replace(INDEX, shape=(3, 7, 5)), "recipe"),
            (replace(INDEX, paths=pa.array(map(str, range(1, N + 1)))), "recipe"),
            (INDEX.take(np.arange(N - 1)), "recipe"),
        ]
    ]
    assert len(set(names)) == len(names)
    assert cache.entry(tmp_path, replace(INDEX, ignored=("stray",)), "recipe") == names[0]


@pytest.mark.parametrize("place", ["anywhere in the head", "the end"])
def test_a_changed_byte_outside_the_pixels_is_noticed(entry: Path, place: str) -> None:
    cache.store(entry, INDEX, ARRAYS, BAD)
    whole = entry.read_bytes()
    body = -(-IMAGES.nbytes // 8) * 8
    head = len(whole) - body - 40
    for position in range(head) if place == "anywhere in the head" else range(len(whole) - 40, len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << position % 8
        entry.write_bytes(damaged)
        assert cache.load(entry, INDEX) is None, position
    entry.write_bytes(whole)
    assert cache.load(entry, INDEX) is not None


@pytest.mark.parametrize("share", [0, 0.01, 0.3, 0.99, "longer"])
def test_a_file_of_another_length_is_noticed(entry: Path, share: Any) -> None:
    cache.store(entry, INDEX, ARRAYS, [])
    whole = entry.read_bytes()
    entry.write_bytes(whole + b"\0" * 8 if share == "longer" else whole[: int(len(whole) * share)])
    assert cache.load(entry, INDEX) is None
    assert cache.store(entry, INDEX, ARRAYS, []) and cache.load(entry, INDEX) is not None


def test_an_entry_for_other_images_is_not_taken(entry: Path) -> None:
    cache.store(entry, INDEX, ARRAYS, [])
    assert cache.load(entry, replace(INDEX, shape=(3, 5, 8))) is None
    assert cache.load(entry, INDEX.take(np.arange(N - 1))) is None
    assert cache.load(entry, replace(INDEX, shape=(3, 7, 5))) is not None  # the path alone tells these apart


@pytest.mark.parametrize("where", ["fsync", "replace", "makedirs", "write"])
def test_a_full_disk_leaves_no_entry_and_no_partial_file(
    entry: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    target: Any = {"fsync": os, "replace": os, "makedirs": Path, "write": pa}[where]
    name = {"makedirs": "mkdir", "write": "OSFile"}.get(where, where)
    monkeypatch.setattr(target, name, full)
    assert not cache.store(entry, INDEX, ARRAYS, [])
    assert inside(entry.parent) == []


def test_a_disk_that_fills_up_for_real_leaves_no_entry(entry: Path) -> None:
    code = (
        "import resource, signal, sys, numpy as np; sys.path.insert(0, sys.argv[1]); import test_cache as t\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))\n"
        "print(t.cache.store(t.Path(sys.argv[2]), t.INDEX, t.ARRAYS, []))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(Path(__file__).parent), str(entry)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stdout == "False\n", done.stderr
    assert inside(entry.parent) == []


def test_concurrent_writers_leave_one_whole_entry(entry: Path) -> None:
    def write(_: int) -> bool:
        stored = cache.store(entry, INDEX, ARRAYS, BAD)
        found = cache.load(entry, INDEX)
        return stored and found is not None and np.array_equal(found[0]["image"], IMAGES) and found[1] == BAD

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(write, range(40)))
    assert inside(entry.parent) == [entry]


def test_the_entries_that_were_not_used_for_longest_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [cache.entry(tmp_path, INDEX, str(number)) for number in range(5)]
    for age, name in enumerate(names):
        cache.store(name, INDEX, ARRAYS, [])
        os.utime(name, (0, time.time() - 100 + age))
    assert cache.load(names[0], INDEX) is not None  # now it is the youngest
    for name in ("notes.txt", "labels.json"):
        (tmp_path / name).write_bytes(bytes(1 << 20))  # the user's
        os.utime(tmp_path / name, (0, 0))
    size = names[0].stat().st_size
    monkeypatch.setattr(cache, "LIMIT", 3 * size + IMAGES.nbytes)
    last = cache.entry(tmp_path, INDEX, "5")
    assert cache.store(last, INDEX, ARRAYS, [])
    assert {name for name in names if name.exists()} == {names[0], names[3], names[4]}
    assert last.exists() and (tmp_path / "notes.txt").exists() and (tmp_path / "labels.json").exists()


def test_what_is_larger_than_the_limit_is_not_kept(entry: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = cache.entry(entry.parent, INDEX, "other")
    cache.store(other, INDEX, ARRAYS, [])
    monkeypatch.setattr(cache, "LIMIT", IMAGES.nbytes - 1)
    assert not cache.store(entry, INDEX, ARRAYS, []) and other.exists()
    monkeypatch.setattr(cache, "LIMIT", 1 << 40)
    usage = shutil.disk_usage(entry.parent)._replace(free=10 * IMAGES.nbytes - 10 * other.stat().st_size - 10)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)  # a tenth of the room is one byte short
    assert not cache.store(entry, INDEX, ARRAYS, []) and other.exists()


def test_the_field_sets_the_size_and_runs_at_once_stay_within_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size, asked, new_stream = 3 * IMAGES.nbytes, threading.Barrier(8), pa.ipc.new_stream

    def slow(*arguments: Any) -> Any:
        time.sleep(0.2)  # the others make room meanwhile
        return new_stream(*arguments)

    monkeypatch.setattr(pa.ipc, "new_stream", slow)
    assert cache.limit(tmp_path, size / 2**30) == size

    def write(number: int) -> bool:
        asked.wait()
        return cache.store(cache.entry(tmp_path, INDEX, str(number)), INDEX, ARRAYS, [], size / 2**30)

    with ThreadPoolExecutor(8) as pool:
        stored = list(pool.map(write, range(8)))
    left = [path for path in tmp_path.glob("*.arrows") if cache.load(path, INDEX) is not None]
    assert any(stored) and 0 < len(left) <= 3, "the heads of files, of some hundred bytes, are counted later"
    with pytest.raises(UserError, match=r"cache_size = -1 is out of range, in ImageFolder; give a value above 0"):
        ImageFolder(cache_size=-1)
    data = folder(tmp_path / "data", cache_size=1e-6)
    pack(data)
    assert entries(tmp_path) == []
    pack(replace(data, cache_size=1e-3))
    assert len(entries(tmp_path)) == 1


def test_a_disk_limits_the_size_that_the_field_asks_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.store(cache.entry(tmp_path, INDEX, ""), INDEX, ARRAYS, [])
    used = sum(path.stat().st_size for path in inside(tmp_path))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    assert cache.limit(tmp_path, 50) == 900 + used and cache.limit(tmp_path, None) == (1000 + used) // 10
    assert not cache.store(cache.entry(tmp_path, INDEX, "2"), INDEX, ARRAYS, [], 50)


def test_a_folder_that_users_share_serves_each(entry: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = cache.entry(entry.parent, INDEX, "other")
    assert cache.store(other, INDEX, ARRAYS, BAD)
    (entry.parent / budget.LOCK).chmod(0o444)

    def refused(path: Any, *_: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), path)

    def opened(path: Any, mode: str = "r", **more: Any) -> Any:
        return refused(path) if mode == "a" else open(path, mode, **more)  # root may open what others may not

    monkeypatch.setattr(os, "utime", refused)
    monkeypatch.setattr(budget, "open", opened, raising=False)
    assert cache.load(other, INDEX) is not None and cache.store(entry, INDEX, ARRAYS, BAD)


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EBADF, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_caches_too(entry: Path, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", none)
    assert cache.store(entry, INDEX, ARRAYS, BAD) and cache.load(entry, INDEX) is not None


def test_partial_files_of_dead_writers_are_removed(entry: Path) -> None:
    entry.parent.mkdir()
    old, before = entry.parent / f".{entry.name}.1.partial", entry.with_suffix(".7-1.partial")  # of an older version
    young, users = entry.parent / f".{entry.name}.2.partial", entry.parent / "x.partial"
    for path in (old, before, young, users):
        path.touch()
        os.utime(path, None if path == young else (0, 0))
    cache.store(entry, INDEX, ARRAYS, [])
    assert inside(entry.parent) == sorted([entry, young, users])


def test_the_folder_is_xdgs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.default_folder() == tmp_path / "raytrain"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache.default_folder() == tmp_path / "home" / ".cache" / "raytrain"
    data = folder(tmp_path / "data", cache="auto")
    entry = data.cache_entry(data.index()["train"])
    assert entry is not None and entry.parent == cache.default_folder()


def test_a_second_start_reads_nothing(tmp_path: Path, reads: SimpleNamespace) -> None:
    first, index, _ = pack(folder(tmp_path / "data"))
    assert reads.samples == len(index) == 16
    second, again, skipped = pack(folder(tmp_path / "data", mean=(0.1,), augment=ImageFolder().augment))
    assert reads.samples == 16 and np.array_equal(first, second) and skipped == []
    assert again.fingerprint() == index.fingerprint() and second.base is not None


@pytest.mark.parametrize(
    "change",
    [{"size": 5}, {"channels": 1, "mean": (0.5,), "std": (0.5,)}, {"split_seed": 1}, {"interpolation": "bicubic"}],
)
def test_other_pixels_are_another_entry(tmp_path: Path, reads: SimpleNamespace, change: dict[str, Any]) -> None:
    pack(folder(tmp_path / "data"))
    pack(folder(tmp_path / "data", **change))
    assert reads.samples == 32 and len(entries(tmp_path)) == 2


def test_bilinear_images_keep_the_entry_of_versions_that_knew_nothing_else(tmp_path: Path) -> None:
    data = folder(tmp_path / "data")
    index = data.index()["train"]
    known = repr((os.path.abspath(data.root), data.size, data.channels, decode.VERSION, decode.libraries()))
    for how in ("auto", "bilinear"):
        entry = replace(data, interpolation=how).cache_entry(index)
        assert entry == cache.entry(Path(data.cache), index, known)


def test_replaced_file_of_equal_size_and_time_is_read_again(tmp_path: Path, reads: SimpleNamespace) -> None:
    data = folder(tmp_path / "data")
    before, index, _ = pack(data)
    path = tmp_path / "data" / index.name(0)
    status = path.stat()
    other = Path(f"{path}.new")
    Image.new("RGB", (6, 6), (1, 2, 3)).save(other, "PNG", compress_level=0)
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    other.replace(path)
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (status.st_size, status.st_mtime_ns)
    after, same, _ = pack(data)
    assert after[0, :, 0, 0].tolist() == [1, 2, 3] and np.array_equal(before[1:], after[1:])
    assert same.fingerprint() == index.fingerprint()


def test_a_copy_of_the_files_elsewhere_has_its_own_entry(tmp_path: Path, reads: SimpleNamespace) -> None:
    pack(folder(tmp_path / "data"))
    shutil.copytree(tmp_path / "data", tmp_path / "copy")
    pack(folder(tmp_path / "copy"))
    assert reads.samples == 32


def test_other_versions_of_the_libraries_decode_anew(
    tmp_path: Path, reads: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    from raytrain.data import decode

    pack(folder(tmp_path / "data"))
    assert "pillow" in decode.libraries() and "torch " in decode.libraries() and "torchvision" in decode.libraries()
    monkeypatch.setattr(decode, "libraries", lambda: "pillow 99")
    pack(folder(tmp_path / "data"))
    monkeypatch.setattr(decode, "VERSION", decode.VERSION + 1)
    pack(folder(tmp_path / "data"))
    assert reads.samples == 48


def test_a_damaged_entry_is_built_again(tmp_path: Path, reads: SimpleNamespace) -> None:
    first, _, _ = pack(folder(tmp_path / "data"))
    (path,) = entries(tmp_path)
    path.write_bytes(path.read_bytes()[:100])
    second, _, _ = pack(folder(tmp_path / "data"))
    third, _, _ = pack(folder(tmp_path / "data"))
    assert reads.samples == 32 and np.array_equal(first, second) and np.array_equal(first, third)


def test_skipped_samples_are_remembered_and_errors_otherwise(tmp_path: Path, reads: SimpleNamespace) -> None:
    data = folder(tmp_path / "data", on_bad_sample="skip")
    name = data.index()["train"].name(2)
    (tmp_path / "data" / name).write_bytes(b"no image")
    first, index, skipped = pack(data)
    assert len(index) == len(first) == 15
    assert skipped == [(str(tmp_path / "data" / name), "it is not an image, or its format is unknown")]
    reads.samples = 0
    second, again, same = pack(data)
    assert reads.samples == 0 and np.array_equal(first, second) and same == skipped
    assert again.fingerprint() == index.fingerprint()
    with pytest.raises(UserError, match=f"cannot read sample: it is not an image.*{name}"):
        pack(folder(tmp_path / "data"))
    assert reads.samples == 0


def test_the_preflight_asks_the_cache_which_samples_are_bad(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = folder(tmp_path / "data", on_bad_sample="skip")
    path = tmp_path / "data" / data.index()["train"].name(2)
    path.write_bytes(b"no image")
    probed = [(bad.path, bad.reason) for bad in data.probe(data.index()["train"])]
    pack(data)
    monkeypatch.setattr(os, "pread", lambda *_: pytest.fail("a file was probed"))
    assert [(bad.path, bad.reason) for bad in data.probe(data.index()["train"])] == probed
    assert probed == [(str(path), "it is not an image, or its format is unknown")]


def test_unreachable_files_are_not_remembered_as_bad(tmp_path: Path, reads: SimpleNamespace) -> None:
    data = folder(tmp_path / "data", on_bad_sample="skip")
    path = tmp_path / "data" / data.index()["train"].name(2)
    path.rename(f"{path}.away")
    path.symlink_to(f"{path}.away.too")
    assert len(pack(data)[0]) == 15 and entries(tmp_path) == []


def test_streamed_and_resident_skip_the_same_samples(tmp_path: Path, reads: SimpleNamespace) -> None:
    data = folder(tmp_path / "data", on_bad_sample="skip")
    index = data.index()["train"]
    (tmp_path / "data" / index.name(2)).write_bytes(b"no image")
    index = data.index()["train"]
    streamed = packing.pack(data, index, keep=False)
    assert streamed[0] is None and reads.samples > 0
    (note,) = entries(tmp_path)
    assert note.suffix == ".json" and note.stat().st_size < 400
    reads.samples = 0
    again = packing.pack(data, index, keep=False)
    assert reads.samples == 0 and again[2] == streamed[2] and len(again[1]) == len(streamed[1]) == 15
    assert [bad.path for bad in data.probe(index)] == [bad.path for bad in streamed[2]]
    with pytest.raises(UserError, match="cannot read sample: it is not an image"):
        packing.pack(folder(tmp_path / "data"), index, keep=False)
    kept = packing.pack(data, index)
    assert reads.samples > 0 and kept[2] == streamed[2] and kept[1].fingerprint() == streamed[1].fingerprint()
    note.unlink()
    reads.samples = 0
    assert packing.pack(data, index, keep=False)[2] == streamed[2] and reads.samples == 0, "the arrays' entry knows too"


@pytest.mark.parametrize("damage", [b"", b"12\n[]", b"no line"])
def test_a_damaged_note_of_unreadable_samples_is_no_note(tmp_path: Path, reads: SimpleNamespace, damage: bytes) -> None:
    data = folder(tmp_path / "data", on_bad_sample="skip")
    index = data.index()["train"]
    packing.pack(data, index, keep=False)
    (note,) = entries(tmp_path)
    whole = note.read_bytes()
    note.write_bytes(damage)
    assert packing.pack(data, index, keep=False)[2] == [] and reads.samples == 32 and note.read_bytes() == whole
    note.write_bytes(whole.replace(b"[", b"[ "))
    assert packing.pack(data, index, keep=False)[2] == [] and reads.samples == 48


def test_an_error_leaves_no_entry(tmp_path: Path) -> None:
    data = folder(tmp_path / "data")
    (tmp_path / "data" / data.index()["train"].name(2)).write_bytes(b"")
    with pytest.raises(UserError, match="cannot read sample: the file is empty"):
        pack(data)
    assert entries(tmp_path) == []


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path, reads: SimpleNamespace) -> None:
    (tmp_path / "file").touch()
    for _ in range(2):
        images, index, _ = pack(folder(tmp_path / "data", cache=str(tmp_path / "file" / "cache")))
        assert len(images) == len(index) == 16
    assert reads.samples == 32


def test_a_folder_that_cannot_be_looked_at_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    where = tmp_path / ("long" * 100) / "cache"  # Path.exists() raises an OSError, as below a folder of another user
    data = folder(tmp_path / "data", cache=str(where))
    assert isinstance(data.notes(), list)
    assert cache.limit(where, None) > 0 and len(pack(data)[0]) == 16
    data = folder(tmp_path / "data", cache=str(tmp_path / "cache"))
    pack(data)

    def read_only(*_: Any) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    index, entry = data.index()["train"], data.cache_entry(data.index()["train"])
    monkeypatch.setattr(os, "utime", read_only)
    assert entry is not None and cache.load(entry, index) is not None


def test_a_home_that_is_not_there_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = folder(tmp_path / "data", cache="~nosuchuser/x")
    with pytest.raises(UserError, match=r"^no user has this home, ~nosuchuser/x; check the spelling$"):
        data.index()
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)
    with pytest.raises(UserError, match=r"^this user has no home folder, in HOME; set XDG_CACHE_HOME to a folder$"):
        replace(data, cache="auto").index()
    assert len(replace(data, cache="off").index()) == 2  # needs none


def test_off_keeps_nothing_and_takes_nothing(tmp_path: Path, reads: SimpleNamespace) -> None:
    pack(folder(tmp_path / "data"))
    pack(folder(tmp_path / "data", cache="off"))
    assert reads.samples == 32 and len(entries(tmp_path)) == 1


def test_sources_without_files_have_no_entry(tmp_path: Path) -> None:
    class Mine(ImageFolder):
        def read(self, index: Index, samples: np.ndarray) -> np.ndarray:  # type: ignore[override]
            return super().read(index, samples) // 2

    assert Digits().cache_entry(Digits().index()["train"]) is None and Data().cache_entry(INDEX) is None
    data = folder(tmp_path / "data")
    index = data.index()["train"]
    assert Mine(root=data.root, cache=data.cache).cache_entry(index) is None
    assert data.cache_entry(index) is not None and data.cache_entry(replace(index, times=None)) is None


@pytest.mark.parametrize("name", ["encoded", "further"])
def test_what_code_of_the_users_changes_is_not_cached(tmp_path: Path, name: str) -> None:
    plain = folder(tmp_path / "data")
    own: Any = type("Own", (ImageFolder,), {name: lambda self, *given: getattr(ImageFolder, name)(self, *given)})
    data = own(plain.root, size=plain.size, cache=plain.cache)
    index = data.index()["train"]
    assert plain.cache_entry(index) is not None and data.cache_entry(index) is None
    assert data.notes()[-1].startswith(f"decoded images are not cached, since Own.{name} may change them")
