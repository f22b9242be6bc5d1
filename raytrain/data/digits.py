"""UCI's handwritten digits, embedded: 1,797 real images of 8x8 pixels, for a first run without a network.

Source: E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine Learning Repository, 1998,
https://doi.org/10.24432/C50P49, licensed CC BY 4.0 (the test part of it; pixel values 0 to 16).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np

from raytrain import order
from raytrain.data.source import Data, Index


@dataclass(frozen=True)
class Digits(Data):
    """UCI's 1,797 handwritten digits of 8x8 pixels, embedded in raytrain; a fifth of each class is held out."""

    mean: tuple[float, ...] = field(default=(0.305,), kw_only=True)
    """Mean of the pixels."""
    std: tuple[float, ...] = field(default=(0.376,), kw_only=True)
    """Standard deviation of the pixels."""

    def index(self) -> dict[str, Index]:
        """Return 1,438 training samples and 359 validation samples, the same for every seed."""
        labels = _load()[1]
        classes = tuple(str(digit) for digit in range(10))
        parts = dict(zip(("train", "val"), order.stratified(labels, 0.2, seed=0), strict=True))
        return {split: Index(labels[rows], classes, (1, 8, 8), split, rows) for split, rows in parts.items()}

    def read(self, index: Index, samples: np.ndarray) -> np.ndarray:
        """Return the pixels, scaled from 0..16 to 0..255."""
        assert index.rows is not None
        return (_load()[0][index.rows[samples]].astype(np.uint16) * 255 // 16).astype(np.uint8)


@lru_cache(maxsize=1)
def _load() -> tuple[np.ndarray, np.ndarray]:
    with np.load(Path(__file__).with_name("digits.npz"), allow_pickle=False) as file:
        return file["images"], file["labels"].astype(np.int64)
