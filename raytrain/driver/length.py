"""Whether a run is long enough for what its experiment asks for."""

from __future__ import annotations

from raytrain import errors
from raytrain.experiment import Experiment

_FIRST = 0.1
"""The share of the first step's weights in an average from which the plan notes it."""


def check(e: Experiment, steps_per_epoch: int, epochs: int) -> list[str]:
    """Check that the first validation of `validate_every_steps`, and epoch `swa_start_epoch`, end before the run does.

    Args:
        epochs: of the run, of which the last one may be a part of one.

    Returns:
        Notes on what a longer run would have: layers that are unfrozen, an average of more than the first weights.

    Raises:
        UserError: they do not.
    """
    every, steps = e.validate_every_steps, e.all_steps(steps_per_epoch)
    if every is not None and every > steps:
        raise errors.UserError(
            f"validate_every_steps is {every:,} and the run has {steps:,} steps",
            "in Experiment",
            f"use --validate_every_steps {max(1, steps // 2)}, or leave it out: the end of the run is validated",
        )
    if e.swa_start_epoch is not None and e.swa_start_epoch > (ends := steps // steps_per_epoch):
        what = f"swa_start_epoch is {e.swa_start_epoch} and the run has {ends} whole epoch{'' if ends == 1 else 's'}"
        raise errors.UserError(what, "in Experiment", "let the run be longer, or average from an earlier epoch")
    found = []
    if (e.unfreeze_epoch or 0) >= epochs:
        found.append(f"the last layer alone is trained: unfreeze_epoch is {e.unfreeze_epoch}, after the end")
    first = 0.0 if e.ema_decay is None else e.ema_decay ** (steps - 1)
    if first > _FIRST:
        less = f"; after {steps:,} steps --ema_decay {1 - 10 / steps:.2g} has almost none" if steps > 20 else ""
        found.append(f"{first:.0%} of the averaged weights are those of the first step, to the end of the run{less}")
    return found
