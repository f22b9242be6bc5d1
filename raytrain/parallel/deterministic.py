"""Data parallel with the same bits on any number of workers."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from raytrain import errors, order
from raytrain.parallel.base import Parallel, multiples, no_shared_memory

if TYPE_CHECKING:
    from torch import nn

    from raytrain.parallel.strategy import RankContext, Shape, Strategy


def fix_workspace() -> None:
    """Make cuBLAS deterministic in this process. cuBLAS reads the variable when a process first multiplies matrices on
    a GPU.

    https://docs.nvidia.com/cuda/cublas/index.html#results-reproducibility
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


@dataclass(frozen=True)
class Deterministic(Parallel):
    """The same bits on 1, 2 and 4 workers, also where a run resumes with another number of them: a replica on every
    worker, and each batch is computed in four shards, as four workers would, on one thread unless
    scaling.threads_per_worker says otherwise. Slower where there are fewer workers or idle cores."""

    reduction: Literal["auto", "shared", "torch"] = "auto"
    """How gradients are summed: shared takes memory that the ranks share, on CPUs of one host; torch gathers them with
    torch.distributed; auto takes shared where it can. All give the same bits."""

    threads: ClassVar[int | None] = 1
    """The number of threads changes last bits, and must not follow the number of workers."""

    def batch_shards(self, workers: int) -> int:
        """Return this replica's part of the four shards."""
        return order.SHARDS // workers

    def part(self, batch_size: int, workers: int) -> int:
        """Return the samples of a shard."""
        return batch_size // order.SHARDS

    def uncaptured(self, workers: int) -> str:
        """A step has several passes."""
        return f"deterministic computes a batch in {order.SHARDS} shards"

    def gradient_copies(self, workers: int) -> int:
        """Return how many shards' gradients are kept apart at a time, besides the sum."""
        return (order.SHARDS // workers).bit_length() - 1

    def check_settings(self, batch_size: int, workers: int, precision: str, compile: bool) -> None:
        """As the base class: shards must divide evenly, and nothing may depend on time or on shapes met before."""
        for wrong, why, field, how in (
            (
                order.SHARDS % workers,
                f"{workers} workers cannot share the {order.SHARDS} shards of a batch evenly",
                "scaling.workers",
                "use 1, 2 or 4",
            ),
            (
                precision == "auto",
                "auto chooses by measured times, which differ from run to run",
                "precision",
                "use --precision fp32 or bf16",
            ),
            (
                compile,
                "torch.compile's kernels depend on the shapes that it has met before",
                "compile",
                "use --no_compile",
            ),
        ):
            if wrong:
                raise errors.UserError(
                    f"deterministic gives the same bits on any number of workers, and {why}",
                    f"in {field}",
                    f"{how}, or --parallel.strategy ddp",
                )
        if batch_size % order.SHARDS:
            raise errors.UserError(
                f"batch_size {batch_size} does not divide by the shards of --parallel.strategy "
                f"deterministic: {order.SHARDS}",
                "",
                f"use --batch_size {multiples(batch_size, order.SHARDS)}, or --parallel.strategy ddp",
            )

    def prepare_process(self) -> None:
        """See `fix_workspace`."""
        fix_workspace()

    def setup(self, build: Callable[[], nn.Module], ranks: RankContext, shape: Shape) -> Strategy:
        """As the base class.

        Raises:
            UserError: `reduction` is shared and the ranks have no memory in common.
        """
        from raytrain.parallel import shared, strategy, tree  # torch: `--help` needs the fields only

        module = build().to(ranks.device)
        if ranks.world == 1:
            return tree.Shards(module, ranks, lambda: None)
        strategy.broadcast_weights(module)
        if self.reduction != "torch" and ranks.device.type == "cpu":
            if exchange := shared.replicate(module, pairwise=True):
                return tree.Shards(module, ranks, exchange.reduce)
        if self.reduction == "shared":
            raise no_shared_memory()
        return tree.Shards(module, ranks, tree.Gathering(module).reduce)
