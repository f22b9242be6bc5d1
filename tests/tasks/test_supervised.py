"""The built-in tasks: losses of a plain loop on any number of ranks, after a resume, and users' mistakes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.cut_runs import cut_between_steps_rank, rows, weights
from helpers.ranks import Ranks, losses, new_run, on_workers, train_rank
from helpers.scenes import CLASSES, Joining, Scenes, experiment
from torch import nn
from torch.nn import functional
from torchmetrics.classification import MulticlassCohenKappa
from torchvision.ops import sigmoid_focal_loss

from raytrain import (
    AUROC,
    CNN,
    F1,
    MLP,
    SGD,
    Augment,
    Batch,
    Checkpoint,
    Classification,
    Deterministic,
    Digits,
    Distillation,
    Experiment,
    Field,
    Index,
    Metric,
    Model,
    MultiLabel,
    Regression,
    Run,
    Segmentation,
    Task,
    TorchMetric,
    UserError,
    order,
)
from raytrain.data.checks import checked_read
from raytrain.data.progressive import Progressive
from raytrain.driver import plan_lines, teacher_check
from raytrain.driver.baseline import baseline
from raytrain.driver.plan import make
from raytrain.driver.resources import Node, Resources
from raytrain.run.exported import classes_of, normalisation_of
from raytrain.tasks import losses as own
from raytrain.tools import inference
from raytrain.tools.export import export

WEIGHTS = (1.0, 3.0, 0.5, 2.0)
POSITIVE = (2.0, 1.0, 3.0, 0.5, 1.0)


def of_masks(output: torch.Tensor, arrays: dict[str, torch.Tensor]) -> torch.Tensor:
    each = []
    for logits, mask in zip(output, arrays["mask"].long(), strict=True):
        valid = mask != 255
        chosen, labels = logits.movedim(0, -1)[valid], mask[valid]
        total = functional.cross_entropy(chosen, labels, torch.tensor(WEIGHTS), reduction="sum")
        each.append(total / valid.sum() if valid.any() else total * 0)
    return torch.stack(each).mean()


def of_tags(output: torch.Tensor, arrays: dict[str, torch.Tensor]) -> torch.Tensor:
    return nn.BCEWithLogitsLoss(pos_weight=torch.tensor(POSITIVE))(output, arrays["tags"].float())


def of_labels(output: torch.Tensor, arrays: dict[str, torch.Tensor]) -> torch.Tensor:
    each = functional.cross_entropy(output, arrays["label"], torch.tensor(WEIGHTS), reduction="none")
    return each.mean()


def focused(output: torch.Tensor, arrays: dict[str, torch.Tensor]) -> torch.Tensor:
    chances = output.softmax(1).gather(1, arrays["label"][:, None])[:, 0]
    return (torch.tensor(WEIGHTS)[arrays["label"]] * (1 - chances) ** 2 * -chances.log()).mean()


TASKS: dict[str, tuple[Experiment, Callable[..., torch.Tensor]]] = {
    "masks": (experiment(Segmentation(class_weights=WEIGHTS), "mask", CLASSES, True), of_masks),
    "tags": (experiment(MultiLabel(pos_weight=POSITIVE), "tags", 5), of_tags),
    "tag": (
        experiment(MultiLabel(metrics=(F1(of=0), AUROC())), "tag", 1),
        lambda output, arrays: nn.BCEWithLogitsLoss()(output[:, 0], arrays["tag"].float()),
    ),
    "sizes": (
        experiment(Regression(target="sizes"), "sizes size", 2),
        lambda output, arrays: nn.MSELoss()(output, arrays["sizes"].float()),
    ),
    "scaled": (
        experiment(Regression(target="sizes", mean=(3.0, 5.0), std=(2.0, 0.5)), "sizes size", 2),
        lambda output, arrays: nn.MSELoss()(
            output, (arrays["sizes"] - torch.tensor([3.0, 5])) / torch.tensor([2, 0.5])
        ),
    ),
    "huber": (
        experiment(Regression(error="huber", huber_delta=0.3, monitor="val_mae"), "size", 1),
        lambda output, arrays: nn.HuberLoss(delta=0.3)(output[:, 0], arrays["size"]),
    ),
    "mae": (
        experiment(Regression(error="mae"), "size", 1),
        lambda output, arrays: nn.L1Loss()(output[:, 0], arrays["size"]),
    ),
    "labels": (experiment(Classification(class_weights=WEIGHTS), "mask", CLASSES), of_labels),
    "joined": (experiment(Joining(class_weights=WEIGHTS), "mask sizes", CLASSES), of_labels),
    "focal": (experiment(Classification(class_weights=WEIGHTS, focal_gamma=2.0), "mask", CLASSES), focused),
}


def plain_loop(e: Experiment, loss: Callable[..., torch.Tensor]) -> list[float]:
    """The same training in one process, without the package's loop, loader and tasks."""
    index = e.data.index()["train"]
    stored = {name: torch.from_numpy(a) for name, a in checked_read(e.data, index, np.arange(len(index))).items()}
    stored |= {"image": (stored["image"] / 255 - 0.5) / 0.5, "label": torch.from_numpy(index.labels)}
    torch.manual_seed(order.key(e.seed, 0) >> 1)
    model = e.model.build(e.data.sample(index), CLASSES)
    optimizer, found = torch.optim.SGD(model.parameters(), lr=0.1), []
    given = ("image", "sizes") if isinstance(e.task, Joining) else ("image",)
    for epoch in range(e.epochs):
        for start in range(0, len(index), e.batch_size):
            ids = order.samples(e.seed, epoch, len(index), np.arange(start, min(start + e.batch_size, len(index))))
            batch = {name: array[ids] for name, array in stored.items()}
            value = loss(model(*(batch[name] for name in given)), batch)
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            found.append(value.item())
    return found


