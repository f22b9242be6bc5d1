"""Files of this machine that can be made again: each appears whole, and together they stay within a budget, whatever
processes write at once. The least recently used are removed for new ones."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from raytrain.watchdog import doing

LOCK = ".room.lock"
"""Is held in a folder while room is made for a file there, until its partial file counts."""
_ABANDONED = 3600.0
"""Seconds after which a partial file belongs to no living writer."""


@contextlib.contextmanager
def appearing(path: Path) -> Iterator[Path]:
    """Give the path of a partial file, which takes the place of `path` where the block ends without an error.

    Raises:
        OSError: storage refuses it.
    """
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield partial
        os.replace(partial, path)
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


def make_room(size: int, limit: int, others: Iterable[Path], stays: Callable[[Path], bool], folder: Path) -> None:
    """Remove files until `size` bytes more are within a limit. Processes that have mapped or opened one keep it.

    Args:
        others: the files that count.
        stays: whether one of them must stay. Partial files and locks always do; the partial ones of dead writers go.
        folder: where they are.

    Raises:
        OSError: ENOSPC, there is no such room. Where files that stay are in the way, nothing is removed.
    """
    found, used = [], size
    for path in others:
        with contextlib.suppress(FileNotFoundError):  # another process has removed it
            status = path.stat()
            if path.suffix == ".partial" and status.st_mtime < time.time() - _ABANDONED:
                path.unlink()
                continue
            used += status.st_size
            if path.suffix not in (".partial", ".lock") and not stays(path):
                found.append((status.st_mtime, status.st_size, path))
    fits = used - sum(taken for _, taken, _ in found) <= limit
    for _, taken, path in sorted(found) if fits else ():
        if used <= limit:
            break
        path.unlink(missing_ok=True)
        used -= taken
    if not fits or size >= 0.9 * shutil.disk_usage(folder).free:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@contextlib.contextmanager
def locked(path: Path, wait: bool = True) -> Iterator[bool]:
    """Hold a lock that all processes and threads of this machine share; yield whether it is held."""
    try:
        lock = open(path, "a")
    except PermissionError:  # another user's
        lock = open(path)
    with lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not wait:
                    yield False
                    return
                doing.tick()  # another holds it, and gives up by itself
                time.sleep(0.02)
            except OSError as error:  # a file system without locks: a file may be written twice, and is whole
                if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.EBADF):
                    raise
                break
        yield True
