"""Loggers of a real run: each row once through five SIGKILLs of the whole process tree, and through a lost worker."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.killed_runs import command, rows_so_far, wait_for_step
from helpers.processes import tree

import raytrain
from raytrain import Run, Scaling, cli

FILE = '''
"""Digits, slowly, with a logger."""

import json
import time
from dataclasses import dataclass
from pathlib import Path

from raytrain import CNN, Checkpoint, Classification, Digits, Experiment, Hook, Logger


@dataclass(frozen=True)
class Slow(Classification):
    def loss(self, model, batch):
        time.sleep(0.005)
        return super().loss(model, batch)


@dataclass(frozen=True)
class Count(Hook):
    def after_step(self, trainer):
        self.state["steps"] = self.state.get("steps", 0) + 1
        return {"count": self.state["steps"]}


@dataclass(frozen=True)
class Lines(Logger):
    file: str

    def start(self, run, held):
        path = Path(self.file)
        lines = path.read_text().splitlines(True) if path.exists() else []
        rows = [json.loads(line) for line in lines if line.endswith("\\n")]
        kept = [row for row in rows if row["kind"] == "step" and row["step"] <= held.step]
        kept += [row for row in rows if row["kind"] == "epoch" and row["epoch"] <= held.epoch]
        path.write_text("".join(json.dumps(row) + "\\n" for row in kept))

    def log(self, rows):
        with open(self.file, "a") as file:
            for row in rows:
                file.write(json.dumps(row) + "\\n")


experiment = Experiment(
    CNN(channels=(4,)), Digits(), Slow(), hooks=(Count(),), loggers=(Lines(FILE),),
    checkpoint=Checkpoint(every_steps=7), epochs=20,
)
'''


def same(run: Path, lines: Path) -> bool:
    """Whether a logger's file has every row of the metrics once."""

    def rows(file: Path) -> list[str]:
        return sorted(json.dumps(json.loads(line)) for line in file.read_text().splitlines())

    assert [row["count"] for row in rows_so_far(run) if row["kind"] == "step"] == list(range(1, 461))
    return rows(run / "metrics.jsonl") == rows(lines)


@pytest.mark.slow
def test_logger_of_a_run_gets_each_row_once_through_five_kills(tmp_path: Path) -> None:
    file, run, lines = tmp_path / "exp.py", tmp_path / "run", tmp_path / "lines"
    file.write_text(FILE.replace("Lines(FILE)", f"Lines({str(lines)!r})"))
    start = command("train", str(file), "--out", str(tmp_path), "--name", "run", "--scaling.workers", "2")
    logged = []
    for kill in range(5):
        arguments = command("resume", str(run)) if kill else start
        process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        wait_for_step(run, 40 + 80 * kill, process)
        for pid in tree(process.pid):
            os.kill(pid, signal.SIGKILL)
        process.communicate()
        logged.append(len(lines.read_text().splitlines()))  # the first kill may come before the first rows
    assert 0 < logged[-1] < 480, "the logger is fed while the run trains"
    resumed = subprocess.run(command("resume", str(run)), capture_output=True, text=True, timeout=300)
    assert resumed.returncode == 0, resumed.stderr
    assert Run(run).summary["status"] == "completed" and same(run, lines)


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_logger_gets_each_row_once_after_a_lost_worker(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, run, lines = tmp_path / "exp.py", tmp_path / "run", tmp_path / "lines"
    file.write_text(FILE.replace("Lines(FILE)", f"Lines({str(lines)!r})"))
    killer = threading.Thread(target=kill_rank_0, args=(run, 100), daemon=True)
    killer.start()
    assert cli.run(["train", str(file), "--out", str(tmp_path), "--name", "run"]) == 0
    killer.join()
    assert "lost: rank 0 is gone" in capsys.readouterr().out and same(run, lines)


def kill_rank_0(run: Path, step: int) -> None:
    """Waits until that step is done, and kills the worker."""
    while not (run / "metrics.jsonl").is_file() or not rows_so_far(run) or rows_so_far(run)[-1]["step"] < step:
        time.sleep(0.05)
    os.kill(json.loads((run / "logs" / "place_0.json").read_text())["pid"], signal.SIGKILL)


@pytest.mark.usefixtures("cluster")
def test_loggers_are_given_in_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, lines = tmp_path / "exp.py", tmp_path / "lines"
    file.write_text(FILE.replace("Lines(FILE)", f"Lines({str(lines)!r})"))
    value, _ = raytrain.load_experiment(file)
    (logger,) = value.loggers
    monkeypatch.chdir(tmp_path)
    plain = replace(value, loggers=(), epochs=1, scaling=Scaling(workers=0))
    run = raytrain.train(plain, name="run", loggers=(logger,), quiet=True)
    assert len(lines.read_text().splitlines()) == 24
    raytrain.resume(run, epochs=20, loggers=(logger,), quiet=True)
    assert same(run.path, lines)
