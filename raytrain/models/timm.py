"""timm's classification models, by name: `pip install raytrain[timm]`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from raytrain import errors
from raytrain.config import at_least, check, within
from raytrain.models.base import Model, check_image

if TYPE_CHECKING:
    from torch import Tensor, nn

    from raytrain.models.weights import Fit


@dataclass(frozen=True)
class Timm(Model):
    """A model of timm (PyTorch Image Models) with a head for the data's classes. With weights, mean, std, crop and size
    of the data are timm's for them, where they are not set."""

    name: str = "resnet18"
    """timm's name of the model, such as convnext_tiny or vit_small_patch16_224.augreg_in1k; what follows the dot
    chooses among its pretrained weights."""
    freeze: bool = False
    """Train the head only; all other parameters keep their values."""
    drop_rate: float = 0.0
    """Probability of dropping one of the features before the head in training, in [0, 1)."""
    drop_path_rate: float = 0.0
    """Probability of dropping a residual branch in training, in [0, 1), for models that have them (Huang et al.,
    2016)."""
    outputs: int = field(default=0, kw_only=True)
    """Outputs of the head, such as the numbers that a regression predicts; 0: one for each of the data's classes."""

    weights_whole: ClassVar[bool] = True
    """The file is of this very model."""

    def __post_init__(self) -> None:
        check(self, drop_rate=within(0, 1), drop_path_rate=within(0, 1), outputs=at_least(0))

    def build(self, sample: tuple[int, int, int], classes: int) -> nn.Module:
        """Return the named architecture, randomly initialised, with a new head."""
        check_image(self, sample)
        rates = {"drop_rate": self.drop_rate, "drop_path_rate": self.drop_path_rate}
        rates = {name: rate for name, rate in rates.items() if rate}
        module = _modules().build(self.name, sample, self.outputs or classes, rates)
        if self.freeze:
            heads = tuple(f"{name}." for name in self.weights_head(module))
            for name, parameter in module.named_parameters():
                parameter.requires_grad_(name.startswith(heads))
        return module

    def weights_state(self, module: nn.Module) -> tuple[dict[str, Tensor], str] | None:
        """As the base class; timm's own weights too, fitted by timm to the channels and the size of the images."""
        if self.weights == "hub":
            return _modules().downloaded(self.name, module), "hub"
        if self.weights == "cached":
            return _modules().cached(self.name, module)
        return super().weights_state(module)

    def check_weights(self, module: nn.Module) -> Fit | None:
        """As the base class, but for weights that `load` is to download."""
        missing = self.weights == "hub" and _modules().cached_file(self.name) is None
        return None if missing else super().check_weights(module)

    def weights_head(self, module: nn.Module) -> tuple[str, ...]:
        """Return timm's names of the head."""
        return _modules().head(module) or super().weights_head(module)

    def weights_input(self) -> dict[str, Any]:
        """Return what timm's weights were trained with."""
        return {} if self.weights == "none" else _modules().input_of(self.name)

    def notes(self) -> list[str]:
        """Say that weights are missing, and how to get them or that they are downloaded."""
        if self.weights in ("cached", "hub") and _modules().cached_file(self.name) is None:
            if self.weights == "hub":
                return [f"timm's weights of {self.name} are downloaded before training starts"]
            return [
                f"no pretrained weights for {self.name} in the caches of the Hugging Face hub and of torch: it starts "
                "from random weights. Get them with --model.weights hub (timm downloads them), or give a file"
            ]
        return []


def _modules():
    """Return the module that builds, imported late: timm and torch take seconds, which `--help` must not.

    Raises:
        UserError: timm is not installed.
    """
    try:
        from raytrain.models import timm_modules
    except ModuleNotFoundError as error:
        if error.name != "timm":
            raise
        raise errors.UserError("timm is not installed", "in Timm", "run pip install 'raytrain[timm]'") from None
    return timm_modules
