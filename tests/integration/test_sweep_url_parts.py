"""Sweeps at a URL with parts of Ray Tune, and with PBT, go on on another machine after a kill."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import textwrap
import time
from pathlib import Path

import pytest
from helpers.killed_runs import command, weights
from helpers.processes import tree

from raytrain.checkpoint import location
from raytrain.checkpoint.storage import Storage
from raytrain.sweep import record
from raytrain.sweep.sweep_run import SweepRun

pytestmark = pytest.mark.slow

PARTS = """
    import os
    from pathlib import Path
    from ray.tune import Callback
    from ray.tune.schedulers import AsyncHyperBandScheduler
    from ray.tune.search.hyperopt import HyperOptSearch
    from raytrain import *

    class Heard(Callback):
        def on_trial_result(self, iteration, trials, trial, result, **info):
            self.say(trial, f"{result['trained']:g} {result['val_loss']!r}")

        def on_trial_complete(self, iteration, trials, trial, **info):
            self.say(trial, "end")

        def say(self, trial, text):
            with open(Path(os.environ["HEARD"]) / f"{trial}.txt", "a") as file:
                file.write(text + chr(10))

    sweep = Sweep(
        Experiment(MLP(hidden=(16,)), Digits(), optimizer=SGD(lr=0.05), epochs=6),
        axes=(Choice("batch_size", (32, 64)), LogUniform("optimizer.lr", 0.005, 0.5)),
        objective="val_loss",
        search=TuneSearch(HyperOptSearch, n_initial_points=2),
        scheduler=TuneScheduler(AsyncHyperBandScheduler, reduction_factor=2),
        callbacks=(TuneCallback(Heard),),
        trials=6,
        concurrent=1,
    )
"""
POPULATION = """
    from raytrain import *

    sweep = Sweep(
        Experiment(MLP(hidden=(16,)), Digits(), optimizer=SGD(lr=0.05), epochs=24),
        axes=(LogUniform("optimizer.lr", 0.0005, 0.5), Uniform("optimizer.momentum", 0.0, 0.9)),
        scheduler=PBT(every_epochs=4),
        trials=4,
        concurrent=2,
    )
"""


def killed(file: Path, url: str, name: str, **variables: str) -> None:
    """Starts a sweep at a URL, kills all of its processes once a file of it is there, and forgets its mirror."""
    parent, _, folder = url.rpartition("/")
    start = command("sweep", str(file), "--out", parent, "--name", folder)
    process = subprocess.Popen(start, stdout=subprocess.DEVNULL, env=os.environ | variables)
    storage, deadline = Storage(url), time.monotonic() + 600
    while not any(found.startswith(name) for found in storage.names()):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.2)
    for pid in reversed(tree(process.pid)):
        os.kill(pid, signal.SIGKILL)
    process.communicate()
    shutil.rmtree(location.mirror(url))


def goes_on(url: str, **variables: str) -> SweepRun:
    """Resumes it to its end; returns the sweep as a third machine sees it."""
    done = subprocess.run(
        command("resume", url), env=os.environ | variables, capture_output=True, text=True, check=False, timeout=900
    )
    assert done.returncode == 0, done.stderr
    shutil.rmtree(location.mirror(url))
    return SweepRun(url)


def test_searcher_scheduler_and_callback_of_tune_go_on_as_if_undisturbed(s3: str, tmp_path: Path) -> None:
    file, url, alone, heard = tmp_path / "parts.py", f"{s3}/sweeps/parts", tmp_path / "alone", tmp_path / "heard"
    file.write_text(textwrap.dedent(PARTS))
    alone.mkdir()
    heard.mkdir()
    start = command("sweep", str(file), "--out", str(tmp_path), "--name", "whole")
    subprocess.run(start, check=True, capture_output=True, timeout=900, env=os.environ | {"HEARD": str(alone)})
    killed(file, url, "trials/0003/metrics.jsonl", HEARD=str(heard))
    found, whole = goes_on(url, HEARD=str(heard)), SweepRun(tmp_path / "whole")

    def known(sweep: SweepRun) -> list[list[object]]:
        names = ("number", "status", "values", "objective", "epochs", "after")
        return [[one.get(name) for name in names] for one in sweep.trials]

    assert known(found) == known(whole) and found.answer["best"] == whole.answer["best"]
    assert {one["status"] for one in found.trials} <= set(record.ENDED)
    said, expected = ({one.name: one.read_text().splitlines() for one in at.iterdir()} for at in (heard, alone))
    assert said.keys() == expected.keys()
    for name, lines in expected.items():
        assert [*dict.fromkeys(said[name])] == lines, "in order, and none is missing"
        if name < "trial_0003.txt":  # later ones may have trained before the kill, and their files were not stored
            assert said[name] == lines, "nothing is heard twice of trials that did not train then"


def test_population_goes_on_and_its_best_repeats(s3: str, tmp_path: Path) -> None:
    file, url = tmp_path / "population.py", f"{s3}/sweeps/population"
    file.write_text(textwrap.dedent(POPULATION))
    killed(file, url, "trials/0001/checkpoints/")
    found = goes_on(url)
    assert [(one["status"], one["epochs"]) for one in found.trials] == [("completed", 24)] * 4
    again = command("train", str(found.path / "best.json"), "--out", str(tmp_path), "--name", "again")
    done = subprocess.run(again, check=False, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    assert found.best is not None
    assert weights(tmp_path / "again") == weights(found.best.path)