@pytest.mark.parametrize("name", TASKS)
def test_losses_are_those_of_a_plain_loop_on_any_number_of_ranks(ranks: Ranks, tmp_path: Path, name: str) -> None:
    e, loss = TASKS[name]
    expected = plain_loop(e, loss)
    validated = []
    for world in (1, 2, 3, 4):
        run = new_run(tmp_path / str(world), e)
        ranks.run(world, train_rank, on_workers(e, world), run)
        np.testing.assert_allclose(losses(run), expected, rtol=2e-5)
        validated.append({n: v for n, v in Run(run).metrics().to_pylist()[-1].items() if n.startswith("val_")})
        assert validated[-1] == pytest.approx(validated[0], rel=1e-5)
    evaluated = inference.evaluate(Run(run), which="last")
    assert {f"val_{n}": evaluated[n] for n in evaluated if f"val_{n}" in validated[0]} == pytest.approx(
        validated[0], rel=1e-5
    )


@pytest.mark.parametrize("name", ["masks", "tags", "sizes", "focal", "joined"])
def test_deterministic_runs_are_bit_equal_and_so_is_a_resumed_one(ranks: Ranks, tmp_path: Path, name: str) -> None:
    e = replace(TASKS[name][0], parallel=Deterministic(), checkpoint=Checkpoint(every_steps=3))
    if name in ("tags", "focal"):  # scores of all samples, gathered
        e = replace(e, task=replace(e.task, metrics=(AUROC(), F1()), monitor="val_auroc"))
    whole = new_run(tmp_path / "whole", e)
    ranks.run(1, train_rank, on_workers(e, 1), whole)
    cut = new_run(tmp_path / "cut", e)
    ranks.run(4, cut_between_steps_rank, on_workers(e, 4), cut, 6)
    assert Run(cut).summary["status"] == "unfinished"
    ranks.run(2, train_rank, on_workers(e, 2), cut)
    assert rows(cut) == rows(whole) and weights(cut) == weights(whole)


@pytest.mark.slow
@pytest.mark.parametrize("name", TASKS)
def test_every_task_trains_as_a_plain_loop_after_a_kill(ranks: Ranks, tmp_path: Path, name: str) -> None:
    e, loss = TASKS[name]
    e, expected = replace(e, checkpoint=Checkpoint(every_steps=2)), plain_loop(e, loss)
    for begin, end, way in (*((world, world, e.parallel) for world in (1, 2, 3, 4)), (4, 2, Deterministic())):
        e = replace(e, parallel=way)
        run = new_run(tmp_path / f"{type(way).__name__}-{begin}", on_workers(e, begin))
        ranks.run(begin, cut_between_steps_rank, on_workers(e, begin), run, 6)
        assert Run(run).summary["status"] == "unfinished"
        ranks.run(end, train_rank, on_workers(e, end), run)
        np.testing.assert_allclose(losses(run), expected, rtol=2e-5)


