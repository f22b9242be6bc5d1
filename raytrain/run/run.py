"""The run directory, and the `Run` that a user holds of it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import secrets
import shutil
import socket
import stat
import threading
import time
import warnings
from collections.abc import Callable, Iterable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raytrain import errors, experiment
from raytrain.checkpoint import storage
from raytrain.checkpoint.rows import parse_row, read_rows
from raytrain.driver.plan import existing
from raytrain.experiment import Experiment
from raytrain.files import append, known_json, needed_json, reason, remove, sync
from raytrain.user_code import hints, sources

if TYPE_CHECKING:
    import pyarrow as pa
    from torch import nn


class Run:
    """A run on disk: `experiment.json`, `environment.json`, `metrics.jsonl`, `checkpoints/`, `best.json`, `last.json`,
    `summary.json`, `logs/`, and copies of the experiment file (`experiment.py`) and of the modules that it imports
    (`modules/`); `replaced.json`, where these were replaced by corrected ones.

    Args:
        path: the run's directory, or its URL; `path` is then the directory on this machine that follows it.

    Raises:
        UserError: there is no run.
    """

    def __init__(self, path: Path | str):
        self.url = str(path) if storage.is_url(path) else storage.url_of(Path(path))
        self.path = storage.opened(self.url) if self.url else Path(path)
        if not os.path.isfile(self.path / "experiment.json"):
            if os.path.isfile(self.path / "sweep.json"):
                best = known_json(self.path / "sweep.json").get("best")
                raise errors.a_sweep_s_runs(path, best if isinstance(best, int) else None)
            near = [] if self.url else hints.files(self.path, [Path("runs")], "*/experiment.json")
            raise errors.not_a_run(path, near)

    def __repr__(self) -> str:
        return f"Run({self.where!r})"

    @property
    def where(self) -> str:
        """Its URL or its directory, as commands take it."""
        return self.url or str(self.path)

    @property
    def experiment(self) -> Experiment:
        """The experiment, as it was trained. The modules that the run has copies of are from then on what their names
        import in this process, until another run's or experiment's are."""
        sources.use(self._experiment)
        return self._experiment

    @cached_property
    def _experiment(self) -> Experiment:
        self._replaced = self.replaced
        return experiment.load(self.path / "experiment.json")[0]

    def forget(self) -> None:
        """Read the experiment and the code again when they are asked for: they have changed."""
        vars(self).pop("_experiment", None)

    def check_code(self) -> None:
        """Check that nobody has replaced the run's code since the experiment was read; for who holds the run's lock.

        Raises:
            UserError: another command has.
        """
        _ = self._experiment
        if self.replaced != self._replaced:
            raise errors.UserError("another command has just replaced the run's code", self.where, "try again")

    @property
    def replaced(self) -> list[dict[str, Any]]:
        """What `raytrain resume --experiment` has replaced of its code, the oldest first: `step`, the last one of the
        old code; `changed`, the names of the files; `file`, the new experiment file's path."""
        return sources.replaced(self.path)

    @property
    def checkpoints(self) -> Path:
        """The folder of checkpoints."""
        return self.path / "checkpoints"

    @property
    def summary(self) -> dict[str, Any]:
        """The outcome: `status`, `val_accuracy` (the best), `epochs`, `steps`, `seconds` and more; `status` is
        `unfinished` while there is none."""
        found = known_json(self.path / "summary.json")
        return found if _is_summary(found) else {"status": "unfinished"}

    @property
    def environment(self) -> dict[str, Any]:
        """Versions, devices, the data's fingerprint and how the run was started."""
        how = "put it back from a copy, or train again with `raytrain train " + f"{self.where}/experiment.json`"
        found = needed_json(self.path / "environment.json", how)
        if not isinstance(found.get("data_fingerprint"), dict):
            raise errors.UserError("this file has no data_fingerprint", self.path / "environment.json", how)
        return found

    def metrics(self, kind: str = "epoch") -> pa.Table:
        """The rows of `metrics.jsonl` of one kind, `epoch` or `step`, as an Arrow table."""
        import pyarrow as pa

        file = self.path / "metrics.jsonl"
        if damaged := damaged_lines(file):
            warnings.warn(f"{file}: {damaged} damaged lines are left out", stacklevel=2)
        rows = [row for row in read_metrics(file)[0] if row["kind"] == kind]
        names = dict.fromkeys(name for row in rows for name in row)  # a row may have what the first one has not
        return pa.table({name: [row.get(name) for row in rows] for name in names})

    def checkpoint(self, which: str = "best") -> Path:
        """The best or the last checkpoint, verified; the newest that verifies, where that one has been removed.

        Raises:
            UserError: there is none, or it does not verify.
        """
        from raytrain.checkpoint import checkpoints

        there = storage.Storage(self.url) if self.url else None
        with contextlib.suppress(OSError, ValueError):
            named = known_json(self.path / f"{which}.json").get("checkpoint")
            named = self.checkpoints / Path(str(named or "none")).name
            if there and named.name in there.committed():
                return there.fetch(named.name, self.checkpoints)
            if not there and named.is_dir():
                checkpoints.verify(named)
                return named
        if there:
            found = storage.answered(there.url, lambda: next(there.verified(self.checkpoints), None))
        else:
            found = checkpoints.newest(self.checkpoints)
        if found is None and (self.path / "trial.json").is_file() and self.summary["status"] == "completed":
            raise errors.weights_not_kept(self.path)
        if found is None:
            raise errors.no_checkpoint(self.path)
        return found

    def model(self, which: str = "best") -> nn.Module:
        """The plain module with the best (or last) weights, in evaluation mode, on the CPU."""
        from raytrain.checkpoint import checkpoints

        path = self.checkpoint(which)
        state = checkpoints.load_state(path)
        module = self.experiment.model.build(tuple(state["sample"]), len(state["classes"]))
        module.load_state_dict(checkpoints.load_model(path))
        return module.eval()

    def classes(self, which: str = "best") -> tuple[str, ...]:
        """The classes' names, in the order of the model's outputs."""
        from raytrain.checkpoint import checkpoints

        return tuple(checkpoints.load_state(self.checkpoint(which))["classes"])


