"""A run at a URL: what is brought up is enough to go on anywhere, bit for bit."""

from __future__ import annotations

import shutil
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.cut_runs import BASE, Cut, rows, weights

from raytrain import SGD, Experiment, Run, UserError
from raytrain.checkpoint import layout, location, pulse, remote, side_thread, storage
from raytrain.checkpoint.storage import Storage
from raytrain.data.checks import checked_read
from raytrain.data.loader import Loaded
from raytrain.data.reader import Resident
from raytrain.parallel.strategy import RankContext
from raytrain.run import experiment_file
from raytrain.training.losses import Step
from raytrain.training.trainer import Trainer

VALUE = replace(BASE, optimizer=SGD(lr=0.05, momentum=0.9), batch_size=128)  # 12 steps an epoch
_NUMBER = count()


@pytest.fixture
def url(s3: str) -> str:
    """A run that the driver has brought up, and no rank has begun."""
    url = f"{s3}/loop/{next(_NUMBER)}"
    Storage(url).write("experiment.json", experiment_file.to_json(VALUE).encode())
    return url


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that nothing disturbs, in a directory."""
    path = tmp_path_factory.mktemp("url") / "whole"
    path.mkdir()
    experiment_file.save(VALUE, path / "experiment.json")
    train(path)
    return path


def train(path: Path, there: Storage | None = None, each: Callable[[Trainer], object] = lambda worker: None) -> str:
    """One rank, in this process; `each` is called before every step."""
    step, indices = Trainer.step, VALUE.data.index()
    readers = {
        split: Resident(checked_read(VALUE.data, index, np.arange(len(index)))) for split, index in indices.items()
    }

    def step_and_look(worker: Trainer, loaded: Loaded) -> Step:
        each(worker)
        return step(worker, loaded)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "step", step_and_look)
        place = RankContext(0, 1, torch.device("cpu"))
        return Trainer(VALUE, path, indices, readers, None, place, time.time(), there).fit()


def train_at(url: str, each: Callable[[Trainer], object] = lambda worker: None) -> str:
    there, path = remote.at_work(url)
    return train(path, there, each)


def same(url: str, whole: Path) -> bool:
    shutil.rmtree(location.mirror(url), ignore_errors=True)
    found = Run(url)
    found.model("last")
    return rows(found.path) == rows(whole) and weights(found.path) == weights(whole)


def cut_at(at: int) -> Callable[[Trainer], None]:
    def each(worker: Trainer) -> None:
        if worker.progress.step == at:
            raise Cut

    return each


def test_a_run_that_is_cut_off_goes_on_on_another_machine(url: str, whole: Path) -> None:
    for at in (8, 11, 17):
        with pytest.raises(Cut):
            train_at(url, cut_at(at))
        assert list(Storage(url).committed())[-1] == layout.name_of(max(n for n in (5, 10, 12, 15) if n <= at))
        shutil.rmtree(location.mirror(url, "workers"))
    assert train_at(url) == "completed"
    assert same(url, whole)
    kept = {*layout.committed(whole / "checkpoints")}
    assert Storage(url).committed().keys() == kept and Run(url).summary["steps"] == 24
    assert {path.split("/")[1] for path in Storage(url).names("checkpoints")} == kept


def test_a_mirror_that_ran_ahead_of_storage_goes_back(url: str, whole: Path) -> None:
    with pytest.raises(Cut):
        train_at(url, cut_at(22))
    names = Storage(url).names("checkpoints/step_00000020")
    assert names
    for name in names:
        Storage(url).remove(name)
    assert train_at(url) == "completed" and same(url, whole)


def test_uploads_that_fail_are_made_up_for(url: str, whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, broken = Storage.write, threading.Event()

    def fails(self: Storage, name: str, content: Any) -> None:
        if broken.is_set() and name.endswith("optimizer.pt"):
            raise OSError("AWS Error SLOW_DOWN during PutObject operation")
        write(self, name, content)

    def each(worker: Trainer) -> None:
        if worker.progress.step in (8, 13) and worker.writer:
            worker.writer.wait()
            (broken.set if worker.progress.step == 8 else broken.clear)()

    monkeypatch.setattr(Storage, "write", fails)
    assert train_at(url, each) == "completed"
    noted = (location.mirror(url, "workers") / "logs" / "checkpoints.log").read_text().splitlines()
    assert [line.split(" ", 1)[1] for line in noted] == [
        f"step {step}: AWS Error SLOW_DOWN during PutObject operation" for step in (10, 12)
    ]
    monkeypatch.undo()
    assert same(url, whole)
    best = Run(url).checkpoint("best")
    assert best.name == Run(whole).checkpoint("best").name


def test_a_last_upload_that_fails_ends_the_run(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_thread, "_PATIENCE", 0.5)
    write = Storage.write

    def fails(self: Storage, name: str, content: Any) -> None:
        if "step_00000024" in name:
            raise OSError("AWS Error ACCESS_DENIED during PutObject operation")
        write(self, name, content)

    with monkeypatch.context() as patch:
        patch.setattr(Storage, "write", fails)
        with pytest.raises(UserError) as error:
            train_at(url)
    assert str(error.value) == (
        f"the end of the run cannot be uploaded: AWS Error ACCESS_DENIED during PutObject operation, {url}; it is in "
        f"{location.mirror(url, 'workers')} on {socket.gethostname()}: `raytrain resume {url}` there uploads it"
    )
    assert train_at(url) == "completed"


def test_rows_and_stops_travel_between_checkpoints(url: str, whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from raytrain.run import writer

    monkeypatch.setattr(writer, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(pulse, "POLL_SECONDS", 0.05)
    driver, seen = location.mirror(url), []
    location.note_url(remote.opened(url), url)

    def each(worker: Trainer) -> None:
        if worker.progress.step == 8:  # the checkpoint is that of step 5
            time.sleep(1.0)
            seen.extend(rows(driver))
            (driver / "stop").touch()
            time.sleep(1.0)

    with remote.followed(driver):
        assert train_at(url, each) == "interrupted"
    assert [row["step"] for row in seen][:6] == [1, 2, 3, 4, 5, 6][: len(seen)] and len(seen) >= 5
    assert Run(url).summary["status"] == "interrupted" and "stop" not in Storage(url).names()
    (driver / "stop").unlink()
    assert train_at(url) == "completed" and same(url, whole)


def test_the_experiment_decides_alone(url: str) -> None:
    path = remote.at_work(url)[1]
    (path / "experiment.json").write_text("of an older attempt")
    assert remote.at_work(url)[1] == path
    assert Run(path).experiment == VALUE and isinstance(VALUE, Experiment) and Run(path).url is None


def test_run_trains_while_storage_hangs_and_resumes(url: str, whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Storage accepts requests from step 8 on and answers none; a signal comes at step 17."""
    Storage(url).write("environment.json", b'{"began": "now"}')
    opens, answers, asked = storage._open, threading.Event(), 0.0
    answers.set()

    class Gated:
        """A file system whose calls wait while storage hangs."""

        def __init__(self, files: Any):
            self.files, self.type_name = files, files.type_name

        def __getattr__(self, name: str) -> Any:
            return lambda *arguments, **named: answers.wait() and getattr(self.files, name)(*arguments, **named)

    def gated(url: str) -> tuple[Any, str]:
        files, root = opens(url)
        return Gated(files), root

    def each(worker: Trainer) -> None:
        nonlocal asked
        if worker.progress.step == 8 and worker.writer:
            worker.writer.wait()
            answers.clear()
        if worker.progress.step == 17:
            asked = time.monotonic()
            (worker.run.path / "stop").touch()

    with monkeypatch.context() as patch:
        patch.setattr(storage, "_open", gated)
        assert train_at(url, each) == "interrupted"
    assert time.monotonic() - asked < 20, "5 s, on a machine that does nothing else"
    answers.set()
    while pulse.pulse(url).silence:
        time.sleep(0.01)
    kept = location.mirror(url, "workers")
    assert list(Storage(url).committed()) == ["step_00000005"]
    newest = layout.step_of(layout.committed(kept / "checkpoints")[-1])
    assert newest is not None and newest > 17
    noted = (kept / "logs" / "checkpoints.log").read_text()
    assert noted.count("step 10: no answer for ") == 1
    pulse.pulse(url).limit = pulse.ANSWER_SECONDS
    steps: list[int] = []
    assert train_at(url, lambda worker: steps.append(worker.progress.step)) == "completed"
    assert steps[0] == newest and same(url, whole)
