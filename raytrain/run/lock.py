"""The locks of a run: one for the command, one for the process that writes its checkpoints."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import stat
import time
from pathlib import Path

from raytrain import errors

LOCK, WRITER_LOCK = "lock", "writer.lock"
"""The lock of the driver, from its first to its last write, and that of rank 0, which may be on another host. Both are
`flock`s, which NFS passes on to other hosts (Linux from 2.6.12 on)."""


def held(run: Path) -> bool:
    """Return whether a process holds a lock of a run or a sweep, without taking it or writing there. A sweep's trial
    has no lock of a driver."""
    return any(_held(run / name) for name in (LOCK, WRITER_LOCK))


def _held(lock: Path) -> bool:
    try:
        descriptor = os.open(lock, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False


class LockHeld(errors.UserError):
    """Another process holds the lock.

    Attributes:
        holder: which one, for messages.
    """

    def __init__(self, run: Path, holder: str):
        self.holder = f"process {holder}" if holder.isdigit() else holder or "another process"
        kind = "sweep" if (run / "sweep.json").is_file() else "run"
        super().__init__(f"the {kind} is still going ({self.holder})", run, "wait for it, or stop it with Ctrl-C there")
        self.args = run, self.holder  # a worker's error is sent to the driver


class Lock:
    """Reserves a directory for one process. The system releases the lock when the process ends in any way."""

    def __init__(self, run: Path, name: str = LOCK, wait: float = 0.0):
        """Take the lock, waiting up to `wait` seconds.

        Raises:
            LockHeld: another process holds it.
            UserError: the file is none of ours, or the directory may not be written.
            OSError: it cannot be opened.
        """
        flags = os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            self._file: int | None = os.open(run / name, flags, 0o666)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
                raise errors.UserError("this is not a lock file", run / name, "remove it") from None
            if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
                what = f"the folder cannot be written: {os.strerror(error.errno).lower()}"
                raise errors.UserError(what, run, "make it writable, or take a copy of it") from None
            raise
        try:
            self._take(run, name, wait)
        except BaseException:
            self.release()
            raise

    def _take(self, run: Path, name: str, wait: float) -> None:
        assert self._file is not None
        if not stat.S_ISREG(os.fstat(self._file).st_mode):
            raise errors.UserError("this is not a lock file", run / name, "remove it")
        deadline = time.monotonic() + wait
        while True:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    holder = os.pread(self._file, 300, 0).decode(errors="replace").strip()
                    raise LockHeld(run, holder) from None
                time.sleep(0.1)
        with contextlib.suppress(OSError):  # the content is for people
            os.ftruncate(self._file, 0)
            os.write(self._file, f"process {os.getpid()} on {socket.gethostname()}".encode())

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Release the lock."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)
