"""storage: a run at a URL, its mirrors, and what counts where they differ."""

from __future__ import annotations

import hashlib
import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.commands import make_run
from pyarrow import fs

from raytrain import CNN, Digits, Experiment, Run, UserError, cli
from raytrain.checkpoint import checkpoints, layout, location, pulse, remote, retention, storage
from raytrain.checkpoint.storage import Storage
from raytrain.run.begin import begin, check_writable
from raytrain.watchdog import doing

_NUMBER = count()


@pytest.fixture(params=["s3", "file"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A place of its own, in a bucket and in a folder."""
    if request.param == "file":
        return f"file://{tmp_path}/there"
    return f"{request.getfixturevalue('s3')}/at-{next(_NUMBER)}"


@pytest.fixture
def there(url: str) -> Storage:
    return Storage(url)


def save(run: Path, step: int) -> Path:
    with_state = {"step": step}
    return checkpoints.save(run / "checkpoints", step, {"w": torch.full((3,), float(step))}, {}, with_state)


def last(keep: int):
    return lambda sizes: retention.expired(sizes, keep, {})


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A directory with two checkpoints, 1 and 2."""
    path = tmp_path / "run"
    path.mkdir()
    for step in (1, 2):
        save(path, step)
    (path / "metrics.jsonl").write_text('{"kind": "step"}\n')
    (path / "best.json").write_text("{}")
    return path


def test_each_transferred_chunk_is_progress(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "_CHUNK", 16)
    there = Storage(f"file://{tmp_path}/there")
    chunks = (run / "checkpoints" / "step_00000002" / "optimizer.pt").stat().st_size // 16
    before = doing.ticks
    there.push(run, last(1))
    assert doing.ticks - before >= chunks - 1
    before = doing.ticks
    there.fetch("step_00000002", tmp_path / "new" / "checkpoints")
    assert doing.ticks - before >= chunks


def test_files_go_up_and_come_down(there: Storage, tmp_path: Path) -> None:
    large = tmp_path / "large"
    large.write_bytes(bytes(range(256)) * 80_000)
    there.write("a/b/large", large)
    there.write("small", b"0123456789")
    assert there.names() == {"a/b/large": 20_480_000, "small": 10}
    assert there.names("", recursive=False) == {"a": None, "small": 10} and there.names("nothing") == {}
    assert there.read("a/b/large") == large.read_bytes()
    assert [there.read("small", at) for at in (0, 4, 10, 99)] == [b"0123456789", b"456789", b"", b""]
    there.remove("small")
    there.remove("small")
    assert list(there.names()) == ["a/b/large"]
    with pytest.raises(FileNotFoundError):
        there.read("small")


def test_checkpoints_are_brought_up_and_come_back_bit_for_bit(there: Storage, run: Path, tmp_path: Path) -> None:
    there.push(run, last(2))
    assert list(there.committed()) == ["step_00000001", "step_00000002"]
    assert there.committed()["step_00000002"] == sum(
        file.stat().st_size for file in (run / "checkpoints" / "step_00000002").iterdir()
    )
    mirror = tmp_path / "elsewhere"
    loaded = [found.state["step"] for found in checkpoints.loadable_at(there, mirror, torch.device("cpu"))]
    assert loaded == [2, 1] and (mirror / "metrics.jsonl").read_bytes() == (run / "metrics.jsonl").read_bytes()
    for name in there.committed():
        for file in (run / "checkpoints" / name).iterdir():
            assert (mirror / "checkpoints" / name / file.name).read_bytes() == file.read_bytes()
    (run / "best.json").unlink()
    shutil.rmtree(run / "checkpoints" / "step_00000001")
    save(run, 3)
    there.write("checkpoints/step_00000002/left_over", b"")
    there.write("checkpoints/step_00000000/model.safetensors", b"x")  # of an upload that was cut off
    there.write("checkpoints/step_00000009/model.safetensors", b"x")
    there.push(run, last(1))
    assert {path.split("/")[1] for path in there.names("checkpoints")} == {"step_00000003", "step_00000009"}
    assert "best.json" not in there.names()
    there.drop_after(3)
    assert {path.split("/")[1] for path in there.names("checkpoints")} == {"step_00000003"}


def test_removed_checkpoints_leave_no_empty_folders(there: Storage, run: Path) -> None:
    """On S3 a folder is an empty object, which pyarrow makes where it removes the last object below it."""
    for step in (3, 4):
        there.push(run, last(1))
        save(run, step)
    there.push(run, last(2))
    assert list(there.names("checkpoints", recursive=False)) == [f"checkpoints/step_0000000{n}" for n in (3, 4)]
    there.drop_after(3)
    assert list(there.names("checkpoints", recursive=False)) == ["checkpoints/step_00000003"]


def test_a_stale_mirror_is_not_trusted(there: Storage, run: Path, tmp_path: Path) -> None:
    there.push(run, last(2))
    mirror = Path(shutil.copytree(run, tmp_path / "mirror"))
    save(mirror, 3)  # never brought up
    (mirror / "metrics.jsonl").write_text("old\n" * 9)
    newer = mirror / "checkpoints" / "step_00000002"
    checkpoints.save(mirror / "checkpoints", 2, {"w": torch.zeros(1)}, {}, {"of": "another run of that name"})
    damaged = mirror / "checkpoints" / "step_00000001" / "state.json"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b" ")
    found = list(checkpoints.loadable_at(there, mirror, torch.device("cpu")))
    assert [one.state for one in found] == [{"step": 2}, {"step": 1}] and found[0].path == newer
    assert layout.committed(mirror / "checkpoints") == ["step_00000001", "step_00000002"]
    assert (mirror / "metrics.jsonl").read_bytes() == (run / "metrics.jsonl").read_bytes()


def test_what_is_damaged_up_there_is_passed_over(there: Storage, run: Path, tmp_path: Path) -> None:
    save(run, 3)
    save(run, 4)
    there.push(run, last(4))
    there.write("checkpoints/step_00000004/manifest.json", b"[" * 70_000)
    there.write("checkpoints/step_00000003/model.safetensors", b"x")
    there.remove("checkpoints/step_00000002/optimizer.pt")
    assert [path.name for path in there.verified(tmp_path / "here")] == ["step_00000001"]


def test_a_mirror_follows_and_no_name_leads_out_of_it(there: Storage, tmp_path: Path) -> None:
    mirror = tmp_path / "deep" / "mirror"
    there.write("experiment.json", b"{}")
    there.write("logs/rank_0.json", b"[]")
    there.write("stop", b"x")
    there.write("logs/deep/er", b"x")
    there.pull(mirror)
    (mirror / "summary.json").write_text("of an earlier end")
    (mirror / "lock").touch()
    there.pull(mirror)
    left = sorted(str(path.relative_to(mirror)) for path in mirror.rglob("*") if path.is_file())
    assert left == ["experiment.json", "lock", "logs/rank_0.json"]
    assert [storage._plain(name) for name in ("a", "logs/a", "../a", "logs/..", "logs/../a", "x/y", "logs/a/b")] == [
        *(True, True, False, False, False, False, False)
    ]


def test_rows_come_down_as_they_are_written(there: Storage, tmp_path: Path) -> None:
    for text in (b"1\n", b"1\n22\n", b"1\n22\n", b"1\n22\n333\n"):
        there.write("metrics.jsonl", text)
        there.rows(tmp_path)
        assert (tmp_path / "metrics.jsonl").read_bytes() == text


# Storage that hangs


class Hangs:
    """A file system whose calls wait while it is shut; those on the paths that end with `only`."""

    def __init__(self, files: Any, only: str = ""):
        self.files, self.only, self.calls = files, only, 0
        self.open = threading.Event()
        self.open.set()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.files, name)

        def call(*arguments: Any, **named: Any) -> Any:
            self.calls += 1
            if str(arguments[0]).endswith(self.only):
                self.open.wait()
            return found(*arguments, **named)

        return call if callable(found) else found


