"""Precision: the dtype of the forward pass, and the scaling of gradients.

One small object with a forward context, a backward, a step and a state. Weights and optimizer state stay float32. This
module also has the memory formats, and finds the fastest precision by trying.
"""

from __future__ import annotations

import contextlib
import math
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist

from raytrain import errors

_MARGIN = 0.95
"""A less exact precision is chosen where its pass takes at most this share of a more exact one's time."""
_FAR = 2.0
"""A precision that takes so many times as long as another, and has used up its time, is not tried again."""
_ROUNDS, _TRIAL_SECONDS = 7, 2.0

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
_TF32 = 2.0**-10
"""How far apart neighbouring numbers of tf32 are, as a share of their size."""


class Precision:
    """Mixed precision by `torch.amp`: fp32 does nothing, tf32 lets a GPU round the factors of matrix products, bf16
    casts, fp16 casts and scales the loss.

    Args:
        name: fp32, tf32, bf16 or fp16.
        device: where the model lives. What a CPU has no tf32 for is computed in fp32.

    Attributes:
        reads: whether `step` reads its decision from the device: on a CPU, where nothing has to be waited for.
    """

    def __init__(self, name: str, device: torch.device):
        self.name, self.dtype = name, _DTYPES.get(name)
        self.device_type, self.reads = device.type, device.type == "cpu"
        self.scaler = torch.amp.GradScaler(device.type, enabled=name == "fp16")

    def forward(self) -> AbstractContextManager[Any]:
        """Return the context for forward passes and losses."""
        return self.products() if self.dtype is None else torch.autocast(self.device_type, dtype=self.dtype)

    def products(self) -> AbstractContextManager[Any]:
        """Return the context for matrix products in tf32, also of backward passes. The setting is the process's, which
        may be a user's own."""
        return _tf32() if self.name == "tf32" and self.device_type == "cuda" else nullcontext()

    @property
    def spacing(self) -> float:
        """How far apart neighbouring numbers are to which a pass rounds, as a share of their size, at most."""
        return _TF32 if self.name == "tf32" else torch.finfo(self.dtype or torch.float32).eps

    def scaled(self, loss: torch.Tensor, factor: float = 1.0) -> torch.Tensor:
        """Return a scalar loss to go back from, scaled where the precision needs it.

        Args:
            factor: what gradients are multiplied by: a hook does so, which leaves out the kernel of a product whose
                value nobody reads.
        """
        if factor != 1.0:
            loss.register_hook(lambda gradient: gradient * factor)
        return self.scaler.scale(loss)

    @property
    def scale(self) -> float | torch.Tensor:
        """What gradients are multiplied by until they are unscaled: a tensor of one number in fp16, which the step
        after changes in place; 1 for all else."""
        scale = getattr(self.scaler, "_scale", None)  # `get_scale` would wait for the device
        return self.scaler.get_scale() if scale is None else scale

    def unscale(self, optimizer: torch.optim.Optimizer, together: bool) -> None:
        """Unscale the gradients, and find out whether they overflowed.

        Args:
            together: whether ranks hold different gradients, and must hear of each other's overflow. A collective then.
        """
        if not self.scaler.is_enabled():
            return
        device = optimizer.param_groups[0]["params"][0].device
        if together:  # PyTorch makes the scale when it scales, and a rank of a pipeline may have no loss
            self.scaler.scale(torch.zeros((), device=device))
        self.scaler.unscale_(optimizer)
        if together:
            found = self.scaler._found_inf_per_device(optimizer)
            if not found:  # no parameter of this rank has a gradient
                found[device] = torch.zeros(1, device=device)
            for each in found.values():
                dist.all_reduce(each, op=dist.ReduceOp.MAX)

    def step(self, optimizer: torch.optim.Optimizer, finite: torch.Tensor | None = None) -> bool | torch.Tensor:
        """Update the weights, unless gradients overflowed in fp16, which also halves the scale. On a GPU the kernels of
        PyTorch's fused optimizers decide, and the host waits for nothing; other optimizers make it wait.

        Args:
            finite: a bool tensor of one element that must be true for the update; in fp16 the scaler decides instead.

        Returns:
            Whether the weights were updated: a tensor of one element if the device alone knows.
        """
        if self.scaler.is_enabled():
            self.scaler.step(optimizer)
            first, *more = self.scaler._found_inf_per_device(optimizer).values()  # `update` forgets them
            for one in more:
                first = first + one.to(first.device, non_blocking=True)
            finite = torch.eq(first, 0)
            self.scaler.update()
        elif finite is None:
            optimizer.step()
            return True
        elif not self.reads and getattr(optimizer, "_step_supports_amp_scaling", False):
            # As GradScaler.step tells it to a fused optimizer.
            optimizer.grad_scale, optimizer.found_inf = None, (~finite).float()  # type: ignore[attr-defined]
            optimizer.step()
            del optimizer.grad_scale, optimizer.found_inf  # type: ignore[attr-defined]
        elif finite:
            optimizer.step()
        return bool(finite) if self.reads else finite

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The scaler's scale and growth counter, which `step` changes in place; none for fp32 and bf16."""
        values = (self.scaler._scale, self.scaler._growth_tracker) if self.scaler.is_enabled() else ()
        return [value for value in values if value is not None]

    def forget(self, optimizer: torch.optim.Optimizer) -> None:
        """Forget what is noted between `unscale` and the end of `step`, of a step that an error has ended."""
        if self.scaler.is_enabled():
            self.scaler._per_optimizer_states.clear()
        for name in ("grad_scale", "found_inf"):
            vars(optimizer).pop(name, None)

    def state_dict(self) -> dict[str, Any]:
        """Return the scaler's scale and growth counter; empty for fp32 and bf16."""
        return self.scaler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse of `state_dict`."""
        if state and self.scaler.is_enabled():
            self.scaler.load_state_dict(state)


@contextlib.contextmanager
def _tf32() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def check_device(name: str, device: torch.device) -> None:
    """Check that a device supports a precision natively; a GPU that emulates bf16 gains nothing.

    Raises:
        UserError: it does not. Where this process sees no GPU, a worker with one will look.
    """
    if name == "tf32" and device.type == "cpu":
        raise _no_precision(name, "the workers are on CPUs", "fp32, bf16 or auto")
    if name in ("tf32", "bf16") and device.type == "cuda" and torch.cuda.is_available() and not _ampere():
        raise _no_precision(name, f"this is a {torch.cuda.get_device_name()}", "fp32, fp16 or auto")


def available(device: torch.device, scales: bool = True) -> list[str]:
    """Return the precisions that a device supports natively, the most exact first.

    Args:
        scales: whether losses can be scaled, as fp16 needs it.
    """
    if device.type == "cpu":
        names = ["fp32", "bf16", "fp16"]
    else:
        names = ["fp32", "tf32", "bf16", "fp16"] if _ampere() else ["fp32", "fp16"]
    return [name for name in names if scales or name != "fp16"]


def fastest(
    step: Callable[[Precision], list[torch.Tensor]], device: torch.device, scales: bool = True, together: bool = False
) -> tuple[str, dict[str, float | None]]:
    """Try each precision that the device has in turn, for two seconds, not counting what is far too slow.

    Args:
        step: forward and backward pass of one micro-batch in a given precision; returns its loss and gradients.
        scales: whether losses can be scaled, as fp16 needs it.
        together: whether each pass is a collective: all ranks then go by the slowest one's time.

    Returns:
        The precision that is clearly faster than every more exact one, and the milliseconds of a pass in each; None
        where the loss or a gradient was not finite, or the pass failed.
    """
    names = available(device, scales)
    left = {name: Precision(name, device) for name in names}
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for round_ in range(1 + _ROUNDS):
        for name, precision in list(left.items()):
            started = time.perf_counter()
            try:
                found = step(precision)
            except Exception:  # such as of an operation that half precision lacks
                if together or name == names[0]:  # other ranks would wait for this one
                    raise
                found = [torch.full((), math.nan, device=device)]
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            took = time.perf_counter() - started
            failed = not torch.stack([tensor.isfinite().all() for tensor in found]).all()
            mark = torch.tensor([took, failed], dtype=torch.float64, device=device)
            if together:
                dist.all_reduce(mark, op=dist.ReduceOp.MAX)
            seconds[name].append(mark[0].item())
            if mark[1]:
                del left[name], seconds[name]
        least = min((seconds[name][-1] for name in left), default=0.0)
        for name in list(left):
            if seconds[name][-1] > _FAR * least and sum(seconds[name]) > _TRIAL_SECONDS:
                del left[name]
        if len(left) < 2 or (round_ and sum(sum(seconds[name]) for name in left) > _TRIAL_SECONDS):
            break
    # The first pass of each compiles kernels and allocates memory.
    medians = {name: statistics.median(values[1:] or values) for name, values in seconds.items()}
    chosen = "fp32"
    for name in medians:
        if medians[name] <= _MARGIN * medians.get(chosen, math.inf):
            chosen = name
    return chosen, {name: 1000 * medians[name] if name in medians else None for name in names}


def _ampere() -> bool:
    """Return whether this process's GPU has TF32 and bf16: compute capability 8.0 or higher."""
    return torch.cuda.is_bf16_supported(including_emulation=False)


def memory_format(name: str) -> torch.memory_format:
    """PyTorch's value for `channels_last`, and contiguous for all else."""
    return torch.channels_last if name == "channels_last" else torch.contiguous_format


def _no_precision(name: str, why: str, others: str) -> errors.UserError:
    return errors.UserError(
        f"{name} needs a GPU of compute capability 8.0 or higher, and {why}", "in precision", f"use {others}"
    )
