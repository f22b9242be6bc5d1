"""Loggers: each permanent row once, through any kills; slow and failing ones hold nothing up."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from helpers.simulated_runs import EPOCH, VALUE, Killed, Simulated, feed_of

from raytrain import Experiment, Held, Logger, RunInfo, UserError, config, load_experiment
from raytrain.checkpoint import location, storage
from raytrain.driver import feed as feeds
from raytrain.driver.feed import Feed
from raytrain.driver.observe import Loggers, watched
from raytrain.files import write_atomically


@dataclass(frozen=True)
class Lines(Logger):
    """A file with a line for each row. A kill may leave a part of a line."""

    file: str

    def start(self, run: RunInfo, held: Held) -> None:
        """Remove the rows after `held`."""
        path = Path(self.file)
        lines = path.read_text().splitlines(keepends=True) if path.is_file() else []
        rows = [json.loads(line) for line in lines if line.endswith("\n")]
        kept = [row for row in rows if row["kind"] == "step" and row["step"] <= held.step]
        kept += [row for row in rows if row["kind"] == "epoch" and row["epoch"] <= held.epoch]
        kept += [row for row in rows if row["kind"] == "validation" and row["step"] <= held.validation]
        write_atomically(path, "".join(json.dumps(row) + "\n" for row in kept))

    def log(self, rows: Sequence[Mapping[str, Any]]) -> None:
        with open(self.file, "a") as file:
            for row in rows:
                file.write(json.dumps(row) + "\n")


@dataclass(frozen=True)
class Seen(Logger):
    """Keeps what it is called with, by the name that it has."""

    name: str = "a"

    @property
    def calls(self) -> list[Any]:
        return CALLS.setdefault(self.name, [])

    def planned(self, lines: Sequence[tuple[str, str]]) -> None:
        self.calls.append(("planned", *lines))

    def start(self, run: RunInfo, held: Held) -> None:
        self.calls.append(("start", held))

    def log(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self.calls.append(("log", *(row["step"] for row in rows)))

    def finish(self, run: RunInfo, summary: Mapping[str, Any]) -> None:
        self.calls.append(("finish", summary["status"]))

    def close(self) -> None:
        self.calls.append(("close",))


@dataclass(frozen=True)
class Slow(Seen):
    """Takes a second for each call of `log`."""

    def log(self, rows: Sequence[Mapping[str, Any]]) -> None:
        time.sleep(1.0)
        super().log(rows)


@dataclass(frozen=True)
class Failing(Seen):
    """Fails in its first calls of a method."""

    method: str = "log"
    times: int = 1
    leaves: bool = False

    def _fail(self, method: str) -> None:
        if method == self.method and self.calls.count("failed") < self.times:
            self.calls.append("failed")
            if self.leaves:
                raise SystemExit(3)
            raise OSError(28, "No space left on device")

    def start(self, run: RunInfo, held: Held) -> None:
        self._fail("start")
        super().start(run, held)

    def log(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self._fail("log")
        super().log(rows)


CALLS: dict[str, list[Any]] = {}


class Notes(Logger):
    """The terminal of these tests."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def note(self, text: str) -> None:
        self.said.append(text)


