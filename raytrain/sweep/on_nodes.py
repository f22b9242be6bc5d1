"""A sweep at a URL on the nodes of a cluster, which share no folder.

Each trial works in a folder of its node. From there its checkpoints and metrics go to the URL. Its record and its small
files go to the driver's mirror, through the `Desk`, an actor beside the driver, and from there to the URL. So the
mirror has what it has on one machine, except for checkpoints. A trial that goes on elsewhere takes its checkpoints and
metrics from the URL, and the rest from the desk. Whoever uploads checkpoints asks the desk first: an actor that lost
its trial to another one, or was cut off from the driver, changes nothing.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError

from raytrain import errors
from raytrain.checkpoint import layout
from raytrain.checkpoint.location import replace_file
from raytrain.checkpoint.storage import FOLLOWING, Storage
from raytrain.data.cache import default_folder
from raytrain.run.lock import Lock, held
from raytrain.run.metrics_log import MetricsLog
from raytrain.sweep import record
from raytrain.sweep.at_url import files, mark

_ROUND_SECONDS = 0.5
"""Seconds between two looks for something new in a trial's folder."""
_PAUSE_SECONDS = 1.0
"""Seconds between two tries where storage does not answer."""
_ABANDONED_SECONDS = 600.0
"""Age from which a folder without a process is removed: until then its driver may collect what is left in it."""


@dataclass
class _Sent:
    """What is new in a trial's folder since the last look.

    Attributes:
        weights: the checkpoints at the URL.
        recipe: the content of experiment.json there.
        marks: inodes and `mark`s of files that the desk has.
        record: the record that the desk has.
    """

    weights: list[str]
    recipe: bytes
    marks: dict[str, tuple[int, int, int]]
    record: dict[str, Any]