def test_the_focal_loss_of_two_classes_is_torchvisions() -> None:
    logits, labels = torch.randn(50, 2, generator=torch.Generator().manual_seed(0)) * 4, torch.arange(50) % 2
    found = own.classes(logits, labels, (), 0.0, 1.5)
    expected = sigmoid_focal_loss(logits[:, 1] - logits[:, 0], labels.float(), alpha=-1, gamma=1.5, reduction="sum")
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0])
def test_smoothing_weights_and_focus_go_together_with_mixed_targets(gamma: float) -> None:
    random = torch.Generator().manual_seed(0)
    logits = torch.randn(9, 4, generator=random, dtype=torch.float64).requires_grad_()
    labels = torch.randint(0, 4, (9,), generator=random)
    shares = functional.one_hot(labels, 4).double()
    found = (
        own.classes(logits, shares, WEIGHTS, 0.1, gamma)
        if gamma
        else own.classes(logits.float(), shares.float(), WEIGHTS, 0.1, gamma)
    )
    same = own.classes(logits if gamma else logits.float(), labels, WEIGHTS, 0.1, gamma)
    logs = logits.log_softmax(1)
    parts = (1 - logs.exp()) ** gamma * -logs * (shares * 0.9 + 0.1 / 4) * torch.tensor(WEIGHTS)
    assert [found.item(), same.item()] == pytest.approx([parts.sum().item()] * 2, rel=1e-5)


def test_the_focal_loss_of_a_certain_answer_has_a_gradient() -> None:
    logits = torch.tensor([[200.0, -200.0]], requires_grad=True)
    own.classes(logits, torch.tensor([0]), (), 0.0, 0.5).backward()
    assert logits.grad is not None and logits.grad.isfinite().all()


# Distillation


def teacher(folder: Path) -> Run:
    """A trained run of digits."""
    e = Experiment(MLP(hidden=(16,)), Digits(), optimizer=SGD(lr=0.1), batch_size=64, epochs=1)
    run = new_run(folder, e)
    assert train_rank(0, 1, e, run) == "completed"
    return Run(run)


def distilled_loop(e: Experiment, model_of_teacher: nn.Module, steps: int) -> list[float]:
    index = e.data.index()["train"]
    images = (torch.from_numpy(e.data.read(index, np.arange(len(index)))) / 255 - 0.305) / 0.376
    labels = torch.from_numpy(np.array(index.labels))
    torch.manual_seed(order.key(e.seed, 0) >> 1)
    student, found = e.model.build(e.data.sample(index), 10), []
    optimizer = torch.optim.SGD(student.parameters(), lr=e.optimizer.lr)
    for step in range(steps):
        ids = order.samples(e.seed, 0, len(index), np.arange(step * 64, step * 64 + 64))
        output = student(images[ids])
        with torch.no_grad():
            wanted = (model_of_teacher(images[ids]) / 3).softmax(1)
        soft = -(wanted * (output / 3).log_softmax(1)).sum(1).mean() + (wanted * wanted.log()).sum(1).mean()
        loss = 0.3 * functional.cross_entropy(output, labels[ids]) + 0.7 * 9 * soft
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


