"""Augmentation and normalisation of batches on the device, with randomness that belongs to the sample."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from raytrain import order
from raytrain.data import policies
from raytrain.data.augment import Augment
from raytrain.data.buffers import Memory
from raytrain.data.colour import erase
from raytrain.data.drawn import POLICY, Changes
from raytrain.data.geometry import Numbers, cast, centre, inside, on, padded, windows
from raytrain.data.twister import Streams

_KEPT = 1 << 18
"""Values of normalised images from which their memory is kept for the next batch."""
_BINS = 31
"""Strengths of a policy's changes."""
_CACHED = 1 << 18
"""Values of images that are mixed at a time on a CPU, whose cache they fit."""
_NORMALISED = 1 << 19
"""The same of those that are normalised: with fewer, PyTorch's operations more often wait for threads that read."""


def crop_and_flip(
    augment: Augment, images: torch.Tensor, side: int | None, places: Numbers, fill: int | None = None
) -> torch.Tensor:
    """Crop and flip a batch of images, or of masks: with the same draws, both are cut from the same places.

    Args:
        images: [n, c, h, w] of any type.
        side: height and width of the result; None keeps the image's.
        places: float64 [n, DRAWS], see `spread`.
        fill: for masks, the value of a random crop's padding; the values of masks are never blended. None for images.

    Returns:
        [n, c, side, side] of the same type; float32 on the same scale for images after a random_resized crop.
    """
    if augment.crop == "center":
        images = center_crop(images, side)
    elif augment.crop == "random":
        wide = padded(images, augment.padding, "constant", fill or 0)
        images = windows(wide, places, *((side, side) if side else images.shape[2:]))
    else:
        images = _random_resized_crop(images, side, places, blended=fill is None)
    if augment.flip:
        flips = on((places[:, 4] < augment.flip)[:, None, None, None], images)
        images = torch.where(flips, images.flip(-1), images)
    return images


def apply_policy(augment: Augment, images: torch.Tensor, seed: int, epoch: int, ids: np.ndarray) -> torch.Tensor:
    """Return the images as the policy changes them: with the random numbers that torchvision's policies would draw if
    torch's CPU generator was seeded for each sample.

    Args:
        images: [n, c, h, w], uint8 or floats on that scale; this function does not change them.
        ids: int64 [n], the keys of the samples; see `Prepare.augmented`.

    Returns:
        uint8 [n, c, h, w]; without a policy the images themselves.
    """
    if augment.policy == "none":
        return images
    streams = Streams(order.keys(seed, epoch, ids, POLICY) >> np.uint64(1))
    steps = []
    if augment.policy == "randaugment":
        space = policies.rand_augment_space(_BINS, *images.shape[2:])
        strengths = np.full(len(ids), augment.policy_magnitude)
        steps = [_drawn(streams, space, strengths) for _ in range(augment.policy_ops)]
    else:
        steps = [_drawn(streams, policies.trivial_augment_space(_BINS), None)]
    images = images.round().to(torch.uint8) if images.is_floating_point() else images
    return policies.change(images, steps, "nearest", 0.0)


def apply_erase(augment: Augment, images: torch.Tensor, changes: Changes) -> None:
    """Erase a rectangle of some of the normalised images, in place."""
    if augment.erase:
        erase(images, changes.boxes(*images.shape[2:]), 0.0)


def mix_pairs(
    augment: Augment, images: torch.Tensor, labels: torch.Tensor, classes: int, changes: Changes
) -> torch.Tensor | None:
    """Mix the normalised images 2k and 2k + 1, in place.

    Args:
        images: float32 [n, c, h, w], n even.
        labels: int64 [n].

    Returns:
        float32 [n, classes], each class's share of an image; None if `augment` does not mix.
    """
    if not augment.mixes:
        return None
    targets = labels.new_zeros((len(labels), classes), dtype=torch.float32).scatter_(1, labels[:, None], 1)
    return mix_numbers(augment, images, targets, changes)


def mix_numbers(augment: Augment, images: torch.Tensor, numbers: torch.Tensor, changes: Changes) -> torch.Tensor:
    """Mix the normalised images 2k and 2k + 1, in place, and return their numbers, mixed by each one's share.

    Args:
        images: float32 [n, c, h, w], n even.
        numbers: float32 [n, ...].
    """
    mixture = changes.mixture(*images.shape[2:])
    pairs = len(numbers) // 2
    shares = cast(mixture[:, 1:3].T, "float32").reshape(2, pairs, 1, 1, 1, 1)
    _mix(augment, images, mixture, shares)
    found = numbers.reshape(pairs, 2, -1)
    return _blended(found, found.flip(1), shares[..., 0, 0]).view(numbers.shape)


def _drawn(streams: Streams, space: policies.Space, strengths: np.ndarray | None) -> policies.Step:
    """Return a change of each image, drawn as torchvision does it: a kind, a strength if none is given, and a sign,
    each only where it matters."""
    which = (streams.integers(len(space)) - 1) % len(space)  # torchvision's first one is Identity, here the last
    scaled = np.array([every is not None for every, _ in space.values()])[which]
    signed = np.array([sign for _, sign in space.values()])[which]
    if strengths is None:
        strengths = np.zeros(len(which), np.int64)
        strengths[scaled] = streams.integers(_BINS, np.flatnonzero(scaled))
    minus = np.zeros(len(which), bool)
    minus[signed] = streams.floats(np.flatnonzero(signed)) <= 0.5
    return policies.chosen(space, which, strengths, minus)


