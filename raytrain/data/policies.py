"""The changes of colour and shape that RandAugment, TrivialAugment and AugMix choose from.

Each image gets a change and a magnitude of its own, with the bits of torchvision's functions. Images are sorted by
their changes, so that the calls of torch depend on how many changes there are, not on how many images.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np
import torch
from torch.nn.functional import conv2d, grid_sample

from raytrain.data.colour import grey
from raytrain.data.geometry import column, moves, on, reordered, some, together

Space = dict[str, tuple[list[float] | None, bool]]
"""Changes by name: the magnitudes of all strengths (None for a change without), and whether they are signed."""
Step = tuple[np.ndarray, np.ndarray]
"""A change of each image: its kind, int64 [n] from KINDS, and its magnitude, float64 [n]."""
KINDS = (
    *("Identity", "ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate", "Brightness", "Contrast", "Color"),
    *("Posterize", "Solarize", "Sharpness", "AutoContrast", "Equalize"),
)
"""All changes. Images are sorted by them."""
_Given = list[torch.Tensor]
_Numbers = Callable[[np.ndarray, np.ndarray, torch.Size], list[np.ndarray]]
_Function = Callable[[torch.Tensor, np.ndarray, _Given, str, float], torch.Tensor]
_Part = tuple[_Function, np.ndarray, list[np.ndarray]]
_EXACT = (1 << 24) // 255
"""Pixels of an image of which float32 adds up the luma exactly, in any order."""


@lru_cache
def rand_augment_space(bins: int, height: int, width: int) -> Space:
    """Return the changes of RandAugment (Cubuk et al., 2020)."""
    return _space(bins, 0.3, 150 / 331 * width, 150 / 331 * height, 30.0, 0.9, (8, 4)) | {"Identity": (None, False)}


@lru_cache
def trivial_augment_space(bins: int) -> Space:
    """Return the changes of TrivialAugment's wide space (Müller and Hutter, 2021)."""
    return _space(bins, 0.99, 32.0, 32.0, 135.0, 0.99, (8, 6)) | {"Identity": (None, False)}


@lru_cache
def augmix_space(height: int, width: int, all_ops: bool) -> Space:
    """Return the changes of AugMix (Hendrycks et al., 2020), of ten strengths."""
    space = _space(10, 0.3, width / 3, height / 3, 30.0, 0.9, (4, 4))
    colours = ("Brightness", "Color", "Contrast", "Sharpness")
    return {name: change for name, change in space.items() if all_ops or name not in colours}


def to_bytes(images: torch.Tensor) -> torch.Tensor:
    """Return images in [0, 1] as uint8, rounded; those of uint8 as they are."""
    return images if images.dtype == torch.uint8 else (images * 255).round_().clamp_(0, 255).to(torch.uint8)


def blended(images: torch.Tensor, others: torch.Tensor, shares: np.ndarray) -> torch.Tensor:
    """Return sums of uint8 images in [0, 1], each with its share, float32 [n, ...].

    Args:
        images: [n, ...], the first of each sum.
        others: [k * n, ...]: of each sum the second, then of each the third, and so on.
        shares: float64 [n, 1 + k].
    """
    values = torch.cat([images, others]).float().div_(255).mul_(column(shares.T.reshape(-1), images))
    found, *rest = values.unflatten(0, shares.T.shape).unbind(0)
    for other in rest:
        found += other
    return found


def chosen(space: Space, which: np.ndarray, strengths: np.ndarray, minus: np.ndarray) -> Step:
    """Return changes of a space.

    Args:
        which: int64 [n], the change's number.
        strengths: int64 [n].
        minus: bool [n], whether a signed magnitude is negative.
    """
    most = max(len(every) for every, _ in space.values() if every is not None)
    table = np.array([every or [0.0] * most for every, _ in space.values()])
    kinds, signed = np.array([(KINDS.index(name), sign) for name, (_, sign) in space.items()])[which].T
    return kinds, table[which, strengths] * np.where(minus & (signed > 0), -1.0, 1.0)


