"""Tensor parallel: the linear layers of one model over several workers, by columns and by rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from raytrain import errors
from raytrain.config import at_least, check
from raytrain.parallel.base import Parallel

if TYPE_CHECKING:
    from torch import nn

    from raytrain.parallel.strategy import RankContext, Shape, Strategy


@dataclass(frozen=True)
class TensorParallel(Parallel):
    """Linear layers over the workers as DTensors (torch.distributed.tensor.parallel): of two that follow each other
    the first by columns and the second by rows, which exchange one sum (Shoeybi et al., 2019). All else is on every
    worker. With more workers than shards there are several such copies, whose gradients are added up."""

    shards: int | None = None
    """Workers that share one copy of the model; None is all workers."""

    sharded: ClassVar[bool] = True
    """A rank has a part of each linear layer."""
    spreads: ClassVar[bool] = True
    """Linear layers are filled and sharded one after the other."""

    def __post_init__(self) -> None:
        check(self, shards=at_least(2))

    @property
    def scales(self) -> bool:
        """PyTorch's gradient scaler takes no mixture of sharded and plain tensors."""
        return False

    def replicas(self, workers: int) -> int:
        """Copy of the model."""
        return max(1, workers // self._size(workers))

    def on_device(self, state: int, workers: int) -> int:
        """Return an even part of the copy, as if all of it were sharded."""
        return state // self._size(workers)

    def check(self, module: nn.Module, workers: int, gpus_per_worker: float, micro_batches: int) -> str:
        """Workers make whole copies, and some linear layer can be sharded."""
        size = self._size(workers)
        if workers < 2 or workers % size:
            raise errors.UserError(
                f"{workers} worker{'s' if workers > 1 else ''} cannot be divided into replicas of {max(2, size)}",
                "in parallel.shards",
                f"use a multiple of {max(2, size)} for --scaling.workers, or --parallel.strategy ddp",
            )
        from raytrain.parallel.cutting import styles  # torch: `--help` needs the fields only

        how = {"first": "columns", "second": "rows"}
        return ", ".join(f"{name} by {how.get(style, style)}" for name, style in styles(module, size).items())

    def setup(self, build: Callable[[], nn.Module], ranks: RankContext, shape: Shape) -> Strategy:
        """As the base class, with linear layers sharded in place."""
        from raytrain.parallel.dtensors import Parts, TensorSharded  # torch: `--help` needs the fields only

        return TensorSharded(Parts(build, ranks), ranks, self._size(ranks.world))

    def _size(self, workers: int) -> int:
        return self.shards or workers
