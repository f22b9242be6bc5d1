"""The run directory, and the `Run` that a user holds of it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import threading
import time
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raytrain import errors, experiment, hints, sources, storage
from raytrain.experiment import Experiment
from raytrain.files import append
from raytrain.plan import existing

if TYPE_CHECKING:
    import pyarrow as pa
    from torch import nn


class Run:
    """A run on disk: `experiment.json`, `environment.json`, `metrics.jsonl`, `checkpoints/`, `best.json`, `last.json`,
    `summary.json`, `logs/`, and copies of the experiment file (`experiment.py`) and of the modules that it imports
    (`modules/`).

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
                raise errors.a_sweep_s_runs(path)
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
        return experiment.load(self.path / "experiment.json")[0]

    @property
    def checkpoints(self) -> Path:
        """The folder of checkpoints."""
        return self.path / "checkpoints"

    @property
    def summary(self) -> dict[str, Any]:
        """The outcome: `status`, `val_accuracy` (the best), `epochs`, `steps`, `seconds` and more; `status` is
        `unfinished` while there is none."""
        try:
            return json.loads((self.path / "summary.json").read_text())
        except (FileNotFoundError, ValueError):
            return {"status": "unfinished"}

    @property
    def environment(self) -> dict[str, Any]:
        """Versions, devices, the data's fingerprint and how the run was started."""
        return json.loads((self.path / "environment.json").read_text())

    def metrics(self, kind: str = "epoch") -> pa.Table:
        """The rows of `metrics.jsonl` of one kind, `epoch` or `step`, as an Arrow table."""
        import pyarrow as pa

        rows = [row for row in read_metrics(self.path / "metrics.jsonl")[0] if row["kind"] == kind]
        names = dict.fromkeys(name for row in rows for name in row)  # a row may have what the first one has not
        return pa.table({name: [row.get(name) for row in rows] for name in names})

    def checkpoint(self, which: str = "best") -> Path:
        """The best or the last checkpoint, verified; the newest that verifies, where that one has been removed.

        Raises:
            UserError: there is none, or it does not verify.
        """
        from raytrain import checkpoint

        there = storage.Storage(self.url) if self.url else None
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            named = self.checkpoints / Path(json.loads((self.path / f"{which}.json").read_text())["checkpoint"]).name
            if there and named.name in there.committed():
                return there.fetch(named.name, self.checkpoints)
            if not there and named.is_dir():
                checkpoint.verify(named)
                return named
        found = next(there.verified(self.checkpoints), None) if there else checkpoint.newest(self.checkpoints)
        if found is None and (self.path / "trial.json").is_file() and self.summary["status"] == "completed":
            raise errors.weights_not_kept(self.path)
        if found is None:
            raise errors.no_checkpoint(self.path)
        return found

    def model(self, which: str = "best") -> nn.Module:
        """The plain module with the best (or last) weights, in evaluation mode, on the CPU."""
        from raytrain import checkpoint

        path = self.checkpoint(which)
        state = checkpoint.load_state(path)
        module = self.experiment.model.build(tuple(state["sample"]), len(state["classes"]))
        module.load_state_dict(checkpoint.load_model(path))
        return module.eval()

    def classes(self, which: str = "best") -> tuple[str, ...]:
        """The classes' names, in the order of the model's outputs."""
        from raytrain import checkpoint

        return tuple(checkpoint.load_state(self.checkpoint(which))["classes"])


def create(out: Path | str, name: str | None, stem: str) -> Path:
    """Makes an empty run directory `<out>/<name>`; without a name, the next free `<stem>-<number>`. At a URL, the
    directory on this machine that stands for it.

    Raises:
        UserError: the name is taken, or the place cannot be written.
    """
    if storage.is_url(out):
        return storage.create(str(out), name, stem)
    out = Path(out).expanduser()
    try:
        out.mkdir(parents=True, exist_ok=True)
        if name is not None:
            (out / name).mkdir()
            return out / name
        taken = [
            int(path.name[len(stem) + 1 :]) for path in out.glob(f"{stem}-*") if path.name[len(stem) + 1 :].isdigit()
        ]
        number = max(taken, default=0)
        while True:
            number += 1
            try:
                (out / f"{stem}-{number}").mkdir()
                return out / f"{stem}-{number}"
            except FileExistsError:
                continue
    except FileExistsError:
        raise (
            errors.name_taken(out / str(name)) if out.is_dir() else errors.not_writable(out, "it is a file")
        ) from None
    except OSError as error:
        raise errors.not_writable(out, error.strerror or str(error)) from None


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
    """The whole lines of a metrics file from a byte offset on, or those of one kind, and the offset behind them."""
    try:
        with open(path, "rb") as file:
            file.seek(offset)
            raw = file.read()
    except FileNotFoundError:
        return [], offset
    whole = raw[: raw.rfind(b"\n") + 1]
    start = b'{"kind": "' + kind.encode()  # so begins every row: there are thousands of steps for an epoch
    return [json.loads(line) for line in whole.splitlines() if line.startswith(start)], offset + len(whole)


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
        self._file: int | None = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self._synced = min(offset, os.fstat(self._file).st_size)
        os.ftruncate(self._file, self._synced)
        self._rows, self._written = (
            bytearray(),
            0,
        )  # all rows since the last commit, and how many of their bytes are there

    def write(self, rows: list[dict[str, Any]]) -> None:
        """Appends rows and hands them to the system, so that others can read them; what it refuses is written later."""
        text = b"".join(json.dumps(row, allow_nan=False).encode() + b"\n" for row in rows)
        with self._lock, contextlib.suppress(OSError):
            self._rows += text
            self._push()

    @property
    def size(self) -> int:
        """Bytes of all rows."""
        with self._lock:
            return self._synced + len(self._rows)

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


class Lock:
    """Keeps a run directory to one writer; the system lets go of it when the process ends, however it ends."""

    def __init__(self, run: Path, wait: float):
        """Takes the lock, waiting up to `wait` seconds.

        Raises:
            UserError: another process holds it.
        """
        self._file = open(run / "lock", "a+")
        deadline = time.monotonic() + wait
        while True:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if time.monotonic() > deadline:
                    self._file.seek(0)
                    holder = self._file.read().strip()
                    self._file.close()
                    raise errors.still_running(run, int(holder) if holder.isdigit() else 0) from None
                time.sleep(0.1)
        self._file.truncate(0)
        self._file.write(str(os.getpid()))
        self._file.flush()

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Lets go of it."""
        self._file.close()
