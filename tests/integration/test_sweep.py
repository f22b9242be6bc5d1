"""Sweeps on real actors of Ray Tune: the numbers are the experiment's, what goes wrong in a trial stays in it."""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import json
import math
import random
import re
import shutil
import signal
import textwrap
import time
from pathlib import Path
from statistics import median
from typing import Any

import pytest

import raytrain
from raytrain import (
    ASHA,
    CNN,
    MLP,
    PB2,
    PBT,
    SGD,
    TPE,
    Choice,
    Cosine,
    Digits,
    Experiment,
    Grid,
    HyperBand,
    LogUniform,
    MedianStopping,
    RandomSearch,
    Scaling,
    Sweep,
    config,
)
from raytrain.driver import reading
from raytrain.driver.endings import Interrupted
from raytrain.driver.options import Options
from raytrain.driver.resources import local_resources
from raytrain.loggers import Logger
from raytrain.report.sweep import write_files
from raytrain.run import experiment_file
from raytrain.sweep import driver, sweep_run, tuning
from raytrain.sweep.sweep_file import load

pytestmark = pytest.mark.usefixtures("cluster")

BASE = Experiment(
    model=MLP(hidden=(32,)), data=Digits(), optimizer=SGD(lr=0.05, momentum=0.9), schedule=Cosine(), epochs=2
)
LR = LogUniform("optimizer.lr", 1e-4, 1.0)


def run(sweep: Sweep, out: Path, **options: Any) -> sweep_run.SweepRun:
    return raytrain.sweep(sweep, out=str(out), name="sweep", quiet=True, **options)


def losses(path: Path) -> list[float]:
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    return [row["loss"] for row in rows if row["kind"] == "step"]


def nothing_left() -> None:
    from ray._private.state import actors
    from ray.util import placement_group_table

    assert {group["state"] for group in placement_group_table().values()} <= {"REMOVED"}
    alive = [actor["ActorClassName"] for actor in actors().values() if actor["State"] == "ALIVE"]
    assert not [name for name in alive if "Trial" in name or "Train" in name]


