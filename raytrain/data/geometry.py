"""Geometry of batches: flips, crops, resizing and affine maps, each image with parameters of its own.

An image's bits do not depend on the batch that it is in: there are no matrix products, and no sums over a batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch
from torch.nn.functional import grid_sample, interpolate, pad

from raytrain.data.operation import BOX_ATTEMPTS, Interpolation

Padding = Literal["constant", "edge", "reflect"]
Numbers = np.ndarray | torch.Tensor
"""Numbers of the images of a batch, [n, ...]: on the host, or on the device of the images, which a CUDA graph reads."""
_LARGE = 1 << 14
"""Values of a large image."""


def on(array: Numbers, like: torch.Tensor) -> torch.Tensor:
    """Return an array on the device of a tensor."""
    if isinstance(array, torch.Tensor):
        return array
    return moved(torch.from_numpy(np.ascontiguousarray(array)), like.device)


def moved(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return a tensor of the host on a device. A GPU copies it from pinned memory, which PyTorch uses again: with other
    memory the host would wait until the GPU has done all that it was given before."""
    return tensor.pin_memory().to(device, non_blocking=True) if pins(device) else tensor.to(device)


def pins(device: torch.device) -> bool:
    """Return whether copies to a device are made from pinned memory."""
    return device.type == "cuda"


def cast(numbers: Numbers, dtype: Literal["int64", "float32"]) -> Any:
    """Return numbers of another type, where they are."""
    return numbers.to(getattr(torch, dtype)) if isinstance(numbers, torch.Tensor) else numbers.astype(dtype)


def column(numbers: np.ndarray, images: torch.Tensor) -> torch.Tensor:
    """Return a number for each image, float32 [n, 1, 1, 1]."""
    return on(numbers.astype(np.float32).reshape(-1, 1, 1, 1), images)


def singly(values: torch.Tensor) -> bool:
    """Return whether to change images one by one: on a CPU, where that takes less time than torch's calls on whole
    batches if images are large."""
    return values.device.type == "cpu" and values[:1].numel() > _LARGE


def inside(boxes: Numbers, values: torch.Tensor) -> torch.Tensor:
    """Return which pixels lie in a box of each image, bool [n, 1, h, w].

    Args:
        boxes: int64 [n, 4], each (top, left, height, width).
        values: [..., h, w].
    """
    joined: Any = torch.cat if isinstance(boxes, torch.Tensor) else np.concatenate
    ends = joined([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], 1).T.reshape(4, -1, 1, 1, 1)
    top, left, bottom, right = on(ends, values).unbind(0)
    y, x = (torch.arange(size, device=values.device) for size in values.shape[-2:])
    y = y[:, None]
    return ((y >= top) & (y < bottom)) & ((x >= left) & (x < right))


def some(
    values: torch.Tensor, chosen: np.ndarray, change: Callable[[torch.Tensor, np.ndarray], torch.Tensor]
) -> torch.Tensor:
    """Change some values of a batch.

    Args:
        values: [n, ...], changed in place unless all are chosen.
        chosen: bool [n].
        change: returns the changed part; it gets that part and its places in the batch, int64 [k].
    """
    places = np.flatnonzero(chosen)
    if len(places) == len(values):
        return change(values, places) if len(places) else values
    if len(places):
        at = on(places, values)
        values[at] = change(values[at], places)
    return values


def flip(values: torch.Tensor, chosen: np.ndarray, dimension: int) -> torch.Tensor:
    """Mirror some images, or masks."""
    return some(values, chosen, lambda part, _: part.flip(dimension))


def padded(values: torch.Tensor, padding: int, mode: Padding, fill: float) -> torch.Tensor:
    """Return images or masks of any dtype, with `padding` pixels more on each side."""
    if not padding:
        return values
    if mode == "constant":
        return pad(values, [padding] * 4, value=fill)
    for dimension in (2, 3):
        size = values.shape[dimension]
        place = np.arange(-padding, size + padding)
        place = np.clip(place, 0, size - 1) if mode == "edge" else size - 1 - np.abs(size - 1 - np.abs(place))
        values = values.index_select(dimension, on(place, values))
    return values


