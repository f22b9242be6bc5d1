"""DistributedDataParallel: a replica on every worker, gradients averaged while the backward pass runs."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from raytrain.config import above, check
from raytrain.parallel.base import Parallel

if TYPE_CHECKING:
    import torch
    from torch import nn


@dataclass(frozen=True)
class DDP(Parallel):
    """torch.nn.parallel.DistributedDataParallel, over NCCL on GPUs and gloo on CPUs."""

    bucket_cap_mb: float = 25.0
    """Size of the buckets in which gradients are exchanged, in MiB."""

    def __post_init__(self) -> None:
        check(self, bucket_cap_mb=above(0))

    def wrap(self, module: nn.Module, device: torch.device, world: int) -> nn.Module:
        """The DDP replica; at world size 1 the module itself."""
        if world == 1:
            return module
        from torch.nn.parallel import DistributedDataParallel

        # DDP rebuilds its buckets after the first backward pass, and gloo adds three or more ranks in an order that
        # depends on the buckets: a resumed run would differ in the last bit. Searching for unused parameters keeps
        # the first buckets.
        keep_buckets = device.type == "cpu" and world > 2
        return DistributedDataParallel(
            module,
            device_ids=None if device.type == "cpu" else [device],
            bucket_cap_mb=self.bucket_cap_mb,  # type: ignore[arg-type]
            gradient_as_bucket_view=True,
            find_unused_parameters=keep_buckets,
        )

    def no_sync(self, wrapped: nn.Module) -> AbstractContextManager[Any]:
        """DDP's own `no_sync`."""
        return cast(Any, wrapped).no_sync() if hasattr(wrapped, "no_sync") else super().no_sync(wrapped)

    def gradient_scale(self, world: int) -> float:
        """DDP averages over the ranks."""
        return float(world)

    def sync_buffers(self, module: nn.Module, world: int) -> None:
        """Broadcasts rank 0's buffers, as DDP does before a forward pass."""
        if world > 1:
            import torch.distributed as dist

            for buffer in module.buffers():
                dist.broadcast(buffer, src=0)