@pytest.mark.parametrize("exported", [False, True])
def test_distillation_follows_a_run_or_an_exported_file(ranks: Ranks, tmp_path: Path, exported: bool) -> None:
    run = teacher(tmp_path / "teacher")
    path = str(run.path)
    if exported:
        path = str(tmp_path / "teacher.pt2")
        export(run, Path(path))
    task = Distillation(teacher=path, temperature=3.0, alpha=0.7)
    e = Experiment(CNN(channels=(4,)), Digits(), task, SGD(lr=0.1), batch_size=64)
    expected = distilled_loop(e, run.model(), 22)
    for world in (1, 2) if exported else (1, 3, 4):
        e = replace(e, batch_size=64 if world != 3 else 63)
        student = new_run(tmp_path / f"student-{world}", e)
        ranks.run(world, train_rank, on_workers(e, world), student)
        if world != 3:
            np.testing.assert_allclose(losses(student)[:22], expected, rtol=2e-5)
        names = Run(student).model().state_dict().keys()
        assert names == e.model.build((1, 8, 8), 10).state_dict().keys(), "the teacher is in no checkpoint"
        assert inference.evaluate(Run(student))["accuracy"] == Run(student).summary["val_accuracy"]
    e = replace(e, batch_size=64, checkpoint=Checkpoint(every_steps=2))
    killed = new_run(tmp_path / "killed", e)
    ranks.run(2, cut_between_steps_rank, on_workers(e, 2), killed, 6)
    assert Run(killed).summary["status"] == "unfinished"
    ranks.run(2, train_rank, on_workers(e, 2), killed)
    np.testing.assert_allclose(losses(killed)[:22], expected, rtol=2e-5)


# Mistakes, in the plan


def test_workers_get_the_teachers_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = teacher(tmp_path / "teacher")
    monkeypatch.chdir(tmp_path)
    e = Experiment(CNN(channels=(4,)), Digits(), Distillation(teacher="teacher"), batch_size=64)
    planned = plan(e).experiment.task
    assert isinstance(planned, Distillation) and planned.teacher == str(run.path)


def plan(e: Experiment, resumed: bool = False) -> Any:
    return make(e, lambda: Resources((Node("n0", 2.0, 0.0, 2**33),), "this machine"), "runs/x", resumed)


@pytest.mark.parametrize(
    ("e", "message"),
    [
        (
            experiment(Classification(class_weights=(1.0, 2.0)), "mask", 4),
            r"class_weights .* 4 classes, got 2",
        ),
        (experiment(Classification(metrics=(F1(of=4),)), "mask", 4), r"F1\(of=4\) names a class .* the 4 classes are"),
        (
            experiment(Segmentation(class_weights=(1.0,)), "mask", 4, True),
            r"class_weights .* 4 classes, got 1",
        ),
        (
            experiment(Segmentation(mask="mast"), "mask", 4, True),
            r"no field 'mast' .*; did you mean mask\?",
        ),
        (
            experiment(Segmentation(mask="tags"), "tags", 4, True),
            r"a mask must be whole numbers .*, got uint8",
        ),
        (
            experiment(Segmentation(), "mask", 3, True),
            r"a mask has the number 3, and the model's 3 classes are 0 to 2, in task; .*mask_values=.*ignore_index",
        ),
        (experiment(Segmentation(), "mask", 4), r"the model must give \[n, classes, height, width\], got \[1, 4\]"),
        (
            experiment(Regression(target="sizes"), "sizes", 3),
            r"gives \[2, 3\] and the targets are \[2, 2\], in task",
        ),
        (
            experiment(Regression(), "sizes size", 2),
            r"needs the name of its target field, and .* sizes, size",
        ),
        (
            experiment(Regression(target="sise"), "size", 1),
            r"no field 'sise' besides the input, .*; did you mean siz",
        ),
        (
            experiment(Regression(target="sizes", names=("a", "b", "c")), "sizes", 2),
            r"names must have 2, one for each number of the target, got 3, in task; name each number",
        ),
        (experiment(MultiLabel(), "tags", 4), r"the model gives \[2, 4\] and the targets are \[2, 5\]"),
        (
            experiment(MultiLabel(), "mask", 4),
            r"the targets of MultiLabel must be \[classes\], got \[6, 6\] for 'mask'",
        ),
        (experiment(MultiLabel(), "tag", 2), r"the model gives \[2, 2\] and .* \[2, 1\], in task; .* in 1 output$"),
        (experiment(MultiLabel(classes=("x", "y")), "tag", 1), r"classes must have .* 1 classes, got 2"),
        (experiment(MultiLabel(pos_weight=(1.0, 2.0)), "tags", 5), r"pos_weight must have .* 5 classes, got 2"),
        (experiment(MultiLabel(classes=("x",)), "tags", 5), r"classes must have .* 5 classes, got 1"),
        (experiment(Distillation(), "mask", 4), r"Distillation needs a teacher, in task.teacher"),
        (
            experiment(Distillation(teacher="/no/run"), "mask", 4),
            r"no such run or .pt2 file, in task.teacher /no/run; name it",
        ),
    ],
)
def test_what_does_not_fit_the_task_is_refused_in_the_plan(e: Experiment, message: str) -> None:
    with pytest.raises(UserError, match=message):
        plan(e)


