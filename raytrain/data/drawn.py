"""The random numbers by which a batch is changed: drawn on the host, and read by the device from a table.

A CUDA graph cannot draw them: the numbers of torchvision's policies are those of a generator on the host. So the host
draws for many steps at once, and what a graph needs to know of a batch is one tensor with a row for each sample.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch

from raytrain import order
from raytrain.data.augment import Augment
from raytrain.data.geometry import Numbers
from raytrain.data.twister import Streams

DRAWS = 5
"""Random numbers of an image: two for the place of the crop, two for its size, one for the flip."""
MIXTURE = 7
"""Numbers of a mixed pair: 1 if it is blended and 0 if a box is swapped, the shares of an image and of the other one,
and the box."""
POLICY, _ERASE, _MIX = 1 << 32, 2 << 32, 3 << 32
"""Purposes of a sample's key; larger than the ranks and rounds in which other keys end."""


class Changes(Protocol):
    """The random numbers by which a batch is changed."""

    def places(self) -> Numbers:
        """Return where images are cut and whether they are flipped, float64 [n, DRAWS], see `spread`."""
        ...

    def boxes(self, height: int, width: int) -> Numbers:
        """Return what is erased of each image, int64 [n, 4], each (top, left, height, width)."""
        ...

    def mixture(self, height: int, width: int) -> Numbers:
        """Return how pairs are mixed, float64 [n // 2, MIXTURE]."""
        ...


class Drawn:
    """The random numbers of a batch, which the host draws.

    Args:
        keys: int64 [n], what randomness is keyed by besides seed and epoch; see `Prepare.augmented`.
    """

    def __init__(self, augment: Augment, seed: int, epoch: int, keys: np.ndarray):
        self.augment, self.seed, self.epoch, self.keys = augment, seed, epoch, keys

    def places(self) -> np.ndarray:
        """Return where images are cut and whether they are flipped, float64 [n, DRAWS], see `spread`."""
        return spread(self.augment, order.uniform(self.seed, self.epoch, self.keys, DRAWS))

    def boxes(self, height: int, width: int) -> np.ndarray:
        """Return what is erased of images of a size, int64 [n, 4], each (top, left, height, width): what torchvision's
        RandomErasing would erase if torch's CPU generator was seeded for each sample."""
        streams = self._streams(_ERASE, self.keys)
        boxes, open_ = (
            np.zeros((len(self.keys), 4), np.int64),
            np.flatnonzero(streams.floats() < self.augment.erase),
        )
        low, high = torch.tensor((0.3, 3.3)).log().numpy()
        for _ in range(10):
            if not len(open_):
                break
            least, most = np.float32(0.02), np.float32(0.33)
            area = height * width * _between(streams.floats(open_), least, most).astype(np.float64)
            # torch's exp, whose last bit may differ from numpy's.
            ratio = torch.from_numpy(_between(streams.floats(open_), low, high)).exp().numpy().astype(np.float64)
            tall, wide = (
                np.rint(np.sqrt(area * ratio)).astype(np.int64),
                np.rint(np.sqrt(area / ratio)).astype(np.int64),
            )
            fits = (tall < height) & (wide < width)
            rows, tall, wide = open_[fits], tall[fits], wide[fits]
            top = streams.integers(height - tall + 1, rows)
            boxes[rows] = np.stack([top, streams.integers(width - wide + 1, rows), tall, wide], axis=1)
            open_ = open_[~fits]
        return boxes

    def mixture(self, height: int, width: int) -> np.ndarray:
        """Return how images 2k and 2k + 1 of a size are mixed, float64 [n // 2, MIXTURE]: as torchvision's MixUp and
        CutMix would mix them if torch's generator was seeded for each pair."""
        augment, pairs = self.augment, len(self.keys) // 2
        streams = self._streams(_MIX, self.keys[: 2 * pairs : 2])
        blend = streams.firsts() if augment.mixup and augment.cutmix else np.full(pairs, augment.mixup > 0)
        own = np.empty(pairs)
        boxes = np.zeros((pairs, 4), np.int64)
        for rows, alpha in ((np.flatnonzero(blend), augment.mixup), (np.flatnonzero(~blend), augment.cutmix)):
            if len(rows):
                own[rows] = streams.betas(alpha, rows)
        cut = np.flatnonzero(~blend)
        if len(cut):
            x, y = streams.integers(width, cut), streams.integers(height, cut)
            half = 0.5 * np.sqrt(1 - own[cut])
            across, down = (half * width).astype(np.int64), (half * height).astype(np.int64)
            left, top = np.maximum(x - across, 0), np.maximum(y - down, 0)
            wide, tall = np.minimum(x + across, width) - left, np.minimum(y + down, height) - top
            own[cut] = 1 - wide * tall / (width * height)
            boxes[cut] = np.stack([top, left, tall, wide], axis=1)
        return np.column_stack([blend, own, 1 - own, boxes])

    def _streams(self, purpose: int, keys: np.ndarray) -> Streams:
        return Streams(order.keys(self.seed, self.epoch, keys, purpose) >> np.uint64(1))


