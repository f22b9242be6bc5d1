"""A sweep at a URL. The trials run in its mirror on this machine, and a side thread uploads their files.

A trial counts at the URL once its `trial.json` is there, which is uploaded after all that it speaks of; its checkpoints
appear as those of any run at a URL. Whoever opens the sweep again gets the files at the URL; on the machine of the
last driver, the mirror with what that could not upload, unless another machine has gone on with the sweep.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from raytrain import errors
from raytrain.checkpoint import layout, location
from raytrain.checkpoint.storage import FOLLOWING, Storage, answered
from raytrain.driver import gate
from raytrain.files import write_atomically
from raytrain.run.lock import LOCK, WRITER_LOCK, held
from raytrain.sweep import population, record

_AT_ONCE = 16
"""Files that are downloaded at once."""
_LOCKS = (LOCK, WRITER_LOCK, record.LOCK)
_UNSENT = "unsent"
"""Is in the mirror until all is uploaded. It has the digests of the sweep.json that was uploaded last, and of the one
before: another one at the URL is of another machine."""
HOLDER = "holder.json"
"""Is in a trial's folder in the mirror while an actor on a node has the trial: which one."""
_LOCAL = (*_LOCKS, _UNSENT, HOLDER, location.URL, "stop", gate.GO)
"""Files that mean something on this machine alone."""
_TREES = ("logs", "modules", "plots")
"""Folders of a sweep and of a trial whose files are uploaded with it."""
_REPORTED = ("report.html", "trials.csv", "folds.json", "recommended.json")
_RECIPE = "experiment.json"
_ROUND_SECONDS = 1.0


def opened(url: str) -> Path | None:
    """Return the mirror of a sweep at a URL with the files that are there, except for checkpoints; None where there is
    none.

    While a process of this machine runs the sweep, or has left something that is not uploaded, its mirror is newer than
    the URL, and stays as it is.

    Raises:
        UserError: storage does not answer.
    """
    path = location.mirror(url)
    if held(path) and (path / "sweep.json").is_file():
        return path
    storage = Storage(url)
    if "sweep.json" not in answered(url, lambda: storage.names("", recursive=False)):
        return None
    if digests := _digests(path):
        there = answered(url, lambda: storage.read("sweep.json"))
        if _digest(there) in digests:
            return path
    names = answered(url, storage.names)
    for file in [one for one in path.rglob("*") if one.is_file() and one.name not in _LOCKS]:
        file.unlink(missing_ok=True)  # locks stay: trials of a killed driver may still hold them while they end
    path.mkdir(parents=True, exist_ok=True)
    location.note_url(path, url)
    small = [name for name in names if not ({"..", "checkpoints", "pool"} & {*name.split("/")})]
    _each(lambda name: location.replace_file(path / name, storage.read(name)), small, url)
    return path


def _digests(path: Path) -> list[str]:
    with contextlib.suppress(OSError):
        return (path / _UNSENT).read_text().split()
    return []


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _each(work: Callable[[str], None], names: Iterable[str], url: str) -> None:
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        answered(url, lambda: [*pool.map(work, names)])


def conclude(path: Path) -> None:
    """Upload the files that a report has written into the mirror of a sweep.

    Raises:
        UserError: storage refuses them.
    """
    url = location.url_of(path)
    if url is not None:
        storage = Storage(url)
        for name in files(path):
            if name in _REPORTED or name.startswith("plots/"):  # of the rest, a driver elsewhere may have newer ones
                answered(url, lambda name=name: storage.write(name, path / name))


