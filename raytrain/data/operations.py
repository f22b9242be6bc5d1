"""The operations of an `Augment`, with torchvision v2's names, arguments and probabilities."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, Self

import numpy as np

from raytrain import errors
from raytrain.config import SHARE, Rule, at_least, check
from raytrain.data.late import with_torch
from raytrain.data.operation import BOX_DRAWS, Interpolation, Operation, check_channels

if TYPE_CHECKING:
    import torch

    from raytrain.data.source import Field

SCALE: Rule = (lambda r: 0 < r[0] <= r[1] <= 1, "with 0 < low <= high <= 1")
RATIO: Rule = (lambda r: 0 < r[0] <= r[1], "with 0 < low <= high")
_ANGLES: Rule = (
    lambda d: (
        d >= 0 if isinstance(d, int | float) else all(low <= high for low, high in zip(d[::2], d[1::2], strict=True))
    ),
    "of at least 0, or with low <= high",
)
Range = float | tuple[float, float]


class _Crop(Operation):
    def __new__(cls, *values: object, **fields: object) -> Self:
        """Refuse a value without a name: in torchvision it is a size."""
        if values:
            named = ", ".join(f"{name}={value!r}" for name, value in fields.items())
            how = f"write {cls.__name__}({named}): the data gives the side, as in ImageFolder(size=256, crop=224)"
            raise errors.UserError(f"{cls.__name__} takes no size, and its values by name only", "", how)
        return super().__new__(cls)


@dataclass(frozen=True, kw_only=True)
class RandomCrop(_Crop):
    """Cut the part that the model sees from a random place."""

    padding: int = 0
    """Pixels added on each side before."""
    fill: float = 0.0
    """Value of padded pixels, from 0 to 1; masks have a fill of their own."""
    padding_mode: Literal["constant", "edge", "reflect"] = "constant"
    """What is added: `fill`, the edge's pixels, or the image's reflection."""

    takes_bytes: ClassVar[bool] = True
    draws: ClassVar[int] = 2

    def __post_init__(self) -> None:
        check(self, padding=at_least(0))

    def check(self, image: Field, masks: tuple[str, ...]) -> None:
        """Check that the reflection of an image fills the padding."""
        if self.padding_mode == "reflect" and self.padding >= min(image.shape[1:]):
            raise _too_large("padding", self.padding, image, self)

    def apply(self, images: torch.Tensor, draws: np.ndarray, side: int | None) -> torch.Tensor:
        """Return windows of the images."""
        return self._cut(images, draws, side, self.fill if images.is_floating_point() else round(255 * self.fill))

    def apply_to_masks(self, masks: torch.Tensor, draws: np.ndarray, side: int | None, fill: int) -> torch.Tensor:
        """Return the same windows of the masks."""
        return self._cut(masks, draws, side, fill)

    def _cut(self, values: torch.Tensor, draws: np.ndarray, side: int | None, fill: float) -> torch.Tensor:
        height, width = (side, side) if side else values.shape[2:]
        wide = with_torch().geometry.padded(values, self.padding, self.padding_mode, fill)
        return with_torch().geometry.windows(wide, draws, height, width)


@dataclass(frozen=True, kw_only=True)
class RandomResizedCrop(_Crop):
    """Cut a part of random area and aspect ratio, and resize it to what the model sees (Szegedy et al., 2015)."""

    scale: tuple[float, float] = (0.08, 1.0)
    """Range of the part's area, as a share of the image's."""
    ratio: tuple[float, float] = (0.75, 4 / 3)
    """Range of the part's width / height."""

    takes_bytes: ClassVar[bool] = True
    draws: ClassVar[int] = BOX_DRAWS

    def __post_init__(self) -> None:
        check(self, scale=SCALE, ratio=RATIO)

    def apply(self, images: torch.Tensor, draws: np.ndarray, side: int | None) -> torch.Tensor:
        """Return resized parts, by bilinear interpolation with antialiasing."""
        return self._resize(images, draws, side, blended=True)

    def apply_to_masks(self, masks: torch.Tensor, draws: np.ndarray, side: int | None, fill: int) -> torch.Tensor:
        """Return the nearest values of the same parts."""
        return self._resize(masks, draws, side, blended=False)

    def _resize(self, values: torch.Tensor, draws: np.ndarray, side: int | None, blended: bool) -> torch.Tensor:
        height, width = values.shape[2:]
        found = self.boxes(draws, height, width)
        return with_torch().geometry.resized_boxes(values, found, side or height, side or width, blended)

    def boxes(self, draws: np.ndarray, height: int, width: int) -> np.ndarray:
        """Return the parts that are cut from images, int64 [n, 4], each (top, left, height, width)."""
        return with_torch().geometry.boxes(draws, height, width, self.scale, self.ratio)[0]


