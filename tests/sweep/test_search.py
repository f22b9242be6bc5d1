"""search: axes, objectives, random search and TPE, what a sweep refuses."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raytrain import (
    ASHA,
    CNN,
    MLP,
    PB2,
    PBT,
    SGD,
    TPE,
    AdamW,
    Choice,
    Classification,
    Digits,
    Experiment,
    Grid,
    HyperBand,
    Int,
    LogUniform,
    MedianStopping,
    RandomSearch,
    Regression,
    Scaling,
    Sweep,
    Uniform,
    UserError,
    config,
)
from raytrain.run import experiment_file
from raytrain.sweep import objective, record
from raytrain.sweep.objective import Objective
from raytrain.sweep.points import decided
from raytrain.sweep.schedulers import trained
from raytrain.sweep.space import Axis, apply, combinations
from raytrain.sweep.sweep import impossible
from raytrain.sweep.sweep_file import load, to_dict
from raytrain.sweep.trials import Trials

BASE = Experiment(model=MLP(hidden=(8,)), data=Digits(), optimizer=SGD(lr=0.1), epochs=4)
IN_STEPS = replace(BASE, steps=50, validate_every_steps=10)
LR = LogUniform("optimizer.lr", 1e-4, 1.0)
DIRECTIONS = BASE.task.declared()


@given(st.floats(0, 1, exclude_max=True))
def test_every_quantile_is_a_value_between_the_ends(quantile: float) -> None:
    assert 1e-4 <= LR.draw(quantile) <= 1.0
    assert -1 <= Uniform("x", -1, 3).draw(quantile) <= 3
    assert Int("x", 2, 5).draw(quantile) in (2, 3, 4, 5)
    assert 5 <= Int("x", 5, 1000, log=True).draw(quantile) <= 1000  # exp(log(5)) is below 5
    assert Choice("x", (1, 2, 3)).draw(quantile) in (1, 2, 3)


@pytest.mark.parametrize("low", range(1, 100))
def test_a_log_axis_begins_at_its_low(low: int) -> None:
    assert Int("x", low, 1000, log=True).draw(0.0) == low


def test_uniform_quantiles_give_the_axis_distribution() -> None:
    quantiles = [(k + 0.5) / 1200 for k in range(1200)]
    assert set(Counter(map(Int("x", 2, 5).draw, quantiles)).values()) == {300}
    assert set(Counter(map(Choice("x", ("a", "b", "c")).draw, quantiles)).values()) == {400}
    below = sum(LR.draw(q) < 1e-2 for q in quantiles)
    assert below == 600  # half of the decades
    low = sum(Int("x", 1, 63, log=True).draw(q) < 8 for q in quantiles)
    assert low == 600  # log2(8) of log2(64)


def crossed(axes: tuple[Axis, ...], number: int) -> dict[str, Any]:
    return decided(axes, (), combinations(axis for axis in axes if isinstance(axis, Grid)), number)


def test_grid_axes_are_crossed_with_equal_frequency() -> None:
    axes = (Grid("precision", ("fp32", "bf16")), Choice("epochs", (1, 2)), Grid("batch_size", (64, 128, 256)))
    seen = [crossed(axes, number) for number in range(12)]
    assert seen[0] == {"precision": "fp32", "batch_size": 64} and seen[1] == {"precision": "fp32", "batch_size": 128}
    assert set(Counter(tuple(one.values()) for one in seen).values()) == {2}
    assert len(combinations(axes)) == 12 and combinations(()) == [{}] == [crossed((LR,), 5)]


def test_random_trial_is_a_function_of_seed_and_number() -> None:
    axes = (LR, Choice("epochs", (1, 2, 3)), Grid("precision", ("fp32", "bf16")))
    one, other = RandomSearch().start(axes, (), 3), RandomSearch().start(axes, (), 3)
    forth = [one.propose(n, crossed(axes, n)) for n in range(50)]
    back = [other.propose(n, crossed(axes, n)) for n in reversed(range(50))]
    assert forth == back[::-1] and len({found["optimizer.lr"] for found in forth}) == 50
    assert [found["precision"] for found in forth] == ["fp32", "bf16"] * 25
    assert RandomSearch().start(axes, (), 4).propose(0, {}) != one.propose(0, {})
    mean = sum(math.log10(found["optimizer.lr"]) for found in forth) / 50
    assert -2.5 < mean < -1.5  # of a uniform logarithm over four decades: -2 within 0.16 standard errors of 3


@pytest.mark.parametrize("both", [False, True])
def test_tpe_finds_what_is_good_and_leaves_what_does_not_fit(both: bool) -> None:
    pytest.importorskip("optuna")
    axes = (LR, Choice("batch_size", (64, 128, 4096)))
    names = ("val_accuracy", "samples_per_second") if both else ("val_accuracy",)
    goals = tuple(objective.parse(name, DIRECTIONS) for name in names)
    search = TPE(startup=8).start(axes, goals, 0)
    late = []
    for number in range(48):
        values = search.propose(number, {})
        score = -abs(math.log10(values["optimizer.lr"]) + 1)  # best at 0.1
        fits = values["batch_size"] != 4096
        search.tell(number, ([score, 1.0] if both else [score]) if fits else None)
        late += [values] if number >= 28 else []
    assert sum(values["batch_size"] == 4096 for values in late) <= (8 if both else 4)  # a third of them by chance
    assert sum(abs(math.log10(values["optimizer.lr"]) + 1) < 0.7 for values in late) >= 9  # 35 % by chance


def test_tpe_goes_on_as_if_it_had_never_stopped() -> None:
    pytest.importorskip("optuna")
    axes, goals = (LR, Grid("precision", ("fp32", "bf16"))), (objective.parse("val_loss", DIRECTIONS),)

    def score(values: dict) -> list[float]:
        return [abs(math.log10(values["optimizer.lr"]) + 2)]

    whole, seen = TPE(startup=3).start(axes, goals, 1), []
    for number in range(12):
        seen.append(whole.propose(number, crossed(axes, number)))
        assert seen[-1]["precision"] == ("fp32", "bf16")[number % 2]
        whole.tell(number, score(seen[-1]))
    again = TPE(startup=3).start(axes, goals, 1)
    for number in range(7):
        again.repeat(number, seen[number])
        again.tell(number, score(seen[number]))
    for number in range(7, 12):
        assert again.propose(number, crossed(axes, number)) == seen[number]
        again.tell(number, score(seen[number]))


ROWS = [
    {"epoch": 1, "val_accuracy": 0.5, "val_loss": 2.0, "seconds": 3.0, "samples_per_second": 10.0},
    {"epoch": 2, "val_accuracy": 0.9, "val_loss": 1.0, "seconds": 4.0, "samples_per_second": 30.0},
    {"epoch": 3, "val_accuracy": 0.8, "val_loss": 1.5, "seconds": 5.0, "samples_per_second": 20.0},
]


@pytest.mark.parametrize(
    ("name", "mode", "whole", "last"),
    [
        ("val_accuracy", "max", 0.9, 0.8),
        ("val_loss", "min", 1.0, 1.5),
        ("samples_per_second", "max", 25.0, 20.0),
        ("seconds", "min", 12.5, 5.0),
        ("peak_memory_bytes", "min", 100, None),
        ("time_to_accuracy(0.85)", "min", 7.0, None),
        ("time_to_accuracy(0.5)", "min", 3.0, None),
        ("time_to_accuracy(0.95)", "min", None, None),
    ],
)
def test_objectives_are_read_from_a_run_s_figures(
    name: str, mode: str, whole: float | None, last: float | None
) -> None:
    found = objective.parse(name, DIRECTIONS)
    summary = {"samples_per_second": 25.0, "seconds": 12.5, "peak_memory_bytes": 100}
    assert (found.mode, found.of(ROWS, summary), found.now(ROWS)) == (mode, whole, last)
    assert found.of([], {}) is None and found.now([]) is None
    assert found.better(1.0, None) and not found.better(None, 1.0)
    assert found.better(2.0, 1.0) == (mode == "max")


def test_objectives_and_figures_see_validations_inside_epochs(tmp_path: Path) -> None:
    inside = [("validation", 1, 5, 0.4, 2.0), ("epoch", 1, 10, 0.6, 4.0), ("validation", 2, 15, 0.9, 3.0)]
    rows = [
        {"kind": kind, "epoch": epoch, "step": step, "val_accuracy": accuracy, "val_loss": 1.0, "seconds": seconds}
        for kind, epoch, step, accuracy, seconds in [*inside, ("epoch", 2, 20, 0.7, 5.0), ("validation", 3, 22, 0.8, 1)]
    ]
    for name, wanted in (("val_accuracy", 0.9), ("time_to_accuracy(0.85)", 7.0), ("time_to_accuracy(0.3)", 2.0)):
        assert objective.parse(name, DIRECTIONS).of(rows, {}) == wanted
    assert objective.parse("seconds", DIRECTIONS).of(rows, {}) == 10.0
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "trial.json").write_text(json.dumps({"status": "completed"}))
    base = Experiment(model=MLP(), data=Digits(), epochs=5)
    in_steps, of = replace(base, steps=22), (objective.parse("val_accuracy", DIRECTIONS),)
    found = record.figures(tmp_path, of, in_steps)
    assert (found["objective"], found["epochs"], found["of_epochs"], found["seconds"]) == ([0.9], 2, None, 10.0)
    assert (found["steps"], found["of_steps"]) == (22, 22)
    assert found["val_accuracy"] == 0.9 and len(record.validations(tmp_path)) == 5
    taken: dict[str, Any] = {"status": "completed", "taken": [{"epoch": 2, "from": 1, "values": {}}]}
    (tmp_path / "trial.json").write_text(json.dumps(taken))
    assert record.figures(tmp_path, of, base)["objective"] == [0.8]
    taken["taken"] = [{"epoch": 1.5, "step": 15, "from": 1, "values": {}}]
    (tmp_path / "trial.json").write_text(json.dumps(taken))
    assert record.figures(tmp_path, of, base)["objective"] == [0.8], "what comes after step 15"
    for values, lengths in (({}, (5, None)), ({"epochs": 7}, (7, None)), ({"steps": 40}, (None, 40))):
        (tmp_path / "trial.json").write_text(json.dumps({"status": "completed", "values": values}))
        found = record.figures(tmp_path, of, base)
        assert (found["of_epochs"], found["of_steps"], found["epochs"], found["steps"]) == (*lengths, 2, 22)


@dataclass(frozen=True)
class Graded(Classification):
    directions = {"error": "min"}  # noqa: RUF012


def test_objective_follows_the_declared_direction() -> None:
    sweep = Sweep(replace(BASE, task=Graded()), (Grid("batch_size", (32, 64)),), objective=("val_error", "seconds"))
    goal = sweep.objectives[0]
    assert (goal.mode, goal.every_epoch) == ("min", True) and goal.better(0.1, 0.2)
    assert goal.of([{"val_error": 0.3}, {"val_error": 0.1}, {"val_error": 0.2}], {}) == 0.1
    assert sweep.trial({}).task == Graded(monitor="val_error")
    with pytest.raises(UserError, match=r"no run reports 'val_error'.*there are val_loss, val_accuracy"):
        replace(sweep, experiment=BASE)
    numbers = replace(BASE, task=Regression(target="size"))
    with pytest.raises(UserError, match=r"no run reports 'val_accuracy'.*there are val_loss"):
        Sweep(numbers, (Grid("batch_size", (32, 64)),), objective="val_accuracy")


def test_objective_is_what_the_task_monitors_by_default() -> None:
    axes = (Grid("batch_size", (32, 64)),)
    assert [one.name for one in Sweep(BASE, axes).objectives] == ["val_accuracy"]
    assert [one.name for one in Sweep(replace(BASE, task=Regression(target="size")), axes).objectives] == ["val_loss"]
    sweep = Sweep(replace(BASE, task=Graded(monitor="val_error")), axes)
    assert [(one.name, one.mode) for one in sweep.objectives] == [("val_error", "min")]
    assert config.from_dict(Sweep, to_dict(sweep), "sweep.json") == sweep
    with pytest.raises(UserError, match=r"task.monitor 'val_eror'.*did you mean val_error"):
        replace(sweep, experiment=replace(BASE, task=Graded(monitor="val_eror")))


def test_values_that_only_fit_together_are_set_together() -> None:
    two = apply(BASE, {"batch_size": 63, "scaling.workers": 3})
    assert (two.batch_size, two.scaling.workers) == (63, 3)
    with pytest.raises(UserError, match="batch_size 63 does not divide"):
        apply(BASE, {"batch_size": 63, "scaling.workers": 2})
    assert apply(BASE, {"optimizer": AdamW(lr=0.5)}).optimizer == AdamW(lr=0.5)


def test_a_sweep_s_json_gives_the_sweep_back(tmp_path: Path) -> None:
    sweep = Sweep(
        BASE,
        (Choice("model", (MLP(hidden=(4,)), CNN(channels=(4,)))), LR),
        objective=("val_accuracy", "samples_per_second"),
        search=TPE(startup=3),
        trials=5,
    )
    (tmp_path / "sweep.json").write_text(json.dumps({"sweep": to_dict(sweep)}))
    assert load(tmp_path)[0] == load(tmp_path / "sweep.json")[0] == sweep
    assert config.labels((MLP(), CNN(), 3, (1, 2))) == ("MLP", "CNN", 3, [1, 2])
    assert config.labels((SGD(lr=0.1), SGD(lr=0.2)))[0] != config.labels((SGD(lr=0.1), SGD(lr=0.2)))[1]


@pytest.mark.parametrize("name", ["subprocess:Popen", "pathlib:Path", "os:_Environ", "raytrain.run.run:Run"])
def test_a_sweep_s_json_makes_nothing_but_raytrain_s_own_values(tmp_path: Path, name: str) -> None:
    values = to_dict(Sweep(BASE, (Choice("optimizer", (SGD(), AdamW())),), trials=1))
    values["axes"][0]["values"][0] = {"class": name, "args": ["true"]}
    (tmp_path / "sweep.json").write_text(json.dumps({"sweep": values}))
    with pytest.raises(UserError, match="cannot be found"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"axes": ()}, "a sweep without axes"),
        (
            {"axes": (Grid("optimiser.lr", (1,)),)},
            r"unknown field 'optimiser.lr', an axis of the sweep; did you mean optimizer.lr",
        ),
        ({"axes": (Grid("optimizer.lrr", (1,)),)}, r"did you mean optimizer.lr\?"),
        ({"axes": (Grid("lr", (1,)),)}, r"unknown field 'lr', an axis of the sweep; did you mean optimizer.lr\?"),
        ({"axes": (Grid("learning_rate", (1,)),)}, r"did you mean optimizer.lr\?"),
        ({"axes": (Grid("optimizer.lr", (0.1, -1)),)}, r"axis optimizer.lr has a value.*lr = -1 is out of range"),
        ({"axes": (Grid("precision", ("fp32", "fp8")),)}, r"precision = 'fp8' is of the wrong type.*one of 'fp32'"),
        ({"axes": (Uniform("batch_size", 1, 4),), "trials": 3}, r"batch_size = 1.0 is of the wrong type"),
        ({"axes": (LogUniform("optimizer.lr", 0.5, 2), LR), "trials": 2}, "two axes have the path optimizer.lr"),
        ({"axes": (LR,)}, "trials must be set, because"),
        ({"axes": (Grid("checkpoint.keep", (1, 2)),)}, "checkpoint.keep cannot be an axis"),
        ({"objective": "val_acuracy"}, r"no run reports 'val_acuracy'.*did you mean val_accuracy"),
        ({"objective": "time_to_accuracy(1.5)"}, "time_to_accuracy = 1.5 is out of range"),
        ({"objective": ("val_loss", "val_loss")}, "of one, two or three different names"),
        (
            {"axes": (Grid("task.monitor", ("val_loss", "val_accuracy")),)},
            "each trial monitors the objective, val_accuracy, in Sweep.axes; leave out the axis task.monitor",
        ),
        ({"trials": 3}, "the grid has 2 combinations and 3 trials are asked for, which would repeat some"),
        ({"trials": 0}, "trials = 0 is out of range"),
        ({"memory_gib": -1.0}, "memory_gib = -1.0 is out of range"),
        ({"scheduler": ASHA(grace_epochs=4)}, "ASHA has nothing to save: all trials get 4 epochs and have no more"),
        ({"scheduler": HyperBand(grace_epochs=4)}, "HyperBand has nothing to save: all trials get 4 epochs"),
        (
            {"scheduler": HyperBand(), "objective": "samples_per_second"},
            "HyperBand compares by a metric of the task",
        ),
        ({"scheduler": MedianStopping(), "objective": ("val_loss", "seconds")}, "compares by one objective"),
        ({"scheduler": MedianStopping(grace_epochs=4)}, "MedianStopping has nothing to save: all trials get 4 epochs"),
        ({"scheduler": PBT(), "axes": (Grid("batch_size", (32, 64)),)}, "PBT cannot change batch_size on the way"),
        ({"scheduler": PBT(every_epochs=4), "axes": (LR,), "trials": 4}, "PBT never compares"),
        ({"scheduler": PBT(), "axes": (LR,), "trials": 1}, "PBT needs a population"),
        (
            {"scheduler": PBT(), "axes": (Choice("optimizer", (SGD(), AdamW())),), "trials": 4},
            "PBT cannot turn optimizer from AdamW into SGD on the way",
        ),
        ({"scheduler": PB2(), "axes": (LR,), "trials": 4}, "PB2 needs scikit-learn"),
        (
            {"experiment": replace(BASE, steps=50), "axes": (Grid("epochs", (1, 2)),)},
            "an axis over epochs has no effect where steps is set",
        ),
        (
            {"experiment": replace(BASE, steps=50), "scheduler": ASHA()},
            "ASHA compares trials after equal epochs, and with steps set these differ along the axis batch_size",
        ),
        ({"axes": (Grid("steps", (50, 60)),), "scheduler": HyperBand()}, "these differ along the axis steps"),
        ({"scheduler": ASHA(grace_steps=10)}, "trials do not validate after equal steps along the axis batch_size"),
        (
            {"experiment": IN_STEPS, "scheduler": ASHA(grace_steps=9), "axes": (Grid("validate_every_steps", (5, 7)),)},
            "ASHA counts in steps, and trials do not validate after equal steps along the axis validate_every_steps",
        ),
        (
            {"experiment": IN_STEPS, "scheduler": ASHA(grace_steps=10), "axes": (Grid("steps", (50, 60)),)},
            "ASHA counts in steps, and trials differ in them along the axis steps",
        ),
        (
            {"experiment": IN_STEPS, "scheduler": ASHA(grace_steps=50)},
            "ASHA has nothing to save: all trials get 50 steps and have no more",
        ),
        (
            {"experiment": IN_STEPS, "scheduler": PBT(every_steps=50), "axes": (LR,), "trials": 4},
            "PBT never compares: trials have no more than 50 steps",
        ),
    ],
)
def test_a_sweep_that_cannot_be_is_refused_in_a_line(
    changes: dict, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import importlib.util

    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "sklearn" else find(name))
    with pytest.raises(UserError, match=message) as caught:
        Sweep(**{"experiment": BASE, "axes": (Grid("batch_size", (32, 64)),), **changes})
    assert "\n" not in str(caught.value)


def test_schedulers_count_in_epochs_or_in_steps() -> None:
    """An epoch of 23 steps: what Tune's schedulers get is exact at the ends of epochs, and at multiples of the unit."""
    assert trained(None, 23, None) == 0.0
    assert [trained({"step": step}, 23, None) for step in (23, 69, 2300)] == [1.0, 3.0, 100.0]
    assert 2.0 < trained({"step": 50}, 23, None) < 3.0
    assert [trained({"step": 7 * unit}, 23, unit) for unit in (3, 7, 10, 49)] == [7.0] * 4
    units = [ASHA(grace_steps=5), HyperBand(grace_steps=6), MedianStopping(grace_steps=7), PBT(every_steps=8)]
    assert [scheduler.unit_steps for scheduler in units] == [5, 6, 7, 8]
    assert ASHA().unit_steps is PBT().unit_steps is None
    for kind, values in ((ASHA, {"grace_epochs": 2, "grace_steps": 10}), (PBT, {"every_epochs": 2, "every_steps": 10})):
        with pytest.raises(
            UserError, match=r"_epochs and \w+_steps both say when trials are compared, in \w+; leave one"
        ):
            kind(**values)
    # All trials validate after the same steps, whatever their batches.
    Sweep(IN_STEPS, (Grid("batch_size", (32, 64)),), scheduler=ASHA(grace_steps=10))