def rows_of(path: Path) -> list[dict[str, Any]]:
    """The rows of a file, those of steps before those of epochs."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return sorted(rows, key=lambda row: (row["kind"] != "step", row["step"]))


@pytest.mark.parametrize("every", [None, 3])
@pytest.mark.parametrize("seed", range(20))
def test_logger_gets_every_row_once_through_five_kills(
    tmp_path: Path, seed: int, every: int | None, monkeypatch: Any
) -> None:
    draw, run = random.Random(seed), Simulated(tmp_path / "run", 60, every)
    monkeypatch.setattr(feeds, "_BATCH", 5)
    logger = Lines(str(tmp_path / "lines"))
    for session in range(6):
        if session:
            run.resume(draw.choice([0, 0, 1, 2]))
        feed, killed = feed_of(run, logger), draw.choice(["anywhere", "in log", "before keep"])
        last = run.steps if session == 5 else min(run.steps, run.step + draw.randint(1, 25))
        with pytest.MonkeyPatch.context() as patch:
            if session < 5 and killed != "anywhere":
                left = [draw.randint(0, 3)]
                _kill(patch, left, killed)
            try:
                while run.step < last:
                    run.train()
                    if draw.random() < 0.15:
                        run.save()
                    if draw.random() < 0.5:
                        feed._try(lambda: None)
            except Killed:
                continue
    run.save()
    feed = feed_of(run, logger)
    feed._try(feed._conclude)
    assert rows_of(tmp_path / "lines") == rows_of(run.path / "metrics.jsonl")
    assert [row["step"] for row in rows_of(tmp_path / "lines") if row["kind"] == "step"] == list(range(1, 61))
    inside = [row["step"] for row in rows_of(tmp_path / "lines") if row["kind"] == "validation"]
    assert inside == [step for step in range(1, 61) if every and step % every == 0 and step % EPOCH]


def _kill(patch: pytest.MonkeyPatch, left: list[int], where: str) -> None:
    """Kill the driver in one of its next batches: with a part of it in the file, or before that is written down."""
    log, keep = Lines.log, Feed._keep

    def count() -> bool:
        left[0] -= 1
        return left[0] < 0

    def cut_log(logger: Lines, rows: Sequence[Mapping[str, Any]]) -> None:
        if not count():
            return log(logger, rows)
        log(logger, rows[: len(rows) // 2])
        with open(logger.file, "a") as file:
            file.write('{"kind": "st')
        raise Killed

    def cut_keep(feed: Feed) -> None:
        if count():
            raise Killed
        keep(feed)

    if where == "in log":
        patch.setattr(Lines, "log", cut_log)
    else:
        patch.setattr(Feed, "_keep", cut_keep)


def test_rows_after_the_last_checkpoint_wait_for_the_next_one(tmp_path: Path) -> None:
    CALLS.clear()
    run, logger = Simulated(tmp_path / "run", 60), Seen()
    feed = feed_of(run, logger)
    for _ in range(3):
        run.train()
    feed._try(lambda: None)
    assert logger.calls == [("start", Held(0, 0))]
    run.save()
    run.train()
    feed._try(lambda: None)
    feed._try(lambda: None)
    assert logger.calls[1:] == [("log", 1, 2, 3)]
    again = feed_of(run, logger)
    for _ in range(3):
        run.train()
    again._try(lambda: None)
    assert logger.calls[2:] == [("start", Held(3, 0)), ("log", 4, 5, 6, 7, 7)]
    other = feed_of(run, replace(logger, name="b"))
    other._try(lambda: None)
    assert CALLS["b"] == [("start", Held()), ("log", 1, 2, 3, 4, 5, 6, 7, 7)], "another value has a place of its own"


def test_damaged_rows_are_waited_for(tmp_path: Path) -> None:
    CALLS.clear()
    run, logger = Simulated(tmp_path / "run", 60), Seen()
    for _ in range(6):
        run.train()
        run.save()
    raw = (run.path / "metrics.jsonl").read_bytes()
    (run.path / "metrics.jsonl").write_bytes(raw.replace(b'"step": 4', b'"step"? 4'))
    feed = feed_of(run, logger)
    feed._try(lambda: None)
    assert logger.calls[1:] == [("log", 1, 2, 3)]
    run.resume(damaged=3)
    for _ in range(3):
        run.train()
        run.save()
    feed._try(lambda: None)
    assert logger.calls[2:] == [("log", 4, 5, 6)]


def test_slow_logger_holds_nothing_up_and_gets_all(tmp_path: Path) -> None:
    CALLS.clear()
    run, notes = Simulated(tmp_path / "run", 60), Notes()
    began = time.monotonic()
    with watched(notes, (Slow("slow"), Seen("fast"))) as observer:
        observer.planned([("model", "CNN")])
        observer.start(run.info, Held())
        for _ in range(EPOCH):
            run.train()
            observer.rows([])
        observer.finish(run.info, {"status": "completed"})
        assert time.monotonic() - began < 0.5
    assert CALLS["slow"] == CALLS["fast"]
    assert CALLS["fast"] == [
        *[("planned", ("model", "CNN")), ("start", Held()), ("log", 1, 2, 3, 4, 5, 6, 7, 7)],
        *[("finish", "completed"), ("close",)],
    ]
    assert notes.said == []


def test_logger_that_hangs_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raytrain.driver.observe._HURRY", 0.5)
    gate = threading.Event()

    class Hangs(Logger):
        def log(self, rows: Sequence[Mapping[str, Any]]) -> None:
            gate.wait(60)

    run, notes = Simulated(tmp_path / "run", 60), Notes()
    began = time.monotonic()
    with watched(notes, (Hangs(),)) as observer:
        observer.start(run.info, Held())
        for _ in range(EPOCH):
            run.train()
    gate.set()
    assert time.monotonic() - began < 5
    assert notes.said == ["the logger Hangs lacks the rows after step 0; `raytrain resume` delivers them"]


@pytest.mark.parametrize("method", ["start", "log"])
def test_failing_logger_is_said_once_and_tried_again(tmp_path: Path, method: str, monkeypatch: Any) -> None:
    CALLS.clear()
    monkeypatch.setattr(feeds, "_PAUSE", 0.02)
    monkeypatch.setattr(feeds, "_LOOK_SECONDS", 0.05)
    run, notes = Simulated(tmp_path / "run", 60), Notes()
    with watched(notes, (Failing("bad", method, 3), Seen("good"))) as observer:
        observer.start(run.info, Held())
        for _ in range(3 * EPOCH):
            run.train()
            observer.rows([])
            time.sleep(0.05)
        observer.finish(run.info, {"status": "completed"})
    (said,) = notes.said
    assert said.startswith("the logger Failing failed, and training goes on: OSError: [Errno 28] No space left on")
    for name in ("bad", "good"):
        steps = [step for call in CALLS[name] if call[0] == "log" for step in call[1:]]
        assert steps == sorted([*range(1, 22), 7, 14, 21]), name
        assert CALLS[name][-2:] == [("finish", "completed"), ("close",)]
    assert CALLS["bad"].count("failed") == 3 and len(CALLS["good"]) < 30


@pytest.mark.parametrize("leaves", [False, True])
def test_logger_that_always_fails_is_said_once(tmp_path: Path, leaves: bool) -> None:
    CALLS.clear()
    run, notes = Simulated(tmp_path / "run", 60), Notes()
    with watched(notes, (Failing("bad", "log", 10**6, leaves),)) as observer:
        observer.start(run.info, Held())
        for _ in range(2 * EPOCH):
            run.train()
        observer.finish(run.info, {"status": "completed"})
    assert len(notes.said) == 2 and "failed, and training goes on" in notes.said[0]
    assert notes.said[1] == "the logger Failing lacks the rows after step 0; `raytrain resume` delivers them"


def test_a_completed_run_is_caught_up_on(tmp_path: Path) -> None:
    """A kill between the end of the workers and the last rows of the logger."""
    CALLS.clear()
    run = Simulated(tmp_path / "run", 60)
    for _ in range(EPOCH):
        run.train()
    for names in (["Seen"], []):
        with watched(Notes(), (Seen(),)) as observer:
            assert isinstance(observer, Loggers)
            observer.catch_up(run.info, {"status": "completed"})
            assert observer.caught_up(run.info) == names
    with watched(Notes(), (Failing("bad", "log", 10**6), Seen("late"))) as observer:
        assert isinstance(observer, Loggers)
        observer.catch_up(run.info, {"status": "completed"})
        assert observer.caught_up(run.info) == []
    assert CALLS["a"] == [("start", Held()), ("log", 1, 2, 3, 4, 5, 6, 7, 7), ("finish", "completed"), ("close",)]


def test_run_at_a_url_tells_there_how_far_its_logger_came(tmp_path: Path) -> None:
    """Another machine goes on, with a mirror of its own."""
    CALLS.clear()
    there, run = Simulated(tmp_path / "there", 60), Simulated(tmp_path / "mirror", 60)
    location.note_url(run.path, f"file://{there.path}")
    for _ in range(EPOCH):
        run.train()
    (run.path / "last.json").rename(there.path / "last.json")
    feed_of(run, Seen())._try(lambda: None)
    assert CALLS["a"] == [("start", Held()), ("log", 1, 2, 3, 4, 5, 6, 7, 7)]
    other = Simulated(tmp_path / "other", 60)
    location.note_url(other.path, f"file://{there.path}")
    storage.Storage(f"file://{there.path}").pull(other.path)
    assert feed_of(other, Seen())._kept(other.path) == Held(7, 1)


def test_two_runs_of_one_logger_share_no_state(tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Counts(Logger):
        def log(self, rows: Sequence[Mapping[str, Any]]) -> None:
            self.state["rows"] = self.state.get("rows", 0) + len(rows)
            FOUND.append(self.state["rows"])

    FOUND: list[int] = []
    logger = Counts()
    for name in ("a", "b"):
        run = Simulated(tmp_path / name, 60)
        for _ in range(EPOCH):
            run.train()
        feed = feed_of(run, logger)
        feed._try(lambda: None)
    assert FOUND == [8, 8] and logger.state == {}


def test_loggers_are_saved_with_the_experiment() -> None:
    e = replace(VALUE, loggers=(Lines("a"), Seen()))
    assert config.from_dict(Experiment, json.loads(json.dumps(config.to_dict(e))), "test") == e
    assert config.replace(e, "loggers.0.file", "b").loggers[0] == Lines("b")
    with pytest.raises(UserError, match=r"write loggers=\(Seen\(...\),\)"):
        replace(VALUE, loggers=Seen())
    with pytest.raises(UserError, match="each of loggers must be a Logger of raytrain, got"):
        replace(VALUE, loggers=(print,))


def test_logger_of_an_experiment_file_is_one_file(tmp_path: Path) -> None:
    file = tmp_path / "exp.py"
    file.write_text(
        "from dataclasses import dataclass\nfrom raytrain import CNN, Digits, Experiment, Logger\n\n\n"
        "@dataclass(frozen=True)\nclass Losses(Logger):\n    file: str\n\n"
        "    def log(self, rows):\n"
        "        with open(self.file, 'a') as file:\n"
        "            for row in rows:\n                if row['kind'] == 'step':\n"
        "                    print(row['step'], row['loss'], file=file)\n\n\n"
        f"experiment = Experiment(CNN(channels=(4,)), Digits(), loggers=(Losses({str(tmp_path / 'losses')!r}),))\n"
    )
    e, _ = load_experiment(file)
    run = Simulated(tmp_path / "run", 60)
    with watched(Notes(), e.loggers) as observer:
        observer.start(run.info, Held())
        for _ in range(EPOCH):
            run.train()
    lines = (tmp_path / "losses").read_text().splitlines()
    assert lines == [f"{step} {1 / step}" for step in range(1, EPOCH + 1)]
