"""torchvision's classification models, by name."""

from __future__ import annotations

import os
import re
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raytrain import errors
from raytrain.config import check
from raytrain.models.base import Model

if TYPE_CHECKING:
    from torch import nn

_DENSENET = re.compile(r"^(.*denselayer\d+\.(?:norm|conv))\.([12]\.)")
"""torchvision's files of DenseNet weights name the layers with one dot more (torchvision/models/densenet.py)."""


@dataclass(frozen=True)
class Torchvision(Model):
    """A classification model of torchvision with its head replaced by one for the data's classes."""

    name: str = "resnet18"
    """torchvision's name of the model, such as resnet34, efficientnet_b0 or vit_b_16."""
    weights: str = "none"
    """Pretrained weights: none, cached (torchvision's download folder, when they are there), hub (downloads them), or
    the path of a state dict (.pth or .safetensors)."""
    freeze: bool = False
    """Train the head alone: all other parameters keep their values."""

    def __post_init__(self) -> None:
        check(self)

    def build(self, sample: tuple[int, int, int], classes: int) -> nn.Module:
        """The named architecture, randomly initialised, with `classes` outputs."""
        from torch import nn

        builder, options = self._entry(), {}
        if self.name in ("googlenet", "inception_v3"):  # their pretrained weights expect inputs in [-1, 1]
            options = {"init_weights": True, "transform_input": self.weights != "none"}
        if sample[0] != 3:
            raise errors.UserError(
                f"torchvision's {self.name} takes images of 3 channels and these have {sample[0]}",
                "in model.name",
                "take a source of colour images, or a CNN or MLP",
            )
        module = builder(weights=None, **options)
        path, head = _head(module)
        parent = module.get_submodule(path.rpartition(".")[0])
        if isinstance(head, nn.Linear):
            fresh: nn.Module = nn.Linear(head.in_features, classes, bias=head.bias is not None)
        else:
            fresh = nn.Conv2d(head.in_channels, classes, 1)
        if self.freeze:
            module.requires_grad_(False)
        setattr(parent, path.rpartition(".")[2], fresh)
        for auxiliary in ("aux_logits", "AuxLogits", "aux1", "aux2"):  # Inception's and GoogLeNet's further outputs
            if hasattr(module, auxiliary):
                setattr(module, auxiliary, None)
        return module

    def load(self, module: nn.Module) -> None:
        """Fills the backbone (and the head, where the weights have one for as many classes)."""
        source = self._source()
        if source == "hub":
            from torch.hub import load_state_dict_from_url

            url = self._default_weights().url
            try:
                state = load_state_dict_from_url(url, progress=False, check_hash=True, weights_only=True)
            except Exception as error:
                raise errors.UserError(
                    f"the download failed: {error!s}", url, "check the network, or put the file in place by hand"
                ) from None
            _fill(module, state, source)
        elif source is not None:
            _fill(module, _read_state(source), source)

    def check_weights(self, module: nn.Module) -> None:
        """Reads the weights' file, where it is on this machine, and fills the module to see whether they fit."""
        source = self._source()
        if source not in (None, "hub"):
            _fill(module, _read_state(source), source, assign=True)

    def notes(self) -> list[str]:
        """Says when `cached` weights are not at hand, and how to get them."""
        if self.weights == "cached" and self._source() is None:
            return [
                f"no pretrained weights for {self.name} in {self._cache()}: it starts from random weights. "
                "Get them with --model.weights hub (torchvision downloads them), or --model.weights FILE.pth"
            ]
        return []

    def _entry(self):
        from torchvision import models

        known = models.list_models(module=models)
        if self.name not in known:
            raise errors.UserError(
                f"torchvision has no classification model {self.name!r}",
                "in model.name",
                f"{errors.nearest(self.name, known)}it has {errors.listed(known, 6)}",
            )
        return models.get_model_builder(self.name)

    def _default_weights(self):
        from torchvision import models

        return models.get_model_weights(self.name).DEFAULT  # type: ignore[attr-defined]

    def _cache(self) -> Path:
        home = os.environ.get("TORCH_HOME") or os.path.join(os.environ.get("XDG_CACHE_HOME", "~/.cache"), "torch")
        return Path(home).expanduser() / "hub" / "checkpoints"

    def _source(self) -> str | None:
        if self.weights != "cached":
            return None if self.weights == "none" else self.weights
        self._entry()
        file = self._cache() / self._default_weights().url.rpartition("/")[2]
        return str(file) if file.is_file() else None


def _head(module: nn.Module) -> tuple[str, nn.Linear | nn.Conv2d]:
    """The last classifying layer: a Linear, or SqueezeNet's 1x1 convolution."""
    from torch import nn

    layers = [
        (path, layer)
        for path, layer in module.named_modules()
        if isinstance(layer, nn.Linear) or (isinstance(layer, nn.Conv2d) and path.startswith("classifier"))
    ]
    layers = [(path, layer) for path, layer in layers if not path.lower().startswith(("aux",))]
    return layers[-1]


def _fill(module: nn.Module, state: dict[str, Any], source: str, assign: bool = False) -> None:
    """Loads all but another model's head. Layers know the names in older files by `_metadata`, so that is kept."""
    from torch.nn.modules.utils import consume_prefix_in_state_dict_if_present

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


def _read_state(source: str) -> dict[str, Any]:
    import torch
    from safetensors.torch import load_file

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
        raise _bad_weights(path, "it is no state dict of tensors")
    return state


def _bad_weights(path: Path | str, reason: str) -> errors.UserError:
    return errors.UserError(
        f"the weights do not fit: {reason}", path, "give a state dict of that torchvision model (.pth or .safetensors)"
    )