def _mix(augment: Augment, images: torch.Tensor, mixture: Numbers, shares: Any) -> None:
    """Blend some pairs of images, and swap a box of the others.

    Args:
        images: [2 n, c, h, w], changed in place.
        mixture: [n, MIXTURE].
        shares: float32 [2, n, 1, 1, 1, 1], of an image and of the other of its pair.
    """
    pairs, blend, boxes = images.unflatten(0, (len(mixture), 2)), mixture[:, 0] > 0, cast(mixture[:, 3:], "int64")
    size = max(1, _CACHED // pairs[:1].numel()) if images.device.type == "cpu" else len(pairs)
    for start in range(0, len(pairs), max(1, size)):
        part = slice(start, start + size)
        chosen, values = blend[part], pairs if size >= len(pairs) else pairs[part]
        if isinstance(chosen, torch.Tensor):  # the host does not know
            some, every = augment.mixup > 0, not augment.cutmix
        else:
            some, every = chosen.any(), chosen.all()
        other = mixed = values.flip(1)
        if not every:
            mixed = torch.where(inside(boxes[part], values).unsqueeze(1), other, values)
        if some:
            blended = _blended(values, other, shares[:, part])
            which = on(chosen.reshape(-1, 1, 1, 1, 1), values)
            mixed = blended if every else torch.where(which, blended, mixed)
        values.copy_(mixed)


def _blended(values: torch.Tensor, other: torch.Tensor, shares: Numbers) -> torch.Tensor:
    """Return pairs, [n, 2, ...], blended with the other of each pair, which is changed in place."""
    own, rest = on(shares, values).unbind(0)
    return other.mul_(rest).add_(values * own)


def _random_resized_crop(images: torch.Tensor, side: int | None, places: Numbers, blended: bool) -> torch.Tensor:
    height, width = images.shape[2:]
    out_h, out_w = (side, side) if side else (height, width)
    area, ratio = height * width * places[:, 2], places[:, 3]
    # Of both numpy and torch.
    box_w, box_h = ((area * ratio) ** 0.5).clip(max=width), ((area / ratio) ** 0.5).clip(max=height)
    left, top = places[:, 1] * (width - box_w), places[:, 0] * (height - box_h)
    # The place of each row and column of the result, from -1 to 1. Not affine_grid: it is a matrix product, whose
    # last bits may depend on the batch size.
    down = 2 * (top[:, None] + box_h[:, None] * _middles(out_h, places) / out_h) / height - 1
    across = 2 * (left[:, None] + box_w[:, None] * _middles(out_w, places) / out_w) / width - 1
    y, x = on(cast(down, "float32"), images)[:, :, None], on(cast(across, "float32"), images)[:, None, :]
    grid = torch.stack(torch.broadcast_tensors(x, y), dim=-1)
    mode = "bilinear" if blended else "nearest"
    values = images.float() if blended else images.double()  # exact for integers below 2**53
    found = torch.nn.functional.grid_sample(
        values, grid.to(values.dtype), mode=mode, padding_mode="border", align_corners=False
    )
    return found if blended else found.to(images.dtype)


def _middles(size: int, like: Numbers) -> Any:
    """Return the middles of pixels, float64 [size], where other numbers are."""
    if isinstance(like, torch.Tensor):
        return torch.arange(size, dtype=torch.float64, device=like.device) + 0.5
    return np.arange(size) + 0.5


def center_crop(images: torch.Tensor, side: int | None) -> torch.Tensor:
    """Return the middle `side` x `side` of [n, c, h, w]; all of it for None."""
    return images if side is None else centre(images, side, side)


def full_range(dtype: str) -> int:
    """Return the value of white in images of a dtype."""
    return 1 if np.dtype(dtype).kind == "f" or dtype == "bool" else int(np.iinfo(dtype).max)


class Normalise:
    """Compute float32 (images / range - mean) / std for [n, c, h, w].

    Args:
        dtype: the stored images' type, whose full range is 255 for uint8 and 1 for floats. A batch may have floats on
            that scale.
    """

    def __init__(
        self,
        mean: tuple[float, ...],
        std: tuple[float, ...],
        device: torch.device | str = "cpu",
        memory_format: torch.memory_format | None = None,
        dtype: str = "uint8",
    ):
        full = full_range(dtype)
        self.memory_format, self.memory = memory_format or torch.contiguous_format, Memory()
        self.shift = torch.tensor(mean, device=device).view(1, -1, 1, 1) * full
        self.scale = 1 / (torch.tensor(std, device=device).view(1, -1, 1, 1) * full)

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        """Return the normalised images in the given memory format, without changing `images`."""
        if images.device.type != "cpu" or images.numel() < _KEPT:
            if images.dtype != torch.uint8:
                converted = images.to(torch.float32, copy=True, memory_format=self.memory_format)
                return converted.sub_(self.shift).mul_(self.scale)
            out = torch.empty(images.shape, device=images.device, memory_format=self.memory_format)
            return torch.sub(images, self.shift, out=out).mul_(self.scale)  # one kernel less on a GPU
        found, some = self._taken(images.shape), max(1, _NORMALISED // images[0].numel())
        plain = None if found.is_contiguous() else torch.empty(images[:some].shape)
        for part, out in zip(images.split(some), found.split(some), strict=True):
            values = out if plain is None else plain[: len(part)]  # only the last step changes the layout: it is slow
            torch.mul(values.copy_(part).sub_(self.shift), self.scale, out=out)
        return found

    def _taken(self, shape: torch.Size) -> torch.Tensor:
        """Return float32 values in memory of an earlier batch. malloc would put small blocks that outlive a batch into
        its freed memory, so that the next batch needs new memory, many times over."""
        values = torch.from_numpy(self.memory.take(4 * shape.numel())[: 4 * shape.numel()]).view(torch.float32)
        if self.memory_format != torch.channels_last:
            return values.view(shape)
        count, channels, height, width = shape
        return values.view(count, height, width, channels).permute(0, 3, 1, 2)
