"""Activation checkpointing: blocks whose activations are not kept for the backward pass, which computes them again.

All of a block's, or all but the outputs of the costly operations.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import cache, partial
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.checkpoint import checkpoint

from raytrain import errors
from raytrain.parallel.blocks import blocks

_COSTLY = frozenset(
    getattr(torch.ops.aten, name).default
    for name in (
        "mm",
        "addmm",
        "bmm",
        "baddbmm",
        "convolution",
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_cudnn_attention",
    )
)
"""Operations whose outputs `selective` keeps."""


def recompute(module: nn.Module, setting: str) -> int:
    """Let blocks of a model compute their activations again in the backward pass, with the same random numbers and the
    same buffers (torch.utils.checkpoint; Chen et al., 2016). Names and objects stay.

    Args:
        setting: `Experiment.activation_checkpointing`.

    Returns:
        The number of such blocks.
    """
    if setting == "none":
        return 0
    found = _chosen(blocks(module), setting)
    for block in found:
        block.__class__ = _recomputed(type(block), setting == "selective")
    return len(found)


def check(setting: str, module: nn.Module) -> list[str]:
    """Check that a model has blocks; return notes for the plan.

    Raises:
        UserError: it has none.
    """
    if setting == "none":
        return []
    if not (found := blocks(module)):
        what = f"{type(module).__name__} has no blocks: no layers of layers in a Sequential or a ModuleList"
        raise errors.UserError(what, "in activation_checkpointing", "use --activation_checkpointing none")
    but = " but for the outputs of products, convolutions and attention" if setting == "selective" else ""
    count = len(_chosen(found, setting))
    return [f"activations of {count} of {len(found)} blocks are computed again in the backward pass{but}"]


def _chosen(found: list[nn.Module], setting: str) -> list[nn.Module]:
    return found[:: int(setting) if setting.isdecimal() else 1]


@cache
def _recomputed(kind: type[nn.Module], selective: bool) -> type[nn.Module]:
    """Return a class of modules like another, whose activations are not kept. A class, since copies of a module take
    over its attributes."""

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return kind.forward(self, *args, **kwargs)
        contexts, before = partial(_contexts, self, selective), _versions((args, kwargs))
        found = checkpoint(kind.forward, self, *args, use_reentrant=False, context_fn=contexts, **kwargs)
        trained = any(leaf.requires_grad for leaf in tree_leaves(found) if isinstance(leaf, torch.Tensor))
        if trained and _versions((args, kwargs)) != before:
            what = f"{kind.__name__} changes its input in place, so that its activations cannot be computed again"
            how = "write inplace=False where it begins, or use --activation_checkpointing none"
            raise errors.UserError(what, "in activation_checkpointing", how)
        return found

    return type(kind.__name__, (kind,), {"forward": forward, "__module__": kind.__module__, "__doc__": kind.__doc__})


def _versions(inputs: Any) -> list[int]:
    """Return how often each tensor was changed in place."""
    return [leaf._version for leaf in tree_leaves(inputs) if isinstance(leaf, torch.Tensor)]


def _contexts(block: nn.Module, selective: bool) -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    """Return the contexts of the forward pass and of its repetition, which starts with copies of the buffers as they
    are now: BatchNorm must count a batch once."""
    copies = [
        (layer, {name: None if value is None else value.clone() for name, value in layer._buffers.items()})
        for layer in block.modules()
        if layer.training and layer._buffers
    ]
    outputs = _Outputs() if selective else None
    return outputs or nullcontext(), _again(copies, outputs)


@contextlib.contextmanager
def _again(copies: list[tuple[nn.Module, dict[str, torch.Tensor | None]]], outputs: _Outputs | None) -> Iterator[None]:
    kept = [(layer, dict(layer._buffers)) for layer, _ in copies]
    for layer, values in copies:
        layer._buffers.update(values)
    try:
        with _Given(outputs.kept) if outputs else nullcontext():
            yield
    finally:
        for layer, values in kept:
            layer._buffers.update(values)


class _Outputs(TorchDispatchMode):
    """Keeps the outputs of costly operations. torch's own selective checkpointing refuses blocks that change such an
    output in place, as `nn.ReLU(inplace=True)` behind a layer does; here a copy is kept of what is about to change."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: deque[Any] = deque()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func._schema.is_mutable:
            self._copy(_changed(func, args, kwargs))
        found = func(*args, **kwargs)
        if _is_costly(func, args, kwargs):
            self.kept.append(tree_map_only(torch.Tensor, torch.Tensor.detach, found))
        return found

    def _copy(self, changed: list[torch.Tensor]) -> None:
        """Keep copies of what shares its memory with tensors that are about to change."""
        memory = {tensor.untyped_storage()._cdata for tensor in changed}

        def copied(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.clone() if tensor.untyped_storage()._cdata in memory else tensor

        self.kept = deque(tree_map_only(torch.Tensor, copied, one) for one in self.kept)


class _Given(TorchDispatchMode):
    """Gives costly operations the outputs that were kept, in their order, instead of computing them."""

    def __init__(self, kept: deque[Any]) -> None:
        super().__init__()
        self._left = kept

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        return self._left.popleft() if _is_costly(func, args, kwargs) else func(*args, **kwargs)


def _is_costly(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether an output is kept: not attention with dropout, whose draws the repetition must make again, since
    later ones follow from them."""
    if func not in _COSTLY:
        return False
    given = dict(zip((argument.name for argument in func._schema.arguments), args, strict=False)) | kwargs
    return not given.get("dropout_p", 0.0)


def _changed(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """Return the tensors that an operation writes to."""
    written = []
    for place, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            written.append(args[place] if place < len(args) else kwargs.get(argument.name))
    return [leaf for leaf in tree_leaves(written) if isinstance(leaf, torch.Tensor)]
