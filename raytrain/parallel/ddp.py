"""Data parallel: a replica on every worker, whose gradients are summed in every step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from raytrain import errors
from raytrain.config import above, check
from raytrain.parallel.base import Parallel, no_shared_memory

if TYPE_CHECKING:
    from torch import nn

    from raytrain.parallel.strategy import RankContext, Shape, Strategy


@dataclass(frozen=True)
class DDP(Parallel):
    """A replica on every worker: torch.nn.parallel.DistributedDataParallel over NCCL on GPUs and gloo on CPUs, or
    gradients summed in shared memory."""

    reduction: Literal["auto", "shared", "torch"] = "auto"
    """How gradients are summed: shared takes memory that the ranks share, on CPUs of one host; torch is
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
    """The type in which DistributedDataParallel sends gradients; other than none, it takes DistributedDataParallel."""
    sync_batchnorm: bool = False
    """Let BatchNorm normalise by the statistics of all workers' samples (torch.nn.SyncBatchNorm), for workers with few
    samples each; GPUs only."""

    def __post_init__(self) -> None:
        check(self, bucket_cap_mb=above(0))
        if self.compression != "none" and self.reduction == "shared":
            raise errors.UserError(
                "gradients in shared memory are not compressed",
                "in parallel.compression",
                "use --parallel.reduction auto",
            )

    @property
    def short_passes(self) -> bool:
        """Synchronised statistics are those of all workers."""
        return not self.sync_batchnorm

    def uncaptured(self, workers: int) -> str:
        """Gradients are exchanged after a recorded pass; all else that workers exchange is not recorded."""
        if workers > 1 and self.sync_batchnorm:
            return "workers exchange BatchNorm's statistics during the pass"
        if workers > 1 and self.find_unused_parameters:
            return "the parameters that have a gradient may change from step to step"
        return ""

    def check(self, module: nn.Module, workers: int, gpus_per_worker: float, micro_batches: int) -> str:
        """SyncBatchNorm is for GPUs."""
        if self.sync_batchnorm and not gpus_per_worker:
            raise errors.UserError(
                "PyTorch's SyncBatchNorm does not work on CPUs", "in parallel.sync_batchnorm", "leave it out"
            )
        return ""

    def setup(self, build: Callable[[], nn.Module], ranks: RankContext, shape: Shape) -> Strategy:
        """As the base class.

        Raises:
            UserError: `reduction` is shared and the ranks have no memory in common.
        """
        if ranks.world == 1:
            return super().setup(build, ranks, shape)
        from raytrain.parallel import batchnorm, distributed, shared, strategy  # torch: `--help` needs the fields only

        module, cpu = build().to(ranks.device), ranks.device.type == "cpu"
        if self.reduction != "torch" and self.compression == "none" and cpu:
            if exchange := shared.replicate(module):
                strategy.broadcast_weights(module)
                return shared.SharedMemory(module, ranks, exchange)
        if self.reduction == "shared":
            raise no_shared_memory()
        if self.sync_batchnorm:
            batchnorm.synchronise(module)
        keep_buckets = distributed.keeps_buckets(ranks)
        found = distributed.Distributed(
            module,
            ranks,
            self.static_graph,
            device_ids=None if cpu else [ranks.device],
            bucket_cap_mb=self.bucket_cap_mb,
            gradient_as_bucket_view=self.gradient_as_bucket_view,
            find_unused_parameters=self.find_unused_parameters or keep_buckets,
            **({"static_graph": True} if self.static_graph and not keep_buckets else {}),
        )
        if self.compression != "none":
            found.compress(self.compression)
        return found
