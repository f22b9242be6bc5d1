"""EMA: an exponential moving average of the trained weights, which is what is validated and kept."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

_lerp, _copy = torch._foreach_lerp_, torch._foreach_copy_  # type: ignore[reportPrivateImportUsage]


class EMA:
    """The averages of a model's trained parameters, as torch.optim.swa_utils.AveragedModel makes them: the first
    update takes the weights, each further one moves by `1 - decay` towards them. Buffers are not averaged.

    Args:
        decay: share of the old average that stays with an update.
    """

    def __init__(self, decay: float):
        self.decay, self.updates = decay, 0
        self._loaded: dict[str, torch.Tensor] = {}

    def load(self, model: dict[str, torch.Tensor], state: dict[str, Any]) -> dict[str, torch.Tensor]:
        """Take up a checkpoint; returns the state dict to train on with.

        Args:
            model: the averaged state dict.
            state: as `state_dict` gave it.
        """
        self.updates, self._loaded = state["updates"], model
        return model | state["trained"]

    def start(
        self, module: nn.Module, part: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], here: set[int]
    ) -> None:
        """Begin with the module's weights, or with the averages that were loaded.

        Args:
            module: the model, spread over the ranks by now.
            part: makes this rank's part of a whole tensor that belongs to a parameter.
            here: the ids of the trained parameters of which this rank has the values, or a part of each.
        """
        trained = [(name, parameter) for name, parameter in module.named_parameters() if id(parameter) in here]
        self.weights = [parameter.detach() for _, parameter in trained]
        self.averages = [weight.clone() for weight in self.weights]
        if self._loaded:
            for (name, parameter), average in zip(trained, self.averages, strict=True):
                average.copy_(part(self._loaded[name], parameter))
            self._loaded = {}

    @torch.no_grad()
    def update(self) -> None:
        """Follow the weights by one step."""
        averages, weights = ([_own(tensor) for tensor in each] for each in (self.averages, self.weights))
        if self.updates:
            _lerp(averages, weights, 1 - self.decay)
        else:
            _copy(averages, weights)
        self.updates += 1

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """The context in which the model has the averages; its weights come back with the same bits."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        """Contents and not tensors: what holds a model's parameters, such as FSDP, goes on holding them."""
        for average, weight in zip(map(_own, self.averages), map(_own, self.weights), strict=True):
            kept = weight.clone()
            weight.copy_(average)
            average.copy_(kept)

    def state_dict(self, module: nn.Module) -> dict[str, Any]:
        """Return what a checkpoint needs besides the averaged model: the weights to train on with, by all of their
        names."""
        named = module.named_parameters(remove_duplicate=False)
        return {"updates": self.updates, "trained": {name: weight for name, weight in named if weight.requires_grad}}


def _own(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a tensor that is sharded."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor  # type: ignore[operator]
