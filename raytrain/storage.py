"""A run at a URL that `pyarrow.fs` opens, such as s3://bucket/runs/first.

All code works on a directory on this machine, the run's mirror; this brings files up and down. The driver has a mirror
of its own with the small files, and rank 0, which may be on another machine, one with the checkpoints that it writes.
What is at the URL counts: a mirror is made to follow it before anything is read.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raytrain import errors
from raytrain.sources import COPY, MODULES, ORIGINS, REPLACED, REPLACING
from raytrain.watchdog import doing

if TYPE_CHECKING:
    import torch

    from raytrain.checkpoint import Loaded

POLL_SECONDS = 2.0
"""How often the driver looks for rows, and rank 0 for a request to stop and for rows to bring up."""

_ANSWER_SECONDS = 12.0
_URL = "url"
_OWN = (ORIGINS, COPY, REPLACED, "environment.json", "skipped.json", "experiment.json")
"""What the driver writes; the last makes it a run."""
_FOLLOWING = ("metrics.jsonl", "experiment.json", "best.json", "last.json")
"""What rank 0 writes, in the order in which it is brought up; the metrics come before a checkpoint's manifest."""


def is_url(place: Path | str) -> bool:
    """Whether a place is at a URL and not in a directory."""
    return "://" in str(place)


def join(out: str, name: str) -> str:
    """The place below another; a URL's options stay behind it."""
    if not is_url(out):
        return str(Path(out) / name)
    path, mark, options = out.partition("?")
    return f"{path.rstrip('/')}/{name}{mark}{options}"


def mirror(url: str, kind: str = "runs") -> Path:
    """The directory on this machine that stands for a run at a URL.

    Args:
        kind: `runs` for the driver's, `workers` for that of the ranks here.
    """
    from raytrain.data.cache import default_folder

    path = url.partition("?")[0].rstrip("/")
    return default_folder() / kind / hashlib.sha256(url.encode()).hexdigest()[:16] / path.rpartition("/")[2]


def url_of(path: Path) -> str | None:
    """The URL that a directory is the driver's mirror of; None for a run's own directory."""
    try:
        return (path / _URL).read_text()
    except (OSError, ValueError):
        return None


