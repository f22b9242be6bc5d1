"""Averaged weights: PyTorch's own averages, exact over resumes and strategies, and training that does not notice."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.cut_runs import BASE as DROPOUT
from helpers.cut_runs import cut_between_steps_rank, cut_rank, rows, weights
from helpers.ranks import Ranks, losses, new_run, on_workers, reference, train_rank
from helpers.strategies import BLOCKS, SHORT, Eventful
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from raytrain import (
    DDP,
    MLP,
    SGD,
    AdamW,
    Checkpoint,
    Constant,
    Experiment,
    Parallel,
    Pipeline,
    Run,
    TensorParallel,
    TorchModel,
)
from raytrain.checkpoint.checkpoints import load_optimizer
from raytrain.tools.inference import evaluate
from raytrain.training.trainer import Trainer

DECAY = 0.9
E = replace(SHORT, ema_decay=DECAY, micro_batch_size=None)
WAYS: dict[str, tuple[Parallel, int]] = {
    "one": (DDP(), 1),
    "shared": (DDP(), 2),
    "fsdp": (BLOCKS, 2),
    "pipeline": (Pipeline(), 2),
    "tensor": (TensorParallel(), 2),
    "fsdp, weights stay gathered": (replace(BLOCKS, reshard_after_forward=False), 2),
}


def trained(run: Path) -> dict[str, torch.Tensor]:
    return load_optimizer(Run(run).checkpoint("last"))["ema"]["trained"]


def digest(state: dict[str, torch.Tensor]) -> str:
    return hashlib.sha256(b"".join(value.numpy().tobytes() for _, value in sorted(state.items()))).hexdigest()


@pytest.mark.parametrize("way", WAYS)
def test_averages_are_torchs_and_training_does_not_notice_them(ranks: Ranks, tmp_path: Path, way: str) -> None:
    parallel, world = WAYS[way]
    e = on_workers(replace(E, parallel=parallel), world)
    run, plain = new_run(tmp_path / "run", e), new_run(tmp_path / "plain", e)
    ranks.run(world, train_rank, e, run)
    ranks.run(world, train_rank, replace(e, ema_decay=None), plain)
    np.testing.assert_array_equal(losses(run), losses(plain))
    assert digest(trained(run)) == weights(plain), "bit for bit, over two validations and checkpoints"
    averaged: list[AveragedModel] = []

    def each(model: nn.Module) -> None:
        if not averaged:
            averaged.append(AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(DECAY)))
        averaged[0].update_parameters(model)

    _, model = reference(e, len(losses(run)), each=each)
    found = Run(run).model("last").state_dict()
    assert list(found) == list(model.state_dict())
    for name, value in averaged[0].module.state_dict().items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-5)
        assert not torch.allclose(trained(run)[name], value, rtol=1e-4, atol=1e-5)
    said = evaluate(Run(run), which="last")
    assert said["loss"] == pytest.approx(Run(run).metrics()["val_loss"].to_pylist()[-1], rel=1e-5)


def unsaved_rank(rank: int, world: int, e: Experiment, run: Path) -> str:
    """Without checkpoints, since to take one drops FSDP's gathered weights too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "save", lambda self, row=None: None)
        return train_rank(rank, world, e, run)


def test_validation_restores_weights_that_stay_gathered(ranks: Ranks, tmp_path: Path) -> None:
    parallel, world = WAYS["fsdp, weights stay gathered"]
    e = on_workers(replace(E, parallel=parallel), world)
    runs = [new_run(tmp_path / name, e) for name in ("averaged", "plain")]
    for run, decay in zip(runs, (DECAY, None), strict=True):
        ranks.run(world, unsaved_rank, replace(e, ema_decay=decay), run)
    np.testing.assert_array_equal(losses(runs[0]), losses(runs[1]))


