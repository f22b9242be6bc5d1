"""What tasks compute with torch, which they import late: losses of samples, and what evaluation collects."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from raytrain.tasks.metrics import PerSample

__all__ = ["PerSample"]

_OF_CLASSES = "torchmetrics.classification."
"""The modules of metrics that compare with classes."""


def count(number: float) -> torch.Tensor:
    """Return a number as a tensor on the CPU."""
    return torch.tensor(number)


@lru_cache(maxsize=8)
def numbers(values: tuple[float, ...], device: torch.device, dtype: torch.dtype = torch.float32) -> torch.Tensor | None:
    """Return floats [n] on a device, once made; None for no values."""
    if not values:
        return None
    with torch.inference_mode(False):  # training uses it too
        return torch.tensor(values, dtype=dtype, device=device)


def wide(values: torch.Tensor) -> torch.Tensor:
    """Return half-precision values as float32, and others as they are."""
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values


def classes(
    logits: torch.Tensor, wanted: torch.Tensor, weights: tuple[float, ...], smoothing: float, gamma: float
) -> torch.Tensor:
    """Return the sum over samples of the cross entropy, each class's part of it weighted.

    Args:
        logits: [n, classes].
        wanted: int64 [n] labels, or float32 [n, classes] shares.
        weights: a factor for each class; empty for none.
        smoothing: share of the target that is spread over all classes.
        gamma: the focal loss's exponent; 0 is the plain cross entropy.
    """
    if not gamma:
        if weights:
            logits = wide(logits)
        weight = numbers(weights, logits.device, logits.dtype)
        return functional.cross_entropy(logits, wanted, weight, label_smoothing=smoothing, reduction="sum")
    count = logits.shape[1]
    logs = wide(logits).log_softmax(1)
    shares = wanted if wanted.is_floating_point() else functional.one_hot(wanted, count)
    shares = shares * (1 - smoothing) + smoothing / count
    # Below 1e-12 the factor has no gradient: that of x ** gamma is infinite at 0 for gamma below 1.
    parts = (-logs.expm1()).clamp_min(1e-12) ** gamma * -logs * shares
    weight = numbers(weights, logits.device)
    return (parts if weight is None else parts * weight).sum()


def mean_share(logits: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the logarithm of the mean probabilities of several answers [n, classes, ...], float32."""
    shares = torch.stack([one.float().softmax(dim=1) for one in logits]).mean(dim=0)
    return shares.clamp_min(torch.finfo(torch.float32).tiny).log()


def mean(outputs: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the mean of several answers, float32 for those of half precision."""
    return torch.stack([wide(one) for one in outputs]).mean(dim=0)


def mean_of_each(logits: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the logits of the mean probabilities of several answers to yes-or-no questions, float32."""
    return torch.stack([one.double().sigmoid() for one in logits]).mean(dim=0).logit(eps=1e-12).float()


def labels(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return the cross entropy of each sample, float32 [n]."""
    return functional.cross_entropy(logits.float(), target, reduction="none")


def places(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return how many classes come before each sample's own, int64 [n]: those with a greater logit, or with an equal
    one and a smaller number."""
    own, numbers = logits.gather(1, target[:, None]), torch.arange(logits.shape[1], device=logits.device)
    # Not `logits > own`: a logit that is not a number comes first, and is no right answer.
    return (~(logits <= own) | ((logits == own) & (numbers < target[:, None]))).sum(1)


def pixels(
    logits: torch.Tensor, mask: torch.Tensor, weights: tuple[float, ...], smoothing: float = 0.0
) -> torch.Tensor:
    """Return for each sample the mean cross entropy of its pixels that count, float32 [n]; 0 if none does.

    Args:
        logits: [n, classes, height, width].
        mask: int64 [n, height, width]; -1 does not count.
        weights: a factor for each class; empty for none.
    """
    # As rows of pixels: torch has no deterministic kernel for the loss of planes on GPUs.
    rows = wide(logits).movedim(1, -1).flatten(0, -2)
    each = functional.cross_entropy(
        rows,
        mask.flatten(),
        numbers(weights, logits.device, rows.dtype),
        ignore_index=-1,
        label_smoothing=smoothing,
        reduction="none",
    )
    return each.view(len(mask), -1).sum(1) / (mask >= 0).flatten(1).sum(1).clamp_min(1)


def several(logits: torch.Tensor, target: torch.Tensor, pos_weight: tuple[float, ...] = ()) -> torch.Tensor:
    """Return for each sample the mean binary cross entropy of its classes, float32 [n].

    Args:
        logits: [n, classes].
        target: float32 [n, classes].
        pos_weight: a factor for the positive part of each class, or one for all; empty for none.
    """
    weight = numbers(pos_weight, logits.device)
    logits = wide(logits)
    return functional.binary_cross_entropy_with_logits(logits, target, pos_weight=weight, reduction="none").mean(1)


def distances(outputs: torch.Tensor, target: torch.Tensor, error: str, delta: float) -> torch.Tensor:
    """Return for each sample the mean error of its numbers, [n].

    Args:
        outputs, target: [n, ...] of one shape.
        error: `mse`, `mae` or `huber`.
        delta: where the Huber loss turns from squares to distances.
    """
    if error == "huber":
        each = functional.huber_loss(outputs, target, reduction="none", delta=delta)
    else:
        each = (functional.mse_loss if error == "mse" else functional.l1_loss)(outputs, target, reduction="none")
    return each.flatten(1).mean(1) if each.ndim > 1 else each


def distilled(student: torch.Tensor, teacher: torch.Tensor, temperature: float) -> torch.Tensor:
    """Return the sum over samples of the divergence from the teacher's softened answers to the student's, times the
    temperature's square (Hinton et al., 2015).

    Args:
        student, teacher: logits [n, classes].
    """
    mine, wanted = (wide(logits).div(temperature).log_softmax(1) for logits in (student, teacher))
    return functional.kl_div(mine, wanted, reduction="sum", log_target=True) * temperature**2


def without_gradient(model: torch.nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    """Return a model's outputs without a graph."""
    with torch.no_grad():
        return model(inputs)


def measured(metric: Any, outputs: np.ndarray, target: np.ndarray) -> float | None:
    """Return the value of a torchmetrics metric; None if it is not one number.

    Args:
        outputs, target: of all samples, [n, ...].
    """
    wanted = torch.from_numpy(target)
    of_classes = any(kind.__module__.startswith(_OF_CLASSES) for kind in type(metric).__mro__)
    if of_classes and wanted.is_floating_point() and bool(((wanted == 0) | (wanted == 1)).all()):
        wanted = wanted.long()  # several labels are floats, which many of these metrics refuse
    with torch.inference_mode(False), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as those of a class without samples, in the plan's try
        metric.update(torch.from_numpy(outputs), wanted)
        value = metric.compute()
    return float(value) if isinstance(value, torch.Tensor) and value.numel() == 1 else None
