"""Where the strategies cut a model: into parts of its layers, and layers into shards."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from itertools import accumulate
from typing import Any

from torch import nn

from raytrain import errors
from raytrain.parallel.pairs import Pair, pairs


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


def largest(module: nn.Module, parts: list[list[nn.Parameter]]) -> float:
    """Return the share of the module's parameters that is in the largest part."""
    sizes = [sum(parameter.numel() for parameter in dict.fromkeys(part)) for part in parts]
    return max(sizes) / sum(parameter.numel() for parameter in module.parameters())


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


def styles(module: nn.Module, size: int, least: int) -> dict[str, str]:
    """Return how each layer is cut into shards, by its name.

    | layer | style |
    |---|---|
    | attention | heads |
    | linear layers | first and second of a pair; rows or columns of a single one |
    | convolutions | outputs and inputs of a pair, channels of a BatchNorm layer between them |

    Args:
        size: shards.
        least: parameters of the smallest pair of convolutions that is worth an exchange.

    Raises:
        UserError: no layer can be cut.
    """
    found, read = pairs(module)
    count = Counter(id(tensor) for _, tensor in module.named_parameters(remove_duplicate=False))
    layers = {
        name: layer
        for name, layer in module.named_modules()
        # A shard of a tensor that several layers share would be that of one, and code that reads one expects all.
        if name not in read and all(count[id(tensor)] == 1 for tensor in layer.parameters()) and not _has_hooks(layer)
    }
    chosen = {name: "heads" for name, layer in layers.items() if _has_heads(layer, size)}
    within = tuple(f"{name}." for name in chosen)
    linear = {name: layer for name, layer in layers.items() if type(layer) is nn.Linear and not name.startswith(within)}
    found = [pair for pair in found if layers.keys() >= {pair[0], *pair[1], pair[2]}]
    for first, _, second in found:
        if {first, second} <= linear.keys() - chosen.keys() and linear[first].out_features % size == 0:
            chosen |= {first: "first", second: "second"}
    chosen |= _convolutions(layers, found, size, least)
    for name, layer in linear.items():
        if name not in chosen and layer.in_features % size == 0:
            chosen[name] = "rows"
        elif name not in chosen and layer.out_features % size == 0:
            chosen[name] = "columns"
    if not chosen:
        known = ", ".join(f"{name} ({one.in_features} to {one.out_features})" for name, one in linear.items())
        raise errors.UserError(
            f"no linear layer, attention or pair of convolutions of {type(module).__name__} can be cut into {size}"
            + (f": {known}" if known else ""),
            "in parallel.shards",
            "use another number of shards, or --parallel.strategy fsdp",
        )
    return {name: chosen[name] for name in layers if name in chosen}


def _convolutions(layers: dict[str, nn.Module], found: list[Pair], size: int, least: int) -> dict[str, str]:
    """Return the styles of the pairs of convolutions that are cut: of those that share a layer, the one with more
    parameters, or else the later one, since images shrink from layer to layer."""
    sizes: dict[Pair, int] = {}
    for pair in found:
        first, second = layers[pair[0]], layers[pair[2]]
        if isinstance(first, nn.Conv2d) and isinstance(second, nn.Conv2d) and first.groups == second.groups == 1:
            parameters = sum(tensor.numel() for layer in (first, second) for tensor in layer.parameters())
            if first.out_channels % size == 0 and parameters >= least:
                sizes[pair] = parameters
    chosen: dict[str, str] = {}
    for pair in sorted(reversed(sizes), key=lambda pair: sizes[pair], reverse=True):
        first, norms, second = pair
        if not {first, second} & chosen.keys():
            chosen |= {first: "outputs", **dict.fromkeys(norms, "channels"), second: "inputs"}
    return chosen


def _has_hooks(layer: nn.Module) -> bool:
    """Return whether code of others runs with a layer, as torch's older `weight_norm` does, which makes its weight."""
    return any(one._forward_hooks or one._forward_pre_hooks for one in layer.modules())


def _has_heads(layer: nn.Module, size: int) -> bool:
    """Return whether a layer is an attention whose heads can be cut: torch's, or one with the attributes of timm's, and
    without what works on all heads at once. Dropout would drop the same of each shard's heads."""
    if type(layer) is nn.MultiheadAttention:
        plain = layer._qkv_same_embed_dim and layer.bias_k is None and not layer.add_zero_attn
        return plain and layer.dropout == 0 and layer.num_heads % size == 0
    if type(layer).__name__ != "Attention":
        return False
    found: Any = layer
    width, qkv, proj = (getattr(found, name, None) for name in ("attn_dim", "qkv", "proj"))
    if not isinstance(width, int) or type(qkv) is not nn.Linear or type(proj) is not nn.Linear:
        return False
    others = {name.partition(".")[0] for name, _ in layer.named_parameters()} - {"qkv", "proj", "q_norm", "k_norm"}
    fits = (qkv.out_features, proj.in_features) == (3 * width, width) and found.num_heads % size == 0
    return fits and not others and found.attn_drop.p == 0


def shards(module: nn.Module, chosen: dict[str, str]) -> dict[str, tuple[int, int]]:
    """Return how the tensors of cut layers are cut, by their names; all others are whole.

    Args:
        chosen: see `styles`.

    Returns:
        (the dimension, how many blocks of that dimension are cut each by itself: attention's weights are those of
        queries, keys and values, one after the other).
    """
    every, rows, packed = (0, 1), (1, 1), (0, 3)
    of = {"first": every, "columns": every, "outputs": every, "channels": every}
    of |= {"second": rows, "rows": rows, "inputs": rows}
    found: dict[str, tuple[int, int]] = {}
    for name, style in chosen.items():
        for inner, tensor in module.get_submodule(name).state_dict(keep_vars=True).items():
            layer = inner.rpartition(".")[0]
            cut = of.get(style, {"": packed, "qkv": packed, "proj": rows, "out_proj": rows}.get(layer))
            if cut and tensor.dim() > cut[0]:
                found[f"{name}.{inner}"] = cut
    return found


def summary(module: nn.Module, chosen: dict[str, str]) -> str:
    """Return which layers are cut and how, and which weights are whole."""
    how = {"first": "columns", "second": "rows", "outputs": "output channels", "inputs": "input channels"}
    of: dict[str, list[str]] = {}
    for name, style in chosen.items():
        if style != "channels":  # a BatchNorm layer between two convolutions
            of.setdefault(how.get(style, style), []).append(name)
    cut = shards(module, chosen)
    weights = [name for name, tensor in module.named_parameters() if tensor.dim() > 1 and name not in cut]
    whole = ", ".join(_alike([name.removesuffix(".weight") for name in weights]))
    found = [f"{name} by {style}" for style, names in of.items() for name in _alike(names)]
    return ", ".join(found) + (f"; whole on each worker: {whole}" if whole else "")


def _alike(names: list[str]) -> list[str]:
    """Return names with those that differ in numbers of blocks put together, as `blocks.0-11.qkv`."""
    number = r"\d+(?=\.)"
    alike: dict[str, list[list[str]]] = {}
    for name in names:
        alike.setdefault(re.sub(number, "{}", name), []).append(re.findall(number, name))
    return [name.format(*map(_numbers, zip(*found, strict=True))) for name, found in alike.items()]


def _numbers(found: tuple[str, ...]) -> str:
    numbers = sorted({*map(int, found)})
    if len(numbers) > 1 and numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"{numbers[0]}-{numbers[-1]}"
    return ",".join(map(str, numbers))
