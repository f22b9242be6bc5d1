"""Sweeps with parts of Ray Tune and with conditions, on real actors: what a callback hears, and what a kill leaves."""

from __future__ import annotations

import json
import shutil
import textwrap
from pathlib import Path
from typing import Any

import pytest

import raytrain
from raytrain import MLP, SGD, AdamW, Choice, Digits, Experiment, LogUniform, Sweep, Uniform
from raytrain.driver.endings import RunFailed
from raytrain.driver.options import Options
from raytrain.loggers import Logger
from raytrain.report.sweep import write_files
from raytrain.sweep import driver
from raytrain.sweep.sweep_file import load
from raytrain.sweep.sweep_run import SweepRun

pytestmark = pytest.mark.usefixtures("cluster")

FILE = '''
    """A searcher, a scheduler and callbacks of Ray Tune."""
    import random
    from pathlib import Path
    from ray.tune import Callback
    from ray.tune.logger import CSVLoggerCallback
    from ray.tune.schedulers import AsyncHyperBandScheduler
    from ray.tune.search import Searcher
    from raytrain import *

    class Walk(Searcher):
        """Walks on from the last result: it depends on all that it was told."""
        def __init__(self, seed=None):
            super().__init__()
            self.random, self.at = random.Random(seed), 0.5

        def set_search_properties(self, metric, mode, config, **spec):
            self._metric, self.space = metric, config
            return True

        def suggest(self, trial_id):
            draw = lambda domain: domain.sample(random_state=self.random.getrandbits(31))
            found = {path: draw(domain) for path, domain in self.space.items()}
            return found | {"clip_norm": 0.5 + self.at}

        def on_trial_complete(self, trial_id, result=None, error=False):
            self.at = (self.at + result[self._metric]) % 1 if result else 0.0

    class Heard(Callback):
        def on_trial_start(self, iteration, trials, trial, **info):
            self.say(trial, "start")

        def on_trial_result(self, iteration, trials, trial, result, **info):
            self.say(trial, f"{result['trained']:g} {result['val_loss']!r}")

        def on_trial_complete(self, iteration, trials, trial, **info):
            self.say(trial, "end")

        def say(self, trial, text):
            with open(FOLDER / f"{trial}.txt", "a") as file:
                file.write(text + chr(10))

    class Broken(Callback):
        def on_trial_result(self, iteration, trials, trial, result, **info):
            raise ValueError("a mistake of the callback's")

    FOLDER = Path(PLACE)
    sweep = Sweep(
        Experiment(
            MLP(hidden=(16,)), Digits(), optimizer=SGD(lr=0.05), epochs=4, scaling=Scaling(threads_per_worker=1)
        ),
        axes=(Choice("batch_size", (32, 64)), LogUniform("optimizer.lr", 0.005, 0.5), Uniform("clip_norm", 0.5, 1.5)),
        objective="val_loss",
        search=TuneSearch(Walk),
        scheduler=TuneScheduler(AsyncHyperBandScheduler, reduction_factor=2),
        callbacks=(TuneCallback(Heard), TuneCallback(Broken), TuneCallback(CSVLoggerCallback)),
        trials=5,
        concurrent=1,
    )
'''


class Notes(Logger):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def outcomes(found: SweepRun) -> list[Any]:
    names = ("number", "values", "status", "objective", "epochs", "after")
    return [found.answer["best"], [{name: trial.get(name) for name in names} for trial in found.trials]]