class Storage:
    """The files of a run at a URL, or of a folder of runs. An object appears whole or not at all.

    Raises:
        UserError: pyarrow knows no such place, or nothing answers in time.
    """

    def __init__(self, url: str):
        self.url = url
        self._files, self._root = _in_time(url, lambda: _open(url))
        self._made: set[str] = set()
        self._metrics = threading.Lock()

    def names(self, folder: str = "", recursive: bool = True) -> dict[str, int | None]:
        """The files below, with their bytes, by their path from the root; folders too, with None, where not recursive.

        Raises:
            OSError: storage refused it, as all that follow.
        """
        from pyarrow import fs

        where = f"{self._root}/{folder}".rstrip("/")
        found = self._files.get_file_info(fs.FileSelector(where, allow_not_found=True, recursive=recursive))
        start = len(self._root) + 1
        files = {info.path[start:]: info.size for info in found if info.type == fs.FileType.File}
        if recursive:
            return files
        return files | {info.path[start:]: None for info in found if info.type == fs.FileType.Directory}

    def read(self, name: str, offset: int = 0) -> bytes:
        """A file's bytes from an offset on."""
        with self._files.open_input_file(f"{self._root}/{name}") as file:
            file.seek(min(offset, file.size()))
            return file.read()

    def write(self, name: str, content: Path | bytes) -> None:
        """Writes a file, or copies one of this machine."""
        path = f"{self._root}/{name}"
        folder = path.rpartition("/")[0]
        if self._files.type_name not in ("s3", "gcs") and folder not in self._made:  # these have no folders
            self._files.create_dir(folder, recursive=True)
            self._made.add(folder)
        with contextlib.ExitStack() as stack:
            source = stack.enter_context(open(content, "rb")) if isinstance(content, Path) else None
            first = source.read(_CHUNK) if source else content  # before anything is there that is not whole
            target = stack.enter_context(self._files.open_output_stream(path))
            target.write(first)
            while source and (more := source.read(_CHUNK)):
                doing.tick()
                target.write(more)

    def remove(self, name: str) -> None:
        """Removes a file, where there is one."""
        with contextlib.suppress(FileNotFoundError):
            self._files.delete_file(f"{self._root}/{name}")

    # Down

    def pull(self, target: Path) -> None:
        """Makes the small files of a mirror those that are at the URL."""
        top = self.names("", recursive=False)
        folders = [*self.names("logs"), *self.names(MODULES)]
        there = [*(name for name, size in top.items() if size is not None), *folders]
        target.mkdir(parents=True, exist_ok=True)
        for name in there:
            if _plain(name) and name != "stop":
                with contextlib.suppress(FileNotFoundError):
                    _replace(target / name, self.read(name))
        for file in (*target.iterdir(), *(target / MODULES).rglob("*.py")):
            if file.is_file() and file.relative_to(target).as_posix() not in (*there, *_KEPT):
                file.unlink()

    def rows(self, target: Path) -> None:
        """Brings the rows down that a mirror's metrics.jsonl lacks, what storage refused, and the ranks' notes."""
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
        """The checkpoints whose manifest is there, the oldest first, and their bytes."""
        from raytrain.checkpoint import MANIFEST, step_of

        sizes: dict[str, int] = {}
        whole = []
        for path, size in self.names("checkpoints").items():
            _, name, file = (*path.split("/"), "", "")[:3]
            if step_of(name) is not None:
                sizes[name] = sizes.get(name, 0) + (size or 0)
                whole += [name] if file == MANIFEST else []
        return {name: sizes[name] for name in sorted(whole, key=lambda name: step_of(name) or 0)}

    def fetch(self, name: str, folder: Path) -> Path:
        """Brings a checkpoint down; one that is here, is the same and verifies stays. One rank of a machine does it.

        Raises:
            UserError: it does not verify.
        """
        from raytrain import checkpoint

        folder.mkdir(parents=True, exist_ok=True)
        path = folder / name
        with open(folder / ".fetching", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            there = self.names(f"checkpoints/{name}")
            if (there.get(f"checkpoints/{name}/{checkpoint.MANIFEST}") or 0) > 1 << 16:
                raise errors.broken_checkpoint(Path(name), "its manifest is damaged")
            manifest = self.read(f"checkpoints/{name}/{checkpoint.MANIFEST}")
            with contextlib.suppress(OSError, errors.UserError):
                if (path / checkpoint.MANIFEST).read_bytes() == manifest:
                    checkpoint.verify(path)
                    return path
            shutil.rmtree(path, ignore_errors=True)
            path.mkdir()
            for part in checkpoint.PARTS:
                with contextlib.suppress(FileNotFoundError):  # which `verify` says
                    self._fetch(f"checkpoints/{name}/{part}", path / part)
            _replace(path / checkpoint.MANIFEST, manifest)
            checkpoint.verify(path)
            return path

    def verified(self, folder: Path) -> Iterator[Path]:
        """The checkpoints at the URL that verify once they are here, the newest first."""
        for name in reversed(self.committed()):
            with contextlib.suppress(errors.UserError):
                yield self.fetch(name, folder)

    def loadable(self, run: Path, device: torch.device) -> Iterator[Loaded]:
        """Those that can be read as well. What else the mirror has is forgotten: storage counts."""
        from raytrain import checkpoint

        run.mkdir(parents=True, exist_ok=True)
        folder, there = run / "checkpoints", self.committed()
        for name in checkpoint.committed(folder):
            same = name in there and self.read(f"checkpoints/{name}/{checkpoint.MANIFEST}")
            if same != (folder / name / checkpoint.MANIFEST).read_bytes():
                shutil.rmtree(folder / name)
        (run / "metrics.jsonl").unlink(missing_ok=True)
        with contextlib.suppress(FileNotFoundError):
            self._fetch("metrics.jsonl", run / "metrics.jsonl")
        for path in self.verified(folder):
            with contextlib.suppress(errors.UserError):
                yield checkpoint.load(path, device)

    # Up

    def push(self, run: Path, superfluous: Callable[[Mapping[str, int]], list[str]]) -> None:
        """Brings up the checkpoints that are not there yet, each with its manifest last, then what points to them; then
        removes those that need not stay, and what never became one.

        Args:
            superfluous: which of some checkpoints, by name and bytes, need not stay.
        """
        from raytrain import checkpoint

        there, folder = self.names("checkpoints"), run / "checkpoints"
        for name in checkpoint.committed(folder):
            manifest = f"checkpoints/{name}/{checkpoint.MANIFEST}"
            if there.get(manifest) != (folder / name / checkpoint.MANIFEST).stat().st_size:  # or half of it is
                for part in checkpoint.PARTS:
                    self.write(f"checkpoints/{name}/{part}", folder / name / part)
                self.push_metrics(run)
                self.write(manifest, folder / name / checkpoint.MANIFEST)
        self.push_metrics(run)
        for name in _FOLLOWING[1:]:
            if (run / name).is_file():
                self.write(name, run / name)
            else:
                self.remove(name)
        there = self.committed()
        gone, steps = superfluous(there), {name: checkpoint.step_of(name) or 0 for name in there}
        last = max(steps.values(), default=-1)
        self._remove_checkpoints(lambda name, step: name in gone or (name not in there and step < last))

    def push_metrics(self, run: Path) -> None:
        """Brings the metrics up; never older ones after newer ones."""
        with self._metrics:
            if (run / "metrics.jsonl").is_file():
                self.write("metrics.jsonl", run / "metrics.jsonl")

    def drop_after(self, step: int) -> None:
        """Removes what lies beyond a step, as `checkpoint.drop_after`."""
        self._remove_checkpoints(lambda _, found: found > step)

    def _remove_checkpoints(self, goes: Callable[[str, int], bool]) -> None:
        """Removes checkpoints by their names and steps; the manifest goes first."""
        from raytrain.checkpoint import MANIFEST, step_of

        found = [path for path in self.names("checkpoints") if len(path.split("/")) == 3]
        for path in sorted(found, key=lambda path: (not path.endswith(f"/{MANIFEST}"), path)):
            name = path.split("/")[1]
            step = step_of(name)
            if step is not None and goes(name, step):
                self.remove(path)

    def _fetch(self, name: str, file: Path) -> None:
        with self._files.open_input_stream(f"{self._root}/{name}") as source, open(file, "wb") as target:
            while chunk := source.read(_CHUNK):
                doing.tick()
                target.write(chunk)


_CHUNK = 8 << 20
_KEPT = (_URL, "lock", "stop")
"""What a mirror has besides."""


def check(out: str, name: str | None) -> None:
    """Checks that runs can be written below a URL, with a small object that is removed again.

    Raises:
        UserError: they cannot, or the name is taken.
    """
    storage = Storage(out)

    def probe() -> bool:
        storage.write(".raytrain-probe", b"x")
        storage.remove(".raytrain-probe")
        begun = ("/experiment.json", "/metrics.jsonl", "/manifest.json")  # a command may have been killed before
        return name is not None and any(file.endswith(begun) for file in storage.names(name))

    if _in_time(out, probe):
        raise errors.name_taken(join(out, str(name)))


def runs(out: str) -> list[str]:
    """Return the names of all folders below a URL.

    Raises:
        UserError: nothing answers there.
    """
    found = _in_time(out, lambda: Storage(out).names("", recursive=False))
    return [path.partition("/")[0] for path in found]


def discard(path: Path) -> bool:
    """Remove what is at the URL of a run in which nothing was trained; return whether that has gone, or whether the run
    has no URL."""
    url = url_of(path)
    if url is None:
        return True
    try:
        storage = Storage(url)
        names = storage.names()
        if any(name == "metrics.jsonl" or name.startswith("checkpoints/") for name in names):
            return False
        for name in sorted(names, key=lambda name: name != "experiment.json"):  # without that it is no run any more
            storage.remove(name)
        return True
    except (OSError, errors.UserError):
        return False


def opened(url: str) -> Path:
    """The driver's mirror of a run at a URL, made to follow it.

    Raises:
        UserError: nothing answers there.
    """
    path = mirror(url)
    _in_time(url, lambda: Storage(url).pull(path))
    note_url(path, url)
    return path


def publish(path: Path) -> None:
    """Brings up what the driver writes before a run goes on, and removes what the last attempt left; nothing for a run
    in a directory."""
    url = url_of(path)
    if url is None:
        return

    def bring() -> None:
        storage = Storage(url)
        marks = (n for n in storage.names("logs") if n.startswith(("logs/rank_", "logs/place_")))
        for name in ("stop", "summary.json", *marks):
            storage.remove(name)
        modules = [file.relative_to(path).as_posix() for file in sorted((path / MODULES).rglob("*.py"))]
        replacing = (path / REPLACING).is_file()
        if replacing:
            storage.write(REPLACING, path / REPLACING)  # first: the other files are the new code only all together
        for name in (*modules, *_OWN):
            if (path / name).is_file():
                storage.write(name, path / name)
        if replacing:
            for name in storage.names(MODULES).keys() - {*modules}:
                storage.remove(name)
            storage.remove(REPLACING)

    _in_time(url, bring)


def refresh(path: Path) -> None:
    """Makes the driver's mirror follow the URL; nothing for a run in a directory."""
    url = url_of(path)
    if url is not None:
        with contextlib.suppress(OSError, errors.UserError):
            Storage(url).pull(path)


@contextlib.contextmanager
def followed(path: Path) -> Iterator[None]:
    """Brings rows down and a request to stop up, in a side thread; all small files at the end. Nothing for a run in a
    directory."""
    url = url_of(path)
    if url is None:
        yield
        return
    storage, done, asked = Storage(url), threading.Event(), False

    def follow() -> None:
        nonlocal asked
        while not done.wait(POLL_SECONDS):
            with contextlib.suppress(OSError):
                wanted = (path / "stop").exists()
                if wanted and not asked:
                    storage.write("stop", b"x")
                asked = wanted
                storage.rows(path)

    thread = threading.Thread(target=follow, daemon=True, name="storage")
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        with contextlib.suppress(OSError):
            storage.remove("stop")
            storage.pull(path)


def newest(path: Path) -> str:
    """The name of a run's newest committed checkpoint, wherever it is; empty where there is none."""
    url = url_of(path)
    if url is None:
        manifests = (path / "checkpoints").glob("step_*/manifest.json")
        return max((manifest.parent.name for manifest in manifests), default="")
    try:
        return max(Storage(url).committed(), default="")
    except OSError:
        return ""


def conclude(path: Path) -> None:
    """Brings up the driver's own summary of a run whose workers wrote none; nothing for a run in a directory."""
    url = url_of(path)
    if url is not None:
        with contextlib.suppress(OSError, errors.UserError):
            Storage(url).write("summary.json", path / "summary.json")


def at_work(url: str) -> tuple[Storage, Path]:
    """The storage of a run at a URL for a rank, and the directory on its machine in which it works."""
    storage, path = Storage(url), mirror(url, "workers")
    (path / "logs").mkdir(parents=True, exist_ok=True)
    (path / "stop").unlink(missing_ok=True)
    _replace(path / "experiment.json", storage.read("experiment.json"))
    return storage, path


def _open(url: str) -> tuple[Any, str]:
    from pyarrow import fs

    return fs.FileSystem.from_uri(url)


def _in_time(url: str, ask: Callable[[], Any]) -> Any:
    """What storage answers.

    Raises:
        UserError: it refuses, or says nothing for long.
    """
    answers: list[Any] = []

    def wait() -> None:
        try:
            answers.append((ask(), None))
        except Exception as error:
            answers.append((None, error))

    thread = threading.Thread(target=wait, daemon=True, name="storage")
    thread.start()
    thread.join(_ANSWER_SECONDS)
    answer, error = answers[0] if answers else (None, TimeoutError(f"no answer in {_ANSWER_SECONDS:g} s"))
    if isinstance(error, errors.UserError):
        raise error
    if error is not None:
        raise errors.no_storage(url, str(error).strip() or type(error).__name__) from None
    return answer


def note_url(path: Path, url: str) -> None:
    """Notes what a directory is the mirror of, for its owner alone: there may be keys in it."""
    (path / _URL).touch(0o600)
    (path / _URL).write_text(url)


def _replace(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    partial.write_bytes(content)
    os.replace(partial, path)


def _plain(name: str) -> bool:
    """Whether a name leads to a file of the mirror, of its logs or of its modules."""
    parts = name.split("/")
    module = parts[0] == MODULES and name.endswith(".py") and not any(part.startswith(".") for part in parts)
    return ".." not in parts and (len(parts) == 1 or (parts[0] == "logs" and len(parts) == 2) or module)
