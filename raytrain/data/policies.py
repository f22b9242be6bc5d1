"""The changes of colour and shape that RandAugment, TrivialAugment and AugMix choose from.

Images that get the same change are changed together, by torchvision's functions.
"""

from __future__ import annotations

import math
from collections import defaultdict

import numpy as np
import torch
from torchvision.transforms import v2

from raytrain.data.geometry import some

Space = dict[str, tuple[list[float] | None, bool]]
"""Changes by name: the magnitudes of all strengths (None for a change without), and whether they are signed."""
_ALONE = ("Contrast", "Sharpness")
"""Changes that sum over pixels, in an order that may depend on the batch: they take one image at a time."""
_MOVES = ("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate")
"""Changes that move pixels, and so masks too; the others leave masks alone."""


def rand_augment_space(bins: int, height: int, width: int) -> Space:
    """Return the changes of RandAugment (Cubuk et al., 2020)."""
    return _space(bins, 0.3, 150 / 331 * width, 150 / 331 * height, 30.0, 0.9, (8, 4)) | {"Identity": (None, False)}


def trivial_augment_space(bins: int) -> Space:
    """Return the changes of TrivialAugment's wide space (Müller and Hutter, 2021)."""
    return _space(bins, 0.99, 32.0, 32.0, 135.0, 0.99, (8, 6)) | {"Identity": (None, False)}


def augmix_space(height: int, width: int, all_ops: bool) -> Space:
    """Return the changes of AugMix (Hendrycks et al., 2020), of ten strengths."""
    space = _space(10, 0.3, width / 3, height / 3, 30.0, 0.9, (4, 4))
    colours = ("Brightness", "Color", "Contrast", "Sharpness")
    return {name: change for name, change in space.items() if all_ops or name not in colours}


def to_bytes(images: torch.Tensor) -> torch.Tensor:
    """Return images in [0, 1] as uint8, rounded; those of uint8 as they are."""
    return images if images.dtype == torch.uint8 else (images * 255).round_().clamp_(0, 255).to(torch.uint8)


def weighted(images: torch.Tensor, shares: np.ndarray) -> torch.Tensor:
    """Return uint8 images in [0, 1], each multiplied by its share, float64 [n]."""
    column = torch.from_numpy(shares.astype(np.float32)).to(images.device).view(-1, 1, 1, 1)
    return images.float().div_(255).mul_(column)


def change(
    images: torch.Tensor, names: list[str], magnitudes: np.ndarray, interpolation: str, fill: float
) -> torch.Tensor:
    """Change each image as it is named.

    Args:
        images: uint8 [n, 1 or 3, h, w], changed in place.
        magnitudes: float64 [n].
        fill: the value of what lies outside of an image, from 0 to 1.
    """
    for (name, magnitude), places in _groups(names, magnitudes).items():
        for part in [[place] for place in places] if name in _ALONE else [places]:
            images = some(
                images,
                np.isin(np.arange(len(images)), part),
                lambda chosen, _, name=name, magnitude=magnitude: _changed(
                    chosen, name, magnitude, interpolation, [255 * fill] if fill else None
                ),
            )
    return images


def change_masks(masks: torch.Tensor, names: list[str], magnitudes: np.ndarray, fill: int) -> torch.Tensor:
    """Move each mask as `change` moves its image, with nearest values.

    Args:
        masks: [n, channels, h, w] of any dtype, changed in place.
        magnitudes: float64 [n].
        fill: the value of what lies outside of a mask.
    """
    height, width = masks.shape[2:]
    # What moves is the number of each row and column, in floats, so that values of any size and dtype stay as they are.
    grid = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    grid = torch.stack(grid).float().to(masks.device)
    for (name, magnitude), places in _groups(names, magnitudes).items():
        if name in _MOVES:
            row, column = _changed(grid, name, magnitude, "nearest", [-1.0]).long()
            at = torch.tensor(places, device=masks.device)
            masks[at] = masks[at][:, :, row, column].masked_fill_(row < 0, fill)  # -1, outside, is the last one here
    return masks


def _groups(names: list[str], magnitudes: np.ndarray) -> dict[tuple[str, float], list[int]]:
    """Return the places of the images that get the same change of the same magnitude."""
    groups: dict[tuple[str, float], list[int]] = defaultdict(list)
    for place, (name, magnitude) in enumerate(zip(names, magnitudes.tolist(), strict=True)):
        groups[name, magnitude].append(place)
    return groups


def _space(
    bins: int, shear: float, across: float, down: float, turn: float, colour: float, posterize: tuple[int, int]
) -> Space:
    def to(most: float) -> tuple[list[float], bool]:
        return torch.linspace(0.0, most, bins).tolist(), True

    most, falls = posterize
    bits = (most - torch.arange(bins) / ((bins - 1) / falls)).round().tolist()
    return {
        "ShearX": to(shear),
        "ShearY": to(shear),
        "TranslateX": to(across),
        "TranslateY": to(down),
        "Rotate": to(turn),
        **{name: to(colour) for name in ("Brightness", "Color", "Contrast", "Sharpness")},
        "Posterize": (bits, False),
        "Solarize": (torch.linspace(1.0, 0.0, bins).tolist(), False),
        "AutoContrast": (None, False),
        "Equalize": (None, False),
    }


def _changed(
    images: torch.Tensor, name: str, magnitude: float, interpolation: str, fill: list[float] | None
) -> torch.Tensor:
    """Return images that all get one change of one magnitude."""
    functional, how = v2.functional, v2.InterpolationMode(interpolation)
    if name in ("ShearX", "ShearY"):
        angle = math.degrees(math.atan(magnitude))
        shear = [angle, 0.0] if name == "ShearX" else [0.0, angle]
        return functional.affine(images, 0.0, [0, 0], 1.0, shear, how, fill, center=[0, 0])
    if name in ("TranslateX", "TranslateY"):
        move = [int(magnitude), 0] if name == "TranslateX" else [0, int(magnitude)]
        return functional.affine(images, 0.0, move, 1.0, [0.0, 0.0], how, fill)
    if name == "Rotate":
        return functional.rotate(images, magnitude, how, fill=fill)
    if name == "Posterize":
        return functional.posterize(images, int(magnitude))
    if name == "Solarize":
        return functional.solarize(images, 255 * magnitude)
    if name in ("AutoContrast", "Equalize"):
        return (functional.autocontrast if name == "AutoContrast" else functional.equalize)(images)
    adjust = {
        "Brightness": functional.adjust_brightness,
        "Color": functional.adjust_saturation,
        "Contrast": functional.adjust_contrast,
        "Sharpness": functional.adjust_sharpness,
    }
    return adjust[name](images, 1 + magnitude) if name in adjust else images
