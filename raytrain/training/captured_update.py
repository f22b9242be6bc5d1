"""The captured update: gradients are unscaled and clipped and the weights updated by one CUDA graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from raytrain.training.cuda_graph import Graph, said

if TYPE_CHECKING:
    from raytrain.training.trainer import Trainer

CLOSE = 1e-3
"""Largest difference of what a replay computes from the plain values, as a share of the largest one. Kernels may add in
another order each time, so that equal bits cannot be asked for."""
RATE = torch.float32
"""The type in which CUDA's fused optimizers read a learning rate from a tensor."""


class Update:
    """`Trainer.clip_and_step` as a graph, for gradients that have the same memory in every step.

    A graph holds numbers as they were at its capture. So the optimizer gets its learning rates in tensors while it is
    captured, and each replay sets them; when anything else of its settings changes, `fits` is false.

    Args:
        trainer: its optimizer has made a step with these gradients, and so has its state.
        graph: an empty one.
    """

    def __init__(self, trainer: Trainer, graph: Graph):
        self.trainer, self.graph, self.replays = trainer, graph, 0
        self.settings = self._settings()
        self.rates = [torch.zeros((), dtype=RATE, device=trainer.ranks.device) for _ in self.settings]
        self.set = [0.0 for _ in self.settings]
        try:
            self.updated = graph.capture(self._work)
        finally:
            trainer.precision.forget(trainer.optimizer)

    def _work(self) -> list[torch.Tensor]:
        groups = self.trainer.optimizer.param_groups
        before = [{name: group[name] for name in ("lr", "capturable") if name in group} for group in groups]
        try:
            for group, rate in zip(groups, self.rates, strict=True):
                group |= {"lr": rate} | ({"capturable": True} if "capturable" in group else {})
            updated = self.trainer.clip_and_step()
        finally:
            for group, values in zip(groups, before, strict=True):
                group |= values
        return [updated] if isinstance(updated, torch.Tensor) else []

    def _settings(self) -> list[dict[str, Any]]:
        groups = self.trainer.optimizer.param_groups
        return [{name: value for name, value in group.items() if name not in ("params", "lr")} for group in groups]

    @property
    def fits(self) -> bool:
        """Whether the optimizer has the settings of the capture."""
        return self._settings() == self.settings

    def replay(self) -> bool | torch.Tensor:
        """Update the weights; return whether it did, as `Precision.step`."""
        for number, group in enumerate(self.trainer.optimizer.param_groups):
            if group["lr"] != self.set[number]:
                self.set[number] = group["lr"]
                self.rates[number].fill_(group["lr"])
        self.graph.replay()
        self.replays += 1
        return self.updated[0].clone() if self.updated else True

    @torch.no_grad()
    def compared(self) -> tuple[bool | torch.Tensor, str]:
        """Replay, go back, and update plainly; return what that returns, and why replays cannot take its place; empty
        where they can."""
        held, before, replayed, there, reason = self._tensors(), [], [], None, ""
        try:
            before = [tensor.clone() for tensor in held]
            there = self.replay()
            replayed = [tensor.clone() for tensor in held]
        except torch.OutOfMemoryError as error:
            reason = said(error)
        for tensor, old in zip(held, before, strict=not reason):
            tensor.copy_(old)
        updated = self.trainer.clip_and_step()
        try:
            if not reason and not (bool(there) == bool(updated) and all(map(_same_change, before, replayed, held))):
                reason = "a replay changes the weights in another way"
        except torch.OutOfMemoryError as error:
            reason = said(error)
        return updated, reason

    def _tensors(self) -> list[torch.Tensor]:
        """Return what an update changes."""
        trainer = self.trainer
        gradients = [one.grad for one in trainer.parameters if one.grad is not None]
        state = [value for values in trainer.optimizer.state.values() for value in values.values()]
        state = [value for value in state if isinstance(value, torch.Tensor)]
        return [*trainer.parameters, *gradients, *state, *trainer.precision.tensors]


def _same_change(before: torch.Tensor, replayed: torch.Tensor, plain: torch.Tensor) -> bool:
    """Return whether a tensor was changed alike, but for the rounding of the values themselves."""
    old, one, other = before.double(), replayed.double(), plain.double()
    change, size = (other - old).abs().max(), other.abs().max()
    near = (one - other).abs().max() <= CLOSE * change + 4 * torch.finfo(torch.float32).eps * size
    return bool(near | ~size.isfinite())


def why_not(optimizer: torch.optim.Optimizer) -> str:
    """Return why the updates of an optimizer cannot be captured; empty where they can. Those that can have a fused form
    that decides on the device, and takes its learning rate and its count of steps from there."""
    kind = type(optimizer)
    if kind not in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW):
        return f"{kind.__name__} is not PyTorch's SGD, Adam or AdamW"
    if not all(group["fused"] for group in optimizer.param_groups):
        return f"{kind.__name__} is not fused"
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        return "functions are registered with the optimizer's step"
    return ""
