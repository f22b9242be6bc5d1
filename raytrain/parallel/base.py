"""How a plain module is spread over the workers. The base class is a working no-op: one worker, nothing shared."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    import torch
    from torch import nn


@dataclass(frozen=True)
class Parallel:
    """The base of all parallel strategies."""

    sharded: ClassVar[bool] = False
    """Whether ranks hold parts of the model, so that every forward pass and every checkpoint needs all of them."""

    def check(self, module: nn.Module, workers: int, gpus_per_worker: float) -> None:
        """Checks, before anything starts, that the workers suffice and the model can be spread over them.

        Args:
            module: the model, perhaps on the meta device.

        Raises:
            UserError: they do not.
        """

    def wrap(self, module: nn.Module, device: torch.device, world: int) -> nn.Module:
        """Returns the module that the loop trains; `module` is on `device` already and keeps the weights, of which a
        sharded strategy leaves it this rank's part."""
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
        if world > 1:
            import torch.distributed as dist

            for buffer in module.buffers():
                dist.broadcast(buffer, src=0)

    def whole(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor of the model or of the optimizer with all of its parts, as a checkpoint holds it. A collective
        where the strategy is sharded."""
        return tensor

    def part(self, tensor: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
        """The inverse of `whole`, for an optimizer's tensor that belongs to a parameter."""
        if tensor.shape != parameter.shape:
            return tensor  # such as Adam's step
        # Fused optimizers take it for granted that both lie in memory in the same order.
        import torch

        return torch.empty_like(parameter, dtype=tensor.dtype, requires_grad=False).copy_(tensor)
