"""Optimizers and learning-rate schedules, declared as values."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

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
        """The module's trained parameters in PyTorch's groups; `factor` is each one's on the learning rate."""
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
        """Returns PyTorch's optimizer over the given parameters, or groups of them as `groups` makes them."""
        raise NotImplementedError(f"{type(self).__name__} needs a build(parameters)")


def backbone(module: torch.nn.Module) -> list[torch.nn.Parameter]:
    """The trained parameters of all layers but the last, which is the head."""
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
        """torch.optim.SGD."""
        import torch

        parameters = list(parameters)
        optimizer = torch.optim.SGD(
            parameters,
            lr=self.lr,
            momentum=self.momentum,
            nesterov=self.nesterov,
            weight_decay=self.weight_decay,
            **_implementation(parameters, sharded_fused=False),
        )
        # The fused form fails where some parameters have had a gradient before and others have not, and takes memory as
        # it finds it for the momentum after a first step that overflowed in fp16. From zero the first step is the same.
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

    def __post_init__(self) -> None:
        check(
            self,
            **self._rules(),
            eps=above(0),
            betas=(lambda betas: all(0 <= beta < 1 for beta in betas), "with both in [0, 1)"),
        )

    def build(self, parameters: Iterable[Any]) -> torch.optim.Optimizer:
        """torch.optim.Adam."""
        import torch

        parameters = list(parameters)
        return torch.optim.Adam(
            parameters,
            lr=self.lr,
            betas=self.betas,
            eps=self.eps,
            weight_decay=self.weight_decay,
            **_implementation(parameters),
        )


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019; torch.optim.AdamW)."""

    weight_decay: float = 1e-2
    """Decoupled weight decay."""

    def build(self, parameters: Iterable[Any]) -> torch.optim.Optimizer:
        """torch.optim.AdamW."""
        import torch

        parameters = list(parameters)
        return torch.optim.AdamW(
            parameters,
            lr=self.lr,
            betas=self.betas,
            eps=self.eps,
            weight_decay=self.weight_decay,
            **_implementation(parameters),
        )


def _each(parameters: list[Any]) -> list[torch.nn.Parameter]:
    """Parameters that may come in groups."""
    return [p for one in parameters for p in (one["params"] if isinstance(one, dict) else [one])]


def _implementation(parameters: list[Any], sharded_fused: bool = True) -> dict[str, bool]:
    """How PyTorch's optimizer computes: fused, but not a mixture of sharded and plain tensors, which it takes only one
    by one."""
    sharded = [hasattr(parameter, "device_mesh") for parameter in _each(parameters)]
    if any(sharded) and not all(sharded):
        return {"fused": False, "foreach": False}
    return {"fused": sharded_fused or not any(sharded)}


@dataclass(frozen=True)
class Schedule:
    """The base of all schedules: a factor on the learning rate, a pure function of the step. Constant by default."""

    def factor(self, step: int, steps_per_epoch: int, epochs: int) -> float:
        """The factor for a step, counted from 0 over the whole run."""
        return 1.0


@dataclass(frozen=True)
class Constant(Schedule):
    """The same learning rate throughout."""


@dataclass(frozen=True)
class StepLR(Schedule):
    """Multiplies the learning rate by `gamma` every `step_size` epochs (torch.optim.lr_scheduler.StepLR)."""

    step_size: int = 7
    """Epochs between two drops."""
    gamma: float = 0.1
    """Factor of each drop."""

    def __post_init__(self) -> None:
        check(self, step_size=at_least(1), gamma=above(0))

    def factor(self, step: int, steps_per_epoch: int, epochs: int) -> float:
        """gamma to the number of drops so far."""
        return self.gamma ** (step // steps_per_epoch // self.step_size)


@dataclass(frozen=True)
class Cosine(Schedule):
    """Linear warm-up, then half a cosine to `final` at the run's end (Loshchilov and Hutter, 2017)."""

    warmup_epochs: float = 0.0
    """Epochs of linear warm-up from zero; may be a fraction."""
    final: float = 0.0
    """Factor at the end."""

    def __post_init__(self) -> None:
        check(self, warmup_epochs=at_least(0), final=at_least(0))

    def factor(self, step: int, steps_per_epoch: int, epochs: int) -> float:
        """The factor in the middle of the ramp or of the cosine."""
        warmup, total = round(self.warmup_epochs * steps_per_epoch), steps_per_epoch * epochs
        if step < warmup:
            return (step + 1) / warmup
        progress = (step - warmup) / max(1, total - warmup)
        return self.final + (1 - self.final) * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))


@dataclass(frozen=True)
class OneCycle(Schedule):
    """Up along half a cosine and down along another (Smith and Topin, 2018; torch.optim.lr_scheduler.OneCycleLR), with
    the optimizer's learning rate at the top."""

    rise: float = 0.3
    """Share of the run's steps that go up."""
    first: float = 0.04
    """Factor of the first step."""
    final: float = 4e-6
    """Factor of the last step."""

    def __post_init__(self) -> None:
        check(self, rise=(lambda share: 0 < share < 1, "between 0 and 1"), first=above(0), final=at_least(0))

    def factor(self, step: int, steps_per_epoch: int, epochs: int) -> float:
        """The factor on one of the two cosines."""
        total = steps_per_epoch * epochs
        top = max(self.rise * total - 1, 1e-9)
        if step <= top:
            return _cosine(self.first, 1.0, step / top)
        return _cosine(1.0, self.final, min(1.0, (step - top) / max(total - 1 - top, 1e-9)))


@dataclass(frozen=True)
class Rising(Schedule):
    """Exponentially from `low` to `high`, for the learning-rate range test: the factors are the rates, those of an
    optimizer whose learning rate is 1."""

    steps: int = 100
    """Steps from the lowest learning rate to the highest."""
    low: float = 1e-7
    """Learning rate of the first step."""
    high: float = 10.0
    """Learning rate of the last step."""

    def __post_init__(self) -> None:
        check(
            self,
            steps=at_least(10),
            low=above(0),
            high=(lambda high: self.low < high < math.inf, f"above low, which is {self.low}"),
        )

    def factor(self, step: int, steps_per_epoch: int, epochs: int) -> float:
        """The learning rate: the same multiple of the last step's in every step."""
        return self.low * (self.high / self.low) ** (step / (self.steps - 1))


def _cosine(start: float, end: float, way: float) -> float:
    return end + (start - end) * 0.5 * (1 + math.cos(math.pi * way))
