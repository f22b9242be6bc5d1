"""Metrics of a class that is named: bound in the plan, in every rank, by evaluate and by predict."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.ranks import Ranks, new_run, on_workers, train_rank

from raytrain import (
    AUROC,
    CNN,
    F1,
    SGD,
    Batch,
    Classification,
    Digits,
    Experiment,
    IoU,
    Metric,
    MultiLabel,
    Run,
    Segmentation,
    UserError,
    config,
)
from raytrain.data import Index
from raytrain.driver.plan import make
from raytrain.driver.resources import Node, Resources
from raytrain.tasks.metric import ClassMetric
from raytrain.tools import inference

NAMES = ("ant", "bee", "cat")


@dataclass(frozen=True)
class Words(Digits):
    """Digits whose classes have names that are no numbers."""

    def index(self) -> dict[str, Index]:
        names = tuple(f"digit {number}" for number in range(10))
        return {split: replace(index, classes=names) for split, index in super().index().items()}


def named(classes: tuple[str, ...]) -> Index:
    return replace(Digits().index()["train"], classes=classes)


@pytest.mark.parametrize("kind", [F1, IoU, AUROC])
def test_a_named_class_is_measured_as_its_number_is(kind: type[ClassMetric]) -> None:
    generator = torch.Generator().manual_seed(3)
    outputs, target = torch.randn(50, 3, generator=generator), torch.randint(0, 3, (50,), generator=generator)
    batch = Batch({"target": target}, np.arange(50))

    def value(metric: Metric) -> float:
        found = {**metric.sums(outputs, batch), **metric.samples(outputs, batch)}
        (one,) = metric.values({name: tensor.numpy() for name, tensor in found.items()}).values()
        return one

    bound = kind(of="cat").bound(NAMES)
    assert list(bound.declared()) == [f"{kind.word}_cat"] == list(kind(of="cat").declared())
    assert value(bound) == value(kind(of=2)) != value(kind(of=1))
    assert bound == kind(of="cat") and value(pickle.loads(pickle.dumps(bound))) == value(bound), "workers get it so"
    assert value(bound.bound(NAMES[::-1])) == value(kind(of=0)), "bound again, it follows the other classes"


def test_what_binds_is_not_saved() -> None:
    task = Classification(metrics=(F1(of="cat"),), monitor="val_f1_cat")
    bound = task.bound(named(NAMES))
    assert config.to_dict(bound) == config.to_dict(task)
    assert config.from_dict(Classification, config.to_dict(bound), "here") == task
    assert Classification(metrics=(F1(of=1),)).bound(named(())).metrics == (F1(of=1),)


def test_names_of_a_task_count_before_those_of_the_data() -> None:
    bound: Any = MultiLabel(classes=NAMES, metrics=(F1(of="bee"),)).bound(named(("x", "y", "z"))).metrics[0]
    assert bound.number == 1
    masks: Any = Segmentation(metrics=(IoU(of="z"),), monitor="val_loss").bound(named(("x", "y", "z"))).metrics[0]
    assert masks.number == 2
    masks = Segmentation(classes=NAMES, metrics=(IoU(of="bee"),)).bound(named(("x", "y", "z"))).metrics[0]
    assert masks.number == 1


@pytest.mark.parametrize(
    ("of", "classes", "message"),
    [
        ("caat", NAMES, r"F1\(of='caat'\) names a class that .*, in task.metrics; did you mean cat\? the classes are"),
        ("cat", (), r"names a class that there is not, in task.metrics; the data names no classes: give the number"),
    ],
)
def test_an_unknown_name_is_one_line(of: str, classes: tuple[str, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Classification(metrics=(F1(of=of),)).bound(named(classes))


def test_a_metric_without_classes_and_an_empty_name_are_refused() -> None:
    with pytest.raises(UserError, match="the metric knows no classes"):
        _ = F1(of="cat").number
    for wrong in ("", -1, 1.5):
        with pytest.raises(UserError, match="of = "):
            F1(of=wrong)  # type: ignore[arg-type]


def test_ranks_evaluate_and_predict_know_the_named_class(ranks: Ranks, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="two metrics are called 'f1_7'"):
        Classification(metrics=(F1(of="7"), F1(of=7)))
    task = Classification(metrics=(F1(of="digit 7"), F1(of=7), AUROC(of="digit 7")), monitor="val_f1_digit 7")
    e = Experiment(CNN(channels=(4,)), Words(), task, SGD(lr=0.1), batch_size=64)
    planned = make(e, lambda: Resources((Node("n0", 2.0, 0.0, 2**33),), "this machine"), "runs/x")
    assert planned.baseline.scores["val_f1_digit 7"] == planned.baseline.scores["val_f1_7"]
    with pytest.raises(UserError, match=r"did you mean digit 7\?"):
        wrong = config.replace(config.replace(e, "task.monitor", "val_loss"), "task.metrics.0.of", "digit7")
        make(wrong, lambda: planned.resources, "runs/x")
    path = new_run(tmp_path / "run", e)
    ranks.run(2, train_rank, on_workers(e, 2), path)
    row = Run(path).metrics().to_pylist()[-1]
    assert row["val_f1_digit 7"] == row["val_f1_7"] > 0
    found = inference.evaluate(Run(path))
    assert found["f1_digit 7"] == found["f1_7"] == row["val_f1_7"]
    assert found["auroc_digit 7"] == pytest.approx(row["val_auroc_digit 7"])
    assert len(inference.predict(Run(path), split="val")) == 359
