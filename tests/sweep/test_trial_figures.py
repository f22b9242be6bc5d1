"""The figures of trials under way: what the driver and a trial of several workers read, and how often."""

from __future__ import annotations

import errno
import json
import os
import random
import socket
import threading
import time
from pathlib import Path
from typing import Any, cast

import pytest

from raytrain import MLP, SGD, Digits, Experiment, Scaling
from raytrain.run import metrics_log
from raytrain.sweep import attempt as attempts
from raytrain.sweep import objective, record
from raytrain.sweep.attempt import Attempt, Limits

BASE = Experiment(model=MLP(hidden=(8,)), data=Digits(), optimizer=SGD(lr=0.1), epochs=4)
GOALS = (objective.parse("val_loss", BASE.task.declared()),)


def line(kind: str, step: int, loss: float) -> bytes:
    return json.dumps({"kind": kind, "epoch": 1, "step": step, "seconds": 0.5, "val_loss": loss}).encode() + b"\n"


def log(run: Path) -> Path:
    return run / "metrics.jsonl"


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """What was read of metrics: the trial, and the byte that it began at."""
    found, whole = list[tuple[str, int]](), metrics_log.read_rows

    def read_rows(path: Path, offset: int = 0, size: int = -1) -> bytes:
        found.append((path.parent.name, offset))
        return whole(path, offset, size)

    monkeypatch.setattr(metrics_log, "read_rows", read_rows)
    return found


def test_figures_are_those_of_a_fresh_look_whatever_happens(tmp_path: Path) -> None:
    """Rows are added and cut off, attempts follow each other, files are replaced and removed, trials pause and end."""
    draw, looks, same = random.Random(2), record.Figures(GOALS, BASE), 0
    for number in range(40):
        run = record.folder(tmp_path, number)
        run.mkdir(parents=True)
        attempts, step = 0, 0
        record.update(run, number=number, values={}, status="pending", attempts=0)
        for _ in range(draw.randint(1, 25)):
            what = draw.choice(("add", "add", "add", "row", "part", "attempt", "adopt", "pause", "summary", "look"))
            text = log(run).read_bytes() if log(run).exists() else b""
            if what == "attempt":  # it goes on from a checkpoint, and may have come further before the next look
                attempts += 1
                kept = text[: draw.choice([0, *(n + 1 for n, byte in enumerate(text) if byte == 10)])]
                log(run).write_bytes(
                    kept + b"".join(line("epoch", n, draw.random()) for n in range(draw.randint(0, 9)))
                )
                record.update(run, status="running", attempts=attempts)
            elif what == "adopt":
                (run / "other").write_bytes(b"".join(line("epoch", n, draw.random()) for n in range(9)))
                (run / "other").replace(log(run))
            elif what == "pause":
                record.update(run, status=draw.choice(("paused", "running", "interrupted")))
            elif what == "summary":
                (run / "summary.json").write_text(json.dumps({"seconds": draw.random()}))
            elif what != "look":
                step += 1
                rows = [line(draw.choice(("epoch", "validation", "step")), step, draw.random()) for _ in range(3)]
                added = rows[0][:20] if what == "part" else b"".join(rows)
                with open(log(run), "ab") as file:
                    file.write(added)
            if what == "adopt" or draw.random() < 0.7:
                found = looks.of(run)
                assert found == record.figures(run, GOALS, BASE)
                same += looks.of(run) is found
        record.update(run, status=draw.choice(record.ENDED))
        assert looks.of(run) == record.figures(run, GOALS, BASE)
    assert same > 200 and not looks._known, "nothing is kept of trials that have ended"


