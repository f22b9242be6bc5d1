"""Embeddings: what a layer of a model computes for each image, by a forward hook."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from raytrain import errors
from raytrain.models.base import Model

HEAD = ""
"""The layer that stands for the input of the model's head."""
_CHANNELS = ("first", "last")
_SAY = "say where they are: --layer {0}:first for [n, d, height, width], --layer {0}:last for [n, height, width, d]"


class Layer(NamedTuple):
    """The place in a model where features are taken.

    Attributes:
        name: the layer's name in `named_modules()`.
        before: whether its input is taken; otherwise its output.
        channels: `first` or `last` in what has positions; empty to find out by the shape.
    """

    name: str
    before: bool
    channels: str = ""


class Features(nn.Module):
    """A model that returns one vector for each sample: what a layer computes in its forward pass.

    Args:
        model: it runs as it is, with a hook on the layer.
        layer: the place.
    """

    def __init__(self, model: nn.Module, layer: Layer):
        super().__init__()
        self.model, self.layer = model, layer
        self._seen: list[Any] = []
        at = model.get_submodule(layer.name)
        if layer.before:
            at.register_forward_pre_hook(lambda _, given: self._seen.append(given))
        else:
            at.register_forward_hook(lambda _, given, found: self._seen.append(found))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return float32 [n, d]; of a layer that is called more than once, from its last call.

        Raises:
            UserError: the layer is not called, has no tensor with a row for each sample, or it is unknown which
                dimension has its channels.
        """
        self._seen.clear()
        self.model(inputs)
        found, called = _first_tensor(self._seen), bool(self._seen)
        self._seen.clear()
        if found is None or not found.dim() or len(found) != len(inputs):
            what = "has no row for each sample" if found is not None else "gives no tensor"
            what = what if called else "is not called in a forward pass"
            raise errors.UserError(
                f"the layer {self.layer.name!r} {what}", "in the run's model", "choose another with --layer NAME"
            )
        return pooled(found, (self.layer.channels or self._channels(found, inputs)) == "last")

    def _channels(self, found: torch.Tensor, inputs: torch.Tensor) -> str:
        """Return where the channels are: positions keep the shape of the input's, up to rounding."""
        if found.dim() <= 3:
            return "first"
        same = found.dim() == inputs.dim()
        first, last = (same and _alike(sides, inputs.shape[2:]) for sides in (found.shape[2:], found.shape[1:-1]))
        # Of [n, 8, 8, 8] the shape says nothing. A model that has channels last normalises them by LayerNorm.
        if first and last and not any(isinstance(one, nn.LayerNorm) for one in self.model.modules()):
            return "first"
        if first == last:
            what = f"the layer {self.layer.name!r} gives {list(found.shape[1:])} for a sample, which does not show"
            raise errors.UserError(f"{what} its channels", "in the run's model", _SAY.format(self.layer.name))
        return "first" if first else "last"


def pooled(values: torch.Tensor, channels_last: bool = False) -> torch.Tensor:
    """Return a vector for each sample, float32 [n, d].

    Args:
        values: [n, d]; [n, d, height, width] and more dimensions, of which the mean over all after the second is taken;
            or [n, tokens, d], of which the mean over the tokens is taken.
        channels_last: of four and more dimensions, the last one has the channels: [n, height, width, d].
    """
    values = values.float()
    if values.dim() > 3:
        return values.flatten(1, -2).mean(1) if channels_last else values.flatten(2).mean(2)
    if values.dim() == 3:
        return values.mean(1)
    return values.reshape(len(values), -1)


def _alike(sides: Sequence[int], full: Sequence[int]) -> bool:
    """Return whether sides are the full ones divided by one factor, up to rounding to a neighbour."""
    if len(set(full)) == 1:
        return len(set(sides)) == 1
    least = max(whole / (side + 1) for side, whole in zip(sides, full, strict=True))
    return all(side == 1 or whole / (side - 1) > least for side, whole in zip(sides, full, strict=True))


def find(model: Model, module: nn.Module, inputs: torch.Tensor, name: str = HEAD) -> Layer:
    """Return the layer whose features are taken.

    Without a name this is the input of the head: of the layer that the model names (`weights_head` of torchvision's and
    timm's models), or else of the last layer with a matrix or a kernel of weights that the forward pass calls.

    Args:
        module: what `model` built, in evaluation mode.
        inputs: a batch that the module takes.
        name: a layer's name, for its output; `NAME:first` or `NAME:last` says where its channels are.

    Raises:
        UserError: there is no such layer.
    """
    known = dict(module.named_modules())
    if name != HEAD:
        whole, (name, _, channels) = name, name.rpartition(":") if ":" in name else (name, "", "")
        if channels not in ("", *_CHANNELS) or whole.endswith(":"):
            what = f"after the colon, first or last must come, got {whole!r}"
            raise errors.UserError(what, "in --layer", _SAY.format(name))
        if name not in known:
            rest = f"the first are {errors.listed([one for one in known if one])}"
            raise errors.UserError(f"the model has no layer {name!r}", "in --layer", errors.nearest(name, known) + rest)
        return Layer(name, before=False, channels=channels)
    called = _called(module, inputs)
    own = model.weights_head(module) if type(model).weights_head is not Model.weights_head else ()
    for found in (*own, *reversed(called)):
        if found in called:
            return Layer(found, before=True)
    raise errors.UserError(
        "no layer of the model is known to be its head", "in the run's model", "choose a layer with --layer NAME"
    )


def _called(module: nn.Module, inputs: torch.Tensor) -> list[str]:
    """Return the names of the layers with a matrix or a kernel of their own, in the order in which they are called."""
    names: list[str] = []
    hooks = [
        layer.register_forward_pre_hook(lambda *_, name=name: names.append(name))
        for name, layer in module.named_modules()
        if name and any(parameter.dim() > 1 for parameter in layer.parameters(recurse=False))
    ]
    try:
        with torch.inference_mode():
            module(inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return names


def _first_tensor(seen: Sequence[Any]) -> torch.Tensor | None:
    """Return the last call's tensor, the first one if it has several, as a tuple or a dict."""
    found = seen[-1] if seen else None
    while isinstance(found, tuple | list | Mapping) and found:
        found = next(iter(found.values())) if isinstance(found, Mapping) else found[0]
    return found if isinstance(found, torch.Tensor) else None
