"""Colours of batches: jitter, blur and erasing, each image with parameters of its own.

Images are float32 [n, channels, height, width] in [0, 1], and are changed in place. An image's bits do not depend on
the batch that it is in.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch

from raytrain.data.geometry import Numbers, inside, moves, on, padded, reordered, singly, together

JITTER = ("brightness", "contrast", "saturation", "hue")
"""What `jitter` changes."""
_STEPS = 1 << 24
"""Steps of 1 in which a mean is added up. Sums of whole numbers are exact in any order."""


def grey(images: torch.Tensor) -> torch.Tensor:
    """Return the luma of RGB images, [n, 1, h, w]; grey ones are returned as they are."""
    if images.shape[1] == 1:
        return images
    red, green, blue = images.unbind(1)
    return red.mul(0.2989).add_(green, alpha=0.587).add_(blue, alpha=0.114).unsqueeze(1)


def jitter(images: torch.Tensor, kinds: np.ndarray, factors: np.ndarray) -> torch.Tensor:
    """Change the colours of images, of each in an order of its own. Images are sorted by their changes, so that the
    calls of torch depend on the number of changes, not on how many images or orders there are.

    Args:
        kinds: int64 [changes, n], places in `JITTER`.
        factors: float64 [changes, n]. Brightness multiplies an image, contrast blends it with the mean of its luma,
            saturation with its luma; a factor of 1 keeps it. Hue turns by factors, in turns of the colour circle. Grey
            images have neither saturation nor hue.
    """
    orders = [np.argsort(row, kind="stable") for row in kinds]
    places = moves(orders, len(images))
    ends = [np.searchsorted(row[order], (1, 2, 3)).tolist() for row, order in zip(kinds, orders, strict=True)]
    arranged = np.take_along_axis(np.where(kinds == JITTER.index("hue"), 6 * factors, factors), np.array(orders), 1)
    shares = np.stack([arranged, 1 - arranged], axis=1).astype(np.float32)[..., None, None, None]
    *sent, numbers = together([*places, shares], images)
    for place, found, end, (own, rest) in zip(places, sent, ends, numbers.unbind(0), strict=False):
        images = reordered(images, place, found)
        _blend(images, end, own, rest)
        if end[2] < len(images) and images.shape[1] == 3:
            _turn(images[end[2] :], own[end[2] :])
    return reordered(images, places[-1], sent[-1])


def _blend(images: torch.Tensor, ends: list[int], own: torch.Tensor, rest: torch.Tensor) -> None:
    """Change brightness, contrast and saturation of sorted images.

    Args:
        ends: where images of each of the three end.
        own, rest: float32 [n, 1, 1, 1], the shares of an image and of what it is blended with.
    """
    first, second, last = ends if images.shape[1] == 3 else (*ends[:2], ends[1])
    if not last:
        return
    changed, added = images[:last], []
    if first < last:
        luma = grey(images[first:last])
        if first < second:
            total = luma[: second - first].double().mul_(_STEPS).round_().sum((1, 2, 3), keepdim=True)
            mean = (total / (_STEPS * luma[0].numel())).float()
            added.append((changed[first:second], mean * rest[first:second]))
        if second < last:
            added.append((changed[second:], luma[second - first :].mul_(rest[second:last])))
    changed.mul_(own[:last])
    for part, other in added:
        part.add_(other)
    changed.clamp_(0, 1)


def _turn(images: torch.Tensor, sixths: torch.Tensor) -> None:
    """Turn the hue of RGB images.

    Args:
        sixths: float32 [n, 1, 1, 1], of a turn.
    """
    low, high = torch.aminmax(images, dim=1)
    chroma = high - low
    red, green, blue = images.unbind(1)
    divisor = torch.where(chroma == 0, 1, chroma)
    place = torch.where(
        high == red,
        (green - blue) / divisor,
        torch.where(high == green, (blue - red) / divisor + 2, (red - green) / divisor + 4),
    )
    # A. R. Smith, "Color Gamut Transform Pairs", 1978
    place = (place.unsqueeze(1).add(sixths) + _starts(images.device)).remainder_(6)
    share = torch.minimum(place, 4 - place).clamp_(0, 1)
    torch.sub(high.unsqueeze(1), share.mul_(chroma.unsqueeze(1)), out=images)


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
