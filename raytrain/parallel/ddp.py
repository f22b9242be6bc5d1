"""Data parallel: a replica on every worker, whose gradients are exchanged in every step."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

from raytrain import errors
from raytrain.config import above, check
from raytrain.parallel.base import Parallel

if TYPE_CHECKING:
    import torch
    from torch import nn


@dataclass(frozen=True)
class DDP(Parallel):
    """A replica on every worker: torch.nn.parallel.DistributedDataParallel over NCCL on GPUs and gloo on CPUs, or
    gradients added up in shared memory."""

    reduction: Literal["auto", "shared", "torch"] = "auto"
    """How gradients are added up: shared takes memory that the ranks share, on CPUs of one host; torch is
    DistributedDataParallel; auto takes shared where it can. With three or more workers the last bits differ."""
    bucket_cap_mb: float = 25.0
    """Size of the buckets in which DistributedDataParallel exchanges gradients, in MiB."""

    def __post_init__(self) -> None:
        check(self, bucket_cap_mb=above(0))

    def wrap(self, module: nn.Module, device: torch.device, world: int) -> nn.Module:
        """The replica; at world size 1 the module itself.

        Raises:
            UserError: `reduction` is shared and the ranks have no memory in common.
        """
        if world == 1:
            return module
        if self.reduction != "torch" and device.type == "cpu":
            from raytrain.parallel.shared import replicate

            if replica := replicate(module):
                return replica
        if self.reduction == "shared":
            raise errors.no_shared_memory()
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
        """DistributedDataParallel's own `no_sync`."""
        return cast(Any, wrapped).no_sync() if hasattr(wrapped, "no_sync") else super().no_sync(wrapped)

    def sync_gradients(self, wrapped: nn.Module) -> None:
        """Adds gradients up in shared memory; DistributedDataParallel has done its work by then."""
        if hasattr(wrapped, "reduce"):
            cast(Any, wrapped).reduce()

    def gradient_scale(self, wrapped: nn.Module, world: int) -> float:
        """DistributedDataParallel averages over the ranks."""
        from torch.nn.parallel import DistributedDataParallel

        return float(world) if isinstance(wrapped, DistributedDataParallel) else 1.0

    def sync_buffers(self, module: nn.Module, world: int) -> None:
        """Broadcasts rank 0's buffers, as DistributedDataParallel does before a forward pass."""
        if world > 1:
            import torch.distributed as dist

            for buffer in module.buffers():
                dist.broadcast(buffer, src=0)
