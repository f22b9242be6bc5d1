"""Precision: what the forward pass computes in, and how gradients are scaled for it.

One small object: a forward context, a backward, a step and a state. Weights and optimizer state stay float32. Beside it
stand the order of its tensors in memory, and the choice of the faster precision by trying.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist

_MARGIN = 0.95
"""bf16 is chosen where its step takes at most this share of the fp32 step's time."""
_ROUNDS, _TRIAL_SECONDS = 7, 2.0

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
        return nullcontext() if self.dtype is None else torch.autocast(self.device_type, dtype=self.dtype)

    def scaled(self, loss: torch.Tensor) -> torch.Tensor:
        """A scalar loss to go back from, scaled where the precision needs it."""
        return self.scaler.scale(loss)

    def unscale(self, optimizer: torch.optim.Optimizer, together: bool) -> None:
        """Brings the gradients back to their true size, and finds out whether they overflowed.

        Args:
            together: whether ranks hold different gradients, and must hear of each other's overflow. A collective then.
        """
        if not self.scaler.is_enabled():
            return
        if together:  # PyTorch makes the scale when it scales, and a rank of a pipeline may have no loss
            self.scaler.scale(torch.zeros((), device=optimizer.param_groups[0]["params"][0].device))
        self.scaler.unscale_(optimizer)
        if together:
            for found in self.scaler._found_inf_per_device(optimizer).values():
                dist.all_reduce(found, op=dist.ReduceOp.MAX)

    def step(self, optimizer: torch.optim.Optimizer) -> bool:
        """Updates the weights; with fp16 a step whose gradients overflowed is left out and the scale halves. Returns
        whether they were updated."""
        if not self.scaler.is_enabled():
            optimizer.step()
            return True
        before = self.scaler.get_scale()
        self.scaler.step(optimizer)
        self.scaler.update()
        return self.scaler.get_scale() >= before

    def state_dict(self) -> dict[str, Any]:
        """The scaler's scale and growth counter; empty for fp32 and bf16."""
        return self.scaler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse of `state_dict`."""
        if state and self.scaler.is_enabled():
            self.scaler.load_state_dict(state)


def faster(step: Callable[[Precision], object], device: torch.device) -> str:
    """Tries fp32 and bf16 in turn, for two seconds at most, and names the faster one.

    Args:
        step: forward and backward pass of one micro-batch in a given precision.

    Returns:
        `bf16` where it is clearly faster, else `fp32`.
    """
    if device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        return "fp32"
    sides = {name: Precision(name, device) for name in ("fp32", "bf16")}
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    began = time.perf_counter()
    for round_ in range(1 + _ROUNDS):
        for name, precision in sides.items():
            started = time.perf_counter()
            step(precision)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            if round_:  # the first of each compiles kernels and allocates memory
                seconds[name].append(time.perf_counter() - started)
        if round_ and time.perf_counter() - began > _TRIAL_SECONDS:
            break
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    return "bf16" if medians["bf16"] <= _MARGIN * medians["fp32"] else "fp32"


def memory_format(name: str) -> torch.memory_format:
    """PyTorch's value for `channels_last`, and contiguous for all else."""
    return torch.channels_last if name == "channels_last" else torch.contiguous_format