def test_a_mask_that_does_not_move_with_its_image_is_refused() -> None:
    mask = Field("mask", (8, 8), "int64")
    image = Field("image", (3, 8, 8), kind="image")
    with pytest.raises(UserError, match=r"kind 'plain', in field 'mask'; declare it with kind=\"mask\"$") as found:
        Segmentation().check_data(Index(fields=(image, mask), count=4))
    assert "\n" not in str(found.value)
    Segmentation().check_data(Index(fields=(image, replace(mask, kind="mask")), count=4))
    floats = Field("image", (3, 8, 8), "float32")  # nothing moves these
    Segmentation().check_data(Index(fields=(floats, mask), count=4))


def teacher_path(folder: Path, exported: bool) -> str:
    """The directory of a teacher's run, or its exported file."""
    run = teacher(folder / "teacher")
    if exported:
        export(run, folder / "teacher.pt2")
    return str(folder / "teacher.pt2" if exported else run.path)


@pytest.mark.parametrize("exported", [False, True])
def test_a_teacher_of_other_names_or_another_order_is_refused_in_the_plan(tmp_path: Path, exported: bool) -> None:
    path = teacher_path(tmp_path, exported)
    e = Experiment(CNN(channels=(4,)), Digits(), Distillation(teacher=path), batch_size=64)
    classes = e.data.index()["train"].classes
    assert classes_of(path) == classes
    plan(e)
    for others, message in (
        ((*classes[:-1], "ten"), r"knows other classes .*: it lacks ten and the data lacks 9, in task.teacher /"),
        (classes[:-1], r"other classes than the data has: the data lacks 9, in"),
        (classes[::-1], r"in another order: class 0 is '0' there, and '9' in the data, in task.teacher"),
    ):
        with pytest.raises(UserError, match=message):
            teacher_check.check(e.task, others)


@pytest.mark.parametrize("exported", [False, True])
def test_a_teacher_of_images_with_another_mean_is_refused_in_the_plan(tmp_path: Path, exported: bool) -> None:
    path = teacher_path(tmp_path, exported)
    e = Experiment(CNN(channels=(4,)), Digits(mean=(0.5,)), Distillation(teacher=path), batch_size=64)
    says = r"mean 0.305, and the data has 0.5, in task.teacher .*--data.mean 0.305 --data.std 0.376"
    with pytest.raises(UserError, match=says):
        plan(e)
    plan(e, resumed=True)
    with pytest.raises(UserError, match=r"std 0.376, and the data has 0.5, in task.teacher"):
        plan(replace(e, data=Digits(std=(0.5,))))
    field = Field("image", (3, 8, 8), "uint8", kind="image")
    assert normalisation_of(path) == ((0.305,), (0.376,))
    teacher_check.check_normalisation(e.task, Digits(mean=(0.305,) * 3, std=(0.376,) * 3), field)


@dataclass(frozen=True)
class Pools(Model):
    """A model for images of any size."""

    def build(self, sample: tuple[int, ...], classes: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(1, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, classes))


@pytest.mark.parametrize("exported", [False, True])
def test_a_teacher_of_images_of_another_size_is_refused_in_the_plan(tmp_path: Path, exported: bool) -> None:
    """It gets the student's batches. The message named the student's model, and growing images failed in a worker."""

    path = teacher_path(tmp_path, exported)
    e = Experiment(Pools(), Digits(), Distillation(teacher=path), batch_size=64)
    plan(e)
    was = "" if exported else r", and was trained on \[1, 8, 8\]"
    small = rf"teacher cannot take the student's samples of \[1, 6, 6\]{was}: .*, in task.teacher .*--data.crop to its"
    with pytest.raises(UserError, match=small):
        plan(replace(e, data=Digits(crop=6)))
    grows = Augment(progressive=Progressive(start=4, multiple=2))
    with pytest.raises(UserError, match=r"samples of \[1, 4, 4\].*leave out --data.augment.progressive: the teacher"):
        plan(replace(e, data=Digits(augment=grows)))
    pools = Experiment(Pools(), Digits(), batch_size=64, epochs=1)
    assert train_rank(0, 1, pools, new_run(tmp_path / "pools", pools)) == "completed"
    plan(replace(e, data=Digits(augment=grows), task=Distillation(teacher=str(tmp_path / "pools"))))


