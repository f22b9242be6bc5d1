"""torchvision's classification models, by name."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

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
    """Pretrained weights: none, cached (from torchvision's download folder, if they are there), hub (download them), or
    the path of a state dict (.pth or .safetensors)."""
    freeze: bool = False
    """Train the head only; all other parameters keep their values."""

    def __post_init__(self) -> None:
        check(self)

    def build(self, sample: tuple[int, int, int], classes: int) -> nn.Module:
        """Return the named architecture, randomly initialised, with `classes` outputs."""
        module, path, head = _modules().build(self.name, sample[0], classes, rescale=self.weights != "none")
        if self.freeze:
            module.requires_grad_(False)
        setattr(module.get_submodule(path.rpartition(".")[0]), path.rpartition(".")[2], head)
        for auxiliary in ("aux_logits", "AuxLogits", "aux1", "aux2"):  # Inception's and GoogLeNet's further outputs
            if hasattr(module, auxiliary):
                setattr(module, auxiliary, None)
        return module

    def load(self, module: nn.Module) -> None:
        """Fill the backbone, and the head if the weights have one for as many classes."""
        source = self._source()
        if source == "hub":
            _modules().fill(module, _modules().download(self.name), source)
        elif source is not None:
            _modules().fill(module, _modules().read_state(source), source)

    def check_weights(self, module: nn.Module) -> None:
        """Read the file of the weights, if it is on this machine, and fill the module to see whether they fit."""
        source = self._source()
        if source not in (None, "hub"):
            _modules().fill(module, _modules().read_state(source), source, assign=True)

    def notes(self) -> list[str]:
        """Say that `cached` weights are missing, and how to get them."""
        if self.weights == "cached" and self._source() is None:
            return [
                f"no pretrained weights for {self.name} in {self._cache()}: it starts from random weights. "
                "Get them with --model.weights hub (torchvision downloads them), or --model.weights FILE.pth"
            ]
        return []

    def _cache(self) -> Path:
        home = os.environ.get("TORCH_HOME") or os.path.join(os.environ.get("XDG_CACHE_HOME", "~/.cache"), "torch")
        return Path(home).expanduser() / "hub" / "checkpoints"

    def _source(self) -> str | None:
        if self.weights != "cached":
            return None if self.weights == "none" else self.weights
        file = self._cache() / _modules().weights_url(self.name).rpartition("/")[2]
        return str(file) if file.is_file() else None


def _modules():
    """Return the module that builds, imported late: torch and torchvision take seconds, which `--help` must not."""
    from raytrain.models import torchvision_modules

    return torchvision_modules