def windows(values: torch.Tensor, draws: Numbers, height: int, width: int) -> torch.Tensor:
    """Cut a window of `height` x `width` from a random place of each image.

    Args:
        draws: float64 [n, 2], the place.
    """
    top = cast(draws[:, 0] * (values.shape[2] - height + 1), "int64")
    left = cast(draws[:, 1] * (values.shape[3] - width + 1), "int64")
    if isinstance(draws, torch.Tensor):
        each, y, x = torch.arange(len(values), device=values.device), top, left
    elif singly(values):
        cut = [value[:, y : y + height, x : x + width] for value, y, x in zip(values, top, left, strict=True)]
        return torch.stack(cut) if cut else values.new_empty((0, values.shape[1], height, width))
    else:
        each, y, x = on(np.stack([np.arange(len(values)), top, left]), values).unbind(0)
    return values.unfold(2, height, 1).unfold(3, width, 1)[each, :, y, x]


def boxes(
    draws: np.ndarray,
    height: int,
    width: int,
    scale: tuple[float, float],
    ratio: tuple[float, float],
    strict: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """Choose a box in each image by torchvision's rule: the first of ten random ones that fits.

    Args:
        draws: float64 [n, BOX_DRAWS].
        scale, ratio: the ranges of a box's area, as a share of the image's, and of its width / height.
        strict: whether a box that is as high or as wide as the image does not fit.

    Returns:
        int64 [n, 4], each (top, left, height, width), and bool [n], whether one of the ten fits. Where none does, the
        box is the centre of the image with the nearest ratio in the range.
    """
    area = height * width * (scale[0] + draws[:, :BOX_ATTEMPTS] * (scale[1] - scale[0]))
    low, high = np.log(ratio)
    shape = np.exp(low + draws[:, BOX_ATTEMPTS : 2 * BOX_ATTEMPTS] * (high - low))
    wide, tall = np.rint(np.sqrt(area * shape)), np.rint(np.sqrt(area / shape))
    if strict:
        fits = (tall < height) & (wide < width)
    else:
        fits = (wide > 0) & (wide <= width) & (tall > 0) & (tall <= height)
    first, found = fits.argmax(1), fits.any(1)
    each = np.arange(len(draws))
    own = width / height
    best = min(max(own, ratio[0]), ratio[1])
    middle = (height, round(height * best)) if own > ratio[1] else (round(width / best), width)
    tall = np.where(found, tall[each, first], min(middle[0], height)).astype(np.int64)
    wide = np.where(found, wide[each, first], min(middle[1], width)).astype(np.int64)
    top = np.where(found, np.floor(draws[:, -2] * (height - tall + 1)), (height - tall) // 2)
    left = np.where(found, np.floor(draws[:, -1] * (width - wide + 1)), (width - wide) // 2)
    return np.stack([top, left, tall, wide], axis=1).astype(np.int64), found


def resized_boxes(values: torch.Tensor, found: np.ndarray, height: int, width: int, blended: bool) -> torch.Tensor:
    """Cut a box from each image and resize it to `height` x `width`.

    Args:
        found: int64 [n, 4], each (top, left, height, width).
        blended: whether values are blended, as in images; those of masks never are.
    """
    if not blended:
        (top, left, tall, wide), size = found.T[:, :, None], values.shape[3]
        rows = top + ((np.arange(height) + 0.5) * tall / height).astype(np.int64)
        columns = left + ((np.arange(width) + 0.5) * wide / width).astype(np.int64)
        places = on((rows[:, :, None] * size + columns[:, None]).reshape(len(values), 1, height * width), values)
        return values.flatten(2).gather(2, places.expand(-1, values.shape[1], -1)).unflatten(2, (height, width))
    if values.device.type != "cpu":
        return resized_by_weights(values, found, height, width)
    if not len(values):
        return values.new_empty((0, values.shape[1], height, width))
    cut = (value[None, :, y : y + h, x : x + w] for value, (y, x, h, w) in zip(values, found.tolist(), strict=True))
    return torch.cat([resized(value, height, width, blended) for value in cut])


def resized_by_weights(values: torch.Tensor, found: np.ndarray, height: int, width: int) -> torch.Tensor:
    """Return what `resized_boxes` does for images, in few calls of torch for any number of images: as sums with
    weights. A CPU's own function, which takes one box at a time, needs less arithmetic. Images of uint8 are rounded
    once, not after each dimension, so that few values differ by 1.
    """
    result = values.float()
    for dimension, size in ((0, height), (1, width)):
        start, length = found[:, dimension, None], found[:, 2 + dimension, None]
        step = length / size
        centre, reach = (np.arange(size) + 0.5) * step, np.maximum(step, 1)
        first = np.maximum(np.floor(centre - reach + 0.5), 0).astype(np.int64)
        pixel = first[:, :, None] + np.arange(2 * math.ceil(reach.max(initial=1)) + 1)
        share = np.maximum(1 - np.abs(pixel + 0.5 - centre[:, :, None]) / reach[:, :, None], 0)
        share *= pixel < length[:, :, None]
        share /= share.sum(2, keepdims=True)
        place = on(np.minimum(pixel, length[:, :, None] - 1) + start[:, :, None], values)
        weights = result.new_zeros(len(values), size, values.shape[2 + dimension])
        weights = weights.scatter_add_(2, place, on(share.astype(np.float32), values)).unsqueeze(1)
        result = weights @ result if dimension == 0 else result @ weights.mT
    return result.round_().clamp_(0, 255).to(torch.uint8) if values.dtype == torch.uint8 else result


def resized(values: torch.Tensor, height: int, width: int, blended: bool) -> torch.Tensor:
    """Resize images (uint8, which are rounded, or float32) by bilinear interpolation with antialiasing, or masks of any
    dtype to their nearest values."""
    before = tuple(values.shape[2:])
    if before == (height, width):
        return values
    if not blended:
        for dimension, size in ((2, height), (3, width)):
            place = ((np.arange(size) + 0.5) * values.shape[dimension] / size).astype(np.int64)
            values = values.index_select(dimension, on(place, values))
        return values
    return interpolate(values, size=(height, width), mode="bilinear", antialias=True)


def inverse_affine(angle: np.ndarray, translate: np.ndarray, scale: np.ndarray, shear: np.ndarray) -> np.ndarray:
    """Return the maps from places of the result to places of the image, as torchvision defines them.

    Args:
        angle: float64 [n], in degrees.
        translate: float64 [n, 2], in pixels.
        scale: float64 [n].
        shear: float64 [n, 2], in degrees.

    Returns:
        float64 [n, 6], each [a, b, c, d, e, f] of x' = a x + b y + c and y' = d x + e y + f, from the image's centre.
    """
    turn, x, y = np.radians(angle), np.radians(shear[:, 0]), np.radians(shear[:, 1])
    a = np.cos(turn - y) / np.cos(y)
    b = -np.cos(turn - y) * np.tan(x) / np.cos(y) - np.sin(turn)
    c = np.sin(turn - y) / np.cos(y)
    d = -np.sin(turn - y) * np.tan(x) / np.cos(y) + np.cos(turn)
    inverse = np.stack([d, -b, -c, a]) / scale
    right, down = -translate.T
    third = inverse[0] * right + inverse[1] * down
    sixth = inverse[2] * right + inverse[3] * down
    return np.stack([inverse[0], inverse[1], third, inverse[2], inverse[3], sixth], axis=1)


def affine(values: torch.Tensor, maps: np.ndarray, interpolation: Interpolation, fill: float) -> torch.Tensor:
    """Move each image by its own affine map.

    Args:
        values: [n, c, h, w]; of float32 for bilinear interpolation, of any dtype for nearest.
        maps: as `inverse_affine` returns them.
        fill: the value of what lies outside of the image.
    """
    n, channels, height, width = values.shape
    a, b, c, d, e, f = maps.astype(np.float32).T
    x_factor, y_factor, shift = on(
        np.array([[a, d], [b, e], [c, f]]).transpose(0, 2, 1)[..., None, None], values
    ).unbind(0)
    x, y, size = _axes(height, width, values.device)
    places = (x * x_factor + y * y_factor).add_(shift).div_(size / 2)  # across and down, [n, 2, h, w]
    if interpolation == "bilinear":
        return _blended(values, places.movedim(1, -1), fill)
    wanted = places.add_(1).mul_(size).sub_(1).div_(2).round_()
    column, row = wanted.clamp(min=torch.zeros_like(size), max=size - 1).long().unbind(1)
    place = (row * width + column).view(n, 1, height * width)
    outside = ((wanted < 0) | (wanted >= size)).any(1, keepdim=True)
    found = values.flatten(2).gather(2, place.expand(n, channels, height * width)).view_as(values)
    return found.masked_fill_(outside, fill)


@lru_cache
def _axes(height: int, width: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the places of columns and of rows, counted from the middle, and (width, height), float32 [2, 1, 1]."""
    x = torch.arange(width, device=device, dtype=torch.float32).sub_((width - 1) / 2)
    y = torch.arange(height, device=device, dtype=torch.float32).sub_((height - 1) / 2)[:, None]
    return x, y, torch.tensor([width, height], device=device, dtype=torch.float32).view(2, 1, 1)


def _blended(values: torch.Tensor, grid: torch.Tensor, fill: float) -> torch.Tensor:
    if not fill:
        return grid_sample(values, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
    inside = torch.ones_like(values[:, :1])
    found = grid_sample(
        torch.cat([values, inside], 1), grid, mode="bilinear", padding_mode="zeros", align_corners=False
    )
    share = found[:, -1:]
    return found[:, :-1].sub_(fill).mul_(share).add_(fill)  # as torchvision does it


def together(arrays: Sequence[np.ndarray], like: torch.Tensor) -> list[torch.Tensor]:
    """Return arrays on the device of a tensor, to which one copy brings all of them."""
    if like.device.type == "cpu" or not arrays:
        return [on(array, like) for array in arrays]
    # All begin at multiples of 8 bytes, as views of bytes as numbers must.
    parts = [np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in arrays]
    parts = [np.pad(part, (0, -len(part) % 8)) for part in parts]
    sent = on(np.concatenate(parts), like).split([len(part) for part in parts])
    return [
        part[: array.nbytes].view(getattr(torch, array.dtype.name)).view(array.shape)
        for part, array in zip(sent, arrays, strict=True)
    ]


def moves(orders: Sequence[np.ndarray], count: int) -> list[np.ndarray]:
    """Return by which places images get from one order to the next, from their own and back to it, int64 [count] each.

    Args:
        orders: the image in each place.
    """
    own = np.arange(count)
    return [np.argsort(before)[after] for before, after in pairwise((own, *orders, own))]


def reordered(values: torch.Tensor, places: np.ndarray, sent: torch.Tensor) -> torch.Tensor:
    """Return a batch in another order, or itself where that is its own.

    Args:
        sent: the places on the batch's device.
    """
    return values if np.array_equal(places, np.arange(len(places))) else values.index_select(0, sent)


def centre(values: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Return the middle `height` x `width` of [n, c, h, w]."""
    if tuple(values.shape[2:]) == (height, width):
        return values
    top, left = (values.shape[2] - height) // 2, (values.shape[3] - width) // 2
    return values[:, :, top : top + height, left : left + width]
