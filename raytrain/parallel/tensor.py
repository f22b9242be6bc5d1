"""Tensor parallel: layers of one model over several workers, by columns and rows, heads and channels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from raytrain import errors
from raytrain.config import at_least, check
from raytrain.parallel.base import Parallel, cutting

if TYPE_CHECKING:
    from torch import nn

    from raytrain.parallel.strategy import RankContext, Shape, Strategy


@dataclass(frozen=True)
class TensorParallel(Parallel):
    """Linear layers, attention and convolutions over the workers as DTensors. Of two linear layers, or convolutions,
    that follow each other the first is cut by columns, or output channels, and the second by rows, or input channels,
    so that they exchange one sum (Shoeybi et al., 2019). Attention, torch's and timm's, is cut by its heads. All else
    is on every worker. With more workers than shards there are several such copies, whose gradients are added up."""

    shards: int | None = None
    """Workers that share one copy of the model; None is all workers."""
    pair_parameters: int = 100_000
    """Two convolutions that follow each other are cut if they have at least as many parameters: early ones have few,
    and would exchange large images."""

    sharded: ClassVar[bool] = True
    """A rank has a part of most layers."""
    spreads: ClassVar[bool] = True
    """Layers are filled and sharded one after the other."""

    def __post_init__(self) -> None:
        check(self, shards=at_least(2), pair_parameters=at_least(0))

    @property
    def scales(self) -> bool:
        """PyTorch's gradient scaler takes no mixture of sharded and plain tensors."""
        return False

    def replicas(self, workers: int) -> int:
        """Copy of the model."""
        return max(1, workers // self._size(workers))

    def share(self, module: nn.Module, workers: int) -> float:
        """Return the shards of a worker, and what is whole."""
        size = self._size(workers)
        cut = cutting().shards(module, cutting().styles(module, size, self.pair_parameters))
        sizes = {name: parameter.numel() for name, parameter in module.named_parameters()}
        return sum(count / (size if name in cut else 1) for name, count in sizes.items()) / sum(sizes.values())

    def check(self, module: nn.Module, workers: int, gpus_per_worker: float, micro_batches: int) -> str:
        """Workers make whole copies, and some layer can be sharded."""
        size = self._size(workers)
        if workers < 2 or workers % size:
            raise errors.UserError(
                f"{workers} worker{'s' if workers > 1 else ''} cannot be divided into replicas of {max(2, size)}",
                "in parallel.shards",
                f"use a multiple of {max(2, size)} for --scaling.workers, or --parallel.strategy ddp",
            )
        return cutting().summary(module, cutting().styles(module, size, self.pair_parameters))

    def setup(self, build: Callable[[], nn.Module], ranks: RankContext, shape: Shape) -> Strategy:
        """As the base class, with layers sharded in place."""
        from raytrain.parallel.dtensors import Parts, TensorSharded  # torch: `--help` needs the fields only

        return TensorSharded(Parts(build, ranks), ranks, self._size(ranks.world), self.pair_parameters)

    def _size(self, workers: int) -> int:
        return self.shards or workers
