"""The blocks of a model, and the units whose weights FSDP gathers together."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.ranks import Ranks, losses, new_run, on_workers, reference, train_rank
from helpers.strategies import BASE, VisionTransformer
from torch import nn
from torchvision import models

from raytrain import FSDP, Model, Run
from raytrain.parallel.blocks import blocks, units


def made(name: str) -> nn.Module:
    with torch.device("meta"):
        return models.get_model(name)


def names(module: nn.Module, least: int) -> list[str]:
    """The names of units, without the model itself, which is the last."""
    of = {id(part): name for name, part in module.named_modules()}
    found = [of[id(part)] for part, _ in units(module, least)]
    assert found[-1] == "" and len(found) == len(set(found))
    return found[:-1]


def test_encoder_blocks_of_a_vit_are_units() -> None:
    vit = made("vit_b_16")
    encoder = [f"encoder.layers.encoder_layer_{number}" for number in range(12)]
    assert names(vit, 100_000) == ["conv_proj", *encoder, "encoder", "heads.head"]
    parameters = {unit: sum(p.numel() for p in held) for unit, held in units(vit, 100_000)}
    rest, around = 768, 197 * 768 + 2 * 768  # the class token; the positions and the last norm
    assert parameters[vit] == rest and parameters[vit.encoder] == around + rest  # type: ignore[index]
    block = 4 * 768 * 768 + 4 * 768 + 2 * 768 * 3072 + 3072 + 768 + 4 * 768
    assert parameters[vit.encoder.layers[0]] == block + around + rest  # type: ignore[union-attr, index]
    assert max(parameters.values()) < sum(p.numel() for p in vit.parameters()) / 10


def test_stages_of_a_resnet_are_split_into_their_blocks() -> None:
    assert names(made("resnet18"), 100_000) == [
        *(f"layer{stage}.{block}" for stage in (2, 3, 4) for block in (0, 1)),
        "fc",
    ]
    assert names(made("resnet50"), 50_000)[:4] == ["layer1.0", "layer1.1", "layer1.2", "layer2.0"]


@pytest.mark.parametrize(
    ("name", "share"),
    [("swin_t", 0.26), ("convnext_tiny", 0.18), ("efficientnet_b0", 0.31), ("densenet121", 0.38), ("vgg11", 0.78)],
)
def test_no_more_than_a_block_is_whole(name: str, share: float) -> None:
    """The largest layer of VGG alone has three quarters of its parameters."""
    module = made(name)
    every = sum(p.numel() for p in module.parameters())
    found = units(module, 100_000)
    assert max(sum(p.numel() for p in held) for _, held in found) <= share * every
    own = {id(p) for _, held in found for p in held}
    assert own == {id(p) for p in module.parameters()}


class Stage(nn.Module):
    """As timm's ConvNeXt has them: no container, and with blocks in one."""

    def __init__(self, count: int):
        super().__init__()
        self.down = nn.Linear(8, 8)
        self.blocks = nn.Sequential(*(Residual() for _ in range(count)))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return self.blocks(self.down(values))


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values + self.layers(values)


def test_stages_that_are_no_containers_are_taken_apart() -> None:
    module = nn.Sequential(Stage(3), Stage(2), nn.Linear(8, 8))
    assert [type(block) for block in blocks(module)] == [Residual] * 5
    inside = [f"{stage}.blocks.{block}" for stage, count in ((0, 3), (1, 2)) for block in range(count)]
    assert names(module, 100) == inside
    assert names(module, 70) == ["0.down", *inside[:3], "1.down", *inside[3:], "2"]


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle = nn.Linear(64, 64), nn.Linear(64, 64)
        self.again = nn.ModuleList([nn.Linear(64, 64), nn.Linear(64, 10)])
        self.again[0].weight = self.first.weight

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.again[1](self.again[0](self.middle(self.first(images.flatten(1)).relu()).relu()).relu())


@dataclass(frozen=True)
class TiedModel(Model):
    def build(self, sample: tuple[int, int, int], classes: int) -> nn.Module:
        return Tied()


@dataclass(frozen=True)
class GroupNormed(Model):
    """A ResNet without BatchNorm, which would normalise each rank's samples by themselves."""

    def build(self, sample: tuple[int, int, int], classes: int) -> nn.Module:
        from torchvision.models.resnet import BasicBlock, ResNet

        module = ResNet(BasicBlock, [1, 1, 1, 1], classes, norm_layer=lambda channels: nn.GroupNorm(8, channels))
        module.conv1 = nn.Conv2d(sample[0], 64, 3, padding=1, bias=False)
        module.layer4, module.fc = nn.Sequential(), nn.Linear(256, classes)
        return module


def test_parts_that_share_weights_stay_together() -> None:
    assert names(Tied(), 500) == ["middle", "again.1"]


@pytest.mark.parametrize(
    ("model", "least"),
    [(TiedModel(), 500), (VisionTransformer(), 5_000), (GroupNormed(), 100_000)],
    ids=["tied", "vit", "resnet"],
)
def test_losses_and_weights_equal_a_plain_pytorch_loop(ranks: Ranks, tmp_path: Path, model: Model, least: int) -> None:
    steps = 4
    e = replace(BASE, model=model, parallel=FSDP(block_parameters=least), micro_batch_size=None)
    e = replace(e, epochs=100, steps=steps, memory_format="contiguous")
    run = new_run(tmp_path / "run", on_workers(e, 2))
    assert ranks.run(2, train_rank, on_workers(e, 2), run) == ["completed"] * 2
    expected, plain = reference(e, steps)
    np.testing.assert_allclose(losses(run), expected, rtol=1e-5)
    weights = Run(run).model("last").state_dict()
    for name, value in plain.state_dict().items():
        assert (weights[name] - value).norm() <= 1e-5 * value.norm()
