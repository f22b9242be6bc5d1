"""The base class of models: a frozen dataclass that builds a plain `torch.nn.Module`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Model:
    """The base of all models. Subclass it in an experiment file, as a frozen dataclass, to bring your own."""

    def build(self, sample: Any, classes: int) -> nn.Module:
        """Return the module, initialised with PyTorch's global generator.

        The module takes a batch of the data's first field: of images float32 [batch, channels, height, width],
        normalised. It knows nothing of Ray, ranks or precision.

        Args:
            sample: the shape of one sample as the module will see it: (channels, height, width) of an image.
            classes: the number of the data's classes; 0 for data without labels.
        """
        raise NotImplementedError(f"{type(self).__name__} needs a build(sample, classes)")

    def load(self, module: nn.Module) -> None:
        """Fill `module` with pretrained weights, in place. No-op by default.

        Runs on the driver's machine, once, before the workers start.
        """

    def check_weights(self, module: nn.Module) -> None:
        """Check, before anything starts, that the weights for `load` are there and fit.

        Args:
            module: what `build` returned, perhaps on the meta device.

        Raises:
            UserError: they are missing or do not fit.
        """

    def notes(self) -> list[str]:
        """Return lines that the plan shows about this model, such as missing weights."""
        return []
