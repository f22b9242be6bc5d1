"""Metrics of regression: MAE, RMSE and R2."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from raytrain.data.batch import Batch
from raytrain.tasks.metric import Direction, Kind, Metric

if TYPE_CHECKING:
    import torch


_ROUNDING = 1e-13
"""Share of the sum of squares that may be rounding, and no variance."""


def _pair(outputs: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Return answers and targets as float64 [n, numbers of a sample]."""
    return outputs.double().reshape(len(outputs), -1), batch["target"].double().reshape(len(outputs), -1)


@dataclass(frozen=True)
class MAE(Metric):
    """Mean absolute error over all samples and their numbers: `mae`."""

    directions: ClassVar[Mapping[str, Direction]] = {"mae": "min"}
    takes: ClassVar[tuple[Kind, ...]] = ("number",)

    def sums(self, outputs: torch.Tensor, batch: Batch) -> dict[str, torch.Tensor]:
        """Return the sum of absolute errors, and of how many numbers."""
        found, wanted = _pair(outputs, batch)
        return {"errors": (found - wanted).abs().sum(), "numbers": wanted.new_tensor(wanted.numel())}

    def values(self, found: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Return the mean."""
        return {"mae": float(found["errors"] / found["numbers"])}


@dataclass(frozen=True)
class RMSE(Metric):
    """Root of the mean squared error over all samples and their numbers: `rmse`."""

    directions: ClassVar[Mapping[str, Direction]] = {"rmse": "min"}
    takes: ClassVar[tuple[Kind, ...]] = ("number",)

    def sums(self, outputs: torch.Tensor, batch: Batch) -> dict[str, torch.Tensor]:
        """Return the sum of squared errors, and of how many numbers."""
        found, wanted = _pair(outputs, batch)
        return {"errors": (found - wanted).square().sum(), "numbers": wanted.new_tensor(wanted.numel())}

    def values(self, found: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Return the root of the mean."""
        return {"rmse": float(np.sqrt(found["errors"] / found["numbers"]))}


@dataclass(frozen=True)
class R2(Metric):
    """Coefficient of determination, the share of the targets' variance that is explained: `r2`; the mean over the
    numbers of a sample, where it has several. Not a number if a target never varies."""

    directions: ClassVar[Mapping[str, Direction]] = {"r2": "max"}
    takes: ClassVar[tuple[Kind, ...]] = ("number",)

    def sums(self, outputs: torch.Tensor, batch: Batch) -> dict[str, torch.Tensor]:
        """Return sums of errors, targets and their squares, float64 [numbers of a sample], and the samples."""
        found, wanted = _pair(outputs, batch)
        return {
            "errors": (found - wanted).square().sum(0),
            "targets": wanted.sum(0),
            "squares": wanted.square().sum(0),
            "samples": wanted.new_tensor(len(wanted)),
        }

    def values(self, found: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Return 1 - unexplained / total variance."""
        total = found["squares"] - found["targets"] ** 2 / found["samples"]
        if not (total > _ROUNDING * found["squares"]).all():
            return {"r2": float("nan")}
        return {"r2": float(np.mean(1 - found["errors"] / total))}
