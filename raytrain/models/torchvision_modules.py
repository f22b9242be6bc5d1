"""torchvision's modules: how they are built and how their weights are read."""

from __future__ import annotations

import re
from collections import OrderedDict
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.hub import load_state_dict_from_url
from torchvision import models

from raytrain import errors

_DENSENET = re.compile(r"^(.*denselayer\d+\.(?:norm|conv))\.([12]\.)")
"""torchvision's files of DenseNet weights name the layers with one dot more (torchvision/models/densenet.py)."""


def build(name: str, channels: int, classes: int, rescale: bool) -> tuple[nn.Module, str, nn.Module]:
    """Return torchvision's module, randomly initialised, the path of its head, and a new head for `classes`.

    Args:
        channels: those of the images.
        rescale: whether a model whose pretrained weights expect inputs in [-1, 1] rescales its inputs.

    Raises:
        UserError: torchvision has no such model, or the model takes images of another number of channels.
    """
    builder, options = _builder(name), {}
    if name in ("googlenet", "inception_v3"):  # their pretrained weights expect inputs in [-1, 1]
        options = {"init_weights": True, "transform_input": rescale}
    if channels != 3:
        raise errors.UserError(
            f"torchvision's {name} takes images of 3 channels and these have {channels}",
            "in model.name",
            "use a source of colour images, or a CNN or MLP",
        )
    module = builder(weights=None, **options)
    path, old = head(module)
    if isinstance(old, nn.Linear):
        return module, path, nn.Linear(old.in_features, classes, bias=old.bias is not None)
    return module, path, nn.Conv2d(old.in_channels, classes, 1)


def download(name: str) -> dict[str, Any]:
    """Return torchvision's default weights of a model, downloaded unless they are in its cache.

    Raises:
        UserError: the download fails.
    """
    url = weights_url(name)
    try:
        return load_state_dict_from_url(url, progress=False, check_hash=True, weights_only=True)
    except Exception as error:
        place = Path(torch.hub.get_dir(), "checkpoints")
        how = f"check the network, put the file into {place}, or start from random weights with --model.weights none"
        raise errors.UserError(f"the download failed: {error!s}", url, how) from None


def weights_url(name: str) -> str:
    """Return the address of torchvision's default weights of a model.

    Raises:
        UserError: torchvision has no such model.
    """
    _builder(name)
    return models.get_model_weights(name).DEFAULT.url  # type: ignore[attr-defined]


def _builder(name: str):
    known = models.list_models(module=models)
    if name not in known:
        raise errors.UserError(
            f"torchvision has no classification model {name!r}",
            "in model.name",
            f"{errors.nearest(name, known)}it has {errors.listed(known, 6)}",
        )
    return models.get_model_builder(name)


def head(module: nn.Module) -> tuple[str, nn.Linear | nn.Conv2d]:
    """Return the path and the layer of the head: a Linear, or SqueezeNet's 1x1 convolution."""
    layers = [
        (path, layer)
        for path, layer in module.named_modules()
        if isinstance(layer, nn.Linear) or (isinstance(layer, nn.Conv2d) and path.startswith("classifier"))
    ]
    layers = [(path, layer) for path, layer in layers if not path.lower().startswith(("aux",))]
    return layers[-1]


def renamed(state: dict[str, Any]) -> dict[str, Any]:
    """Return a state dict with the names that DenseNet's layers have now."""
    kept: Any = OrderedDict((_DENSENET.sub(r"\1\2", name), value) for name, value in state.items())
    kept._metadata = getattr(state, "_metadata", None)
    return kept
