"""Spaces: axes under conditions, objects with axes of their own, steps, first points, constraints, three objectives."""

from __future__ import annotations

import json
import math
import random
import sys
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from raytrain import (
    MLP,
    PB2,
    PBT,
    SGD,
    TPE,
    AdamW,
    Choice,
    Digits,
    Experiment,
    GradientNorm,
    Grid,
    Int,
    LearningRates,
    LogUniform,
    RandomSearch,
    Sweep,
    Uniform,
    UserError,
    config,
)
from raytrain.report.sweep import write_csv
from raytrain.report.trials import Results
from raytrain.sweep import objective, record
from raytrain.sweep.constraint import parse_constraints
from raytrain.sweep.points import decided
from raytrain.sweep.space import Axis, combinations, present
from raytrain.sweep.sweep_file import load, to_dict
from raytrain.sweep.trials import Trials

BASE = Experiment(model=MLP(hidden=(8,)), data=Digits(), optimizer=SGD(lr=0.1), epochs=4)
DIRECTIONS = BASE.task.declared()
OPTIMIZER = Choice("optimizer", (SGD(), AdamW()))
LR = LogUniform("optimizer.lr", 1e-4, 1.0)
MOMENTUM = Uniform("optimizer.momentum", 0.0, 0.99, when=("optimizer", "SGD"))
NESTEROV = Choice("optimizer.nesterov", (False, True), when=("optimizer", SGD()))
SPACE: tuple[Axis, ...] = (MOMENTUM, OPTIMIZER, LR)


def proposed(sweep: Sweep, number: int) -> dict[str, Any]:
    search = sweep.search.start(sweep.axes, sweep.objectives, sweep.experiment.seed)
    return present(sweep.axes, search.propose(number, decided(sweep.axes, sweep.first, sweep.grid, number)))


def test_axis_exists_only_under_its_condition_and_sets_a_field_of_the_chosen_object() -> None:
    sweep = Sweep(BASE, SPACE, trials=40)
    seen = [proposed(sweep, number) for number in range(40)]
    kinds = Counter(type(values["optimizer"]).__name__ for values in seen)
    assert min(kinds["SGD"], kinds["AdamW"]) > 10
    for values in seen:
        one = sweep.trial(values)
        assert one.optimizer.lr == values["optimizer.lr"] and type(one.optimizer) is type(values["optimizer"])
        assert ("optimizer.momentum" in values) == isinstance(one.optimizer, SGD)
        if isinstance(one.optimizer, SGD):
            assert one.optimizer.momentum == values["optimizer.momentum"] > 0
    plain = Sweep(BASE, (replace(MOMENTUM, when=None), Choice("batch_size", (32, 64)), LR), trials=40)
    assert [proposed(plain, n)["optimizer.lr"] for n in range(40)] == [v["optimizer.lr"] for v in seen]


def test_conditional_grid_crosses_each_combination_that_exists_once() -> None:
    momentum = Grid("optimizer.momentum", (0.0, 0.9), when=("optimizer", "SGD"))
    nesterov = Grid("optimizer.nesterov", (False, True), when=("optimizer.momentum", 0.9))
    axes = (Grid("optimizer", (SGD(), AdamW())), momentum, nesterov, Grid("batch_size", (32, 64)))
    found = combinations(axes)
    assert [tuple(map(str, config.labels(tuple(values.values())))) for values in found] == [
        ("SGD", "0.0", "32"), ("SGD", "0.0", "64"),
        ("SGD", "0.9", "False", "32"), ("SGD", "0.9", "False", "64"),
        ("SGD", "0.9", "True", "32"), ("SGD", "0.9", "True", "64"),
        ("AdamW", "32"), ("AdamW", "64"),
    ]  # fmt: skip
    assert Sweep(BASE, axes).count == 8
    assert combinations((momentum,)) == [{"optimizer.momentum": 0.0}, {"optimizer.momentum": 0.9}], "alone"


def test_combinations_are_those_of_the_whole_product_in_its_order() -> None:
    """By spaces drawn at random: chains of conditions, on earlier and on later axes, and on several values."""
    draw, absent = random.Random(5), 0
    for _ in range(300):
        paths = [f"axis{place}" for place in range(draw.randint(1, 5))]
        order = draw.sample(paths, len(paths))
        made: dict[str, Axis] = {}
        for place, path in enumerate(order):
            above = draw.choice([None, None, *order[:place], "elsewhere"])
            when = (above, *draw.sample(range(3), draw.randint(1, 2))) if above else None
            made[path] = Grid(path, tuple(draw.sample(range(3), draw.randint(1, 3))), when=when)
        axes = [made[path] for path in paths]
        whole = [dict(zip(paths, values, strict=True)) for values in product(*(axis.finite or () for axis in axes))]
        if any(axis.when for axis in axes):
            whole = list({repr(one): one for one in (present(axes, values) for values in whole)}.values())
        assert combinations(axes) == whole
        absent += any(len(values) < len(axes) for values in whole)
    assert absent > 60