def _is_summary(found: dict[str, Any]) -> bool:
    """Whether the content of a summary.json is one: a damaged one counts for none."""
    words = ("status", "monitor", "device", "precision", "error")
    others = {name: value for name, value in found.items() if name not in (*words, "precision_milliseconds")}
    numbers = all(value is None or isinstance(value, int | float) for value in others.values())
    counts = all(type(found[name]) is int for name in ("epochs", "steps") if name in found)
    texts = all(isinstance(found[name], str) for name in words if name in found)
    complete = "status" in found and ("epochs" in found or found["status"] != "completed")
    return complete and numbers and counts and texts


def begin(out: Path | str, name: str | None, stem: str, fill: Callable[[Path], None]) -> tuple[Path, Lock]:
    """Make the directory `<out>/<name>` of a new run or sweep; without a name, the next free `<stem>-<number>`.

    The directory is filled aside and then renamed: a kill leaves all of it or nothing under that name. At a URL, it is
    the directory on this machine that stands for the URL.

    Args:
        fill: writes the first files into a directory.

    Returns:
        The directory, and its lock, which is held.

    Raises:
        UserError: the name is taken, or the place cannot be written.
    """
    if storage.is_url(out):
        return _begin_at_url(str(out), name, stem, fill)
    out = Path(out).expanduser()
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
        shutil.rmtree(aside, ignore_errors=True)  # nobody else knows of it
        lock.release()
        if isinstance(error, OSError):
            raise errors.not_writable(out, reason(error)) from None
        raise


def discard(path: Path) -> bool:
    """Remove a run's directory in which nothing was trained; return whether it has gone. One that holds a row of
    metrics or a checkpoint stays."""
    if os.path.lexists(path / "metrics.jsonl") or os.path.lexists(path / "checkpoints"):
        return False
    if not storage.discard(path):
        return False
    shutil.rmtree(path, ignore_errors=True)
    return True


_ASIDE = ".beginning-"
_ABANDONED_SECONDS = 60.0
"""Age from which a directory aside belongs to a command that was killed, where nobody holds its lock."""


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
    """The number behind the largest of the names `<stem>-<number>`."""
    ends = [name[len(stem) + 1 :] for name in names if name.startswith(f"{stem}-")]
    return max((int(end) for end in ends if end.isascii() and end.isdigit()), default=0) + 1


def _remove_abandoned(out: Path) -> None:
    """Remove what commands left aside that were killed before their run had begun."""
    for aside in out.glob(f"{_ASIDE}*"):
        with contextlib.suppress(OSError, errors.UserError):
            if time.time() - aside.stat().st_mtime > _ABANDONED_SECONDS:
                Lock(aside).release()
                shutil.rmtree(aside)


def _begin_at_url(out: str, name: str | None, stem: str, fill: Callable[[Path], None]) -> tuple[Path, Lock]:
    tried = ""
    while True:
        url = storage.join(out, name or f"{stem}-{_next_number(stem, [*storage.runs(out), tried])}")
        path = storage.mirror(url)
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
        storage.note_url(path, url)
        fill(path)
        return path, lock


