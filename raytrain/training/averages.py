"""Averages of the trained weights, which are what is validated and kept: EMA over steps, SWA over epochs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar

import torch
from torch import nn

from raytrain.experiment import Experiment
from raytrain.parallel.strategy import local

_lerp, _copy = torch._foreach_lerp_, torch._foreach_copy_  # type: ignore[reportPrivateImportUsage]


class Averages:
    """The base of averages of a model's trained parameters. The first update takes the weights."""

    name: ClassVar[str]
    """Its entry in a checkpoint."""

    def __init__(self) -> None:
        self.updates: int | torch.Tensor = 0
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
        self,
        module: nn.Module,
        part: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
        here: set[int],
    ) -> None:
        """Begin with the module's weights, or with the averages that were loaded.

        Args:
            module: the model, spread over the ranks by now.
            part: makes this rank's part of a whole tensor that belongs to a parameter.
            here: the ids of the trained parameters and of the buffers of which this rank has the values, or a part of
                each.
        """
        named = {id(tensor): (name, tensor) for name, tensor in self.averaged(module).items()}  # tied ones once
        averaged = [pair for key, pair in named.items() if key in here]
        self.weights = [tensor.detach() for _, tensor in averaged]
        self.averages = [weight.clone() for weight in self.weights]
        if self._loaded:
            for (name, tensor), average in zip(averaged, self.averages, strict=True):
                average.copy_(part(self._loaded[name], tensor))
            self._loaded = {}

    def averaged(self, module: nn.Module) -> dict[str, torch.Tensor]:
        """Return what is averaged, by its names in the state dict, which the model's own hooks may have changed."""
        return _kept(module.parameters(), module)

    def after_step(self, updated: bool | torch.Tensor) -> None:
        """Take note of the weights after a step.

        Args:
            updated: whether the step has updated them; a tensor of one element if the device alone knows.
        """

    def after_epoch(self, epoch: int) -> None:
        """Take note of the weights at the end of an epoch, counted from 1, before they are validated."""

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
        for average, weight in zip(map(local, self.averages), map(local, self.weights), strict=True):
            kept = weight.clone()
            weight.copy_(average)
            average.copy_(kept)

    def state_dict(self, module: nn.Module) -> dict[str, Any]:
        """Return what a checkpoint needs besides the averaged model: the weights to train on with, by all of their
        names."""
        trained = (weight for weight in module.parameters() if weight.requires_grad)
        return {"updates": int(self.updates), "trained": _kept(trained, module)}


class EMA(Averages):
    """An exponential moving average, as torch.optim.swa_utils.AveragedModel makes it: each update moves by `1 - decay`
    towards the weights. Buffers are not averaged.

    Args:
        decay: share of the old average that stays with an update.
    """

    name = "ema"

    def __init__(self, decay: float):
        super().__init__()
        self.decay = decay

    @torch.no_grad()
    def after_step(self, updated: bool | torch.Tensor) -> None:
        """Follow the weights by one step, if it has updated them. What the device decides, it also counts."""
        averages, weights = ([local(tensor) for tensor in each] for each in (self.averages, self.weights))
        if isinstance(updated, torch.Tensor):
            counted = torch.zeros_like(updated, dtype=torch.int64) + self.updates
            share = torch.where(counted == 0, 1.0, 1 - self.decay) * updated
            _lerp(averages, weights, [share.to(average.device, average.dtype) for average in averages])
            self.updates = counted + updated
        elif updated:
            if self.updates:
                _lerp(averages, weights, 1 - self.decay)
            else:
                _copy(averages, weights)
            self.updates += 1


class SWA(Averages):
    """The equal average of the weights at the ends of epochs (Izmailov et al., 2018), as
    torch.optim.swa_utils.AveragedModel makes it with `use_buffers=True`: BatchNorm's statistics are averaged too.
    Before the first update the weights themselves are validated and kept.

    Args:
        first: the first epoch whose end counts, from 1.
    """

    name = "swa"

    def __init__(self, first: int):
        super().__init__()
        self.first = first

    def averaged(self, module: nn.Module) -> dict[str, torch.Tensor]:
        """Return the parameters and the buffers that checkpoints hold."""
        return super().averaged(module) | _kept(module.buffers(), module)

    def load(self, model: dict[str, torch.Tensor], state: dict[str, Any]) -> dict[str, torch.Tensor]:
        """As the base class."""
        return super().load(model, state) | state["buffers"]

    @torch.no_grad()
    def after_epoch(self, epoch: int) -> None:
        """Add the weights to the average."""
        if epoch < self.first:
            return
        for average, weight in zip(map(local, self.averages), map(local, self.weights), strict=True):
            if not self.updates or weight.dtype == torch.bool:  # a mask has no mean
                average.copy_(weight)
            else:  # whole numbers are rounded towards zero, as PyTorch does on CPUs
                average.copy_(average + (weight - average) / (self.updates + 1))
        self.updates += 1

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """As the base class, once there is an average."""
        with super().in_place() if self.updates else contextlib.nullcontext():
            yield

    def state_dict(self, module: nn.Module) -> dict[str, Any]:
        """As the base class, with the buffers."""
        return super().state_dict(module) | {"buffers": _kept(module.buffers(), module)}


def of(e: Experiment) -> Averages | None:
    """Return the averages that an experiment asks for."""
    if e.swa_start_epoch is not None:
        return SWA(e.swa_start_epoch)
    return None if e.ema_decay is None else EMA(e.ema_decay)


def _kept(tensors: Iterable[torch.Tensor], module: nn.Module) -> dict[str, torch.Tensor]:
    """Return those of a module's tensors that its state dict holds, by all of their names there."""
    state = module.state_dict(keep_vars=True)  # first: FSDP may take gathered weights apart for it
    ids = {id(tensor) for tensor in tensors}
    return {name: tensor for name, tensor in state.items() if id(tensor) in ids}
