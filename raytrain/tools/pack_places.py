"""Where a pack is written: a folder, or a URL."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from raytrain import errors, files
from raytrain.checkpoint import pulse
from raytrain.checkpoint.location import mirror
from raytrain.checkpoint.side_thread import retry
from raytrain.checkpoint.storage import Storage, answered
from raytrain.files import expanded, is_url

T = TypeVar("T")

FOLDER = ".packing"
"""The folder of what is not finished; it goes with the last file."""
PLAN = f"{FOLDER}/plan.json"
_FIRST_SECONDS = 3.0


def place_of(dest: str) -> Place:
    """Return the place of a pack.

    Raises:
        UserError: the URL does not answer, or the folder is a file.
    """
    if is_url(dest):
        return AtUrl(dest)
    path = expanded(dest).absolute()
    above = files.existing(path)
    if not above.is_dir():
        what = "a pack is a folder, and this is a file"
        raise errors.UserError(what, above, "give a new or an empty folder, or a URL")
    return InFolder(str(path))


class InFolder:
    """A folder of this machine, or one that machines share.

    Attributes:
        where: the place, for messages.
        local: a folder of this machine for what is being written, and for the lock.
    """

    def __init__(self, where: str):
        self.where, self.local = where, Path(where, FOLDER)

    def read(self, name: str) -> bytes | None:
        """Return a small file; None if it is not there."""
        try:
            return Path(self.where, name).read_bytes()
        except FileNotFoundError:
            return None

    def size(self, name: str) -> int | None:
        """Return a file's size; None if it is not there."""
        try:
            return Path(self.where, name).stat().st_size
        except FileNotFoundError:
            return None

    def write(self, name: str, content: bytes) -> None:
        """Write a small file."""
        path = Path(self.where, name)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            files.write_atomically(path, content)
        except OSError as error:
            raise errors.cannot_write(path, files.reason(error)) from None

    def adopt(self, name: str, file: Path) -> None:
        """Move a file of `local` there."""
        path = Path(self.where, name)
        os.replace(file, path)
        files.sync(path.parent)

    def others(self) -> list[str]:
        """Return what is there besides what is not finished."""
        return sorted({*os.listdir(self.where)} - {FOLDER}) if os.path.isdir(self.where) else []

    def check_room(self, size: float) -> None:
        """Check that so many bytes have room."""
        free = shutil.disk_usage(self.where).free
        if size > free:
            raise errors.no_room("the pack", int(size), free, self.where, "make room, or use --codec jpeg --size 256")

    def refresh(self) -> None:
        """Nothing is remembered."""

    def clear(self) -> None:
        """Remove what is not needed any more."""
        shutil.rmtree(self.local, ignore_errors=True)


class AtUrl:
    """A URL that `pyarrow.fs` opens. The lock is one of this machine; the attributes are those of `InFolder`."""

    def __init__(self, url: str, looks: bool = True):
        self.where, self.local = url, mirror(url, "packing")
        self._there: dict[str, int | None] = {}
        if not looks:  # a task, which only writes
            self._storage = Storage(url)
            return
        pulse.pulse(url).limit = _FIRST_SECONDS  # the user waits for the first answer
        try:
            self._storage = Storage(url)
            self._there = answered(url, lambda: self._storage.names("", recursive=True))
        finally:
            pulse.pulse(url).limit = pulse.ANSWER_SECONDS

    def __reduce__(self):
        return AtUrl, (self.where, False)

    def read(self, name: str) -> bytes | None:
        """Return a small file; None if it is not there."""
        if name not in self._there:
            return None
        return self._again(lambda: self._storage.read(name))

    def size(self, name: str) -> int | None:
        """Return a file's size; None if it is not there."""
        return self._there.get(name)

    def write(self, name: str, content: bytes) -> None:
        """Write a small file."""
        self._again(lambda: self._storage.write(name, content))
        self._there[name] = len(content)

    def adopt(self, name: str, file: Path) -> None:
        """Move a file of `local` there."""
        self._again(lambda: self._storage.write(name, file))
        self._there[name] = file.stat().st_size

    def others(self) -> list[str]:
        """Return what is there besides what is not finished."""
        return sorted(name for name in self._there if not name.startswith(f"{FOLDER}/"))

    def check_room(self, size: float) -> None:
        """A URL has room."""

    def clear(self) -> None:
        """Remove what is not needed any more."""
        for name in self._again(lambda: self._storage.names(FOLDER)):
            self._again(lambda name=name: self._storage.remove(name))
        shutil.rmtree(self.local, ignore_errors=True)

    def refresh(self) -> None:
        """Look again at what is there, after other machines have written."""
        self._there = self._again(lambda: self._storage.names("", recursive=True))

    def _again(self, work: Callable[[], T]) -> T:
        """Return the result of a request, which is retried."""
        try:
            return retry(work)
        except OSError as error:
            raise errors.cannot_write(self.where, str(error)) from None


Place = InFolder | AtUrl
"""Files below the place of a pack, by name; each appears whole or not at all."""