@dataclass(frozen=True)
class _Flip(Operation):
    p: float = 0.5
    """Probability."""

    takes_bytes: ClassVar[bool] = True
    draws: ClassVar[int] = 1
    dimension: ClassVar[int] = -1

    def __post_init__(self) -> None:
        check(self, p=SHARE)

    def apply(self, images: torch.Tensor, draws: np.ndarray, side: int | None) -> torch.Tensor:
        """Return the images, some of them mirrored."""
        return with_torch().geometry.flip(images, draws[:, 0] < self.p, self.dimension)

    def apply_to_masks(self, masks: torch.Tensor, draws: np.ndarray, side: int | None, fill: int) -> torch.Tensor:
        """Return the masks, the same of them mirrored."""
        return with_torch().geometry.flip(masks, draws[:, 0] < self.p, self.dimension)


@dataclass(frozen=True)
class HorizontalFlip(_Flip):
    """Mirror left and right."""


@dataclass(frozen=True)
class VerticalFlip(_Flip):
    """Mirror top and bottom."""

    dimension: ClassVar[int] = -2


@dataclass(frozen=True)
class RandomAffine(Operation):
    """Rotate, move, scale and shear around the centre; width and height stay."""

    degrees: Range = 0.0
    """Range of the angle in degrees, clockwise; a number d is (-d, d)."""
    translate: tuple[float, float] = (0.0, 0.0)
    """Largest moves across and down, as shares of width and height."""
    scale: tuple[float, float] = (1.0, 1.0)
    """Range of the scale."""
    shear: Range | tuple[float, float, float, float] = 0.0
    """Range of the shear along x in degrees, and with four numbers also along y; a number d is (-d, d)."""
    interpolation: Interpolation = "nearest"
    """How images are sampled; masks take the nearest value."""
    fill: float = 0.0
    """Value of what lies outside of the image, from 0 to 1; masks have a fill of their own."""

    draws: ClassVar[int] = 6

    def __post_init__(self) -> None:
        check(
            self,
            degrees=_ANGLES,
            translate=(lambda t: 0 <= min(t) and max(t) <= 1, "in [0, 1]"),
            scale=RATIO,
            shear=_ANGLES,
        )

    def apply(self, images: torch.Tensor, draws: np.ndarray, side: int | None) -> torch.Tensor:
        """Return the moved images."""
        return with_torch().geometry.affine(images, self._maps(images, draws), self.interpolation, self.fill)

    def apply_to_masks(self, masks: torch.Tensor, draws: np.ndarray, side: int | None, fill: int) -> torch.Tensor:
        """Return the masks moved alike."""
        return with_torch().geometry.affine(masks, self._maps(masks, draws), "nearest", fill)

    def _maps(self, values: torch.Tensor, draws: np.ndarray) -> np.ndarray:
        height, width = values.shape[2:]
        moves = np.rint((2 * draws[:, 1:3] - 1) * np.array(self.translate) * (width, height))
        shear = self.shear if isinstance(self.shear, tuple) else (-self.shear, self.shear)
        x, y = _between(draws[:, 4], shear[:2]), _between(draws[:, 5], shear[2:] or (0.0, 0.0))
        angle = _between(draws[:, 0], self.degrees, around=0.0)
        scale = _between(draws[:, 3], self.scale)
        return with_torch().geometry.inverse_affine(angle, moves, scale, np.stack([x, y], axis=1))


