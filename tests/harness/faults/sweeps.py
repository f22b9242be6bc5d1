"""Real `raytrain sweep` commands, ended at some moment; what they leave behind, and what comes of them in the end."""

from __future__ import annotations

import contextlib
import csv
import hashlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from helpers.times import without_times

from raytrain.run.lock import WRITER_LOCK
from raytrain.sweep import record

EIGHT, FOUR_GATED, TWO_WORKERS = (
    Path(__file__).with_name(f"{name}.py") for name in ("eight", "four_gated", "two_workers")
)
TRIALS = 8
PHASES = ("before Ray", "Ray starting", "reading", "trials under way", "end")
"""What goes on, in its order: up to the line `starting Ray`, up to `reading the data`, up to the first trial that
trains, up to the last trial's end, and behind it."""
GONE_SECONDS = 60
"""By then nothing of a killed driver's Ray is there, but for its two agents: twice as long as on quiet CPUs."""
AGENTS_SECONDS = 120
"""These want to tell the node's head, which is gone, for a minute."""
_AGENTS = ("ray::DashboardAgent", "ray::RuntimeEnvAgent", "dashboard/agent.py", "runtime_env/agent/main.py")


_SIZES = {FOUR_GATED: (4, 2)}
"""Trials of a sweep, and how many of them keep their weights, where these are not eight and three."""


COMMANDS: list[Command] = []
"""All that were started here, so that none is forgotten."""


class Command:
    """One `raytrain sweep` in a session of its own, which all that it starts stays in."""

    def __init__(self, sweep: Path, *arguments: str, trials: int = TRIALS):
        self.sweep, self.trials = sweep, trials
        self.started = time.monotonic()
        self.gone: float | None = None
        self.agents_gone: float | None = None
        self.lines: list[str] = []
        self.errors: list[str] = []
        self._sessions: set[str] = set()
        self._watch: threading.Thread | None = None
        self.before = shared_memory()
        environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
        self.process = subprocess.Popen(
            [sys.executable, "-u", "-m", "raytrain.cli", "sweep", *arguments],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True,
        )  # fmt: skip
        self._readers = [
            threading.Thread(target=_read, args=(self.process.stdout, self.lines), daemon=True),
            threading.Thread(target=_read, args=(self.process.stderr, self.errors), daemon=True),
        ]
        for reader in self._readers:
            reader.start()
        COMMANDS.append(self)

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    @property
    def phase(self) -> str:
        """What it does, of `PHASES`, as seen from outside."""
        said, found = "".join(self.lines), statuses(self.sweep)
        if sum(status in record.ENDED for status in found.values()) == self.trials:
            return PHASES[4]
        if "starting Ray" not in said:
            return PHASES[0]
        if "reading the data" not in said:
            return PHASES[1]
        began = any(lock.stat().st_mtime >= self._wall for lock in self.sweep.glob(f"trials/*/{WRITER_LOCK}"))
        return PHASES[3] if began else PHASES[2]

    @property
    def _wall(self) -> float:
        return time.time() - (time.monotonic() - self.started)

    def wait_for(self, phase: str, delay: float = 0.0, ended: int = 0, timeout: float = 400) -> bool:
        """Waits for a phase, for so many trials to have ended, and some seconds more; returns whether the command still
        runs."""
        deadline = time.monotonic() + timeout
        while self.running and (
            PHASES.index(self.phase) < PHASES.index(phase)
            or sum(status in record.ENDED for status in statuses(self.sweep).values()) < ended
        ):
            assert time.monotonic() < deadline, f"no {phase}: {''.join(self.lines + self.errors)}"
            time.sleep(0.01)
        until = time.monotonic() + delay
        while self.running and time.monotonic() < until:
            time.sleep(0.005)
        return self.running

    def end(self, timeout: float = 240) -> int:
        """Waits for its own end, and returns the exit status."""
        try:
            self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it does not end: {''.join(self.lines + self.errors)}") from None
        for reader in self._readers:
            reader.join(5)
        return self.process.returncode

    def kill(self) -> tuple[float, str]:
        """SIGKILL of the driver alone; returns the seconds since its start, and its phase."""
        moment = time.monotonic() - self.started, self.phase
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self._watch = threading.Thread(target=self._until_gone, daemon=True)
        self._watch.start()
        return moment

    def _until_gone(self) -> None:
        started = time.monotonic()
        while time.monotonic() < started + AGENTS_SECONDS:
            left = self.processes() + self._files()
            if self.gone is None and all(any(agent in one for agent in _AGENTS) for one in left):
                self.gone = time.monotonic() - started
            if not left:
                self.agents_gone = time.monotonic() - started
                return
            time.sleep(0.2)

    def abandon(self) -> None:
        """Ends it, if it still runs: a test has failed."""
        if self.running:
            self.kill()

    def check_gone(self) -> None:
        """Waits until nothing of a killed command is left but Ray's agents."""
        deadline = time.monotonic() + GONE_SECONDS
        while self.gone is None and time.monotonic() < deadline:
            time.sleep(0.05)
        assert self.gone is not None and self.gone < GONE_SECONDS, self.processes() + self._files()

    def check_agents_gone(self) -> None:
        """Waits until they are gone, too."""
        assert self._watch is not None
        self._watch.join()
        assert self.agents_gone is not None, self.processes() + self._files()

    def left_behind(self, within: float = 10) -> list[str]:
        """Processes and files in shared memory that are there so many seconds after its own end."""
        deadline = time.monotonic() + within
        while (left := self.processes() + self._files()) and time.monotonic() < deadline:
            time.sleep(0.1)
        return left

    def processes(self) -> list[str]:
        """All of its session; and of Ray's sessions that were started in it, wherever they are by now."""
        found, sessions = {}, set()
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    state, _, _, session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
                    words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                except OSError:
                    continue
                found[int(entry.name)] = (state != "Z" and int(session) == self.process.pid, words)
        for own, words in found.values():
            if own:
                sessions |= set(re.findall(r"/ray/(session_[0-9_-]+)", words))
        self._sessions |= sessions
        return [
            f"{pid} {words[:120]}"
            for pid, (own, words) in found.items()
            if own or any(name in words for name in self._sessions)
        ]

    def _files(self) -> list[str]:
        """New ones that no process has mapped: those of a live one are another command's, once ours has none."""
        new = shared_memory() - self.before
        if not new:
            return []
        mapped = ""
        for maps in Path("/proc").glob("[0-9]*/maps"):
            try:
                mapped += maps.read_text()
            except OSError:
                continue
        return sorted(name for name in new if f"/dev/shm/{name}" not in mapped)


