"""Colours of batches: jitter, blur and erasing, each image with parameters of its own.

Images are float32 [n, channels, height, width] in [0, 1], and are changed in place. An image's bits do not depend on
the batch that it is in.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch

from raytrain.data.geometry import Numbers, column, inside, on, padded, singly

_STEPS = 1 << 24
"""Steps of 1 in which a mean is added up. Sums of whole numbers are exact in any order."""


def grey(images: torch.Tensor) -> torch.Tensor:
    """Return the luma of RGB images, [n, 1, h, w]; grey ones are returned as they are."""
    if images.shape[1] == 1:
        return images
    red, green, blue = images.unbind(1)
    return red.mul(0.2989).add_(green, alpha=0.587).add_(blue, alpha=0.114).unsqueeze(1)


def brightness(images: torch.Tensor, factors: np.ndarray) -> torch.Tensor:
    """Multiply images by factors, float64 [n]."""
    return images.mul_(column(factors, images)).clamp_(0, 1)


def contrast(images: torch.Tensor, factors: np.ndarray) -> torch.Tensor:
    """Blend images with the mean of their luma; a factor of 1 keeps an image."""
    luma = grey(images)
    total = luma.double().mul_(_STEPS).round_().sum((1, 2, 3), keepdim=True)
    mean = (total / (_STEPS * luma[0].numel())).float()
    return images.mul_(column(factors, images)).add_(mean * column(1 - factors, images)).clamp_(0, 1)


def saturation(images: torch.Tensor, factors: np.ndarray) -> torch.Tensor:
    """Blend RGB images with their luma; grey images have no saturation."""
    if images.shape[1] == 1:
        return images
    luma = grey(images).mul_(column(1 - factors, images))
    return images.mul_(column(factors, images)).add_(luma).clamp_(0, 1)


def hue(images: torch.Tensor, factors: np.ndarray) -> torch.Tensor:
    """Turn the hue of RGB images by factors, in turns of the colour circle; grey images have none."""
    if images.shape[1] == 1:
        return images
    low, high = torch.aminmax(images, dim=1)
    chroma = high - low
    red, green, blue = images.unbind(1)
    divisor = torch.where(chroma == 0, 1, chroma)
    sixths = torch.where(
        high == red,
        (green - blue) / divisor,
        torch.where(high == green, (blue - red) / divisor + 2, (red - green) / divisor + 4),
    )
    turned = sixths.unsqueeze(1).add(column(6 * factors, images))
    # A. R. Smith, "Color Gamut Transform Pairs", 1978
    place = (turned + _starts(images.device)).remainder_(6)
    share = torch.minimum(place, 4 - place).clamp_(0, 1)
    return torch.sub(high.unsqueeze(1), share.mul_(chroma.unsqueeze(1)), out=images)


@lru_cache
def _starts(device: torch.device) -> torch.Tensor:
    """Return where red, green and blue begin on the circle, in sixths of a turn, float32 [3, 1, 1]."""
    return torch.tensor([5.0, 3.0, 1.0], device=device).view(3, 1, 1)


def blur(images: torch.Tensor, kernel_size: int, sigmas: np.ndarray) -> torch.Tensor:
    """Blur images by Gaussians of width `sigmas`, float64 [n], with `kernel_size` taps in each direction."""
    reach = kernel_size // 2
    taps = np.exp(-((np.arange(-reach, reach + 1) / sigmas[:, None]) ** 2) / 2)
    weights = on(
        (taps / taps.sum(1, keepdims=True)).astype(np.float32).T.reshape(kernel_size, -1, 1, 1, 1), images
    ).unbind(0)
    found = padded(images, reach, "reflect", 0)
    for dimension in (2, 3):
        windows = found.unfold(dimension, images.shape[dimension], 1).unbind(dimension)
        found = torch.zeros_like(found.narrow(dimension, 0, images.shape[dimension]))
        for window, weight in zip(windows, weights, strict=True):
            found.addcmul_(window.movedim(-1, 2) if dimension == 2 else window, weight)
    return found


def erase(images: torch.Tensor, boxes: Numbers, value: float) -> torch.Tensor:
    """Set a box of each image to a value; boxes of no height change nothing.

    Args:
        boxes: int64 [n, 4], each (top, left, height, width).
    """
    if singly(images) and not isinstance(boxes, torch.Tensor):
        for image, (top, left, height, width) in zip(images, boxes.tolist(), strict=True):
            if height:
                image[:, top : top + height, left : left + width] = value
        return images
    return images.masked_fill_(inside(boxes, images), value)
