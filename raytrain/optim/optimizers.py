"""Optimizers, declared as values."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from raytrain.config import Rule, above, at_least, check, within
from raytrain.optim import patterns

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Optimizer:
    """The base of all optimizers."""

    lr: float = 0.1
    """Learning rate before the schedule's factor."""
    weight_decay: float = 0.0
    """Weight decay: L2 in SGD and Adam, decoupled in AdamW."""
    decay_norms_and_biases: bool = True
    """Apply weight decay to parameters of one dimension too: biases, and the weights of normalisations."""
    backbone_lr_factor: float = 1.0
    """Factor on the learning rate of all layers but the last, for fine-tuning."""
    layer_decay: float = field(default=1.0, kw_only=True)
    """Factor on the learning rate from each block to the one below it; the last layer has the whole rate (Clark et al.,
    2020). A block is what parameters' names have in common up to the first number, such as blocks.3 or layer4."""
    lr_factors: tuple[tuple[str, float], ...] = field(default=(), kw_only=True)
    """Patterns of names and factors on the learning rate of parameters that match, such as `backbone.* 0.1`. The first
    pattern that matches counts; all kinds of factors multiply."""
    weight_decays: tuple[tuple[str, float], ...] = field(default=(), kw_only=True)
    """Patterns of names and the weight decay of parameters that match, such as `*.bias 0`; before all other settings of
    weight decay. The first pattern that matches counts."""

    def __post_init__(self) -> None:
        check(self, **self._rules())

    def _rules(self) -> dict[str, Rule]:
        return {
            "lr": above(0),
            "weight_decay": at_least(0),
            "backbone_lr_factor": above(0),
            "layer_decay": (lambda factor: 0 < factor <= 1, "above 0 and at most 1"),
            "lr_factors": (lambda pairs: all(0 < factor < math.inf for _, factor in pairs), "of factors above 0"),
            "weight_decays": (lambda pairs: all(0 <= decay < math.inf for _, decay in pairs), "of at least 0 each"),
        }

    def groups(self, module: torch.nn.Module) -> list[dict[str, Any]]:
        """Return the module's trained parameters in PyTorch's groups, each with the `factor` on its learning rate."""
        below_head = {id(parameter) for parameter in backbone(module)} if self.backbone_lr_factor != 1 else set()
        depth = {name: number for number, name in enumerate(blocks(module))} if self.layer_decay != 1 else {}
        found: dict[tuple[float, float | None], dict[str, Any]] = {}
        for name, parameter in module.named_parameters():
            if not parameter.requires_grad:
                continue
            factor = patterns.first(name, self.lr_factors, 1.0)
            factor *= self.backbone_lr_factor if id(parameter) in below_head else 1.0
            factor *= self.layer_decay ** (len(depth) - 1 - depth[patterns.block(name)]) if depth else 1.0
            undecayed = 0.0 if not self.decay_norms_and_biases and parameter.ndim <= 1 else None
            decay = patterns.first(name, self.weight_decays, undecayed)
            group = {"params": [], "factor": factor} | ({} if decay is None else {"weight_decay": decay})
            found.setdefault((factor, decay), group)["params"].append(parameter)
        return list(found.values())

    def build(self, parameters: Iterable[Any]) -> torch.optim.Optimizer:
        """Return PyTorch's optimizer over parameters, or over groups of them as `groups` returns them."""
        raise NotImplementedError(f"{type(self).__name__} needs a build(parameters)")


def backbone(module: torch.nn.Module) -> list[torch.nn.Parameter]:
    """Return the trained parameters of all layers but the last, the head."""
    named = [(name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad]
    head = named[-1][0].rpartition(".")[0] if named else ""
    return [parameter for name, parameter in named if name.rpartition(".")[0] != head]


def blocks(module: torch.nn.Module) -> list[str]:
    """Return the blocks of a module, in the order in which it defines them; the head's is the last."""
    return list(dict.fromkeys(patterns.block(name) for name, _ in module.named_parameters()))


@dataclass(frozen=True)
class SGD(Optimizer):
    """Stochastic gradient descent (torch.optim.SGD)."""

    momentum: float = 0.0
    """Momentum factor, in [0, 1)."""
    nesterov: bool = False
    """Nesterov's momentum; needs momentum above zero."""

    def __post_init__(self) -> None:
        check(
            self,
            **self._rules(),
            momentum=within(0, 1),
            nesterov=(lambda on: not on or self.momentum > 0, "of False, or momentum above 0"),
        )

    def build(self, parameters: Iterable[Any]) -> torch.optim.Optimizer:
        """Return torch.optim.SGD."""
        torch = torch_module()
        parameters = list(parameters)
        optimizer = torch.optim.SGD(
            parameters,
            lr=self.lr,
            momentum=self.momentum,
            nesterov=self.nesterov,
            weight_decay=self.weight_decay,
            **implementation(parameters, sharded_fused=False),
        )
        # The fused form fails if only some parameters have had a gradient before. After a first step that overflowed in
        # fp16, it reads uninitialised memory as momentum. With zeros the first step is the same.
        for parameter in _each(parameters) if self.momentum else ():
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        return optimizer


@dataclass(frozen=True)
class Adam(Optimizer):
    """Adam (Kingma and Ba, 2015; torch.optim.Adam)."""

    lr: float = 1e-3
    """Learning rate before the schedule's factor."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Decay rates of the two moments, each in [0, 1)."""
    eps: float = 1e-8
    """Added to the denominator."""
    _decoupled: ClassVar[bool] = False
    """Whether weight decay is decoupled from the gradient."""

    def __post_init__(self) -> None:
        check(
            self,
            **self._rules(),
            eps=above(0),
            betas=(lambda betas: all(0 <= beta < 1 for beta in betas), "with both in [0, 1)"),
        )

    def build(self, parameters: Iterable[Any]) -> torch.optim.Optimizer:
        """Return torch.optim.Adam or AdamW."""
        torch = torch_module()
        parameters, kind = list(parameters), torch.optim.AdamW if self._decoupled else torch.optim.Adam
        return kind(
            parameters,
            lr=self.lr,
            betas=self.betas,
            eps=self.eps,
            weight_decay=self.weight_decay,
            **implementation(parameters),
        )


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019; torch.optim.AdamW)."""

    weight_decay: float = 1e-2
    """Decoupled weight decay."""
    _decoupled: ClassVar[bool] = True
    """AdamW decouples it."""


def torch_module():
    """Return torch, imported late: `--help` needs the fields only."""
    import torch

    return torch


def _each(parameters: list[Any]) -> list[torch.nn.Parameter]:
    """Return all parameters, which may come in groups."""
    return [p for one in parameters for p in (one["params"] if isinstance(one, dict) else [one])]


def implementation(parameters: list[Any], sharded_fused: bool = True) -> dict[str, bool]:
    """Return how PyTorch's optimizer computes: fused, or one by one for a mixture of sharded and plain tensors. Complex
    numbers have no fused form: PyTorch decides."""
    found = _each(parameters)
    sharded = [hasattr(parameter, "device_mesh") for parameter in found]
    if any(sharded) and not all(sharded):
        return {"fused": False, "foreach": False}
    return {} if any(one.is_complex() for one in found) else {"fused": sharded_fused or not any(sharded)}
