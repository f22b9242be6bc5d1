"""Pipeline: stages of one model on several workers, which micro-batches pass one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

from raytrain import errors
from raytrain.config import at_least, check
from raytrain.parallel.base import Context, Parallel

if TYPE_CHECKING:
    import torch
    from torch import nn

    from raytrain.parallel.stages import Stages


@dataclass(frozen=True)
class Pipeline(Parallel):
    """Stages of the model on the workers (torch.distributed.pipelining); micro-batches keep all stages busy. With more
    workers than stages there are several such pipelines, whose gradients are added up: DDP times pipeline.

    All micro-batches have one size: a short last batch is filled up with copies, which count for nothing but in
    BatchNorm's statistics. The task calls the model once for a batch."""

    stages: int | None = None
    """Workers of a pipeline; None is all workers."""
    schedule: Literal["1f1b", "gpipe", "interleaved"] = "1f1b"
    """The order of forward and backward passes: all forward passes first (Huang et al., 2019), one backward pass as
    soon as it can be (Narayanan et al., 2019), or the latter with several stages on a worker."""
    interleave: int = 2
    """Stages that each worker has under the interleaved schedule."""

    sharded: ClassVar[bool] = True
    """A rank has its stages' parameters."""

    def __post_init__(self) -> None:
        check(self, stages=at_least(2), interleave=at_least(2))

    def replicas(self, workers: int) -> int:
        """Pipelines."""
        return max(1, workers // self._size(workers))

    def replica(self, rank: int, world: int) -> tuple[int, bool]:
        """Ranks that follow each other make a pipeline; the last of them knows its answers."""
        size = self._size(world)
        return rank // size, rank % size == size - 1

    def micro_batch(self, part: int, asked: int | None, workers: int) -> int:
        """Where it is not asked for, such that there are two micro-batches for each worker of the pipeline, or the
        next number that divides the batch."""
        size = self._size(workers)
        counts = [n for n in range(1, part + 1) if part % n == 0 and self._takes(n, size)]
        return asked or part // next((n for n in counts if n >= 2 * size), max(counts, default=1))

    def check(self, module: nn.Module, workers: int, gpus_per_worker: float, micro_batches: int) -> str:
        """Workers make whole pipelines, the model has as many blocks as there are stages, and the schedule has enough
        micro-batches."""
        from raytrain.parallel.model_parallel import described
        from raytrain.parallel.stages import cut

        size = self._size(workers)
        if workers < 2 or workers % size:
            raise errors.strategy_misfit(
                f"{workers} worker{'s make no pipelines' if workers > 1 else ' makes no pipeline'} of {max(2, size)}",
                "parallel.stages",
                f"take a multiple of {max(2, size)} for --scaling.workers, or --parallel.strategy ddp",
            )
        stages = cut(module, size * self._each)
        if not self._takes(micro_batches, size):
            raise errors.strategy_misfit(
                f"{micro_batches} micro-batches a step do not keep {size} workers of a pipeline busy: {self.schedule} "
                f"takes {'a multiple of' if self.schedule == 'interleaved' else 'at least'} {size}",
                "batch_size and micro_batch_size",
                f"take --batch_size {2 * size * self.replicas(workers)} or a multiple of it, and no --micro_batch_size",
            )
        return f"{described(module, [list(stage.parameters()) for stage in stages])}, by {self.schedule}"

    def on_device(self, state: int, workers: int) -> int:
        """Return an even part of the pipeline."""
        return state // self._size(workers)

    def stream(self, rank: int, world: int) -> int:
        """Each stage draws its own: with one stream, layers of several stages would drop the same units."""
        return rank

    def wrap(self, module: nn.Module, devices: Sequence[torch.device], world: int) -> nn.Module:
        """This rank's stages; of all other parameters and buffers the module keeps the shape."""
        from raytrain.parallel.stages import Stages

        return Stages(module, self._size(world), self._each, self.schedule, devices[0], world)

    def own(self, wrapped: nn.Module, parameters: list[nn.Parameter]) -> list[nn.Parameter]:
        """Those of this rank's stages."""
        mine = {id(parameter) for parameter in wrapped.parameters()}
        return [parameter for parameter in parameters if id(parameter) in mine]

    def accumulate(
        self,
        wrapped: nn.Module,
        passes: Iterable[Any],
        loss: Callable[[nn.Module, Any], torch.Tensor],
        forward: Context,
        shape: tuple[int, int],
    ) -> None:
        """The schedule's own order."""
        cast("Stages", wrapped).train_on(list(passes), loss, forward, shape)

    def answers(
        self, wrapped: nn.Module, module: nn.Module, passes: Iterable[Any], forward: Context, shape: tuple[int, int]
    ) -> Iterator[tuple[Any, nn.Module]]:
        """Micro-batches on the last rank of a pipeline, each with a model that only hands out its answers."""
        return cast("Stages", wrapped).answer(list(passes), forward, shape)

    def sync_gradients(self, wrapped: nn.Module) -> None:
        """Adds up over the pipelines."""
        import torch.distributed as dist

        stages = cast("Stages", wrapped)
        if stages.replicas > 1:
            for parameter in wrapped.parameters():
                if parameter.grad is not None:
                    dist.all_reduce(parameter.grad, group=stages.peers)

    def clip(self, wrapped: nn.Module, parameters: list[nn.Parameter], most: float) -> torch.Tensor:
        """By the norm over all stages."""
        import torch
        import torch.distributed as dist
        from torch import nn

        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        stages = cast("Stages", wrapped)
        square = nn.utils.get_total_norm(gradients).square().to(stages.device)
        dist.all_reduce(square, group=stages.line)
        norm = torch.sqrt(square)
        nn.utils.clip_grads_with_norm_(parameters, most, norm)
        return norm

    def sync_buffers(self, wrapped: nn.Module, module: nn.Module, world: int) -> None:
        """Those of a stage are the first pipeline's."""
        import torch.distributed as dist

        stages = cast("Stages", wrapped)
        if stages.replicas > 1:
            for buffer in wrapped.buffers():
                dist.broadcast(buffer, group=stages.peers, group_src=0)

    def gather(
        self, wrapped: nn.Module, state: dict[str, Any], first: bool, copy: Callable[..., Any]
    ) -> dict[str, Any] | None:
        """The stages' parts of the first pipeline, put together."""
        import torch.distributed as dist

        stages = cast("Stages", wrapped)
        if stages.replica:
            return None
        parts: list[Any] = [None] * stages.size
        mine = copy(_without(state, stages.others), self.whole, True)
        dist.gather_object(mine, parts if first else None, group=stages.line, group_dst=0)
        return _joined(parts) if first else None

    @property
    def _each(self) -> int:
        return self.interleave if self.schedule == "interleaved" else 1

    def _size(self, workers: int) -> int:
        return self.stages or workers

    def _takes(self, count: int, size: int) -> bool:
        """Whether the schedule can work with so many micro-batches."""
        return count >= (1 if self.schedule == "gpipe" else size) and (
            self.schedule != "interleaved" or count % size == 0
        )


def _without(state: Any, names: set[str]) -> Any:
    if not isinstance(state, dict):
        return state
    return {name: _without(value, names) for name, value in state.items() if name not in names}


def _joined(parts: list[Any]) -> Any:
    """The union of trees of dicts, of which each has some of the leaves."""
    if not isinstance(parts[0], dict):
        return parts[0]
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: _joined([part[name] for part in parts if name in part]) for name in names}
