"""Precision: what the forward pass computes in, and how gradients are scaled for it.

One small object: a forward context, a backward, a step and a state. Weights and optimizer state stay float32.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Literal

import torch

Name = Literal["fp32", "bf16", "fp16"]

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Precision:
    """Mixed precision by `torch.amp`: fp32 does nothing, bf16 casts, fp16 casts and scales the loss.

    Args:
        name: fp32, bf16 or fp16.
        device: where the model lives.
    """

    def __init__(self, name: str, device: torch.device):
        self.dtype = _DTYPES.get(name)
        self.device_type = device.type
        self.scaler = torch.amp.GradScaler(device.type, enabled=name == "fp16")

    def forward(self) -> AbstractContextManager[Any]:
        """The context for forward passes and losses."""
        return torch.autocast(self.device_type, dtype=self.dtype, enabled=self.dtype is not None)

    def backward(self, loss: torch.Tensor) -> None:
        """Accumulates the gradients of a scalar loss, scaled where the precision needs it."""
        self.scaler.scale(loss).backward()

    def unscale(self, optimizer: torch.optim.Optimizer) -> None:
        """Brings the gradients back to their true size, for clipping."""
        self.scaler.unscale_(optimizer)

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Updates the weights; with fp16 a step whose gradients overflowed is left out and the scale halves."""
        self.scaler.step(optimizer)
        self.scaler.update()

    def state_dict(self) -> dict[str, Any]:
        """The scaler's scale and growth counter; empty for fp32 and bf16."""
        return self.scaler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse of `state_dict`."""
        if state and self.scaler.is_enabled():
            self.scaler.load_state_dict(state)