@pytest.fixture
def hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hangs]:
    """What `slow_url` is opened as; requests are given up after 0.3 s."""
    monkeypatch.setattr(pulse, "ANSWER_SECONDS", 0.3)
    monkeypatch.setattr(pulse, "_PULSES", {})
    hangs = Hangs(fs.LocalFileSystem())
    monkeypatch.setattr(storage, "_open", lambda url: (hangs, url.removeprefix("file://")))
    yield hangs
    hangs.open.set()


@pytest.fixture
def slow_url(tmp_path: Path) -> str:
    return f"file://{tmp_path}/slow"


def test_hanging_request_is_given_up_without_a_queue(hangs: Hangs, slow_url: str) -> None:
    there = Storage(slow_url)
    there.write("a", b"1")
    assert there.pulse.silence == 0
    hangs.open.clear()
    before, threads = hangs.calls, threading.active_count()
    for _ in range(50):
        with pytest.raises(TimeoutError, match=r"no answer for \d+ s"):
            there.read("a")
    assert hangs.calls == before + 1 and threading.active_count() <= threads + 1
    assert there.pulse.silence >= 0.3 and Storage(slow_url + "/other").pulse.silence == 0
    hangs.open.set()
    wait_until(lambda: there.pulse.silence == 0)
    assert there.read("a") == b"1"


