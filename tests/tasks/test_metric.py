"""metrics as values: against torchmetrics on 1 to 4 ranks, names and directions, one forward pass, users' mistakes."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import torchmetrics.functional as functional
import torchmetrics.functional.classification as reference
from helpers.ranks import Ranks
from torch import nn

from raytrain import (
    AUROC,
    CNN,
    F1,
    MAE,
    R2,
    RMSE,
    AveragePrecision,
    BalancedAccuracy,
    Batch,
    Classification,
    Dice,
    Digits,
    ExpectedCalibrationError,
    Experiment,
    IoU,
    Metric,
    MultiLabel,
    Precision,
    Recall,
    Regression,
    Segmentation,
    Supervised,
    Sweep,
    UserError,
    config,
)
from raytrain.sweep.space import Grid
from raytrain.tasks.metrics import PerSample, Sums

CPU = torch.device("cpu")
COUNT, CLASSES = 203, 7


class Given(nn.Module):
    """Answers with its input, and counts its calls."""

    calls = 0

    def forward(self, outputs: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return outputs


def labelled(classes: int = CLASSES, missing: int | None = None) -> Batch:
    generator = torch.Generator().manual_seed(3)
    labels = torch.randint(0, classes, (COUNT,), generator=generator)
    if missing is not None:
        labels[labels == missing] = (missing + 1) % classes
    logits = torch.randn(COUNT, classes, generator=generator) + 1.5 * nn.functional.one_hot(labels, classes)
    logits = (logits * 8).round() / 8  # with equal scores
    return Batch({"x": logits, "label": labels}, np.arange(COUNT))


def several() -> Batch:
    generator = torch.Generator().manual_seed(4)
    target = (torch.rand(COUNT, CLASSES, generator=generator) < 0.3).to(torch.uint8)
    logits = torch.randn(COUNT, CLASSES, generator=generator) + target - 0.5
    return Batch({"x": logits, "y": target}, np.arange(COUNT))


def numbered(shape: tuple[int, ...]) -> Batch:
    generator = torch.Generator().manual_seed(5)
    target = torch.randn(COUNT, *shape, generator=generator) * 3 + 10
    outputs = target + torch.randn(COUNT, *shape, generator=generator)
    return Batch({"x": outputs.reshape(COUNT, -1), "y": target}, np.arange(COUNT))


def masked() -> Batch:
    generator = torch.Generator().manual_seed(6)
    mask = torch.randint(0, 4, (COUNT, 5, 6), generator=generator)
    logits = torch.randn(COUNT, 4, 5, 6, generator=generator) + 2 * nn.functional.one_hot(mask, 4).movedim(-1, 1)
    mask[torch.rand(mask.shape, generator=generator) < 0.2] = 255
    mask[11] = 255
    return Batch({"x": logits, "mask": mask.to(torch.uint8)}, np.arange(COUNT))


def part_of(whole: Batch, ids: np.ndarray) -> Batch:
    return Batch({name: array[ids] for name, array in whole.arrays.items()}, ids)


def measure(rank: int, world: int, task: Supervised, whole: Batch, idle: int | None) -> tuple[dict[str, float], Any]:
    """An evaluation's result: each rank has every world-th sample but for one without any, in batches of 16."""
    busy = [each for each in range(world) if each != idle]
    mine = whole.ids[busy.index(rank) :: len(busy)] if rank in busy else whole.ids[:0]
    sums = Sums()
    with torch.inference_mode():
        for start in range(0, len(mine), 16):
            sums.add(task.sums(Given(), part_of(whole, mine[start : start + 16])))
    reduced = sums.reduce(CPU)
    return task.results(reduced), {name: value for name, value in reduced.items() if value.dtype.kind in "ib"}


EVERY = (
    *(F1(), F1(average="micro"), F1(of=2), Precision(), Recall(), Precision(of=1), Recall(average="micro"), IoU()),
    *(Dice(), BalancedAccuracy(), AUROC(), AveragePrecision(), AUROC(of=3), ExpectedCalibrationError()),
    IoU(average="micro"),
)


