"""DataParallel, the tutorials' baseline: one worker copies the model to its GPUs in every step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from raytrain import errors
from raytrain.parallel.base import Parallel

if TYPE_CHECKING:
    from torch import nn

    from raytrain.parallel.strategy import RankContext, Shape, Strategy


@dataclass(frozen=True)
class DataParallel(Parallel):
    """torch.nn.DataParallel over the GPUs of one worker. DistributedDataParallel with a worker a GPU is faster."""

    compiles: ClassVar[bool] = False
    """A copy of a compiled module calls the original, whose weights are on the first GPU."""

    def check(self, module: nn.Module, workers: int, gpus_per_worker: float, micro_batches: int) -> str:
        """There is one worker."""
        if workers > 1:
            raise errors.UserError(
                f"DataParallel is one worker over several GPUs, and there are {workers}",
                "in scaling.workers",
                "use --scaling.workers 1 --scaling.gpus_per_worker N, or --parallel.strategy ddp",
            )
        return ""

    def setup(self, build: Callable[[], nn.Module], ranks: RankContext, shape: Shape) -> Strategy:
        """As the base class, over the worker's own GPUs; without a GPU, or with one, the base class's."""
        strategy = super().setup(build, ranks, shape)
        if ranks.more:
            from raytrain.parallel.replicas import Replicas  # torch: `--help` needs the fields only

            strategy.model = Replicas(strategy.module, list(ranks.devices))
        return strategy
