"""Layers of which a rank holds a shard, and computes with it: attention by heads, and pairs of convolutions by channels
(Shoeybi et al., 2019). Linear layers are those of torch.distributed.tensor.parallel."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.placement_types import Partial, Replicate, Shard
from torch.nn import functional as F

from raytrain.parallel.strategy import local


def enter(whole: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
    """Return what all shards of a layer work on; its gradient is the sum of theirs. A collective of the backward
    pass."""
    return DTensor.from_local(whole, mesh, [Replicate()], run_check=False).to_local(grad_placements=[Partial()])


def leave(part: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
    """Return the sum of what the shards of a layer give. A collective."""
    return DTensor.from_local(part, mesh, [Partial()], run_check=False).full_tensor()


class _Local(nn.Module):
    """A layer whose own code sees the shards of its tensors."""

    mesh: DeviceMesh

    def __getattr__(self, name: str) -> Any:
        value = super().__getattr__(name)
        return local(value) if isinstance(value, DTensor) else value


class Columns(_Local, nn.Linear):
    """A linear layer that gives a shard of its columns."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """See the base class."""
        return super().forward(enter(input, self.mesh))


class Outputs(_Local, nn.Conv2d):
    """A convolution that gives a shard of its channels."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """See the base class."""
        return super().forward(enter(input, self.mesh))


class Channels(_Local, nn.BatchNorm2d):
    """BatchNorm of a shard of its channels."""


class Inputs(_Local, nn.Conv2d):
    """A convolution of a shard of its input channels."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """See the base class."""
        found = leave(self._conv_forward(input, self.weight, None), self.mesh)
        return found if self.bias is None else found + self.bias.to(found.dtype)[:, None, None]


class Rows(_Local, nn.Linear):
    """A linear layer of a shard of its input's columns."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """See the base class."""
        found = leave(F.linear(input, self.weight), self.mesh)
        return found if self.bias is None else found + self.bias.to(found.dtype)


class _Entered(nn.Module):
    """A layer that all ranks hold, and apply to what their shards give."""

    mesh: DeviceMesh

    def __getattr__(self, name: str) -> Any:
        value = super().__getattr__(name)
        return enter(value, self.mesh) if isinstance(value, nn.Parameter) else value


class Heads(nn.MultiheadAttention):
    """Attention of a shard of its heads. Its weights stay DTensors for other code: torch's fused kernels for whole
    layers do not take those."""

    mesh: DeviceMesh

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        key_padding_mask: torch.Tensor | None = None,
        need_weights: bool = True,
        attn_mask: torch.Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """See the base class."""
        batched, first = query.dim() == 3, self.batch_first or query.dim() == 2
        given = {id(one): one if batched else one[None] for one in (query, key, value)}
        inside = {at: enter(one if first else one.transpose(0, 1), self.mesh) for at, one in given.items()}
        weights = local(self.in_proj_weight).chunk(3)
        biases = (None,) * 3 if self.in_proj_bias is None else local(self.in_proj_bias).chunk(3)
        q, k, v = (
            F.linear(inside[id(one)], weight, bias).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for one, weight, bias in zip((query, key, value), weights, biases, strict=True)
        )
        mask = self._mask(q, attn_mask, key_padding_mask)
        scores = None
        if need_weights:
            products = q * self.head_dim**-0.5 @ k.transpose(-2, -1)
            scores = (products if mask is None else products + mask).softmax(-1)
            found = scores @ v
        else:
            found = F.scaled_dot_product_attention(q, k, v, mask)
        found = leave(F.linear(found.transpose(1, 2).flatten(2), local(self.out_proj.weight)), self.mesh)
        if self.out_proj.bias is not None:
            found = found + self.out_proj.bias.to(found.dtype)
        if scores is not None:
            if average_attn_weights:
                scores = leave(scores.sum(1) / self.num_heads, self.mesh)
            else:
                scores = DTensor.from_local(scores, self.mesh, [Shard(1)], run_check=False).full_tensor()
        if not batched:
            return found[0], None if scores is None else scores[0]
        return found if first else found.transpose(0, 1), scores

    def _mask(self, q: torch.Tensor, attn: torch.Tensor | None, padding: torch.Tensor | None) -> torch.Tensor | None:
        """Return what is added to the products [n, heads, L, S], as this rank's heads need it; None for no masks.

        Args:
            q: [n, heads, L, channels].
        """
        samples, heads = q.shape[:2]
        masks: list[torch.Tensor] = []
        if attn is not None:
            every = attn.dim() == 3
            number = self.mesh.get_local_rank()
            masks.append(attn.unflatten(0, (samples, -1))[:, number * heads :][:, :heads] if every else attn)
        if padding is not None:
            masks.append(padding.reshape(samples, 1, 1, -1))
        found = [
            torch.zeros_like(mask, dtype=q.dtype).masked_fill(mask, float("-inf")) if mask.dtype == torch.bool else mask
            for mask in masks
        ]
        return sum(found[1:], found[0]) if found else None


def _of(layer: nn.Module, kind: type[nn.Module], mesh: DeviceMesh) -> None:
    """Make a layer one of another class; its tensors stay."""
    layer.__class__ = kind
    layer.mesh = mesh  # type: ignore[assignment]


def compute(layer: nn.Module, style: str, mesh: DeviceMesh) -> None:
    """Let a layer whose tensors are shards compute with them.

    Args:
        style: see `cutting.styles`: heads, outputs, inputs or channels.
    """
    kinds = {"outputs": Outputs, "inputs": Inputs, "channels": Channels, "heads": Heads}
    if style != "heads" or isinstance(layer, nn.MultiheadAttention):
        _of(layer, kinds[style], mesh)
        return
    attention: Any = layer  # timm's, whose own code asks for the number of heads and for their width
    attention.num_heads //= mesh.size()
    attention.attn_dim //= mesh.size()
    _of(attention.qkv, Columns, mesh)
    _of(attention.proj, Rows, mesh)
    for norm in (attention.q_norm, attention.k_norm):
        kind = type(norm)
        _of(norm, type(kind.__name__, (_Entered, kind), {}), mesh)
