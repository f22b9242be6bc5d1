"""SyncBatchNorm for ranks that have fewer micro-batches than others."""

from __future__ import annotations

import torch
from torch import nn


class SyncedBatchNorm(nn.SyncBatchNorm):
    """torch.nn.SyncBatchNorm whose statistics leave out blank passes.

    Attributes:
        blank: whether the present pass stands in for samples that this rank does not have. It then joins the other
            ranks' collectives with no samples, and gives zeros, whose gradient is zero.
    """

    blank: bool = False

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return the normalised [n, channels, ...]."""
        if not (self.blank and self.training):
            return super().forward(input)
        nothing = input[:0]
        if nothing.dtype in (torch.float16, torch.bfloat16):  # the others' statistics are float32
            nothing = nothing.float()
        return torch.zeros_like(input) + super().forward(nothing).sum()


def synchronise(module: nn.Module) -> None:
    """Turn a module's BatchNorm layers into synchronised ones, in place: names, parameters and buffers stay."""
    nn.SyncBatchNorm.convert_sync_batchnorm(module)
    for layer in module.modules():
        if isinstance(layer, nn.SyncBatchNorm):
            layer.__class__ = SyncedBatchNorm
