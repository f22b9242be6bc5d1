"""Repeats of configurations without Ray: seeds, turns, means, what is kept, and what a search is told."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from helpers.commands import fails, no_runs, without_ray
from hypothesis import given, settings
from hypothesis import strategies as st

from raytrain import ASHA, MLP, TPE, Digits, Experiment, Folds, Grid, LogUniform, Sweep, UserError, config
from raytrain.driver.resources import Node, Resources
from raytrain.report.configurations import verdicts
from raytrain.report.trials import Results
from raytrain.run import experiment_file
from raytrain.sweep import record, repeats, sweep_file
from raytrain.sweep.objective import Objective
from raytrain.sweep.search import Proposals, Search
from raytrain.sweep.space import Axis
from raytrain.sweep.sweep_plan import SweepPlan, make
from raytrain.sweep.trials import Trials

__all__ = ["no_runs", "without_ray"]

BASE = Experiment(model=MLP(hidden=(8,)), data=Digits(), epochs=1, seed=7)
LR = Grid("optimizer.lr", (0.1, 0.01, 0.001))
ACCURACY = (Objective("val_accuracy", "val_accuracy", "max"),)
RESOURCES = Resources((Node("n0", 2, 0.0, 2**34),), "a cluster")
BOTH = (*ACCURACY, Objective("seconds", "seconds", "min"))


def ended(number: int, *objective: float | None, **more: Any) -> dict[str, Any]:
    return {"number": number, "values": {}, "status": "completed", "objective": [*objective]} | more


def test_repeats_start_in_rounds_or_one_configuration_after_the_other() -> None:
    assert repeats.in_turn(6, 2, rounds=True) == [0, 2, 4, 1, 3, 5]
    assert repeats.in_turn(6, 2, rounds=False) == repeats.in_turn(6, 1, rounds=True) == [0, 1, 2, 3, 4, 5]
    assert Sweep(BASE, (LR,), repeats=2).rounds and not Sweep(BASE, (LR,)).rounds
    drawn = (LogUniform("optimizer.lr", 0.01, 1),)
    assert Sweep(BASE, drawn, trials=4, repeats=2).rounds, "a random search waits for nothing"
    assert not Sweep(BASE, drawn, trials=4, repeats=2, search=TPE()).rounds


def test_the_first_repeat_has_the_seed_of_the_experiment_and_others_their_own() -> None:
    sweep = Sweep(BASE, (LR,), repeats=3)
    assert (sweep.configurations, sweep.count) == (3, 9)
    seeds = [sweep.trial({"optimizer.lr": 0.1}, repeat).seed for repeat in range(3)]
    assert seeds[0] == 7 and len({*seeds}) == 3 and all(0 <= seed < 2**31 for seed in seeds)
    assert seeds == [sweep.trial({"optimizer.lr": 0.01}, repeat).seed for repeat in range(3)], "tests can be paired"
    assert Sweep(BASE, (LR,)).trial({"optimizer.lr": 0.1}) == replace(sweep.trial({"optimizer.lr": 0.1}), seed=7)


FOLDED = replace(BASE, data=Digits(folds=Folds(3, 2)))


def test_repeats_are_the_folds_of_one_seed() -> None:
    sweep = Sweep(FOLDED, (LR,), by_fold=True)
    assert (sweep.repeats, sweep.configurations, sweep.count) == (3, 3, 9)
    trials = [sweep.trial({"optimizer.lr": 0.1}, repeat) for repeat in range(3)]
    assert [one.data.folds.fold for one in trials] == [0, 1, 2] and {one.seed for one in trials} == {7}
    kept = sweep_file.to_dict(sweep)
    assert config.from_dict(Sweep, json.loads(json.dumps(kept)), Path("sweep.json")) == sweep


def test_the_plan_of_a_sweep_by_fold_reads_each_fold(tmp_path: Path) -> None:
    axes = (LR, Grid("data.augment.flip", (0.5, 0.0)))
    found = make(Sweep(FOLDED, axes, by_fold=True), lambda: RESOURCES, tmp_path)
    assert ", 6 configurations on 3 folds each, in turn;" in dict(found.lines(""))["sweep"]
    folds = [one.experiment.data.folds.fold for one in found.variants.values()]
    assert sorted(folds) == [0, 1, 2]
    for repeat in range(3):
        one = found.sweep.trial({"optimizer.lr": 0.01, "data.augment.flip": 0.0}, repeat)
        assert found.reading(one).experiment.data.folds.fold == repeat
    beside = make(Sweep(FOLDED, (LR, Grid("data.folds.fold", (0, 1, 2)))), lambda: RESOURCES, tmp_path)
    assert ("note", "trials rank by how easy their fold is: without its axis, by_fold=True ranks") in [
        (what, how[: len("trials rank by how easy their fold is: without its axis, by_fold=True ranks")])
        for what, how in beside.lines("")
    ]
    alone = make(Sweep(FOLDED, (Grid("data.folds.fold", (0, 1, 2)),)), lambda: RESOURCES, tmp_path)
    assert not [how for what, how in alone.lines("") if how.startswith("trials rank")]


def test_configurations_rank_by_their_mean_and_those_that_failed_once_not_at_all() -> None:
    records = [
        *(ended(0, 0.9), ended(1, 0.7)),  # the best single one
        *(ended(2, 0.84), ended(3, 0.86)),
        *(ended(4, 0.99), ended(5, None, status="diverged")),
        *(ended(6, 0.98), ended(7, 0.98, violates=["seconds < 1"])),
        *(ended(8, 0.97), ended(9, 0.2, status="running")),
    ]
    found = repeats.configurations(records, ACCURACY, 2)
    first = repeats.ranked(found, ACCURACY)
    assert [one.number for one in first] == [1, 0, 4], "one of which a repeat is left comes last"
    assert [one.best for one in first] == [3, 0, 8]
    assert [one.means[0] for one in first] == pytest.approx([0.85, 0.8, 0.97])
    assert repeats.kept(found, ACCURACY, 1) == {3, 8} and repeats.kept(found, ACCURACY, 2) == {3, 0, 8}


def test_interrupted_repeats_count_where_no_other_has_ended() -> None:
    records = [ended(0, 0.5, status="interrupted"), ended(2, 0.6, status="interrupted"), ended(3, 0.4)]
    found = repeats.configurations(records, ACCURACY, 2)
    assert [one.found for one in found] == [({0: 0.5},), ({1: 0.4},)]


def test_one_objective_may_be_missing() -> None:
    """As the time to an accuracy that a repeat has not reached."""
    records = [ended(0, 0.9, 3.0), ended(1, 0.8, None), ended(2, 0.7, 5.0), ended(3, 0.7, 6.0)]
    rows = repeats.described(repeats.configurations(records, BOTH, 2), BOTH, 0.95, True)
    assert [row["number"] for row in rows] == [0, 1]
    assert rows[0]["objectives"][1] == {"name": "seconds", "values": [], "n": 0, "told_apart": None}
    assert rows[1]["objectives"][1]["mean"] == 5.5
    assert repeats.told(records[:2]) is None and repeats.told(records[2:]) == [0.7, 5.5]
    assert repeats.told([ended(0, 0.3, 1.0)]) == [0.3, 1.0]


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.sampled_from((*record.ENDED, "interrupted", "running", "pending")),
            st.none() | st.floats(0, 1),
            st.booleans(),
        ),
        max_size=12,
    )
)
def test_any_records_give_an_answer_that_reports_can_read(drawn: list[tuple[str, float | None, bool]]) -> None:
    records = [
        ended(number, value, status=status) | ({"violates": ["x < 1"]} if over and status in record.ENDED else {})
        for number, (status, value, over) in enumerate(drawn)
    ]
    found = repeats.configurations(records, ACCURACY, 3)
    rows = repeats.described(found, ACCURACY, 0.95, True)
    assert sorted(number for row in rows for number in row["trials"]) == [one["number"] for one in records]
    goals = [{"name": "val_accuracy", "mode": "max"}]
    answer = json.loads(json.dumps({"trials": records, "objectives": goals, "configurations": rows, "sweep": {}}))
    verdicts(Results.of(answer))
    assert repeats.kept(found, ACCURACY, 1) <= {*range(len(records))}


def test_what_the_best_cannot_be_told_apart_from_is_said() -> None:
    values = [(0.90, 0.91, 0.92), (0.905, 0.909, 0.925), (0.50, 0.51, 0.52)]
    records = [ended(3 * c + r, value) for c, row in enumerate(values) for r, value in enumerate(row)]
    rows = repeats.described(repeats.configurations(records, ACCURACY, 3), ACCURACY, 0.95, True)
    assert [(row["number"], row["objectives"][0]["told_apart"]) for row in rows] == [(1, None), (0, False), (2, True)]
    goals = [{"name": "val_accuracy", "mode": "max"}]
    answer = {"trials": records, "objectives": goals, "configurations": rows, "sweep": {"confidence": 0.95}}
    said = verdicts(Results.of(answer))
    assert said[1:] == [
        "val_accuracy: configuration 1 is the best; it cannot be told apart from 0",
        "val_accuracy, in groups that all differ: 0 and 1, then 2",
    ]
    found = [(row["objectives"][0]["group"], row["objectives"][0]["alike"]) for row in rows]
    assert found == [(1, [0]), (1, [1]), (2, [])]
    assert "95%" in said[0]


@dataclass(frozen=True)
class Noted(Search):
    """Proposes rates in turn and notes what it is told."""

    def start(self, axes: tuple[Axis, ...], objectives: tuple[Objective, ...], seed: int) -> Proposals:
        return _Noted()


class _Noted(Proposals):
    ordered = True

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def propose(self, number: int, fixed: dict[str, Any]) -> dict[str, Any]:
        self.calls.append(number)
        return {"optimizer.lr": 0.01 * (number + 1)}

    def repeat(self, number: int, values: dict[str, Any]) -> None:
        self.calls.append(("again", number, values["optimizer.lr"]))

    def tell(self, number: int, objective: list[float] | None) -> None:
        self.calls.append((number, objective))


@pytest.fixture
def trials(tmp_path: Path) -> Trials:
    axes = (LogUniform("optimizer.lr", 0.001, 1.0),)
    sweep = Sweep(BASE, axes, "val_loss", repeats=2, trials=3, search=Noted())
    return Trials(tmp_path, make(sweep, lambda: RESOURCES, tmp_path), 0.0)


def end(trials: Trials, number: int, loss: float, when: float) -> None:
    run = record.folder(trials.path, number)
    row = {"kind": "epoch", "epoch": 1, "step": 23, "val_loss": loss, "seconds": 1.0}
    (run / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    record.update(run, status="completed", ended=when)
    trials.tell(number)


def test_a_search_proposes_configurations_and_is_told_their_means_once_also_by_a_resume(trials: Trials) -> None:
    search: Any = trials.search
    values = [trials.propose(number) for number in range(4)]
    assert values[0] == values[1] == {"optimizer.lr": 0.01} and values[2] == values[3] == {"optimizer.lr": 0.02}
    seeds = [experiment_file.load(record.folder(trials.path, n) / "experiment.json")[0].seed for n in range(4)]
    assert seeds[0] == seeds[2] == 7 and seeds[1] == seeds[3] != 7
    for number, loss in ((2, 0.5), (0, 0.25), (3, 0.7)):
        end(trials, number, loss, float(number))
    assert search.calls == [0, 1, (1, [0.6])], "the other configuration has a repeat to go"
    trials.propose(4)
    end(trials, 1, 0.35, 9.0)
    assert search.calls[3:] == [2, (0, [0.3])]
    last = record.read(record.folder(trials.path, 4))
    assert (last["configuration"], last["repeat"], last["after"]) == (2, 0, [1])

    again = Trials(trials.path, trials.planned, 0.0)
    again.replay()
    search = again.search
    same = [("again", 0, 0.01), ("again", 1, 0.02), (1, [0.6]), ("again", 2, 0.03), (0, [0.3])]
    assert [call if isinstance(call[1], int) else (call[0], pytest.approx(call[1])) for call in search.calls] == same
    assert again.propose(5) == {"optimizer.lr": 0.03} and search.calls[5:] == [], "the second repeat asks for nothing"
    answer = again.answer("interrupted")
    assert [row["number"] for row in answer["configurations"]] == [0, 1, 2] and answer["best"] == 0
    assert "configurations" not in Trials(trials.path, replace(trials.planned, sweep=Sweep(BASE, (LR,))), 0.0).answer(
        ""
    )


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"axes": (Grid("seed", (1, 2)),), "repeats": 2}, "an axis over seed has no effect beside repeats"),
        ({"scheduler": ASHA(), "repeats": 2}, "ASHA would compare repeats that it has ended"),
        ({"repeats": 0}, "repeats = 0 is out of range"),
        ({"by_fold": True}, "by_fold repeats on the folds of data.folds, and it has none"),
        ({"by_fold": True, "experiment": FOLDED, "repeats": 5}, "on 3 folds, got repeats=5"),
        (
            {"by_fold": True, "experiment": FOLDED, "axes": (Grid("data.folds.seed", (0, 1)),)},
            "an axis over data.folds.seed would change the folds",
        ),
        (
            {"by_fold": True, "experiment": replace(FOLDED, epochs=4), "scheduler": ASHA()},
            "ASHA would compare repeats that it has ended",
        ),
        ({"repeats": 2, "confidence": 1.0}, "confidence = 1.0 is out of range"),
    ],
)
def test_repeats_that_cannot_be_compared_are_refused(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        Sweep(**{"experiment": replace(BASE, epochs=4), "axes": (LR,), **fields})


def test_the_plan_says_what_is_repeated_and_counts_the_weights_that_are_kept(tmp_path: Path) -> None:
    def planned(**fields: Any) -> SweepPlan:
        return make(Sweep(BASE, **fields), lambda: RESOURCES, tmp_path)

    grid, drawn = {"axes": (LR,)}, {"axes": (LogUniform("optimizer.lr", 0.01, 1),), "trials": 3}
    once, rounds, blocks = planned(**grid), planned(**grid, repeats=2), planned(repeats=2, search=Noted(), **drawn)
    assert dict(rounds.lines(""))["sweep"].startswith(
        "6 trials over optimizer.lr, 3 configurations with 2 seeds each, in turn; looking for"
    )
    assert "2 seeds each, one after the other;" in dict(blocks.lines(""))["sweep"]
    assert "seeds" not in dict(once.lines(""))["sweep"] and "every combination" in dict(rounds.lines(""))["search"]
    assert once.weights == blocks.weights and rounds.weights * (2 + 1) == once.weights * (2 + 3)


@pytest.mark.usefixtures("without_ray")
def test_repeats_of_a_sweep_that_ends_trials_are_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, no_runs: Path
) -> None:
    file = tmp_path / "twice.py"
    axis = "Grid('optimizer.lr', (0.1, 0.2, 0.3))"
    base = "Experiment(MLP(), Digits(), epochs=4)"
    file.write_text(f"from raytrain import *\nsweep = Sweep({base}, ({axis},), scheduler=ASHA())\n")
    assert "ASHA would compare repeats" in fails(capsys, "sweep", file, "--repeats", "2", "--out", no_runs)