def test_conditional_grid_costs_what_its_combinations_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three models with three axes of four values each: 192 combinations, and a product of 786,432."""
    axes: list[Axis] = [Grid("model", ("a", "b", "c"))]
    axes += [Grid(f"model.{of}{place}", (1, 2, 3, 4), when=("model", of)) for of in "abc" for place in range(3)]
    began = time.process_time()
    assert len(combinations(axes)) == 3 * 4**3 and math.prod(len(axis.finite or ()) for axis in axes) == 3 * 4**9
    assert time.process_time() - began < 0.5

    def counted(axes: Iterable[Axis]) -> list[dict[str, Any]]:
        calls.append(1)
        return combinations(axes)

    calls: list[int] = []
    monkeypatch.setattr(sys.modules[Sweep.__module__], "combinations", counted)
    sweep = Sweep(BASE, (Grid("batch_size", (8, 16, 32)), Choice("epochs", (1, 2))), trials=30)
    assert [proposed(sweep, number)["batch_size"] for number in range(30)] == [8, 16, 32] * 10
    assert sweep.count == 30 and len(calls) == 1


def test_values_of_an_object_are_told_apart_by_class_or_by_themselves() -> None:
    slow, fast = SGD(lr=0.01), SGD(lr=0.5)
    either = Uniform("optimizer.momentum", 0, 0.9, when=("optimizer", "SGD"))
    one = Uniform("optimizer.weight_decay", 0, 0.1, when=("optimizer", fast))
    axes = (Choice("optimizer", (slow, fast, AdamW())), either, one)
    for value, wanted in ((slow, 1), (fast, 2), (AdamW(), 0)):
        values = {"optimizer": value, "optimizer.momentum": 0.1, "optimizer.weight_decay": 0.0}
        assert len(present(axes, values)) == 1 + wanted
    assert Sweep(BASE, axes, trials=3).count == 3


@pytest.mark.parametrize("goals", [1, 3])
def test_tpe_learns_within_a_condition_and_goes_on_alike(goals: int) -> None:
    pytest.importorskip("optuna")
    names = ("val_loss", "seconds", "peak_memory_bytes")[:goals]
    found = tuple(objective.parse(name, DIRECTIONS) for name in names)

    def score(values: dict[str, Any]) -> list[float]:  # best: SGD with a momentum of 0.9
        loss = 1.0 if isinstance(values["optimizer"], AdamW) else abs(values["optimizer.momentum"] - 0.9)
        return [loss, 1.0, 1.0][:goals]

    whole, seen = TPE(startup=6).start(SPACE, found, 1), []
    for number in range(30):
        seen.append(whole.propose(number, {}))
        assert ("optimizer.momentum" in seen[-1]) == isinstance(seen[-1]["optimizer"], SGD)
        whole.tell(number, score(seen[-1]))
    assert sum(isinstance(values["optimizer"], SGD) for values in seen[10:]) >= 14
    again = TPE(startup=6).start(SPACE, found, 1)
    for number in range(11):
        again.repeat(number, seen[number])
        again.tell(number, score(seen[number]))
    for number in range(11, 16):
        assert again.propose(number, {}) == seen[number]
        again.tell(number, score(seen[number]))


def test_tpe_draws_what_it_drew_before_there_were_conditions() -> None:
    """Optuna's own study, asked for all values at once, as earlier versions did."""
    optuna = pytest.importorskip("optuna")
    from raytrain import order

    axes = (LR, Choice("batch_size", (32, 64, 128)), Int("epochs", 1, 9, log=True), Uniform("clip_norm", 0.1, 2))
    search = TPE(startup=3).start(axes, (objective.parse("val_loss", DIRECTIONS),), 5)
    kinds, study = optuna.distributions, optuna.create_study()
    space = {
        "optimizer.lr": kinds.FloatDistribution(1e-4, 1.0, log=True),
        "batch_size": kinds.CategoricalDistribution([0, 1, 2]),
        "epochs": kinds.IntDistribution(1, 9, log=True),
        "clip_norm": kinds.FloatDistribution(0.1, 2),
    }
    for number in range(8):
        study.sampler = optuna.samplers.TPESampler(
            seed=order.key(5, number) % 2**32, n_startup_trials=3, constant_liar=True
        )
        trial = study.ask(space)
        wanted = trial.params | {"batch_size": (32, 64, 128)[trial.params["batch_size"]]}
        assert search.propose(number, {}) == wanted
        study.tell(trial, wanted["optimizer.lr"])
        search.tell(number, [wanted["optimizer.lr"]])


