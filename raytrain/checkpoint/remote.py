"""What the driver and the ranks do with a run at a URL: check, open, publish, follow and end it.

Given a run that is in a directory and has no URL, these functions do nothing (`newest` looks in the directory).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from raytrain import errors
from raytrain.checkpoint import pulse
from raytrain.checkpoint.location import join, mirror, note_url, read_known, replace_file, url_of
from raytrain.checkpoint.storage import ENVIRONMENT, Storage, answered
from raytrain.files import known_json
from raytrain.user_code.sources import COPY, MODULES, ORIGINS, REPLACED, REPLACING

_OWN = (ORIGINS, COPY, REPLACED, ENVIRONMENT, "skipped.json", "experiment.json")
"""The files that the driver writes. The last one makes the folder a run."""


def check(out: str, name: str | None) -> None:
    """Check that runs can be written below a URL: write a small object and remove it again.

    Raises:
        UserError: storage refuses it, or the name is taken.
    """
    storage = Storage(out)

    def probe() -> bool:
        storage.write(".raytrain-probe", b"x")
        storage.remove(".raytrain-probe")
        # A command may have been killed before it wrote one of these.
        begun = ("/experiment.json", "/sweep.json", "/metrics.jsonl", "/manifest.json")
        return name is not None and any(file.endswith(begun) for file in storage.names(name))

    if answered(out, probe):
        raise errors.name_taken(join(out, str(name)))


def runs(out: str) -> list[str]:
    """Return the names of all folders below a URL.

    Raises:
        UserError: storage does not answer.
    """
    found = answered(out, lambda: Storage(out).names("", recursive=False))
    return [path.partition("/")[0] for path in found]


def discard(path: Path) -> bool:
    """Remove the files at the URL of a run in which nothing was trained.

    Returns:
        Whether they are removed, or the run has no URL.
    """
    url = url_of(path)
    if url is None:
        return True
    try:
        storage = Storage(url)
        names = storage.names()
        if any(name == "metrics.jsonl" or name.startswith("checkpoints/") for name in names):
            return False
        for name in sorted(names, key=lambda name: name != "experiment.json"):  # first: it makes the folder a run
            storage.remove(name)
        return True
    except (OSError, errors.UserError):
        return False


def opened(url: str) -> Path:
    """Return the driver's mirror of a run at a URL, synchronised with the URL.

    Raises:
        UserError: storage does not answer.
    """
    path = mirror(url)
    answered(url, lambda: Storage(url).pull(path))
    note_url(path, url)
    return path


def publish(path: Path) -> None:
    """Upload the driver's files before a run starts or resumes, and remove what the last attempt left."""
    url = url_of(path)
    if url is None:
        return
    pulse.pulse(url).limit = pulse.ANSWER_SECONDS  # `hasten` may have shortened it in an earlier attempt

    def upload() -> None:
        storage = Storage(url)
        marks = (n for n in storage.names("logs") if n.startswith(("logs/rank_", "logs/place_")))
        for name in ("stop", "summary.json", *marks):
            storage.remove(name)
        modules = [file.relative_to(path).as_posix() for file in sorted((path / MODULES).rglob("*.py"))]
        replacing = (path / REPLACING).is_file()
        if replacing:
            storage.write(REPLACING, path / REPLACING)  # first: it marks the other files as incomplete
        for name in (*modules, *_OWN):
            if (path / name).is_file():
                storage.write(name, path / name)
        if replacing:
            for name in storage.names(MODULES).keys() - {*modules}:
                storage.remove(name)
            storage.remove(REPLACING)

    answered(url, upload)


def refresh(path: Path) -> None:
    """Synchronise the driver's mirror with the URL."""
    url = url_of(path)
    if url is not None:
        with contextlib.suppress(OSError, errors.UserError):
            Storage(url).pull(path)


@contextlib.contextmanager
def followed(path: Path, say: Callable[[str], None] = lambda _: None) -> Iterator[None]:
    """Download new rows and upload a request to stop in a side thread; at the end, download all small files.

    Args:
        say: called with a line when storage stops answering, and when it answers again.
    """
    url = url_of(path)
    if url is None:
        yield
        return
    storage, done, asked, silent = Storage(url), threading.Event(), False, False

    def follow() -> None:
        nonlocal asked, silent
        while not done.wait(pulse.POLL_SECONDS):
            try:
                wanted = (path / "stop").exists()
                if wanted and not asked:
                    storage.write("stop", b"x")
                asked = wanted
                storage.rows(path)
                if silent:
                    say(f"{url} answers again")
                silent = False
            except OSError:
                if storage.pulse.silence >= pulse.ANSWER_SECONDS and not silent:
                    silent = True
                    say(f"{url}: {storage.pulse.error()}; training goes on, and its checkpoints wait with rank 0")

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


def hasten(path: Path) -> None:
    """Ask a rank 0 on this machine to stop without going through storage, and shorten the timeout of requests."""
    url = url_of(path)
    if url is not None:
        pulse.pulse(url).limit = pulse.HURRY_SECONDS
        with contextlib.suppress(OSError):
            (mirror(url, "workers") / "stop").touch()


def silence(path: Path) -> float:
    """Return for how many seconds a run's storage has not answered; 0 for a run in a directory."""
    url = url_of(path)
    return pulse.pulse(url).silence if url else 0.0


def left_behind(path: Path) -> str:
    """Return a message about a checkpoint of a stopped run that could not be uploaded; empty where none is known to be
    missing."""
    url = url_of(path)
    if url is None:
        return ""
    kept = mirror(url, "workers")
    here, there = (str(known_json(folder / "last.json").get("checkpoint", "")) for folder in (kept, path))
    if read_known(kept / ENVIRONMENT) != read_known(path / ENVIRONMENT) or here <= there:
        silent = pulse.pulse(url)
        return f"{url}: {silent.error()}; the last checkpoint may be missing" if silent.silence else ""
    return (
        f"{here} could not be uploaded to {url} and is kept in {kept}; once storage answers, "
        f"{errors.command('resume', url)} on this machine goes on from it"
    )


def newest(path: Path) -> str:
    """Return the name of a run's newest committed checkpoint, in its directory or at its URL; empty without one."""
    url = url_of(path)
    if url is None:
        manifests = (path / "checkpoints").glob("step_*/manifest.json")
        return max((manifest.parent.name for manifest in manifests), default="")
    try:
        return max(Storage(url).committed(), default="")
    except (OSError, errors.UserError):
        return ""


def conclude(path: Path, name: str = "summary.json") -> None:
    """Upload a file that the driver writes at the end: the summary of a run whose workers wrote none, or a report."""
    url = url_of(path)
    if url is not None:
        with contextlib.suppress(OSError, errors.UserError):
            Storage(url).write(name, path / name)


def at_work(url: str) -> tuple[Storage, Path]:
    """Return a rank's storage of a run at a URL, and the local directory in which the rank works."""
    storage, path = Storage(url), mirror(url, "workers")
    (path / "logs").mkdir(parents=True, exist_ok=True)
    (path / "stop").unlink(missing_ok=True)
    replace_file(path / "experiment.json", storage.read("experiment.json"))
    return storage, path