def test_looks_read_what_is_new(tmp_path: Path, reads: list[tuple[str, int]]) -> None:
    looks, ends = record.Figures(GOALS, BASE), {}
    for number, status in enumerate(("running", "paused", "pending")):
        run = record.folder(tmp_path, number)
        run.mkdir(parents=True)
        record.update(run, number=number, values={}, status=status, attempts=1)
        if status != "pending":
            log(run).write_bytes(b"".join(line("epoch", n, 0.5 - n / 10) for n in range(4)))
            ends[run.name] = log(run).stat().st_size
    trials = [record.folder(tmp_path, number) for number in range(3)]
    first = [looks.of(run) for run in trials]
    assert [one["objective"] for one in first] == [[pytest.approx(0.2)], [pytest.approx(0.2)], [None]]
    reads.clear()
    assert [looks.of(run) for run in trials] == first and reads == [], "nothing is new"
    with open(log(trials[0]), "ab") as file:
        file.write(line("step", 5, 0.0) + line("epoch", 5, 0.1))
    assert looks.of(trials[0])["objective"] == [0.1] and reads == [("0000", ends["0000"])]
    record.update(trials[0], status="completed")
    assert looks.of(trials[0])["objective"] == [0.1] and reads[1:] == [("0000", 0)], "once whole, at the end"


def test_threads_share_the_looks(tmp_path: Path) -> None:
    """The driver's thread looks, and Tune's."""
    looks, run = record.Figures(GOALS, BASE), record.folder(tmp_path, 0)
    run.mkdir(parents=True)
    record.update(run, number=0, values={}, status="running", attempts=1)
    log(run).touch()
    over = threading.Event()

    def look() -> None:
        while not over.is_set():
            looks.of(run)

    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    for step in range(200):
        with open(log(run), "ab") as file:
            file.write(line("epoch", step, 0.5))
    over.set()
    for thread in threads:
        thread.join()
    assert looks.of(run)["epochs"] == 200


def test_record_names_the_host_of_the_last_attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts.Attempt, "_job", lambda self: None)
    monkeypatch.setattr(attempts, "work", lambda *_: (_ for _ in ()).throw(ValueError("a trial that fails")))
    value, nothing, here = Experiment(model=MLP(), data=Digits()), cast(Any, None), socket.gethostname()
    for number, (named, before, found) in enumerate(
        ((False, {}, None), (True, {}, here), (True, {"host": "lost"}, here), (False, {"host": "lost"}, here))
    ):
        (run := tmp_path / str(number)).mkdir()
        record.update(run, status="interrupted", **before)
        Attempt(run, value, nothing, Limits(None, 60.0), named)._train()
        assert record.read(run).get("host") == found
    (run := tmp_path / "workers" / "logs").mkdir(parents=True)
    for rank, host in enumerate(("b", "a", "b")):
        (run / f"place_{rank}.json").write_text(json.dumps({"host": host}))
    Attempt(run.parent, value, nothing, Limits(None, 60.0), True)._train()
    assert record.read(run.parent)["host"] == "b, a"


def test_trial_of_several_workers_reads_each_row_once(tmp_path: Path, reads: list[tuple[str, int]]) -> None:
    """Its workers write; it looks ten times a second."""
    value = Experiment(model=MLP(), data=Digits(), scaling=Scaling(workers=2))
    nothing: Any = None
    attempt, rows = Attempt(tmp_path, value, nothing, Limits(None, 60.0)), [line("epoch", n, 0.5) for n in range(1, 7)]
    log(tmp_path).write_bytes(b"")
    attempt._before = attempt._replay()
    assert attempt._before == []
    reads.clear()

    def write() -> None:
        for row in rows:
            time.sleep(0.25)
            with open(log(tmp_path), "ab") as file:
                file.write(line("step", 1, 0.5) + row)

    writer = threading.Thread(target=write)
    writer.start()
    taken = [attempt._take() for _ in rows]
    writer.join()
    assert taken == [("row", json.loads(row)) for row in rows]
    offsets = [offset for _, offset in reads]
    assert offsets == sorted({*offsets}) and len(offsets) <= 2 * len(rows), "no byte twice"


def test_a_record_that_cannot_be_written_ends_the_attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any, **fields: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(record, "update", full)
    trial = Attempt(tmp_path, BASE, attempts.Data(None, {}), Limits(None, 60))
    trial._train()
    kind, what = trial._said.get_nowait()  # `next` waits for it, and raises it
    assert kind == "lost" and what.errno == errno.ENOSPC