class Uploads:
    """Uploads the files of a sweep while it goes on. Of a sweep in a directory it does nothing.

    Args:
        path: the sweep's directory.
        begun: returns the numbers of the trials that have a record.
        say: is called with a line when storage stops answering.
    """

    def __init__(self, path: Path, begun: Callable[[], Iterable[int]], say: Callable[[str], None]):
        self.path, self.begun, self.say = path, begun, say
        self.url = location.url_of(path)
        self.storage = Storage(self.url) if self.url else None
        self._sent: dict[str, tuple[int, int]] = {}
        """The files at the URL, and their `mark`s when they were uploaded."""
        self._weights: dict[str, int] = {}
        """How many checkpoints of each trial are at the URL."""
        self._over: set[int] = set()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._silent = False

    def __enter__(self) -> Uploads:
        """Upload what makes the folder at the URL a sweep, and go on in a side thread.

        Raises:
            UserError: storage refuses it.
        """
        if self.url is not None:
            answered(self.url, self.push)
            self._thread = threading.Thread(target=self._follow, daemon=True, name="sweep-uploads")
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Upload what is left."""
        if self._thread is not None:
            self._stop.set()
            self._thread.join()
            self._silent = False
            self._over.clear()
            self._try()
            if not self._silent:
                (self.path / _UNSENT).unlink(missing_ok=True)

    def push(self) -> None:
        """Upload what has changed.

        Raises:
            OSError: storage refuses it, or does not answer.
        """
        for number in sorted(self.begun()):
            if number not in self._over or self._has_dropped(number):
                self._push_comparisons()
                with contextlib.suppress(FileNotFoundError):  # it was pruned meanwhile: the next round has the rest
                    self._push_trial(number)
        self.push_sweep()

    def _push_comparisons(self) -> None:
        """Upload those of a population, before what a trial has made of them."""
        if self.storage is not None and (self.path / population.FILE).exists():
            self._send(self.storage, self.path, population.FILE, population.FILE)

    def push_sweep(self) -> None:
        """Upload the sweep's own files that have changed; sweep.json last."""
        assert self.storage is not None
        for name in files(self.path):
            if name != "sweep.json":
                self._send(self.storage, self.path, name, name)
        marked, content = mark(self.path / "sweep.json"), (self.path / "sweep.json").read_bytes()
        if self._sent.get("sweep.json") != marked:
            self._note(content)
            self.storage.write("sweep.json", content)
            self._sent["sweep.json"] = marked

    def assume(self) -> None:
        """Take files that have just been downloaded for uploaded, and download the checkpoints. Remove what a killed
        command has left of a first checkpoint.

        Raises:
            UserError: storage does not answer.
        """
        if self.url is None or self.storage is None:
            return
        here = bool(_digests(self.path))
        if not here:
            trials = {self._below(number): record.folder(self.path, number) for number in self.begun()}
            for below, folder in ({"": self.path} | trials).items():
                self._sent |= {f"{below}{name}": mark(folder / name) for name in files(folder)}
            self._note((self.path / "sweep.json").read_bytes())
        names = answered(self.url, self.storage.names)
        for below in sorted({name.partition("checkpoints/")[0] for name in names if "/checkpoints/" in name}):
            there = self.storage.below(below.rstrip("/"))
            found = answered(self.url, there.committed)
            self._weights[below] = len(found)
            if not found:
                answered(self.url, lambda there=there: there.drop_after(-1))
            for name in () if here else self._wanted(found):
                with contextlib.suppress(errors.UserError):  # it does not verify: the trial goes on from an older one
                    there.fetch(name, self.path / below / "checkpoints")

    def _wanted(self, names: Iterable[str]) -> Iterable[str]:
        """Return the checkpoints of a trial that a sweep needs here to go on."""
        return names

    def _note(self, content: bytes) -> None:
        """Note the sweep.json that is at the URL, or will be there in a moment."""
        write_atomically(self.path / _UNSENT, "\n".join([*_digests(self.path)[-1:], _digest(content)]))

    def _push_trial(self, number: int) -> None:
        """Upload what has changed of a trial: checkpoints and metrics, other files, the record."""
        assert self.storage is not None
        run, below = record.folder(self.path, number), self._below(number)
        there = self.storage.below(below.rstrip("/"))
        known = (run / record.FILE).read_bytes()  # before the files that it speaks of
        ended = record.read(run).get("status") in record.ENDED
        marked, here = mark(run / record.FILE), {*layout.committed(run / "checkpoints")}
        changed = [name for name in files(run) if self._sent.get(f"{below}{name}") != mark(run / name)]
        if not changed and len(here) == self._weights.get(below, 0):
            self._over |= {number} if ended else set()  # a round after its end: loggers and callbacks note it later
            return
        if _RECIPE in changed:  # under PBT the checkpoints there are of another past than its stages say
            if self._weights.get(below):
                there.drop_after(-1)
            self._send(there, run, _RECIPE, f"{below}{_RECIPE}")
        if here or self._weights.get(below):
            self._weights[below] = max(1, len(here))  # where one is pruned meanwhile, parts of it are there
            there.push(run, lambda names: [name for name in names if name not in here])
            if not here:
                there.drop_after(-1)
        self._weights[below] = len(here)
        for name in changed:
            if name != record.FILE:
                self._send(there, run, name, f"{below}{name}")
        self._push_comparisons()
        there.write(record.FILE, known)
        if known == (run / record.FILE).read_bytes():
            self._sent[f"{below}{record.FILE}"] = marked

    def _has_dropped(self, number: int) -> bool:
        """Return whether an ended trial has lost the checkpoints that it has at the URL."""
        has = (record.folder(self.path, number) / "checkpoints").is_dir()
        return bool(self._weights.get(self._below(number))) and not has

    def _below(self, number: int) -> str:
        return f"{record.folder(Path(), number).as_posix()}/"

    def _send(self, storage: Storage, folder: Path, name: str, key: str) -> None:
        marked = mark(folder / name)
        if marked == self._sent.get(key):
            return
        try:
            storage.write(name, folder / name)
            self._sent[key] = marked
        except FileNotFoundError:
            if (folder / name).exists():  # else it was removed meanwhile
                raise

    def _follow(self) -> None:
        while not self._stop.wait(_ROUND_SECONDS):
            self._try()

    def _try(self) -> None:
        try:
            self.push()
            self._silent = False
        except (OSError, errors.UserError) as error:
            if not self._silent:
                self._silent = True
                self.say(f"{self.url}: {error}; {self._waits()}")

    def _waits(self) -> str:
        """Return what becomes of files that storage refuses."""
        later = f"{errors.command('resume', self.url)} on this machine"
        return f"files wait in {self.path} until storage answers, or for {later}"


