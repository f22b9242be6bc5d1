"""torchvision's models for classification and segmentation, by name."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from raytrain.config import at_least, check
from raytrain.files import expanded
from raytrain.models.base import Model, _weights, check_image
from raytrain.user_code.upgrades import old_order

if TYPE_CHECKING:
    from torch import Tensor, nn

    from raytrain.models.weights import Fit


# Until 0.1 the second argument was `weights`, which is a string; `freeze` is none.
@old_order(("name", "weights", "freeze"), lambda given: len(given) > 1 and isinstance(given[1], str))
@dataclass(frozen=True)
class Torchvision(Model):
    """A model of torchvision for classification, or for segmentation, with its head replaced by one for the data's
    classes, or with `outputs`."""

    name: str = "resnet18"
    """torchvision's name of the model, such as resnet34, efficientnet_b0, vit_b_16 or deeplabv3_resnet50."""
    freeze: bool = False
    """Train the head only; all other parameters keep their values."""
    outputs: int = field(default=0, kw_only=True)
    """Outputs of the head, such as the numbers that a regression predicts; 0: one for each of the data's classes."""

    weights_whole: ClassVar[bool] = True
    """The file is of this very model."""

    def __post_init__(self) -> None:
        check(self, outputs=at_least(0))

    def build(self, sample: tuple[int, int, int], classes: int) -> nn.Module:
        """Return the named architecture, randomly initialised, with a new head."""
        check_image(self, sample)
        outputs = self.outputs or classes
        module, heads = _modules().build(self.name, sample[0], outputs, rescale=self.weights != "none")
        if self.freeze:
            module.requires_grad_(False)
        for path, head in heads.items():
            setattr(module.get_submodule(path.rpartition(".")[0]), path.rpartition(".")[2], head.requires_grad_())
        for auxiliary in ("aux_logits", "AuxLogits", "aux1", "aux2"):  # Inception's and GoogLeNet's further outputs
            if hasattr(module, auxiliary):
                setattr(module, auxiliary, None)
        return module

    def weights_state(self, module: nn.Module) -> tuple[dict[str, Tensor], str] | None:
        """As the base class; torchvision's own weights too."""
        if self.weights == "hub":
            return _modules().download(self.name), "hub"
        if self.weights == "cached":
            file = self._cached()
            found = None if file is None else (_weights().read(file), str(file))
        else:
            found = super().weights_state(module)
        return found and (_modules().renamed(found[0]), found[1])

    def check_weights(self, module: nn.Module) -> Fit | None:
        """As the base class, but for weights that `load` is to download."""
        return None if self.weights == "hub" and self._cached() is None else super().check_weights(module)

    def weights_head(self, module: nn.Module) -> tuple[str, ...]:
        """Return the layers that were replaced."""
        return _modules().heads(module)

    def notes(self) -> list[str]:
        """Say that weights are missing, and how to get them or that they are downloaded."""
        if self.weights == "hub" and self._cached() is None:
            return [f"torchvision's weights of {self.name} are downloaded to {self._cache()} before training starts"]
        if self.weights == "cached" and self._cached() is None:
            return [
                f"no pretrained weights for {self.name} in {self._cache()}: it starts from random weights. "
                "Get them with --model.weights hub (torchvision downloads them), or --model.weights FILE.pth"
            ]
        return []

    def _cache(self) -> Path:
        home = os.environ.get("TORCH_HOME") or os.path.join(os.environ.get("XDG_CACHE_HOME", "~/.cache"), "torch")
        return expanded(home) / "hub" / "checkpoints"

    def _cached(self) -> Path | None:
        file = self._cache() / _modules().weights_url(self.name).rpartition("/")[2]
        return file if file.is_file() else None


def _modules():
    """Return the module that builds, imported late: torch and torchvision take seconds, which `--help` must not."""
    from raytrain.models import torchvision_modules

    return torchvision_modules
