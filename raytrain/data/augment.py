"""Batched augmentation and normalisation, on the device, with randomness that belongs to the sample."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from raytrain import order
from raytrain.config import Rule, at_least, check, within

if TYPE_CHECKING:
    import torch

DRAWS = 5
"""Random numbers that an image takes: two for the place of the crop, two for its size, one for the flip."""
_POLICY, _ERASE, _MIX = 1 << 32, 2 << 32, 3 << 32
"""What a key of a sample is for; larger than the ranks and rounds that other keys end in."""
_SHARE: Rule = (lambda share: 0 <= share <= 1, "in [0, 1]")


@dataclass(frozen=True)
class Augment:
    """Random changes to training images; the numbers come from (seed, epoch, sample), so that they are the same for
    any number of workers and after a resume."""

    crop: Literal["center", "random", "random_resized"] = "center"
    """Where the square that the model sees is cut from: the centre, a random place, or a random place, area and
    aspect ratio, resized (Szegedy et al., 2015)."""
    padding: int = 0
    """Black pixels added on each side before a random crop."""
    scale: tuple[float, float] = (0.08, 1.0)
    """Range of the area of a random_resized crop, as a share of the image's."""
    ratio: tuple[float, float] = (0.75, 4 / 3)
    """Range of the aspect ratio of a random_resized crop."""
    flip: float = 0.0
    """Probability of a horizontal flip."""
    policy: Literal["none", "randaugment", "trivialaugment"] = "none"
    """Changes of colour and shape that every image, of 1 or 3 channels, then gets: policy_ops of them (Cubuk et al.,
    2020), or one of random strength (Müller and Hutter, 2021), which moves it by up to 32 pixels."""
    policy_ops: int = 2
    """Changes that randaugment makes, one after the other."""
    policy_magnitude: int = 9
    """Strength of randaugment's changes, from 0 to 30."""
    erase: float = 0.0
    """Probability that a rectangle of the normalised image becomes 0 (Zhong et al., 2020)."""
    mixup: float = 0.0
    """Blends images and labels of two samples with a share from Beta(mixup, mixup) (Zhang et al., 2018); 0 does not.
    Samples 2k and 2k + 1 of a global batch are a pair, so that the number of workers does not matter: a worker's
    micro-batch must be even, and an epoch's last batch, where it is smaller than the others, is left as it is."""
    cutmix: float = 0.0
    """Puts a rectangle of one image into the other, with a share from Beta(cutmix, cutmix) (Yun et al., 2019); pairs,
    micro-batches and last batches as for mixup. With both, each pair gets one of the two, by an equal chance."""

    def __post_init__(self) -> None:
        check(
            self,
            padding=at_least(0),
            flip=_SHARE,
            policy_ops=at_least(1),
            policy_magnitude=within(0, 31),
            erase=_SHARE,
            mixup=at_least(0),
            cutmix=at_least(0),
            scale=(lambda r: 0 < r[0] <= r[1] <= 1, "with 0 < low <= high <= 1"),
            ratio=(lambda r: 0 < r[0] <= r[1], "with 0 < low <= high"),
        )

    @property
    def random(self) -> bool:
        """Whether anything here is random."""
        return self.crop != "center" or self.flip > 0 or self.policy != "none" or self.erase > 0 or self.mixes

    @property
    def mixes(self) -> bool:
        """Whether samples are mixed in pairs."""
        return self.mixup > 0 or self.cutmix > 0

    def __call__(
        self, images: torch.Tensor, side: int | None, draws: np.ndarray, fill: int | None = None
    ) -> torch.Tensor:
        """Crop and flip a batch of images, or of masks: with the same draws, both are cut from the same places.

        Args:
            images: [n, c, h, w] of any type.
            side: height and width of the result; None keeps the image's.
            draws: float64 [n, DRAWS] in [0, 1).
            fill: None for images. For masks, whose values are never blended: what a random crop's padding has.

        Returns:
            [n, c, side, side] of the same type, but for images after a random_resized crop: float32 on the same scale.
        """
        import torch

        if self.crop == "center":
            images = center_crop(images, side)
        elif self.crop == "random":
            images = self._random_crop(images, side, draws, fill or 0)
        else:
            images = self._random_resized_crop(images, side, draws, blended=fill is None)
        if self.flip:
            flips = torch.from_numpy(draws[:, 4] < self.flip).to(images.device)
            images = torch.where(flips[:, None, None, None], images.flip(-1), images)
        return images

    def apply_policy(self, images: torch.Tensor, seed: int, epoch: int, ids: np.ndarray) -> torch.Tensor:
        """The images changed by the policy.

        Args:
            images: [n, c, h, w], uint8 or floats on that scale; they stay as they are.
            ids: int64 [n], the samples.

        Returns:
            uint8 [n, c, h, w]; without a policy the images themselves.
        """
        if self.policy == "none":
            return images
        import torch
        from torchvision.transforms import v2

        if self.policy == "randaugment":
            policy = v2.RandAugment(self.policy_ops, self.policy_magnitude)
        else:
            policy = v2.TrivialAugmentWide()
        images = images.round().to(torch.uint8) if images.is_floating_point() else images
        changed = torch.empty_like(images)
        for place in _seeded(seed, epoch, ids, _POLICY):
            changed[place] = policy(images[place])
        return changed

    def apply_erase(self, images: torch.Tensor, seed: int, epoch: int, ids: np.ndarray) -> None:
        """Erases rectangles of some of the normalised images, in place."""
        if not self.erase:
            return
        from torchvision.transforms import v2

        erase = v2.RandomErasing(self.erase, inplace=True)
        for place in _seeded(seed, epoch, ids, _ERASE):
            erase(images[place])

    def mix_pairs(
        self, images: torch.Tensor, labels: torch.Tensor, classes: int, seed: int, epoch: int, ids: np.ndarray
    ) -> torch.Tensor | None:
        """Mixes the normalised images 2k and 2k + 1, in place.

        Args:
            images: float32 [n, c, h, w], n even.
            labels: int64 [n].

        Returns:
            float32 [n, classes], each class's share of an image; None where nothing mixes.
        """
        if not self.mixes:
            return None
        from torchvision.transforms import v2

        mixers = [
            mixer(alpha=alpha, num_classes=classes)
            for mixer, alpha in ((v2.MixUp, self.mixup), (v2.CutMix, self.cutmix))
            if alpha > 0
        ]
        mix = v2.RandomChoice(mixers) if len(mixers) > 1 else mixers[0]
        targets = images.new_empty((len(images), classes))
        for place in _seeded(seed, epoch, ids[::2], _MIX):
            pair = slice(2 * place, 2 * place + 2)
            images[pair], targets[pair] = mix(images[pair], labels[pair])
        return targets

    def _random_crop(self, images: torch.Tensor, side: int | None, draws: np.ndarray, fill: int) -> torch.Tensor:
        import torch

        padded = torch.nn.functional.pad(images, [self.padding] * 4, value=fill)
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
        self, images: torch.Tensor, side: int | None, draws: np.ndarray, blended: bool
    ) -> torch.Tensor:
        import torch

        height, width = images.shape[2:]
        out_h, out_w = (side, side) if side else (height, width)
        area = height * width * (self.scale[0] + draws[:, 2] * (self.scale[1] - self.scale[0]))
        low, high = np.log(self.ratio)
        ratio = np.exp(low + draws[:, 3] * (high - low))
        box_w, box_h = np.minimum(np.sqrt(area * ratio), width), np.minimum(np.sqrt(area / ratio), height)
        left, top = draws[:, 1] * (width - box_w), draws[:, 0] * (height - box_h)
        # Where each row and column of the result lies, from -1 to 1. No affine_grid: it is a product of matrices, whose
        # bits may depend on the batch's size.
        down = 2 * (top[:, None] + box_h[:, None] * (np.arange(out_h) + 0.5) / out_h) / height - 1
        across = 2 * (left[:, None] + box_w[:, None] * (np.arange(out_w) + 0.5) / out_w) / width - 1
        y = torch.from_numpy(down.astype(np.float32)).to(images.device)[:, :, None]
        x = torch.from_numpy(across.astype(np.float32)).to(images.device)[:, None, :]
        grid = torch.stack(torch.broadcast_tensors(x, y), dim=-1)
        mode = "bilinear" if blended else "nearest"
        values = images.float() if blended else images.double()  # in which integers below 2**53 stay what they are
        found = torch.nn.functional.grid_sample(
            values, grid.to(values.dtype), mode=mode, padding_mode="border", align_corners=False
        )
        return found if blended else found.to(images.dtype)


