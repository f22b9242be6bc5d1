"""task: Classification against plain torch and torchmetrics, and the base class for tasks of one's own."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from helpers.scenes import Joining
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss
from torchmetrics.functional.classification import (
    multiclass_accuracy,
    multiclass_confusion_matrix,
)

from raytrain import F1, Batch, Classification, IoU, Segmentation, Task, UserError
from raytrain.tasks.metrics import Sums

CPU = torch.device("cpu")


class Logits(nn.Module):
    """Answers with its input: the images are the logits."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images.flatten(1)


def batch(size: int, classes: int, seed: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(size, 1, 1, classes, generator=generator) * 3
    labels = torch.randint(0, classes, (size,), generator=generator)
    return Batch({"image": logits, "label": labels}, np.arange(size))


def totals(task: Task, whole: Batch, cuts: list[int]) -> dict[str, np.ndarray]:
    sums, start = Sums(), 0
    for cut in cuts:
        part = slice(start, start + cut)
        sums.add(
            task.sums(Logits(), Batch({name: array[part] for name, array in whole.arrays.items()}, whole.ids[part]))
        )
        start += cut
    return sums.reduce(CPU)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.9])
def test_the_loss_is_the_sum_of_torchs_cross_entropy(smoothing: float) -> None:
    whole = batch(33, 10)
    whole.images.requires_grad_()
    loss, count = Classification(label_smoothing=smoothing).loss(Logits(), whole)
    mean = cross_entropy(whole.images.flatten(1), whole.labels, label_smoothing=smoothing)
    assert count == 33 and loss.item() == pytest.approx(33 * mean.item(), rel=1e-6)
    loss.backward()
    assert whole.images.grad is not None and whole.images.grad.abs().sum() > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_of_mixed_images_is_that_of_their_targets(smoothing: float, dtype: torch.dtype) -> None:
    whole, task = batch(33, 10), Classification(label_smoothing=smoothing)
    logits, other = whole.images.flatten(1).to(dtype), whole.labels.roll(1)
    share = torch.rand(33, 1, generator=torch.Generator().manual_seed(0))
    targets = share * nn.functional.one_hot(whole.labels, 10) + (1 - share) * nn.functional.one_hot(other, 10)
    found, count = task.loss(Logits(), Batch({"image": logits, "label": whole.labels, "target": targets}, whole.ids))
    each = [
        cross_entropy(logits.float(), wanted, label_smoothing=smoothing, reduction="none")
        for wanted in (whole.labels, other)
    ]
    expected = (share[:, 0] * each[0] + (1 - share[:, 0]) * each[1]).sum().item()
    assert count == 33 and found.item() == pytest.approx(expected, rel=1e-5 if dtype == torch.float32 else 1e-2)


@pytest.mark.parametrize("classes", [2, 5, 6, 10, 100])
@pytest.mark.parametrize("cuts", [[1000], [256, 256, 256, 232], [1, 998, 1], [7] * 142 + [6]])
def test_metrics_equal_torchmetrics_over_uneven_batches(classes: int, cuts: list[int]) -> None:
    whole, task = batch(1000, classes), Classification()
    sums = totals(task, whole, cuts)
    metrics, logits = task.results(sums), whole.images.flatten(1)
    oracle = {"accuracy": multiclass_accuracy(logits, whole.labels, classes, average="micro").item()}
    if classes > 5:
        oracle["top5_accuracy"] = multiclass_accuracy(logits, whole.labels, classes, average="micro", top_k=5).item()
    assert set(metrics) == {"loss", *oracle}
    for name, value in oracle.items():
        assert metrics[name] == pytest.approx(value, abs=1e-6), name
    assert metrics["loss"] == pytest.approx(cross_entropy(logits.double(), whole.labels).item(), rel=1e-6)
    assert np.array_equal(sums["confusion"], multiclass_confusion_matrix(logits, whole.labels, classes).numpy())
    assert sums["count"] == 1000 == sums["confusion"].sum() and sums["confusion"].dtype == np.int64
    assert sums["top1"] == np.trace(sums["confusion"])


def test_counts_do_not_depend_on_how_the_samples_were_cut() -> None:
    whole, task = batch(501, 7), Classification()
    one, many = totals(task, whole, [501]), totals(task, whole, [100, 100, 100, 100, 100, 1])
    for name in ("count", "top1", "top5", "confusion"):
        assert np.array_equal(one[name], many[name])
    assert one["loss"] == pytest.approx(many["loss"], rel=1e-14)


def test_smoothing_changes_training_and_not_the_validation_loss() -> None:
    whole = batch(50, 10)
    smoothed, plain = Classification(label_smoothing=0.3), Classification()
    assert totals(smoothed, whole, [50])["loss"] == totals(plain, whole, [50])["loss"]
    assert smoothed.loss(Logits(), whole)[0] != plain.loss(Logits(), whole)[0]


def test_half_precision_logits_are_judged_in_single_precision() -> None:
    whole = batch(64, 10)
    half = Batch({"image": whole.images.bfloat16(), "label": whole.labels}, whole.ids)
    expected = cross_entropy(half.images.flatten(1).float(), half.labels, reduction="none").double().sum()
    assert Classification().sums(Logits(), half)["loss"] == expected