def _read(pipe: Any, lines: list[str]) -> None:
    with pipe:
        lines.extend(pipe)


def shared_memory() -> set[str]:
    """But for semaphores of Python's multiprocessing, of which a sweep has none: other programs have, and map them only
    once their processes have started."""
    names = {entry.name for entry in Path("/dev/shm").iterdir() if entry.is_file()}
    return {name for name in names if not name.startswith("sem.mp-")}


def load(path: Path) -> Any:
    """A JSON file; the test ends here where it does not load."""
    return json.loads(path.read_text())


def statuses(sweep: Path, trials: int = TRIALS) -> dict[int, str]:
    """How each trial that was begun stands."""
    found = {n: record.read(record.folder(sweep, n)) for n in range(trials)}
    return {n: one["status"] for n, one in found.items() if one}


def ended(sweep: Path) -> dict[int, tuple[bytes, bytes]]:
    """The record and the metrics of each trial that has ended, which stay as they are from then on."""
    folders = {n: record.folder(sweep, n) for n, status in statuses(sweep).items() if status in record.ENDED}
    return {n: ((at / "trial.json").read_bytes(), (at / "metrics.jsonl").read_bytes()) for n, at in folders.items()}


def check_files(sweep: Path) -> None:
    """Whatever a kill leaves loads: all JSON files, and a committed checkpoint wherever one is named."""
    if (sweep / "sweep.json").is_file():
        known = [one["number"] for one in load(sweep / "sweep.json")["trials"]]
        assert known == sorted(set(known))
    for name in ("best.json", "trials/*/trial.json", "trials/*/*.json", "trials/*/checkpoints/*/manifest.json"):
        for file in sweep.glob(name):
            if file.name != "environment.json" or (file.parent / "trial.json").is_file():  # which is written last
                load(file)


def outcome(sweep: Path) -> dict[str, Any]:
    """All that must not depend on how often a sweep was ended: everything but times and the use of memory."""
    answer = load(sweep / "sweep.json")
    with open(sweep / "trials.csv", newline="") as file:
        table = [_without(row) for row in csv.DictReader(file)]
    return {
        "status": answer["status"],
        "objectives": answer["objectives"],
        "best": answer["best"],
        "front": answer["front"],
        "trials": [_without(one) for one in answer["trials"]],
        "best.json": load(sweep / "best.json"),
        "trials.csv": table,
        "plots": sorted(file.name for file in (sweep / "plots").iterdir()),
        "runs": {one["number"]: run(record.folder(sweep, one["number"])) for one in answer["trials"]},
    }


