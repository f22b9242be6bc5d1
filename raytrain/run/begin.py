"""Creating a run's directory, so that a command killed at any moment leaves a complete run or none."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from raytrain import errors
from raytrain.checkpoint import location, remote
from raytrain.files import existing, expanded, is_url, reason, remove, sync
from raytrain.run.lock import LOCK, Lock

_LONGEST_NAME = 255
"""Bytes that the name of a folder may have on Linux's file systems."""


def begin(out: Path | str, name: str | None, stem: str, fill: Callable[[Path], None]) -> tuple[Path, Lock]:
    """Make the directory `<out>/<name>` of a new run or sweep; without a name, the next free `<stem>-<number>`.

    The directory is filled under a temporary name and then renamed, so that a kill leaves all of it or nothing. For a
    URL it is the mirror on this machine.

    Args:
        fill: writes the first files into a directory.

    Returns:
        The directory, and its lock, which is held.

    Raises:
        UserError: the name is taken, or the place cannot be written.
    """
    if is_url(out):
        return _begin_at_url(str(out), name, stem, fill)
    out = expanded(out)
    try:
        out.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(out)
        aside = out / f"{_ASIDE}{secrets.token_hex(8)}"  # in containers, each process may have the same number
        aside.mkdir()
    except FileExistsError:
        raise errors.not_writable(out, "it is a file") from None
    except OSError as error:
        raise errors.not_writable(out, reason(error)) from None
    lock = Lock(aside)
    try:
        fill(aside)
        sync(aside)
        path = _rename(aside, out, name, stem)
        sync(out)
        return path, lock
    except BaseException as error:
        shutil.rmtree(aside, ignore_errors=True)  # no other process uses it
        lock.release()
        if isinstance(error, OSError):
            raise errors.not_writable(out, reason(error)) from None
        raise


def stem_of(source: Path | None, record: str, default: str) -> str:
    """Return how the names of new directories begin: as the experiment's file is called, or the run or sweep whose copy
    it is.

    Args:
        record: the file by which a directory of the new one's kind is known, whose number is left out.
        default: without a file.
    """
    if source is None:
        return default
    folder = source.parent
    if source.name != "experiment.py" or not any((folder / one).is_file() for one in ("experiment.json", "sweep.json")):
        return source.stem
    stem = folder.name.rpartition("-")[0]
    return stem if stem and (folder / record).is_file() else folder.name


def discard(path: Path) -> bool:
    """Remove a run's directory in which nothing was trained; return whether it is removed. A directory with a row of
    metrics or a checkpoint stays."""
    if os.path.lexists(path / "metrics.jsonl") or os.path.lexists(path / "checkpoints"):
        return False
    if not remote.discard(path):
        return False
    shutil.rmtree(path, ignore_errors=True)
    return True


_ASIDE = ".beginning-"


_ABANDONED_SECONDS = 60.0
"""Age in seconds from which an unlocked temporary directory counts as that of a killed command."""


def _rename(aside: Path, out: Path, name: str | None, stem: str) -> Path:
    """Give a directory its name, or the next free one."""
    if name is not None:
        if os.path.lexists(out / name):
            raise errors.name_taken(out / name)
        os.rename(aside, out / name)
        return out / name
    while True:
        path = out / f"{stem}-{_next_number(stem, os.listdir(out))}"
        try:
            os.rename(aside, path)
            return path
        except OSError as error:  # another command was faster
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise


def _next_number(stem: str, names: Iterable[str]) -> int:
    """Return the number behind the largest of the names `<stem>-<number>`."""
    ends = [name[len(stem) + 1 :] for name in names if name.startswith(f"{stem}-")]
    return max((int(end) for end in ends if end.isascii() and end.isdigit()), default=0) + 1


def _remove_abandoned(out: Path) -> None:
    """Remove the temporary directories of commands that were killed before their run began."""
    for aside in out.glob(f"{_ASIDE}*"):
        with contextlib.suppress(OSError, errors.UserError):
            if time.time() - aside.stat().st_mtime > _ABANDONED_SECONDS:
                Lock(aside).release()
                shutil.rmtree(aside)


def _begin_at_url(out: str, name: str | None, stem: str, fill: Callable[[Path], None]) -> tuple[Path, Lock]:
    tried = ""
    while True:
        url = location.join(out, name or f"{stem}-{_next_number(stem, [*remote.runs(out), tried])}")
        path = location.mirror(url)
        try:
            path.mkdir(parents=True, exist_ok=True)
            lock = Lock(path)
        except OSError as error:
            raise errors.not_writable(path, reason(error)) from None
        except errors.UserError:  # a command of this machine begins a run there
            if name is not None:
                raise errors.name_taken(url) from None
            tried = path.name
            continue
        for left in path.iterdir():  # of a run that was removed at the URL
            if left.name != LOCK:
                remove(left)
        location.note_url(path, url)
        fill(path)
        return path, lock


def check_writable(out: Path | str, name: str | None) -> None:
    """Check that `create` will succeed, without creating anything that stays.

    Raises:
        UserError: as `create`.
    """
    if name is not None and (name in ("", ".", "..") or "/" in name or not name.isprintable()):
        raise errors.UserError(
            f"{name!r} cannot be the name of a run's folder", "in --name", "give one word of UTF-8 text without slashes"
        )
    if name is not None and len(os.fsencode(name)) > _LONGEST_NAME:
        what = f"the name of the run has {len(os.fsencode(name))} bytes, and a folder's name at most {_LONGEST_NAME}"
        raise errors.UserError(what, "in --name", "give a shorter one")
    if is_url(out):
        return remote.check(str(out), name)
    out = expanded(out)
    if str(out).encode(errors="replace").decode() != str(out):
        raise errors.not_writable(out, "its name is not UTF-8 text")
    if name is not None and os.path.lexists(out / name):
        raise errors.name_taken(out / name)
    above = existing(out)
    if not above.is_dir():
        raise errors.not_writable(out, f"{above} is a file")
    if not os.access(above, os.W_OK | os.X_OK):
        raise errors.not_writable(out, "permission denied")
