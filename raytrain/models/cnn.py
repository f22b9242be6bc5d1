"""A small convolutional network."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from raytrain.config import at_least, check, within
from raytrain.models.base import Model, check_image, torch_nn

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class CNN(Model):
    """Blocks of 3x3 convolution, ReLU and 2x2 max pooling, then one linear layer."""

    channels: tuple[int, ...] = (16, 32)
    """Output channels of each block; a block halves height and width while they are above one."""
    batch_norm: bool = False
    """Normalise each block's channels over the rank's micro-batch."""
    dropout: float = 0.0
    """Probability of dropping one of the last features in training, in [0, 1)."""
    outputs: int = field(default=0, kw_only=True)
    """Outputs of the head, such as the numbers that a regression predicts; 0: one for each of the data's classes."""

    def __post_init__(self) -> None:
        check(
            self,
            channels=(lambda widths: len(widths) > 0 and min(widths) > 0, "of one or more positive widths"),
            dropout=within(0, 1),
            outputs=at_least(0),
        )

    def build(self, sample: tuple[int, int, int], classes: int) -> nn.Module:
        """Return the blocks, flattened into the head."""
        check_image(self, sample)
        nn = torch_nn()
        inputs, height, width = sample
        layers = []
        for outputs in self.channels:
            layers.append(nn.Conv2d(inputs, outputs, 3, padding=1, bias=not self.batch_norm))
            if self.batch_norm:
                layers.append(nn.BatchNorm2d(outputs))
            layers.append(nn.ReLU())
            if min(height, width) > 1:
                layers.append(nn.MaxPool2d(2))
                height, width = height // 2, width // 2
            inputs = outputs
        if self.dropout:
            layers.append(nn.Dropout(self.dropout))
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(inputs * height * width, self.outputs or classes))
