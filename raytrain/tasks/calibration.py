"""The calibration of a classifier's probabilities."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from raytrain.config import at_least, check
from raytrain.data.batch import Batch
from raytrain.tasks.metric import Direction, Kind, Metric

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class ExpectedCalibrationError(Metric):
    """The mean distance between confidence and accuracy, over bins of confidence weighted by their samples:
    `expected_calibration_error` (Guo et al., 2017)."""

    directions: ClassVar[Mapping[str, Direction]] = {"expected_calibration_error": "min"}
    takes: ClassVar[tuple[Kind, ...]] = ("label",)

    bins: int = 15
    """Bins of equal width between 0 and 1."""

    def __post_init__(self) -> None:
        check(self, bins=at_least(1))

    def sums(self, outputs: torch.Tensor, batch: Batch) -> dict[str, torch.Tensor]:
        """Return for each bin the sum of confidences, the right answers and the samples."""
        confidence, answers = outputs.float().softmax(1).max(1)
        # float32 edges, as linspace rounds them: a confidence on an edge belongs to the bin above it.
        edges = confidence.new_tensor(np.linspace(0, 1, self.bins + 1, dtype=np.float32)[1:-1].tolist())
        bins = (confidence[:, None] >= edges).sum(1)
        # A product, because a scatter of floats has no deterministic kernel on GPUs.
        within = (bins[:, None] == bins.new_tensor(range(self.bins))).double()
        right = (answers == batch["target"]).double()
        return {"confidence": confidence.double() @ within, "right": right @ within, "samples": within.sum(0)}

    def values(self, found: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Return the weighted mean distance."""
        distances = np.abs(found["confidence"] - found["right"])
        return {"expected_calibration_error": float(distances.sum() / found["samples"].sum())}