@pytest.mark.parametrize(
    ("axis", "values"),
    [
        (Uniform("x", 0.0, 0.3, step=0.1), [0.0, 0.1, 0.2, 0.3]),
        (Uniform("x", -1, 1, step=0.75), [-1.0, -0.25, 0.5]),
        (Int("x", 32, 128, step=32), [32, 64, 96, 128]),
        (Int("x", 1, 6, step=2), [1, 3, 5]),
    ],
)
def test_stepped_axis_has_its_multiples_each_as_often(axis: Uniform | Int, values: list[float]) -> None:
    drawn = Counter(axis.draw((k + 0.5) / 1200) for k in range(1200))
    assert sorted(drawn) == values and len(set(drawn.values())) == 1
    assert axis.examples() == (values[0], values[-1])
    assert [axis.clip(value + 0.01) for value in values] == values and axis.clip(1e9) == values[-1]
    assert axis.clip(-1e9) == values[0] and type(axis.clip(axis.high)) is type(values[0])
    optuna = pytest.importorskip("optuna")
    optuna.logging.set_verbosity(optuna.logging.CRITICAL)
    search = TPE(startup=1).start((axis,), (objective.parse("val_loss", DIRECTIONS),), 0)
    asked = [search.propose(number, {})["x"] for number in range(30)]
    assert set(asked) == set(values)


def test_points_are_tried_first_and_the_others_keep_their_values() -> None:
    axes = (*SPACE, Grid("batch_size", (32, 64)))
    plain = Sweep(BASE, axes, trials=8)
    first = ({"optimizer": "SGD", "optimizer.momentum": 0.5}, {"optimizer.lr": 1, "batch_size": 64})
    sweep = replace(plain, first=first)
    found = [proposed(sweep, number) for number in range(8)]
    assert found[0]["optimizer"] == SGD() and found[0]["optimizer.momentum"] == 0.5
    assert found[0]["optimizer.lr"] == proposed(plain, 0)["optimizer.lr"], "the search chooses the rest"
    assert (found[1]["optimizer.lr"], found[1]["batch_size"]) == (1, 64)
    assert [values["batch_size"] for values in found[2:]] == [32, 64, 32, 64, 32, 64], "crossed anew"
    for number in range(2, 8):
        before = proposed(plain, number)
        assert found[number] == before | {"batch_size": found[number]["batch_size"]}


