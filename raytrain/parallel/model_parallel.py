"""Model parallel: the layers of one model over several devices of a worker, one part after the other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from raytrain import errors
from raytrain.config import at_least, check
from raytrain.parallel.base import Parallel, cutting

if TYPE_CHECKING:
    import torch
    from torch import nn

    from raytrain.parallel.strategy import RankContext, Shape, Strategy


@dataclass(frozen=True)
class ModelParallel(Parallel):
    """The model's layers, in their order, over the GPUs of a worker; with several workers each of them is a
    DistributedDataParallel replica of several devices."""

    parts: int = 2
    """Devices of a worker that the layers are spread over, so that each holds about as many parameters. On CPUs all of
    them are the CPU."""
    find_unused_parameters: bool = False
    """With several workers, let DistributedDataParallel look for parameters without a gradient, which some models have
    in some steps."""

    spreads: ClassVar[bool] = True
    """Layers are filled where they belong."""

    def __post_init__(self) -> None:
        check(self, parts=at_least(2))

    def uncaptured(self, workers: int) -> str:
        """See the base class."""
        return "the model is on several devices"

    def share(self, module: nn.Module, workers: int) -> float:
        """Return that of the device whose part is the largest."""
        return cutting().largest(module, self._parameters(module))

    def check(self, module: nn.Module, workers: int, gpus_per_worker: float, micro_batches: int) -> str:
        """Check that a worker has a GPU for each part, or none, and that the model has enough layers."""
        if 0 < gpus_per_worker < self.parts:
            raise errors.UserError(
                f"{self.parts} parts need as many GPUs of a worker, which has {gpus_per_worker:g}",
                "in parallel.parts",
                f"use --scaling.gpus_per_worker {self.parts}",
            )
        return cutting().described(module, self._parameters(module))

    def setup(self, build: Callable[[], nn.Module], ranks: RankContext, shape: Shape) -> Strategy:
        """As the base class, with the layers on the rank's first devices; on CPUs all parts are on one."""
        from raytrain.parallel import cutting, distributed, materialise, strategy  # torch: `--help` needs fields only

        model = materialise.Parts(build, ranks)
        module = model.module
        places = ranks.devices[: self.parts] if ranks.more else [ranks.device] * self.parts
        for layers, place in zip(cutting.split(module, self.parts), places, strict=True):
            for layer in layers:
                model.fill(layer, place)
                layer.register_forward_pre_hook(_Moved(place))
        model.fill(module, ranks.device)
        module.register_forward_hook(_Moved(ranks.device))
        if ranks.world == 1:
            return strategy.Strategy(module, ranks)
        look = self.find_unused_parameters or distributed.keeps_buckets(ranks)
        return distributed.Distributed(module, ranks, find_unused_parameters=look)

    def _parameters(self, module: nn.Module) -> list[list[nn.Parameter]]:
        """Return those of each part."""
        parts = cutting().split(module, self.parts)
        return [[parameter for layer in part for parameter in layer.parameters()] for part in parts]


class _Moved:
    """A hook that moves a layer's inputs, or the model's output, to a device."""

    def __init__(self, device: torch.device):
        self.device = device

    def __call__(self, module: nn.Module, values: Any, output: Any = None) -> Any:
        values = values if output is None else output
        return tuple(map(self._move, values)) if isinstance(values, tuple) else self._move(values)

    def _move(self, value: Any) -> Any:
        return value.to(self.device, non_blocking=True) if hasattr(value, "to") else value