def test_a_teacher_from_a_file_without_names_is_compared_by_its_outputs(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 3)).eval()
    program = torch.export.export(
        module, (torch.zeros(2, 1, 8, 8),), dynamic_shapes=({0: torch.export.Dim("batch")},), strict=False
    )
    torch.export.save(program, tmp_path / "plain.pt2")
    (tmp_path / "broken.pt2").write_bytes(b"PK")
    assert classes_of(str(tmp_path / "plain.pt2")) == () == classes_of(str(tmp_path / "broken.pt2"))
    e = Experiment(CNN(channels=(4,)), Digits(), Distillation(teacher=str(tmp_path / "plain.pt2")), batch_size=64)
    with pytest.raises(UserError, match=r"the teacher gives \[2, 3\] and the model \[2, 10\], in task.teacher"):
        plan(e)


def test_a_teacher_of_other_classes_is_refused() -> None:
    task = Distillation(teacher="x")
    task.start(lambda path: nn.Linear(4, 3), torch.device("cpu"))
    batch = Batch({"x": torch.zeros(2, 4), "label": torch.zeros(2, dtype=torch.int64)}, np.arange(2))
    with pytest.raises(UserError, match=r"the teacher gives \[2, 3\] and the model \[2, 4\], in task.teacher"):
        task.loss(nn.Identity(), batch)


@pytest.mark.parametrize("wrong", [(-1.0, 1.0), (0.0, 0.0), (float("inf"), 1.0), (float("nan"), 1.0)])
def test_weights_that_are_none_are_refused(wrong: tuple[float, ...]) -> None:
    for make_task in (
        lambda: Classification(class_weights=wrong),
        lambda: Segmentation(class_weights=wrong),
        lambda: MultiLabel(pos_weight=wrong),
    ):
        with pytest.raises(UserError, match="finite numbers of at least 0, not all 0"):
            make_task()


# The plan's line about the task


@pytest.mark.parametrize(
    ("task", "line"),
    [
        (Classification(), None),
        (Classification(class_weights=WEIGHTS), "Classification(class_weights=(1.0, 3.0, 0.5, 2.0))"),
        (
            Classification("val_f1_b", metrics=(F1(of="b"), F1(average="micro"), AUROC())),
            "Classification(monitor='val_f1_b', metrics=(F1(of='b'), F1(average='micro'), AUROC()))",
        ),
        (
            Classification(metrics=(TorchMetric(MulticlassCohenKappa, weights="linear", direction="max"),)),
            "Classification(metrics=(TorchMetric(MulticlassCohenKappa, direction='max', weights='linear'),))",
        ),
    ],
)
def test_the_plan_shows_what_differs_from_a_tasks_defaults(task: Task, line: str | None) -> None:
    shown = dict(plan(experiment(task, "mask", CLASSES)).lines())
    assert shown.get("task") == line


def test_the_plan_shows_another_task_and_cuts_long_tuples() -> None:
    assert dict(plan(TASKS["huber"][0]).lines())["task"] == (
        "Regression(monitor='val_mae', error='huber', huber_delta=0.3)"
    )
    assert dict(plan(experiment(Segmentation(), "mask", CLASSES, True)).lines())["task"] == "Segmentation()"
    e = replace(TASKS["labels"][0], task=MultiLabel(pos_weight=(2.0,) * 30))
    assert plan_lines._code(e.task) == f"MultiLabel(pos_weight=({'2.0, ' * 12}...))"


# Baseline


