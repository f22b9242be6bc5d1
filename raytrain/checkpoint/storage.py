"""A run at a URL that `pyarrow.fs` opens, such as s3://bucket/runs/first.

All code works on a local directory, the run's mirror. This module uploads and downloads its files. The driver's mirror
holds the small files. Rank 0 may run on another machine; its mirror holds the checkpoints that it writes. The files at
the URL are authoritative: a mirror is synchronised with them before it is read. The one exception is rank 0's mirror
after a storage outage: newer checkpoints that continue the run at the URL are used and uploaded.

Storage may accept a connection and never answer, and a request cannot be cancelled. Each request therefore has its own
thread, and the caller gives up after `pulse.Pulse.limit` seconds without progress.
"""

from __future__ import annotations

import contextlib
import copy
import fcntl
import json
import os
import shutil
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from raytrain import errors
from raytrain.checkpoint import layout, pulse
from raytrain.checkpoint.layout import MANIFEST, step_of
from raytrain.checkpoint.location import URL, join, replace_file
from raytrain.checkpoint.rows import check_rows
from raytrain.files import check_no_secret
from raytrain.user_code.sources import MODULES
from raytrain.watchdog import doing

T = TypeVar("T")


_LEAST_SPEED = 1 << 17
"""Bytes a second: a slower upload is given up, since S3 answers only once it has the whole object."""
ENVIRONMENT = "environment.json"
FOLLOWING = ("metrics.jsonl", "experiment.json", "best.json", "last.json")
"""The files that rank 0 writes. The metrics are uploaded before a checkpoint's manifest."""


