"""timm's modules: how they are built, and where their weights are."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import timm
import torch
from huggingface_hub import try_to_load_from_cache
from torch import Tensor, nn

from raytrain import errors
from raytrain.models import weights

_OPTIONS = "timm_options"
"""The attribute in which a module keeps what it was built for: timm fits weights to that."""


def build(name: str, sample: tuple[int, ...], classes: int, rates: dict[str, Any]) -> nn.Module:
    """Return timm's module, randomly initialised.

    Args:
        sample: (channels, height, width) of an image.
        rates: of dropout, as timm names them.

    Raises:
        UserError: timm has no such model, or it does not take such images or rates.
    """
    options: dict[str, Any] = {"in_chans": sample[0]}
    if _config(name).get("fixed_input_size"):  # its position embeddings depend on it
        options["img_size"] = tuple(sample[1:])
    try:
        module = timm.create_model(name, num_classes=classes, **options, **rates)
    except (TypeError, AssertionError, ValueError, RuntimeError) as error:
        shape = "x".join(map(str, sample))
        what = f"timm cannot build {name} for images {shape}: {errors.first_line(error)}"
        raise errors.UserError(what, "in model", "choose another model, size of images or rate") from None
    vars(module)[_OPTIONS] = options
    return module


def head(module: nn.Module) -> tuple[str, ...]:
    """Return the names of a module's classifiers, as timm knows them."""
    found: Any = getattr(module, "pretrained_cfg", {}).get("classifier") or ()
    return (found,) if isinstance(found, str) else tuple(found)


def downloaded(name: str, module: nn.Module) -> dict[str, Tensor]:
    """Return timm's weights for images like those of a built module; timm downloads them unless it has them.

    Raises:
        UserError: the download fails, or there are none.
    """
    try:
        return _pretrained(name, module, {})
    except Exception as error:  # of the hub's client, of urllib, of timm
        how = "check the network, choose among the names that `timm.list_pretrained()` lists, or give a file"
        raise errors.UserError(f"timm has no weights: {errors.first_line(error)}", f"in {name}", how) from None


def cached(name: str, module: nn.Module) -> tuple[dict[str, Tensor], str] | None:
    """Return timm's weights from its caches, fitted as by `downloaded`, and their file; None if they are not there."""
    file = cached_file(name)
    if file is None:
        return None
    return _pretrained(name, module, {"state_dict": weights.read(file), "custom_load": False}), str(file)


def cached_file(name: str) -> Path | None:
    """Return the file of timm's weights in the cache of the Hugging Face hub, or of torch; None if there is none."""
    config = _config(name)
    if repository := config.get("hf_hub_id"):
        files = (config.get("hf_hub_filename"), "model.safetensors", "pytorch_model.bin")
        for file in filter(None, files):
            if isinstance(found := try_to_load_from_cache(repository, file), str):
                return Path(found)
    file = Path(torch.hub.get_dir()) / "checkpoints" / str(config.get("url", "")).rpartition("/")[2]
    return file if file.is_file() else None


def input_of(name: str) -> dict[str, Any]:
    """Return the values of fields of the data that timm's weights were trained with: `mean`, `std`, `crop`, `size` (of
    which `crop` is cut) and `interpolation`, where sources of images have it."""
    config = _config(name)
    crop = config["input_size"][-1]
    return {
        "mean": tuple(config["mean"]),
        "std": tuple(config["std"]),
        "crop": crop,
        "size": math.floor(crop / config["crop_pct"]),
        **({"interpolation": config["interpolation"]} if config["interpolation"] in ("bilinear", "bicubic") else {}),
    }


def _pretrained(name: str, module: nn.Module, source: dict[str, Any]) -> dict[str, Tensor]:
    with torch.random.fork_rng(devices=[]):  # what it draws is overwritten
        overlay: dict[str, Any] = {"pretrained_cfg_overlay": source} if source else {}
        return timm.create_model(name, pretrained=True, **vars(module)[_OPTIONS], **overlay).state_dict()


def _config(name: str) -> dict[str, Any]:
    """Return timm's description of a model's weights.

    Raises:
        UserError: timm has no such model, or no such weights of it.
    """
    plain, dot, _ = name.partition(".")
    known = timm.list_models()
    if plain in known and dot:
        known = timm.list_pretrained(f"{plain}.*")
    if name not in known:
        how = f"{errors.nearest(name, known)}it has {errors.listed(known, 6)}"
        raise errors.UserError(f"timm has no model {name!r}", "in model.name", how)
    found = timm.get_pretrained_cfg(name)
    return found.to_dict() if found else {}