def apart(mine: Any, other: Any, where: str = "") -> str:
    """Where two outcomes differ first; empty where they do not."""
    if isinstance(mine, dict) and isinstance(other, dict):
        pairs = [(str(key), mine.get(key), other.get(key)) for key in sorted({*mine, *other}, key=str)]
    elif isinstance(mine, list) and isinstance(other, list) and len(mine) == len(other):
        pairs = [(str(number), *pair) for number, pair in enumerate(zip(mine, other, strict=True))]
    else:
        return "" if mine == other else f"{where}: {str(mine)[:300]} and not {str(other)[:300]}"
    return next(filter(None, (apart(one, two, f"{where}/{name}") for name, one, two in pairs)), "")


def run(path: Path) -> dict[str, Any]:
    """The same of one trial, down to the bits of each loss and of the weights that are kept."""
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    checkpoints = sorted((path / "checkpoints").glob("step_*"))
    summary = load(path / "summary.json") if (path / "summary.json").is_file() else {}
    return {
        "record": _without(load(path / "trial.json")),
        "experiment": load(path / "experiment.json"),
        "rows": [_without(row) for row in rows],
        "summary": _without(summary),
        "pointers": {name: _without(load(path / name)) for name in ("best.json", "last.json")},
        "weights": {at.name: hashlib.sha256((at / "model.safetensors").read_bytes()).hexdigest() for at in checkpoints},
    }


def _without(values: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value
        for name, value in without_times(values).items()
        if name not in ("attempts", "pid", "host", "started", "ended", "peak_memory_bytes", "first_step_seconds")
    }