@dataclass(frozen=True)
class RandomRotation(Operation):
    """Rotate around the centre; width and height stay."""

    degrees: Range = 10.0
    """Range of the angle in degrees, counter-clockwise; a number d is (-d, d)."""
    interpolation: Interpolation = "nearest"
    """How images are sampled; masks take the nearest value."""
    fill: float = 0.0
    """Value of what lies outside of the image, from 0 to 1; masks have a fill of their own."""

    draws: ClassVar[int] = 1

    def __post_init__(self) -> None:
        check(self, degrees=_ANGLES)

    def apply(self, images: torch.Tensor, draws: np.ndarray, side: int | None) -> torch.Tensor:
        """Return the rotated images."""
        return with_torch().geometry.affine(images, self._maps(draws), self.interpolation, self.fill)

    def apply_to_masks(self, masks: torch.Tensor, draws: np.ndarray, side: int | None, fill: int) -> torch.Tensor:
        """Return the masks rotated alike."""
        return with_torch().geometry.affine(masks, self._maps(draws), "nearest", fill)

    def _maps(self, draws: np.ndarray) -> np.ndarray:
        zeros = np.zeros((len(draws), 2))
        angle = -_between(draws[:, 0], self.degrees, around=0.0)
        return with_torch().geometry.inverse_affine(angle, zeros, np.ones(len(draws)), zeros)


@dataclass(frozen=True)
class ColorJitter(Operation):
    """Change brightness, contrast, saturation and hue, in a random order."""

    brightness: Range = 0.0
    """Range of the factor; a number b is (1 - b, 1 + b)."""
    contrast: Range = 0.0
    """Range of the factor; a number c is (1 - c, 1 + c)."""
    saturation: Range = 0.0
    """Range of the factor; a number s is (1 - s, 1 + s). Grey images have none."""
    hue: Range = 0.0
    """Range of the turn of the colour circle; a number h is (-h, h). Grey images have none."""

    draws: ClassVar[int] = 8
    clamps: ClassVar[bool] = True

    def __post_init__(self) -> None:
        factor: Rule = (lambda f: f >= 0 if isinstance(f, int | float) else 0 <= f[0] <= f[1], "of at least 0")
        turn: Rule = (
            lambda h: 0 <= h <= 0.5 if isinstance(h, int | float) else -0.5 <= h[0] <= h[1] <= 0.5,
            "in [0, 0.5], or with -0.5 <= low <= high <= 0.5",
        )
        check(self, brightness=factor, contrast=factor, saturation=factor, hue=turn)

    def check(self, image: Field, masks: tuple[str, ...]) -> None:
        """Check the number of channels."""
        check_channels(image, self)

    def apply(self, images: torch.Tensor, draws: np.ndarray, side: int | None) -> torch.Tensor:
        """Return the images with other colours."""
        jitter, names = with_torch().colour.jitter, with_torch().colour.JITTER
        factors = {
            number: _between(draws[:, number], value, around=float(name != "hue"))
            for number, name in enumerate(names)
            if (value := getattr(self, name)) not in (0, (1.0, 1.0) if name != "hue" else (0.0, 0.0))
        }
        if not factors:
            return images
        order = draws[:, 4 : 4 + len(factors)].argsort(axis=1).T
        kinds = np.array([*factors])[order]
        return jitter(images, kinds, np.take_along_axis(np.stack([*factors.values()]), order, 0))


