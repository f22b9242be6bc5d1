"""The sweep over precision and batch sizes without a sweep file: its grid, and the answer that it gives."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers.commands import DIGITS, fails, no_runs, without_ray

from raytrain import MLP, Augment, Deterministic, Digits, Experiment, Scaling, UserError
from raytrain.cli.flags import precision_and_batch as flags
from raytrain.driver.resources import Node, Resources
from raytrain.report import precision_and_batch as report
from raytrain.report.trials import Results
from raytrain.run import experiment_file
from raytrain.sweep import repeats
from raytrain.sweep.precision_and_batch import precision_and_batch
from raytrain.sweep.space import combinations
from raytrain.sweep.sweep import Sweep
from raytrain.sweep.sweep_file import to_dict

__all__ = ["no_runs", "without_ray"]

BASE = Experiment(model=MLP(hidden=(8,)), data=Digits(), epochs=8)


def sizes(sweep: Sweep) -> list[tuple[int, int | None]]:
    """The batch sizes and micro-batch sizes of one precision, all of which are experiments."""
    found = [values for values in combinations(sweep.axes) if values["precision"] == "fp32"]
    trials = [sweep.trial(values) for values in combinations(sweep.axes)]
    assert all(one.lr / one.batch_size == trials[0].lr / trials[0].batch_size for one in trials), "linear"
    return [(values["batch_size"], values.get("micro_batch_size")) for values in found]


def test_the_grid_follows_the_experiment() -> None:
    sweep = precision_and_batch(BASE, gpus=False)
    whole = [(size, None) for size in (32, 64, 128, 256)]
    assert sorted(sizes(sweep), key=str) == sorted([*whole, (64, 32), (128, 32), (256, 32)], key=str)
    assert {values["precision"] for values in combinations(sweep.axes)} == {"fp32", "bf16"}
    gpus = precision_and_batch(BASE, gpus=True, repeats=3)
    assert {values["precision"] for values in combinations(gpus.axes)} == {"fp32", "tf32", "bf16", "fp16"}
    assert gpus.count == 3 * 4 * 7 and [one.name for one in gpus.objectives] == [
        *("val_accuracy", "samples_per_second", "peak_memory_bytes")
    ]


@pytest.mark.parametrize(
    ("changes", "batches", "micro"),
    [
        ({"batch_size": 1}, {1, 2, 4}, 1),
        ({"batch_size": 15}, {7, 15, 30, 60}, 5),
        ({"batch_size": 12, "scaling": Scaling(workers=4)}, {12, 24, 48}, 1),
        ({"batch_size": 8, "data": Digits(augment=Augment(mixup=0.2))}, {4, 8, 16, 32}, 4),
        ({"batch_size": 16, "parallel": Deterministic()}, {8, 16, 32, 64}, 2),
    ],
)
def test_batches_that_the_experiment_cannot_have_are_left_out(
    changes: dict[str, Any], batches: set[int], micro: int
) -> None:
    found = sizes(precision_and_batch(replace(BASE, **changes), gpus=False))
    assert {size for size, _ in found} == batches and {one for _, one in found} == {None, micro}


def test_large_batches_are_also_quartered() -> None:
    found = sizes(precision_and_batch(replace(BASE, batch_size=128), gpus=False))
    split = [(size, micro) for size in (128, 256, 512) for micro in (None, 64, 32)]
    assert sorted(found, key=str) == sorted([(64, None), *split], key=str)
    both = replace(BASE, batch_size=240, scaling=Scaling(workers=2))  # a worker has 120
    assert {micro for _, micro in sizes(precision_and_batch(both, gpus=False))} == {None, 60}


def test_trials_are_short_and_the_experiment_keeps_its_length() -> None:
    long = replace(BASE, steps=5000, swa_start_epoch=6, lr_scaling="sqrt", lr_batch_size=256)
    sweep = precision_and_batch(long, False, epochs=2, samples=500)
    values = combinations(sweep.axes)[0]
    trial = sweep.trial(values)
    assert (trial.epochs, trial.steps, trial.swa_start_epoch) == (2, None, None)
    assert getattr(trial.sampler, "count", None) == 500
    assert (sweep.experiment.steps, sweep.experiment.lr_scaling, sweep.experiment.lr_batch_size) == (5000, "sqrt", 256)
    with pytest.raises(UserError, match="axis epochs has a value that its field refuses"):
        precision_and_batch(BASE, False, epochs=0)


def parsed(*arguments: str) -> Sweep:
    found = flags.parse_precision_and_batch([*arguments])
    assert found is not None
    return found[1]


def answer(accuracies: dict[int, tuple[float, ...]], speeds: dict[int, float], times: int = 3) -> dict[str, Any]:
    """What sweep.json holds of some configurations, whose memory falls with their number."""
    sweep = precision_and_batch(BASE, False, repeats=times)
    trials = [
        {
            "number": number * times + place,
            "values": combinations(sweep.axes)[number],
            "status": "completed",
            "objective": [value, speeds[number] + place, 1e9 - 1e6 * number],
        }
        for number, values in accuracies.items()
        for place, value in enumerate(values)
    ]
    goals = [{"name": goal.name, "mode": goal.mode} for goal in sweep.objectives]
    found = {"status": "completed", "sweep": to_dict(sweep), "objectives": goals, "trials": trials}
    if times > 1:
        groups = repeats.configurations(trials, sweep.objectives, times)
        found["configurations"] = repeats.described(groups, sweep.objectives, 0.95, True)
    return json.loads(json.dumps(found))


def test_the_fastest_of_the_best_is_recommended(tmp_path: Path) -> None:
    accuracies = {0: (0.90, 0.92, 0.94), 2: (0.90, 0.915, 0.935), 6: (0.80, 0.83, 0.86), 8: (0.1, 0.5, 0.9)}
    found = answer(accuracies, {0: 100.0, 2: 200.0, 6: 400.0, 8: 300.0})
    lines = report.lines(found)
    said = {line[:18].strip(): line[18:].strip() for line in lines}
    assert said["best val_accuracy"].startswith("configuration 0: precision fp32, batch_size 32: 0.9200 ± ")
    assert said["fastest"].startswith("configuration 6: ") and said["smallest"].startswith("configuration 8: ")
    assert said["recommended"].startswith(
        "configuration 2: precision fp32, batch_size 64, micro_batch_size 32 (the fas"
    )
    flags = "--precision fp32 --batch_size 64 --micro_batch_size 32 --lr_scaling linear --lr_batch_size 64"
    assert said["as flags"] == flags

    chosen = report.recommended(Results.of(found))
    assert chosen is not None
    whole = replace(chosen, values={"precision": "fp32", "batch_size": 32})
    says = ["--precision", "fp32", "--batch_size", "32", "--micro_batch_size", "None"]
    assert report.flags(found, whole)[:6] == says, "the experiment may have micro-batches"

    (tmp_path / "sweep.json").write_text(json.dumps(found))
    report.write(tmp_path, found)
    value = experiment_file.load(tmp_path / report.RECOMMENDED)[0]
    assert (value.batch_size, value.micro_batch_size, value.epochs) == (64, 32, 8)
    assert value == replace(BASE, micro_batch_size=32, lr_scaling="linear", lr_batch_size=64)


def test_what_breaks_a_limit_is_not_recommended() -> None:
    """Configuration 2 is the fastest of the best, and takes more memory than the limit allows."""
    found = answer({0: (0.9,), 2: (0.9,), 6: (0.9,)}, {0: 100.0, 2: 300.0, 6: 200.0}, times=1)
    recommended = [line for line in report.lines(found) if line.startswith("recommended")]
    assert "configuration 2: " in recommended[0] and recommended[0].endswith("of the best)")
    limit = "peak_memory_bytes <= 8 GiB"
    value = parsed(DIGITS, "--constraints", limit, "val_loss < 9")
    assert value.constraints == (limit, "val_loss < 9") and parsed(DIGITS).constraints == ()
    found["sweep"]["constraints"] = [limit]
    found["trials"][1]["violates"] = [limit]
    recommended = [line for line in report.lines(found) if line.startswith("recommended")]
    assert "configuration 6: " in recommended[0] and recommended[0].endswith(f"of the best, of those with {limit})")


def test_single_trials_recommend_the_best_and_other_sweeps_nothing(tmp_path: Path) -> None:
    found = answer({0: (0.9,), 2: (0.89,)}, {0: 100.0, 2: 200.0}, times=1)
    assert any(line.startswith("recommended        configuration 0") for line in report.lines(found))
    assert report.lines(found | {"trials": []}) == [] and report.lines(found | {"objectives": []}) == []
    report.write(tmp_path, found | {"trials": []})
    report.write(tmp_path, found)  # whose experiment cannot be loaded
    assert not [*tmp_path.iterdir()]


@pytest.mark.usefixtures("without_ray")
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--precision_and_batch"], "EXPERIMENT must come first"),
        (["FILE", "--precision_and_batch", "--precision", "bf16"], "--precision is what the command varies"),
        (["--precision_and_batch", "FILE", "--micro_batch_size", "8"], "--micro_batch_size is what the command varies"),
        (["--precision_and_batch", "FILE", "--trial_epoch", "2"], "did you mean --trial_epochs?"),
        (["--precision_and_batch", "FILE", "--trial_epochs", "0"], "trial_epochs must be at least 1, got 0"),
        (["--precision_and_batch", "FILE", "--constraints", "memory < 3"], "no run reports 'memory'"),
        (["--precision_and_batch", "FILE", "--profile"], "--profile is for a run, not for a sweep"),
        (["--precision_and_batch", "SWEEP"], "this file defines a sweep and no experiment"),
    ],
)
def test_mistakes_are_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, no_runs: Path, arguments: list[str], says: str
) -> None:
    files = {"FILE": tmp_path / "mine.py", "SWEEP": tmp_path / "grid.py"}
    files["FILE"].write_text("from raytrain import *\nexperiment = Experiment(MLP(), Digits())\n")
    text = "from raytrain import *\nsweep = Sweep(Experiment(MLP(), Digits()), (Grid('batch_size', (8, 16)),))\n"
    files["SWEEP"].write_text(text)
    assert says in fails(capsys, "sweep", *(files.get(word, word) for word in arguments), "--out", no_runs)


def test_cluster_is_asked_for_gpus_and_not_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The head of a cluster, on which a submitted sweep plans, often has none."""

    class Session(contextlib.nullcontext[Any]):
        def __init__(self, address: str | None, verbose: bool):
            super().__init__(self)

        def resources(self) -> Resources:
            return Resources((Node("head", 2, 0, 2**34), Node("worker", 8, 4, 2**34)), "a cluster")

    monkeypatch.setattr(flags, "Session", Session)
    monkeypatch.setattr(flags, "local_resources", lambda: Resources((Node("here", 2, 0, 2**34),), "this machine"))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)

    def precisions(*arguments: str) -> int:
        return len({values["precision"] for values in combinations(parsed(DIGITS, *arguments).axes)})

    assert precisions() == 2 and precisions("--address", "auto") == 4
    assert precisions("--address", "auto", "--scaling.gpus_per_worker", "0") == 2
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    assert precisions() == 4
