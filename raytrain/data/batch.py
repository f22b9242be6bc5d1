"""A batch: named arrays of some samples, as a task gets them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import torch


@dataclass
class Batch:
    """A rank's samples of a global batch, or a micro-batch of them.

    Attributes:
        arrays: each [n, ...] and on the device, by the names of the source's fields, the model's input first; and
            `label`, int64 [n], for sources with classes; and `target`, float32 [n, classes], each class's share of an
            image, if mixup or cutmix has mixed it. A loss must then use `target`: the label is only one of the two.
        ids: int64 [n], the samples' numbers in their split, on the CPU.
    """

    arrays: dict[str, torch.Tensor]
    ids: np.ndarray

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, name: str) -> torch.Tensor:
        if name not in self.arrays:
            raise KeyError(f"a batch of this data has {', '.join(map(repr, self.arrays))}, and no {name!r}")
        return self.arrays[name]

    @property
    def input(self) -> torch.Tensor:
        """The model's input: the source's first field."""
        return self[next(iter(self.arrays))]

    @property
    def images(self) -> torch.Tensor:
        """float32 [n, channels, height, width], augmented and normalised: the field `image`."""
        return self["image"]

    @property
    def labels(self) -> torch.Tensor:
        """int64 [n]."""
        return self["label"]

    @property
    def targets(self) -> torch.Tensor | None:
        """float32 [n, classes], or None: see `arrays`."""
        return self.arrays.get("target")

    @property
    def unmixed(self) -> Batch:
        """The batch without targets, as in an evaluation."""
        return Batch({name: array for name, array in self.arrays.items() if name != "target"}, self.ids)
