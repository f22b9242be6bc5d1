"""How a plain module is spread over the workers. The base class is a working no-op: one worker, nothing shared."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import nn


@dataclass(frozen=True)
class Parallel:
    """The base of all parallel strategies."""

    def wrap(self, module: nn.Module, device: torch.device, world: int) -> nn.Module:
        """Returns the module that the loop trains; `module` is on `device` already and keeps the weights."""
        return module

    def no_sync(self, wrapped: nn.Module) -> AbstractContextManager[Any]:
        """The context for micro-batches whose gradients are not exchanged yet."""
        return nullcontext()

    def sync_gradients(self, wrapped: nn.Module) -> None:
        """Exchanges gradients after a step's last backward pass, where that has not happened during it."""

    def gradient_scale(self, wrapped: nn.Module, world: int) -> float:
        """What the exchange divides summed gradients by; the loop multiplies the loss by it."""
        return 1.0

    def sync_buffers(self, module: nn.Module, world: int) -> None:
        """Gives all ranks rank 0's buffers (BatchNorm's statistics), for evaluation and checkpoints."""
