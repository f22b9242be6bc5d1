"""The sweep that answers which precision, batch size and micro-batch size are best for an experiment on a machine."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any

from raytrain import errors
from raytrain.experiment import Experiment
from raytrain.sweep.space import Grid
from raytrain.sweep.sweep import Sweep

AXES = ("precision", "batch_size", "micro_batch_size")
"""What differs; other axes of this sweep have one value, which makes trials short."""
MACHINE = ("samples_per_second", "peak_memory_bytes")
"""The objectives besides the monitored metric."""
_FACTORS = (0.5, 1, 2, 4)
_QUARTERED = 128
"""Samples of a worker's batch from which a quarter of it is a micro-batch too: smaller passes save little memory."""


def precision_and_batch(
    base: Experiment, gpus: bool, epochs: int = 1, samples: int | None = None, **fields: Any
) -> Sweep:
    """Return the sweep over the precisions of the device, a half to four times the experiment's batch size, and
    micro-batches of half of its batch beside whole ones; of a large batch, also of a quarter.

    The learning rate follows the batch size linearly, unless the experiment scales it in another way. Its own
    length stays in the sweep's experiment: axes of one value shorten the trials.

    Args:
        gpus: whether the workers have GPUs.
        epochs: of each trial.
        samples: of an epoch; None takes all.
        fields: further fields of the sweep.

    Raises:
        UserError: the sweep cannot be.
    """
    base = replace(base, micro_batch_size=None)
    if base.lr_scaling == "none":
        base = replace(base, lr_scaling="linear", lr_batch_size=base.batch_size)
    precisions = ("fp32", "tf32", "bf16", "fp16") if gpus else ("fp32", "bf16")
    precisions = tuple(name for name in precisions if name != "fp16" or base.parallel.scales)
    batches = tuple(size for factor in _FACTORS if _suits(base, size := int(factor * base.batch_size)))
    micro, less = (max((m for m in range(1, base.part // n + 1) if base.part % m == 0), default=1) for n in (2, 4))
    split = tuple(size for size in batches if _suits(base, size, micro) and replace(base, batch_size=size).part > micro)
    quartered = base.part >= _QUARTERED and less < micro and all(_suits(base, size, less) for size in split)
    axes = [Grid("precision", precisions), Grid("batch_size", batches)]
    if split:
        sizes = (None, micro, less) if quartered else (None, micro)
        axes.append(Grid("micro_batch_size", sizes, when=("batch_size", *split)))
    kept = {"epochs": base.epochs, "steps": base.steps, "swa_start_epoch": base.swa_start_epoch, "sampler.count": None}
    wanted = {"epochs": epochs, "steps": None, "swa_start_epoch": None, "sampler.count": samples}
    axes += [Grid(path, (value,)) for path, value in wanted.items() if value != kept[path]]
    return Sweep(base, tuple(axes), (base.task.monitor, *MACHINE), **fields)


def _suits(base: Experiment, batch_size: int, micro_batch_size: int | None = None) -> bool:
    """Return whether the experiment can have such batches."""
    with contextlib.suppress(errors.UserError):
        replace(base, batch_size=batch_size, micro_batch_size=micro_batch_size)
        return True
    return False