def test_grid_trials_and_best_json_are_bit_equal(tmp_path: Path) -> None:
    sweep = Sweep(BASE, (Grid("precision", ("fp32", "bf16")), Grid("batch_size", (32, 64, 128))), concurrent=2)
    found = run(sweep, tmp_path)
    answer = found.answer
    assert answer["status"] == "completed" and [t["number"] for t in found.trials] == list(range(6))
    assert [t["values"] for t in found.trials] == [
        {"precision": p, "batch_size": b} for p in ("fp32", "bf16") for b in (32, 64, 128)
    ]
    assert {t["status"] for t in found.trials} == {"completed"} and {t["attempts"] for t in found.trials} == {1}
    assert len({t["pid"] for t in found.trials}) == 2, "two actors take all trials"
    for trial in found.trials:
        path = found.path / "trials" / f"{trial['number']:04d}"
        own = raytrain.Run(path)
        assert own.experiment.precision == trial["values"]["precision"]
        steps = 2 * -(-1438 // trial["values"]["batch_size"])
        assert own.summary["steps"] == steps == len(losses(path))
        assert trial["objective"] == [own.summary["val_accuracy"]] == [max(own.metrics()["val_accuracy"].to_pylist())]
        assert trial["samples_per_second"] > 0 and trial["peak_memory_bytes"] > 2**20
        kept = list(path.glob("checkpoints/step_*"))
        assert bool(kept) == (trial["number"] == answer["best"]), "the best alone keeps its weights"
    ranked = sorted(found.trials, key=lambda t: -t["objective"][0])
    assert answer["best"] == ranked[0]["number"] and answer["best"] in answer["front"]
    with open(found.path / "trials.csv") as file:
        table = list(csv.DictReader(file))
    assert [float(row["val_accuracy"]) for row in table] == [t["val_accuracy"] for t in found.trials]
    assert (found.path / "plots" / "parallel_coordinates.png").stat().st_size > 10_000
    nothing_left()

    best = found.best
    assert best is not None and best.model()
    again = raytrain.train(
        raytrain.load_experiment(found.path / "best.json")[0], out=str(tmp_path), name="again", quiet=True
    )
    assert losses(again.path) == losses(best.path)
    assert hashes(again.path) == hashes(best.path)

    before = (found.path / "trials" / "0003" / "metrics.jsonl").stat().st_mtime_ns
    more = driver.resume(found.path, config.replace(sweep, "keep", 2), Options(), Logger(), 0.0, write_files)
    assert more is not None and more.answer["trials"] == found.trials, "there was nothing left to do"
    assert (found.path / "trials" / "0003" / "metrics.jsonl").stat().st_mtime_ns == before
    with pytest.raises(raytrain.UserError, match="cannot change objective"):
        driver.resume(found.path, config.replace(sweep, "objective", "val_loss"), Options(), Logger(), 0.0, write_files)


def hashes(path: Path) -> str:
    return hashlib.sha256((raytrain.Run(path).checkpoint("last") / "model.safetensors").read_bytes()).hexdigest()


BAD = '''
    """Trials that go wrong, each in its way."""
    import os, time
    from dataclasses import dataclass
    import torch
    from torch import nn
    from raytrain import Digits, Experiment, Grid, Model, SGD, Sweep

    class Net(nn.Module):
        def __init__(self, mode, inputs, classes):
            super().__init__()
            self.mode, self.steps, self.linear = mode, 0, nn.Linear(inputs, classes)

        def forward(self, x):
            self.steps += self.training
            if self.steps == 10:  # of every attempt: there is no checkpoint yet
                if self.mode == "killed":
                    os.kill(os.getpid(), 9)
                if self.mode == "hangs":
                    time.sleep(1000)
            if self.steps == 30:  # in the second epoch
                if self.mode == "memory":
                    self.waste = torch.ones(2**30)
                if self.mode == "killed once" and not os.path.exists(os.environ["BAD_FOLDER"] + "/was"):
                    open(os.environ["BAD_FOLDER"] + "/was", "w").close()
                    os.kill(os.getpid(), 9)
                if self.mode == "nan":
                    return self.linear(x.flatten(1)) * float("nan")
                if self.mode == "error":
                    raise ValueError("a mistake of the model's")
            return self.linear(x.flatten(1))

    @dataclass(frozen=True)
    class Bad(Model):
        mode: str = "good"
        def build(self, sample, classes):
            return Net(self.mode, sample[0] * sample[1] * sample[2], classes)

    sweep = Sweep(
        experiment=Experiment(model=Bad(), data=Digits(), optimizer=SGD(lr=0.05), epochs=2),
        axes=(Grid("model.mode", ("good", "memory", "killed", "nan", "hangs", "error", "killed once", "good too")),),
        memory_gib=2.0,
        timeout_seconds=4.0,
        concurrent=2,
    )
'''


@pytest.mark.slow
def test_failed_trial_is_a_result_and_others_are_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "bad.py"
    file.write_text(textwrap.dedent(BAD).replace('os.environ["BAD_FOLDER"]', repr(str(tmp_path))))
    sweep, source = load(file)
    found = driver.sweep(sweep, Options(out=str(tmp_path), name="sweep"), Logger(), source, 0.0, write_files)
    assert found is not None and found.answer["status"] == "completed"
    by = {trial["values"]["model.mode"]: trial for trial in found.trials}
    assert {mode: (trial["status"], trial["attempts"]) for mode, trial in by.items()} == {
        "good": ("completed", 1),
        "memory": ("infeasible", 1),
        "killed": ("crashed", 2),
        "nan": ("diverged", 1),
        "hangs": ("timed_out", 2),
        "error": ("failed", 1),
        "killed once": ("completed", 2),
        "good too": ("completed", 1),
    }
    said = {mode: str(trial["error"]) for mode, trial in by.items()}
    assert "allocate" in said["memory"] and by["memory"]["peak_memory_bytes"] > 2**20
    assert "its process died" in said["killed"] and "no step was finished in 4 s" in said["hangs"]
    assert "the loss became nan at step 30" in said["nan"]
    assert re.fullmatch(r"ValueError: a mistake of the model's \(\S+bad\.py:30\)", said["error"])
    stuck = (found.path / "trials" / "0004" / "logs" / "stuck.log").read_text()
    assert "bad.py" in stuck and "in forward" in stuck, "it says where"
    assert by["good"]["objective"] == by["good too"]["objective"] == by["killed once"]["objective"]
    assert losses(found.path / "trials" / "0006") == losses(found.path / "trials" / "0000"), "it went on, exactly"
    assert by["memory"]["objective"] == [None] and found.answer["best"] in (0, 6, 7)
    nothing_left()


@pytest.mark.slow
def test_asha_saves_half_and_finds_the_best(tmp_path: Path) -> None:
    base = config.replace(BASE, "epochs", 9)
    whole = run(Sweep(base, (LR,), trials=16), tmp_path / "whole")
    spared = run(Sweep(base, (LR,), trials=16, scheduler=ASHA()), tmp_path / "spared")
    assert [t["values"] for t in whole.trials] == [t["values"] for t in spared.trials]
    epochs = sum(t["epochs"] for t in spared.trials)
    assert sum(t["epochs"] for t in whole.trials) == 16 * 9 and epochs <= 16 * 9 / 2
    assert {t["status"] for t in spared.trials} == {"completed", "stopped"}
    best = [max(t["objective"][0] for t in one.trials) for one in (whole, spared)]
    assert best[1] >= best[0] - 0.005
    for trial in spared.trials:  # what was trained of it is what the whole sweep trained
        path = Path("trials") / f"{trial['number']:04d}"
        found = losses(spared.path / path)
        assert found == losses(whole.path / path)[: len(found)] and len(found) >= 23 * trial["epochs"]


def test_asha_stops_trials_inside_an_epoch_and_decides_alike_after_a_kill(tmp_path: Path) -> None:
    """One trial at a time, so that the order of comparisons is that of the numbers."""
    base = dataclasses.replace(BASE, steps=40, validate_every_steps=10, schedule=raytrain.Constant())
    rates = Grid("optimizer.lr", (0.05, 1e-6, 0.02, 0.1, 1e-5))
    sweep = Sweep(base, (rates,), scheduler=ASHA(grace_steps=10, reduction_factor=2), concurrent=1, keep=5)
    found = run(sweep, tmp_path)
    rows = [raytrain.Run(found.path / "trials" / f"{n:04d}").metrics("validation") for n in range(5)]
    accuracy = [dict(zip(one["step"].to_pylist(), one["val_accuracy"].to_pylist(), strict=True)) for one in rows]
    ends, rungs = [], {step: [] for step in (10, 20, 40)}
    step = 0
    for number in range(5):  # successive halving, by what each trial had after these steps
        for step, before in rungs.items():
            before.append(accuracy[number][step])
            if step == 40 or (before[:-1] and before[-1] < median(before[:-1])):
                break
        ends.append(step)
    assert [t["steps"] for t in found.trials] == ends and 10 in ends and 40 in ends
    assert [t["status"] for t in found.trials] == ["completed" if end == 40 else "stopped" for end in ends]
    for n, end in enumerate(ends):
        assert len(losses(found.path / "trials" / f"{n:04d}")) == end, "a stopped trial has trained no further"
    # As after a kill between the checkpoint of the second trial, which is to be stopped there, and its record.
    whole, second = outcomes(found), found.path / "trials" / "0001"
    assert ends[1] == 10 and len(list(second.glob("checkpoints/step_*/manifest.json"))) == 1
    for number in (2, 3, 4):
        shutil.rmtree(found.path / "trials" / f"{number:04d}")
    record_of_it = json.loads((second / "trial.json").read_text())
    (second / "trial.json").write_text(json.dumps(record_of_it | {"status": "running"}))
    more = driver.resume(found.path, sweep, Options(), Logger(), 0.0, write_files)
    assert more is not None and outcomes(more) == whole


def outcomes(found: sweep_run.SweepRun) -> list[Any]:
    """What a sweep has found, without times and attempts."""
    names = ("number", "values", "status", "objective", "steps", "epochs", "val_accuracy", "val_loss")
    figures = [[trial[name] for name in names] for trial in found.trials]
    return [found.answer["best"], figures, [losses(path) for path in sorted(found.path.glob("trials/*"))]]


def test_pbt_copies_weights_and_goes_on_from_them(tmp_path: Path) -> None:
    found = run(
        Sweep(
            config.replace(config.replace(BASE, "epochs", 6), "schedule", raytrain.Constant()),
            (Choice("optimizer.lr", (1e-9, 0.05)),),
            trials=4,
            scheduler=PBT(every_epochs=2, quantile=0.5),
        ),
        tmp_path,
    )
    assert {t["status"] for t in found.trials} == {"completed"} and {t["epochs"] for t in found.trials} == {6}
    assert [t for t in found.trials if t.get("taken")], "the ones that do not learn took the weights of those that do"
    for trial in found.trials:
        own = raytrain.Run(found.path / "trials" / f"{trial['number']:04d}")
        assert own.experiment.optimizer.lr == trial["values"]["optimizer.lr"]
        assert own.metrics("step")["step"].to_pylist() == list(range(1, 6 * 23 + 1))
    donors = {t["number"]: t["taken"] for t in found.trials if t.get("taken")}
    for number, taken in donors.items():  # up to the last switch the rows are the donor's
        steps, own = taken[-1]["step"], losses(found.path / "trials" / f"{number:04d}")
        donor = losses(found.path / "trials" / f"{taken[-1]['from']:04d}")
        if not any(one["step"] >= steps for one in donors.get(taken[-1]["from"], ())):
            assert own[:steps] == donor[:steps]


@pytest.mark.slow
@pytest.mark.parametrize("kind", [PBT, PB2])
def test_best_json_repeats_a_winner_that_took_the_weights_of_others(tmp_path: Path, kind: type[PBT]) -> None:
    """Both trials begin with a rate that learns nothing or little, so that the winner has changed it."""
    if kind is PB2:
        pytest.importorskip("sklearn")
    few = Choice("optimizer.lr", (1e-9, 1e-4, 0.05)) if kind is PBT else LogUniform("optimizer.lr", 1e-9, 0.05)
    base = dataclasses.replace(BASE, epochs=6, schedule=raytrain.Constant())
    first = ({"optimizer.lr": 1e-9}, {"optimizer.lr": 1e-4 if kind is PBT else 1e-8})
    random.seed(3)
    scheduler = kind(every_epochs=1, quantile=0.5, resample=0.0)
    found = run(Sweep(base, (few,), trials=2, first=first, scheduler=scheduler, keep=2), tmp_path)
    best = found.trials[found.answer["best"]]
    drawn = [one["values"]["optimizer.lr"] for trial in found.trials for one in trial.get("taken", ())]
    assert all(1e-9 <= lr <= 0.05 for lr in drawn)
    assert best["taken"] and found.best is not None and max(one["step"] for one in best["taken"]) < 6 * 23
    value = experiment_file.load(found.path / "best.json")[0]
    assert value == found.best.experiment and value.stages[-1].until == best["taken"][-1]["step"]
    again = raytrain.train(value, out=str(tmp_path), name="again", quiet=True)
    assert losses(again.path) == losses(found.best.path) and len(losses(again.path)) == 6 * 23
    assert hashes(again.path) == hashes(found.best.path)
    assert again.experiment == value


def test_pbt_clone_continues_as_its_donor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    from raytrain.driver import plan
    from raytrain.sweep import attempt, pool

    make = attempt.Attempt._job
    monkeypatch.setattr(attempt.Attempt, "_job", lambda self: dataclasses.replace(make(self), own_output=False))
    found, images, _ = reading.read(BASE.data, plan.survey(BASE.data)[0], "resident")
    data, limits = attempt.Data(ray.put(found), images), attempt.Limits(None, 60.0)

    def begin(name: str, lr: float) -> attempt.Attempt:
        value = config.replace(config.replace(BASE, "epochs", 4), "optimizer.lr", lr)
        value = config.replace(value, "schedule", raytrain.Constant())
        (tmp_path / name / "logs").mkdir(parents=True)
        experiment_file.save(value, tmp_path / name / "experiment.json")
        return attempt.Attempt(tmp_path / name, value, data, limits)

    def validation(row: dict | None) -> list[float]:
        assert row is not None
        return [row["epoch"], row["val_loss"], row["val_accuracy"]]

    donor = begin("donor", 0.05)
    rows = [donor.next()[0] for _ in range(2)]
    newest = donor.settle()
    assert newest is not None and newest.name == "step_00000046"
    pool.keep(tmp_path / "donor", newest, tmp_path / "pool")
    third = donor.next()[0]
    donor.stop()

    still, same = begin("still", 1e-30), begin("same", 0.05)
    for clone in (still, same):
        pool.adopt(clone.run, tmp_path / "pool")
        clone.skip = 2
    first = validation(still.next()[0])
    assert first == [3, *validation(rows[1])[1:]] and first[1:] != validation(rows[0])[1:]
    assert validation(same.next()[0]) == validation(third), "the optimizer's state came along"
    still.stop()
    same.stop()
    assert losses(tmp_path / "same")[:69] == losses(tmp_path / "donor")[:69]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scheduler", "search"),
    [
        (HyperBand(grace_epochs=2), RandomSearch()),  # a search that learns proposes too few at once for full brackets
        (MedianStopping(samples=2), TPE(startup=4)),
    ],
    ids=["HyperBand", "MedianStopping"],
)
def test_other_schedulers_end_trials_early_and_lose_none(tmp_path: Path, scheduler: Any, search: Any) -> None:
    base = config.replace(BASE, "epochs", 9)
    found = run(Sweep(base, (LR,), trials=12, scheduler=scheduler, search=search), tmp_path)
    assert {t["status"] for t in found.trials} == {"completed", "stopped"} and len(found.trials) == 12
    assert found.answer["best"] is not None
    for trial in found.trials:
        assert trial["status"] == "stopped" or trial["epochs"] == 9
        assert trial["epochs"] >= scheduler.grace_epochs
        count = len(losses(found.path / "trials" / f"{trial['number']:04d}"))
        assert trial["epochs"] * 23 <= count <= (trial["epochs"] + 1) * 23


