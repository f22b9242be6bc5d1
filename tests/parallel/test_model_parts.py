"""Models that get their memory part by part: the same initial bits, in files or without values until then."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from helpers.ranks import Ranks
from torch import nn

from raytrain.checkpoint import checkpoints, mapped
from raytrain.parallel.materialise import Parts, in_file, lay_out
from raytrain.parallel.strategy import RankContext

CPU = torch.device("cpu")


class Odd(nn.Module):
    """A model whose constructor does what only some models do: values drawn again and changed in place, tied weights,
    buffers that checkpoints do not hold, numbers read from tensors, an attribute of a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.rates = [float(rate) for rate in torch.linspace(0, 0.5, 3)]
        self.embedding = nn.Embedding(300, 512, padding_idx=0)
        self.first = nn.Linear(512, 512)
        self.last = nn.Linear(512, 300)
        self.last.weight = self.embedding.weight
        self.free = nn.Parameter(torch.randn(512, 512) @ torch.randn(512, 512))
        self.drawn = nn.Parameter(torch.randn(512, 300))
        self.ones = nn.Parameter(torch.ones(512, 300), requires_grad=False)
        self.register_buffer("table", torch.arange(200_000.0).view(400, 500).sin(), persistent=False)
        self.norm = nn.BatchNorm1d(512)
        self.convolution = nn.Conv2d(64, 128, 3)
        nn.init.trunc_normal_(self.first.weight, std=0.02)
        nn.init.orthogonal_(self.last.bias[None])
        with torch.no_grad():
            self.first.weight.mul_(torch.linspace(0.5, 1, 512))
        self.free._no_weight_decay = True  # type: ignore[attr-defined]


class Measuring(nn.Module):
    """A model that reads a large tensor while it is built, which is impossible without values."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(512, 512)
        self.scale = self.layer.weight.abs().max().item()


def build(kind: type[nn.Module]) -> nn.Module:
    torch.manual_seed(3)
    return kind()


def same(one: nn.Module, other: nn.Module) -> bool:
    found, expected = ([*m.named_parameters(), *m.named_buffers()] for m in (one, other))
    return [name for name, _ in found] == [name for name, _ in expected] and all(
        torch.equal(a, b) and a.requires_grad == b.requires_grad for (_, a), (_, b) in zip(found, expected, strict=True)
    )


def filled_rank(rank: int, world: int, kind: type[nn.Module], folder: Path) -> tuple[bool, int]:
    """Whether a rank's filled model has the bits of the plain one, and how many of its tensors had no values before."""
    parts = Parts(lambda: build(kind), RankContext(rank, world, CPU, folder=folder))
    without = sum(tensor.is_meta for tensor in (*parts.module.parameters(), *parts.module.buffers()))
    held = dict(parts.module.named_parameters())
    for child in parts.module.children():
        parts.fill(child, CPU)
    parts.fill(parts.module, CPU)
    plain = build(kind)
    assert all(held[name] is parameter for name, parameter in parts.module.named_parameters())
    if kind is Odd:
        module = parts.module
        assert module.last.weight is module.embedding.weight  # type: ignore[union-attr]
        assert module.free._no_weight_decay  # type: ignore[union-attr]
    return same(parts.module, plain), without


@pytest.mark.parametrize(("kind", "without"), [(Odd, 6), (Measuring, 0)])
def test_every_rank_gets_the_bits_of_the_plain_model(
    ranks: Ranks, tmp_path: Path, kind: type[nn.Module], without: int
) -> None:
    (first, held), (second, lacked) = ranks.run(2, filled_rank, kind, tmp_path)
    assert first and held == 0
    assert second and lacked == without
    assert not list(tmp_path.iterdir()), "the files have no names"


def test_tensors_in_files_hold_what_they_are_given(tmp_path: Path) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.bool):
        given = torch.randn(700, 700).to(dtype)
        found = in_file(given.shape, given.dtype, tmp_path).copy_(given)
        assert torch.equal(found, given)
        assert f"{tmp_path}/.tensor-" in Path("/proc/self/maps").read_text(), "it lies in a file"
        del found
        assert f"{tmp_path}/.tensor-" not in Path("/proc/self/maps").read_text()
    assert in_file((2, 3), torch.float32, tmp_path / "gone").shape == (2, 3)
    assert in_file((700, 700), torch.float32, tmp_path / "gone").shape == (700, 700), "in memory, where no file can be"


@pytest.mark.parametrize("shape", [(8, 1, 3, 3), (8, 4, 1, 1), (80, 40, 5, 5)])
def test_layouts_are_those_of_module_to(tmp_path: Path, shape: tuple[int, ...]) -> None:
    plain, own, empty = nn.Module(), nn.Module(), nn.Module()
    plain.weight = nn.Parameter(torch.randn(shape))
    own.weight = nn.Parameter(plain.weight.detach().clone())
    empty.weight = nn.Parameter(torch.empty(shape, device="meta"))
    plain.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    for module in (own, empty):
        lay_out(module, torch.channels_last, tmp_path)
        assert [p.stride() for p in module.parameters()] == [p.stride() for p in plain.parameters()]
    assert torch.equal(own.weight, plain.weight)


def test_mapped_checkpoint_is_what_was_saved(tmp_path: Path) -> None:
    model = {
        "large": torch.randn(300, 200),
        "half": torch.randn(400, 300).bfloat16(),
        "count": torch.tensor(3),
        "none": torch.empty(0, 4),
    }
    moments = {"exp_avg": torch.randn(200, 300).t(), "step": torch.tensor(5.0)}
    block = torch.randn(60_001)
    shared = {"exp_avg": block[1:], "step": block[0]}  # as a checkpoint of a GPU has them
    optimizer = {"optimizer": {"state": {0: moments, 1: shared}, "param_groups": [{"lr": 0.1, "betas": (0.9, 0.99)}]}}
    path = checkpoints.save(tmp_path, 1, model, optimizer, {})
    whole, found = checkpoints.load(path), checkpoints.load(path, None)
    for name, tensor in model.items():
        assert found.model[name].dtype == tensor.dtype and torch.equal(found.model[name], tensor)
    assert found.model.keys() == whole.model.keys()
    loaded = found.optimizer["optimizer"]
    assert loaded["param_groups"] == whole.optimizer["optimizer"]["param_groups"]
    for number, values in enumerate((moments, shared)):
        for name, tensor in values.items():
            assert torch.equal(loaded["state"][number][name], tensor)
        loaded["state"][number]["step"] += 1  # small tensors are copies, since optimizers change them in place
    sent = mapped.from_arrays(mapped.arrays(model))
    assert all(torch.equal(sent[name], tensor) and sent[name].dtype == tensor.dtype for name, tensor in model.items())
