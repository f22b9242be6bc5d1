"""Data parallel: a replica on every worker, whose gradients are exchanged in every step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

from raytrain import errors
from raytrain.config import above, check
from raytrain.parallel.base import Context, Parallel

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
    gradient_as_bucket_view: bool = True
    """Let gradients live in DistributedDataParallel's buckets: no copy of them."""
    static_graph: bool = False
    """Promise DistributedDataParallel that every step uses the same parameters."""
    find_unused_parameters: bool = False
    """Let DistributedDataParallel look for parameters without a gradient, which some models have in some steps."""
    compression: Literal["none", "bf16", "fp16"] = "none"
    """What DistributedDataParallel's gradients travel in; other than none, it takes DistributedDataParallel."""
    sync_batchnorm: bool = False
    """Let BatchNorm normalise by the statistics of all workers' samples (torch.nn.SyncBatchNorm), for workers with few
    samples each; GPUs only."""

    def __post_init__(self) -> None:
        check(self, bucket_cap_mb=above(0))
        if self.compression != "none" and self.reduction == "shared":
            raise errors.strategy_misfit(
                "gradients in shared memory are not compressed",
                "parallel.compression",
                "take --parallel.reduction auto",
            )

    @property
    def lockstep(self) -> bool:
        """A static graph exchanges gradients in each pass, and SyncBatchNorm statistics."""
        return self.static_graph or self.sync_batchnorm

    def check(self, module: nn.Module, workers: int, gpus_per_worker: float, micro_batches: int) -> str:
        """SyncBatchNorm is for GPUs."""
        if self.sync_batchnorm and not gpus_per_worker:
            raise errors.strategy_misfit(
                "PyTorch's SyncBatchNorm does not work on CPUs", "parallel.sync_batchnorm", "leave it out"
            )
        return ""

    def wrap(self, module: nn.Module, devices: Sequence[torch.device], world: int) -> nn.Module:
        """The replica; at world size 1 the module itself.

        Raises:
            UserError: `reduction` is shared and the ranks have no memory in common.
        """
        if world == 1:
            return module
        device = devices[0]
        if self.reduction != "torch" and self.compression == "none" and device.type == "cpu":
            from raytrain.parallel.shared import replicate

            if replica := replicate(module):
                return replica
        if self.reduction == "shared":
            raise errors.no_shared_memory()
        from torch.nn.parallel import DistributedDataParallel

        if self.sync_batchnorm:
            from raytrain.parallel.batchnorm import synchronise

            synchronise(module)
        # DDP rebuilds its buckets after the first backward pass, and gloo adds three or more ranks in an order that
        # depends on the buckets: a resumed run would differ in the last bit. Searching for unused parameters keeps
        # the first buckets.
        keep_buckets = device.type == "cpu" and world > 2
        replica = DistributedDataParallel(
            module,
            device_ids=None if device.type == "cpu" else [device],
            bucket_cap_mb=self.bucket_cap_mb,  # type: ignore[arg-type]
            gradient_as_bucket_view=self.gradient_as_bucket_view,
            find_unused_parameters=self.find_unused_parameters or keep_buckets,
            static_graph=self.static_graph and not keep_buckets,
        )
        if self.compression != "none":
            from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

            replica.register_comm_hook(None, getattr(default_hooks, f"{self.compression}_compress_hook"))
        return replica

    def check_deterministic(self) -> None:
        """What is rounded on the way, or asks all workers during a pass, depends on their number."""
        for field, on in (("compression", self.compression != "none"), ("sync_batchnorm", self.sync_batchnorm)):
            if on:
                raise errors.not_deterministic(
                    f"{field} depends on the number of workers", f"parallel.{field}", "leave it out"
                )

    def wrap_deterministic(self, module: nn.Module, devices: Sequence[torch.device], world: int) -> nn.Module:
        """A replica that adds up the gradients of shards, in shared memory where it can; never
        DistributedDataParallel, of whose settings `reduction` alone counts.

        Raises:
            UserError: `reduction` is shared and the ranks have no memory in common.
        """
        from raytrain.parallel.tree import Gathering, TreeReplica

        if world == 1:
            return TreeReplica(module)
        if self.reduction != "torch" and devices[0].type == "cpu":
            from raytrain.parallel.shared import replicate

            if replica := replicate(module, pairwise=True):
                return TreeReplica(module, replica.reduce)
        if self.reduction == "shared":
            raise errors.no_shared_memory()
        return TreeReplica(module, Gathering(module).reduce)

    def shard(self, wrapped: nn.Module) -> AbstractContextManager[Any]:
        """A replica that adds up shards takes each one's gradients."""
        return cast(Any, wrapped).shard() if hasattr(wrapped, "shard") else super().shard(wrapped)

    def accumulate(
        self,
        wrapped: nn.Module,
        passes: Iterable[Any],
        loss: Callable[[nn.Module, Any], torch.Tensor],
        forward: Context,
        shape: tuple[int, int],
    ) -> None:
        """One pass after the other; synchronised BatchNorm layers leave out the blank ones."""
        if self.sync_batchnorm:
            from raytrain.parallel.batchnorm import announced

            passes = announced(wrapped, passes)
        super().accumulate(wrapped, passes, loss, forward, shape)

    def no_sync(self, wrapped: nn.Module) -> AbstractContextManager[Any]:
        """DistributedDataParallel's own `no_sync`; a static graph rules it out, and exchanges every micro-batch."""
        if self.static_graph:
            return nullcontext()
        return cast(Any, wrapped).no_sync() if hasattr(wrapped, "no_sync") else super().no_sync(wrapped)

    def sync_gradients(self, wrapped: nn.Module) -> None:
        """Adds gradients up, in shared memory or shard by shard; DistributedDataParallel has done its work by then."""
        if hasattr(wrapped, "reduce"):
            cast(Any, wrapped).reduce()

    def total(self, wrapped: nn.Module, values: torch.Tensor) -> None:
        """In shared memory where gradients are: gloo takes a millisecond or two from ranks that are busy."""
        if hasattr(wrapped, "total"):
            cast(Any, wrapped).total(values)
        else:
            super().total(wrapped, values)

    def gradient_scale(self, wrapped: nn.Module, world: int) -> float:
        """DistributedDataParallel averages over the ranks."""
        from torch.nn.parallel import DistributedDataParallel

        return float(world) if isinstance(wrapped, DistributedDataParallel) else 1.0