@pytest.mark.slow
def test_hyperband_compares_all_trials_of_a_bracket_one_at_a_time(tmp_path: Path) -> None:
    """Of 9 epochs, Tune's first bracket is 3 whole trials, its second one the best 2 of 5 after 3 epochs."""
    base, axes = config.replace(BASE, "epochs", 9), (LogUniform("optimizer.lr", 1e-3, 0.1),)
    found = run(Sweep(base, axes, "val_loss", trials=8, concurrent=1, scheduler=HyperBand()), tmp_path)
    at_3 = {}
    for trial in found.trials[3:]:
        rows = (found.path / "trials" / f"{trial['number']:04d}" / "metrics.jsonl").read_text().splitlines()
        epochs = [row for row in map(json.loads, rows) if row["kind"] == "epoch"]
        at_3[trial["number"]] = epochs[2]["val_loss"]
    best = sorted(at_3, key=lambda number: at_3[number])[:2]
    assert [trial["epochs"] for trial in found.trials] == [
        9 if number < 3 or number in best else 3 for number in range(8)
    ]


@pytest.mark.slow
def test_trials_of_1_and_2_workers_train_as_alone(tmp_path: Path) -> None:
    base = dataclasses.replace(BASE, model=CNN(channels=(8,)), epochs=1)  # which the plan trains with channels last
    found = run(Sweep(base, (Grid("scaling.workers", (2, 1)),)), tmp_path)
    assert [t["status"] for t in found.trials] == ["completed"] * 2
    for trial in found.trials:
        path = found.path / "trials" / f"{trial['number']:04d}"
        assert raytrain.Run(path).summary["workers"] == trial["values"]["scaling.workers"]
        again = raytrain.load_experiment(path / "experiment.json")[0]
        assert again.scaling.cpus_per_worker is None, "another machine may share its CPUs out otherwise"
        alone = raytrain.train(again, out=str(tmp_path), name=f"alone-{trial['number']}", quiet=True)
        assert losses(alone.path) == losses(path)
        assert raytrain.Run(path).summary["baseline"] == alone.summary["baseline"], "what a constant answer scores"
    nothing_left()


