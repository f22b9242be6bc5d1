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


def build(name: str, channels: int, outputs: int, rescale: bool) -> tuple[nn.Module, dict[str, nn.Module]]:
    """Return torchvision's module, randomly initialised, and its heads, by their paths, which may still have to take
    their places.

    A module for segmentation returns its main output alone, logits [n, outputs, height, width], and has no auxiliary
    one, as torchvision's without `aux_loss`.

    Args:
        channels: those of the images.
        outputs: those of the heads.
        rescale: whether a model whose pretrained weights expect inputs in [-1, 1] rescales its inputs.

    Raises:
        UserError: torchvision has no such model, the model takes images of another number of channels, or one for
            segmentation shall have no outputs.
    """
    builder, options = _builder(name), {}
    if name in ("googlenet", "inception_v3"):  # their pretrained weights expect inputs in [-1, 1]
        options = {"init_weights": True, "transform_input": rescale}
    if channels != 3:
        raise errors.UserError(
            f"torchvision's {name} takes images of 3 channels and these have {channels}",
            "in model.name",
            "use a source of colour images, or a Timm, CNN or MLP",
        )
    if name in _segmentation():
        if not outputs:
            how = "use --model.outputs N, the number of the masks' classes"
            raise errors.UserError(f"{name} has an output for each class, and the data has none", "in model", how)
        module = builder(weights=None, weights_backbone=None, num_classes=outputs)
        module.register_forward_hook(_main_output)
        return module, {path: module.get_submodule(path) for path in heads(module)}
    module = builder(weights=None, **options)
    (path,) = heads(module)
    old: Any = module.get_submodule(path)
    if isinstance(old, nn.Linear):
        return module, {path: nn.Linear(old.in_features, outputs, bias=old.bias is not None)}
    return module, {path: nn.Conv2d(old.in_channels, outputs, 1)}


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
    known = [*models.list_models(module=models), *_segmentation()]
    if name not in known:
        raise errors.UserError(
            f"torchvision has no model {name!r} for classification or segmentation",
            "in model.name",
            f"{errors.nearest(name, known)}it has {errors.listed(known, 6)}",
        )
    return models.get_model_builder(name)


def _segmentation() -> list[str]:
    """Return the names of the models for segmentation."""
    return models.list_models(module=models.segmentation)


def _main_output(module: nn.Module, inputs: Any, outputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """The forward hook of modules for segmentation, which return a dict."""
    return outputs["out"]


def heads(module: nn.Module) -> tuple[str, ...]:
    """Return the paths of the head: a Linear, or a 1x1 convolution (SqueezeNet, segmentation); LR-ASPP has two, whose
    outputs are added."""
    if isinstance(module, models.segmentation.LRASPP):
        return ("classifier.low_classifier", "classifier.high_classifier")
    layers = [
        (path, layer)
        for path, layer in module.named_modules()
        if isinstance(layer, nn.Linear) or (isinstance(layer, nn.Conv2d) and path.startswith("classifier"))
    ]
    return ([path for path, _ in layers if not path.lower().startswith("aux")][-1],)


def renamed(state: dict[str, Any]) -> dict[str, Any]:
    """Return a state dict with the names that DenseNet's layers have now."""
    kept: Any = OrderedDict((_DENSENET.sub(r"\1\2", name), value) for name, value in state.items())
    kept._metadata = getattr(state, "_metadata", None)
    return kept