def test_of_equal_logits_the_first_class_is_the_answer_everywhere() -> None:
    whole = batch(200, 9)
    coarse = Batch({"image": whole.images.round().div(3).round(), "label": whole.labels}, whole.ids)
    logits, labels, task = (
        coarse.images.flatten(1),
        coarse.labels.numpy(),
        Classification(metrics=(F1(average="micro"),)),
    )
    found = task.results(totals(task, coarse, [150, 50]))
    order = np.argsort(-logits.numpy(), axis=1, kind="stable")
    assert found["accuracy"] == (order[:, 0] == labels).mean() == pytest.approx(found["micro_f1"], abs=1e-12)
    assert found["top5_accuracy"] == (order[:, :5] == labels[:, None]).any(1).mean()
    answers = [int(one["label"]) for one in task.predictions(logits, tuple("012345678"))]
    assert answers == order[:, 0].tolist()


def test_a_logit_that_is_no_number_is_no_right_answer_among_five() -> None:
    whole = batch(9, 8)
    nan = Batch({"image": torch.full_like(whole.images, torch.nan), "label": whole.labels}, whole.ids)
    assert totals(Classification(), nan, [9])["top5"] == 0


def test_top5_is_left_out_where_five_answers_are_all_there_are() -> None:
    assert "top5_accuracy" not in Classification().results(totals(Classification(), batch(9, 5), [9]))
    assert totals(Classification(), batch(9, 3), [9])["top5"] == 9


@pytest.mark.parametrize("output", [(1, 9), (1, 10, 1), (10,), (), (2, 10)])
def test_a_head_that_does_not_fit_is_refused_with_both_numbers(output: tuple[int, ...]) -> None:
    with pytest.raises(UserError) as caught:
        Classification().check_model(output, 10, "Net")
    assert str(list(output)) in caught.value.what and "10 classes" in caught.value.what
    Classification().check_model((1, 10), 10, "Net")


@pytest.mark.parametrize("share", [-0.1, 1.0])
def test_smoothing_out_of_range_is_refused(share: float) -> None:
    with pytest.raises(UserError, match="label_smoothing"):
        Classification(label_smoothing=share)


# A task of one's own


@dataclass(frozen=True)
class Autoencoder(Task):
    def loss(self, model: nn.Module, batch: Batch) -> tuple[torch.Tensor, int]:
        return mse_loss(model(batch.images), batch.images.flatten(1) + 1, reduction="sum"), batch.images.numel()


def test_a_task_needs_no_more_than_a_loss() -> None:
    whole, task = batch(20, 6), Autoencoder()
    for cuts in ([20], [13, 7]):
        sums = totals(task, whole, cuts)
        assert sums["count"] == 20 * 6 and task.results(sums) == {"loss": pytest.approx(1.0, rel=1e-6)}
    task.check_model((3, 4), 10, "anything")


@dataclass(frozen=True)
class Graded(Classification):
    """Classification that reports its error and a score too."""

    directions = {"error": "min", "score": "max"}  # noqa: RUF012


def test_the_direction_of_a_metric_is_declared_and_inherited() -> None:
    assert not Task().highest_is_best and Classification().highest_is_best
    assert Task().monitor == "val_loss" and Classification().monitor == "val_accuracy"
    found = {name: Graded(monitor=name).highest_is_best for name in Graded().declared()}
    assert found == {
        **{"val_loss": False, "val_accuracy": True, "val_top5_accuracy": True},
        **{"val_error": False, "val_score": True},
    }
    assert "val_error" not in Classification().declared()


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (
            Classification(monitor="val_acuracy"),
            r"'val_acuracy' is no metric of this task, in Classification; did you mean val_accuracy\? take one of",
        ),
        (Classification(monitor="val_acc"), r"did you mean val_accuracy\?"),
        (Joining(monitor="val_auroc"), r"in Joining .*take one of .*, or add its metric to task.metrics"),
        (Segmentation(metrics=(IoU(of="sky"),)), r"'val_macro_iou' is no .*take one of .*val_iou_sky, or add its met"),
        (
            Classification(monitor="accuracy"),
            r"'accuracy' is no metric of this task, in Classification; did you mean val_accuracy\?",
        ),
        (Autoencoder(monitor="val_mae"), r'write `directions = {"mae": "min"}` into class Autoencoder, or "max" where'),
        (Graded(monitor="val_errors"), r"in Graded \(.*test_task.py:\d+\); did you mean val_error\? write "),
        (Autoencoder(monitor="mae"), r'write `directions = {"mae": "min"}` into .*, and monitor val_mae'),
    ],
)
def test_monitor_without_a_direction_is_refused(task: Task, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        task.check_monitor()
    assert f"task.monitor {task.monitor!r}" in caught.value.what


def test_a_direction_is_min_or_max() -> None:
    class Wrong(Autoencoder):
        directions = {"mae": "lowest"}  # type: ignore[assignment]  # noqa: RUF012

    with pytest.raises(UserError, match=r"directions\['mae'\] must be 'min' or 'max', got 'lowest', in .*Wrong"):
        Wrong().check_monitor()


def test_the_base_class_says_what_a_new_task_needs() -> None:
    with pytest.raises(NotImplementedError, match=r"Task needs a loss\(model, batch\)"):
        Task().loss(Logits(), batch(1, 2))
