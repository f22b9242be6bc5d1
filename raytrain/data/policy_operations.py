"""Operations that choose among many changes of colour and shape: RandAugment, TrivialAugmentWide and AugMix."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from raytrain import errors
from raytrain.config import above, at_least, check
from raytrain.data.late import with_torch
from raytrain.data.operation import Interpolation, Operation, check_channels

if TYPE_CHECKING:
    import torch

    from raytrain.data.policies import Space, Step
    from raytrain.data.source import Field


@dataclass(frozen=True)
class _Policy(Operation):
    takes_bytes: ClassVar[bool] = True

    def check(self, image: Field, masks: tuple[str, ...]) -> None:
        """Check that images have 1 or 3 channels of uint8."""
        name, where = type(self).__name__, "in data.augment.operations"
        if image.dtype != "uint8":
            how = "leave it out: ColorJitter and operations of geometry take floats"
            raise errors.UserError(f"{name} changes images of uint8, and {image.name!r} is {image.dtype}", where, how)
        check_channels(image, self)


@dataclass(frozen=True)
class RandAugment(_Policy):
    """Make some random changes of one strength (Cubuk et al., 2020)."""

    num_ops: int = 2
    """Number of changes, in sequence."""
    magnitude: int = 9
    """Strength of the changes, from 0 to num_magnitude_bins - 1."""
    num_magnitude_bins: int = 31
    """Number of strengths."""
    interpolation: Interpolation = "nearest"
    """How moved images are sampled."""
    fill: float = 0.0
    """Value of what lies outside of a moved image, from 0 to 1."""

    def __post_init__(self) -> None:
        bins = self.num_magnitude_bins
        rule = lambda value: 0 <= value < bins, f"from 0 to {bins - 1}, the strengths"
        check(self, num_ops=at_least(0), num_magnitude_bins=at_least(2), magnitude=rule)

    @property
    def draws(self) -> int:  # type: ignore[override]
        """A change and a sign for each of num_ops."""
        return 2 * self.num_ops

    def apply(self, images: torch.Tensor, draws: np.ndarray, side: int | None) -> torch.Tensor:
        """Return the changed images, of uint8."""
        steps = self._steps(images, draws)
        return _policies().change(_policies().to_bytes(images), steps, self.interpolation, self.fill)

    def apply_to_masks(self, masks: torch.Tensor, draws: np.ndarray, side: int | None, fill: int) -> torch.Tensor:
        """Return the masks, moved as the images are."""
        return _policies().change_masks(masks, self._steps(masks, draws), fill)

    def _steps(self, values: torch.Tensor, draws: np.ndarray) -> list[Step]:
        space = _policies().rand_augment_space(self.num_magnitude_bins, *values.shape[2:])
        strength = np.full(len(draws), self.magnitude)
        return [_chosen(space, draws[:, k], strength, draws[:, k + 1]) for k in range(0, self.draws, 2)]


@dataclass(frozen=True)
class TrivialAugmentWide(_Policy):
    """Make one random change of random strength (Müller and Hutter, 2021)."""

    num_magnitude_bins: int = 31
    """Number of strengths."""
    interpolation: Interpolation = "nearest"
    """How moved images are sampled."""
    fill: float = 0.0
    """Value of what lies outside of a moved image, from 0 to 1."""

    draws: ClassVar[int] = 3

    def __post_init__(self) -> None:
        check(self, num_magnitude_bins=at_least(2))

    def apply(self, images: torch.Tensor, draws: np.ndarray, side: int | None) -> torch.Tensor:
        """Return the changed images, of uint8."""
        found = _policies().to_bytes(images)
        return _policies().change(found, [self._step(draws)], self.interpolation, self.fill)

    def apply_to_masks(self, masks: torch.Tensor, draws: np.ndarray, side: int | None, fill: int) -> torch.Tensor:
        """Return the masks, moved as the images are."""
        return _policies().change_masks(masks, [self._step(draws)], fill)

    def _step(self, draws: np.ndarray) -> Step:
        space = _policies().trivial_augment_space(self.num_magnitude_bins)
        strength = (draws[:, 1] * self.num_magnitude_bins).astype(np.int64)
        return _chosen(space, draws[:, 0], strength, draws[:, 2])


@dataclass(frozen=True)
class AugMix(_Policy):
    """Blend an image with some chains of random changes of it (Hendrycks et al., 2020)."""

    severity: int = 3
    """Largest strength of the changes, from 1 to 10."""
    mixture_width: int = 3
    """Number of chains."""
    chain_depth: int = -1
    """Changes in a chain; -1 draws 1, 2 or 3 for each."""
    alpha: float = 1.0
    """Parameter of the distributions of the shares."""
    all_ops: bool = True
    """Whether to change brightness, contrast, saturation and sharpness too."""
    interpolation: Interpolation = "bilinear"
    """How moved images are sampled."""
    fill: float = 0.0
    """Value of what lies outside of a moved image, from 0 to 1."""

    def __post_init__(self) -> None:
        check(
            self,
            severity=(lambda value: 1 <= value <= 10, "from 1 to 10"),
            mixture_width=at_least(1),
            chain_depth=(lambda value: value == -1 or value >= 1, "of at least 1, or -1"),
            alpha=above(0),
        )

    def check(self, image: Field, masks: tuple[str, ...]) -> None:
        """Check that there are no masks, besides: a blend of an image in many places has no mask."""
        super().check(image, masks)
        if masks:
            what = f"AugMix blends an image with moved ones, and would leave the mask {masks[0]!r} where it is"
            raise errors.UserError(what, "in data.augment.operations", "use RandAugment in its place")

    @property
    def draws(self) -> int:  # type: ignore[override]
        """A seed of the shares; and for each chain its depth, and a change, a strength and a sign for each change."""
        return 1 + self.mixture_width * (1 + 3 * self._longest)

    @property
    def _longest(self) -> int:
        return self.chain_depth if self.chain_depth > 0 else 3

    def shares(self, draws: np.ndarray) -> np.ndarray:
        """Return the shares of the image and of each chain, float64 [n, 1 + mixture_width] with rows that sum to 1.

        Args:
            draws: float64 [n], one number for each image.
        """
        found = np.empty((len(draws), 1 + self.mixture_width))
        for row, draw in zip(found, draws, strict=True):
            random = np.random.Generator(np.random.Philox(int(draw * 2.0**53)))
            own = random.beta(self.alpha, self.alpha)
            row[0], row[1:] = own, (1 - own) * random.dirichlet([self.alpha] * self.mixture_width)
        return found

    def apply(self, images: torch.Tensor, draws: np.ndarray, side: int | None) -> torch.Tensor:
        """Return the blends."""
        space = _policies().augmix_space(*images.shape[2:], self.all_ops)
        shares, original = self.shares(draws[:, 0]), _policies().to_bytes(images)
        numbers = np.concatenate(np.split(draws[:, 1:], self.mixture_width, axis=1))
        random = 1 + (3 * numbers[:, 0]).astype(np.int64)
        depths, steps = np.full(len(numbers), self.chain_depth) if self.chain_depth > 0 else random, []
        for link in range(self._longest):
            which, strength, sign = numbers[:, 1 + 3 * link : 4 + 3 * link].T
            kinds, magnitudes = _chosen(space, which, (strength * self.severity).astype(np.int64), sign)
            steps.append((np.where(link < depths, kinds, 0), magnitudes))  # 0 changes nothing
        chains = original.repeat(self.mixture_width, 1, 1, 1)
        chains = _policies().change(chains, steps, self.interpolation, self.fill)
        return _policies().blended(original, chains, shares)


def _chosen(space: Space, which: np.ndarray, strength: np.ndarray, sign: np.ndarray) -> Step:
    """Return changes that are chosen by random numbers, each [n] in [0, 1).

    Args:
        strength: int64 [n].
    """
    return _policies().chosen(space, (which * len(space)).astype(np.int64), strength, sign < 0.5)


def _policies() -> ModuleType:
    """Return the functions of policies, which need torch."""
    return with_torch().policies
