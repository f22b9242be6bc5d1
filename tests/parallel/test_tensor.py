"""Tensor parallelism of attention and convolutions: every rank computes with its shards what the whole layers do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.ranks import Ranks, losses, new_run, on_workers, reference, train_rank
from helpers.strategies import BASE, VisionTransformer
from safetensors.torch import load_file
from torch import nn

from raytrain import DDP, SGD, Constant, Model, Run, TensorParallel
from raytrain.parallel.strategy import RankContext
from raytrain.tools.export import export

CPU = torch.device("cpu")


class Masked(nn.Module):
    """Attention in each way in which torch's layer may be called."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.MultiheadAttention(16, 4, batch_first=True)
        self.two = nn.MultiheadAttention(16, 4, bias=False)
        for one in (self.one, self.two):
            assert one.out_proj.bias is None or nn.init.normal_(one.out_proj.bias) is not None
        nn.init.normal_(self.one.in_proj_bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        causal = torch.ones(5, 5, dtype=torch.bool).triu(1)
        padding = -3.0 * torch.tensor([[0, 0, 0, 0, 1], [0, 0, 0, 0, 0], [1, 0, 0, 0, 0]])
        late = torch.tensor([[False] * 4 + [True]] * 3)
        each = torch.linspace(-1, 1, 12 * 25).view(12, 5, 5)
        a, none = self.one(x, x, x, need_weights=False)
        assert none is None
        b, weights = self.one(a, x, x.flip(1), attn_mask=causal)
        c, every = self.one(b, b, b, attn_mask=each, average_attn_weights=False)
        d, _ = self.one(c, c, c, key_padding_mask=padding, attn_mask=each[0], need_weights=False)
        d, _ = self.one(d, d, d, key_padding_mask=late, attn_mask=causal, need_weights=False)
        e, _ = self.two(*[d.transpose(0, 1)] * 3, attn_mask=causal, is_causal=True, need_weights=False)
        f, alone = self.two(e[:, 0], e[:, 1], e[:, 1])
        return torch.cat([e.flatten(), f.flatten(), weights.flatten(), every.flatten(), alone.flatten()]).view(1, -1)


def vit() -> nn.Module:
    from torchvision.models import VisionTransformer

    return VisionTransformer(16, 8, 2, 4, 32, 64, num_classes=10)


def resnet(kind: str) -> nn.Module:
    from torchvision.models import resnet

    blocks = {"basic": resnet.BasicBlock, "bottleneck": resnet.Bottleneck}
    return resnet.ResNet(blocks[kind], [1, 1, 1, 1], 10, width_per_group=64 if kind == "basic" else 16)


class Convolutions(nn.Module):
    """Convolutions with biases, pooling and a function between them, of which one is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, bias=True), nn.Conv2d(8, 8, 3, padding=1, padding_mode="circular")
        self.pool, self.third, self.head = nn.MaxPool2d(2), nn.Conv2d(8, 8, 1), nn.Linear(8, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        found = self.second(self.pool(torch.relu(self.first(images))))
        return self.head(self.third(self.third(found)).mean((2, 3)))


def timm_vit() -> nn.Module:
    from timm.models import VisionTransformer

    return VisionTransformer(16, 8, num_classes=10, embed_dim=32, depth=2, num_heads=4, qk_norm=True)


SHARED = TensorParallel(pair_parameters=0)
IMAGES = (4, 3, 16, 16)
MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "torch": (Masked, (3, 5, 16)),
    "vit": (vit, IMAGES),
    "timm": (timm_vit, IMAGES),
    "basic": (lambda: resnet("basic"), (4, 3, 32, 32)),
    "bottleneck": (lambda: resnet("bottleneck"), (4, 3, 32, 32)),
    "convolutions": (Convolutions, IMAGES),
}


def passes(module: nn.Module, of: str) -> torch.Tensor:
    """Train a step, of two passes, without an optimizer, and evaluate: return the outputs."""
    torch.manual_seed(1)
    with float64():
        inputs = torch.randn(2, *MODELS[of][1])
        found = [module.train()(one) for one in inputs]
        for output in found:
            (output.square().sum() / 10).backward()
        with torch.no_grad():
            return torch.cat([*found, module.eval()(inputs[0])]).detach()


def build(of: str) -> nn.Module:
    torch.manual_seed(3)
    with float64():
        return MODELS[of][0]().to(memory_format=torch.channels_last)  # type: ignore[call-overload]


@contextmanager
def float64() -> Iterator[None]:
    """The context in which rounding hides no mistake."""
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


def cut_rank(rank: int, world: int, of: str) -> tuple[torch.Tensor, dict[str, Any], dict[str, Any], float, int]:
    """A rank's outputs, whole gradients and state, the norm, and how many values of parameters the rank holds."""
    here = RankContext(rank, world, CPU)
    strategy = SHARED.setup(lambda: build(of), here, (1, 1))
    module = strategy.module
    outputs = passes(module, of)
    named = dict(module.named_parameters())
    gradients = {name: strategy.unshard(one.grad).clone() for name, one in named.items() if one.grad is not None}
    norm = strategy.norm([one.grad for one in named.values() if one.grad is not None])
    state = {name: strategy.unshard(tensor.detach()).clone() for name, tensor in module.state_dict().items()}
    held = sum(getattr(one, "_local_tensor", one).numel() for one in named.values())
    return outputs, gradients, state, float(norm), held


@pytest.mark.parametrize("of", [pytest.param(of, marks=[pytest.mark.slow] * (of == "bottleneck")) for of in MODELS])
@pytest.mark.parametrize("world", [2, 4])
def test_gradients_equal_those_of_the_whole_model(ranks: Ranks, of: str, world: int) -> None:
    if of == "timm":
        pytest.importorskip("timm", reason="timm is an extra")
    torch.set_num_threads(1)
    plain = build(of)
    expected = passes(plain, of)
    gradients = {name: one.grad for name, one in plain.named_parameters()}
    norm = nn.utils.get_total_norm([one for one in gradients.values() if one is not None])
    for outputs, found, state, total, held in ranks.run(world, cut_rank, of):
        torch.testing.assert_close(outputs, expected, rtol=0, atol=1e-10)
        assert found.keys() == gradients.keys()
        for name, gradient in gradients.items():
            assert gradient is not None and (found[name] - gradient).norm() <= 1e-10 * norm, name
        for name, tensor in plain.state_dict().items():
            torch.testing.assert_close(state[name], tensor, rtol=1e-10, atol=1e-10)
        assert total == pytest.approx(norm.item(), rel=1e-10)
        assert held == pytest.approx(SHARED.share(plain, world) * sum(one.numel() for one in plain.parameters()))


@dataclass(frozen=True)
class Blocks(Model):
    """Residual blocks of a ResNet."""

    def build(self, sample: tuple[int, int, int], classes: int) -> nn.Module:
        from torchvision.models.resnet import BasicBlock

        return nn.Sequential(
            nn.Conv2d(sample[0], 16, 3),
            BasicBlock(16, 16),
            BasicBlock(16, 16),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Linear(64, classes),
        )


@pytest.mark.parametrize("model", [VisionTransformer(), Blocks()], ids=["vit", "resnet"])
def test_a_run_goes_on_with_other_shards_and_without_any(ranks: Ranks, tmp_path: Path, model: Model) -> None:
    e = replace(BASE, model=model, micro_batch_size=None, schedule=Constant(), validate_every_steps=2)
    e = replace(e, optimizer=SGD(lr=0.01, momentum=0.9), seed=1)
    e = replace(e, memory_format="contiguous") if isinstance(model, VisionTransformer) else e
    run = new_run(tmp_path / "run", e)
    for steps, parallel, world in ((2, SHARED, 2), (4, SHARED, 4), (6, DDP(), 1), (8, SHARED, 2)):
        parts = on_workers(replace(e, parallel=parallel, steps=steps), world)
        assert ranks.run(world, train_rank, parts, run) == ["completed"] * world
    expected, plain = reference(e, 8)
    np.testing.assert_allclose(losses(run), expected, rtol=1e-5)
    export(Run(run), tmp_path / "model.safetensors", "last")
    weights = load_file(tmp_path / "model.safetensors")
    assert weights.keys() == plain.state_dict().keys()
    for name, value in plain.state_dict().items():
        assert (weights[name] - value).double().norm() <= 1e-5 * max(value.double().norm(), 1), name