@pytest.mark.parametrize(
    "axis",
    [
        lambda: Choice("epochs", ()),
        lambda: Uniform("optimizer.lr", 1, 1),
        lambda: Int("epochs", 3, 2),
        lambda: LogUniform("optimizer.lr", 0.0, 1),
        lambda: Int("epochs", 0, 2, log=True),
        lambda: Uniform("optimizer.lr", 0, math.inf),
        lambda: Uniform("optimizer.lr", math.nan, 1),
    ],
)
def test_an_axis_without_values_is_refused(axis) -> None:
    with pytest.raises(UserError, match=r"has no values|out of range"):
        axis()


def test_empty_space_is_refused_before_anything_starts() -> None:
    odd = Grid("batch_size", (63, 65))
    sweep = Sweep(Experiment(MLP(), Digits()), (odd, Grid("scaling.workers", (1, 2))))
    assert impossible(sweep) is None  # one worker takes them
    with pytest.raises(UserError, match="batch_size 63 does not divide"):
        Sweep(Experiment(MLP(), Digits(), scaling=Scaling(workers=2)), (odd,))


def test_no_trial_beats_the_best_one_in_all_objectives() -> None:
    objectives = (Objective("val_accuracy", "val_accuracy", "max"), Objective("seconds", "seconds", "min"))
    records = [
        {"number": number, "status": "completed", "objective": objective}
        for number, objective in enumerate([(0.9, 30.0), (0.8, 1.0), (0.9, 20.0), (0.9, None), (None, 1.0)])
    ]
    ranking: Any = SimpleNamespace(objectives=objectives)
    assert Trials.ranked(ranking, records) == [2, 0, 3, 1]


def test_best_json_of_an_older_version_with_a_history_is_refused(tmp_path: Path) -> None:
    history = [{"epoch": 0, "trial": 1, "values": {"optimizer.lr": 0.4}}]
    value = config.to_dict(Experiment(model=CNN(), data=Digits()))
    (tmp_path / "best.json").write_text(json.dumps(value | {"history": history}))
    with pytest.raises(UserError, match="would train other weights"):
        experiment_file.load(tmp_path / "best.json")
