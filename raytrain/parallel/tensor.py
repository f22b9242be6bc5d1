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

_ELEMENTWISE = ("ReLU", "ReLU6", "LeakyReLU", "GELU", "SiLU", "Hardswish", "Tanh", "Sigmoid", "ELU", "Identity")
"""Layers of torch.nn that do not care which columns of their input they see."""


@dataclass(frozen=True)
class TensorParallel(Parallel):
    """Linear layers over the workers as DTensors (torch.distributed.tensor.parallel): of two that follow each other
    the first by columns and the second by rows, which exchange one sum (Shoeybi et al., 2019). All else is on every
    worker. With more workers than shards there are several such copies, whose gradients are added up."""

    shards: int | None = None
    """Workers that share one copy of the model; None is all workers."""

    sharded: ClassVar[bool] = True
    """A rank has a part of each linear layer."""

    def __post_init__(self) -> None:
        check(self, shards=at_least(2))

    @property
    def scales(self) -> bool:
        """PyTorch's gradient scaler takes no mixture of sharded and plain tensors."""
        return False

    def replicas(self, workers: int) -> int:
        """Copies of the model."""
        return max(1, workers // self._size(workers))

    def on_device(self, state: int, workers: int) -> int:
        """Return an even part of the copy, as if all of it were sharded."""
        return state // self._size(workers)

    def check(self, module: nn.Module, workers: int, gpus_per_worker: float, micro_batches: int) -> str:
        """Workers make whole copies, and some linear layer can be sharded."""
        size = self._size(workers)
        if workers < 2 or workers % size:
            raise errors.UserError(
                f"{workers} worker{'s do' if workers > 1 else ' does'} not share copies of a model by {max(2, size)}",
                "in parallel.shards",
                f"take a multiple of {max(2, size)} for --scaling.workers, or --parallel.strategy ddp",
            )
        how = {"first": "columns", "second": "rows"}
        return ", ".join(f"{name} by {how.get(style, style)}" for name, style in styles(module, size).items())

    def setup(self, build: Callable[[], nn.Module], ranks: RankContext, shape: Shape) -> Strategy:
        """As the base class, with linear layers sharded in place."""
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor.parallel import (
            ColwiseParallel,
            ParallelStyle,
            RowwiseParallel,
            parallelize_module,
        )
        from torch.distributed.tensor.placement_types import Replicate

        from raytrain.parallel.dtensors import TensorSharded

        module, size = build().to(ranks.device), self._size(ranks.world)
        mesh = init_device_mesh(ranks.device.type, (ranks.world // size, size), mesh_dim_names=("replica", "shard"))
        every = Replicate()
        made: dict[str, ParallelStyle] = {
            "first": ColwiseParallel(),
            "second": RowwiseParallel(),
            "columns": ColwiseParallel(output_layouts=every),
            "rows": RowwiseParallel(input_layouts=every),
        }
        plan = {name: made[style] for name, style in styles(module, size).items()}
        return TensorSharded(parallelize_module(module, mesh["shard"], plan), ranks, mesh)

    def _size(self, workers: int) -> int:
        return self.shards or workers


def styles(module: nn.Module, size: int) -> dict[str, str]:
    """How each linear layer is cut, by its name: first and second of a pair, or rows or columns of one by itself.

    Raises:
        UserError: none can be.
    """
    from torch import nn

    linear = {name: layer for name, layer in module.named_modules() if type(layer) is nn.Linear}
    chosen: dict[str, str] = {}
    for path, parent in module.named_modules():
        first: str | None = None
        for name, layer in parent.named_children() if isinstance(parent, nn.Sequential) else ():
            full = f"{path}.{name}" if path else name
            if full in linear:
                if first and linear[first].out_features % size == 0:
                    chosen |= {first: "first", full: "second"}
                    first = None
                else:
                    first = full
            elif type(layer).__name__ not in _ELEMENTWISE and getattr(layer, "p", 1.0) != 0.0:  # a Dropout of nothing
                first = None
    for name, layer in linear.items():
        if name not in chosen and layer.in_features % size == 0:
            chosen[name] = "rows"
        elif name not in chosen and layer.out_features % size == 0:
            chosen[name] = "columns"
    if not chosen:
        known = ", ".join(f"{name} ({one.in_features} to {one.out_features})" for name, one in linear.items())
        raise errors.UserError(
            f"no linear layer of {type(module).__name__} can be cut into {size}: " + (known or "it has none"),
            "in parallel.shards",
            "take another number of shards, or --parallel.strategy fsdp",
        )
    return chosen