def check_writable(out: Path | str, name: str | None) -> None:
    """Checks that `create` will succeed, without creating anything that stays.

    Raises:
        UserError: as `create`.
    """
    if name is not None and (name in ("", ".", "..") or "/" in name):
        raise errors.bad_name(name)
    if storage.is_url(out):
        return storage.check(str(out), name)
    out = Path(out).expanduser()
    if str(out).encode(errors="replace").decode() != str(out):
        raise errors.not_writable(out, "its name is not UTF-8 text")
    if name is not None and os.path.lexists(out / name):
        raise errors.name_taken(out / name)
    above = existing(out)
    if not above.is_dir():
        raise errors.not_writable(out, f"{above} is a file")
    if not os.access(above, os.W_OK | os.X_OK):
        raise errors.not_writable(out, "permission denied")


NOTES = "logs/notes.log"
"""What the ranks want the user to know, below a run's directory; the driver shows each line once."""


def note(run: Path, text: str) -> None:
    """Append a line to a run's notes; from any rank whose directory is the run's."""
    with contextlib.suppress(OSError):
        append(run / NOTES, f"{text}\n")


def read_metrics(path: Path, offset: int = 0, kind: str = "") -> tuple[list[dict[str, Any]], int]:
    """Return the whole lines of a metrics file from a byte offset on, or those of one kind, and the offset behind them.
    Damaged lines are left out; `damaged_lines` counts them."""
    try:
        raw = read_rows(path, offset)
    except FileNotFoundError:
        return [], offset
    whole = raw[: raw.rfind(b"\n") + 1]
    start = b'{"kind": "' + kind.encode()  # so begins every row: there are thousands of steps for an epoch
    rows = [parse_row(line) for line in whole.splitlines() if line.startswith(start)]
    return [row for row in rows if row is not None], offset + len(whole)


def damaged_lines(path: Path) -> int:
    """Return how many whole lines of a metrics file are no rows."""
    try:
        raw = read_rows(path)
    except FileNotFoundError:
        return 0
    return sum(parse_row(line) is None for line in raw[: raw.rfind(b"\n") + 1].splitlines())


def no_way_back(run: Path | str, why: str) -> errors.UserError:
    """Return the error for a run whose checkpoints are all damaged, or lack the metrics before them."""
    return errors.UserError(
        f"the run has no checkpoint to go on from: {why}",
        run,
        "put metrics.jsonl and checkpoints back from a copy, or train again with "
        f"`raytrain train {run}/experiment.json`",
    )


class MetricsLog:
    """The one writer of `metrics.jsonl`.

    Rows are kept until they are on the disk, and written once more where it refused them: what a reader may miss for a
    while is never lost to a run that goes on.
    """

    def __init__(self, path: Path, offset: int):
        """Cuts the file back to `offset` bytes: what a resumed run will write again.

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
        """Appends rows and hands them to the system, so that others can read them; what it refuses is written later."""
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
        """Puts all rows on the disk.

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
        """Ends the writing; what is not committed by now may be lost."""
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):
                os.close(file)

    def _push(self) -> int:
        """Hands what is left to the system; returns the file."""
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
        """Writes all since the last commit again, into what stands at the path by then: a system that could not put
        bytes on the disk forgets them, and a disk that was gone has come back."""
        self._written = 0
        self.close()


LOCK, WRITER_LOCK = "lock", "writer.lock"
"""The lock of the driver, from its first to its last write, and that of rank 0, which may be on another host. Both are
`flock`s, which NFS passes on to other hosts (Linux from 2.6.12 on)."""


class Lock:
    """Keeps a directory to one process; the system lets go of it when the process ends, however it ends."""

    def __init__(self, run: Path, name: str = LOCK, wait: float = 0.0):
        """Take the lock, waiting up to `wait` seconds.

        Raises:
            UserError: another process holds it, or the file is none of ours.
            OSError: it cannot be opened.
        """
        flags = os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            self._file: int | None = os.open(run / name, flags, 0o666)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
                raise errors.UserError("this is no lock file", run / name, "remove it") from None
            raise
        try:
            self._take(run, name, wait)
        except BaseException:
            self.release()
            raise

    def _take(self, run: Path, name: str, wait: float) -> None:
        assert self._file is not None
        if not stat.S_ISREG(os.fstat(self._file).st_mode):
            raise errors.UserError("this is no lock file", run / name, "remove it")
        deadline = time.monotonic() + wait
        while True:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    holder = os.pread(self._file, 300, 0).decode(errors="replace").strip()
                    raise errors.still_running(run, holder) from None
                time.sleep(0.1)
        with contextlib.suppress(OSError):  # it is for people
            os.ftruncate(self._file, 0)
            os.write(self._file, f"process {os.getpid()} on {socket.gethostname()}".encode())

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Let go of it."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)