def expected_of_labels(whole: Batch) -> dict[str, torch.Tensor]:
    x, y = whole["x"], whole.labels
    count = x.shape[1]
    each = {"average": "none", "num_classes": count}
    chances = x.softmax(1)
    true = nn.functional.one_hot(y, count)
    present = true.any(0)
    return {
        "macro_f1": reference.multiclass_f1_score(x, y, count, average="macro"),
        "micro_f1": reference.multiclass_f1_score(x, y, count, average="micro"),
        "f1_2": reference.multiclass_f1_score(x, y, **each)[2],
        "macro_precision": reference.multiclass_precision(x, y, count, average="macro"),
        "precision_1": reference.multiclass_precision(x, y, **each)[1],
        "macro_recall": reference.multiclass_recall(x, y, count, average="macro"),
        "micro_recall": reference.multiclass_recall(x, y, count, average="micro"),
        "macro_iou": reference.multiclass_jaccard_index(x, y, count, average="macro"),
        "micro_iou": reference.multiclass_jaccard_index(x, y, count, average="micro"),
        "macro_dice": reference.multiclass_f1_score(x, y, count, average="macro"),
        "balanced_accuracy": reference.multiclass_recall(x, y, **each)[present].mean(),
        "auroc": reference.multilabel_auroc(chances[:, present], true[:, present], int(present.sum())),
        "auroc_3": reference.binary_auroc(chances[:, 3], true[:, 3]),
        "average_precision": reference.multilabel_average_precision(
            chances[:, present], true[:, present], int(present.sum())
        ),
        "expected_calibration_error": reference.multiclass_calibration_error(x, y, count, n_bins=15),
    }


def check(ranks: Ranks, task: Supervised, whole: Batch, expected: Mapping[str, Any]) -> None:
    """On 1 to 4 ranks, one of them idle, and without a process group: near the reference, and counts equal."""
    alone, counts = measure(0, 1, task, whole, None)
    for name, value in expected.items():
        assert alone[name] == pytest.approx(float(value), abs=1e-6), name
    assert set(task.declared()) >= {f"val_{name}" for name in alone}
    for world, idle in ((1, None), (2, None), (3, None), (4, 2)):
        for found, counted in ranks.run(world, measure, task, whole, idle):
            assert found == pytest.approx(alone, rel=1e-12), "sums of floats are added in another order"
            assert counted.keys() == counts.keys()
            assert all(np.array_equal(counted[name], counts[name]) for name in counts)
            same = [name for name in found if "auroc" in name or "average_precision" in name or "f1" in name]
            assert [found[name] for name in same] == [alone[name] for name in same], "the same bits"


@pytest.mark.parametrize("missing", [None, 5])
def test_metrics_of_labels_equal_torchmetrics(ranks: Ranks, missing: int | None) -> None:
    whole = labelled(missing=missing)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = expected_of_labels(whole)
    check(ranks, Classification(metrics=EVERY), whole, expected)


def test_metrics_of_several_labels_equal_torchmetrics(ranks: Ranks) -> None:
    whole = several()
    x, y = whole["x"].sigmoid(), whole["y"].long()
    metrics = (F1(), F1(average="micro"), Precision(), Recall(), IoU(), AUROC(), AveragePrecision(), F1(of=4))
    expected = {
        "macro_f1": reference.multilabel_f1_score(x, y, CLASSES),
        "micro_f1": reference.multilabel_f1_score(x, y, CLASSES, average="micro"),
        "f1_4": reference.multilabel_f1_score(x, y, CLASSES, average="none")[4],
        "macro_precision": reference.multilabel_precision(x, y, CLASSES),
        "macro_recall": reference.multilabel_recall(x, y, CLASSES),
        "macro_iou": reference.multilabel_jaccard_index(x, y, CLASSES),
        "auroc": reference.multilabel_auroc(x, y, CLASSES),
        "average_precision": reference.multilabel_average_precision(x, y, CLASSES),
        "accuracy": reference.multilabel_accuracy(x, y, CLASSES, average="micro"),
        "loss": nn.functional.binary_cross_entropy_with_logits(whole["x"], whole["y"].float()),
    }
    check(ranks, MultiLabel(target="y", metrics=metrics), whole, expected)


@pytest.mark.parametrize("shape", [(), (3,)])
def test_metrics_of_numbers_equal_torchmetrics(ranks: Ranks, shape: tuple[int, ...]) -> None:
    whole = numbered(shape)
    x, y = whole["x"].reshape(whole["y"].shape).double(), whole["y"].double()
    expected = {
        "mae": functional.mean_absolute_error(x, y),
        "rmse": functional.mean_squared_error(x, y, squared=False),
        "r2": functional.r2_score(x, y),
        "loss": functional.mean_squared_error(x, y),
    }
    check(ranks, Regression(target="y"), whole, expected)


