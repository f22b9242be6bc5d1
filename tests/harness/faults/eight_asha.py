"""The same eight trials, of which ASHA stops the worse ones early."""

from dataclasses import replace

from eight import sweep as complete

from raytrain import ASHA

sweep = replace(complete, scheduler=ASHA(grace_epochs=10, reduction_factor=2))