@pytest.mark.slow
def test_tune_s_parts_work_together_and_go_on_after_a_kill(tmp_path: Path) -> None:
    file, heard = tmp_path / "parts.py", tmp_path / "heard"
    heard.mkdir()
    file.write_text(textwrap.dedent(FILE).replace("PLACE", repr(str(heard))))
    sweep, source = load(file)
    notes = Notes()
    found = driver.sweep(sweep, Options(out=str(tmp_path), name="sweep"), notes, source, 0.0, write_files)
    assert found is not None and [trial["number"] for trial in found.trials] == list(range(5))
    assert {trial["status"] for trial in found.trials} == {"completed", "stopped"}, "the scheduler stopped some"
    assert [trial.get("after") for trial in found.trials] == [None, [0], [1], [2], [3]]
    at = 0.5
    for trial in found.trials:
        assert trial["values"]["clip_norm"] == 0.5 + at, "the searcher was told the result before"
        at = (at + trial["objective"][0]) % 1
    (note,) = [note for note in notes.notes if "Broken" in note]
    line = 1 + next(n for n, text in enumerate(file.read_text().splitlines()) if "raise ValueError" in text)
    assert note.startswith("the callback Broken failed in on_trial_result and is left out: ValueError: a mistake of ")
    assert note.endswith(f"parts.py:{line})")
    curves = found.table()["curve"].to_pylist()
    for trial, curve in zip(found.trials, curves, strict=True):
        lines = (heard / f"trial_{trial['number']:04d}.txt").read_text().splitlines()
        assert lines == ["start", *(f"{n} {row['val_loss']!r}" for n, row in enumerate(curve, 1)), "end"]
        progress = (found.path / "logs" / "tune" / f"trial_{trial['number']:04d}" / "progress.csv").read_text()
        assert len(progress.splitlines()) == 1 + trial["epochs"]
    check_table(found)

    # As after a kill when trial 3 had ended and its callbacks were not told; trial 4 was not proposed.
    whole, path = outcomes(found), found.path
    shutil.rmtree(path / "trials" / "0004")
    told = path / "trials" / "0003" / "logs" / "callbacks.json"
    values = json.loads(told.read_text())["callbacks"]
    told.write_text(json.dumps({"callbacks": [one | {"ended": False} for one in values]}))
    (heard / "trial_0004.txt").unlink()
    before = {file.name: file.read_text().splitlines() for file in heard.iterdir()}
    sweep = load(path)[0]
    more = driver.resume(path, sweep, Options(), notes, 0.0, write_files)
    assert more is not None and outcomes(more) == whole
    now = {file.name: file.read_text().splitlines() for file in heard.iterdir()}
    assert now.pop("trial_0004.txt")[-1] == "end"
    assert now.pop("trial_0003.txt") == [*before.pop("trial_0003.txt"), "start", "end"]
    assert now == before, "nothing is heard twice"


def check_table(found: SweepRun) -> None:
    table = found.table()
    assert table.column_names[:7] == ["trial", "status", "config", "result", "curve", "path", "error"]
    assert table.column_names[7:] == ["violates", "configuration", "repeat"] and found.configurations == []
    rows = table.to_pylist()
    for trial, row in zip(found.trials, rows, strict=True):
        assert row["config"] == trial["values"] and row["status"] == trial["status"] and row["trial"] == trial["number"]
        assert row["result"]["val_loss"] == trial["objective"][0] and row["result"]["seconds"] == trial["seconds"]
        assert min(one["val_loss"] for one in row["curve"]) == trial["objective"][0]
        assert raytrain.Run(row["path"]).experiment.batch_size == trial["values"]["batch_size"]
    assert [run.path.name for run in found.front] == [f"{number:04d}" for number in found.answer["front"]]


@pytest.mark.slow
def test_conditional_space_with_limits_trains_and_resumes(tmp_path: Path) -> None:
    sweep = Sweep(
        Experiment(model=MLP(hidden=(16,)), data=Digits(), optimizer=SGD(lr=0.05), epochs=1),
        axes=(
            Choice("optimizer", (SGD(), AdamW())),
            LogUniform("optimizer.lr", 0.01, 0.1),
            Uniform("optimizer.momentum", 0.5, 0.9, step=0.1, when=("optimizer", "SGD")),
        ),
        objective=("val_accuracy", "val_loss", "peak_memory_bytes"),
        first=({"optimizer": "SGD", "optimizer.lr": 0.05, "optimizer.momentum": 0.9}, {"optimizer": "AdamW"}),
        constraints=("peak_memory_bytes <= 1 MiB",),
        trials=2,
        concurrent=1,
    )
    with pytest.raises(RunFailed, match="no trial keeps the constraints: peak_memory_bytes") as failed:
        raytrain.sweep(sweep, out=str(tmp_path), name="sweep", quiet=True)
    more = f"`raytrain sweep {tmp_path / 'sweep'} --trials 4`"
    assert failed.value.how == f"start a new sweep with other limits, or go on with more trials: {more}"
    found = SweepRun(tmp_path / "sweep")
    assert found.best is None and found.front == [] and found.answer["status"] == "completed"
    assert [trial["violates"] for trial in found.trials] == [["peak_memory_bytes <= 1 MiB"]] * 2
    first, second = (raytrain.Run(found.path / "trials" / f"{n:04d}").experiment.optimizer for n in (0, 1))
    assert first == SGD(lr=0.05, momentum=0.9) and second == AdamW(lr=second.lr)
    assert found.table()["config"].to_pylist()[1] == {
        "optimizer": "AdamW", "optimizer.lr": second.lr, "optimizer.momentum": None,
    }  # fmt: skip
    assert found.table()["violates"].to_pylist() == [["peak_memory_bytes <= 1 MiB"]] * 2
    shutil.rmtree(found.path / "trials" / "0001")
    with pytest.raises(RunFailed, match="no trial keeps"):
        driver.resume(found.path, load(found.path)[0], Options(), Logger(), 0.0, write_files)
    assert raytrain.Run(found.path / "trials" / "0001").experiment.optimizer == second