@pytest.mark.parametrize(
    "way", ["shared", "fsdp", *(pytest.param(way, marks=pytest.mark.slow) for way in ("pipeline", "tensor"))]
)
def test_a_resumed_run_is_bit_identical(ranks: Ranks, tmp_path: Path, way: str) -> None:
    parallel, world = WAYS[way]
    e = replace(DROPOUT, optimizer=AdamW(lr=1e-2), ema_decay=DECAY, parallel=parallel, batch_size=128)
    if way == "fsdp":
        e = replace(e, model=replace(e.model, batch_norm=False))  # type: ignore[call-arg]
    e = on_workers(e, world)
    whole, cut = new_run(tmp_path / "whole", e), new_run(tmp_path / "cut", e)
    ranks.run(world, train_rank, e, whole)
    for call in (8, 4, 12):
        ranks.run(world, cut_between_steps_rank if way == "pipeline" else cut_rank, e, cut, call)
    ranks.run(world, train_rank, e, cut)
    assert rows(cut) == rows(whole) and weights(cut) == weights(whole)
    assert digest(trained(cut)) == digest(trained(whole)) != weights(whole)


def test_averages_go_from_ddp_to_fsdp_and_back(ranks: Ranks, tmp_path: Path) -> None:
    e = replace(E, model=MLP(hidden=(32, 32)), checkpoint=Checkpoint(every_steps=5), epochs=3)
    whole, moved = new_run(tmp_path / "whole", e), new_run(tmp_path / "moved", e)
    ranks.run(1, train_rank, e, whole)
    for way, call in (("shared", 13), ("fsdp", 15)):
        parallel, world = WAYS[way]
        ranks.run(world, cut_rank, on_workers(replace(e, parallel=parallel), world), moved, call)
    ranks.run(2, train_rank, on_workers(e, 2), moved)
    np.testing.assert_allclose(losses(moved), losses(whole), rtol=1e-4)
    expected = Run(whole).model("last").state_dict()
    for name, value in Run(moved).model("last").state_dict().items():
        torch.testing.assert_close(value, expected[name], rtol=1e-3, atol=1e-5)


def test_a_step_that_is_left_out_does_not_count(ranks: Ranks, tmp_path: Path) -> None:
    e = replace(E, task=Eventful(factor=float("nan")), on_nonfinite="skip", optimizer=SGD(lr=0.05))
    ranks.run(1, train_rank, e, run := new_run(tmp_path / "run", e))
    assert Run(run).summary["skipped_steps"] == 2
    assert load_optimizer(Run(run).checkpoint("last"))["ema"]["updates"] == Run(run).summary["steps"] - 2


class Renamed(nn.Module):
    """Calls its layer by another name in state dicts, as models do whose code has changed since their release."""

    def __init__(self, num_classes: int = 10):
        super().__init__()
        self.first, self.fc = nn.Linear(64, 16), nn.Linear(16, num_classes)
        self.register_state_dict_post_hook(self._written)
        self.register_load_state_dict_pre_hook(self._read)

    @staticmethod
    def _written(module: nn.Module, state: dict[str, torch.Tensor], prefix: str, metadata: object) -> None:
        for name in ("weight", "bias"):
            state[f"{prefix}head.{name}"] = state.pop(f"{prefix}fc.{name}")

    @staticmethod
    def _read(module: nn.Module, state: dict[str, torch.Tensor], prefix: str, *rest: object) -> None:
        for name in ("weight", "bias"):
            state[f"{prefix}fc.{name}"] = state.pop(f"{prefix}head.{name}")

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.fc(self.first(images.flatten(1)).relu())


@pytest.mark.parametrize("average", [{"ema_decay": DECAY}, {"ema_decay": None, "swa_start_epoch": 1}])
def test_a_model_may_rename_its_weights_in_state_dicts(
    ranks: Ranks, tmp_path: Path, average: dict[str, float | int]
) -> None:
    e = replace(E, model=TorchModel(Renamed), schedule=Constant(), **average)  # type: ignore[arg-type]
    whole, cut = new_run(tmp_path / "whole", e), new_run(tmp_path / "cut", e)
    for run, epochs in ((whole, 2), (cut, 1), (cut, 2)):
        ranks.run(1, train_rank, replace(e, epochs=epochs), run)
    np.testing.assert_array_equal(losses(cut), losses(whole))
    assert weights(cut) == weights(whole)
