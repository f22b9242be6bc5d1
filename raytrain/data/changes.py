"""The operations of an `Augment` on a batch: on images before and after normalisation, and on masks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from raytrain import errors
from raytrain.data.geometry import centre, resized
from raytrain.data.operation import Operation

Draws = Sequence[np.ndarray]
"""The random numbers of each operation, float64 [n, operation.draws]."""


def change_images(
    operations: tuple[Operation, ...],
    images: torch.Tensor,
    full: int,
    draws: Draws,
    side: int | None,
    size: int | None = None,
) -> torch.Tensor:
    """Return images in [0, 1] after the operations that come before normalisation, cut to their centre and resized.

    Args:
        images: [n, c, h, w] as they are stored, which stay as they are.
        full: the value of white in them.
        side: height and width of what operations and cut return; None keeps the images'.
        size: height and width to which that is resized; None keeps them.

    Returns:
        float32 [n, c, size, size].
    """
    shape = images.shape[2:]
    images = images.clone() if images.dtype == torch.uint8 else images.to(torch.float32, copy=True).div_(full)
    for operation, numbers in zip(operations, draws, strict=True):
        if not operation.normalised:
            images = operation.apply(images if operation.takes_bytes else _floats(images), numbers, side)
    images = _floats(images)
    images = _centre(images, *((side, side) if side else shape))
    return resized(images, size, size, blended=True) if size else images


def change_normalised(
    operations: tuple[Operation, ...], images: torch.Tensor, draws: Draws, side: int | None
) -> torch.Tensor:
    """Return normalised images after the operations that come then; they may be changed in place."""
    for operation, numbers in zip(operations, draws, strict=True):
        if operation.normalised:
            images = operation.apply(images, numbers, side)
    return images


def change_masks(
    operations: tuple[Operation, ...],
    masks: torch.Tensor,
    fill: int,
    draws: Draws,
    side: int | None,
    size: int | None = None,
) -> torch.Tensor:
    """Return masks after all operations, cut to their centre and resized.

    Args:
        masks: [n, h, w] or [n, c, h, w] of any dtype, which stay as they are. Operations see uint16 as int32, because
            torch has few functions for it.
        side, size: as for `change_images`.
    """
    flat = masks.ndim == 3
    shape, dtype = masks.shape[-2:], torch.int32 if masks.dtype == torch.uint16 else masks.dtype
    found = (masks[:, None] if flat else masks).to(dtype, copy=True)
    for operation, numbers in zip(operations, draws, strict=True):
        found = operation.apply_to_masks(found, numbers, side, fill)
    found = _centre(found, *((side, side) if side else shape))
    found = resized(found, size, size, blended=False) if size else found
    found = found.to(masks.dtype)
    return found[:, 0] if flat else found


def _floats(images: torch.Tensor) -> torch.Tensor:
    return images.float().div_(255) if images.dtype == torch.uint8 else images


def _centre(values: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Return the middle `height` x `width` of what operations return, [n, c, h, w].

    Raises:
        UserError: it is smaller.
    """
    has_height, has_width = values.shape[2:]
    if has_height < height or has_width < width:
        what = (
            f"operations leave {has_height} x {has_width} pixels, less than the {height} x {width} that the model sees"
        )
        raise errors.UserError(what, "in data.augment.operations", "let each return images of at least that size")
    return centre(values, height, width)