def test_metrics_of_masks_equal_torchmetrics(ranks: Ranks) -> None:
    whole = masked()
    x, y = whole["x"], whole["mask"].long()
    expected = {
        "macro_iou": reference.multiclass_jaccard_index(x, y, 4, ignore_index=255),
        "iou_1": reference.multiclass_jaccard_index(x, y, 4, average="none", ignore_index=255)[1],
        "macro_dice": reference.multiclass_f1_score(x, y, 4, ignore_index=255),
        "pixel_accuracy": reference.multiclass_accuracy(x, y, 4, average="micro", ignore_index=255),
    }
    check(ranks, Segmentation(metrics=(IoU(), IoU(of=1), Dice())), whole, expected)


def test_the_model_runs_once_for_all_metrics() -> None:
    model = Given()
    Classification(metrics=EVERY).sums(model, labelled())
    assert model.calls == 1


def test_classes_that_all_or_none_have_are_no_area() -> None:
    scores, true = np.array([0.1, 0.9, 0.5], np.float32), np.array([True, True, True])
    found = {"scores": scores[:, None], "true": true[:, None]}
    assert np.isnan(AUROC().values(found)["auroc"])
    assert AveragePrecision().values(found) == {"average_precision": 1.0}
    none = found | {"true": ~true[:, None]}
    assert np.isnan(AUROC().values(none)["auroc"]) and np.isnan(AveragePrecision().values(none)["average_precision"])
    broken = {"scores": np.array([[np.nan], [1.0]], np.float32), "true": np.array([[True], [False]])}
    assert np.isnan(AUROC().values(broken)["auroc"]), "a diverged model has no order"


def test_samples_are_in_the_order_of_their_numbers_whatever_their_type() -> None:
    for dtype in (torch.bool, torch.int64, torch.bfloat16, torch.float64):
        sums = Sums()
        values = torch.arange(6) % 2
        for ids in ([4, 1], [0, 5, 3], [2]):
            sums.add({"x": PerSample(np.array(ids), values[ids].to(dtype))})
        assert sums.reduce(CPU)["x"].tolist() == values.tolist()


# A metric of one's own


@dataclass(frozen=True)
class MacroF1(Metric):
    directions: ClassVar[Mapping[str, Any]] = {"my_f1": "max"}

    def sums(self, outputs: torch.Tensor, batch: Batch) -> dict[str, torch.Tensor]:
        n = outputs.shape[1]
        return {"pairs": (batch["target"] * n + outputs.argmax(1)).bincount(minlength=n * n).view(n, n)}

    def values(self, found: Mapping[str, np.ndarray]) -> dict[str, float]:
        pairs = found["pairs"]
        return {"my_f1": float((2 * pairs.diagonal() / np.maximum(pairs.sum(0) + pairs.sum(1), 1)).mean())}


@dataclass(frozen=True)
class Median(Metric):
    """Needs all samples."""

    directions: ClassVar[Mapping[str, Any]] = {"median": "min"}

    def samples(self, outputs: torch.Tensor, batch: Batch) -> dict[str, torch.Tensor]:
        return {"errors": (outputs - batch["target"]).abs()}

    def values(self, found: Mapping[str, np.ndarray]) -> dict[str, float]:
        return {"median": float(np.median(found["errors"]))}


def test_a_users_metrics_are_values_of_the_task(ranks: Ranks) -> None:
    whole = labelled()
    expected = reference.multiclass_f1_score(whole["x"], whole.labels, CLASSES, average="macro")
    check(ranks, Classification(metrics=(MacroF1(),)), whole, {"my_f1": expected})
    whole = numbered(())
    median = float((whole["x"][:, 0] - whole["y"]).abs().quantile(0.5))
    check(ranks, Regression(target="y", metrics=(Median(),)), whole, {"median": median})


def test_each_value_has_a_direction_and_can_be_the_objective() -> None:
    task = Classification(metrics=(MacroF1(), ExpectedCalibrationError(), F1(of=3)), monitor="val_my_f1")
    assert task.highest_is_best
    assert not config.replace(task, "monitor", "val_expected_calibration_error").highest_is_best
    base = Experiment(CNN(), Digits(), task)
    for name, mode in (("val_my_f1", "max"), ("val_expected_calibration_error", "min"), ("val_f1_3", "max")):
        sweep = Sweep(base, (Grid("optimizer.lr", (0.1, 0.2)),), objective=name)
        assert sweep.objectives[0].mode == mode and sweep.objectives[0].every_epoch
        assert sweep.trial({"optimizer.lr": 0.1}).task.monitor == name
    with pytest.raises(UserError, match=r"no run reports 'val_f1_4', in Sweep.objective; did you mean val_f1_3\?"):
        Sweep(base, (Grid("optimizer.lr", (0.1, 0.2)),), objective="val_f1_4")
    with pytest.raises(UserError, match=r"did you mean val_my_f1\? take one of .*, or add its metric to task.m"):
        config.replace(task, "monitor", "val_myf1").check_monitor()