def change(images: torch.Tensor, steps: Sequence[Step], interpolation: str, fill: float) -> torch.Tensor:
    """Return images after some changes in sequence.

    Args:
        images: uint8 [n, 1 or 3, h, w], which stay as they are.
        fill: the value of what lies outside of an image, from 0 to 1.
    """
    orders = [np.argsort(kinds, kind="stable") for kinds, _ in steps]
    places = moves(orders, len(images))
    planned = [
        _parts(kinds[order], magnitudes[order], images.shape)
        for (kinds, magnitudes), order in zip(steps, orders, strict=True)
    ]
    numbers = [array for parts in planned for _, _, given in parts for array in given]
    sent = iter(together([*places, *numbers], images))
    *there, back = [(place, next(sent)) for place in places]
    for (place, found), parts in zip(there, planned, strict=True):
        pieces = reordered(images, place, found).split([len(kinds) for _, kinds, _ in parts])
        changed = [
            function(piece, kinds, [next(sent) for _ in given], interpolation, fill)
            for piece, (function, kinds, given) in zip(pieces, parts, strict=True)
        ]
        images = torch.cat(changed) if len(changed) > 1 else changed[0] if changed else images
    return reordered(images, *back)


def change_masks(masks: torch.Tensor, steps: Sequence[Step], fill: int) -> torch.Tensor:
    """Return masks moved as `change` moves their images, with nearest values.

    Args:
        masks: [n, channels, h, w] of any dtype, changed in place.
        fill: the value of what lies outside of a mask.
    """
    height, width = masks.shape[2:]
    for kinds, magnitudes in steps:
        moves = (kinds >= KINDS.index("ShearX")) & (kinds <= KINDS.index("Rotate"))
        if not moves.any():
            continue
        distinct, own = np.unique(np.stack([kinds, magnitudes])[:, moves], axis=1, return_inverse=True)
        # What moves is the number of each row and column, in floats, so that values of any size and dtype stay as they
        # are. -1 is outside.
        planes = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
        planes = torch.stack(planes).float().to(masks.device).expand(len(distinct.T), 2, height, width)
        (thetas,) = _thetas(distinct[0].astype(int), distinct[1], planes.shape)
        taken = _sampled(planes, _grids(on(thetas, planes), planes), "nearest", -1.0).long()
        row, column_ = taken.index_select(0, on(own.reshape(-1), masks)).flatten(2).unbind(1)
        place, outside = (row * width + column_).clamp_(0)[:, None], (row < 0)[:, None]

        def move(part: torch.Tensor, _: np.ndarray, place: torch.Tensor = place, outside: torch.Tensor = outside):
            found = part.flatten(2).gather(2, place.expand(-1, part.shape[1], -1))
            return found.masked_fill_(outside, fill).view_as(part)

        masks = some(masks, moves, move)
    return masks


def _parts(kinds: np.ndarray, magnitudes: np.ndarray, shape: torch.Size) -> list[_Part]:
    """Return which function changes which part of a batch that is sorted by the kinds of its changes."""
    ends = np.searchsorted(kinds, [first for first, *_ in _CHANGES] + [len(KINDS)]).tolist()
    return [
        (function, kinds[low:high], numbers(kinds[low:high], magnitudes[low:high], shape))
        for (_, numbers, function), (low, high) in zip(_CHANGES, pairwise(ends), strict=True)
        if low < high
    ]


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


# Numbers that changes need: of kinds, magnitudes and the images' shape


def _none(kinds: np.ndarray, magnitudes: np.ndarray, shape: torch.Size) -> list[np.ndarray]:
    return []


def _thetas(kinds: np.ndarray, magnitudes: np.ndarray, shape: torch.Size) -> list[np.ndarray]:
    """Return the maps of moves in the arithmetic of `_grids`, float32 [n, 3, 2]."""
    height, width = shape[2:]
    distinct, own = np.unique(np.stack([kinds, magnitudes]), axis=1, return_inverse=True)
    maps = np.array([_map(KINDS[int(kind)], magnitude, height, width) for kind, magnitude in distinct.T.tolist()])
    half = np.array([0.5 * width, 0.5 * height], np.float32)
    return [(maps.astype(np.float32).reshape(-1, 2, 3).transpose(0, 2, 1) / half)[own.reshape(-1)]]


def _factors(kinds: np.ndarray, magnitudes: np.ndarray, shape: torch.Size) -> list[np.ndarray]:
    """Return the factors of an image and of what it is blended with, float32 [n, 1, 1, 1]."""
    factors = 1 + magnitudes
    if shape[1] == 1:
        factors[kinds == KINDS.index("Color")] = 1.0  # grey images have no colour
    return [each.astype(np.float32).reshape(-1, 1, 1, 1) for each in (factors, 1 - factors)]