class Heard(Logger):
    """Keeps what a sweep says, and interrupts it when that begins with some words."""

    def __init__(self, words: str):
        self.words, self.said, self.asked = words, [], 0.0

    def status(self, text: str) -> None:
        self.said.append(text)
        if text.startswith(self.words) and not self.asked:
            self.asked = time.monotonic()
            signal.raise_signal(signal.SIGINT)


def test_trials_of_two_workers_wait_for_room_and_train_on_two_cpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray
    from ray.util import placement_group, remove_placement_group

    monkeypatch.setattr(tuning, "_ROOM_SECONDS", 1.0)
    base = dataclasses.replace(BASE, epochs=1, scaling=Scaling(workers=2))
    sweep = Sweep(base, (Grid("optimizer.lr", (0.1, 0.01)),), concurrent=1)
    taken, heard = placement_group([{"CPU": 1}]), Heard("waiting for trial 0: it needs 2 workers of ")
    ray.get(taken.ready(), timeout=60)
    with pytest.raises(Interrupted) as interrupted:
        driver.sweep(sweep, Options(out=str(tmp_path), name="sweep"), heard, None, 0.0, write_files)
    assert time.monotonic() - heard.asked < 10 and interrupted.value.signal == signal.SIGINT
    cpus = int(local_resources().cpus)
    assert re.search(rf" has {cpus} CPUs, {cpus - 1} CPUs? free", heard.said[-2])
    assert sweep_run.SweepRun(tmp_path / "sweep").answer["status"] == "interrupted"
    remove_placement_group(taken)
    nothing_left()
    more = driver.resume(tmp_path / "sweep", sweep, Options(), Logger(), 0.0, write_files)
    assert more is not None and [(t["status"], t["attempts"]) for t in more.trials] == [("completed", 1)] * 2
    planned = {t["planned"]["scaling.cpus_per_worker"] for t in more.trials}
    assert planned == {local_resources().cpus / 2}, "the workers of the one trial at a time hold all CPUs"
    assert {t["pid"] for t in more.trials} == {more.trials[0]["pid"]}, "one actor takes both trials"
    assert raytrain.Run(more.path / "trials" / "0001").summary["workers"] == 2
    nothing_left()


