"""Parameter groups: learning rates and weight decays by name and by depth."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from raytrain import CNN, SGD, AdamW, Optimizer, Torchvision, UserError
from raytrain.optim import patterns
from raytrain.optim.optimizers import blocks


def net() -> nn.Module:
    """Linear layers with a norm, in float64: 0, 1 (norm), 2 and 3."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.Linear(5, 4), nn.Linear(4, 3)).double()


def three_steps(module: nn.Module, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    torch.manual_seed(1)
    for _ in range(3):
        optimizer.zero_grad()
        module(torch.randn(4, 6, dtype=torch.float64)).square().sum().backward()
        optimizer.step()
    return [parameter.detach() for parameter in module.parameters()]


CASES: list[tuple[Optimizer, dict[str, tuple[float, float]]]] = [
    (
        SGD(lr=0.1, momentum=0.9, weight_decay=0.2, layer_decay=0.5),
        {"0": (0.0125, 0.2), "1": (0.025, 0.2), "2": (0.05, 0.2), "3": (0.1, 0.2)},
    ),
    (
        AdamW(lr=0.02, weight_decay=0.3, lr_factors=(("2.weight", 0.5), ("[12].*", 3.0))),
        {"0": (0.02, 0.3), "1": (0.06, 0.3), "2.weight": (0.01, 0.3), "2.bias": (0.06, 0.3), "3": (0.02, 0.3)},
    ),
    (
        AdamW(lr=0.02, weight_decay=0.3, weight_decays=(("*.bias", 0.0), ("3.*", 0.7))),
        {"0.weight": (0.02, 0.3), "1.weight": (0.02, 0.3), "2.weight": (0.02, 0.3), "3.weight": (0.02, 0.7)}
        | {f"{n}.bias": (0.02, 0.0) for n in range(4)},
    ),
    (  # all at once: factors multiply, and a pattern of weight decay comes before decay_norms_and_biases
        SGD(
            lr=0.1,
            weight_decay=0.2,
            decay_norms_and_biases=False,
            backbone_lr_factor=0.1,
            layer_decay=0.5,
            lr_factors=(("0.*", 4.0),),
            weight_decays=(("1.weight", 0.5),),
        ),
        {"0.weight": (0.1 * 4 * 0.1 * 0.125, 0.2), "0.bias": (0.1 * 4 * 0.1 * 0.125, 0.0)}
        | {"1.weight": (0.1 * 0.1 * 0.25, 0.5), "1.bias": (0.1 * 0.1 * 0.25, 0.0)}
        | {"2.weight": (0.1 * 0.1 * 0.5, 0.2), "2.bias": (0.1 * 0.1 * 0.5, 0.0)}
        | {"3.weight": (0.1, 0.2), "3.bias": (0.1, 0.0)},
    ),
]


@pytest.mark.parametrize(("declared", "by_hand"), CASES, ids=["depth", "factors", "decays", "all"])
def test_groups_train_as_a_hand_written_optimizer(declared: Optimizer, by_hand: dict[str, tuple[float, float]]) -> None:
    ours, theirs = net(), net()
    optimizer = declared.build(declared.groups(ours))
    for group in optimizer.param_groups:  # as the trainer does at each step
        group["lr"] = declared.lr * group["factor"]
    each: list[dict[str, Any]] = []
    for name, parameter in theirs.named_parameters():
        lr, decay = by_hand.get(name) or by_hand[name[0]]
        each.append({"params": [parameter], "lr": lr, "weight_decay": decay})
    own = torch.optim.AdamW(each) if isinstance(declared, AdamW) else torch.optim.SGD(each, momentum=declared.momentum)  # type: ignore[attr-defined]
    for a, b in zip(three_steps(ours, optimizer), three_steps(theirs, own), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-9)
    assert len(optimizer.param_groups) == len({*by_hand.values()}), "as few groups as can be"


def test_blocks_are_numbered_layers() -> None:
    with torch.device("meta"):
        resnet = Torchvision("resnet18").build((3, 224, 224), 10)
        vit = Torchvision("vit_b_16").build((3, 224, 224), 10)
    assert blocks(resnet) == ["conv1", "bn1", "layer1", "layer2", "layer3", "layer4", "fc"]
    layers = [f"encoder.layers.encoder_layer_{n}" for n in range(12)]
    assert blocks(vit) == ["", "conv_proj", "encoder", *layers, "encoder.ln", "heads.head"]
    assert patterns.block("rnn.weight_ih_l0") == "rnn" and patterns.block("net._orig_mod.blocks.3.w") == "net.blocks.3"
    vit.get_parameter("conv_proj.weight").requires_grad_(False)
    groups = AdamW(layer_decay=0.75).groups(vit)
    assert [group["factor"] for group in groups] == [0.75**n for n in range(16, -1, -1)], "frozen blocks count too"
    assert sum(len(group["params"]) for group in groups) == len([*vit.parameters()]) - 1


def test_unset_fields_leave_one_group() -> None:
    module = CNN(batch_norm=True).build((1, 8, 8), 10)
    (group,) = SGD().groups(module)
    assert group == {"params": [*module.parameters()], "factor": 1.0}


@pytest.mark.parametrize(
    "wrong",
    [
        *({"layer_decay": 0.0}, {"layer_decay": 1.5}, {"lr_factors": (("a", 0.0),)}, {"lr_factors": ("a", 0.1)}),
        *({"weight_decays": (("a", -1.0),)}, {"lr_factors": (("a", float("nan")),)}, {"weight_decays": (("a",),)}),
    ],
)
def test_impossible_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=next(iter(wrong))):
        SGD(**wrong)


def test_a_pattern_without_a_match_names_the_nearest() -> None:
    names = [name for name, _ in Torchvision().build((3, 64, 64), 2).named_parameters()]
    for wrong, meant in (("layer44.*", "layer4.*"), ("fc.wieght", "fc.weight"), ("bn.1.weight", "bn1.weight")):
        with pytest.raises(
            UserError, match=rf"'{wrong}' matches no parameter of the model, in f; did you mean {meant}"
        ):
            patterns.check([wrong], names, "f")
    with pytest.raises(UserError, match="the names begin with conv1, bn1, layer1"):
        patterns.check(["zzzzzzz"], names, "f")
    patterns.check(["layer?.*", "*.bias"], names, "f")
