"""Optimizers, declared as values."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from raytrain.config import Rule, above, at_least, check, within

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

    def __post_init__(self) -> None:
        check(self, **self._rules())

    def _rules(self) -> dict[str, Rule]:
        return {"lr": above(0), "weight_decay": at_least(0), "backbone_lr_factor": above(0)}

    def groups(self, module: torch.nn.Module) -> list[dict[str, Any]]:
        """Return the module's trained parameters in PyTorch's groups, each with the `factor` on its learning rate."""
        below_head = {id(parameter) for parameter in backbone(module)} if self.backbone_lr_factor != 1 else set()
        found: dict[tuple[bool, bool], dict[str, Any]] = {}
        for parameter in (parameter for parameter in module.parameters() if parameter.requires_grad):
            slower = id(parameter) in below_head
            undecayed = not self.decay_norms_and_biases and parameter.ndim <= 1
            group = {"params": [], "factor": self.backbone_lr_factor if slower else 1.0}
            group |= {"weight_decay": 0.0} if undecayed else {}
            found.setdefault((slower, undecayed), group)["params"].append(parameter)
        return list(found.values())

    def build(self, parameters: Iterable[Any]) -> torch.optim.Optimizer:
        """Return PyTorch's optimizer over parameters, or over groups of them as `groups` returns them."""
        raise NotImplementedError(f"{type(self).__name__} needs a build(parameters)")


def backbone(module: torch.nn.Module) -> list[torch.nn.Parameter]:
    """Return the trained parameters of all layers but the last, the head."""
    named = [(name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad]
    head = named[-1][0].rpartition(".")[0] if named else ""
    return [parameter for name, parameter in named if name.rpartition(".")[0] != head]


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
    """Return how PyTorch's optimizer computes: fused, or one by one for a mixture of sharded and plain tensors."""
    sharded = [hasattr(parameter, "device_mesh") for parameter in _each(parameters)]
    if any(sharded) and not all(sharded):
        return {"fused": False, "foreach": False}
    return {"fused": sharded_fused or not any(sharded)}