def test_the_baseline_is_what_a_constant_answer_scores() -> None:
    e = TASKS["labels"][0]
    index = e.data.index()
    best = np.bincount(index["train"].labels).argmax()
    share = float((index["val"].labels == best).mean())
    planned = plan(e)
    text = planned.baseline.line
    assert planned.baseline.scores["val_accuracy"] == pytest.approx(share) and not planned.baseline.note
    assert f"val_accuracy {share:.4g}," in text and text.endswith(f"by always {'abcd'[best]!r}")
    assert ("baseline", text) in planned.lines()
    several = replace(e, task=Classification(metrics=(F1(), AUROC(), F1(of=1), F1(of=2))))
    assert " and 1 more, by always " in plan(several).baseline.line and len(plan(several).baseline.scores) == 6
    one = {split: replace(each, labels=np.zeros_like(each.labels), classes=("a",)) for split, each in index.items()}
    assert "the data has one class, 'a'" in baseline(e, one).note

    arrays = {s: checked_read(e.data, index[s], np.arange(len(index[s]))) for s in index}
    e = TASKS["huber"][0]
    index = e.data.index()
    arrays = {s: checked_read(e.data, index[s], np.arange(len(index[s])))["size"] for s in index}
    mae = np.abs(arrays["val"] - np.quantile(arrays["train"], 0.5)).mean()
    assert baseline(e, index).line.startswith(f"val_mae {mae:.4g},")
    squares = replace(e, task=Regression())
    mse = ((arrays["val"] - arrays["train"].mean()) ** 2).mean()
    assert baseline(squares, index).line.startswith(f"val_loss {mse:.4g},")
    assert baseline(squares, index).line.endswith(f"by always the mean, {arrays['train'].mean():.4g}")
    assert "val_r2 0," in baseline(squares, {"train": index["val"], "val": index["val"]}).line

    e = TASKS["masks"][0]
    index = e.data.index()
    arrays = {s: checked_read(e.data, index[s], np.arange(len(index[s])))["mask"] for s in index}
    best = np.bincount(arrays["train"][arrays["train"] < 255]).argmax()
    valid = arrays["val"][arrays["val"] < 255]
    assert f"val_pixel_accuracy {(valid == best).mean():.4g}" in baseline(e, index).line
    assert f"every pixel of class {'abcd'[best]}" in baseline(e, index).line
    named = replace(e, task=replace(e.task, classes=("u", "v", "w", "x")))
    assert f"every pixel of class {'uvwx'[best]}" in baseline(named, index).line
    counts = {"right": np.arange(4), "answered": np.arange(4), "actual": np.arange(4)}
    assert [row["class"] for row in named.task.per_class(counts, tuple("abcd"))] == ["u", "v", "w", "x"]
    with pytest.raises(UserError, match="classes must have a name for each of the 4 classes, got 2"):
        plan(replace(e, task=replace(e.task, classes=("u", "v"))))

    e = TASKS["tags"][0]
    index = e.data.index()
    arrays = {s: checked_read(e.data, index[s], np.arange(len(index[s])))["tags"].astype(float) for s in index}
    shares = arrays["train"].mean(0)
    loss = -(arrays["val"] * np.log(shares) + (1 - arrays["val"]) * np.log(1 - shares)).mean()
    assert baseline(e, index).line.startswith(f"val_loss {loss:.4g},")


@pytest.mark.parametrize(("metric", "name"), [(F1(of="d"), "val_f1_d"), (AUROC(of=3), "val_auroc_3")])
def test_the_plan_names_a_monitored_class_without_samples(metric: Metric, name: str) -> None:
    """The value is never a number: the run kept the weights of its first validation as the best."""
    e = replace(TASKS["labels"][0], task=Classification(metrics=(metric,), monitor=name))
    index = e.data.index()
    assert not baseline(e.bound(index["train"]), index).note
    lacks = index | {"val": index["val"].take(np.flatnonzero(index["val"].labels != 3))}
    found = baseline(e.bound(index["train"]), lacks)
    assert f"val has no samples by which {name} could be measured" in found.note and "val_accuracy" in found.scores
    other = replace(e, task=Classification(metrics=(metric,)))
    assert not baseline(other.bound(index["train"]), lacks).note