def check_whole(sweep: Path, trials: int = TRIALS, keep: int = 3) -> None:
    """Every trial has ended once, and its steps are 1, 2, ... up to its own end, each once."""
    answer = load(sweep / "sweep.json")
    assert [one["number"] for one in answer["trials"]] == list(range(trials))
    assert all(one["status"] in record.ENDED for one in answer["trials"])
    assert statuses(sweep) == {one["number"]: one["status"] for one in answer["trials"]}
    for one in answer["trials"]:
        at = record.folder(sweep, one["number"])
        rows = [json.loads(line) for line in (at / "metrics.jsonl").read_text().splitlines()]
        steps = [row["step"] for row in rows if row["kind"] == "step"]
        assert steps == list(range(1, len(steps) + 1)) and steps
        value = load(at / "experiment.json")
        per_epoch = -(-1438 // value["batch_size"])
        assert [row["step"] for row in rows if row["kind"] == "epoch"] == [
            per_epoch * epoch for epoch in range(1, one["epochs"] + 1)
        ]
        if one["status"] == "completed":
            assert len(steps) == value["epochs"] * per_epoch and one["epochs"] == value["epochs"]
    kept = [n for n in range(trials) if (record.folder(sweep, n) / "checkpoints").exists()]
    first = sorted(answer["trials"], key=lambda one: one["objective"][0])
    assert kept == sorted(one["number"] for one in first[:keep]) and answer["best"] == first[0]["number"]
    odd = (file for file in sweep.rglob("*") if file.name[0] == "." or file.name in ("stop", "pool"))
    odd = [*odd, *sweep.glob("trials/*/go")]
    litter = [file for file in odd if "logs" not in file.parts]
    assert not litter, litter


@dataclass
class Kill:
    """One that came: when (seconds since the command began), in which phase, and what came of it."""

    seconds: float
    phase: str
    ended: int
    command: Command


@dataclass
class Story:
    """A sweep that was killed some times, and went on each time."""

    sweep: Path
    seed: int
    kills: list[Kill] = field(default_factory=list)
    lost: int = 0
    """Processes of trials that were killed besides."""


@dataclass(frozen=True)
class Pace:
    """How long this machine takes, in seconds: up to Ray, for its start, for the data, for all trials, for the end."""

    phases: tuple[float, float, float, float, float]


def check_heard(sweep: Path, kills: int) -> None:
    """The callback of `eight_tune` was told each validation and each end of a trial once; after a kill between the
    telling and its note it may hear the same thing twice."""
    twice = 0
    for number in range(TRIALS):
        heard = (sweep / "logs" / "tune" / f"trial_{number:04d}.txt").read_text().split()
        assert sorted(set(heard) - {"ended"}, key=int) == [str(epoch) for epoch in range(1, 41)]
        assert heard[-1] == "ended"
        twice += len(heard) - 41
    assert twice <= kills, f"{twice} events were told twice after {kills} kills"


def undisturbed(sweep: Path, file: Path = EIGHT, *flags: str) -> Pace:
    """Runs the sweep to its end, and says how long each phase took."""
    trials, keep = _SIZES.get(file, (TRIALS, 3))
    command = Command(sweep, str(file), "--out", str(sweep.parent), "--name", sweep.name, *flags, trials=trials)
    marks = [0.0]
    for phase in PHASES[1:]:
        assert command.wait_for(phase), "".join(command.errors)
        marks.append(time.monotonic() - command.started)
    assert command.end() == 0, "".join(command.errors)
    marks.append(time.monotonic() - command.started)
    assert not command.left_behind()
    check_whole(sweep, trials, keep)
    lengths = [late - early for early, late in pairwise(marks)]
    return Pace((lengths[0], lengths[1], lengths[2], lengths[3], lengths[4]))


def killed(sweep: Path, seed: int, kills: int, pace: Pace, weights: tuple[int, ...], file: Path = EIGHT) -> Story:
    """Runs a sweep whose driver is killed so many times, at moments drawn from the seed, and lets it come to its end.

    Args:
        weights: how likely each phase is. While trials are under way the kill comes up to a second after none, one or
            two more of them have ended; in another phase every moment is as likely as any other. Three of four commands
            lose a process of a trial besides, before the driver is killed or where it is not.

    Raises:
        AssertionError: with the story so far as its second argument: something was lost, repeated, or left behind.
    """
    draw, story, before = random.Random(seed), Story(sweep, seed), {}
    trials, keep = _SIZES.get(file, (TRIALS, 3))
    commands: list[Command] = []
    try:
        while True:
            fresh = not (sweep / "sweep.json").is_file()
            arguments = [str(file), "--out", str(sweep.parent), "--name", sweep.name]
            commands.append(command := Command(sweep, *(arguments if fresh else [str(sweep)]), trials=trials))
            story.lost += _lose_a_process(command, draw)
            over = len(story.kills) == kills
            if not over:
                place = draw.choices(range(len(PHASES)), weights)[0]
                if PHASES[place] == "trials under way":  # counted in trials, since a busy machine stretches seconds
                    more, delay = draw.randint(0, 2), draw.random()
                    over = not command.wait_for(PHASES[place], ended=min(len(before) + more, trials - 1), delay=delay)
                else:
                    over = not command.wait_for(PHASES[place], draw.random() * pace.phases[place])
            if over:
                break  # with fewer kills, where it came to its end before the last of them
            seconds, phase = command.kill()
            before = _stays(before, sweep)
            story.kills.append(Kill(seconds, phase, len(before), command))
            check_files(sweep)
            if len(before) == trials:  # what is left to do is not worth another kill
                kills = len(story.kills)
            if draw.random() < 0.25:  # else it goes on while what is left of it ends
                command.check_gone()
        assert command.end() == 0, "".join(command.errors)
        check_whole(sweep, trials, keep)
        _stays(before, sweep)
        for kill in story.kills:
            kill.command.check_gone()
        left_over = commands[-1].left_behind(10)
        assert not left_over, left_over
        return story
    except AssertionError as error:
        raise AssertionError(str(error), story) from error
    finally:
        commands[-1].abandon()


def _lose_a_process(command: Command, draw: random.Random) -> bool:
    """Kill a process of a trial, three times of four, up to a second after all of the trial's have begun; return
    whether one was."""
    rank, delay = draw.randint(0, 1), draw.random()
    if draw.random() < 0.25 or not command.wait_for(PHASES[3]):
        return False
    deadline = time.monotonic() + 120
    while command.running and time.monotonic() < deadline:
        live = {int(one.split()[0]) for one in command.processes()}
        for at in sorted(command.sweep.glob("trials/*")):
            pids = _pids(at)
            if pids and live.issuperset(pids):
                time.sleep(delay)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pids[rank % len(pids)], signal.SIGKILL)
                return True
        time.sleep(0.05)
    return False


def _pids(trial: Path) -> list[int]:
    """Return the processes that train a trial; none where it does not train, or not all of them have begun."""
    known = record.read(trial)
    if known.get("status") != "running":
        return []
    workers = json.loads((trial / "experiment.json").read_text())["scaling"]["workers"]
    if workers == 1:
        return [known["pid"]]
    places = [trial / "logs" / f"place_{rank}.json" for rank in range(workers)]
    return [load(place)["pid"] for place in places] if all(place.is_file() for place in places) else []


def _stays(before: dict[int, tuple[bytes, bytes]], sweep: Path) -> dict[int, tuple[bytes, bytes]]:
    """What has ended since, where all that had ended before is as it was."""
    now = ended(sweep)
    for number, files in before.items():
        assert now.get(number) == files, f"trial {number} had ended and has changed"
    return now