@pytest.mark.slow
def test_trials_of_several_workers_and_streamed_data(tmp_path: Path) -> None:
    from dataclasses import replace

    base = replace(BASE, scaling=Scaling(workers=2, threads_per_worker=1), data=Digits(mode="streaming"))
    found = run(Sweep(base, (Grid("optimizer.lr", (0.1, 0.01)),), concurrent=1), tmp_path)
    assert [t["status"] for t in found.trials] == ["completed"] * 2
    alone = run(Sweep(replace(BASE, data=Digits()), (Grid("optimizer.lr", (0.1, 0.01)),)), tmp_path / "alone")
    for number in ("0000", "0001"):
        two, one = losses(found.path / "trials" / number), losses(alone.path / "trials" / number)
        assert len(two) == len(one) and all(math.isclose(a, b, rel_tol=1e-4) for a, b in zip(two, one, strict=True))
    assert raytrain.Run(found.path / "trials" / "0000").summary["workers"] == 2
    nothing_left()


@pytest.mark.slow
def test_trials_that_stream_beside_others_leave_ray_data_a_cpu(tmp_path: Path) -> None:
    import ray

    everything = int(ray.cluster_resources()["CPU"])
    base = dataclasses.replace(BASE, epochs=1)
    sweep = Sweep(base, (Grid("data.mode", ("resident", "streaming")), Grid("optimizer.lr", (0.1, 0.01))))
    found = run(dataclasses.replace(sweep, concurrent=min(4, everything)), tmp_path)
    assert {t["status"] for t in found.trials} == {"completed"}
    one, two, three, four = (losses(found.path / "trials" / f"{number:04d}") for number in range(4))
    assert (one, two) == (three, four) and one != two


