"""Colours of batches: jitter, blur and erasing, each image with parameters of its own.

Images are float32 [n, channels, height, width] in [0, 1], and are changed in place. An image's bits do not depend on
the batch that it is in.
"""

from __future__ import annotations

import numpy as np
import torch

from raytrain.data.geometry import column, inside, padded, singly

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
    turned = sixths.add_(column(6 * factors, images)[:, 0])
    for channel, start in enumerate((5, 3, 1)):  # A. R. Smith, "Color Gamut Transform Pairs", 1978
        place = (turned + start).remainder_(6)
        share = torch.minimum(place, 4 - place).clamp_(0, 1)
        images[:, channel] = high - share.mul_(chroma)
    return images


def blur(images: torch.Tensor, kernel_size: int, sigmas: np.ndarray) -> torch.Tensor:
    """Blur images by Gaussians of width `sigmas`, float64 [n], with `kernel_size` taps in each direction."""
    reach = kernel_size // 2
    taps = np.exp(-((np.arange(-reach, reach + 1) / sigmas[:, None]) ** 2) / 2)
    weights = torch.from_numpy((taps / taps.sum(1, keepdims=True)).astype(np.float32)).to(images.device)
    found = padded(images, reach, "reflect", 0)
    for dimension in (2, 3):
        size, parts = images.shape[dimension], found
        found = torch.zeros_like(parts.narrow(dimension, 0, size))
        for tap in range(kernel_size):
            found.addcmul_(parts.narrow(dimension, tap, size), weights[:, tap].view(-1, 1, 1, 1))
    return found


def erase(images: torch.Tensor, boxes: np.ndarray, value: float) -> torch.Tensor:
    """Set a box of each image to a value; boxes of no height change nothing.

    Args:
        boxes: int64 [n, 4], each (top, left, height, width).
    """
    if singly(images):
        for image, (top, left, height, width) in zip(images, boxes.tolist(), strict=True):
            if height:
                image[:, top : top + height, left : left + width] = value
        return images
    return images.masked_fill_(inside(boxes, images), value)