class Storage:
    """The files of a run at a URL, or of a folder of runs. An object appears whole or not at all.

    Attributes:
        sending: the checkpoint that is being uploaded; it must stay in the mirror.

    Raises:
        UserError: the URL holds a password or another secret, pyarrow cannot open it, or storage does not answer in
            time.
    """

    def __init__(self, url: str):
        check_no_secret(url, "the URL of a run")
        self.url, self.pulse, self.sending = url, pulse.pulse(url), ""
        self._files, self._root = answered(url, lambda: self._ask(lambda _: _open(url)))
        self._made: set[str] = set()

    def below(self, name: str) -> Storage:
        """Return the storage of a folder."""
        found = copy.copy(self)
        found.url, found._root, found.sending = join(self.url, name), f"{self._root}/{name}", ""
        return found

    def _ask(self, work: Callable[[Callable[[], None]], T], changes: str | None = None, size: int = 0) -> T:
        """Run a request in its own thread and return its result.

        Args:
            work: the request; it calls its argument whenever it makes progress.
            changes: the object or the folder that the request writes or removes.
            size: bytes uploaded before storage answers; the timeout grows with them while other requests succeed.

        Raises:
            TimeoutError: no progress in time. The thread is abandoned, and its request may still be carried out.
        """
        answers: list[T] = []
        failures: list[BaseException] = []
        done, waited = threading.Event(), 0.0

        def sign() -> None:
            nonlocal waited
            waited = 0.0
            self.pulse.live()

        def run() -> None:
            try:
                answers.append(work(sign))
            except BaseException as error:
                failures.append(error)
            finally:
                self.pulse.end(changes, failures[0] if failures else None)
                done.set()

        self.pulse.begin(changes)
        threading.Thread(target=run, daemon=True, name="storage-request").start()
        while not done.wait(0.1):
            waited += 0.1  # added up, so that time asleep is not counted
            self.pulse.wait()
            limit = self.pulse.limit
            if waited > limit and (self.pulse.silence > limit or waited > limit + size / _LEAST_SPEED):
                raise self.pulse.error()
        if failures:
            raise failures[0]
        return answers[0]

    def names(self, folder: str = "", recursive: bool = True) -> dict[str, int | None]:
        """Return the sizes of the files below a folder, by path from the root. A listing that is not recursive also has
        folders, with None.

        Raises:
            OSError: storage refused the request; all methods below raise this too.
        """
        fs = _arrow()
        where = f"{self._root}/{folder}".rstrip("/")
        below = fs.FileSelector(where, allow_not_found=True, recursive=recursive)
        found = self._ask(lambda _: self._files.get_file_info(below))
        start = len(self._root) + 1
        files = {info.path[start:]: info.size for info in found if info.type == fs.FileType.File}
        if recursive:
            return files
        return files | {info.path[start:]: None for info in found if info.type == fs.FileType.Directory}

    def read(self, name: str, offset: int = 0) -> bytes:
        """Return a file's bytes from an offset on."""

        def work(sign: Callable[[], None]) -> bytes:
            pieces = []
            with self._files.open_input_file(f"{self._root}/{name}") as file:
                file.seek(min(offset, file.size()))
                while piece := file.read(_CHUNK):
                    pieces.append(piece)
                    sign()
            return b"".join(pieces)

        return self._ask(work)

    def write(self, name: str, content: Path | bytes) -> None:
        """Write an object from bytes or from a local file."""
        path = f"{self._root}/{name}"
        folder = path.rpartition("/")[0]

        def work(sign: Callable[[], None]) -> None:
            if self._files.type_name not in ("s3", "gcs") and folder not in self._made:  # these have no folders
                self._files.create_dir(folder, recursive=True)
                self._made.add(folder)
            with contextlib.ExitStack() as stack:
                source = stack.enter_context(open(content, "rb")) if isinstance(content, Path) else None
                first = (
                    source.read(_CHUNK) if source else content
                )  # a file that cannot be read leaves no partial object
                target = stack.enter_context(self._files.open_output_stream(path))
                target.write(first)
                while source and (more := source.read(_CHUNK)):
                    doing.tick()
                    target.write(more)

        self._ask(work, name, os.path.getsize(content) if isinstance(content, Path) else len(content))

    def remove(self, name: str) -> None:
        """Remove an object if it exists."""
        with contextlib.suppress(FileNotFoundError):
            self._ask(lambda _: self._files.delete_file(f"{self._root}/{name}"), name)

    def remove_folder(self, name: str) -> None:
        """Remove a folder with all that is in it, if it exists. On S3, removing its files leaves an empty object that
        stands for the folder."""
        self._made.clear()
        with contextlib.suppress(FileNotFoundError):
            self._ask(lambda _: self._files.delete_dir(f"{self._root}/{name}"), name)

    # Download

    def pull(self, target: Path) -> None:
        """Make the small files of a mirror equal to those at the URL."""
        top = self.names("", recursive=False)
        folders = [*self.names("logs"), *self.names(MODULES)]
        there = [*(name for name, size in top.items() if size is not None), *folders]
        target.mkdir(parents=True, exist_ok=True)
        for name in there:
            if _plain(name) and name != "stop":
                with contextlib.suppress(FileNotFoundError):
                    replace_file(target / name, self.read(name))
        for file in (*target.iterdir(), *(target / MODULES).rglob("*.py")):
            if file.is_file() and file.relative_to(target).as_posix() not in (*there, *_KEPT):
                file.unlink()

    def rows(self, target: Path) -> None:
        """Download the new rows of metrics.jsonl and the new lines of the logs of failed checkpoints and of notes."""
        for name in ("metrics.jsonl", "logs/checkpoints.log", "logs/notes.log"):
            file = target / name
            have = file.stat().st_size if file.exists() else 0
            with contextlib.suppress(FileNotFoundError):
                more = self.read(name, have)
                if more:
                    file.parent.mkdir(exist_ok=True)
                    with open(file, "ab") as log:
                        log.write(more)

    def committed(self) -> dict[str, int]:
        """Return the sizes of the checkpoints that have a manifest, the oldest first."""
        sizes: dict[str, int] = {}
        whole = []
        for path, size in self.names("checkpoints").items():
            _, name, file = (*path.split("/"), "", "")[:3]
            if step_of(name) is not None:
                sizes[name] = sizes.get(name, 0) + (size or 0)
                whole += [name] if file == MANIFEST else []
        return {name: sizes[name] for name in sorted(whole, key=lambda name: step_of(name) or 0)}

    def fetch(self, name: str, folder: Path) -> Path:
        """Download a checkpoint, unless an equal one that verifies is here. A lock admits one rank per machine at once.

        Raises:
            UserError: the checkpoint does not verify.
        """

        folder.mkdir(parents=True, exist_ok=True)
        path = folder / name
        with open(folder / ".fetching", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            there = self.names(f"checkpoints/{name}")
            if (there.get(f"checkpoints/{name}/{layout.MANIFEST}") or 0) > 1 << 16:
                raise layout.broken(Path(name), "its manifest is damaged")
            manifest = self.read(f"checkpoints/{name}/{layout.MANIFEST}")
            with contextlib.suppress(OSError, errors.UserError):
                if (path / layout.MANIFEST).read_bytes() == manifest:
                    layout.verify(path)
                    return path
            shutil.rmtree(path, ignore_errors=True)
            path.mkdir()
            for part in layout.PARTS:
                with contextlib.suppress(FileNotFoundError):  # `verify` reports it
                    self._fetch(f"checkpoints/{name}/{part}", path / part)
            replace_file(path / layout.MANIFEST, manifest)
            layout.verify(path)
            return path

    def verified(self, folder: Path) -> Iterator[Path]:
        """Download and yield the checkpoints at the URL that verify, the newest first."""
        for name in reversed(self.committed()):
            with contextlib.suppress(errors.UserError):
                yield self.fetch(name, folder)

    def synchronise(self, run: Path, there: Mapping[str, int]) -> None:
        """Remove a mirror's checkpoints that differ from those at the URL, and download metrics.jsonl and
        environment.json again.

        Args:
            run: the mirror.
            there: the checkpoints at the URL.
        """
        folder = run / "checkpoints"
        for name in layout.committed(folder):
            same = name in there and self.read(f"checkpoints/{name}/{layout.MANIFEST}")
            if same != (folder / name / layout.MANIFEST).read_bytes():
                shutil.rmtree(folder / name)
        for name in ("metrics.jsonl", ENVIRONMENT):
            (run / name).unlink(missing_ok=True)
            with contextlib.suppress(FileNotFoundError):
                self._fetch(name, run / name)

    def ahead(self, run: Path, there: Mapping[str, int]) -> list[str]:
        """Return the checkpoints of rank 0's mirror that are newer than all at the URL, the newest first. There are
        none if the mirror belongs to another run of that name, or the run was continued elsewhere: the mirror must have
        the rows that the newest checkpoint at the URL requires."""
        *_, newest = ("", *there)
        names = layout.committed(run / "checkpoints")
        ahead = [name for name in names if (layout.step_of(name) or 0) > (layout.step_of(newest) or -1)]
        try:
            if not ahead or (run / ENVIRONMENT).read_bytes() != self.read(ENVIRONMENT):
                return []
            if newest:
                check_rows(run / "metrics.jsonl", json.loads(self.read(f"checkpoints/{newest}/{layout.STATE}")))
        except (FileNotFoundError, KeyError, TypeError, ValueError):
            return []
        return ahead[::-1]

    # Upload

    def push(self, run: Path, expired: Callable[[Mapping[str, int]], list[str]]) -> None:
        """Upload new checkpoints, each with its manifest last, then metrics, `best.json` and `last.json`; then remove
        expired and incomplete checkpoints.

        Args:
            expired: returns the names of the checkpoints to remove, given their sizes by name.
        """

        there = self.names("checkpoints")
        try:
            for name in layout.committed(run / "checkpoints"):
                self.sending = name
                if os.path.isfile(run / "checkpoints" / name / layout.MANIFEST):  # otherwise it was pruned meanwhile
                    self.push_checkpoint(run, name, there)
        finally:
            self.sending = ""
        self.push_metrics(run)
        for name in FOLLOWING[1:]:
            if (run / name).is_file():
                self.write(name, run / name)
            else:
                self.remove(name)
        there = self.committed()
        gone, steps = expired(there), {name: layout.step_of(name) or 0 for name in there}
        last = max(steps.values(), default=-1)
        self._remove_checkpoints(lambda name, step: name in gone or (name not in there and step < last))

    def push_checkpoint(self, run: Path, name: str, there: Mapping[str, int | None]) -> None:
        """Upload a checkpoint that is not at the URL yet, with the rows before it; its manifest last.

        Args:
            there: the files of all checkpoints at the URL, and their bytes.
        """

        path, manifest = run / "checkpoints" / name, f"checkpoints/{name}/{layout.MANIFEST}"
        if there.get(manifest) != (path / layout.MANIFEST).stat().st_size:  # absent, or only partly there
            for part in layout.PARTS:
                self.write(f"checkpoints/{name}/{part}", path / part)
            self.push_metrics(run)
            self.write(manifest, path / layout.MANIFEST)

    def push_metrics(self, run: Path) -> None:
        """Upload the metrics."""
        if (run / "metrics.jsonl").is_file():
            self.write("metrics.jsonl", run / "metrics.jsonl")

    def drop_after(self, step: int) -> None:
        """Remove the checkpoints after a step, as `retention.drop_after` does in a directory."""
        self._remove_checkpoints(lambda _, found: found > step)

    def _remove_checkpoints(self, goes: Callable[[str, int], bool]) -> None:
        """Remove checkpoints by name and step; a manifest is removed before the other files."""
        found = dict.fromkeys(path.split("/")[1] for path in self.names("checkpoints") if path.count("/") == 2)
        for name in found:
            step = step_of(name)
            if step is not None and goes(name, step):
                self.remove(f"checkpoints/{name}/{MANIFEST}")
                self.remove_folder(f"checkpoints/{name}")

    def _fetch(self, name: str, file: Path) -> None:
        partial = file.with_name(f".{file.name}.{uuid.uuid4().hex}")  # unique: an abandoned thread may write another

        def work(sign: Callable[[], None]) -> None:
            with self._files.open_input_stream(f"{self._root}/{name}") as source:
                while chunk := source.read(_CHUNK):
                    doing.tick()
                    target.write(chunk)
                    sign()

        try:
            with open(partial, "xb") as target:
                self._ask(work)
            os.replace(partial, file)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise


_CHUNK = 8 << 20
_KEPT = (URL, "lock", "stop")
"""Files of a mirror that `pull` does not remove."""


def _open(url: str) -> tuple[Any, str]:
    return _arrow().FileSystem.from_uri(url)


def _arrow():
    """Return Arrow's file systems, imported late: `import raytrain` needs none."""
    from pyarrow import fs

    return fs


def answered(url: str, ask: Callable[[], T]) -> T:
    """Return the result of a request.

    Raises:
        UserError: storage refuses it, or does not answer in time.
    """
    try:
        return ask()
    except errors.UserError:
        raise
    except Exception as error:
        what = f"storage does not answer: {errors.storage_reason(error)}"
        raise errors.UserError(what, url, errors.storage_remedy(url, error)) from None


def _plain(name: str) -> bool:
    """Return whether a name leads to a file of the mirror, of its logs or of its modules."""
    parts = name.split("/")
    module = parts[0] == MODULES and name.endswith(".py") and not any(part.startswith(".") for part in parts)
    return ".." not in parts and (len(parts) == 1 or (parts[0] == "logs" and len(parts) == 2) or module)