class Node:
    """The folder of Tune's actor on its node, and the trial in it.

    Args:
        url: the sweep's.
        desk: its desk.

    Attributes:
        folder: stands for the sweep's directory.
    """

    def __init__(self, url: str, desk: Any):
        self.url, self.desk, self.number = url, desk, -1
        self.run: Path | None = None
        self.folder = _new_folder()
        self._lock = Lock(self.folder)
        self._guard, self._closed = threading.RLock(), threading.Event()
        self._holder, self._shared, self._sent = "", set[str](), _Sent([], b"", {}, {})
        self._storage: Storage | None = None
        threading.Thread(target=self._follow, daemon=True, name="trial-uploads").start()

    @property
    def storage(self) -> Storage:
        """The storage of the sweep."""
        self._storage = self._storage or Storage(self.url)
        return self._storage

    def _below(self) -> Storage:
        return self.storage.below(record.folder(Path(), self.number).as_posix())

    def begin(self, number: int) -> None:
        """Read a trial's small files. Tune may start an actor that it gives up before the first step, for another one
        of the same trial: nothing is changed yet."""
        self.number, self._holder = number, ""
        self._read(record.folder(self.folder, number))

    def _read(self, run: Path) -> None:
        shutil.rmtree(run, ignore_errors=True)
        for name, content in got(self.desk.files.remote(self.number)).items():
            replace_file(run / name, content)

    def take(self) -> bool:
        """Take the trial, with its checkpoints, before the first step; return whether it was not taken before."""
        if self._holder:
            return False
        self._holder, run = secrets.token_hex(8), record.folder(self.folder, self.number)
        here = {"id": self._holder, "node": ray.get_runtime_context().get_node_id(), "folder": str(self.folder)}
        ray.get(self.desk.take.remote(self.number, here))
        self._read(run)
        self._patiently(lambda: self._fetch(run))
        known = [name for name in files(run) if name not in FOLLOWING]  # which may differ from the desk's
        marks = {name: marked for name in known if (marked := _marked(run / name))}
        recipe, weights = (run / "experiment.json").read_bytes(), layout.committed(run / "checkpoints")
        self._sent = _Sent(weights, recipe, marks, record.read(run))
        with self._guard:
            self.run = run
        return True

    def _fetch(self, run: Path) -> None:
        """Download a trial's checkpoints with the metrics before the newest one, and remove later ones at the URL."""
        there, newest = self._below(), None
        for name in there.committed():
            with contextlib.suppress(errors.UserError):  # it does not verify
                newest = there.fetch(name, run / "checkpoints")
        there.drop_after(-1 if newest is None else layout.step_of(newest.name) or 0)
        if newest is not None:
            for name in FOLLOWING:
                (run / name).unlink(missing_ok=True)
                with contextlib.suppress(FileNotFoundError):
                    replace_file(run / name, there.read(name))
        rows = 0 if newest is None else layout.load_state(newest)["metrics_bytes"]
        MetricsLog(run / "metrics.jsonl", rows).close()

    def finish(self) -> None:
        """Upload and send all of the trial, and let it go; at the end of an attempt, before Tune hears of it."""
        if self.run is None:
            return
        self._patiently(lambda: self._round(last=True))
        with self._guard:
            ray.get(self.desk.leave.remote(self.number, self._holder))
            shutil.rmtree(self.run, ignore_errors=True)
            self.run = None

    def close(self) -> None:
        """Finish the trial, and remove the folder."""
        self.finish()
        self._closed.set()
        shutil.rmtree(self.folder, ignore_errors=True)
        self._lock.release()

    @contextlib.contextmanager
    def quiet(self) -> Iterator[None]:
        """Upload nothing while a trial's past is replaced."""
        with self._guard:
            yield

    def share(self, pool: Path) -> None:
        """Upload what `pool.keep` has kept, for trials on other nodes."""
        if pool.name in self._shared:
            return
        self._shared.add(pool.name)

        def work() -> None:
            for file in (one for one in sorted(pool.rglob("*")) if one.is_file()):
                self.storage.write(f"pool/{pool.name}/{file.relative_to(pool).as_posix()}", file)
            start = f"pool/{pool.name.partition('_')[0]}_"
            own = sorted({name.split("/")[1] for name in self.storage.names("pool") if name.startswith(start)})
            for name in (name for old in own[:-2] for name in self.storage.names(f"pool/{old}")):
                self.storage.remove(name)

        self._patiently(work)

    def shared(self, pool: Path) -> None:
        """Download what another node has shared, unless it is here."""
        if pool.is_dir():
            return
        partial = pool.with_name(f".{pool.name}")

        def work() -> None:
            shutil.rmtree(partial, ignore_errors=True)
            for name in self.storage.names(f"pool/{pool.name}"):
                replace_file(partial / name.split("/", 2)[2], self.storage.read(name))
            if partial.is_dir():
                partial.rename(pool)

        self._patiently(work)

    def recipe(self, number: int) -> Path:
        """Return a file with the experiment of a trial, as the desk has it."""
        file = self.folder / f"{number:04d}.json"
        replace_file(file, got(self.desk.files.remote(number))["experiment.json"])
        return file

    def _follow(self) -> None:
        while not self._closed.wait(_ROUND_SECONDS):
            with contextlib.suppress(Exception):  # storage refuses it: the next round or `finish` uploads it
                self._round()

    def _round(self, last: bool = False) -> None:
        """Upload and send what is new."""
        with self._guard:
            run = self.run
            if run is None:
                return
            found = record.read(run)  # before the files that it speaks of
            ended = found.get("status") in record.ENDED
            if ended and not last:
                return
            try:
                self._upload(run, last)
            except OSError:
                if last:
                    raise
            new = [*self._new(run, last)]
            gone = [name for name in self._sent.marks if not (run / name).exists()]
            more = {} if found == self._sent.record else found
            try:
                stop = ray.get(self.desk.put.remote(self.number, self._holder, [one for one, _ in new], gone, more))
            except LookupError:
                os._exit(1)
            self._sent.record = found
            self._sent.marks = {name: one for name, one in self._sent.marks.items() if name not in gone}
            self._sent.marks |= {name: marked for (name, *_), marked in new}
            if stop and not last:
                (run / "stop").touch()

    def _upload(self, run: Path, last: bool) -> None:
        """Upload the checkpoints, where there are others than before, and the metrics."""
        if not last and layout.committed(run / "checkpoints") == self._sent.weights:
            return
        if not ray.get(self.desk.holds.remote(self.number, self._holder)):
            os._exit(1)
        there, recipe = self._below(), (run / "experiment.json").read_bytes()
        if recipe != self._sent.recipe:  # under PBT the checkpoints there are of another past than its stages say
            there.drop_after(-1)
            there.write("experiment.json", recipe)
            self._sent.recipe = recipe
        self._sent.weights = push(there, run)

    def _new(self, run: Path, last: bool) -> Iterator[tuple[tuple[str, int, bytes], tuple[int, int, int]]]:
        """Return what the desk lacks of the trial's files, and their marks; of its logs at the end alone."""
        for name in files(run):
            marked, before = _marked(run / name), self._sent.marks.get(name)
            if marked is None or marked == before or name == record.FILE or (name.startswith("logs/") and not last):
                continue
            start = 0
            if name == "metrics.jsonl" and before is not None and before[0] == marked[0] and before[2] <= marked[2]:
                start = before[2]  # of what grows all the time, only what has been added
            with contextlib.suppress(FileNotFoundError), open(run / name, "rb") as file:
                file.seek(start)
                yield (name, start, file.read(marked[2] - start)), marked

    def _patiently(self, work: Callable[[], None]) -> None:
        """Do what needs storage, again and again until it answers."""
        said = False
        while True:
            try:
                return work()
            except RayError:  # the driver has gone
                raise
            except Exception as error:  # some errors of pyarrow are no OSError
                if not said:
                    said, host = True, socket.gethostname()
                    line = f"trial {self.number} on {host} waits for storage: {errors.one_line(str(error), 200)}"
                    self.desk.say.remote(line)
            time.sleep(_PAUSE_SECONDS)