@dataclass(frozen=True)
class RandomGrayscale(Operation):
    """Make RGB images grey, of three equal channels."""

    p: float = 0.1
    """Probability."""

    draws: ClassVar[int] = 1

    def __post_init__(self) -> None:
        check(self, p=SHARE)

    def check(self, image: Field, masks: tuple[str, ...]) -> None:
        """Check the number of channels."""
        check_channels(image, self)

    def apply(self, images: torch.Tensor, draws: np.ndarray, side: int | None) -> torch.Tensor:
        """Return the images, some of them grey."""
        return with_torch().geometry.some(
            images,
            draws[:, 0] < self.p,
            lambda part, _: (
                with_torch().colour.grey(part).repeat(1, part.shape[1], 1, 1) if part.shape[1] == 3 else part
            ),
        )


@dataclass(frozen=True)
class GaussianBlur(Operation):
    """Blur by a Gaussian."""

    kernel_size: int = 5
    """Taps in each direction, an odd number."""
    sigma: tuple[float, float] = (0.1, 2.0)
    """Range of the width in pixels."""
    p: float = 1.0
    """Probability."""

    draws: ClassVar[int] = 2

    def __post_init__(self) -> None:
        check(self, kernel_size=(lambda k: k > 0 and k % 2 == 1, "an odd number above 0"), sigma=RATIO, p=SHARE)

    def check(self, image: Field, masks: tuple[str, ...]) -> None:
        """Check that the reflection of an image fills the kernel's reach."""
        if self.kernel_size // 2 >= min(image.shape[1:]):
            raise _too_large("kernel_size", self.kernel_size, image, self)

    def apply(self, images: torch.Tensor, draws: np.ndarray, side: int | None) -> torch.Tensor:
        """Return the images, some of them blurred."""
        sigmas = _between(draws[:, 1], self.sigma)
        return with_torch().geometry.some(
            images,
            draws[:, 0] < self.p,
            lambda part, chosen: with_torch().colour.blur(part, self.kernel_size, sigmas[chosen]),
        )


@dataclass(frozen=True)
class RandomErasing(Operation):
    """Set a rectangle of the normalised image to a value (Zhong et al., 2020)."""

    p: float = 0.5
    """Probability."""
    scale: tuple[float, float] = (0.02, 0.33)
    """Range of the rectangle's area, as a share of the image's."""
    ratio: tuple[float, float] = (0.3, 3.3)
    """Range of the rectangle's height / width."""
    value: float = 0.0
    """The value, after normalisation: 0 is the data's mean."""

    draws: ClassVar[int] = 1 + BOX_DRAWS
    normalised: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check(self, p=SHARE, scale=SCALE, ratio=RATIO)

    def apply(self, images: torch.Tensor, draws: np.ndarray, side: int | None) -> torch.Tensor:
        """Return the images, some of them with a rectangle."""
        height, width = images.shape[2:]
        # torchvision's ratio is height / width here, and width / height in a crop.
        found, fits = with_torch().geometry.boxes(draws[:, 1:], width, height, self.scale, self.ratio, strict=True)
        found = found[:, [1, 0, 3, 2]]
        return with_torch().geometry.some(
            images,
            (draws[:, 0] < self.p) & fits,
            lambda part, chosen: with_torch().colour.erase(part, found[chosen], self.value),
        )


def _between(draws: np.ndarray, ends: Range, around: float | None = None) -> np.ndarray:
    """Return draws spread over a range.

    Args:
        around: the middle of the range where `ends` is a number; factors around 1 are at least 0.
    """
    if isinstance(ends, int | float):
        assert around is not None
        ends = max(around - ends, 0.0) if around else -ends, around + ends
    low, high = ends
    return low + draws * (high - low)


def _too_large(name: str, value: int, image: Field, operation: Operation) -> errors.UserError:
    height, width = image.shape[1:]
    return errors.out_of_range(name, value, f"that images of {height} x {width} can fill", type(operation).__name__)
