"""Frozen parameters: throughout, or in the first epochs."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from raytrain import errors
from raytrain.experiment import Experiment
from raytrain.optim import patterns
from raytrain.optim.optimizers import backbone


def freeze(module: nn.Module, frozen: tuple[str, ...]) -> None:
    """Let no gradient be computed for the parameters that `Experiment.freeze` matches."""
    for name, parameter in module.named_parameters():
        if patterns.matches(name, frozen):
            parameter.requires_grad_(False)


def train_mode(module: nn.Module, frozen: tuple[str, ...]) -> None:
    """Switch a module to training mode, but for frozen BatchNorm layers: these normalise by their running statistics,
    which stay as they are."""
    module.train()
    for name, layer in module.named_modules():
        if isinstance(layer, _BatchNorm) and patterns.matches(f"{name}.running_mean", frozen):
            layer.eval()


class Waiting:
    """The parameters that are not trained yet.

    Args:
        e: its `unfreeze` and `unfreeze_epoch` say when they are.
        module: the model, on this rank.
    """

    def __init__(self, e: Experiment, module: nn.Module):
        below = {id(parameter) for parameter in backbone(module)} if e.unfreeze_epoch else set()
        rules = [(pattern, epoch) for epoch, pattern in e.unfreeze]
        self._begins = [
            (max(patterns.first(name, rules, 0), (e.unfreeze_epoch or 0) if id(parameter) in below else 0), parameter)
            for name, parameter in module.named_parameters()
            if parameter.requires_grad
        ]
        self._last = max((begin for begin, _ in self._begins), default=0)

    def in_epoch(self, epoch: int) -> list[nn.Parameter]:
        """Return those that wait in an epoch, counted from 0."""
        return [parameter for begin, parameter in self._begins if epoch < begin] if epoch < self._last else []

    @property
    def trained_first(self) -> bool:
        """Whether any parameter is trained in the first epoch."""
        return len(self.in_epoch(0)) < len(self._begins)

    def begins(self) -> list[int]:
        """Return the epochs from which on parameters are trained, in order; 0 for the first."""
        return sorted({begin for begin, _ in self._begins})


def check(e: Experiment, module: nn.Module, epochs: float) -> list[str]:
    """Check the patterns of an experiment against its model's names, and that something is trained from the first epoch
    on.

    Args:
        epochs: of the whole run.

    Returns:
        Notes for the plan.

    Raises:
        UserError: a pattern matches nothing, or nothing is trained.
    """
    parameters = [name for name, _ in module.named_parameters()]
    names = [*parameters, *(name for name, _ in module.named_buffers())]
    patterns.check(e.freeze, names, "freeze")
    patterns.check((pattern for _, pattern in e.unfreeze), parameters, "unfreeze")
    patterns.check((pattern for pattern, _ in e.optimizer.lr_factors), parameters, "optimizer.lr_factors")
    patterns.check((pattern for pattern, _ in e.optimizer.weight_decays), parameters, "optimizer.weight_decays")
    waiting = Waiting(e, module)
    if e.unfreeze and not waiting.trained_first:
        how = "leave the head out of the patterns, or name it first with epoch 0"
        raise errors.UserError("nothing is trained in the first epoch", "in unfreeze", how)
    late = [begin for begin in waiting.begins() if begin >= epochs]
    if not e.unfreeze or not late:
        return []
    return [f"some layers are never trained: unfreeze has epoch {late[-1]}, and training ends after {epochs:.3g}"]
