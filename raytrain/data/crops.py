"""Random crops of whole images, which training reads in place of the stored squares.

Which part of an image a crop takes depends on the image's height and width, which are known once it is decoded. So the
random numbers go with the samples to what decodes them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from raytrain import order
from raytrain.data.operations import RandomResizedCrop
from raytrain.data.source import Data, Index

_CROP = 5 << 32
"""Purpose of the key of a crop's random numbers; see `drawn.py`."""


@dataclass(frozen=True)
class Crops:
    """What training reads of some samples: a random crop of each whole image.

    Attributes:
        crop: cuts and resizes.
        draws: float64 [k, crop.draws], the random numbers of each sample.
    """

    crop: RandomResizedCrop
    draws: np.ndarray

    def rows(self, chosen: slice | np.ndarray) -> Crops:
        """Return those of some of the samples."""
        return replace(self, draws=self.draws[chosen])


def crops_of(data: Data, seed: int, epoch: int | None, keys: np.ndarray) -> Crops | None:
    """Return the crops of some samples.

    Args:
        epoch: None in an evaluation.
        keys: int64 [k], what randomness is keyed by besides seed and epoch.

    Returns:
        None where the stored arrays are read.
    """
    crop = data.augment.first_crop
    if epoch is None or not data.whole or crop is None:
        return None
    return Crops(crop, order.uniform(order.key(seed, _CROP), epoch, keys, crop.draws))


def cropped(data: Data, index: Index) -> Index:
    """Return an index whose images have the shape of the crops, which is what the model sees."""
    side = data.input_side
    if side is None:
        return index
    return index.reshaped((index.input.shape[0], side, side))
