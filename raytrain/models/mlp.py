"""Fully connected networks."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, Any

from raytrain.config import at_least, check, within
from raytrain.models.base import Model, torch_nn

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class MLP(Model):
    """A multilayer perceptron with ReLU between its layers."""

    hidden: tuple[int, ...] = (512, 512)
    """Widths of the hidden layers."""
    dropout: float = 0.0
    """Probability of dropping a hidden unit in training, in [0, 1)."""
    outputs: int = field(default=0, kw_only=True)
    """Outputs of the head, such as the numbers that a regression predicts; 0: one for each of the data's classes."""

    def __post_init__(self) -> None:
        check(
            self,
            hidden=(lambda widths: min(widths, default=1) > 0, "of positive widths"),
            dropout=within(0, 1),
            outputs=at_least(0),
        )

    def build(self, sample: tuple[int, int, int], classes: int) -> nn.Module:
        """Return linear layers of the hidden widths, then the head, on flattened samples."""
        nn = torch_nn()
        widths = [prod(sample), *self.hidden]
        layers: list[Any] = [nn.Flatten()]
        for inputs, outputs in pairwise(widths):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
            if self.dropout:
                layers.append(nn.Dropout(self.dropout))
        return nn.Sequential(*layers, nn.Linear(widths[-1], self.outputs or classes))


@dataclass(frozen=True)
class SimpleModel(Model):
    """The model of the DDP tutorials: 784-10-10-10 on MNIST (Linear, ReLU, Linear, ReLU, Linear)."""

    def build(self, sample: tuple[int, int, int], classes: int) -> nn.Module:
        """Return an MLP with two hidden layers of ten units."""
        return MLP(hidden=(10, 10)).build(sample, classes)