class NodeUploads(Uploads):
    """Uploads the files of a sweep whose trials run on the nodes of a cluster (`on_nodes`), which upload checkpoints
    and metrics. The URL is the state: what the mirror has beyond it does not count for the next command.

    Args:
        bare: returns the numbers of the ended trials whose weights are not kept.
    """

    def __init__(
        self,
        path: Path,
        begun: Callable[[], Iterable[int]],
        say: Callable[[str], None],
        bare: Callable[[], Iterable[int]],
    ):
        super().__init__(path, begun, say)
        self.where, self.bare = str(self.url), bare
        self.collect: Callable[[int], None] = lambda number: None
        """Takes over what a process on another node has left of a trial; set while Ray runs."""
        self.notes: Callable[[], list[str]] = list
        """Returns what trials have said to the user; set while Ray runs."""
        self._noted = 0

    def __exit__(self, *failed: object) -> None:
        """Take over what is left on the nodes, and upload what is left here."""
        if failed[0] is None:
            for number in filter(self._has_ended, self.begun()):
                self.collect(number)
        super().__exit__(*failed)
        if (self.path / population.FILE).exists() and not all(map(self._has_ended, self.begun())):
            return  # trials have yet to take weights from there
        with contextlib.suppress(OSError, errors.UserError):
            Storage(self.where).remove_folder("pool")

    def publish(self) -> bool:
        """Upload the comparisons, which are to be at the URL before any trial goes on from them; return whether storage
        has taken them."""
        with contextlib.suppress(OSError, errors.UserError):
            Storage(self.where).write(population.FILE, self.path / population.FILE)
            return True
        return False

    def _waits(self) -> str:
        return f"trials wait with their weights until storage answers; {errors.command('resume', self.url)} goes on"

    def assume(self) -> None:
        """As above, after all that a sweep on this machine has left to upload."""
        if _digests(self.path):
            alone = Uploads(self.path, self.begun, self.say)
            alone.assume()
            answered(self.where, alone.push)
            (self.path / _UNSENT).unlink()
        super().assume()

    def _wanted(self, names: Iterable[str]) -> Iterable[str]:
        return ()

    def _note(self, content: bytes) -> None:
        """The mirror does not count."""

    def _push_trial(self, number: int) -> None:
        """Upload what has changed of a trial: its files, except for those that its node uploads, then its record."""
        assert self.storage is not None
        run, below = record.folder(self.path, number), self._below(number)
        there, marked = self.storage.below(below.rstrip("/")), mark(run / record.FILE)
        known, status = (run / record.FILE).read_bytes(), record.read(run).get("status")
        held = (run / HOLDER).exists()
        if self._has_dropped(number):
            there.drop_after(-1)
            self._weights[below] = 0
        known_there = (*FOLLOWING,) if below + _RECIPE in self._sent else (*FOLLOWING[:1], *FOLLOWING[2:])
        own = [name for name in files(run) if name not in known_there]
        changed = [name for name in own if self._sent.get(f"{below}{name}") != mark(run / name)]
        self._over |= {number} if status in record.ENDED and not changed and not held else set()
        if not changed:
            return
        self._weights.setdefault(below, 1)
        for name in changed:
            if name != record.FILE:
                self._send(there, run, name, f"{below}{name}")
        if status in record.ENDED and held:  # its node has not uploaded all of it
            return
        there.write(record.FILE, known)
        self._sent[f"{below}{record.FILE}"] = marked

    def _has_ended(self, number: int) -> bool:
        return record.read(record.folder(self.path, number)).get("status") in record.ENDED

    def _has_dropped(self, number: int) -> bool:
        held = (record.folder(self.path, number) / HOLDER).exists()
        return bool(self._weights.get(self._below(number))) and number in self.bare() and not held

    def _try(self) -> None:
        super()._try()
        for line in self.notes()[self._noted :]:
            self._noted += 1
            self.say(line)


def files(folder: Path) -> list[str]:
    """Return the files that are uploaded, by their path below a folder."""
    found = [one for one in folder.iterdir() if one.is_file()]
    found += [one for tree in _TREES for one in (folder / tree).rglob("*") if one.is_file()]
    names = [one.relative_to(folder).as_posix() for one in found]
    kept = [name for name in names if os.path.basename(name) not in _LOCAL and "/." not in f"/{name}"]
    return sorted(name for name in kept if "__pycache__" not in name)


def mark(file: Path) -> tuple[int, int]:
    """Return what changes with a file that is replaced or appended to."""
    with contextlib.suppress(OSError):
        found: Any = file.stat()
        return found.st_mtime_ns, found.st_size
    return 0, 0