def test_a_write_that_was_given_up_does_not_undo_a_later_one(
    hangs: Hangs, slow_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulse, "AGAIN_SECONDS", 0.0)
    there = Storage(slow_url)
    hangs.only = "metrics.jsonl"
    hangs.open.clear()
    with pytest.raises(TimeoutError):
        there.write("metrics.jsonl", b"old")
    there.write("best.json", b"{}")  # storage answers, but for that object
    with pytest.raises(TimeoutError, match=r"metrics.jsonl is still being written"):
        there.write("metrics.jsonl", b"new")
    hangs.open.set()
    there.write("metrics.jsonl", b"new")
    time.sleep(0.2)
    assert there.read("metrics.jsonl") == b"new"


def test_a_removal_that_was_given_up_does_not_take_what_is_written_later(
    hangs: Hangs, slow_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulse, "AGAIN_SECONDS", 0.0)
    there = Storage(slow_url)
    there.write("checkpoints/a/file", b"1")
    hangs.open.clear()
    with pytest.raises(TimeoutError):
        there.remove_folder("checkpoints/a")
    with pytest.raises(TimeoutError, match="checkpoints/a/file is still being written"):
        there.write("checkpoints/a/file", b"2")
    hangs.open.set()
    wait_until(lambda: there.pulse.silence == 0)
    there.write("checkpoints/a/file", b"2")
    assert there.names("checkpoints") == {"checkpoints/a/file": 1}