def _bits(kinds: np.ndarray, magnitudes: np.ndarray, shape: torch.Size) -> list[np.ndarray]:
    """Return masks of the bits that stay, uint8 [n, 1, 1, 1]."""
    return [(256 - (1 << (8 - magnitudes.astype(np.int64)))).astype(np.uint8).reshape(-1, 1, 1, 1)]


def _least(kinds: np.ndarray, magnitudes: np.ndarray, shape: torch.Size) -> list[np.ndarray]:
    """Return the least values that are inverted, uint8 [n, 1, 1, 1]."""
    return [np.ceil((255 * magnitudes).astype(np.float32)).astype(np.uint8).reshape(-1, 1, 1, 1)]


# Changes: of images, their kinds and numbers, the interpolation and the fill of moves


def _same(images: torch.Tensor, kinds: np.ndarray, given: _Given, how: str, fill: float) -> torch.Tensor:
    return images


def _moved(images: torch.Tensor, kinds: np.ndarray, given: _Given, how: str, fill: float) -> torch.Tensor:
    values = images.float()
    values = _sampled(values, _grids(given[0], values), how, 255 * fill)
    return (values.round_() if fill or how != "nearest" else values).to(torch.uint8)


def _sampled(values: torch.Tensor, grids: torch.Tensor, how: str, fill: float) -> torch.Tensor:
    """Return float32 values at the places of grids, as torchvision does it."""
    if not fill:
        return grid_sample(values, grids, mode=how, padding_mode="zeros", align_corners=False)
    values = torch.cat([values, torch.ones_like(values[:, :1])], 1)
    values = grid_sample(values, grids, mode=how, padding_mode="zeros", align_corners=False)
    values, share = values[:, :-1], values[:, -1:]
    return values.masked_fill(share < 0.5, fill) if how == "nearest" else values.sub_(fill).mul_(share).add_(fill)


