"""Activation checkpointing: blocks whose activations are not kept for the backward pass, which computes them again."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import cache, partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from raytrain import errors
from raytrain.parallel.blocks import blocks


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
    found = blocks(module)[:: 1 if setting == "block" else int(setting)]
    for block in found:
        block.__class__ = _recomputed(type(block))
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
    count = len(found[:: 1 if setting == "block" else int(setting)])
    return [f"activations of {count} of {len(found)} blocks are computed again in the backward pass"]


@cache
def _recomputed(kind: type[nn.Module]) -> type[nn.Module]:
    """Return a class of modules like another, whose activations are not kept. A class, since copies of a module take
    over its attributes."""

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return kind.forward(self, *args, **kwargs)
        contexts = partial(_contexts, self)
        return checkpoint(kind.forward, self, *args, use_reentrant=False, context_fn=contexts, **kwargs)

    return type(kind.__name__, (kind,), {"forward": forward, "__module__": kind.__module__, "__doc__": kind.__doc__})


def _contexts(block: nn.Module) -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    """Return the contexts of the forward pass and of its repetition, which starts with copies of the buffers as they
    are now: BatchNorm must count a batch once."""
    copies = [
        (layer, {name: None if value is None else value.clone() for name, value in layer._buffers.items()})
        for layer in block.modules()
        if layer.training and layer._buffers
    ]
    return nullcontext(), _with_buffers(copies)


@contextlib.contextmanager
def _with_buffers(copies: list[tuple[nn.Module, dict[str, torch.Tensor | None]]]) -> Iterator[None]:
    kept = [(layer, dict(layer._buffers)) for layer, _ in copies]
    for layer, values in copies:
        layer._buffers.update(values)
    try:
        yield
    finally:
        for layer, values in kept:
            layer._buffers.update(values)
