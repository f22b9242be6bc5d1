"""Augmentation and normalisation of batches on the device, with randomness that belongs to the sample."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from raytrain import order
from raytrain.data.augment import Augment
from raytrain.data.buffers import Memory
from raytrain.data.geometry import centre

DRAWS = 5
"""Random numbers of an image: two for the place of the crop, two for its size, one for the flip."""
_POLICY, _ERASE, _MIX = 1 << 32, 2 << 32, 3 << 32
"""Purposes of a sample's key; larger than the ranks and rounds in which other keys end."""
_KEPT = 1 << 18
"""Values of normalised images from which their memory is kept for the next batch."""


def crop_and_flip(
    augment: Augment, images: torch.Tensor, side: int | None, draws: np.ndarray, fill: int | None = None
) -> torch.Tensor:
    """Crop and flip a batch of images, or of masks: with the same draws, both are cut from the same places.

    Args:
        images: [n, c, h, w] of any type.
        side: height and width of the result; None keeps the image's.
        draws: float64 [n, DRAWS] in [0, 1).
        fill: for masks, the value of a random crop's padding; the values of masks are never blended. None for images.

    Returns:
        [n, c, side, side] of the same type; float32 on the same scale for images after a random_resized crop.
    """
    if augment.crop == "center":
        images = center_crop(images, side)
    elif augment.crop == "random":
        images = _random_crop(augment, images, side, draws, fill or 0)
    else:
        images = _random_resized_crop(augment, images, side, draws, blended=fill is None)
    if augment.flip:
        flips = torch.from_numpy(draws[:, 4] < augment.flip).to(images.device)
        images = torch.where(flips[:, None, None, None], images.flip(-1), images)
    return images


def apply_policy(augment: Augment, images: torch.Tensor, seed: int, epoch: int, ids: np.ndarray) -> torch.Tensor:
    """Return the images as the policy changes them.

    Args:
        images: [n, c, h, w], uint8 or floats on that scale; this function does not change them.
        ids: int64 [n], the keys of the samples; see `Prepare.augmented`.

    Returns:
        uint8 [n, c, h, w]; without a policy the images themselves.
    """
    if augment.policy == "none":
        return images
    if augment.policy == "randaugment":
        policy = with_torchvision().v2.RandAugment(augment.policy_ops, augment.policy_magnitude)
    else:
        policy = with_torchvision().v2.TrivialAugmentWide()
    images = images.round().to(torch.uint8) if images.is_floating_point() else images
    changed = torch.empty_like(images)
    for place in _seeded(seed, epoch, ids, _POLICY):
        changed[place] = policy(images[place])
    return changed


def apply_erase(augment: Augment, images: torch.Tensor, seed: int, epoch: int, ids: np.ndarray) -> None:
    """Erase a rectangle of some of the normalised images, in place."""
    if not augment.erase:
        return
    erase = with_torchvision().v2.RandomErasing(augment.erase, inplace=True)
    for place in _seeded(seed, epoch, ids, _ERASE):
        erase(images[place])


