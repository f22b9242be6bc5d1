"""torchvision's classification models, by name."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raytrain import errors
from raytrain.config import check
from raytrain.models.base import Model

if TYPE_CHECKING:
    from torch import nn


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
        if self.weights not in ("none", "cached", "hub") and not Path(self.weights).expanduser().is_file():
            raise errors.no_such_file(self.weights, "weights file")

    def build(self, sample: tuple[int, int, int], classes: int) -> nn.Module:
        """The named architecture, randomly initialised, with `classes` outputs."""
        from torch import nn

        module = self._entry()(weights=None)
        if sample[0] != 3:
            raise errors.model_fails(f"it wants 3 channels and the images have {sample[0]}", "model.name")
        path, head = _head(module)
        parent = module.get_submodule(path.rpartition(".")[0])
        fresh: Any = nn.Linear(head.in_features, classes) if isinstance(head, nn.Linear) else None
        if isinstance(head, nn.Conv2d):
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
        if source is None:
            return
        if source == "hub":
            from torch.hub import load_state_dict_from_url

            try:
                state = load_state_dict_from_url(self._default_weights().url, progress=False, check_hash=True)
            except Exception as error:
                raise errors.download_failed(self._default_weights().url, str(error)) from None
        else:
            state = _read_state(Path(source))
        path, _ = _head(module)
        own = module.state_dict()
        state = {
            name: value
            for name, value in state.items()
            if not name.startswith(path + ".") or (name in own and value.shape == own[name].shape)
        }
        lost = {name for name in own if name not in state and not name.startswith(path + ".")}
        wrong = [name for name, value in state.items() if name in own and value.shape != own[name].shape]
        if lost or wrong:
            raise errors.bad_weights(
                source,
                f"{len(lost)} tensors are missing and {len(wrong)} have another shape, "
                f"for example {sorted([*lost, *wrong])[0]}",
            )
        module.load_state_dict({name: value for name, value in state.items() if name in own}, strict=False)

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
            raise errors.unknown_model(self.name, known)
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


def _head(module: nn.Module) -> tuple[str, nn.Module]:
    """The last classifying layer: a Linear, or SqueezeNet's 1x1 convolution."""
    from torch import nn

    layers = [
        (path, layer)
        for path, layer in module.named_modules()
        if isinstance(layer, nn.Linear) or (isinstance(layer, nn.Conv2d) and path.startswith("classifier"))
    ]
    layers = [(path, layer) for path, layer in layers if not path.lower().startswith(("aux",))]
    return layers[-1]


def _read_state(path: Path) -> dict:
    import torch
    from safetensors.torch import load_file

    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        state = torch.load(path.expanduser(), map_location="cpu", weights_only=True)
    except Exception as error:
        raise errors.bad_weights(path, str(error).splitlines()[0]) from None
    if not isinstance(state, dict) or not all(isinstance(value, torch.Tensor) for value in state.values()):
        raise errors.bad_weights(path, "it is no state dict of tensors")
    return {name.removeprefix("module."): value for name, value in state.items()}