def spread(augment: Augment, draws: np.ndarray) -> np.ndarray:
    """Return draws with those for the size of a random_resized crop as its area, a share of the image's, and its width
    / height: devices round exponentials in other ways than hosts.

    Args:
        draws: float64 [n, DRAWS] in [0, 1).
    """
    if augment.crop != "random_resized":
        return draws
    area = augment.scale[0] + draws[:, 2] * (augment.scale[1] - augment.scale[0])
    low, high = np.log(augment.ratio)
    ratio = np.exp(low + draws[:, 3] * (high - low))
    return np.column_stack([draws[:, :2], area, ratio, draws[:, 4]])


def _between(draws: np.ndarray, low: np.float32, high: np.float32) -> np.ndarray:
    """Return random numbers spread over a range as torch's `uniform_` does it, float32."""
    return (draws * float(high - low) + float(low)).astype(np.float32)


def table(drawn: Drawn, ids: np.ndarray, height: int, width: int) -> np.ndarray:
    """Return all that a device needs to know of samples, float64 [n, columns], for `Columns`. The first column has the
    bits of the samples' numbers, which the device need not convert.

    Args:
        ids: int64 [n], the samples.
        height: of the images that the model sees.
    """
    n = len(ids)
    columns = [ids[:, None].view(np.float64), *(np.zeros((n, width)) for width in _widths(drawn.augment))]
    if columns[1].size:
        columns[1] = drawn.places()
    if columns[2].size:
        columns[2] = drawn.boxes(height, width)
    if columns[3].size:
        columns[3][: n // 2 * 2] = drawn.mixture(height, width).repeat(2, axis=0)
    return np.concatenate(columns, axis=1)


def _widths(augment: Augment) -> tuple[int, int, int]:
    """Return how many columns a table has for places, boxes and mixtures."""
    cut = augment.crop != "center" or augment.flip > 0
    return DRAWS * cut, 4 * (augment.erase > 0), MIXTURE * augment.mixes


class Columns:
    """The random numbers of a batch as the columns of a tensor on its device.

    Args:
        rows: what `table` returned, float64 [n, columns].
    """

    def __init__(self, augment: Augment, rows: torch.Tensor):
        samples, self._places, self._boxes, self._mixture = rows.split([1, *_widths(augment)], 1)
        self.samples = samples[:, 0].view(torch.int64).contiguous()
        """int64 [n]."""

    def places(self) -> torch.Tensor:
        """Return the same as `Drawn`, as all methods do."""
        return self._places

    def boxes(self, height: int, width: int) -> torch.Tensor:
        """Return what is erased."""
        return self._boxes.long()

    def mixture(self, height: int, width: int) -> torch.Tensor:
        """Return how pairs are mixed."""
        return self._mixture[::2]
