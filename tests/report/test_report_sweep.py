"""What a user sees of a sweep: numbers of the front and of importance, the table's text, trials.csv, the pictures."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.collections import LineCollection
from PIL import Image
from rich.cells import cell_len
from rich.console import Console

from raytrain import UserError
from raytrain.loggers import RunInfo
from raytrain.report import sweep, sweep_charts, sweep_page
from raytrain.report.coordinates import ABSENT, height_of
from raytrain.report.fanova import _of_tree, _points, fanova
from raytrain.report.importance import LEAST_TRIALS, explained, importance
from raytrain.report.plots import learning_curves, parallel_coordinates, pareto
from raytrain.report.plots.history import draw as draw_history
from raytrain.report.sweep_figures import Learning, by_configuration, history, slices, steps
from raytrain.report.sweep_plots import write_plots
from raytrain.report.trials import Known, Results
from raytrain.run.lock import Lock
from raytrain.sweep import repeats
from raytrain.sweep.front import pareto_front
from raytrain.sweep.objective import Objective

PLOTS = [
    *("parallel_coordinates.png", "importance.png", "slices.png", "history.png"),
    *("learning_curves.png", "accuracy_time.png", "pareto.png"),
]
OF_VALUES = ["parallel_coordinates.png", "slices.png", "history.png"]
HOSTILE = "[red]x[/red]\x1b[2J\r\n\x00\u202e$\\frac{$ _☃名\ud800 a,b;\"'" + "long " * 40
ACCURACY = [{"name": "val_accuracy", "mode": "max"}]
SECONDS = {"name": "seconds", "mode": "min"}


def trial(number: int, values: dict[str, Any], accuracy: float | None = None, **more: Any) -> dict[str, Any]:
    """A record of sweep.json."""
    status = more.pop("status", "completed" if accuracy is not None else "infeasible")
    return {
        "number": number,
        "values": values,
        "status": status,
        "objective": [accuracy],
        "epochs": 3,
        "of_epochs": 3,
        "val_accuracy": accuracy,
        "val_loss": None if accuracy is None else 1 - accuracy,
        "samples_per_second": None if accuracy is None else 12_000.0 + 100 * number,
        "seconds": 4.1,
        "peak_memory_bytes": 400 * 2**20 - 2**20 * number,
        "attempts": 1,
        "error": None,
        "started": 1.0,
        "ended": 5.0,
    } | more


def answer(trials: list[dict[str, Any]], axes: list[dict[str, Any]] | None = None, **more: Any) -> dict[str, Any]:
    return {
        "status": "completed",
        "sweep": {"axes": axes or []},
        "objectives": ACCURACY,
        "seconds": 41.2,
        "trials": trials,
    } | more


def searched(count: int, fail: bool = True) -> dict[str, Any]:
    """A random search in which the learning rate matters."""
    axes: list[dict[str, Any]] = [
        {"class": "m:LogUniform", "path": "optimizer.lr", "low": 1e-4, "high": 1.0},
        {"class": "m:Choice", "path": "precision", "values": ["fp32", "bf16"]},
        {"class": "m:Int", "path": "batch_size", "low": 16, "high": 512, "log": True},
    ]
    random, trials = np.random.default_rng(0), []
    for number in range(count):
        lr = float(10 ** random.uniform(-4, 0))
        values = {
            "optimizer.lr": lr,
            "precision": ["fp32", "bf16"][number % 2],
            "batch_size": int(2 ** random.uniform(4, 9)),
        }
        bad = fail and number % 7 == 3
        trials.append(trial(number, values, None if bad else 0.97 - 0.05 * (math.log10(lr) + 2) ** 2))
        if bad:
            trials[-1]["error"] = "CUDA out of memory"
    return answer(trials, axes)


def saved(path: Path, content: dict[str, Any]) -> Path:
    """A sweep's directory, with the epochs of each trial that has an accuracy."""
    path.mkdir(exist_ok=True)
    (path / "sweep.json").write_text(json.dumps(content))
    for record in content["trials"]:
        run = path / "trials" / f"{record['number']:04d}"
        run.mkdir(parents=True)
        if record.get("val_accuracy") is not None:
            rows = [
                {"kind": "epoch", "epoch": e, "val_accuracy": record["val_accuracy"] * e / 3, "seconds": 1.5}
                for e in (1, 2, 3)
            ]
            (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def terminal(width: int = 120, height: int = 40) -> Console:
    return Console(file=io.StringIO(), force_terminal=True, color_system=None, width=width, height=height, record=True)


def log_file() -> Console:
    return Console(file=io.StringIO(), highlight=False, soft_wrap=True, width=80)


def said(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


# The front


def test_the_front_of_two_figures() -> None:
    points = [(0.9, 100), (0.8, 200), (0.7, 150), (0.9, 100), (None, 900), (math.nan, 900), (0.95, 10)]
    assert pareto_front(points, ["max", "max"]) == [0, 1, 3, 6]
    assert pareto_front(points, ["max", "min"]) == [6]
    assert pareto_front(points, ["min", "min"]) == [0, 2, 3, 6]
    assert pareto_front([], ["max"]) == [] and pareto_front([(None,)], ["min"]) == []
    assert pareto_front([(1,), (3,), (3,)], ["max"]) == [1, 2]


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_the_front_is_that_of_brute_force(data: st.DataObject) -> None:
    modes = data.draw(st.lists(st.sampled_from(["max", "min"]), min_size=1, max_size=4))
    figure = st.one_of(st.none(), st.integers(0, 3), st.sampled_from([math.nan, 0.5, math.inf, -math.inf]))
    points = data.draw(st.lists(st.tuples(*[figure] * len(modes)), max_size=25))

    def better(a: Any, b: Any, mode: str) -> bool:
        return a > b if mode == "max" else a < b

    def dominates(one: tuple, other: tuple) -> bool:
        pairs = list(zip(one, other, modes, strict=True))
        return not any(better(b, a, m) for a, b, m in pairs) and any(better(a, b, m) for a, b, m in pairs)

    whole = [i for i, point in enumerate(points) if not any(x is None or math.isnan(x) for x in point)]
    expected = [i for i in whole if not any(dominates(points[j], points[i]) for j in whole)]
    assert pareto_front(points, modes) == expected


@pytest.mark.parametrize(("points", "modes"), [([(1, 2)], ["max"]), ([(1,)], ["best"]), ([(1, 2), (1,)], ["max"] * 2)])
def test_a_front_of_points_that_do_not_fit_its_modes(points: list[tuple], modes: list[str]) -> None:
    with pytest.raises(ValueError, match=r"modes are|must have"):
        pareto_front(points, modes)


# Importance


def test_importance_of_an_additive_function_is_its_variance() -> None:
    """3 a + b with a, b from {-1, 1}, every pair equally often: nine tenths and one tenth of the variance."""
    a, b, unused = (np.tile(np.repeat([-1.0, 1.0], 2**i), 64 // 2**i) for i in range(3))
    found = importance([a.tolist(), ["xy"[int(x > 0)] for x in b], unused.tolist()], 3 * a + b)
    shares = [share.share for share in found if share]
    assert shares == pytest.approx([0.9, 0.1, 0.0], abs=0.01)
    chances = [share.chance for share in found if share]
    assert all(0 < chance < 0.06 for chance in chances)
    assert shares[0] > chances[0] and shares[1] > chances[1]


def test_importance_of_an_axis_without_effect_is_chance() -> None:
    """The plain share of variance would be 4 / 29 = 14 % on average."""
    random = np.random.default_rng(5)
    shares, beyond = [], 0
    for _ in range(120):
        (found,) = importance([random.random(30).tolist()], random.standard_normal(30))
        assert found is not None
        shares.append(found.share)
        beyond += found.share > found.chance
    assert np.mean(shares) < 0.05
    assert 1 <= beyond <= 14, "one in twenty of 120 is 6"


def test_importance_finds_a_smooth_log_effect_in_noise() -> None:
    random = np.random.default_rng(6)
    lr, other = 10 ** random.uniform(-4, 0, 100), random.random(100)
    first, second = importance([lr.tolist(), other.tolist()], -((np.log10(lr) + 2) ** 2))
    assert first is not None and second is not None
    assert first.share > 0.8 and first.share > first.chance and second.share < 0.1


def test_nothing_is_claimed_from_too_little() -> None:
    few, enough = list(range(LEAST_TRIALS - 1)), [float(i % 3) for i in range(LEAST_TRIALS + 2)]
    assert importance([few], np.array(few, dtype=float)) == [None]
    assert importance([enough], np.ones(len(enough))) == [None], "all results are equal"
    names = [f"name {i}" for i in range(len(enough))]
    same, missing, fine = ["one"] * len(enough), [None] * len(enough), enough
    found = importance([names, same, missing, fine], np.array(enough))
    assert found[:3] == [None] * 3 and found[3] is not None and found[3].share == 1


def test_the_anova_of_a_factorial_adds_up_and_finds_an_interaction() -> None:
    """2 a + b + a b over all combinations: 4, 1 and 1 of 6, with eta squared by hand."""
    a, b, c = (np.tile(np.repeat([-1.0, 1.0], 2**i), 32 // 2**i) for i in range(3))
    noise = np.random.default_rng(1).standard_normal(64) * 0.05
    columns = [a.tolist(), ["xy"[int(x > 0)] for x in b], c.tolist(), ["same"] * 64]
    found = explained(columns, 2 * a + b + a * b + noise)
    assert found.how == "factorial" and found.shares[3] is None
    shares = [share.share for share in found.shares if share]
    assert shares == pytest.approx([4 / 6, 1 / 6, 0.0], abs=0.01)
    assert found.pairs[0, 1].share == pytest.approx(1 / 6, abs=0.01)
    assert found.pairs[0, 1].share > found.pairs[0, 1].chance
    assert found.pairs[0, 2].share < 0.01 and set(found.pairs) == {(0, 1), (0, 2), (1, 2)}
    assert sum(shares) + sum(pair.share for pair in found.pairs.values()) == pytest.approx(1, abs=0.01)
    one_less = [column[1:] for column in columns]
    assert explained(one_less, (2 * a + b)[1:]).how == "forest", "a combination has fewer trials"


def test_eight_trials_of_a_factorial_are_enough_for_the_f_test() -> None:
    """F is 27 on 1 and 3 degrees of freedom, and 0 on 3 and 3; 95 % of F(1, 3) is 10.128, of F(3, 3) 9.277."""
    a, b = ["x"] * 4 + ["y"] * 4, [1.0, 2.0, 3.0, 4.0] * 2
    results = np.array([0.0, 1.0, 0.0, 1.0, 4.0, 3.0, 4.0, 3.0])
    one, other = explained([a, b], results).shares
    assert one is not None and other is not None and one.share > one.chance and other.share < other.chance
    # total 20, a 18, b 0, rest 2 on 3 degrees of freedom
    assert one.share == pytest.approx((18 - 2 / 3) / (20 + 2 / 3)) and other.share == 0
    assert one.chance == pytest.approx(2 / 3 * (10.12796 - 1) / (20 + 2 / 3), rel=1e-4)
    assert other.chance == pytest.approx(3 * 2 / 3 * (9.27663 - 1) / (20 + 2 / 3), rel=1e-4)


def test_factorials_of_noise_claim_an_effect_once_in_twenty() -> None:
    random = np.random.default_rng(3)
    a, b = np.repeat(np.arange(3.0), 4).tolist(), (np.arange(12) % 4 + 0.0).tolist()
    found = [explained([a, b], random.standard_normal(12)).shares for _ in range(400)]
    shares = [[share for one in found if (share := one[place])] for place in (0, 1)]
    claims = [sum(share.share > share.chance for share in one) for one in shares]
    assert all(8 <= count <= 34 for count in claims), f"20 of 400 are expected: {claims}"


def test_a_forest_finds_the_known_shares_of_a_sampled_space_and_its_interaction() -> None:
    """2 a + b + 2 a b over uniform values: variances of 4/3, 1/3 and 4/9 of 19/9 and the noise; c does nothing."""
    random = np.random.default_rng(5)
    a, b, c = random.uniform(-1, 1, size=(3, 400))
    word = np.array(["x", "y", "z"])[random.integers(3, size=400)]
    results = 2 * a + b + 2 * a * b + 0.2 * random.standard_normal(400)
    found = explained([np.exp(9 * a).tolist(), b.tolist(), c.tolist(), word.tolist(), ["same"] * 400], results)
    total = 4 / 3 + 1 / 3 + 4 / 9 + 0.04
    assert found.how == "forest" and found.shares[4] is None
    assert None not in found.shares[:4]
    first, second, third, fourth = (share for share in found.shares if share)
    assert first.share == pytest.approx(4 / 3 / total, abs=0.08) and first.share > first.chance
    assert second.share == pytest.approx(1 / 3 / total, abs=0.06) and second.share > second.chance
    assert found.pairs[0, 1].share == pytest.approx(4 / 9 / total, abs=0.1)
    beyond = {pair for pair, share in found.pairs.items() if share.share > share.chance}
    assert (0, 1) in beyond and max(found.pairs, key=lambda pair: found.pairs[pair].share) == (0, 1)
    assert third.share < 0.02 and fourth.share < 0.02
    every = [share.share for share in (*found.shares, *found.pairs.values()) if share]
    assert 0.75 < sum(every) <= 1.0


def test_axes_without_effect_seldom_get_more_of_a_forest_than_chance() -> None:
    random, claims = np.random.default_rng(6), 0
    for _ in range(2):
        values = random.random((4, 50))
        effects = fanova(values.tolist(), 3 * values[0] + 0.3 * random.standard_normal(50))
        assert effects is not None and effects.mains[0] > max(0.7, effects.chance[0])
        claims += sum(effects.mains[place] > effects.chance[place] for place in (1, 2, 3))
    assert claims <= 2, "of 6"
    effects = fanova(random.random((3, 40)).tolist(), random.standard_normal(40))
    assert effects is not None and sum(effects.mains.values()) < 0.1, "the forest predicts nothing of noise"


def test_a_forest_s_shares_of_a_tree_are_those_of_its_prediction_on_all_combinations() -> None:
    """By hand: the variances of means of the prediction over a grid of all values."""
    sklearn = pytest.importorskip("sklearn.ensemble")
    random = np.random.default_rng(7)
    values = random.integers(4, size=(80, 3)).astype(np.float32)
    results = values[:, 0] * values[:, 1] + values[:, 2]
    (one,) = sklearn.RandomForestRegressor(1, random_state=0).fit(values, results).estimators_
    axes = [_points(column) for column in values.T]
    mains, pairs = _of_tree(one.tree_, axes, [(0, 1), (1, 2)])
    grid = np.stack(np.meshgrid(*(at for at, _ in axes), indexing="ij"), axis=-1)
    predicted = one.predict(grid.reshape(-1, 3)).reshape(grid.shape[:3])
    weights = [w for _, w in axes]
    predicted -= np.einsum("abc,a,b,c->", predicted, *weights)
    total = np.einsum("abc,a,b,c->", predicted**2, *weights)
    means = [np.einsum("abc,b,c->a", predicted, *weights[1:]), np.einsum("abc,a,c->b", predicted, *weights[::2]),
             np.einsum("abc,a,b->c", predicted, *weights[:2])]  # fmt: skip
    alone = [float(mean**2 @ w) / total for mean, w in zip(means, weights, strict=True)]
    assert mains == pytest.approx(alone)
    both = np.einsum("abc,c->ab", predicted, weights[2])
    assert pairs[0, 1] == pytest.approx(np.einsum("ab,a,b->", both**2, *weights[:2]) / total - alone[0] - alone[1])
    assert mains.sum() + sum(pairs.values()) <= 1 + 1e-9


def test_an_axis_that_some_trials_lack_is_compared_among_the_others() -> None:
    """The optimizer makes all the difference, its momentum none: the axis must not get the optimizer's share."""
    random = np.random.default_rng(2)
    sgd = np.arange(60) % 2 == 0
    momentum = [float(random.random()) if one else None for one in sgd]
    found = importance([["AB"[int(one)] for one in sgd], momentum], 10.0 * sgd + random.standard_normal(60))
    assert found[0] is not None and found[0].share > 0.9
    assert found[1] is not None and found[1].share < 0.02 and found[1].share <= found[1].chance


# What the plots show


def test_the_history_counts_trials_as_they_end() -> None:
    records = [trial(n, {}, value, ended=when) for n, value, when in ((0, 0.5, 9.0), (1, 0.7, 3.0), (2, 0.6, 5.0))]
    records.append(trial(3, {}, status="crashed", ended=4.0))
    records.append(trial(4, {}, status="running", ended=None))
    found = history(Results.of(answer(records)), 0)
    assert [(one.at, one.trial.number, one.best) for one in found] == [(1, 1, 0.7), (3, 2, 0.7), (4, 0, 0.7)]
    lowest = history(Results.of(answer(records, objectives=[{"name": "val_loss", "mode": "min"}])), 0)
    assert [one.best for one in lowest] == [0.7, 0.6, 0.5]
    assert steps(lowest) == [(1.0, 0.7), (3.0, 0.7), (3.0, 0.6), (4.0, 0.6), (4.0, 0.5)]
    for record in records:
        record["ended"] = None
    assert [one.trial.number for one in history(Results.of(answer(records)), 0)] == [0, 1, 2]


def test_slices_are_means_with_students_intervals() -> None:
    axes = [{"path": "precision", "values": ["fp32", "bf16"], "class": "m:Choice"}]
    values = {"fp32": [0.5, 0.6, 0.7], "bf16": [0.9], None: [0.1]}
    pairs = [({"precision": name} if name else {}, value) for name, some in values.items() for value in some]
    results = Results.of(answer([trial(n, *pair) for n, pair in enumerate(pairs)], axes))
    first, second = slices(results, results.axes[0], 0)
    half = 4.302653 * 0.1 / math.sqrt(3)  # t of 95 % with 2 degrees of freedom
    assert (first.at, second.at) == (0.0, 1.0)
    assert (first.mean.mean, first.mean.low, first.mean.high) == pytest.approx((0.6, 0.6 - half, 0.6 + half))
    assert (second.mean.n, second.mean.mean, second.mean.high) == (1, 0.9, None)


def test_slices_of_many_numbers_are_groups_of_equal_size() -> None:
    results = Results.of(searched(100, fail=False))
    found = slices(results, results.axes[0], 0)
    assert [one.mean.n for one in found] in ([13, 12, 13, 12, 12, 13, 12, 13], [12, 13] * 4, [13, 12] * 4)
    assert all(one.low <= one.at <= one.high for one in found)
    assert max(found, key=lambda one: one.mean.mean).low < 0.01 < max(found, key=lambda one: one.mean.mean).high * 3


def test_mean_of_an_even_group_stands_in_the_middle_of_its_values() -> None:
    records = [trial(n, {"lr": lr}, 0.5 + n / 10) for n, lr in enumerate((0.02, 0.04, 0.06, 0.1))]
    results = Results.of(answer(records, [{"path": "lr", "low": 0.01, "high": 0.2, "class": "m:Uniform"}]))
    found = [(one.at, one.mean.mean) for one in slices(results, results.axes[0], 0)]
    assert found == [pytest.approx((0.03, 0.55)), pytest.approx((0.08, 0.75))]


def test_means_of_choices_that_came_once_stay_apart() -> None:
    axes = [{"path": "clip_norm", "values": [0.5, 1.0, 2.0], "class": "m:Choice"}]
    records = [trial(n, {"clip_norm": norm}, 0.5 + n / 10) for n, norm in enumerate((0.5, 0.5, 1.0, 2.0))]
    results = Results.of(answer(records, axes))
    found = [(one.at, one.mean.n, one.mean.mean) for one in slices(results, results.axes[0], 0)]
    assert found == [pytest.approx((0, 2, 0.55)), pytest.approx((1, 1, 0.7)), pytest.approx((2, 1, 0.8))]


def test_equal_values_are_at_one_place_and_absent_ones_below() -> None:
    axes = [
        {"class": "m:Choice", "path": "optimizer", "values": ["SGD", "AdamW"]},
        {"class": "m:Uniform", "path": "momentum", "low": 0.5, "high": 1.0, "when": ["optimizer", "SGD"]},
    ]
    values = [{"optimizer": "SGD", "momentum": 0.75}, {"optimizer": "AdamW"}, {"optimizer": "SGD", "momentum": 1.0}]
    results = Results.of(answer([trial(n, one, 0.5 + n / 10) for n, one in enumerate(values)], axes))
    heights = [[height_of(axis, one) for one in results.trials] for axis in results.axes]
    assert heights == [[0.0, 1.0, 0.0], [0.5, ABSENT, 1.0]]
    figure = parallel_coordinates.draw(results)
    assert figure is not None and "absent" in {text.get_text() for text in figure.axes[0].texts}


def test_three_objectives_have_a_plane_for_each_pair() -> None:
    """Trial 2 is on the front for its memory alone: in the other plane it is dominated."""
    goals = [*ACCURACY, {"name": "seconds", "mode": "min"}, {"name": "peak_memory_bytes", "mode": "min"}]
    aims = [(0.9, 1.0, 9e8), (0.8, 0.5, 9e8), (0.7, 2.0, 1e8), (0.6, 3.0, 9e8)]
    trials = [trial(n, {}, aim[0], objective=list(aim)) for n, aim in enumerate(aims)]
    results = Results.of(answer(trials, objectives=goals))
    assert results.front == (0, 1, 2)
    figure = pareto.draw(results)
    assert figure is not None and [plot.get_title(loc="left") for plot in figure.axes] == [
        "val_accuracy and seconds",
        "val_accuracy and memory",
        "seconds and memory",
    ]
    fronts = [sorted(np.asarray(plot.lines[0].get_xdata()).tolist()) for plot in figure.axes]
    assert fronts == [[0.5, 1.0], [1e8, 9e8], [1e8, 9e8]]
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert "completed, on the front, dominated in this plane" in labels


def repeated() -> dict[str, Any]:
    """Three configurations of three repeats. The luckiest repeat is not of the best configuration."""
    goals = (Objective("val_accuracy", "val_accuracy", "max"), Objective("seconds", "seconds", "min"))
    accuracies = ((0.60, 0.70, 0.99), (0.88, 0.90, 0.92), (0.50, 0.51, 0.52))
    records = [
        trial(3 * c + r, {"batch_size": 32 << c}, one, objective=[one, 9.0 - 3 * c + r], ended=10.0 * r - c)
        | {"configuration": c, "repeat": r}
        for c, row in enumerate(accuracies)
        for r, one in enumerate(row)
    ]
    rows = repeats.described(repeats.configurations(records, goals, 3), goals, 0.9, True)
    axes = [{"class": "m:Grid", "path": "batch_size", "values": [32, 64, 128]}]
    content = answer(records, axes, best=5, front=[5, 8], configurations=rows, objectives=[*ACCURACY, SECONDS])
    content["sweep"]["confidence"] = 0.9
    return content


def test_with_repeats_pictures_have_the_means_and_intervals_of_the_table(tmp_path: Path) -> None:
    results = Results.of(content := repeated())
    found = by_configuration(results)
    means = {row["number"]: row["objectives"] for row in content["configurations"]}
    assert (found.best, found.front, found.each) == (1, (1, 2), "configuration")
    assert [one.objective for one in found.trials] == [tuple(goal["mean"] for goal in means[n]) for n in range(3)]
    t = 2.919986  # of 90 % with 2 degrees of freedom
    assert found.trials[1].half == pytest.approx((t * 0.02 / math.sqrt(3), t / math.sqrt(3)), rel=1e-5)
    assert [(one.at, one.trial.number) for one in history(found, 0)] == [(1, 2), (2, 1), (3, 0)], "by the last repeat"

    figure = pareto.draw(results)
    assert figure is not None
    places = {tuple(map(float, at)) for dots in figure.axes[0].collections for at in np.asarray(dots.get_offsets())}
    for goals in means.values():
        assert (goals[1]["mean"], goals[0]["mean"]) in places
    bars = [segment for lines in figure.axes[0].collections if isinstance(lines, LineCollection)
            for segment in lines.get_segments()]  # fmt: skip
    ends = {(round(float(a[0]), 6), round(float(b[0]), 6)) for a, b in bars if a[1] == b[1]}
    assert ends == {(round(one[1]["low"], 6), round(one[1]["high"], 6)) for one in means.values()}
    assert "bars: 90% confidence" in figure.axes[0].get_xlabel()

    figure = draw_history(results)
    assert figure is not None
    assert [text.get_text() for plot in figure.axes for text in plot.texts] == ["configuration 1", "configuration 2"]
    line = np.asarray(figure.axes[0].lines[0].get_ydata()).tolist()
    assert line == [means[n][0]["mean"] for n in (2, 1, 0)]
    assert len(write_plots(saved(tmp_path / "s", content), content)) >= 5
    charts = sweep_charts.objectives(results, Learning.read(results, tmp_path / "s"))
    assert "configurations that have ended" in charts and 'class="bar"' in charts
    single = Results.of(searched(9))
    assert by_configuration(single) is single


def test_a_configuration_without_a_mean_has_the_status_of_the_repeat_that_failed() -> None:
    goals = (Objective("val_accuracy", "val_accuracy", "max"),)
    records = [trial(0, {}, 0.5), trial(1, {}, error="CUDA"), trial(2, {}, 0.7), trial(3, {}, 0.9, violates=["s < 1"])]
    rows = repeats.described(repeats.configurations(records, goals, 2), goals, 0.95, True)
    first, second = by_configuration(Results.of(answer(records, configurations=rows))).trials
    assert (first.status, first.error, first.counts) == ("infeasible", "CUDA", False)
    assert (second.word, second.counts) == ("over a limit", False)


def test_curves_are_those_of_the_objective_and_say_how_trials_ended(tmp_path: Path) -> None:
    content = searched(6, fail=False) | {"objectives": [{"name": "val_f1", "mode": "max"}]}
    content["trials"][1]["status"] = "stopped"
    path = saved(tmp_path / "s", content)
    for metrics in path.glob("trials/*/metrics.jsonl"):
        metrics.write_text(metrics.read_text().replace('"val_accuracy"', '"val_f1"'))
    learning = Learning.read(results := Results.of(content), path)
    assert learning.metrics == ("val_f1",) and learning.unit == "epoch"
    assert [x for x, _ in learning.curves("val_f1", "epoch")[0][1]] == [1, 2, 3]
    assert [x for x, _ in learning.curves("val_f1", "seconds")[0][1]] == [1.5, 3.0, 4.5]
    figure = learning_curves.draw(results, learning, "epoch")
    assert figure is not None and "stopped early" in {text.get_text() for text in figure.legends[0].get_texts()}


def test_the_page_shows_what_the_pictures_show(tmp_path: Path) -> None:
    goals = [*ACCURACY, {"name": "peak_memory_bytes", "mode": "min"}]
    axes = [
        {"class": "m:Grid", "path": "precision", "values": ["fp32", "bf16"]},
        {"class": "m:Grid", "path": "batch_size", "values": [32, 64, 128]},
        {"class": "m:Uniform", "path": "momentum", "low": 0.5, "high": 1.0, "when": ["precision", "fp32"]},
    ]
    trials = []
    for n in range(12):
        values = {"precision": ["fp32", "bf16"][n % 2], "batch_size": 32 * 2 ** (n // 2 % 3)}
        accuracy = 0.5 + 0.1 * (n % 2) + n / 1000
        record = trial(n, values | ({} if n % 2 else {"momentum": 0.5 + n / 30}), accuracy)
        trials.append(
            record | {"objective": [accuracy, 2.0**20 * (400 - n)], "status": ["completed", "stopped"][n % 2]}
        )
    content = answer(trials, axes, objectives=goals)
    page = sweep_page.whole(saved(tmp_path / "s", content), content)
    lines = re.findall(r'<path class="curve (?:s\d|c1)" d="M([^"]*)"><title>trial (\d+): ', page)
    places = {int(number): [float(one.split()[0]) for one in line.split("L")] for line, number in lines}
    assert sorted(places) == list(range(12)) and len({tuple(one) for one in places.values()}) == 1, "one place an axis"
    at = {int(number): line.split("L")[0] for line, number in lines}
    assert len({at[n] for n in range(0, 12, 2)}) == 1 != len({at[0], at[1]}), "equal values are at one place"
    for said in ("absent", "val_accuracy as trials ended", "memory, MiB by batch_size", "val_accuracy and memory, MiB"):
        assert said in page
    assert "Which axes matter for val_accuracy" in page and "main effects between groups of trials" in page
    assert page.count("M0 6H32") >= 2 and "Triangles: stopped by the scheduler" in page
    for record in trials:
        record["values"].pop("momentum", None)
    assert "analysis of variance of a full factorial" in sweep_page.whole(tmp_path / "s", answer(trials, axes[:2]))


# What is read of sweep.json


def test_axes_have_the_shortest_unique_name() -> None:
    paths = ["optimizer.lr", "schedule.lr", "batch_size", "model.name"]
    results = Results.of(answer([trial(0, {"batch_size": 64, "new": True}, 0.5)], [{"path": path} for path in paths]))
    names = [axis.name for axis in results.axes]
    assert names == ["optimizer.lr", "schedule.lr", "batch_size", "model.name", "new"]
    grid = {"class": "m:Grid", "path": "batch_size", "values": [256, 32, 64]}
    words = {"class": "m:Choice", "path": "precision", "values": ["fp32", "bf16", None]}
    numbers = {"class": "m:LogUniform", "path": "optimizer.lr", "low": 1e-4, "high": 0.1}
    record = trial(0, {"batch_size": 128, "precision": "fp32", "optimizer.lr": 0.5}, 0.5)
    axes = Results.of(answer([record], [grid, words, numbers])).axes
    assert axes[0].levels == ("32", "64", "128", "256") and axes[1].levels == ("fp32", "bf16", "None")
    assert axes[2].levels is None and axes[2].log and (axes[2].low, axes[2].high) == (1e-4, 0.5)


def test_trials_are_ranked_running_first_then_best() -> None:
    trials = [
        *(trial(0, {}, 0.5), trial(1, {}, 0.9), trial(2, {}), trial(3, {}, status="pending")),
        *(trial(4, {}, status="running"), trial(5, {}, 0.99, status="diverged"), trial(6, {}, 0.7, status="stopped")),
    ]
    highest = Results.of(answer(trials))
    assert [t.number for t in highest.ranked()] == [4, 1, 6, 0, 2, 5, 3] and highest.best == 1
    lowest = Results.of(answer(trials, objectives=[{"name": "val_loss", "mode": "min"}]))
    assert [t.number for t in lowest.ranked()] == [4, 0, 6, 1, 2, 5, 3] and lowest.best == 0
    assert Results.of(answer(trials, best=6)).best == 6, "the sweep's own word counts"
    assert Results.of(answer(trials, best=77)).best == 1
    assert Results.of(answer([trial(0, {}), trial(1, {})])).best is None


def test_with_several_objectives_the_front_is_marked() -> None:
    goals = [*ACCURACY, {"name": "samples_per_second", "mode": "max"}]
    trials = [trial(i, {}, a, objective=[a, s]) for i, (a, s) in enumerate([(0.9, 1.0), (0.8, 2.0), (0.7, 1.5)])]
    results = Results.of(answer(trials, objectives=goals))
    assert results.front == (0, 1) and results.marked == {0, 1}
    assert Results.of(answer(trials, objectives=goals, front=[1])).marked == {1}
    console = terminal()
    sweep.Table(console).finish(RunInfo(Path("s"), str(Path("s"))), answer(trials, objectives=goals))
    assert "best val_accuracy 0.9000 (trial 0), Pareto front: trials 0, 1" in said(console)


# The table


@pytest.mark.parametrize("count", [1, 2, 200])
@pytest.mark.parametrize(("width", "height"), [(200, 50), (120, 24), (80, 24), (40, 10), (20, 5), (9, 2), (80, 1)])
def test_the_live_table_is_never_larger_than_the_terminal(count: int, width: int, height: int) -> None:
    content = searched(count)
    for record in content["trials"][:2]:
        record["status"] = "running"
    view = sweep._View(Results.of(content), 92.0, "stopping", True)
    console = terminal(width, height)
    console.print(view)
    lines = said(console).splitlines()
    assert 1 <= len(lines) <= max(1, height - 1) and max(map(cell_len, lines)) <= width
    if (width, height, count) == (120, 24, 200):
        assert lines[0].startswith("198 of 200 trials ended, 2 running, 1:32, best val_accuracy 0.9")
        titles = "trial lr precision batch_size status epoch val_accuracy samples/s seconds memory"
        assert lines[1].split() == titles.split()
        assert [line.split()[4] for line in lines[2:4]] == ["running"] * 2 and lines[4].split()[0].startswith("*")
        shown = sum(line.split()[-1] == "MiB" for line in lines)
        assert f"... and {200 - shown} more" in lines
        assert lines[-2].startswith("trials 3, 10, 17, 24, 31, 38 and 23 more infeasible: CUDA out of memory")
        assert lines[-1] == "stopping ..."


def test_trials_that_wait_or_were_interrupted_have_not_ended() -> None:
    content = searched(5, fail=False)
    statuses = ("running", "paused", "interrupted", "pending", "completed")
    for record, status in zip(content["trials"], statuses, strict=True):
        record["status"] = status
    console = terminal(120, 24)
    console.print(sweep._View(Results.of(content), 92.0, "", True, 8))
    assert said(console).startswith("1 of 8 trials ended, 1 running, 1:32")


def test_narrow_terminal_leaves_columns_out_and_says_which() -> None:
    console = terminal(width=64)
    sweep.Table(console).finish(RunInfo(Path("s"), str(Path("s"))), searched(4, fail=False))
    out = said(console).splitlines()
    assert out[0].split() == ["trial", "lr", "precision", "batch_size", "status", "val_accuracy"]
    assert "no room for memory, seconds, samples/s, epoch: all is in trials.csv" in " ".join(said(console).split())
    assert max(map(cell_len, out)) <= 64


def test_live_table_comes_with_trials_and_goes_at_the_end() -> None:
    console = terminal()
    table = sweep.Table(console)
    table.planned([("trials", "3 of [b]all[/b]"), ("note", "a\x1b[2Jb")])
    table.status("starting Ray")
    content = searched(3, fail=False)
    table.trials([record | {"status": "pending"} for record in content["trials"]], ACCURACY, 0.5)
    assert table._live is not None and table._view.status == "starting Ray"
    table.trials(content["trials"], ACCURACY, 1.5)
    assert table._view.status == "", "it was of what came before the trials"
    table.status("stopping")
    table._due = 0.0  # enough time has passed since the last drawing
    table.trials(content["trials"], ACCURACY, 2.5)
    assert table._view.status == "stopping" and table._view.elapsed == 2.5
    table.finish(RunInfo(Path("s"), str(Path("s"))), content)
    assert table._live is None
    table.close()
    assert "trials  3 of [b]all[/b]\n    note  a?[2Jb\n" in said(console)


def test_without_a_terminal_each_trial_is_one_line() -> None:
    console = log_file()
    table = sweep.Table(console)
    table.status("starting Ray")
    table.status("starting Ray")
    running = trial(0, {"optimizer.lr": 0.0123456, "precision": "fp32"}, status="running")
    done = trial(0, {"optimizer.lr": 0.0123456, "precision": "fp32"}, 0.98765)
    failed = trial(1, {"optimizer.lr": 1.0}, status="crashed", error="Error: died\nbadly", peak_memory_bytes=None)
    paused = running | {"status": "paused"}
    for records in ([running, failed | {"status": "pending"}], [paused], [done, failed], [done, failed]):
        table.trials(records, ACCURACY, 1.0)
    again = failed | {"attempts": 2, "status": "stopped", "objective": [0.5], "error": None}
    table.trials([done, again], ACCURACY, 2.0)
    assert said(console).splitlines() == [
        "starting Ray ...",
        "trial 0 completed:  lr=0.0123 precision=fp32  val_accuracy 0.9877  "
        "epoch 3/3  12,000 samples/s  4.1 s  400 MiB",
        "trial 1 crashed:  lr=1  epoch 3/3  4.1 s  Error: died badly",
        "trial 1 stopped early:  lr=1  val_accuracy 0.5000  epoch 3/3  4.1 s  attempt 2",
    ]


def test_a_resumed_sweep_says_nothing_of_trials_that_go_on() -> None:
    console = log_file()
    table = sweep.Table(console)
    done = trial(0, {"lr": 0.1}, 0.5)
    left = trial(1, {"lr": 0.2}, 0.4, status="interrupted", attempts=1)
    for status, attempts in (("interrupted", 1), ("running", 2), ("interrupted", 2)):  # then Ctrl-C again
        table.trials([done, left | {"status": status, "attempts": attempts}], ACCURACY, 1.0)
    said_lines = [" ".join(line.split()[:3]) for line in said(console).splitlines()]
    assert said_lines == ["trial 0 completed:", "trial 1 interrupted:"]


def test_trials_that_are_counted_in_steps_show_steps() -> None:
    short = [trial(n, {"lr": n / 10}, 0.5, epochs=0, of_epochs=None, steps=7 + n, of_steps=1_500_000) for n in range(2)]
    console, logged = terminal(), log_file()
    sweep.Table(console).finish(RunInfo(Path("s"), str(Path("s"))), answer(short))
    head, *lines = said(console).splitlines()
    assert "step" in head.split() and "epoch" not in head.split()
    assert "7/1500000" in lines[0] and "8/1500000" in lines[1]
    table = sweep.Table(logged)
    table.trials([one | {"status": "running"} for one in short], ACCURACY, 1.0)
    table.trials(short, ACCURACY, 1.0)
    assert "  step 7/1500000  " in said(logged) and "epoch" not in said(logged)
    both = terminal()
    mixed = answer([short[0], trial(1, {"lr": 0.1}, 0.4)])
    sweep.Table(both).finish(RunInfo(Path("s"), str(Path("s"))), mixed)
    out = said(both)
    assert "done" in out.splitlines()[0].split() and "7/1500000 steps" in out and "3/3 epochs" in out


def test_what_came_of_a_sweep_and_what_to_type_next(tmp_path: Path) -> None:
    content, console = searched(40), log_file()
    path = saved(tmp_path / "my sweep", content)
    sweep.report(path, console)
    out = said(console).splitlines()
    best = max((r for r in content["trials"] if r["val_accuracy"]), key=lambda r: r["val_accuracy"])
    assert out[1].split()[:2] == [f"*{best['number']}", f"{best['values']['optimizer.lr']:.3g}"]
    assert "... and 10 more: all is in trials.csv" in out
    assert "trials 3, 10, 17, 24, 31, 38 infeasible: CUDA out of memory" in out
    figures = f"best val_accuracy {best['val_accuracy']:.4f} (trial {best['number']})"
    assert out[-5:] == [
        f"completed: 40 trials (34 completed, 6 infeasible), 41.2 s, {figures}",
        f"the sweep is in {path}, with report.html, trials.csv and plots",
        f"next:  raytrain train '{path}/trials/{best['number']:04d}/experiment.json'",
        f"       raytrain evaluate '{path}/trials/{best['number']:04d}'",
        f"       raytrain export '{path}/trials/{best['number']:04d}' model.pth",
    ]
    assert sorted(file.name for file in (path / "plots").iterdir()) == sorted(PLOTS)
    (path / "best.json").write_text("{}")
    sweep.report(path, console)
    assert f"next:  raytrain train '{path}/best.json'" in said(console)
    content["sweep"]["by_fold"] = True
    (path / "sweep.json").write_text(json.dumps(content))
    sweep.report(path, console)
    assert said(console).splitlines()[-2:] == [
        f"next:  raytrain train '{path}/best.json' --data.folds.count 0 --data.folds.fold 0",
        f"       raytrain folds '{path}/best.json'",
    ]


def test_an_interrupted_sweep_says_in_one_block_what_to_type_next(tmp_path: Path) -> None:
    console, content = log_file(), searched(40)
    path = saved(tmp_path / "s", content)
    sweep.Table(console).finish(RunInfo(path, "runs/s"), content | {"status": "interrupted"})
    following = said(console).splitlines()[-4:]
    assert following[0] == "next:  raytrain sweep runs/s" and following[1].startswith("       raytrain train ")


def test_a_sweep_that_goes_on_without_an_ended_trial(tmp_path: Path) -> None:
    console = log_file()
    sweep.Table(console).finish(RunInfo(tmp_path, str(tmp_path)), answer([], status="running"))
    assert "running: no trial has ended, 41.2 s\n" in said(console)
    assert "raytrain sweep" not in said(console)  # the command that runs it goes on


def test_a_sweep_without_any_result_says_where_to_look(tmp_path: Path) -> None:
    console = log_file()
    trials = [trial(0, {}, error="out of memory"), trial(1, {}, error="out of memory")]
    sweep.Table(console).finish(RunInfo(tmp_path, str(tmp_path)), answer(trials, status="failed"))
    assert "trials 0, 1 infeasible: out of memory" in said(console)
    assert "failed: 2 trials (2 infeasible), 41.2 s\n" in said(console)
    assert "next:  raytrain sweep" in said(console)
    assert "\nno trial has a result" in said(console) and "raytrain evaluate" not in said(console)
    sweep.Table(console).finish(RunInfo(tmp_path, str(tmp_path)), answer([], status="interrupted"))
    assert "interrupted: no trial has ended" in said(console)
    trials = [trial(0, {}, status="completed"), trial(1, {}, status="completed")]
    time = [{"name": "time_to_accuracy(0.99)", "mode": "min"}]
    sweep.Table(console).finish(RunInfo(tmp_path, str(tmp_path)), answer(trials, objectives=time))
    assert "\nno trial has a value of time_to_accuracy(0.99)\n" in said(console)


# trials.csv


def test_the_csv_holds_every_trial_exactly(tmp_path: Path) -> None:
    content = searched(9)
    content["trials"][0]["values"]["epochs"] = 5
    content["trials"][1]["values"]["model"] = {"class": "m:CNN", "channels": [8, 16]}
    content["trials"][2]["error"] = 'a "quoted", one\nand more'
    content["trials"].append({"number": 9})
    file = sweep.write_csv(tmp_path, content)
    assert [path.name for path in tmp_path.iterdir()] == [file.name] == ["trials.csv"]
    with open(file, newline="") as opened:
        rows = list(csv.DictReader(opened))
    assert list(rows[0])[:7] == ["number", "status", "optimizer.lr", "precision", "batch_size", "epochs", "model"]
    assert len(rows) == 10 and rows[9]["status"] == "pending" and rows[9]["val_accuracy"] == ""
    for row, record in zip(rows[:9], content["trials"][:9], strict=True):
        assert float(row["optimizer.lr"]) == record["values"]["optimizer.lr"], "to the last bit"
        assert int(row["batch_size"]) == record["values"]["batch_size"]
        assert row["precision"] == record["values"]["precision"]
        for name in ("val_accuracy", "val_loss", "samples_per_second", "seconds", "peak_memory_bytes", "attempts"):
            assert row[name] == ("" if record[name] is None else str(record[name]))
        assert row["trial.epochs"] == "3"
    assert rows[0]["epochs"] == "5" and rows[1]["epochs"] == ""
    assert json.loads(rows[1]["model"]) == {"class": "m:CNN", "channels": [8, 16]}
    assert rows[2]["error"] == 'a "quoted", one and more'


def test_rows_of_trials_are_appended_to_the_csv_as_they_end(tmp_path: Path) -> None:
    content: dict[str, Any] = searched(12) | {"status": "running"}
    whole = sweep.write_csv(tmp_path, content).read_text().splitlines()
    (tmp_path / "trials.csv").write_text("number,status\n0,completed\n1,comp")  # a killed command left it
    growing, order = sweep.GrowingCSV(), [3, 0, 1, 2, 11, 10, 4, 5, 6, 7, 8, 9]
    for count in (0, 2, 3, 3, 12):
        ended = order[:count]
        trials = [one if one["number"] in ended else one | {"status": "running"} for one in content["trials"]]
        growing.update(tmp_path, content | {"trials": trials})
        rows = (tmp_path / "trials.csv").read_text().splitlines()
        assert rows[0] == whole[0] and sorted(rows[1:]) == sorted(whole[1 + number] for number in ended)
    growing.update(tmp_path / "gone", content)  # nothing new: nothing is written


def test_hosts_of_trials_are_named_where_there_are_several(tmp_path: Path) -> None:
    content: dict[str, Any] = searched(4, fail=False) | {"status": "running"}
    first, *rest = content["trials"]
    growing, whole = sweep.GrowingCSV(), [first, *(one | {"host": f"node{one['number'] % 2}"} for one in rest)]
    growing.update(tmp_path, content | {"trials": [first]})
    assert "host" not in (tmp_path / "trials.csv").read_text()
    for count in (2, 4):  # a node joins
        growing.update(tmp_path, content | {"trials": whole[:count]})
        rows = list(csv.DictReader((tmp_path / "trials.csv").read_text().splitlines()))
        assert [row["host"] for row in rows] == ["", "node1", "node0", "node1"][:count]
    text = io.StringIO()
    table = sweep.Table(Console(file=text, width=200))
    table.trials(whole, content["objectives"], 0.0)
    assert "trial 1 completed" in text.getvalue() and "  on node1" in text.getvalue()
    table.finish(RunInfo(tmp_path, str(tmp_path)), content | {"trials": whole, "status": "completed"})
    assert "memory   host" in text.getvalue(), "as wide as node1"


def test_report_beside_a_running_sweep_leaves_its_rows_alone(tmp_path: Path) -> None:
    content: dict[str, Any] = searched(4, fail=False) | {"status": "running"}
    ended = content["trials"]
    running = [*ended[:2], *(one | {"status": "running"} for one in ended[2:])]
    (tmp_path / "sweep.json").write_text(json.dumps(content | {"trials": running}))
    growing, whole = sweep.GrowingCSV(), sweep.write_csv(tmp_path, content).read_text()
    with Lock(tmp_path):
        growing.update(tmp_path, content | {"trials": running})
        sweep.report(tmp_path, Console(file=io.StringIO()))
        assert (tmp_path / "trials.csv").read_text().splitlines() == whole.splitlines()[:3]
        assert (tmp_path / "report.html").is_file() and (tmp_path / "plots").is_dir()
        growing.update(tmp_path, content)
        assert (tmp_path / "trials.csv").read_text() == whole, "each trial once"
    sweep.report(tmp_path, Console(file=io.StringIO()))
    rows = list(csv.DictReader((tmp_path / "trials.csv").read_text().splitlines()))
    assert [row["status"] for row in rows] == ["completed"] * 2 + ["interrupted"] * 2, "its driver was killed"


def test_only_changed_records_are_read_again() -> None:
    content, known = searched(5), Known()
    before = Results.of(content, known)
    content["trials"][2] = content["trials"][2] | {"val_accuracy": 0.5}
    after = Results.of(content, known)
    assert after == Results.of(content) and after.trials[2].val_accuracy == 0.5
    assert [a is b for a, b in zip(before.trials, after.trials, strict=True)] == [True, True, False, True, True]


def test_several_objectives_are_columns(tmp_path: Path) -> None:
    goals = [{"name": "val_top5", "mode": "max"}, {"name": "seconds", "mode": "min"}]
    content = answer([trial(0, {}, 0.5, objective=[0.25, 7.0]), trial(1, {}, objective=[None])], objectives=goals)
    rows = list(csv.DictReader(sweep.write_csv(tmp_path, content).read_text().splitlines()))
    assert [(row["val_top5"], row["seconds"]) for row in rows] == [("0.25", "7.0"), ("", "")]
    assert list(rows[0]).count("seconds") == 1


# Pictures


def drawn(path: Path) -> np.ndarray:
    """The pixels of a picture, which has more than a blank page or one colour."""
    with Image.open(path) as image:
        pixels = np.asarray(image.convert("RGB"))
    assert pixels.shape[0] > 200 and pixels.shape[1] > 600
    assert len(np.unique(pixels.astype(np.uint32) @ (1, 256, 65536))) > 30
    return pixels


def has(pixels: np.ndarray, colour: tuple[int, int, int]) -> bool:
    return bool((np.abs(pixels.astype(int) - colour).max(axis=2) <= 2).sum() > 20)


BLUE, RED, GREY = (0x00, 0x72, 0xB2), (0xD5, 0x5E, 0x00), (0x8C, 0x8C, 0x8C)


@pytest.mark.parametrize("count", [pytest.param(3, marks=pytest.mark.slow), 40])
def test_plots_show_the_best_trial_in_its_colour(tmp_path: Path, count: int) -> None:
    path = saved(tmp_path / "s", searched(count))
    written = write_plots(path, searched(count))
    names = [name for name in PLOTS if count == 40 or name != "importance.png"]  # of too few trials nothing is claimed
    assert written == [path / "plots" / name for name in names]
    assert sorted(os.listdir(path / "plots")) == sorted(names), "nothing half-written is left"
    pictures = {file.name: drawn(file) for file in written}
    assert all(has(pictures[name], RED) for name in PLOTS if name != "importance.png")
    assert count < 40 or has(pictures["importance.png"], BLUE)


@pytest.mark.parametrize("second", ["seconds", "samples_per_second"])
def test_the_front_is_drawn_in_the_objectives_of_the_sweep(tmp_path: Path, second: str) -> None:
    content = searched(12, fail=False)
    mode = "min" if second == "seconds" else "max"
    content["objectives"] = [{"name": "val_loss", "mode": "min"}, {"name": second, "mode": mode}]
    for number, record in enumerate(content["trials"]):
        record["objective"] = [1.0 + number, 50.0 - number if mode == "min" else 50.0 + number]
    figure = pareto.draw(Results.of(content))
    assert figure is not None
    plot = figure.axes[0]
    assert (
        plot.get_ylabel().startswith("val_loss (lower")
        and f"{(mode == 'max' and 'higher') or 'lower'}" in plot.get_xlabel()
    )
    drawn_at = {(round(x), round(y)) for dots in plot.collections for x, y in np.asarray(dots.get_offsets())}
    assert drawn_at == {(round(record["objective"][1]), round(record["objective"][0])) for record in content["trials"]}
    assert np.size(plot.lines[0].get_xdata()) == 12, "all are on the front"


def test_without_accuracies_the_loss_is_drawn(tmp_path: Path) -> None:
    content = searched(12)
    for record in content["trials"]:
        record["objective"] = [record["val_loss"]]
    path = saved(tmp_path / "s", content)
    for record in content["trials"]:
        record["val_accuracy"] = None
    for metrics in path.glob("trials/*/metrics.jsonl"):
        metrics.write_text(metrics.read_text().replace("val_accuracy", "val_loss"))
    content["objectives"] = [{"name": "val_loss", "mode": "min"}]
    assert [file.name for file in write_plots(path, content)] == PLOTS


def test_plot_that_two_trials_cannot_fill_is_left_out(tmp_path: Path) -> None:
    content = searched(4, fail=False)
    path = saved(tmp_path / "s", content)
    assert len(write_plots(path, content)) == 6
    for record in content["trials"]:
        record["samples_per_second"] = None
    for metrics in list(path.glob("trials/*/metrics.jsonl"))[1:]:
        metrics.unlink()
    assert [file.name for file in write_plots(path, content)] == OF_VALUES
    assert sorted(os.listdir(path / "plots")) == sorted(OF_VALUES)
    assert write_plots(path, content | {"trials": content["trials"][:1]}) == []
    assert not os.listdir(path / "plots")


def test_broken_metrics_of_a_trial_cost_only_its_curve(tmp_path: Path) -> None:
    content = searched(4, fail=False)
    path = saved(tmp_path / "s", content)
    (path / "trials/0000/metrics.jsonl").write_bytes(b"\xff\xfe not json\n")
    (path / "trials/0001/metrics.jsonl").write_text('[1]\n{"kind": "epoch"}\n{"kind": "epoch", "val_accuracy": "x"}\n')
    assert len(write_plots(path, content)) == 6


def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "plots").write_text("a file")
    with pytest.raises(UserError, match="cannot be written"):
        write_plots(tmp_path, searched(3))
    with pytest.raises(UserError, match="cannot be written"):
        sweep.write_csv(tmp_path / "missing", searched(3))


# Damaged, foreign and hostile files


def test_hostile_values_break_neither_table_nor_files(tmp_path: Path) -> None:
    values = [HOSTILE, HOSTILE + "2", "$x$", "", None, True, 1e308, {"class": "a:B", "c": [HOSTILE]}]
    axes = [
        {"class": "m:Choice", "path": HOSTILE, "values": values},
        {"class": "m:LogUniform", "path": "lr", "low": 0, "high": 1},
    ]
    trials = [
        trial(i, {HOSTILE: values[i % 8], "lr": 0.1 * (i % 3)}, 0.5 + i / 100 if i % 5 else None, error=HOSTILE)
        for i in range(24)
    ]
    content = answer(trials, axes, status=HOSTILE, objectives=[{"name": HOSTILE, "mode": "max"}])
    path = saved(tmp_path / "s[red]", content)
    for console in (terminal(60, 12), log_file()):
        table = sweep.Table(console)
        table.status(HOSTILE)
        table.trials(trials, content["objectives"], 1.0)
        sweep.report(path, console)
        text = said(console)
        assert "\x1b[2J" not in text and "\x00" not in text and "\u202e" not in text and "\ud800" not in text
        assert "[red]x[/red]" in text and "s[red]" in text.replace("\n", "")
        text.encode()
    assert sorted(os.listdir(path / "plots")) == sorted(PLOTS)
    with open(path / "trials.csv", newline="") as opened:
        rows = list(csv.reader(opened))
    assert len(rows) == 25 and rows[3][2] == "$x$"


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=4,
)
RECORDS = st.fixed_dictionaries({}, optional={name: JSON for name in trial(0, {})}) | st.builds(
    trial,
    st.integers(0, 5),
    st.dictionaries(st.sampled_from(["a", "b.a"]), JSON, max_size=2),
    st.floats(),
    status=st.sampled_from(["completed", "stopped", "running", "crashed", "?"]),
    samples_per_second=JSON | st.floats(),
    peak_memory_bytes=JSON | st.floats(),
)
AXES = st.fixed_dictionaries(
    {"path": st.sampled_from(["a", "b.a"])},
    optional={"class": st.sampled_from(["m:Log", 3]), "low": JSON, "high": JSON, "values": JSON, "log": JSON},
)


@settings(max_examples=150, deadline=None)
@given(st.lists(RECORDS, max_size=6), st.lists(AXES, max_size=3), JSON, JSON, JSON)
def test_no_foreign_trials_break_the_table(trials: list, axes: list, objectives: Any, best: Any, seconds: Any) -> None:
    content = answer(trials, axes, objectives=objectives, best=best, front=best, seconds=seconds)
    console = terminal(80, 24)
    table = sweep.Table(console)
    table.finish(RunInfo(Path("s"), str(Path("s"))), content)
    console.print(sweep._View(Results.of(content), 1.0, "x", True))
    assert "the sweep is in s" in said(console)


FIGURES = [*(0, -1, 1, 5e-324, 1e-30, 1 + 1e-15, 0.5, 12_000, 1e30, -1e30, 1e99, 1.7e308, 10**400), math.nan, None]


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3))])
def test_no_foreign_figures_break_the_pictures(tmp_path: Path, seed: int) -> None:
    random = np.random.default_rng(seed)

    def figure() -> Any:
        return FIGURES[random.integers(len(FIGURES))]

    names = ("val_accuracy", "val_loss", "samples_per_second", "peak_memory_bytes", "seconds")
    trials = [
        trial(i, {"a": figure(), "b": [figure()]}, 0.5, objective=[figure(), figure()])
        | {name: figure() for name in names}
        for i in range(12)
    ]
    axes = [{"path": "a", "class": "m:Log", "low": figure(), "high": figure()}, {"path": "b", "values": figure()}]
    goals = [*ACCURACY, {"name": "seconds", "mode": "min"}]
    content = answer(trials, axes, objectives=goals)
    path = tmp_path / "s"
    for record in trials:
        (path / "trials" / f"{record['number']:04d}").mkdir(parents=True)
        rows = [{"kind": "epoch", "val_accuracy": figure(), "seconds": figure()} for _ in range(3)]
        metrics = "".join(json.dumps(row) + "\n" for row in rows)
        (path / "trials" / f"{record['number']:04d}" / "metrics.jsonl").write_text(metrics)
    sweep.write_csv(path, content)
    assert "<svg" in sweep_page.whole(path, content)
    written = write_plots(path, content)
    assert len(written) >= 5
    for picture in written:
        drawn(picture)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "cannot be read: it is not JSON"),
        (b'{"trials": [{"number"', "it is not JSON"),
        (b"\xff\xfe\x00", "it is not JSON"),
        (b"[" * 100_000, "it is not JSON"),
        (b"[]", "it has no list of trials"),
        (b'{"name": "package"}', "it has no list of trials"),
        (b'{"trials": [1]}', "a trial in it is not an object"),
    ],
)
def test_a_damaged_or_foreign_file_is_one_line(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "sweep.json").write_bytes(content)
    with pytest.raises(UserError) as raised:
        sweep.report(tmp_path)
    assert message in str(raised.value) and str(tmp_path / "sweep.json") in str(raised.value)
    assert os.listdir(tmp_path) == ["sweep.json"]


