"""Pipeline parallel: micro-batches pass through stages of one model on several workers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from raytrain import errors
from raytrain.config import at_least, check
from raytrain.parallel.base import Parallel

if TYPE_CHECKING:
    from torch import nn

    from raytrain.parallel.strategy import RankContext, Shape, Strategy


@dataclass(frozen=True)
class Pipeline(Parallel):
    """Stages of the model on the workers (torch.distributed.pipelining); micro-batches keep all stages busy. With more
    workers than stages there are several such pipelines, whose gradients are added up: DDP times pipeline.

    All micro-batches have one size: copies fill up a short last batch, and count only in BatchNorm's statistics. The
    task calls the model once for each batch."""

    stages: int | None = None
    """Workers of a pipeline; None is all workers."""
    schedule: Literal["1f1b", "gpipe", "interleaved"] = "1f1b"
    """The order of forward and backward passes: all forward passes first (Huang et al., 2019), one backward pass as
    soon as it can be (Narayanan et al., 2019), or the latter with several stages on a worker."""
    interleave: int = 2
    """Stages that each worker has under the interleaved schedule."""

    sharded: ClassVar[bool] = True
    """A rank has its stages' parameters."""
    spreads: ClassVar[bool] = True
    """Stages are filled one after the other."""
    recomputes: ClassVar[bool] = False
    """torch.fx traces through blocks."""
    takes_more: ClassVar[bool] = False
    """One tensor goes into the first stage."""

    def __post_init__(self) -> None:
        check(self, stages=at_least(2), interleave=at_least(2))

    def replicas(self, workers: int) -> int:
        """Pipelines."""
        return max(1, workers // self._size(workers))

    def micro_batch(self, part: int, asked: int | None, workers: int) -> int:
        """Return what is asked for. Otherwise choose two micro-batches for each worker of the pipeline, or the next
        number that divides the batch."""
        size = self._size(workers)
        counts = [n for n in range(1, part + 1) if part % n == 0 and self._takes(n, size)]
        return asked or part // next((n for n in counts if n >= 2 * size), max(counts, default=1))

    def check(self, module: nn.Module, workers: int, gpus_per_worker: float, micro_batches: int) -> str:
        """Workers make whole pipelines, the model has as many blocks as there are stages, and the schedule has enough
        micro-batches."""
        cutting, stages = _runtime()
        size = self._size(workers)
        if workers < 2 or workers % size:
            raise errors.UserError(
                f"{workers} worker{'s' if workers > 1 else ''} cannot form pipelines of {max(2, size)}",
                "in parallel.stages",
                f"use a multiple of {max(2, size)} for --scaling.workers, or --parallel.strategy ddp",
            )
        blocks = stages.cut(module, size * self._each)
        if not self._takes(micro_batches, size):
            raise errors.UserError(
                f"{micro_batches} micro-batches per step do not keep {size} workers of a pipeline busy: "
                f"{self.schedule} takes "
                f"{'a multiple of' if self.schedule == 'interleaved' else 'at least'} {size}",
                "in batch_size and micro_batch_size",
                f"use --batch_size {2 * size * self.replicas(workers)} or a multiple of it, and no --micro_batch_size",
            )
        return f"{cutting.described(module, [list(stage.parameters()) for stage in blocks])}, by {self.schedule}"

    def share(self, module: nn.Module, workers: int) -> float:
        """Return that of the worker whose stages are the largest."""
        cutting, stages = _runtime()
        size = self._size(workers)
        every = stages.cut(module, size * self._each)
        held = [[p for stage in every[rank::size] for p in stage.parameters()] for rank in range(size)]
        return cutting.largest(module, held)

    @property
    def short_passes(self) -> bool:
        """Copies of its samples fill a short micro-batch up."""
        return False

    def setup(self, build: Callable[[], nn.Module], ranks: RankContext, shape: Shape) -> Strategy:
        """As the base class, with this rank's stages; of all other parameters and buffers the model keeps the shape."""
        runtime, size = _runtime()[1], self._size(ranks.world)
        return runtime.Stages(runtime.Parts(build, ranks), ranks, size, self._each, self.schedule, shape)

    @property
    def _each(self) -> int:
        return self.interleave if self.schedule == "interleaved" else 1

    def _size(self, workers: int) -> int:
        return self.stages or workers

    def _takes(self, count: int, size: int) -> bool:
        """Return whether the schedule can work with so many micro-batches."""
        return count >= (1 if self.schedule == "gpipe" else size) and (
            self.schedule != "interleaved" or count % size == 0
        )


def _runtime():
    """Return the modules of the runtime, imported late: they need torch, and `--help` the fields only."""
    from raytrain.parallel import cutting, pipeline_stages

    return cutting, pipeline_stages
