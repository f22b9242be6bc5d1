"""Masks drawn over their images."""

from __future__ import annotations

import numpy as np
from PIL import Image

PALETTE = ((230, 75, 53), (0, 114, 178), (230, 159, 0), (0, 158, 115), (204, 121, 167), (86, 180, 233), (213, 94, 0))
"""Colours of the classes of a mask, from class 1 on, repeated; class 0, most often the background, has none."""


def overlaid(seen: Image.Image, mask: np.ndarray) -> Image.Image:
    """Return a picture with the classes of its pixels (int [height, width], -1 for none) in colours over it."""
    table = np.array([PALETTE[number % len(PALETTE)] for number in range(max(1, int(mask.max())))], np.uint8)
    shown = mask > 0
    colours = np.zeros((*mask.shape, 3), np.uint8)
    colours[shown] = table[mask[shown] - 1]
    size = seen.size
    over = Image.fromarray(colours).resize(size, Image.Resampling.NEAREST)
    alpha = Image.fromarray(np.where(shown, 140, 0).astype(np.uint8)).resize(size, Image.Resampling.NEAREST)
    under = seen.convert("RGB")
    under.paste(over, (0, 0), alpha)
    return under