def test_a_request_may_take_long_while_something_comes(
    hangs: Hangs, slow_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = Storage(slow_url)
    there.write("a", bytes(range(16)))

    class Slow:
        def __init__(self, file: Any):
            self.file = file

        def __enter__(self) -> Slow:
            return self

        def __exit__(self, *_: object) -> None:
            self.file.close()

        def read(self, size: int) -> bytes:
            time.sleep(0.1)
            return self.file.read(size)

    monkeypatch.setattr(storage, "_CHUNK", 1)
    monkeypatch.setattr(Hangs, "open_input_stream", lambda self, path: Slow(self.files.open_input_stream(path)), False)
    there._fetch("a", tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == bytes(range(16)) and [*tmp_path.glob(".*")] == []


def test_refusal_has_its_reason_and_a_missing_file_is_none(hangs: Hangs, slow_url: str) -> None:
    there = Storage(slow_url)
    there.write("a", b"1")
    (Path(slow_url.removeprefix("file://")) / "a").chmod(0)
    hangs.only = "nothing else"
    hangs.open_input_file = lambda path: raises(PermissionError("AWS Error ACCESS_DENIED"))  # type: ignore[attr-defined]
    for _ in range(2):  # each is asked for: the first one has ended
        with pytest.raises(PermissionError):
            there.read("a")
        time.sleep(0.2)
    assert (
        there.pulse.silence > 0.3
        and str(there.pulse.error()) == "no request has succeeded for 0 s (AWS Error ACCESS_DENIED)"
    )
    hangs.open_input_file = lambda path: raises(FileNotFoundError(path))  # type: ignore[attr-defined]
    with pytest.raises(FileNotFoundError):
        there.read("b")
    assert there.pulse.silence == 0


def raises(error: Exception) -> None:
    raise error


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_driver_notes_silent_storage_and_a_stop_shortens_it(
    hangs: Hangs, slow_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulse, "POLL_SECONDS", 0.02)
    Storage(slow_url).write("experiment.json", b"{}")
    path, kept, said = remote.opened(slow_url), location.mirror(slow_url, "workers"), []
    kept.mkdir(parents=True)
    with remote.followed(path, said.append):
        hangs.open.clear()
        wait_until(lambda: len(said) == 1)
        assert remote.silence(path) > 0.2
        hangs.open.set()
        wait_until(lambda: len(said) == 2)
        hangs.open.clear()
        remote.hasten(path)
        assert (kept / "stop").exists()
        wait_until(lambda: remote.silence(path) > 0)
        pulse.pulse(slow_url).limit = 0.1
    assert said[0].startswith(f"{slow_url}: no answer for ") and "training goes on" in said[0]
    assert said[1] == f"{slow_url} answers again"
    hangs.open.set()
    remote.publish(path)
    assert pulse.pulse(slow_url).limit == pulse.ANSWER_SECONDS
    remote.hasten(path.parent)
    assert remote.silence(path.parent) == 0, "a run in a directory has no storage"


def test_storage_that_never_answers_is_one_line(hangs: Hangs, slow_url: str) -> None:
    Storage(slow_url).write("experiment.json", b"{}")
    run = Run(slow_url)
    hangs.open.clear()
    silent = rf"storage does not answer: no answer for 0 s, {slow_url}; check the address"
    for ask in (lambda: remote.opened(slow_url), lambda: remote.publish(run.path), run.model):
        with pytest.raises(UserError, match=silent):
            ask()
    assert remote.newest(run.path) == ""


@pytest.mark.parametrize("differs", ["", "environment.json", "metrics.jsonl"])
def test_mirror_that_continues_the_run_counts(there: Storage, run: Path, tmp_path: Path, differs: str) -> None:
    rows = (run / "metrics.jsonl").read_bytes()
    vouches = {"metrics_bytes": len(rows), "metrics_sha256": hashlib.sha256(rows).hexdigest()}
    checkpoints.save(run / "checkpoints", 2, {"w": torch.zeros(1)}, {}, vouches)
    (run / "environment.json").write_text('{"began": "now"}')
    there.push(run, last(2))
    there.write("environment.json", run / "environment.json")
    save(run, 3)
    save(run, 4)
    shutil.rmtree(run / "checkpoints" / "step_00000002")  # of those that stay, none may be at the URL
    shutil.rmtree(run / "checkpoints" / "step_00000001")
    with open(run / "metrics.jsonl", "ab") as log:
        log.write(rows)
    if differs:
        (run / differs).write_bytes(b"{" + (run / differs).read_bytes()[1:] + b" ")
        (run / differs).write_bytes((run / differs).read_bytes().replace(b"e", b"E"))
    found = [loaded.path.name for loaded in checkpoints.loadable_at(there, run, torch.device("cpu"))]
    newer = [] if differs else ["step_00000004", "step_00000003"]
    assert found == [*newer, "step_00000002", "step_00000001"]
    assert (run / "metrics.jsonl").read_bytes() == rows, "what follows these is not used"


def test_failed_upload_names_the_command_for_it(there: Storage, run: Path) -> None:
    Storage(there.url).write("experiment.json", b"{}")
    there.write("environment.json", b"{}")
    there.write("last.json", b'{"checkpoint": "step_00000001"}')
    path, kept = remote.opened(there.url), location.mirror(there.url, "workers")
    assert remote.left_behind(path) == ""
    kept.mkdir(parents=True)
    (kept / "environment.json").write_text("{}")
    (kept / "last.json").write_text('{"checkpoint": "step_00000002"}')
    said = remote.left_behind(path)
    assert f"step_00000002 could not be uploaded to {there.url} and is kept in {kept}" in said
    assert f"`raytrain resume {there.url}` on this machine" in said
    (kept / "environment.json").write_text('{"of": "another run"}')
    assert remote.left_behind(path) == ""
    shutil.rmtree(kept)
    there.pulse.wait()
    assert "the last checkpoint may be missing" in remote.left_behind(path)
    there.pulse.live()


# Runs


@pytest.fixture
def finished(url: str, tmp_path: Path) -> str:
    """The URL of a completed run."""
    place = location.join(url, "digits")
    run = make_run(tmp_path / "made", Experiment(model=CNN(channels=(2,)), data=Digits(), epochs=2), steps=2)
    for file in run.path.rglob("*"):
        if file.is_file():
            Storage(place).write(str(file.relative_to(run.path)), file)
    shutil.rmtree(location.mirror(place), ignore_errors=True)
    return place


def test_a_run_at_a_url_is_a_run(finished: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    run = Run(finished)
    assert run.where == finished and run.summary["status"] == "completed" and repr(run) == f"Run({finished!r})"
    assert not run.checkpoints.exists(), "only what is asked for comes down"
    assert run.checkpoint("best").name == "step_00000002" and run.checkpoint("last").name == "step_00000001"
    assert run.model().state_dict().keys() == checkpoints.load_model(run.checkpoint()).keys()
    assert Run(run.path).where == finished, "the directory that follows it stands for it"
    assert cli.run(["evaluate", finished, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["checkpoint"] == "step_00000002"
    assert cli.run(["export", finished, str(tmp_path / "x.pth")]) == 0 and (tmp_path / "x.pth").is_file()
    Storage(finished).remove("checkpoints/step_00000002/manifest.json")
    assert Run(finished).checkpoint("best").name == "step_00000001"
    for name in Storage(finished).names():
        Storage(finished).remove(name)
    with pytest.raises(UserError, match=r"no run there \(it has no experiment.json\)"):
        Run(finished)


def test_runs_at_a_url_are_numbered_and_names_are_taken(url: str, finished: str) -> None:
    check_writable(url, "other")
    with pytest.raises(UserError, match=rf"a run of that name exists, {finished};.*`raytrain resume {finished}`"):
        check_writable(url, "digits")
    with pytest.raises(UserError, match="cannot be the name of a run's folder"):
        check_writable(url, "a/b")
    assert Storage(url).names("", recursive=False).keys() == {"digits"}, "nothing of the check stays"
    for name, expected in ((None, "m-1"), ("x", "x")):
        path, lock = begin(url, name, "m", lambda folder: None)
        assert path.name == expected
        lock.release()
    for taken in ("m-1", "m-7", "m-x", "mm-9"):
        Storage(url).write(f"{taken}/experiment.json", b"{}")
    path, lock = begin(url, None, "m", lambda folder: None)
    with lock, pytest.raises(UserError, match="a run of that name exists"):
        begin(url, "m-8", "m", lambda folder: None)
    assert path.name == "m-8" and location.url_of(path) == location.join(url, "m-8")
    assert (path / "url").stat().st_mode & 0o77 == 0, "a URL may hold keys"


def test_options_of_a_url_stay_behind_its_path() -> None:
    assert location.join("s3://b/runs/?region=x&scheme=http", "a") == "s3://b/runs/a?region=x&scheme=http"
    assert location.join("s3://b", "a") == "s3://b/a" and location.join("runs", "a") == "runs/a"
    assert location.mirror("s3://b/runs/a?region=x").name == "a"
    mirrors = [location.mirror("s3://b/runs/a"), location.mirror("s3://c/runs/a")]
    assert len({*mirrors, location.mirror("s3://c/runs/a", "workers")}) == 3


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("s3://no-such-bucket/runs", "NO_SUCH_BUCKET"),
        ("nothing://bucket/runs", "Unrecognized filesystem"),
        ("s3:///runs", "Missing bucket name"),
        ("s3://bucket/runs?region=us-east-1&endpoint_override=127.0.0.1:9&scheme=http", "NETWORK_CONNECTION"),
    ],
)
def test_silent_storage_is_one_line_before_anything_starts(
    s3: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, place: str, reason: str
) -> None:
    file = tmp_path / "x.py"
    file.write_text("from raytrain import *\nexperiment = Experiment(model=CNN(), data=Digits())\n")
    began = time.monotonic()
    assert cli.run(["train", str(file), "--out", place]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: storage does not answer: ") and reason in said and said.count("\n") == 1
    how = "write a path, or a URL of s3, " if "filesystem" in reason else "check the address"
    assert f", {place}; {how}" in said and time.monotonic() - began < 15
