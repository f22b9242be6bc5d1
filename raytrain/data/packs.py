"""Open packs: in a folder, or at a URL, whose files are fetched into a folder of this machine and checked there."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from raytrain import errors, files
from raytrain.data import budget as budgets
from raytrain.data import cache
from raytrain.data.byte_files import FIRST_SECONDS, SECONDS, TRIES, located, refused, retried
from raytrain.data.shards import MANIFEST, Pack, damaged_file, parsed
from raytrain.files import existing, expanded, is_url
from raytrain.watchdog import doing

_CHUNK = 8 << 20
_EARNEST, _AT_ONCE = 256, 8
"""Samples of a split that a process reads before all of it is fetched, since the plan reads a few; and shards that a
thread fetches at once."""
_FULL = 60.0
"""Seconds after which room is looked for again."""
_PACKS: dict[tuple[Any, ...], Pack] = {}
_LOCK = threading.Lock()


class Folder(NamedTuple):
    """The folder of a pack on this machine, or on a disk that all machines share."""

    where: str

    @property
    def remote(self) -> bool:
        """Whether shards are fetched before they are read."""
        return False

    def room(self) -> int | None:
        """Return None: there is nothing to fetch."""
        return None

    def file(self, name: str, size: int, sha256: str) -> Path | None:
        """Return the path of a file."""
        return Path(self.where, name)

    def bring(self, wanted: list[dict[str, Any]], split: str, all_of_it: list[dict[str, Any]], count: int) -> None:
        """Do nothing: all are here."""

    def range(self, name: str, offset: int, length: int) -> bytes:
        """Never called: each file has a path."""
        raise NotImplementedError

    def check(self, values: Mapping[str, Any]) -> None:
        """Check that all files are there, with their sizes, and the indices with their checksums.

        Raises:
            UserError: one is not.
        """
        indices = [split["index"] for split in values["splits"].values()]
        for shard in [*indices, *values["shards"]]:
            path = Path(self.where, shard["file"])
            try:
                size = os.stat(path).st_size
                if shard in indices and size == shard["bytes"] and files.digest(path) != shard["sha256"]:
                    raise damaged_file(path, "its checksum is not the manifest's")
            except OSError as error:
                raise damaged_file(path, files.reason(error)) from None
            if size != shard["bytes"]:
                raise damaged_file(path, f"it has {size:,} bytes instead of {shard['bytes']:,}")


def opened(root: str, folder: str, budget: float, first: bool = False) -> Pack:
    """Return a pack; a process opens each only once.

    Args:
        root: its folder or URL.
        folder: where shards of a pack at a URL are kept; `auto` and `off` are the default folder.
        budget: GiB that shards may take there.
        first: whether the user waits for it: a URL must answer within seconds, and all files of a folder are checked.

    Raises:
        UserError: there is no pack, it cannot be read, or it is damaged.
    """
    if is_url(root):
        return _at_url(root, folder, budget, first)
    path = expanded(root).absolute()
    manifest = path / MANIFEST
    try:
        status = os.stat(manifest)
        key = (str(path), status.st_ino, status.st_mtime_ns, status.st_size)
        if key not in _PACKS:
            _PACKS[key] = Pack(Folder(str(path)), parsed(manifest.read_bytes(), manifest))
    except (FileNotFoundError, NotADirectoryError):
        raise _no_pack(path) from None
    except OSError as error:
        raise errors.UserError(f"the pack cannot be read: {error.strerror}", manifest, "make it readable") from None
    if first:
        Folder(str(path)).check(_PACKS[key].values)
    return _PACKS[key]


def _no_pack(path: Path) -> errors.UserError:
    if (path / ".packing").is_dir():
        how = "go on with the same `raytrain pack` command"
        return errors.UserError("the pack is not complete: it has no manifest", path, how)
    if not path.is_dir():
        return errors.no_such_file(path, "folder")
    return errors.UserError(
        "no pack there (it has no manifest.json)", path, "write one with `raytrain pack SOURCE DEST`"
    )


def _at_url(url: str, folder: str, budget: float, first: bool) -> Pack:
    base = cache.folder("auto" if folder == "off" else folder)
    key = (url, str(base), budget)
    with _LOCK:
        if first or key not in _PACKS:
            files = answered(url, FIRST_SECONDS if first else SECONDS, 1 if first else TRIES)
            text = files.manifest
            if key not in _PACKS or hashlib.sha256(text).hexdigest() != _PACKS[key].place.digest:  # type: ignore[attr-defined]
                values = parsed(text, f"{url.rstrip('/')}/{MANIFEST}")
                _PACKS[key] = Pack(_Fetched(files, text, base / "packs", int(budget * 2**30)), values)
        return _PACKS[key]


class _Files:
    """Files at a URL, and the manifest, which shows that it answers."""

    def __init__(self, url: str):
        self.url = url.partition("?")[0].rstrip("/")
        self.system, self.root = located(url)
        with self.system.open_input_stream(f"{self.root}/{MANIFEST}") as file:
            self.manifest = file.read()


def answered(url: str, seconds: float, tries: int) -> _Files:
    """Return the files at a URL.

    Raises:
        UserError: it has no pack, or does not answer in time.
    """
    shown = url.partition("?")[0]
    try:
        return retried(lambda sign: _Files(url), seconds, tries)
    except FileNotFoundError as error:
        what = "no pack there (it has no manifest.json)"
        raise errors.UserError(what, shown, errors.storage_remedy(url, error)) from None
    except (OSError, ValueError, pa.ArrowException) as error:
        raise refused(url, error) from None


class _Fetched:
    """The files of a pack at a URL. A process fetches a file while the others of this machine wait for it."""

    remote = True

    def __init__(self, files: _Files, manifest: bytes, base: Path, budget: int):
        self.files, self.where, self.base, self.budget = files, files.url, base, budget
        self.digest = hashlib.sha256(manifest).hexdigest()
        self.folder = base / self.digest[:32]
        self._wrong: set[str] = set()
        self._read: dict[str, int] = {}
        self._full = 0.0

    def file(self, name: str, size: int, sha256: str, wait: bool = True) -> Path | None:
        """Return a fetched file; None for a shard that there is no room for, or that another process fetches and `wait`
        is not set.

        Raises:
            OSError: the URL does not give it.
            UserError: the cache cannot be written.
        """
        for left in (2, 1, 0):
            try:
                return self._file(name, size, sha256, wait)
            except OSError as error:
                full = error.errno in (errno.ENOSPC, errno.EDQUOT)
                if full and name.endswith(".bin"):  # others write to the disk, too
                    self._full = time.monotonic() + _FULL
                    return None
                # Somebody may have removed the folder meanwhile, which is allowed.
                if left and isinstance(error, FileNotFoundError):
                    continue
                if error.filename is None and not full:
                    raise  # the URL's
                what = f"{name} of the pack cannot be kept in the cache: {error.strerror}"
                how = "name another folder with --data.cache, or make this one writable"
                raise errors.UserError(what, self.base, how) from None
        raise AssertionError

    def _file(self, name: str, size: int, sha256: str, wait: bool) -> Path | None:
        path = self.folder / name
        if _have(path, size):
            return path
        if name.endswith(".bin") and time.monotonic() < self._full:
            return None
        self.folder.mkdir(parents=True, exist_ok=True)
        with budgets.locked(self.folder / f".{name}.lock", wait) as ours:
            if _have(path, size):
                return path
            if not ours:
                return None
            with budgets.appearing(path) as partial:
                with budgets.locked(self.base / budgets.LOCK):
                    if name.endswith(".bin"):
                        # Shards of this pack stay: an epoch needs all of them, each as much as any other.
                        others = self.base.glob("*/*")
                        budgets.make_room(size, self.budget, others, lambda one: one.parent == self.folder, self.base)
                    with open(partial, "xb") as file:
                        os.posix_fallocate(file.fileno(), 0, max(1, size))  # it counts from now on
                        os.truncate(file.fileno(), size)
                retried(lambda sign: self._fetch(name, partial, size, sha256, sign))
        return path

    def room(self) -> int:
        """Return the bytes that shards may take: `fetched`, and what the disk has free or holds of them already."""
        status = os.statvfs(existing(self.base))
        held = 0
        for path in self.base.glob("*/*"):
            with contextlib.suppress(OSError):
                held += path.stat().st_size
        return min(self.budget, int(0.9 * status.f_bavail * status.f_frsize) + held)

    def bring(self, wanted: list[dict[str, Any]], split: str, all_of_it: list[dict[str, Any]], count: int) -> None:
        """Fetch shards several at once. From the `_EARNEST`th sample on that this process reads of a split, a thread
        fetches all its shards: in random order, each is needed as soon as any other."""
        before = self._read.get(split, 0)
        self._read[split] = before + count
        if before < _EARNEST <= before + count:
            threading.Thread(target=self._fetch_ahead, args=[all_of_it], daemon=True, name="pack-ahead").start()
        if len(wanted) > 1:
            with ThreadPoolExecutor(_AT_ONCE) as pool:
                for fetched in [pool.submit(self.file, one["file"], one["bytes"], one["sha256"]) for one in wanted]:
                    fetched.exception()  # raised again where the shard is read

    def _fetch_ahead(self, shards: list[dict[str, Any]]) -> None:
        with contextlib.suppress(OSError, ValueError, errors.UserError):  # reported where the shard is read
            for one in shards:
                if time.monotonic() < self._full:
                    return
                self.file(one["file"], one["bytes"], one["sha256"], wait=False)

    def range(self, name: str, offset: int, length: int) -> bytes:
        """Return a part of a shard that is not fetched."""

        def work(_: Callable[[], None]) -> bytes:
            with self.files.system.open_input_file(f"{self.files.root}/{name}") as file:
                return file.read_at(length, offset)

        return retried(work)

    def _fetch(self, name: str, partial: Path, size: int, sha256: str, sign: Callable[[], None]) -> None:
        digest, got = hashlib.sha256(), 0
        with self.files.system.open_input_stream(f"{self.files.root}/{name}") as source, open(partial, "r+b") as target:
            while piece := source.read(_CHUNK):
                doing.tick()
                target.write(piece)
                digest.update(piece)
                got += len(piece)
                sign()
        if got != size or digest.hexdigest() != sha256:
            kind = ValueError if name in self._wrong else OSError
            self._wrong.add(name)
            raise kind(f"{self.where}/{name} is damaged: its checksum is not the manifest's")  # fetched twice at most


def _have(path: Path, size: int) -> bool:
    try:
        if path.stat().st_size != size:
            return False
        with contextlib.suppress(OSError):  # another user's, or a disk that is only read
            os.utime(path)  # the time of its last use
        return True
    except FileNotFoundError:
        return False
