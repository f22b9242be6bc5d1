"""The same experiment on 1, 2 and 4 workers: the same batches, the same losses, and those of plain PyTorch."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.ranks import Ranks, losses, new_run, on_workers, reference, train_rank
from torch import nn
from torch.nn.functional import mse_loss

from raytrain import (
    CNN,
    MLP,
    SGD,
    AdamW,
    Augment,
    Batch,
    Checkpoint,
    Classification,
    Cosine,
    Digits,
    Experiment,
    Hook,
    Model,
    Run,
    Task,
)
from raytrain.checkpoint import layout
from raytrain.data.transforms import Normalise
from raytrain.training.losses import Reduced, diverged

BASE = Experiment(
    model=CNN(channels=(8, 16)),
    data=Digits(augment=Augment(crop="random", padding=1, flip=0.5)),
    optimizer=SGD(lr=0.05, momentum=0.9),
    schedule=Cosine(warmup_epochs=0.5),
    batch_size=64,
    epochs=3,
)


@dataclass(frozen=True)
class Recording(Classification):
    """Notes which samples each rank saw, and their pixels."""

    folder: str = ""

    def loss(self, model: nn.Module, batch: Batch) -> tuple[torch.Tensor, int]:
        with open(Path(self.folder) / f"{torch.distributed.get_rank()}.jsonl", "a") as file:
            file.write(json.dumps([batch.ids.tolist(), batch.images.double().sum((1, 2, 3)).tolist()]) + "\n")
        return super().loss(model, batch)


@dataclass(frozen=True)
class AutoEncoder(Model):
    """Learns to give back the image through eight numbers."""

    def build(self, sample: tuple[int, int, int], classes: int) -> nn.Module:
        pixels = int(np.prod(sample))
        return nn.Sequential(nn.Flatten(), nn.Linear(pixels, 8), nn.Linear(8, pixels), nn.Unflatten(1, sample))


@dataclass(frozen=True)
class Reconstruction(Task):
    """The squared error of all pixels."""

    def loss(self, model: nn.Module, batch: Batch) -> tuple[torch.Tensor, int]:
        return mse_loss(model(batch.images), batch.images, reduction="sum"), batch.images.numel()


@pytest.mark.parametrize("world", [1, 2, 4])
def test_losses_and_weights_equal_a_plain_pytorch_loop(ranks: Ranks, tmp_path: Path, world: int) -> None:
    e = on_workers(replace(BASE, clip_norm=1.0), world)
    run = new_run(tmp_path / "run", e)
    assert ranks.run(world, train_rank, e, run) == ["completed"] * world
    found = losses(run)
    expected, model = reference(e, len(found))
    np.testing.assert_allclose(found[:50], expected[:50], rtol=1e-5)
    np.testing.assert_allclose(found, expected, rtol=1e-3)
    weights = Run(run).model("last").state_dict()
    for name, value in model.state_dict().items():
        torch.testing.assert_close(weights[name], value, rtol=1e-3, atol=1e-4)


def test_global_batches_are_equal_on_1_2_4_workers(ranks: Ranks, tmp_path: Path) -> None:
    seen = {}
    for world in (1, 2, 4):
        folder = tmp_path / f"seen-{world}"
        folder.mkdir()
        e = on_workers(replace(BASE, task=Recording(folder=str(folder)), epochs=2, batch_size=52), world)
        ranks.run(world, train_rank, e, new_run(tmp_path / f"run-{world}", e))
        parts = [
            [json.loads(line) for line in (folder / f"{rank}.jsonl").read_text().splitlines()] for rank in range(world)
        ]
        steps = [  # a rank that had none of a short batch saw one black image, whose loss did not count
            [(i, s) for part in step for i, s in zip(*part, strict=True)] for step in zip(*parts, strict=True)
        ]
        seen[world] = steps
    assert seen[1] == seen[2] == seen[4]
    ids = [i for step in seen[4] for i, _ in step]
    assert sorted(ids[:1438]) == list(range(1438)) == sorted(ids[1438:])
    assert ids[:1438] != ids[1438:]


@pytest.mark.parametrize("rest", [1, 2, 3])
def test_last_batch_smaller_than_the_workers_is_exact(ranks: Ranks, tmp_path: Path, rest: int) -> None:
    index = {split: i.take(np.arange(n)) for (split, i), n in zip(Digits().index().items(), (8 + rest, 7), strict=True)}
    runs = {}
    for world in (1, 4):
        e = on_workers(replace(BASE, batch_size=8, epochs=2, clip_norm=None), world)
        runs[world] = new_run(tmp_path / f"{world}", e)
        ranks.run(world, train_rank, e, runs[world], index)
    np.testing.assert_allclose(losses(runs[4]), losses(runs[1]), rtol=1e-5)
    assert len(losses(runs[4])) == 4
    assert Run(runs[4]).metrics()["val_accuracy"].to_pylist() == Run(runs[1]).metrics()["val_accuracy"].to_pylist()


def test_accumulated_micro_batches_equal_one_large_batch(ranks: Ranks, tmp_path: Path) -> None:
    whole = on_workers(replace(BASE, epochs=1), 2)
    parts = replace(whole, micro_batch_size=8)
    assert parts.accumulation == 4
    runs = [new_run(tmp_path / name, e) for name, e in (("whole", whole), ("parts", parts))]
    for run, e in zip(runs, (whole, parts), strict=True):
        ranks.run(2, train_rank, e, run)
    np.testing.assert_allclose(losses(runs[1]), losses(runs[0]), rtol=2e-4)


def test_autoencoder_metrics_are_exact_on_1_2_4_workers(ranks: Ranks, tmp_path: Path) -> None:
    found = {}
    for world in (1, 2, 4):
        e = on_workers(replace(BASE, model=AutoEncoder(), task=Reconstruction(), optimizer=AdamW(lr=1e-2)), world)
        run = new_run(tmp_path / f"{world}", e)
        ranks.run(world, train_rank, e, run)
        found[world] = Run(run)
        index = e.data.index()["val"]
        images = Normalise(e.data.mean, e.data.std)(torch.from_numpy(e.data.read(index, np.arange(len(index)))))
        model = AutoEncoder().build((1, 8, 8), 10)
        model.load_state_dict(torch.load(_export(Run(run), tmp_path / f"{world}.pth"), weights_only=True))
        with torch.no_grad():
            expected = mse_loss(model(images).double(), images.double()).item()
        assert found[world].metrics()["val_loss"].to_pylist()[-1] == pytest.approx(expected, rel=1e-6)
    for world in (2, 4):
        for column in ("train_loss", "val_loss"):
            np.testing.assert_allclose(found[world].metrics()[column], found[1].metrics()[column], rtol=1e-3)
    assert found[1].metrics()["val_loss"][-1].as_py() < 0.9 * found[1].metrics()["val_loss"][0].as_py()


def _export(run: Run, file: Path) -> Path:
    from raytrain.tools.export import export

    export(run, file, "last")
    return file


def test_uneven_sample_counts_of_a_task_are_refused(ranks: Ranks, tmp_path: Path) -> None:
    e = replace(BASE, task=Uneven(), epochs=1)
    with pytest.raises(AssertionError, match="count the same for every sample"):
        ranks.run(1, train_rank, e, new_run(tmp_path / "run", e))


@dataclass(frozen=True)
class Uneven(Classification):
    """Counts another number of things in every batch."""

    def loss(self, model: nn.Module, batch: Batch) -> tuple[torch.Tensor, int]:
        return super().loss(model, batch)[0], int(batch.labels.sum())


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_mixed_precision_trains_on_cpu_as_well_as_fp32(ranks: Ranks, tmp_path: Path, precision: str) -> None:
    found = {}
    for name in ("fp32", precision):
        e = on_workers(replace(BASE, model=MLP(hidden=(64,)), precision=name), 2)
        ranks.run(2, train_rank, e, run := new_run(tmp_path / name, e))
        found[name] = Run(run).metrics()["train_loss"].to_pylist()
    assert found[precision] != found["fp32"]
    np.testing.assert_allclose(found[precision], found["fp32"], rtol=0.02)


def test_a_loss_that_is_not_finite_ends_the_run_with_the_step(ranks: Ranks, tmp_path: Path) -> None:
    e = replace(BASE, optimizer=SGD(lr=1e30), schedule=Cosine())
    with pytest.raises(AssertionError, match=r"the loss became (nan|inf) at step \d+: .*; there is no checkpoint yet"):
        ranks.run(1, train_rank, e, new_run(tmp_path / "run", e))


def test_a_loss_that_the_last_checkpoint_gives_is_not_to_be_clipped(tmp_path: Path) -> None:
    step = Reduced(4, 0.1, 8, math.inf, math.inf, True, {})

    def error(clipped: bool = False) -> str:
        return str(diverged(step, tmp_path, clipped))

    for number in (2, 3):
        (tmp_path / f"step_{number:08d}").mkdir()
        (tmp_path / f"step_{number:08d}" / "manifest.json").touch()
        if number == 2:
            assert "go on with --clip_norm 1" in error() and "go on with a lower --clip_norm" in error(clipped=True)
    said = error()
    assert "inf at step 4, with the weights of the last checkpoint, step_00000003: train a new run" in said
    assert "go on with --clip_norm 1" not in said and "learning rate or a lower --clip_norm, or" in error(clipped=True)


@dataclass(frozen=True)
class Spoil(Hook):
    step: int = 0

    def after_backward(self, trainer: Any) -> None:
        """Make a gradient infinite; the losses of this step, and of the run, are finite."""
        if trainer.progress.step + 1 == self.step:
            trainer.parameters[0].grad[0] = math.inf


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(("step", "kept"), [(10, 5), (23, 20)])
def test_weights_that_are_not_finite_end_the_run_before_they_are_kept(
    ranks: Ranks, tmp_path: Path, workers: int, step: int, kept: int
) -> None:
    e = replace(on_workers(BASE, workers), epochs=1, checkpoint=Checkpoint(every_steps=5), hooks=(Spoil(step),))
    said = "the loss became nan" if step < 23 else "became infinite or not a number by step 23, though the losses were"
    run = new_run(tmp_path / "run", e)
    with pytest.raises(AssertionError, match=said):
        ranks.run(workers, train_rank, e, run)
    assert layout.committed(run / "checkpoints")[-1] == layout.name_of(kept)


@pytest.mark.slow
def test_a_compiled_model_learns_the_same(ranks: Ranks, tmp_path: Path) -> None:
    plain = on_workers(replace(BASE, model=MLP(hidden=(16,)), epochs=1), 2)
    runs = [new_run(tmp_path / name, e) for name, e in (("plain", plain), ("fast", replace(plain, compile=True)))]
    for run in runs:
        ranks.run(2, train_rank, Run(run).experiment, run)
    np.testing.assert_allclose(losses(runs[1]), losses(runs[0]), rtol=1e-4)
    assert list(Run(runs[1]).model("last").state_dict()) == list(Run(runs[0]).model("last").state_dict())


# Learning rates that follow the batch


@pytest.mark.parametrize(("scaling", "factor"), [("linear", 4.0), ("sqrt", 2.0)])
@pytest.mark.parametrize("world", [1, 2])
def test_scaled_learning_rate_has_the_bits_of_that_rate(
    ranks: Ranks, tmp_path: Path, scaling: str, factor: float, world: int
) -> None:
    plain = on_workers(replace(BASE, epochs=1, batch_size=128), world)
    scaled = replace(plain, lr_scaling=scaling, lr_batch_size=32)  # type: ignore[arg-type]
    written = replace(plain, optimizer=SGD(lr=0.05 * factor, momentum=0.9))
    runs = {}
    for name, e in (("plain", plain), ("scaled", scaled), ("written", written)):
        ranks.run(world, train_rank, e, new_run(tmp_path / name, e))
        runs[name] = [(row["loss"], row["lr"]) for row in Run(tmp_path / name).metrics("step").to_pylist()]
    assert runs["scaled"] == runs["written"] and runs["scaled"][1:] != runs["plain"][1:]
    top = max(lr for _, lr in runs["scaled"])
    assert top == pytest.approx(0.05 * factor, rel=0.05) and top == factor * max(lr for _, lr in runs["plain"])
    if world == 1:
        np.testing.assert_allclose(losses(tmp_path / "scaled"), reference(written, 12)[0], rtol=1e-5)