def _grids(thetas: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return where moved images take their pixels from, float32 [n, h, w, 2], in torchvision's arithmetic."""
    height, width = like.shape[2:]
    places = _places(height, width, like.device).expand(len(thetas), -1, -1)
    return places.bmm(thetas).view(-1, height, width, 2)


@lru_cache
def _places(height: int, width: int, device: torch.device) -> torch.Tensor:
    """Return (x, y, 1) of each pixel, counted from the middle: float32 [1, h * w, 3]."""
    found = torch.ones(1, height, width, 3)
    found[..., 0] = torch.linspace((1.0 - width) * 0.5, (width - 1.0) * 0.5, width)
    found[..., 1] = torch.linspace((1.0 - height) * 0.5, (height - 1.0) * 0.5, height)[:, None]
    return found.view(1, -1, 3).to(device)


@lru_cache(maxsize=4096)
def _map(name: str, magnitude: float, height: int, width: int) -> tuple[float, ...]:
    """Return the affine map of a move from places of the result to those of the image, as `geometry.inverse_affine`
    does, with the bits of torchvision."""
    turn, x, y, moves, middle = 0.0, 0.0, 0.0, (0.0, 0.0), (0.0, 0.0)
    if name in ("ShearX", "ShearY"):
        angle, middle = math.radians(math.degrees(math.atan(magnitude))), (-width * 0.5, -height * 0.5)
        x, y = (angle, 0.0) if name == "ShearX" else (0.0, angle)
    elif name == "Rotate":
        turn = math.radians(-(magnitude % 360))
    else:
        moves = (float(int(magnitude)), 0.0) if name == "TranslateX" else (0.0, float(int(magnitude)))
    a, c = math.cos(turn - y) / math.cos(y), math.sin(turn - y) / math.cos(y)
    b, d = -(a * math.tan(x) + math.sin(turn)), math.cos(turn) - c * math.tan(x)
    right, down = middle[0] + moves[0], middle[1] + moves[1]
    return d, -b, middle[0] - d * right + b * down, -c, a, middle[1] + c * right - a * down


def _recoloured(images: torch.Tensor, kinds: np.ndarray, given: _Given, how: str, fill: float) -> torch.Tensor:
    """Blend images with black (brightness), the mean of their luma (contrast) or their luma (colour), in this order."""
    first, second = np.searchsorted(kinds, [KINDS.index("Contrast"), KINDS.index("Color")]).tolist()
    factors, rest = given
    found = images.mul(factors)
    if first < len(images):
        luma = grey(images[first:])
        luma = luma.floor_() if images.shape[1] == 3 else luma.float()
        if first < second:
            found[first:second].addcmul_(_mean(luma[: second - first]), rest[first:second])
        if second < len(images):
            found[second:].addcmul_(luma[second - first :], rest[second:])
    return found.clamp_(0, 255).to(torch.uint8)


def _mean(luma: torch.Tensor) -> torch.Tensor:
    if luma.device.type == "cpu" and luma[0].numel() > _EXACT:  # sums that round, in the order of a single image
        return torch.cat([one.mean((1, 2, 3), keepdim=True) for one in luma.split(1)])
    return luma.mean((1, 2, 3), keepdim=True)


def _posterized(images: torch.Tensor, kinds: np.ndarray, given: _Given, how: str, fill: float) -> torch.Tensor:
    return images & given[0]


def _solarized(images: torch.Tensor, kinds: np.ndarray, given: _Given, how: str, fill: float) -> torch.Tensor:
    return torch.where(images >= given[0], images.bitwise_not(), images)


def _sharpened(images: torch.Tensor, kinds: np.ndarray, given: _Given, how: str, fill: float) -> torch.Tensor:
    channels, height, width = images.shape[1:]
    if min(height, width) <= 2:
        return images
    values = images.float()
    # Sums of whole numbers, exact in any order: torchvision's blur, which divides by 13 first, is never near a half.
    blurred = conv2d(values, _neighbours(channels, values.device), groups=channels).div_(13).round_()
    inner = values[:, :, 1:-1, 1:-1]
    inner.addcmul_(blurred.sub_(inner), given[1])
    return values.clamp_(0, 255).to(torch.uint8)


@lru_cache
def _neighbours(channels: int, device: torch.device) -> torch.Tensor:
    return torch.tensor([[1.0, 1, 1], [1, 5, 1], [1, 1, 1]]).expand(channels, 1, 3, 3).contiguous().to(device)


def _stretched(images: torch.Tensor, kinds: np.ndarray, given: _Given, how: str, fill: float) -> torch.Tensor:
    """Stretch each channel to the full range (AutoContrast)."""
    low, high = images.amin((2, 3), keepdim=True), images.amax((2, 3), keepdim=True)
    flat = high == low
    scale = high.sub_(low).mul(1 / 255).masked_fill_(flat, 1)
    return (images - low.masked_fill_(flat, 0)).div(scale).to(torch.uint8)  # at most 255 and rounding


def _equalized(images: torch.Tensor, kinds: np.ndarray, given: _Given, how: str, fill: float) -> torch.Tensor:
    """Spread each channel's values evenly, by Pillow's rule."""
    levels, one = _levels(images.device)
    flat = images.flatten(2).long()
    counts = flat.new_zeros((*flat.shape[:2], 257))
    counts[:, :, 1:].scatter_add_(2, flat, one.expand_as(flat))
    below = counts.cumsum(2)[:, :, :256]  # how many pixels are darker than each value
    step = below.remainder(flat.shape[2]).amax(2, keepdim=True).div_(255, rounding_mode="floor")
    table = below.add(step // 2).div_(step.clamp(min=1), rounding_mode="floor").clamp_(max=255)
    return torch.where(step == 0, levels, table).to(torch.uint8).gather(2, flat).view_as(images)


@lru_cache
def _levels(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return all values of a byte, and 1, int64."""
    return torch.arange(256, device=device), torch.ones(1, dtype=torch.int64, device=device)


_CHANGES: tuple[tuple[int, _Numbers, _Function], ...] = tuple(
    (KINDS.index(first), numbers, function)
    for first, numbers, function in (
        ("Identity", _none, _same),
        ("ShearX", _thetas, _moved),
        ("Brightness", _factors, _recoloured),
        ("Posterize", _bits, _posterized),
        ("Solarize", _least, _solarized),
        ("Sharpness", _factors, _sharpened),
        ("AutoContrast", _none, _stretched),
        ("Equalize", _none, _equalized),
    )
)
"""The first kind that each function changes, and the numbers that it needs: it takes images up to the next one's first
kind."""