def _marked(file: Path) -> tuple[int, int, int] | None:
    """Return a file's inode and `mark`; None where there is none."""
    with contextlib.suppress(OSError):
        return (file.stat().st_ino, *mark(file))
    return None


def _new_folder() -> Path:
    """Make a folder for a process on this node, and remove those of processes that were killed long ago."""
    parent = default_folder() / "trials"
    parent.mkdir(parents=True, exist_ok=True)
    for old in parent.iterdir():
        with contextlib.suppress(OSError):
            if time.time() - old.stat().st_mtime > _ABANDONED_SECONDS and not held(old):
                shutil.rmtree(old)
    folder = parent / secrets.token_hex(8)
    folder.mkdir()
    return folder


def push(there: Storage, run: Path) -> list[str]:
    """Make a trial's checkpoints, metrics and pointers at the URL those of its folder; return the checkpoints' names.

    What is uploaded are links, so that the trial may go on and prune.

    Raises:
        OSError: storage refuses it.
    """
    sending = run / ".sending"
    while True:
        shutil.rmtree(sending, ignore_errors=True)
        sending.mkdir()
        names = layout.committed(run / "checkpoints")
        with contextlib.suppress(FileNotFoundError, shutil.Error):  # it was pruned meanwhile
            for name in names:
                source, target = run / "checkpoints" / name, sending / "checkpoints" / name
                shutil.copytree(source, target, copy_function=os.link)
            break
    for name in FOLLOWING:
        with contextlib.suppress(FileNotFoundError):
            os.link(run / name, sending / name)
    there.push(sending, lambda found: [name for name in found if name not in names])
    shutil.rmtree(sending)
    return names


def got(asked: Any, seconds: float | None = None) -> dict[str, bytes]:
    """Return files by name, from a reference.

    Raises:
        RayError: the process that has them is gone, or they are not there in time.
    """
    found: Any = ray.get(asked, timeout=seconds)
    return found
