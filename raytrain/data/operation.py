"""The base class of the operations of an `Augment`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from raytrain import errors

if TYPE_CHECKING:
    import numpy as np
    import torch

    from raytrain.data.source import Field

Interpolation = Literal["nearest", "bilinear"]
BOX_ATTEMPTS = 10
"""Random boxes, of which the first that fits is cut."""
BOX_DRAWS = 2 * BOX_ATTEMPTS + 2
"""Random numbers of a box: an area and an aspect ratio for each attempt, and its place."""


@dataclass(frozen=True)
class Operation:
    """A random change of training images. Subclass it in an experiment file, as a frozen dataclass, to bring your own.

    All randomness must come from `draws`, and each image must be changed by its own draws alone: then the images are
    the same on any number of workers, in micro-batches of any size, and after a resume.
    """

    draws: ClassVar[int] = 0
    """The number of random numbers that the operation takes for each image."""
    takes_bytes: ClassVar[bool] = False
    """Whether it takes images of uint8 too, of 0 to 255, which it may return. That saves time where images are stored
    so and no earlier operation has made floats of them."""
    normalised: ClassVar[bool] = False
    """Whether it changes images after their normalisation. Such operations come last."""
    clamps: ClassVar[bool] = False
    """Whether it cuts values off at 0 and 1. The plan then refuses images that go beyond."""

    def apply(self, images: torch.Tensor, draws: np.ndarray, side: int | None) -> torch.Tensor:
        """Return changed images.

        Args:
            images: float32 [n, channels, height, width] in [0, 1], on any device; they may be changed in place.
                With `takes_bytes` perhaps uint8.
            draws: float64 [n, self.draws], uniform in [0, 1), on the CPU.
            side: height and width of what the model sees; None is the whole image.

        Returns:
            float32 [n, channels, height, width], with another height and width only for operations that crop.
        """
        return images

    def apply_to_masks(self, masks: torch.Tensor, draws: np.ndarray, side: int | None, fill: int) -> torch.Tensor:
        """Return masks changed as the images are; by default the masks themselves, as operations on colours do.

        Args:
            masks: [n, channels, height, width] of any dtype, uint16 as int32; they may be changed in place.
            draws: those of the images.
            fill: the value beyond a mask's edges.
        """
        return masks

    def check(self, image: Field, masks: tuple[str, ...]) -> None:
        """Check that the operation can change the images of a field. No-op by default.

        Args:
            image: an image field of the data.
            masks: the names of the data's masks.

        Raises:
            UserError: it cannot.
        """


def check_channels(image: Field, operation: Operation) -> None:
    """Check that images are grey or RGB.

    Raises:
        UserError: they have another number of channels.
    """
    if image.shape[0] not in (1, 3):
        raise errors.UserError(
            f"{type(operation).__name__} takes images of 1 or 3 channels, and {image.name!r} has {image.shape[0]}",
            "in data.augment.operations",
            "leave it out: operations of geometry take any number of channels",
        )