@pytest.mark.slow
def test_a_sweep_that_has_used_up_its_time_goes_on_later(tmp_path: Path) -> None:
    long = config.replace(BASE, "epochs", 200)
    sweep = Sweep(long, (Grid("optimizer.lr", (0.1, 0.01)),), budget_seconds=9.0, concurrent=1)
    found = run(sweep, tmp_path)
    assert found.answer["status"] == "out_of_time"
    assert [t["status"] for t in found.trials][:1] in (["interrupted"], ["completed"], ["pending"])
    done = [t["epochs"] for t in found.trials]
    assert (found.best is not None) == any(done), "of what was trained in time"
    assert sum(done) < 400 and (done[0] == 0 or list((found.path / "trials" / "0000" / "checkpoints").iterdir()))
    longer = config.replace(sweep, "budget_seconds", None)
    more = driver.resume(found.path, longer, Options(), Logger(), 0.0, write_files)
    assert more is not None and [t["status"] for t in more.trials] == ["completed"] * 2
    assert len(losses(found.path / "trials" / "0000")) == len(losses(found.path / "trials" / "0001")) == 200 * 23
    (found.path / "trials" / "0002").mkdir()
    (found.path / "trials" / "0002" / "trial.json").write_text("{}")
    with pytest.raises(raytrain.UserError, match=r"3 trials have begun and 2 are asked for.*use --trials 3 or more"):
        driver.resume(found.path, longer, Options(), Logger(), 0.0, write_files)
