"""A sweep whose driver is killed or told to stop, and goes on: no trial is lost, none is run twice, no bit differs."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from harness.faults.sweeps import (
    EIGHT,
    TWO_WORKERS,
    Command,
    Pace,
    check_files,
    check_whole,
    killed,
    load,
    outcome,
    run,
    statuses,
)

from raytrain.checkpoint import layout
from raytrain.sweep import record

Whole = tuple[Path, Pace]


@pytest.mark.slow
def test_a_sweep_killed_twice_is_the_undisturbed_one_bit_for_bit(tmp_path: Path, whole: Whole) -> None:
    story = killed(tmp_path / "cut", seed=7, kills=2, pace=whole[1], weights=(0, 0, 0, 1, 0))
    assert story.kills, "none came before the end"
    assert outcome(story.sweep) == outcome(whole[0])


@pytest.mark.slow
def test_what_a_kill_leaves_half_done_is_made_whole(tmp_path: Path, short: Path) -> None:
    sweep = Path(shutil.copytree(short, tmp_path / "cut"))
    best, other, *_ = sorted(range(8), key=lambda n: load(sweep / "sweep.json")["trials"][n]["objective"][0])
    (sweep / "sweep.json").write_text(json.dumps(load(sweep / "sweep.json") | {"status": "running"}))
    at = record.folder(sweep, best)  # its last words were written, and its record not
    (at / "trial.json").write_text(json.dumps(load(at / "trial.json") | {"status": "running"}))
    at = record.folder(sweep, other)  # a checkpoint was committed, and nothing points to it yet
    rows = (at / "metrics.jsonl").read_bytes()
    (at / "metrics.jsonl").write_bytes(rows + rows[: len(rows) // 3])
    (at / "trial.json").write_text(json.dumps(load(at / "trial.json") | {"status": "running"}))
    for name in ("last.json", "best.json", "summary.json"):
        (at / name).unlink()
    fresh = next(n for n in range(8) if not (record.folder(sweep, n) / "checkpoints").exists())
    at = record.folder(sweep, fresh)  # its directory was made, and its record not
    for name in ("trial.json", "metrics.jsonl", "summary.json", "last.json", "best.json"):
        (at / name).unlink()
    for name in ("stop", f"trials/{best:04d}/stop", f"trials/{best:04d}/.trial.json.77", ".sweep.json.77"):
        (sweep / name).write_text('{"sta')
    command = Command(sweep, str(sweep))
    assert command.end() == 0, "".join(command.errors)
    check_whole(sweep)
    assert outcome(sweep) == outcome(short)
    assert load(record.folder(sweep, fresh) / "trial.json")["attempts"] == 1


@pytest.mark.slow
def test_kill_after_the_last_trial_leaves_only_the_end_to_do(tmp_path: Path, short: Path) -> None:
    sweep = Path(shutil.copytree(short, tmp_path / "cut"))
    loser = next(n for n in range(8) if not (record.folder(sweep, n) / "checkpoints").exists())
    (record.folder(sweep, loser) / "checkpoints" / "step_00000037").mkdir(parents=True)
    answer = load(sweep / "sweep.json")
    answer = {**answer, "status": "running", "best": None, "front": [], "trials": answer["trials"][:6]}
    (sweep / "sweep.json").write_text(json.dumps(answer))
    (sweep / "trials.csv").unlink()
    (sweep / "best.json").unlink()
    shutil.rmtree(sweep / "plots")
    command = Command(sweep, str(sweep))
    assert command.end() == 0, "".join(command.errors)
    assert "starting Ray" not in "".join(command.lines)
    check_whole(sweep)
    assert outcome(sweep) == outcome(short)


@pytest.mark.slow
def test_signals_end_a_sweep_with_checkpoints_and_it_goes_on(tmp_path: Path, whole: Whole) -> None:
    sweep = tmp_path / "cut"
    for number, status, group in ((signal.SIGINT, 130, True), (signal.SIGTERM, 143, False)):
        fresh = [str(EIGHT), "--out", str(tmp_path), "--name", "cut"]
        command = Command(sweep, *([str(sweep)] if sweep.exists() else fresh))
        assert command.wait_for("trials under way", 1.0)
        started = time.monotonic()
        (os.killpg if group else os.kill)(command.process.pid, number)  # a terminal sends it to all of the group
        assert command.end(60) == status, "".join(command.errors)
        assert time.monotonic() - started < 20  # 3 s on two idle cores
        assert not (left := command.left_behind(10)), left
        assert "Traceback" not in "".join(command.errors)
        found, answer = statuses(sweep), load(sweep / "sweep.json")
        begun = [n for n, one in found.items() if (record.folder(sweep, n) / "metrics.jsonl").is_file()]
        assert begun and answer["status"] == "interrupted" and "running" not in found.values()
        for n in begun:
            if found[n] == "interrupted":
                last = layout.newest(record.folder(sweep, n) / "checkpoints")
                rows = (record.folder(sweep, n) / "metrics.jsonl").read_text().splitlines()
                assert last is not None and layout.load_state(last)["progress"]["step"] == json.loads(rows[-1])["step"]
        assert "interrupted" in found.values()
        assert not [*sweep.rglob("stop")]
    command = Command(sweep, str(sweep))
    assert command.end() == 0, "".join(command.errors)
    check_whole(sweep)
    assert outcome(sweep) == outcome(whole[0])


@pytest.mark.slow
def test_early_and_second_signals_end_a_sweep_at_once(tmp_path: Path) -> None:
    sweep = tmp_path / "cut"
    command = Command(sweep, str(EIGHT), "--out", str(tmp_path), "--name", "cut")
    time.sleep(1.0)  # raytrain is imported by then, and torch is not
    command.process.send_signal(signal.SIGINT)
    assert command.end(20) == 130 and not sweep.exists() and "Traceback" not in "".join(command.errors)
    command = Command(sweep, str(EIGHT), "--out", str(tmp_path), "--name", "cut")
    assert command.wait_for("Ray starting", 0.3)
    os.killpg(command.process.pid, signal.SIGINT)
    assert command.end(60) == 130 and load(sweep / "sweep.json")["status"] == "interrupted"
    assert not (left := command.left_behind(10)), left
    command = Command(sweep, str(sweep))
    assert command.wait_for("trials under way", 0.5)
    command.process.send_signal(signal.SIGINT)
    time.sleep(0.2)
    started = time.monotonic()
    command.process.send_signal(signal.SIGTERM)
    assert command.end(20) == 130 and time.monotonic() - started < 10
    assert not (left := command.left_behind(10)), left
    assert "Traceback" not in "".join(command.errors), "".join(command.errors)
    assert load(sweep / "sweep.json")["status"] == "interrupted"
    check_files(sweep)


@pytest.mark.slow
def test_two_worker_trials_are_bit_equal_after_losses(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    command = Command(whole, str(TWO_WORKERS), "--out", str(tmp_path), "--name", "whole")
    assert command.end() == 0, "".join(command.errors)
    first, second = record.folder(cut, 0), record.folder(cut, 1)

    def wait_for_rows(trial: Path, count: int) -> int:
        deadline = time.monotonic() + 400
        file = trial / "metrics.jsonl"
        while (rows := file.read_text().count("\n") if file.is_file() else 0) < count:
            assert command.running and time.monotonic() < deadline, "".join(command.lines + command.errors)
            time.sleep(0.02)
        return rows

    command = Command(cut, str(TWO_WORKERS), "--out", str(tmp_path), "--name", "cut")
    done = wait_for_rows(first, 200)
    os.kill(load(first / "logs" / "place_1.json")["pid"], signal.SIGKILL)
    wait_for_rows(first, done + 400)
    done = wait_for_rows(second, 200)
    os.kill(load(second / "trial.json")["pid"], signal.SIGKILL)
    wait_for_rows(second, done + 400)
    started = time.monotonic()
    command.process.send_signal(signal.SIGINT)
    assert command.end(60) == 130, "".join(command.errors)
    assert time.monotonic() - started < 15  # 10 s at most where nothing else runs
    assert not (left := command.left_behind(10)), left
    assert statuses(cut) == {0: "completed", 1: "interrupted"}
    command = Command(cut, str(cut))
    assert command.end() == 0, "".join(command.errors)
    assert [load(at / "trial.json")["attempts"] for at in (first, second)] == [2, 3]
    assert [run(record.folder(cut, n)) for n in (0, 1)] == [run(record.folder(whole, n)) for n in (0, 1)]


_WRITES = """
import os, pathlib, signal, sys
from raytrain.sweep import record
run = pathlib.Path(sys.argv[1])
record.update(run, status="running", values={"x": "old" * 9999})
calls = ("lock", "open", "write", "fsync", "replace")
def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)
for call in calls:
    child = os.fork()
    if not child:
        import builtins
        if call == "lock":
            builtins.open = die
        elif call == "write":
            write = os.write
            os.write = lambda to, data: (write(to, bytes(data)[: len(data) // 2]), die())
        else:
            setattr(os, call, die)
        record.update(run, status="completed", values={"x": "new" * 9999})
        os._exit(3)
    died = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(call, died, record.read(run)["status"], record.read(run)["values"]["x"] == "old" * 9999)
"""


def test_kill_while_a_record_is_written_leaves_the_last_one(tmp_path: Path) -> None:
    said = subprocess.run(
        [sys.executable, "-c", _WRITES, str(tmp_path)], capture_output=True, text=True, check=True, timeout=120
    ).stdout.split("\n")
    assert said[:-1] == [f"{call} -9 running True" for call in ("lock", "open", "write", "fsync", "replace")]