def _seeded(seed: int, epoch: int, ids: np.ndarray, purpose: int) -> Iterator[int]:
    """The place of each sample, with torch's CPU generator seeded for it; at the end the generator is as it was.
    torchvision's transforms draw from that one, wherever the images are."""
    import torch

    with torch.random.fork_rng(devices=[]):
        for place, sample in enumerate(ids.tolist()):
            torch.default_generator.manual_seed(order.key(seed, epoch, sample, purpose) >> 1)
            yield place


def center_crop(images: torch.Tensor, side: int | None) -> torch.Tensor:
    """The middle `side` x `side` of [n, c, h, w]; None keeps all."""
    if side is None or tuple(images.shape[2:]) == (side, side):
        return images
    top, left = (images.shape[2] - side) // 2, (images.shape[3] - side) // 2
    return images[:, :, top : top + side, left : left + side]


class Normalise:
    """float32 (images / range - mean) / std, for [n, c, h, w].

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
        import torch

        full = 1 if np.dtype(dtype).kind == "f" else 1 if dtype == "bool" else np.iinfo(dtype).max
        self.memory_format = memory_format or torch.contiguous_format
        self.shift = torch.tensor(mean, device=device).view(1, -1, 1, 1) * full
        self.scale = 1 / (torch.tensor(std, device=device).view(1, -1, 1, 1) * full)

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        """Return the normalised images, in the memory format that was asked for; `images` stay as they are."""
        import torch

        converted = images.to(torch.float32, copy=True, memory_format=self.memory_format)
        return converted.sub_(self.shift).mul_(self.scale)
