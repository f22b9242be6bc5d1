"""torchvision's modules: how they are built and how their weights are read."""

from __future__ import annotations

import os
import re
from collections import OrderedDict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import nn
from torch.hub import load_state_dict_from_url
from torch.nn.modules.utils import consume_prefix_in_state_dict_if_present
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
    path, head = _head(module)
    if isinstance(head, nn.Linear):
        return module, path, nn.Linear(head.in_features, classes, bias=head.bias is not None)
    return module, path, nn.Conv2d(head.in_channels, classes, 1)


def download(name: str) -> dict[str, Any]:
    """Return torchvision's default weights of a model, downloaded unless they are in its cache.

    Raises:
        UserError: the download fails.
    """
    url = weights_url(name)
    try:
        return load_state_dict_from_url(url, progress=False, check_hash=True, weights_only=True)
    except Exception as error:
        raise errors.UserError(
            f"the download failed: {error!s}", url, "check the network, or put the file in place by hand"
        ) from None


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


def _head(module: nn.Module) -> tuple[str, nn.Linear | nn.Conv2d]:
    """Return the path and the layer of the head: a Linear, or SqueezeNet's 1x1 convolution."""
    layers = [
        (path, layer)
        for path, layer in module.named_modules()
        if isinstance(layer, nn.Linear) or (isinstance(layer, nn.Conv2d) and path.startswith("classifier"))
    ]
    layers = [(path, layer) for path, layer in layers if not path.lower().startswith(("aux",))]
    return layers[-1]


def fill(module: nn.Module, state: dict[str, Any], source: str, assign: bool = False) -> None:
    """Load a state dict into a module, without a head for another number of classes.

    Layers recognise the names in older files by `_metadata`, so that is kept.

    Raises:
        UserError: tensors are missing or have another shape.
    """
    consume_prefix_in_state_dict_if_present(state, "module.")
    head, own = _head(module)[0] + ".", module.state_dict()
    kept: Any = OrderedDict((_DENSENET.sub(r"\1\2", name), value) for name, value in state.items())
    for name in [name for name in kept if name.startswith(head)]:
        if name not in own or kept[name].shape != own[name].shape:
            del kept[name]
    kept._metadata = getattr(state, "_metadata", getattr(own, "_metadata", None))
    wrong = [name for name, value in kept.items() if name in own and value.shape != own[name].shape]
    lost = [] if wrong else [*module.load_state_dict(kept, strict=False, assign=assign).missing_keys]
    lost = [name for name in lost if not name.startswith(head) and not name.endswith(".num_batches_tracked")]
    if lost or wrong:
        raise _bad_weights(
            source,
            f"{len(lost)} tensors are missing and {len(wrong)} have another shape, "
            f"for example {sorted([*lost, *wrong])[0]}",
        )


def read_state(source: str) -> dict[str, Any]:
    """Return the state dict in a file.

    Raises:
        UserError: the file is not there or holds no state dict.
    """
    path = Path(os.path.expanduser(source))
    if not os.path.isfile(path):
        raise errors.no_such_file(path, "weights file")
    try:
        if path.suffix == ".safetensors":
            state = load_file(path)
        else:
            state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        reason = str(error).strip() or type(error).__name__
        raise _bad_weights(path, reason.splitlines()[0]) from None
    tensors = isinstance(state, dict) and all(isinstance(value, torch.Tensor) for value in state.values())
    if not tensors or not all(isinstance(name, str) for name in state):
        raise _bad_weights(path, "it is not a state dict of tensors")
    return state


def _bad_weights(path: Path | str, reason: str) -> errors.UserError:
    return errors.UserError(
        f"the weights do not fit: {reason}", path, "give a state dict of that torchvision model (.pth or .safetensors)"
    )
