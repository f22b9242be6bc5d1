"""The folder of a Ray session that this process starts: locked while the process lives, removed afterwards.

Ray never removes its sessions (ray-project/ray#30506), and objects that do not fit into memory are spilled into them.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import shutil
import stat
import string
from pathlib import Path

PREFIX = "ray-"
CHARACTERS = len(f"/{PREFIX}xxxx")
"""The length that a session's folder adds to the path of its sockets. Linux limits that path, so the names are
short."""
_MARK = "raytrain.lock"
"""The file that a living process holds a lock (flock) on. The kernel frees the lock with the process."""
_LOCAL = frozenset("ext2 ext3 ext4 xfs btrfs tmpfs ramfs overlay zfs f2fs bcachefs".split())
"""File systems of one machine only: a free lock proves that no process holds it. On shared ones it may not."""


class SessionFolder:
    """A new folder for the files of one Ray session.

    Attributes:
        path: the folder.
    """

    def __init__(self, parent: Path):
        """Create the folder below `parent`, and `parent` if it is missing.

        Raises:
            OSError: one of them cannot be made.
        """
        parent.mkdir(parents=True, exist_ok=True)
        self.path = _new_folder(parent)
        self._lock = _mark(self.path)

    def remove(self) -> None:
        """Remove the folder, once the session has ended. What is written to it meanwhile is left to `remove_dead`."""
        _remove(self.path)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def remove_dead(parent: Path) -> None:
    """Remove the session folders below `parent` whose process was killed.

    A folder is removed only if this module made it and marked it, this user owns the folder and the mark, the file
    system is of this machine only, nobody holds the mark's lock, and no process uses a file in the folder.
    """
    if not is_local(parent):
        return
    for folder in parent.glob(f"{PREFIX}????"):
        with contextlib.suppress(OSError):  # it is alive (locked), has no mark, or another command removes it
            _remove_if_dead(folder)


def is_local(path: Path, mounts: str | None = None) -> bool:
    """Return whether a path is on a file system that no other machine can write to; False in doubt.

    Args:
        mounts: the text of /proc/self/mountinfo, by default read from there.
    """
    try:
        text = Path("/proc/self/mountinfo").read_text() if mounts is None else mounts
    except OSError:
        return False
    own = os.path.realpath(path)
    point, kind = "", ""
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split(" ")
        if len(fields) < 5 or not after:
            continue
        here = fields[4].encode().decode("unicode_escape").encode("latin-1").decode(errors="surrogateescape")
        covers = own == here or own.startswith(here.rstrip("/") + "/")
        if covers and len(here) >= len(point):  # of two mounts at one place the later one is seen
            point, kind = here, after.split(" ")[0]
    return kind in _LOCAL


def _new_folder(parent: Path) -> Path:
    characters = string.ascii_lowercase + string.digits
    while True:
        folder = parent / (PREFIX + "".join(random.SystemRandom().choices(characters, k=4)))
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
            return folder


def _mark(folder: Path) -> int | None:
    """Write the mark, and return the descriptor that holds its lock; None if the file system has no locks. Without a
    mark only this process removes the folder."""
    fresh = folder / f"{_MARK}.new"
    descriptor = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.rename(fresh, folder / _MARK)  # no process can see it without its lock
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _remove_if_dead(folder: Path) -> None:
    """Remove a folder if its process has ended and nothing uses it.

    Raises:
        OSError: its process lives, or it has no mark.
    """
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        return
    mark = folder / _MARK
    descriptor = os.open(mark, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        held = os.fstat(descriptor)
        if held.st_uid == os.getuid() and os.path.samestat(held, mark.lstat()) and not _used(folder):
            _remove(folder)
    finally:
        os.close(descriptor)


def _used(folder: Path) -> bool:
    """Return whether a process has a file of the folder open, works in it or names it: Ray's agents outlive a killed
    session by a minute. Files of other users' processes cannot be seen."""
    names = {str(folder), os.path.realpath(folder)}
    own = str(os.getpid())
    for process in Path("/proc").glob("[0-9]*"):
        if process.name == own:
            continue
        with contextlib.suppress(OSError):  # it has ended
            command = os.fsdecode((process / "cmdline").read_bytes())
            if any(name in command for name in names):
                return True
        with contextlib.suppress(OSError):
            for link in (process / "cwd", *(process / "fd").iterdir()):
                with contextlib.suppress(OSError):
                    target = os.readlink(link)
                    if any(target == name or target.startswith(f"{name}/") for name in names):
                        return True
    return False


def _remove(folder: Path) -> None:
    """Remove a folder, the mark last: a half-removed folder is then still recognised."""
    mark = folder / _MARK
    with contextlib.suppress(OSError):
        for entry in list(os.scandir(folder)):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
            elif entry.name != mark.name:
                os.unlink(entry.path)
        if {entry.name for entry in os.scandir(folder)} <= {mark.name}:
            mark.unlink(missing_ok=True)
            folder.rmdir()
