"""metrics.jsonl: the rows of a run."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from raytrain.checkpoint.rows import parse_row, read_rows
from raytrain.files import append

NOTES = "logs/notes.log"
"""The ranks' notes to the user, below a run's directory. The driver shows each line once."""


def note(run: Path, text: str) -> None:
    """Append a line to a run's notes; from any rank whose directory is the run's."""
    with contextlib.suppress(OSError):
        append(run / NOTES, f"{text}\n")


_START = b'{"kind": "'
"""How every row begins."""
_OF_A_KIND = re.compile(_START + rb'\w+"')
VALIDATED = ("epoch", "validation")
"""The kinds of rows that have a validation's metrics: at an epoch's end, and inside an epoch."""


_CENTURY = 3.2e9
"""Seconds that no epoch takes."""


def read_metrics(path: Path, offset: int = 0, kinds: Sequence[str] = ("",)) -> tuple[list[dict[str, Any]], int]:
    """Return the whole lines of a metrics file from a byte offset on, or those of some kinds, and the offset behind
    them. Damaged lines are left out."""
    try:
        raw = read_rows(path, offset)
    except FileNotFoundError:
        return [], offset
    whole = raw[: raw.rfind(b"\n") + 1]
    # An epoch may have thousands of rows of steps.
    starts = tuple(_START + (f'{kind}"'.encode() if kind else b"") for kind in kinds)
    rows = [parse_row(line) for line in whole.splitlines() if line.startswith(starts)]
    return [row for row in rows if row is not None], offset + len(whole)


def seconds_at(rows: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return the seconds of training and validation up to each row of `VALIDATED`, float [rows]. The `seconds` of a row
    are those of its epoch so far; a damaged figure counts as 0."""
    done, found = 0.0, []
    for row in rows:
        value = row.get("seconds")
        found.append(done + (value if isinstance(value, int | float) and abs(value) < _CENTURY else 0.0))
        done = done if row.get("kind") == "validation" else found[-1]
    return found


def rows_and_damage(path: Path, kind: str) -> tuple[list[dict[str, Any]], int]:
    """Return the rows of a kind, and the number of complete lines that are rows of no kind, or damaged ones of this."""
    try:
        raw = read_rows(path)
    except FileNotFoundError:
        return [], 0
    mine = _START + f'{kind}"'.encode()
    lines = raw[: raw.rfind(b"\n") + 1].splitlines()
    rows = [parse_row(line) for line in lines if line.startswith(mine) or not _OF_A_KIND.match(line)]
    return [row for row in rows if row is not None and row["kind"] == kind], rows.count(None)


class MetricsLog:
    """The one writer of `metrics.jsonl`.

    Rows are kept until they are synced, and written again if the disk refused them: a run that continues loses none.
    """

    def __init__(self, path: Path, offset: int):
        """Truncate the file to `offset` bytes; a resumed run writes the rest again.

        Raises:
            OSError: the file cannot be written.
        """
        self._path, self._lock = path, threading.Lock()
        self._file: int | None = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        self._synced = min(offset, os.fstat(self._file).st_size)
        os.ftruncate(self._file, self._synced)
        self._digest = hashlib.sha256(read_rows(path))
        self._rows = bytearray()  # since the last commit
        self._written = 0  # how many of their bytes are in the file

    def write(self, rows: list[dict[str, Any]]) -> None:
        """Append rows and flush them, so that other processes can read them; rows that the system refuses are written
        later."""
        text = b"".join(json.dumps(row, allow_nan=False).encode() + b"\n" for row in rows)
        with self._lock, contextlib.suppress(OSError):
            self._rows += text
            self._digest.update(text)
            self._push()

    @property
    def size(self) -> int:
        """Bytes of all rows."""
        with self._lock:
            return self._synced + len(self._rows)

    @property
    def sha256(self) -> str:
        """The hash of all rows."""
        with self._lock:
            return self._digest.hexdigest()

    def commit(self) -> None:
        """Sync all rows to the disk.

        Raises:
            OSError: it refuses them.
        """
        with self._lock:
            file, end = self._push(), len(self._rows)
        try:
            os.fsync(file)
            if not os.path.samestat(os.fstat(file), os.stat(self._path)):
                raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(self._path))
        except OSError:
            with self._lock:
                self._reopen()
            raise
        with self._lock:
            del self._rows[:end]
            self._synced, self._written = self._synced + end, self._written - end

    def close(self) -> None:
        """Close the file; rows that are not committed may be lost."""
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):
                os.close(file)

    def _push(self) -> int:
        """Flush pending rows; return the file."""
        try:
            if self._file is None:
                self._file = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
                if os.fstat(self._file).st_size < self._synced:
                    raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(self._path))
            while self._written < len(self._rows):
                left = bytes(memoryview(self._rows)[self._written :])
                self._written += os.pwrite(self._file, left, self._synced + self._written)
            return self._file
        except OSError:
            self._reopen()
            raise

    def _reopen(self) -> None:
        """Write all rows since the last commit again, to the file now at the path: a system that fails to sync bytes
        drops them, and the disk may have been replaced or remounted."""
        self._written = 0
        self.close()