def test_metrics_are_saved_and_read_with_the_task() -> None:
    task = Classification(metrics=(F1(average="micro"), AUROC(of=1)), class_weights=(1.0, 2.0))
    assert config.from_dict(Classification, config.to_dict(task), "here") == task
    assert "metrics.0.average" in config.paths(task)
    assert config.from_dict(Classification, {"monitor": "val_loss", "label_smoothing": 0.1}, "an old run") == (
        Classification("val_loss", 0.1)
    )


class Undeclared(Metric):
    def values(self, found: Mapping[str, np.ndarray]) -> dict[str, float]:
        return {"x": 1.0}


class Constant(Undeclared):
    directions: ClassVar[Mapping[str, Any]] = {"x": "max"}


class Other(MacroF1):
    def values(self, found: Mapping[str, np.ndarray]) -> dict[str, float]:
        return {"f": 1.0}


class Numbers(MacroF1):
    def sums(self, outputs: torch.Tensor, batch: Batch) -> Any:
        return {"n": len(batch)}


class Sideways(MacroF1):
    directions: ClassVar[Mapping[str, Any]] = {"my_f1": "up"}


class Tensors(Other):
    def values(self, found: Mapping[str, np.ndarray]) -> Any:
        return {name: torch.ones(()) for name in self.directions}


class Short(Median):
    def samples(self, outputs: torch.Tensor, batch: Batch) -> dict[str, torch.Tensor]:
        return {"errors": outputs[:3]}


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        ((F1(), F1()), r"two metrics are called 'macro_f1', in Classification.metrics"),
        ((MAE(),), r"MAE is for tasks with numbers as targets, and Classification has one label a sample"),
        ((Undeclared(),), r"Undeclared declares no value, in Undeclared \(.*test_metric.py:\d+\); write `directions ="),
        (
            (Constant(),),
            r"Constant has neither sums nor samples, .*, in Constant \(.*test_metric.py:\d+\); write `def sums",
        ),
        ((Sideways(),), r"the direction of 'my_f1' must be 'min' or 'max', got 'up', in Sideways"),
        ((F1,), r"metrics = .* is of the wrong type, in Classification; write metrics=\(F1\(\.\.\.\),\)"),
        (F1(), r"metrics = F1.* is of the wrong type, in Classification; write metrics=\(F1\(\.\.\.\),\)"),
        (("f1",), r"metrics = .* is of the wrong type, in Classification; give a tuple, each of its values a Metric"),
    ],
)
def test_metrics_that_do_not_suit_a_task_are_refused(metrics: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Classification(metrics=metrics)


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        (
            Numbers(),
            r"sums\(\) must return a dict of tensors, got int for 'n', in Numbers.sums \(.*; write `torch.tens",
        ),
        (Other(), r"values\(\) must return 'my_f1', got 'f', in Other.values \(.*test_metric.py:\d+\)"),
        (
            Tensors(),
            r"values\(\) must return a dict of numbers, got Tensor for 'my_f1', in Tensors.values \(.*; write `float",
        ),
        (Short(), r"samples\(\) must return a dict of tensors \[203, ...\], got Tensor \[3, 7\] for 'errors'"),
        (F1(of=7), r"F1\(of=7\) names a class that there is not: the 7 classes are 0 to 6, in task.metrics"),
    ],
)
def test_what_a_metric_returns_wrongly_is_named(metric: Metric, message: str) -> None:
    task, sums = Classification(metrics=(metric,)), Sums()
    with pytest.raises(UserError, match=message):
        sums.add(task.sums(Given(), labelled()))
        task.results(sums.reduce(CPU))


def test_r2_of_a_constant_target_is_no_number() -> None:
    batch = Batch({"x": torch.randn(8, 1), "y": torch.ones(8)}, np.arange(8))
    sums = Sums()
    sums.add(Regression(target="y", metrics=(R2(), RMSE())).sums(Given(), batch))
    found = Regression(target="y", metrics=(R2(), RMSE())).results(sums.reduce(CPU))
    assert np.isnan(found["r2"]) and found["rmse"] > 0


def test_r2_of_a_constant_target_is_no_number_whatever_is_rounded() -> None:
    batch = Batch({"target": torch.full((1000,), 0.1)}, np.arange(1000))
    sums = Sums()
    sums.add(R2().sums(torch.zeros(1000), batch))
    assert np.isnan(R2().values(sums.reduce(CPU))["r2"])
