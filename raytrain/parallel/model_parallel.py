"""Model parallel: the layers of one model over several devices of a worker, one part after the other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from raytrain import errors
from raytrain.config import at_least, check
from raytrain.parallel.base import Parallel

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

    def __post_init__(self) -> None:
        check(self, parts=at_least(2))

    def on_device(self, state: int, workers: int) -> int:
        """Return an even part."""
        return state // self.parts

    def check(self, module: nn.Module, workers: int, gpus_per_worker: float, micro_batches: int) -> str:
        """A worker has a GPU for each part, or none; and the model has as many layers."""
        if 0 < gpus_per_worker < self.parts:
            raise errors.UserError(
                f"{self.parts} parts need as many GPUs of a worker, which has {gpus_per_worker:g}",
                "in parallel.parts",
                f"take --scaling.gpus_per_worker {self.parts}",
            )
        return described(
            module, [[p for layer in part for p in layer.parameters()] for part in split(module, self.parts)]
        )

    def setup(self, build: Callable[[], nn.Module], ranks: RankContext, shape: Shape) -> Strategy:
        """As the base class, with the layers on the rank's first devices; on CPUs all parts are on one."""
        from raytrain.parallel.strategy import Strategy

        module, devices = build().to(ranks.device), ranks.devices
        places = devices[: self.parts] if ranks.more else [ranks.device] * self.parts
        for layers, place in zip(split(module, self.parts), places, strict=True):
            for layer in layers:
                layer.to(place)
                layer.register_forward_pre_hook(_Moved(place))
        module.register_forward_hook(_Moved(ranks.device))
        if ranks.world == 1:
            return Strategy(module, ranks)
        from raytrain.parallel.distributed import Distributed

        return Distributed(module, ranks, find_unused_parameters=ranks.world > 2)


class _Moved:
    """A hook that moves what a layer takes, or what the model gives, to a device."""

    def __init__(self, device: torch.device):
        self.device = device

    def __call__(self, module: nn.Module, values: Any, output: Any = None) -> Any:
        values = values if output is None else output
        return tuple(map(self._move, values)) if isinstance(values, tuple) else self._move(values)

    def _move(self, value: Any) -> Any:
        return value.to(self.device, non_blocking=True) if hasattr(value, "to") else value


def split(module: nn.Module, parts: int) -> list[list[nn.Module]]:
    """The model's layers, in order, in parts of which the largest has as few parameters as can be.

    Raises:
        UserError: there are too few layers.
    """
    from torch import nn

    def heavy(layer: nn.Module) -> bool:
        return any(True for _ in layer.parameters())

    layers = list(module.children())
    while sum(map(heavy, layers)) < parts and any(isinstance(layer, nn.Sequential) for layer in layers):
        layers = [one for layer in layers for one in (layer if isinstance(layer, nn.Sequential) else (layer,))]
    if sum(map(heavy, layers)) < parts:
        names = ", ".join(type(layer).__name__ for layer in layers if heavy(layer)) or "none"
        raise errors.UserError(
            f"{parts} parts need as many layers with parameters, and {type(module).__name__} has: {names}",
            "in parallel.parts",
            "take fewer parts, or --parallel.strategy ddp",
        )
    sizes = [sum(parameter.numel() for parameter in layer.parameters()) for layer in layers]
    ends = balanced(sizes, parts)
    return [layers[start:end] for start, end in zip((0, *ends), ends, strict=False)]


def described(module: nn.Module, parts: list[list[nn.Parameter]]) -> str:
    """The names of each part's first and last layer."""
    names = {id(parameter): name.rpartition(".")[0] or name for name, parameter in module.named_parameters()}
    each = [list(dict.fromkeys(names[id(parameter)] for parameter in part)) for part in parts]
    return " | ".join(layers[0] if len(layers) == 1 else f"{layers[0]} to {layers[-1]}" for layers in each)


def balanced(sizes: list[int], parts: int) -> tuple[int, ...]:
    """Where parts of a row end, of which none is all zeros and the largest is as small as can be."""
    before = [0, *accumulate(sizes)]

    @cache
    def cut(pieces: int, end: int) -> tuple[float, tuple[int, ...]]:
        """(the largest of so many pieces of what comes before `end`, where they end)."""
        if pieces == 1:
            return (before[end] or float("inf")), (end,)
        tried = [(cut(pieces - 1, start), before[end] - before[start]) for start in range(pieces - 1, end)]
        return min((max(rest[0], size or float("inf")), (*rest[1], end)) for rest, size in tried)

    return cut(parts, len(sizes))[1]