def test_spaces_pass_through_json(tmp_path: Path) -> None:
    sweep = Sweep(
        BASE,
        (
            replace(MOMENTUM, low=0.1),
            replace(OPTIMIZER, values=(SGD(), AdamW(lr=0.3))),
            LR,
            NESTEROV,
            Uniform("clip_norm", 0.5, 2, step=0.5),
        ),
        objective=("val_loss", "seconds", "peak_memory_bytes"),
        trials=5,
        first=({"optimizer": AdamW(lr=0.3)}, {"optimizer": "SGD", "clip_norm": 1.5}),
        constraints=("peak_memory_bytes <= 8 GiB",),
    )
    (tmp_path / "sweep.json").write_text(json.dumps({"sweep": to_dict(sweep)}))
    assert load(tmp_path)[0] == sweep
    old = {name: value for name, value in to_dict(sweep).items() if name not in ("first", "constraints", "axes")}
    axes = [{"class": "raytrain:Uniform", "path": "optimizer.momentum", "low": 0.1, "high": 0.5}]
    (tmp_path / "sweep.json").write_text(json.dumps({"sweep": old | {"axes": axes}}))
    assert load(tmp_path)[0].axes == (Uniform("optimizer.momentum", 0.1, 0.5),), "of an older version"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"axes": (replace(MOMENTUM, when=("optimiser", "SGD")), OPTIMIZER)},
            "optimiser is no axis of the sweep.*did you mean optimizer",
        ),
        (
            {"axes": (replace(MOMENTUM, when=("optimizer", "SDG")), OPTIMIZER)},
            "the axis optimizer never has the value 'SDG'.*did you mean SGD",
        ),
        (
            {"axes": (OPTIMIZER, Uniform("clip_norm", 1, 2, when=("optimizer", SGD(lr=7))))},
            "the axis optimizer never has the value SGD",
        ),
        (
            {"axes": (LR, Uniform("clip_norm", 1, 2, when=("optimizer.lr", 0.1)))},
            "optimizer.lr has too many values to name one",
        ),
        ({"axes": (LR, Uniform("clip_norm", 1, 2, when=("optimizer.lr",)))}, "is no condition"),
        (
            {
                "axes": (
                    Choice("epochs", (1, 2), when=("batch_size", 32)),
                    Choice("batch_size", (32, 64), when=("epochs", 1)),
                )
            },
            "epochs needs batch_size needs epochs",
        ),
        ({"axes": (Choice("epochs", (1, 2), when=("epochs", 1)),)}, "epochs needs epochs"),
        (
            {"axes": (replace(MOMENTUM, when=None), OPTIMIZER)},
            r'AdamW has no field optimizer.momentum, .*when=\("optimizer", "SGD"\)',
        ),
        ({"axes": (Uniform("optimizer.momentun", 0, 1), OPTIMIZER)}, "SGD has no field optimizer.momentun"),
        (
            {"axes": (replace(MOMENTUM, high=3.0), OPTIMIZER)},
            "axis optimizer.momentum has a value that its field refuses",
        ),
        ({"first": ({"optimizer.lrr": 1},)}, "optimizer.lrr is no axis of the sweep.*did you mean optimizer.lr"),
        ({"first": ({"optimizer.lr": 7},)}, "the axis optimizer.lr never has the value 7.*from 0.0001 to 1"),
        ({"first": ({"optimizer.lr": "fast"},)}, "the axis optimizer.lr never has the value 'fast'"),
        ({"first": ({}, {"optimizer": "Adam"})}, "point 1; its values are SGD, AdamW"),
        (
            {"first": ({"optimizer.momentum": 0.5},)},
            "optimizer.momentum does not exist under the other values.*optimizer='SGD'",
        ),
        ({"first": ({"optimizer": "AdamW", "optimizer.momentum": 0.5},)}, "does not exist under the other values"),
        (
            {"axes": (Grid("epochs", (1, 2)),), "trials": None, "first": ({"epochs": 2},)},
            "every combination of the grid is tried",
        ),
        ({"first": {"optimizer.lr": 1}}, "first = .* is of the wrong type"),
        ({"constraints": ("memory <= 8 GiB",)}, "no run reports 'memory', in Sweep.constraints"),
        ({"constraints": ("val_loss = 8",)}, "'val_loss = 8' is no constraint"),
        ({"constraints": ("val_loss < 1e",)}, "'val_loss < 1e' is no constraint"),
        ({"constraints": ("val_loss < 1 GiB",)}, "val_loss has no unit 'GiB'.*plain number"),
        ({"constraints": ("seconds < 1 GiB",)}, "seconds has no unit 'GiB'.*its units are s, min, h"),
        ({"constraints": ("seconds < 1 min", "seconds > 2 min")}, "no trial can keep both"),
        ({"constraints": ("seconds < 1", "seconds >= 1")}, "no trial can keep both"),
        (
            {"objective": ("val_loss", "val_accuracy", "seconds", "peak_memory_bytes")},
            "of one, two or three different names",
        ),
        ({"scheduler": PBT()}, "PBT cannot change optimizer.momentum, which depends on another axis"),
        (
            {"scheduler": PBT(), "axes": (Choice("optimizer", (SGD(), SGD(lr=1))), LR)},
            "PBT cannot change optimizer.lr, which depends on another",
        ),
        (
            {"scheduler": PB2(), "axes": (Uniform("clip_norm", 1, 2, step=0.5),)},
            "PB2 takes Uniform and LogUniform without",
        ),
    ],
)
def test_space_that_cannot_be_is_refused_in_a_line(changes: dict, message: str) -> None:
    if isinstance(changes.get("scheduler"), PB2):
        pytest.importorskip("sklearn")
    with pytest.raises(UserError, match=message) as caught:
        Sweep(**{"experiment": BASE, "axes": SPACE, "trials": 4, **changes})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "axis",
    [
        lambda: Uniform("x", 0, 1, step=0.0),
        lambda: Uniform("x", 0, 1, step=1.5),
        lambda: Int("x", 1, 4, step=9),
        lambda: Int("x", 1, 9, log=True, step=2),
    ],
)
def test_step_that_cannot_be_is_refused(axis: Any) -> None:
    with pytest.raises(UserError, match="step"):
        axis()