def test_no_sweep_there(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "missing", tmp_path / "file"):
        with pytest.raises(UserError, match=r"no sweep there \(it has no sweep.json\), .*; give a folder that"):
            sweep.report(path)
    (tmp_path / "sweep.json").mkdir()
    with pytest.raises(UserError, match="cannot be read: Is a directory"):
        sweep.report(tmp_path)


@pytest.mark.parametrize("name", ["samples_per_second", "peak_memory_bytes", "seconds", "time_to_accuracy(0.9)"])
def test_console_and_page_say_that_a_measurement_was_made_once(tmp_path: Path, name: str) -> None:
    trials, goals = [trial(n, {"x": n}, 0.5 + n / 10) for n in range(3)], [{"name": name, "mode": "max"}]
    alone, once = (
        "seconds and samples/s: each trial was measured alone",
        ", once: --repeats 3 shows how much that varies",
    )
    for objectives, concurrent, said in (
        (goals, 1, alone + once),
        ([*ACCURACY, *goals], 1, alone + once),
        (ACCURACY, 1, alone),
        (goals, 4, "seconds and samples/s: of up to 4 trials side by side; alone, each is faster"),
    ):
        content = answer(trials, objectives=objectives, concurrent=concurrent)
        console = Console(file=io.StringIO(), width=200)
        sweep.Table(console).finish(RunInfo(Path("s"), str(Path("s"))), content)
        assert said in console.file.getvalue().splitlines()  # type: ignore[attr-defined]
        assert f"<p>{said}</p>" in sweep_page.whole(tmp_path, content)
    limited = {"constraints": ["val_loss < 3", f"{name} <= 60", "3 <"]}
    beside = "of up to 4 trials side by side; alone, each is faster, and may keep a limit that it breaks here"
    for concurrent, said in ((1, alone + once), (4, f"seconds and samples/s: {beside}")):
        content = answer(trials, objectives=ACCURACY, concurrent=concurrent)
        content["sweep"] = {**content.get("sweep", {}), **limited}
        assert f"<p>{said}</p>" in sweep_page.whole(tmp_path, content)
    repeated = [one | {"configuration": one["number"], "repeat": 0} for one in trials]
    groups = [{"number": n, "trials": [n], "values": {"x": n}, "whole": True, "objectives": []} for n in range(3)]
    content = answer(repeated, objectives=goals, concurrent=1, configurations=groups)
    assert f"<p>{alone}</p>" in sweep_page.whole(tmp_path, content), "repeats show their spread"
