"""An experiment with modules of its own: trained, killed, resumed and used when the user's files are gone."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from helpers.killed_runs import command, rows, wait_for_step, weights
from helpers.processes import tree
from helpers.projects import PROJECT, write

SWEEP = """
from dataclasses import replace
from raytrain import Choice, Grid, Scaling, Sweep
from exp import experiment
from nets import Net

sweep = Sweep(
    replace(experiment, scaling=Scaling(workers=1)),
    axes=(Choice("model", (Net(4), Net(8))), Grid("optimizer.lr", (0.1, 0.01))),
    trials=3,
)
"""
SCRIPT = """
import raytrain
from dataclasses import dataclass
from nets import Net
from raytrain import Classification, Experiment, Scaling
import source

@dataclass(frozen=True)
class Local(Classification):
    pass

if __name__ == "__main__":
    value = Experiment(Net(6), source.Mine(), Local(), scaling=Scaling(workers=2))
    run = raytrain.train(value, name="script", quiet=True)
    assert run.summary["status"] == "completed" and run.experiment.data == value.data
    assert type(run.experiment.model) is Net and type(run.experiment.task) is Local
"""


def done(*arguments: object, cwd: Path) -> str:
    found = subprocess.run(
        command(*map(str, arguments)), cwd=cwd, capture_output=True, text=True, check=False, timeout=300
    )
    assert found.returncode == 0, found.stderr
    return found.stdout


@pytest.mark.slow
def test_run_with_modules_works_after_its_files_are_gone(tmp_path: Path) -> None:
    project = write(tmp_path / "project", PROJECT)
    flags = ("--data.mode", "streaming", "--scaling.workers", 2, "--epochs", 4, "--checkpoint.every_steps", 5)
    done("train", project / "exp.py", *flags, "--name", "whole", cwd=tmp_path)
    train = command("train", str(project / "exp.py"), *map(str, flags), "--name", "cut")
    with subprocess.Popen(train, cwd=tmp_path, stdout=subprocess.DEVNULL) as running:
        run = tmp_path / "runs" / "cut"
        wait_for_step(run, 30, running)
        for process in tree(running.pid):
            os.kill(process, signal.SIGKILL)
    shutil.rmtree(project)
    done("resume", run, cwd=tmp_path)
    assert rows(run) == rows(tmp_path / "runs" / "whole") and weights(run) == weights(tmp_path / "runs" / "whole")
    assert json.loads(done("evaluate", run, "--json", cwd=tmp_path))["count"] == 359
    done("export", run, tmp_path / "model.pt2", cwd=tmp_path)
    done("train", run / "experiment.json", "--name", "again", "--epochs", 1, cwd=tmp_path)
    assert not [*run.rglob("*.pyc")]


@pytest.mark.slow
def test_sweep_and_script_work_after_their_files_are_gone(tmp_path: Path) -> None:
    project = write(tmp_path / "project", {**PROJECT, "sweep.py": SWEEP, "script.py": SCRIPT})
    done("sweep", project / "sweep.py", "--name", "sweep", cwd=tmp_path)
    script = subprocess.run(
        [*command()[:1], project / "script.py"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300
    )
    assert script.returncode == 0, script.stderr
    shutil.rmtree(project)
    runs = tmp_path / "runs"
    best = json.loads((runs / "sweep" / "sweep.json").read_text())["best"]
    for run in (runs / "script", runs / "sweep" / "trials" / f"{best:04d}"):
        assert json.loads(done("evaluate", run, "--json", cwd=tmp_path))["count"] == 359
    done("train", runs / "sweep" / "best.json", "--name", "best", cwd=tmp_path)
    assert rows(runs / "best") == rows(runs / "sweep" / "trials" / f"{best:04d}")