def test_constraints_are_read_with_units_and_kept_by_figures() -> None:
    texts = ("peak_memory_bytes <= 1.5 KiB", "val_loss<0.5", "time_to_accuracy(0.8) <= 2 min", "val_accuracy >= 8e-1")
    memory, loss, reached, accuracy = parse_constraints(texts, DIRECTIONS)
    assert [one.bound for one in (memory, loss, reached, accuracy)] == [1536, 0.5, 120, 0.8]
    parse_constraints(("seconds <= 1", "seconds >= 1"), DIRECTIONS)
    rows = [
        {"val_loss": 0.4, "val_accuracy": 0.7, "seconds": 100.0},
        {"val_loss": 0.6, "val_accuracy": 0.9, "seconds": 20.0},
    ]
    assert memory.holds({}, rows, {"peak_memory_bytes": 1536}) and not memory.holds(
        {}, rows, {"peak_memory_bytes": 1537}
    )
    assert not loss.holds(rows[1], rows, {}), "of the weights that are kept, not the lowest"
    assert accuracy.holds(rows[1], rows, {}) and reached.holds(rows[1], rows, {})
    assert not reached.holds(rows[1], rows[:1], {}), "it was not reached"
    assert not memory.holds({}, rows, {}), "it was not measured"


def test_trial_that_breaks_a_constraint_is_neither_best_nor_on_the_front(tmp_path: Path) -> None:
    sweep = Sweep(BASE, SPACE, objective=("val_accuracy", "seconds"), trials=3, constraints=("val_loss < 1",))
    for number, (accuracy, loss) in enumerate([(0.9, 1.5), (0.8, 0.5), (0.7, 0.2)]):
        folder = record.folder(tmp_path, number)
        folder.mkdir(parents=True)
        (folder / "trial.json").write_text(json.dumps({"number": number, "status": "completed", "values": {}}))
        row = {
            "kind": "epoch",
            "epoch": 1,
            "step": 3,
            "seconds": 1.0 + number,
            "val_accuracy": accuracy,
            "val_loss": loss,
        }
        (folder / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    planned: Any = SimpleNamespace(sweep=sweep, concurrent=1, fingerprints={})
    trials = Trials(tmp_path, planned, 0.0)
    told: dict[int, Any] = {}
    trials.search = SimpleNamespace(tell=told.__setitem__, ordered=False)  # type: ignore[assignment]
    answer = trials.answer("completed")
    assert (answer["best"], answer["front"]) == (1, [1])
    assert [one.get("violates") for one in answer["trials"]] == [["val_loss < 1"], None, None]
    for number in range(3):
        trials.tell(number)
    assert told == {0: None, 1: [0.8, 2.0], 2: [0.7, 3.0]}
    results = Results.of(answer)
    assert results.trials[0].word == "over a limit" and not results.trials[0].counts
    assert next(axis.levels for axis in results.axes if axis.path == "optimizer") == ("SGD", "AdamW")
    assert results.best == 1 and [trial.number for trial in results.ranked()] == [1, 2, 0]
    header, first = write_csv(tmp_path, answer).read_text().splitlines()[:2]
    assert header.endswith(",error,violates") and first.endswith(",,val_loss < 1")


def test_random_search_of_a_condition_is_a_function_of_seed_and_number() -> None:
    one, other = (RandomSearch().start(SPACE, (), 3) for _ in range(2))
    assert [one.propose(n, {}) for n in range(9)] == [other.propose(n, {}) for n in reversed(range(9))][::-1]


def test_a_range_stays_one_of_floats() -> None:
    """Tune multiplies what it is given, and rounds whole numbers."""
    for axis in (LogUniform("optimizer.lr", 0.001, 1), Uniform("optimizer.momentum", 0, 1)):
        assert [type(axis.clip(value)) for value in (-1, 0.5, 1, 2)] == [float] * 4


def test_an_axis_may_replace_a_tuple_of_objects() -> None:
    base = Experiment(MLP(), Digits(), hooks=(GradientNorm(),), epochs=2)
    sweep = Sweep(base, (Choice("hooks", ((), (GradientNorm(), LearningRates()))),), trials=2)
    assert {len(sweep.trial({"hooks": value}).hooks) for value in sweep.axes[0].finite or ()} == {0, 2}
