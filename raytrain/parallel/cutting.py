"""Where the strategies cut a model: into parts of its layers, linear layers into shards, and blocks."""

from __future__ import annotations

from functools import cache
from itertools import accumulate

from torch import nn

from raytrain import errors

_ELEMENTWISE = ("ReLU", "ReLU6", "LeakyReLU", "GELU", "SiLU", "Hardswish", "Tanh", "Sigmoid", "ELU", "Identity")
"""Layers of torch.nn that treat each column of their input alike."""


def split(module: nn.Module, parts: int) -> list[list[nn.Module]]:
    """Return the model's layers, in order, in parts whose largest has as few parameters as possible.

    Raises:
        UserError: there are too few layers.
    """

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
            "use fewer parts, or --parallel.strategy ddp",
        )
    sizes = [sum(parameter.numel() for parameter in layer.parameters()) for layer in layers]
    ends = balanced(sizes, parts)
    return [layers[start:end] for start, end in zip((0, *ends), ends, strict=False)]


def described(module: nn.Module, parts: list[list[nn.Parameter]]) -> str:
    """Return the names of each part's first and last layer."""
    names = {id(parameter): name.rpartition(".")[0] or name for name, parameter in module.named_parameters()}
    each = [list(dict.fromkeys(names[id(parameter)] for parameter in part)) for part in parts]
    return " | ".join(layers[0] if len(layers) == 1 else f"{layers[0]} to {layers[-1]}" for layers in each)


def balanced(sizes: list[int], parts: int) -> tuple[int, ...]:
    """Return the ends of consecutive parts. No part is all zeros, and the largest sum is as small as possible."""
    before = [0, *accumulate(sizes)]

    @cache
    def cut(pieces: int, end: int) -> tuple[float, tuple[int, ...]]:
        """(the largest of so many pieces of what comes before `end`, where they end)."""
        if pieces == 1:
            return (before[end] or float("inf")), (end,)
        tried = [(cut(pieces - 1, start), before[end] - before[start]) for start in range(pieces - 1, end)]
        return min((max(rest[0], size or float("inf")), (*rest[1], end)) for rest, size in tried)

    return cut(parts, len(sizes))[1]


def styles(module: nn.Module, size: int) -> dict[str, str]:
    """Return how each linear layer is cut, by its name: first and second of a pair, or rows or columns of a single
    layer.

    Raises:
        UserError: none can be.
    """
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
            "use another number of shards, or --parallel.strategy fsdp",
        )
    return chosen


def blocks(module: nn.Module, least: int) -> list[nn.Module]:
    """Return the children, and the children of ModuleLists among them, that are large enough to be gathered
    separately."""
    found: list[nn.Module] = []
    for child in module.children():
        if sum(parameter.numel() for parameter in child.parameters()) >= least:
            found += blocks(child, least) if isinstance(child, nn.ModuleList) else [child]
    return found
