"""Which ways to read the data a sweep plans, without Ray: each trial finds its own, before and after it is saved."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from torch import nn

from raytrain import (
    CNN,
    MLP,
    SGD,
    AdamW,
    Augment,
    Choice,
    Data,
    Digits,
    Experiment,
    Folds,
    Grid,
    Index,
    Int,
    Model,
    Scaling,
    Sweep,
    Uniform,
    UserError,
)
from raytrain.driver.resources import Node, Resources
from raytrain.run import experiment_file
from raytrain.sweep import driver, fold_data, fold_groups, record, sweep_plan, ways
from raytrain.sweep.precision_and_batch import precision_and_batch
from raytrain.sweep.space import Axis
from raytrain.sweep.trial_loggers import TrialLoggers
from raytrain.sweep.trials import Trials

MEAN, STD = (0.2, 0.4, 0.9), (0.1, 0.2, 0.3)


@dataclass(frozen=True)
class Trained(MLP):
    """As a model with weights of a library."""

    trained: bool = True
    side: int = 10

    def weights_input(self) -> dict[str, Any]:
        return {"size": self.side, "crop": 8, "mean": MEAN, "std": STD} if self.trained else {}


@dataclass(frozen=True)
class Broken(MLP):
    def build(self, sample: Any, classes: int) -> nn.Module:
        raise ValueError("it has no weights")


@dataclass(frozen=True)
class Squares(Data):
    """200 black squares, of which 50 validate."""

    size: int = 16
    augmented: bool = False
    channels: int = 3

    @property
    def resizes(self) -> bool:
        return True

    def index(self) -> dict[str, Index]:
        counts, shape = {"train": 150, "val": 50}, (self.channels, self.size, self.size)
        return {
            split: Index(np.arange(count) % 2, ("a", "b"), shape, split, np.arange(count))
            for split, count in counts.items()
        }

    def read(self, index: Index, samples: np.ndarray) -> np.ndarray:
        return np.zeros((len(samples), self.channels, self.size, self.size), np.uint8)


PLAIN, TRAINED = MLP(hidden=(8,)), Trained(hidden=(8,))
BASE = Experiment(model=PLAIN, data=Squares(), batch_size=8)
SIZES = Grid("data.size", (24, 32))


def made(out: Path, value: Sweep, cpus: float = 2.0) -> sweep_plan.SweepPlan:
    out.mkdir(exist_ok=True)
    return sweep_plan.make(value, lambda: Resources((Node("n", cpus, 0.0, 2**34),), "a cluster"), out)


def proposed(out: Path, value: Sweep, cpus: float = 2.0) -> list[Experiment | None]:
    """Return the trials as they are saved, None for one that is refused; each finds its data as an actor does."""
    plan, found = made(out, value, cpus), list[Experiment | None]()
    trials = Trials(out, plan, 0.0)
    for number in range(value.count):
        if trials.propose(number) is None:
            found.append(None)
            continue
        folder = record.folder(out, number)
        one = experiment_file.load(folder / "experiment.json")[0]
        assert record.reads(one) in plan.variants
        variant = plan.variants[record.reads(one)]
        assert variant.indices["train"].shape[-1] == one.data.size  # type: ignore[attr-defined]
        info = TrialLoggers(out, plan.variants, SimpleNamespace())._begun(number, folder)[1]  # type: ignore[arg-type]
        assert info.samples == 150
        found.append(one)
    again = Trials(out, plan, 0.0)  # a resume finds them
    assert [again.propose(number) is None for number in range(value.count)] == [one is None for one in found]
    assert (
        plan.variants.keys()
        == plan.fingerprints.keys()
        == set(filter(lambda key: isinstance(key, str), plan.keys.values()))
    )
    return found


def sizes(found: list[Experiment | None]) -> list[int | None]:
    return [one and one.data.size for one in found]  # type: ignore[attr-defined]


def test_trials_find_the_data_that_take_settings_of_the_models_weights(tmp_path: Path) -> None:
    base = replace(BASE, model=TRAINED)
    found = proposed(tmp_path / "all", Sweep(base, (Grid("optimizer.lr", (0.1, 0.2)),)))
    assert [(one.data.size, one.data.crop, one.data.mean) for one in found if one] == [(10, 8, MEAN)] * 2  # type: ignore[attr-defined]
    grey = replace(base, data=Squares(channels=1))
    (one, _) = proposed(tmp_path / "grey", Sweep(grey, (Grid("optimizer.lr", (0.1, 0.2)),)))
    assert one is not None and one.data.mean == (0.5,), "the mean over the channels"
    assert sizes(proposed(tmp_path / "sizes", Sweep(base, (SIZES,)))) == [24, 32], "what the user sets stays"
    assert {*sizes(proposed(tmp_path / "batch", precision_and_batch(base, gpus=False)))} == {10}


def test_folds_with_a_models_weights_share_their_data(tmp_path: Path) -> None:
    base = replace(BASE, model=TRAINED, data=Squares(folds=Folds(3)))
    value = Sweep(base, (Grid("data.folds.fold", (0, 1, 2)),))
    plan = made(tmp_path, value)
    (group,) = fold_groups.groups(plan.variants)
    assert group == list(plan.variants) and len(group) == 3
    assert {one.experiment.data.size for one in plan.variants.values()} == {10}  # type: ignore[attr-defined]
    trials = Trials(tmp_path, plan, 0.0)
    assert all(trials.propose(number) for number in range(3))
    shared = fold_data.read(plan.variants)
    assert shared is not None and shared.arrays["image"].shape[1:] == (3, 10, 10)


@pytest.mark.parametrize("models", [(TRAINED, PLAIN), (PLAIN, TRAINED), (PLAIN, TRAINED, replace(TRAINED, side=12))])
def test_each_model_has_the_data_of_its_weights(tmp_path: Path, models: tuple[Model, ...]) -> None:
    wanted = [one.side if isinstance(one, Trained) else 16 for one in models]
    assert sizes(proposed(tmp_path / "models", Sweep(BASE, (Grid("model", models),)))) == wanted
    assert sizes(proposed(tmp_path / "fixed", Sweep(BASE, (Grid("model", models), SIZES)))) == [24, 32] * len(models)
    assert len(made(tmp_path, Sweep(BASE, (Grid("model", models), SIZES))).variants) == 2 * len({*map(type, models)})


def test_a_field_of_the_model_decides_what_its_weights_give(tmp_path: Path) -> None:
    fields = Grid("model.trained", (False, True)), Grid("model.side", (10, 12))
    assert sizes(proposed(tmp_path, Sweep(replace(BASE, model=TRAINED), fields))) == [16, 16, 10, 12]


def test_numbers_of_models_are_tried_as_far_as_time_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    axes = Grid("model.dropout", (0.0, 0.1, 0.2)), Grid("model.trained", (False, True)), Grid("data.size", (16, 24))
    value = Sweep(replace(BASE, model=TRAINED), axes)
    for crossed, models, count in ((12, 6, 4), (11, 2, 4), (3, 1, 2)):
        monkeypatch.setattr(ways, "_CROSSED", crossed)
        found = ways.found(value)
        assert len({one.model for of_way in found.values() for one in of_way}) == models and len(found) == count
    value = replace(value, axes=(Grid("model", (PLAIN, TRAINED)), *axes[::2]))
    assert {type(one.model) for of_way in ways.found(value).values() for one in of_way} == {MLP, Trained}


def test_a_model_that_cannot_work_is_left_to_its_trial(tmp_path: Path) -> None:
    """Also where its data would be read for it alone; another model of the same data takes its place."""
    small = replace(TRAINED, side=4)  # of which no crop of 8 can be cut
    assert sizes(proposed(tmp_path / "alone", Sweep(BASE, (Grid("model", (PLAIN, small)),)))) == [16, None]
    refused = record.read(record.folder(tmp_path / "alone", 1))
    assert refused["status"] == "infeasible" and refused["error"].startswith("crop = 8 is out of range")
    with pytest.raises(UserError, match="crop = 8 is out of range"):
        made(tmp_path, Sweep(BASE, (Grid("model", (small, PLAIN)),)))
    axes = Grid("model", (PLAIN, Broken(), CNN())), Grid("data.size", (24,), when=("model", "Broken", "CNN"))
    assert sizes(proposed(tmp_path / "shared", Sweep(BASE, axes))) == [16, None, 24]


CONDITIONAL = (
    Grid("model", (PLAIN, CNN())),
    Grid("data.size", (24, 32), when=("model", "CNN")),
)
CHAIN = (
    Grid("model", (CNN(), PLAIN)),
    Grid("optimizer", (SGD(), AdamW()), when=("model", "CNN")),
    Grid("data.size", (24, 32), when=("optimizer", "AdamW")),
)


@pytest.mark.parametrize("axes", [CONDITIONAL, (*CONDITIONAL, Uniform("optimizer.lr", 0.1, 0.2)), CHAIN])
def test_axes_of_the_data_may_depend_on_others(tmp_path: Path, axes: tuple[Axis, ...]) -> None:
    value = Sweep(BASE, axes, trials=3 if axes is CONDITIONAL else 4)
    assert len(made(tmp_path, value).variants) == 3
    assert {*sizes(proposed(tmp_path, value))} == {16, 24, 32}


MIXED = Grid("data", (Squares(24), Squares(32, augment=Augment(mixup=0.2))))
NARROW = Sweep(replace(BASE, batch_size=4, scaling=Scaling(workers="1:2")), (MIXED, Grid("scaling.workers", (4, 1))))
"""Mixup needs two samples of a batch on each worker: fewer workers than the first value of the axis, while the base's
are not fixed."""


def test_data_that_are_valid_beside_another_axis_alone_are_planned(tmp_path: Path) -> None:
    elastic = replace(BASE, scaling=Scaling(workers="1:2"))
    assert (
        sizes(proposed(tmp_path / "elastic", Sweep(elastic, (Grid("scaling.workers", (1, 2)), SIZES)))) == [24, 32] * 2
    )
    odd = replace(BASE, batch_size=7)
    assert sizes(proposed(tmp_path / "odd", Sweep(odd, (MIXED, Grid("batch_size", (8, 7)))))) == [24, 24, 32, None]
    ranged = Sweep(replace(BASE, batch_size=8), (MIXED, Int("batch_size", 7, 8)), trials=2)
    assert len(made(tmp_path, ranged).variants) == 2, "valid beside the base's batch"
    assert sizes(proposed(tmp_path / "wide", NARROW, 4)) == [24, 24, None, 32]


def test_a_field_whose_name_begins_with_augment_is_read(tmp_path: Path) -> None:
    value = Sweep(BASE, (Grid("data.augmented", (False, True)), Grid("data.augment.flip", (0.0, 0.5))))
    found = proposed(tmp_path, value)
    assert [one.data.augmented for one in found if one] == [False, False, True, True]  # type: ignore[attr-defined]
    assert len(made(tmp_path, value).variants) == 2


def test_a_trial_whose_data_are_not_planned_is_refused_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ways, "ENUMERABLE", 1)
    plan = made(tmp_path, NARROW, 4)
    trials = Trials(tmp_path, plan, 0.0)
    assert [trials.propose(number) is None for number in range(4)] == [False, False, True, True]
    refused = record.read(record.folder(tmp_path, 3))
    assert refused["status"] == "infeasible" and "the plan has not found what this trial reads" in refused["error"]
    record.update(record.folder(tmp_path, 0), status="interrupted")
    gone = replace(plan, variants={key: one for key, one in plan.variants.items() if '"size": 24' not in key})
    with pytest.raises(UserError, match="the training data is not what the run began with"):
        Trials(tmp_path, gone, 0.0).propose(0)


def test_other_sweeps_keep_their_keys(tmp_path: Path) -> None:
    for base in (BASE, replace(BASE, data=Digits()), replace(BASE, model=TRAINED, data=Squares(12, mean=MEAN))):
        plan = made(tmp_path, Sweep(base, (Grid("optimizer.lr", (0.1, 0.2)),)))
        assert list(plan.variants) == list(plan.keys) == [record.reads(base)]


def test_a_resume_knows_the_data_of_a_version_that_planned_others(tmp_path: Path) -> None:
    plan = made(tmp_path, Sweep(BASE, (SIZES,)))

    def check(change: Callable[[dict[str, Any]], Any]) -> None:
        prints = dict(plan.fingerprints)
        (tmp_path / "sweep.json").write_text(json.dumps({"data_fingerprint": change(prints) or prints, "trials": []}))
        driver._check_data(tmp_path, plan)

    key = next(iter(plan.fingerprints))
    check(lambda prints: None)
    check(lambda prints: {key: prints[key]})
    check(lambda prints: prints | {"of no trial": {"train": "x"}})
    for changed in (lambda prints: prints | {key: {"train": "x"}}, lambda prints: {"other": prints[key]}, lambda _: 3):
        with pytest.raises(UserError, match="the training data is not what the run began with"):
            check(changed)


def test_trials_without_a_conditional_axis_of_the_scaling_have_room(tmp_path: Path) -> None:
    """They have the base's four workers."""
    axes = Choice("model", (CNN(), PLAIN)), Choice("scaling.workers", (1, 2), when=("model", "CNN"))
    value = Sweep(replace(BASE, scaling=Scaling(workers=4)), axes, trials=8)
    plan = made(tmp_path, value, cpus=4)
    assert plan.widths == (1, 2, 4) and plan.concurrent == 1
    assert {plan.scaling(replace(BASE, scaling=Scaling(workers=count))).cpus_per_worker for count in (4,)} == {1.0}
    with pytest.raises(UserError, match="the run asks for 64 workers"):
        made(tmp_path, replace(value, experiment=replace(BASE, batch_size=64, scaling=Scaling(workers=64))), cpus=4)
    with pytest.raises(UserError, match="the number of workers of a trial is fixed"):
        made(tmp_path, replace(value, experiment=replace(BASE, scaling=Scaling(workers="1:2"))), cpus=4)
    every = replace(value, axes=(axes[0], replace(axes[1], when=("model", "CNN", "MLP"))))
    assert made(tmp_path, every, cpus=4).widths == (1, 2), "the axis exists in every trial"
