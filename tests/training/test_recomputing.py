"""activation_checkpointing: blocks are computed again in the backward pass, with the same bits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.ranks import Ranks, losses, new_run, on_workers, train_rank
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from raytrain import (
    CNN,
    DDP,
    FSDP,
    SGD,
    Digits,
    Experiment,
    Model,
    ModelParallel,
    Parallel,
    Pipeline,
    Run,
    Torchvision,
    UserError,
)
from raytrain.training.recomputing import blocks, check, recompute


class Counted(TorchDispatchMode):
    """Counts operations by their names."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[str, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls[str(func)] = self.calls.get(str(func), 0) + 1
        return func(*args, **(kwargs or {}))


class Block(nn.Module):
    """A residual block with what makes a repetition differ: dropout, and statistics that each pass changes."""

    def __init__(self, width: int):
        super().__init__()
        self.layer, self.norm, self.drop = nn.Linear(width, width), nn.BatchNorm1d(width), nn.Dropout(0.3)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values + self.drop(self.norm(self.layer(values)).relu())


@dataclass(frozen=True)
class Residual(Model):
    def build(self, sample: tuple[int, int, int], classes: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Sequential(*(Block(64) for _ in range(4))), nn.Linear(64, classes))


BASE = Experiment(
    model=Residual(), data=Digits(), optimizer=SGD(lr=0.05, momentum=0.9), batch_size=64, micro_batch_size=16, steps=12
)


@pytest.mark.parametrize("setting", ["block", "3", "selective"])
def test_gradients_and_statistics_have_the_same_bits_and_less_is_kept(setting: str) -> None:
    found, kept = [], []
    for given in ("none", setting):
        torch.manual_seed(0)
        module = Residual().build((1, 8, 8), 10)
        names = list(module.state_dict())
        assert recompute(module, given) == {"none": 0, "block": 4, "3": 2, "selective": 4}[given]
        assert list(module.state_dict()) == names
        sizes: list[int] = []
        images = torch.randn(16, 1, 8, 8)

        def pack(tensor: torch.Tensor, sizes: list[int] = sizes) -> torch.Tensor:
            sizes.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            loss = module(images).square().mean()
        kept.append(sum(sizes))
        loss.backward()
        found.append([loss.detach(), *(p.grad for p in module.parameters()), *module.buffers()])
        module.eval()
        with torch.no_grad():
            found[-1].append(module(images))
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
    assert kept[1] < kept[0]


class InPlace(nn.Module):
    """A convolution whose output is changed in place, twice, and attention with dropout, before another one."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.attend = nn.Conv2d(4, 4, 3, padding=1), nn.MultiheadAttention(16, 2, dropout=0.2)
        self.drop = nn.Dropout(0.3)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        found = self.layer(values)
        found[:, 0].mul_(2.0)  # of a view
        found += values
        rows = found.reshape(16, 16, 16)
        return self.drop(torch.relu_(self.attend(rows, rows, rows, need_weights=False)[0].reshape(found.shape)))


def test_selective_computes_nothing_costly_again_and_stands_changes_in_place() -> None:
    found, counts = [], []
    for setting in ("none", "block", "selective"):
        torch.manual_seed(0)
        module = nn.Sequential(nn.Sequential(InPlace(), InPlace()))
        recompute(module, setting)
        images = torch.randn(16, 4, 8, 8, requires_grad=True)
        with Counted() as counted:
            module(images).square().mean().backward()
        found.append([images.grad, *(p.grad for p in module.parameters()), torch.rand(1)])
        counts.append([counted.calls.get(name, 0) for name in ("aten.convolution.default", "aten.addmm.default")])
    for other in found[1:]:
        assert all(torch.equal(one, two) for one, two in zip(found[0], other, strict=True))
    plain, block, selective = counts
    assert selective == plain and block[0] == 2 * plain[0]


@pytest.mark.parametrize("trained", [True, False])
def test_a_block_that_changes_its_input_in_place_is_named(trained: bool) -> None:
    block = nn.Sequential(nn.ReLU(inplace=True), nn.Conv2d(4, 4, 3))  # which then has no input to begin with again
    module = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Sequential(block), nn.Flatten(), nn.Linear(64, 2))
    recompute(module, "block")
    for part in module[:2]:
        part.requires_grad_(trained)
    if not trained:
        module(torch.randn(2, 1, 8, 8)).sum().backward()
        return
    with pytest.raises(UserError, match=r"Sequential changes its input in place, .* write inplace=False"):
        module(torch.randn(2, 1, 8, 8))


@pytest.mark.parametrize(
    ("parallel", "world"),
    [(DDP(), 1), (DDP(reduction="torch"), 2), (FSDP(block_parameters=500), 2), (ModelParallel(), 1)],
    ids=["alone", "ddp", "fsdp", "model parallel"],
)
def test_losses_and_weights_are_the_same(ranks: Ranks, tmp_path: Path, parallel: Parallel, world: int) -> None:
    runs = []
    for setting in ("none", "block", "selective"):
        e = on_workers(replace(BASE, parallel=parallel, activation_checkpointing=setting), world)
        runs.append(new_run(tmp_path / setting, e))
        assert ranks.run(world, train_rank, e, runs[-1]) == ["completed"] * world
    plain, *recomputed = (Run(run).model("last").state_dict() for run in runs)
    for run, weights in zip(runs[1:], recomputed, strict=True):
        assert (losses(runs[0]) == losses(run)).all()
        assert all(torch.equal(value, weights[name]) for name, value in plain.items())


def test_blocks_of_known_models_are_found() -> None:
    resnet = Torchvision("resnet18").build((3, 64, 64), 10)
    assert [type(block).__name__ for block in blocks(resnet)] == ["BasicBlock"] * 8
    with torch.device("meta"):
        vit = Torchvision("vit_b_16").build((3, 224, 224), 10)
    assert [type(block).__name__ for block in blocks(vit)] == ["EncoderBlock"] * 12
    assert check("selective", resnet)[0].endswith("but for the outputs of products, convolutions and attention")
    assert check("2", resnet) == ["activations of 4 of 8 blocks are computed again in the backward pass"]


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(UserError, match=r"Sequential has no blocks.*in activation_checkpointing"):
        check("block", CNN().build((1, 8, 8), 10))
    with pytest.raises(UserError, match="activation_checkpointing = 'blocks' is out of range"):
        replace(BASE, activation_checkpointing="blocks")
    with pytest.raises(UserError, match="does not work with compile, in activation_checkpointing"):
        replace(BASE, activation_checkpointing="block", compile=True)
    with pytest.raises(UserError, match="does not work with Pipeline"):
        on_workers(replace(BASE, activation_checkpointing="2", parallel=Pipeline()), 2)