@dataclass(frozen=True)
class Late(Scenes):
    """With one number in a late mask that is no class."""

    def read(self, index: Index, samples: np.ndarray) -> dict[str, np.ndarray]:
        found = super().read(index, samples)
        found["mask"][samples == 17, 0, 0] = 4
        return found


@dataclass(frozen=True)
class AnyNumber(Segmentation):
    """With a loss that takes any number."""

    def each(self, outputs: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        return super().each(outputs, wanted.clamp_max(3))

    def loss(self, model: nn.Module, batch: Batch) -> tuple[torch.Tensor, int]:
        return self.each(model(batch.input), self.wanted(batch)).sum(), len(batch)


def test_the_plan_names_a_mask_with_a_number_that_the_model_has_not() -> None:
    e = replace(experiment(Segmentation(), "mask", 4, True), data=Late(wanted="mask"))
    with pytest.raises(UserError, match=r"the mask of sample 17 has the number 4, .* 4 classes are 0 to 3, in task"):
        plan(e)
    plan(replace(e, model=replace(e.model, outputs=5)))
    plan(replace(e, task=AnyNumber()))


@dataclass(frozen=True)
class Unsure(Scenes):
    """With another number than 0 and 1 in late targets."""

    number: float = -1.0

    def index(self) -> dict[str, Index]:
        found = super().index()
        kinds = {"tags": "float32"}
        return {
            split: replace(one, fields=tuple(replace(f, dtype=kinds.get(f.name, f.dtype)) for f in one.fields))
            for split, one in found.items()
        }

    def read(self, index: Index, samples: np.ndarray) -> dict[str, np.ndarray]:
        found = super().read(index, samples)
        tags = found["tags"].astype(np.float32)
        tags[samples == 17, 1] = self.number
        return {**found, "tags": tags}


@dataclass(frozen=True)
class Weighed(MultiLabel):
    """Another training loss; validation's is that of the base."""

    def training_loss(self, outputs: torch.Tensor, batch: Batch) -> torch.Tensor:
        return 2 * super().training_loss(outputs, batch)


@dataclass(frozen=True)
class Known(MultiLabel):
    """Targets of -1 do not count."""

    def each(self, outputs: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        both = functional.binary_cross_entropy_with_logits(outputs, wanted.clamp_min(0), reduction="none")
        return (both * (wanted >= 0)).sum(1)

    def training_loss(self, outputs: torch.Tensor, batch: Batch) -> torch.Tensor:
        return self.each(outputs, batch["target"]).sum()


def test_the_plan_names_a_target_of_several_labels_that_is_no_answer() -> None:
    """The loss of such a target falls without end: its run trained with a negative loss, and nothing said so."""
    e = TASKS["tags"][0]
    for number in (-1.0, 255.0):
        message = rf"sample 17 of train have the number {number:g}, and those of MultiLabel are from 0 to 1, in task"
        with pytest.raises(UserError, match=message):
            plan(replace(e, data=Unsure(wanted="tags", number=number)))
        with pytest.raises(UserError, match=message):
            plan(replace(e, data=Unsure(wanted="tags", number=number), task=Weighed()))
    plan(replace(e, data=Unsure(wanted="tags", number=0.3)))
    plan(replace(e, data=Unsure(wanted="tags"), task=Known()))


def test_a_task_without_a_constant_answer_has_no_baseline() -> None:
    @dataclass(frozen=True)
    class Own(Task):
        def loss(self, model: nn.Module, batch: Any) -> tuple[torch.Tensor, int]:
            return model(batch.images).square().sum(), len(batch)

    e = replace(TASKS["labels"][0], task=Own())
    found = baseline(e, e.data.index())
    assert not found.scores and not found.line and "Own has no `constant(" in found.note


def test_a_baseline_that_cannot_be_scored_says_why_and_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> torch.Tensor:
        raise ValueError("no\nanswer")

    monkeypatch.setattr(Classification, "constant", broken)
    planned = plan(TASKS["labels"][0])
    (note,) = [text for name, text in planned.lines() if name == "note" and "baseline" in text]
    assert note.endswith("could not be scored (ValueError: no answer)")
    monkeypatch.setattr(Classification, "constant", lambda *_: None)
    assert "knows no constant answer" in baseline(planned.experiment, planned.indices).note
