"""The comparisons of PBT and PB2, without Ray: they follow from what trials report, not from the order in which."""

from __future__ import annotations

import importlib
import math
import random
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy
import pytest

from raytrain import PB2, PBT, SGD, AdamW, Choice, Int, LogUniform, Uniform
from raytrain.sweep.population import FILE, Population, Report, pairs, perturbed

AXES = (LogUniform("optimizer.lr", 0.001, 1.0), Uniform("optimizer.momentum", 0.0, 0.9))


def population(path: Path, scheduler: PBT | None = None, trials: int = 8, **more: Any) -> Population:
    values = {n: {"optimizer.lr": 0.001 * 2**n, "optimizer.momentum": 0.1 * n} for n in range(trials)}
    scheduler = scheduler or PBT(every_epochs=2)
    return Population(path, scheduler, AXES, 0, scheduler.every_epochs, "max", values, **more)


def at(time: float, scores: list[float]) -> dict[int, Report]:
    return {n: Report(time, int(23 * time), score) for n, score in enumerate(scores)}


def test_pairs_do_not_depend_on_the_order_of_reports() -> None:
    scores = {0: 0.5, 1: 0.9, 2: 0.1, 3: 0.4, 4: 0.8}
    found = {tuple(pairs(dict(order), 0.4, 1, "0 1")) for order in permutations(scores.items())}
    assert len(found) == 1
    taken = dict(next(iter(found)))
    assert [*taken] == [2, 3] and {*taken.values()} <= {1, 4}
    turned = dict(pairs(scores, 0.4, -1, "0 1"))
    assert [*turned] == [1, 4] and {*turned.values()} <= {2, 3}


def test_of_equal_trials_the_one_with_the_lower_number_is_better() -> None:
    for better in (1, -1):
        assert pairs(dict.fromkeys((3, 1, 0, 2), 0.5), 0.25, better, "") == [(3, 0)]
    assert pairs({0: 0.1, 1: 0.1, 2: 0.7}, 0.5, 1, "") == [(1, 2)], "never more than a half, without the middle"


def test_trials_without_a_score_neither_take_nor_give() -> None:
    assert pairs({0: math.nan, 1: 0.1, 2: 0.7, 3: math.nan}, 0.5, 1, "") == [(1, 2)]
    assert pairs({0: math.nan, 1: 0.1}, 0.5, 1, "") == pairs({}, 0.5, 1, "") == []


def test_values_change_a_little_or_are_drawn_anew() -> None:
    axes = (
        Uniform("clip_norm", 0.5, 2.0, step=0.5),
        Choice("optimizer", (SGD(), AdamW())),
        Int("task.k", 1, 9),
        Uniform("optimizer.lr", 0, 1),
    )
    values = {"clip_norm": 1.0, "optimizer": SGD(), "task.k": 5, "optimizer.lr": 0.9}
    near = [perturbed(axes, values, 0.0, str(n)) for n in range(40)]
    assert {one["optimizer.lr"] for one in near} == {0.9 * 0.8, 1.0}
    assert {one["task.k"] for one in near} == {4, 6} and {one["clip_norm"] for one in near} == {1.0}
    assert {type(one["optimizer"]) for one in near} == {SGD, AdamW}
    anew = [perturbed(axes, values, 1.0, str(n)) for n in range(40)]
    assert len({one["optimizer.lr"] for one in anew}) == 40 and {one["task.k"] for one in anew} == {*range(1, 10)}
    assert perturbed(axes, values, 0.5, "a") == perturbed(axes, values, 0.5, "a")


@pytest.mark.filterwarnings("ignore")  # scikit-learn's and SciPy's
@pytest.mark.parametrize("kind", [PBT, PB2])
def test_a_resumed_sweep_makes_the_comparisons_of_an_undisturbed_one(tmp_path: Path, kind: type[PBT]) -> None:
    if kind is PB2:
        pytest.importorskip("sklearn")
        importlib.import_module("raytrain.sweep.bandits")  # some of what that imports draws
    draws = random.Random(1)
    scores = [[draws.random() for _ in range(8)] for _ in range(4)]
    scores[2][5] = math.nan
    whole, folders = population(tmp_path, kind(every_epochs=2)), (tmp_path, tmp_path / "cut")
    folders[1].mkdir()
    whole.save()
    for place, row in enumerate(scores):
        reports = at(2.0 * (place + 1), row)
        cut = population(folders[1], kind(every_epochs=2))  # as after a kill
        assert (cut.next, cut.due) == (place + 1, 2.0 * (place + 1)) == (whole.next, whole.due)
        random.seed(place)
        numpy.random.seed(place)
        left = random.getstate(), numpy.random.get_state()[1].tolist()  # type: ignore[index]
        made = whole.compared(reports)
        assert cut.compared(dict(reversed(reports.items()))).moves == made.moves and len(made.moves) == 2
        kept = random.getstate(), numpy.random.get_state()[1].tolist()  # type: ignore[index]
        assert kept == left, "the process's own generators go on as they were"
        for one in (whole, cut):
            one.write(made)
            one.add(made)
        assert (folders[0] / FILE).read_bytes() == (folders[1] / FILE).read_bytes()
        for move in made.moves:
            assert whole.values[move.trial] == move.values and 0.001 <= move.values["optimizer.lr"] <= 1.0
            assert move.pool == f"{move.donor:04d}_step_{reports[move.donor].step:08d}"
    again = population(folders[1], kind(every_epochs=2))
    assert again.values == whole.values and again.moves() == whole.moves()
    drawn = {tuple(move.values.values()) for one in whole.made for move in one.moves}
    assert len(drawn) == 8
    for one in whole.made:
        for move in one.moves:
            assert move.values != one.values[move.donor], "the trial would repeat its donor bit for bit"


def test_a_file_keeps_objects_and_which_move_is_left(tmp_path: Path) -> None:
    axes = (Choice("optimizer", (SGD(lr=0.1), SGD(lr=0.2), SGD(lr=0.3))),)

    def made() -> Population:
        return Population(
            tmp_path, PBT(resample=0.5), axes, 0, 1, "min", {n: {"optimizer": SGD(lr=0.1)} for n in (0, 4)}
        )

    first = made()
    comparison = first.compared({4: Report(1.0, 23, 0.2), 0: Report(1.0, 23, 0.9)})
    assert [(move.trial, move.donor) for move in comparison.moves] == [(0, 4)]
    first.write(comparison)
    move = made().moves()[0]
    assert move == comparison.moves[0] and move.values["optimizer"] in axes[0].values
    assert not move.taken_by({}) and not move.taken_by({"taken": [{"from": 4, "step": 23}]})
    assert move.taken_by({"taken": [{"from": 4, "comparison": 1}]})


def test_comparisons_begin_behind_what_trials_of_an_older_version_have_trained(tmp_path: Path) -> None:
    old = population(tmp_path, reached=5.0)
    assert (old.next, old.due) == (3, 6.0)
    old.save()
    assert population(tmp_path, reached=9.0).due == 6.0, "what the file says counts"


def test_a_validation_is_compared_once_where_there_are_few(tmp_path: Path) -> None:
    found = population(tmp_path, PBT(every_steps=10), trials=2)
    comparison = found.compared(at(2.3, [0.1, 0.2]))  # the first validation after 23 steps
    assert comparison.number == 1
    found.add(comparison)
    assert (found.next, found.due) == (3, 3.0)
