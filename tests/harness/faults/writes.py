"""Writes of this process, each of which can go wrong."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from raytrain import cli

_EVENTS = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.link", "os.symlink")


_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


class Killed(BaseException):
    """Stands for the end of the process."""


class Writes:
    """What this process writes below a folder, by whichever module; the write number `at` goes wrong.

    Attributes:
        places: the file and line in raytrain of each write.
        names: the name of the file or folder of each.
    """

    def __init__(self, root: Path, kind: str = "", at: int = -1):
        self.root, self.kind, self.at = str(root), kind, at
        self.places: list[str] = []
        self.names: list[str] = []
        self.dead = False

    def __call__(self, path: Any, half: Callable[[], object] = lambda: None) -> None:
        """Note a write, or let it go wrong, having done half of it."""
        if threading.current_thread().name == "log":  # which looks at a log every two seconds, and cuts long ones alone
            return
        if isinstance(path, int):
            try:
                path = os.readlink(f"/proc/self/fd/{path}")
            except OSError:
                return
        if not os.fsdecode(path).startswith(self.root):
            return
        if self.dead:
            raise Killed
        frame = sys._getframe(2)
        while frame.f_back and f"raytrain{os.sep}" not in frame.f_code.co_filename:
            frame = frame.f_back
        self.places.append(f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}")
        self.names.append(os.path.basename(os.fsdecode(path)))
        if len(self.places) - 1 == self.at:
            half()
            if self.kind == "kill":
                self.dead = True
                raise Killed
            code = getattr(errno, self.kind)
            raise OSError(code, os.strerror(code), os.fsdecode(path))


watching: list[Writes] = []


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if watching and event in _EVENTS and (event != "open" or (arguments[2] or 0) & _WRITES):
        watching[0](arguments[0])


@contextlib.contextmanager
def audited() -> Iterator[None]:
    """Python tells of each file that it opens, renames or removes; writes and syncs are told by wrappers of `os`."""
    sys.addaudithook(_audit)  # for good: it costs nothing while nobody watches
    write, fsync = os.write, os.fsync

    def told_write(file: int, data: Any) -> int:
        if watching:
            watching[0](file, half=lambda: write(file, bytes(data)[: len(data) // 2]))
        return write(file, data)

    def told_fsync(file: int) -> None:
        if watching:
            watching[0](file)
        fsync(file)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "write", told_write)
        patch.setattr(os, "fsync", told_fsync)
        yield


def run(writes: Writes, *arguments: object) -> int | None:
    """Return a command's exit status; None where it was killed."""
    watching.append(writes)
    try:
        return cli.run([str(argument) for argument in arguments])
    except Killed:
        return None
    finally:
        watching.clear()


def one_line(capsys: pytest.CaptureFixture[str], status: int | None) -> None:
    """A command that failed said why in one line, and was not surprised."""
    said = capsys.readouterr().err
    assert "Traceback" not in said and "a defect" not in said, said
    errors = [line for line in said.splitlines() if not line.startswith("note: ")]
    assert len(errors) == (1 if status else 0), said