def mix_pairs(
    augment: Augment, images: torch.Tensor, labels: torch.Tensor, classes: int, seed: int, epoch: int, ids: np.ndarray
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
    mixers = [
        mixer(alpha=alpha, num_classes=classes)
        for mixer, alpha in (
            (with_torchvision().v2.MixUp, augment.mixup),
            (with_torchvision().v2.CutMix, augment.cutmix),
        )
        if alpha > 0
    ]
    mix = with_torchvision().v2.RandomChoice(mixers) if len(mixers) > 1 else mixers[0]
    targets = images.new_empty((len(images), classes))
    for place in _seeded(seed, epoch, ids[::2], _MIX):
        pair = slice(2 * place, 2 * place + 2)
        images[pair], targets[pair] = mix(images[pair], labels[pair])
    return targets


def _random_crop(
    augment: Augment, images: torch.Tensor, side: int | None, draws: np.ndarray, fill: int
) -> torch.Tensor:
    padded = torch.nn.functional.pad(images, [augment.padding] * 4, value=fill)
    n, channels, height, width = padded.shape
    out_h, out_w = (side, side) if side else images.shape[2:]
    top = torch.from_numpy((draws[:, 0] * (height - out_h + 1)).astype(np.int64)).to(images.device)
    left = torch.from_numpy((draws[:, 1] * (width - out_w + 1)).astype(np.int64)).to(images.device)
    rows = top[:, None] + torch.arange(out_h, device=images.device)
    columns = left[:, None] + torch.arange(out_w, device=images.device)
    each = torch.arange(n, device=images.device)[:, None, None, None]
    channel = torch.arange(channels, device=images.device)[None, :, None, None]
    return padded[each, channel, rows[:, None, :, None], columns[:, None, None, :]]


def _random_resized_crop(
    augment: Augment, images: torch.Tensor, side: int | None, draws: np.ndarray, blended: bool
) -> torch.Tensor:
    height, width = images.shape[2:]
    out_h, out_w = (side, side) if side else (height, width)
    area = height * width * (augment.scale[0] + draws[:, 2] * (augment.scale[1] - augment.scale[0]))
    low, high = np.log(augment.ratio)
    ratio = np.exp(low + draws[:, 3] * (high - low))
    box_w, box_h = np.minimum(np.sqrt(area * ratio), width), np.minimum(np.sqrt(area / ratio), height)
    left, top = draws[:, 1] * (width - box_w), draws[:, 0] * (height - box_h)
    # The place of each row and column of the result, from -1 to 1. Not affine_grid: it is a matrix product, whose
    # last bits may depend on the batch size.
    down = 2 * (top[:, None] + box_h[:, None] * (np.arange(out_h) + 0.5) / out_h) / height - 1
    across = 2 * (left[:, None] + box_w[:, None] * (np.arange(out_w) + 0.5) / out_w) / width - 1
    y = torch.from_numpy(down.astype(np.float32)).to(images.device)[:, :, None]
    x = torch.from_numpy(across.astype(np.float32)).to(images.device)[:, None, :]
    grid = torch.stack(torch.broadcast_tensors(x, y), dim=-1)
    mode = "bilinear" if blended else "nearest"
    values = images.float() if blended else images.double()  # exact for integers below 2**53
    found = torch.nn.functional.grid_sample(
        values, grid.to(values.dtype), mode=mode, padding_mode="border", align_corners=False
    )
    return found if blended else found.to(images.dtype)


def _seeded(seed: int, epoch: int, ids: np.ndarray, purpose: int) -> Iterator[int]:
    """Yield the place of each sample, with torch's CPU generator seeded for it, and restore the generator at the end.
    torchvision's transforms draw from the CPU generator on any device."""
    with torch.random.fork_rng(devices=[]):
        for place, sample in enumerate(ids.tolist()):
            torch.default_generator.manual_seed(order.key(seed, epoch, sample, purpose) >> 1)
            yield place


def with_torchvision():
    """Return the module `policies`, imported late: it needs torchvision, which takes 2 s to import, and only policies,
    erasing and mixing need it."""
    from raytrain.data import policies

    return policies


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
            converted = images.to(torch.float32, copy=True, memory_format=self.memory_format)
        else:
            converted = self._taken(images.shape).copy_(images)
        return converted.sub_(self.shift).mul_(self.scale)

    def _taken(self, shape: torch.Size) -> torch.Tensor:
        """Return float32 values in memory of an earlier batch. In malloc's, small blocks that live longer than a batch
        get between batches: with 64 photographs each, 2 GB became of two of them."""
        values = torch.from_numpy(self.memory.take(4 * shape.numel())[: 4 * shape.numel()]).view(torch.float32)
        if self.memory_format != torch.channels_last:
            return values.view(shape)
        count, channels, height, width = shape
        return values.view(count, height, width, channels).permute(0, 3, 1, 2)
