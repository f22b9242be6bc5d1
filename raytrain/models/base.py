"""The base class of models: a frozen dataclass that builds a plain `torch.nn.Module`."""

from __future__ import annotations

import dataclasses
import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from raytrain import errors
from raytrain.files import expanded

if TYPE_CHECKING:
    from torch import Tensor, nn

    from raytrain.models.weights import Fit

SUFFIXES = (".pth", ".pt", ".ckpt", ".safetensors", ".bin", ".tar")
"""Suffixes of files of weights."""


@dataclass(frozen=True)
class Model:
    """The base of all models. Subclass it in an experiment file, as a frozen dataclass, to bring your own."""

    weights: str = dataclasses.field(default="none", kw_only=True)
    """Weights to start from: none; a file of a state dict or a checkpoint (.pth, .pt, .ckpt, .safetensors); a run (its
    best checkpoint); a URL of either (http, s3 and what else pyarrow opens); for models of torchvision and timm also
    cached (their library's download folder, if they are there) or hub (download them)."""
    new_head: bool = dataclasses.field(default=False, kw_only=True)
    """Start the last layer from random weights even where `weights` have one of its shape: for other classes of the
    same number. Without it, that is done for a run of other classes."""

    weights_whole: ClassVar[bool] = False
    """Whether weights must have all tensors but the head's. If not, others may be missing, and the plan names them."""

    def __init_subclass__(cls, **options: Any) -> None:
        """Make fields of a subclass with the names above keyword-only: in a dataclass they would come first, as in
        the base class, so that positional arguments would mean other fields."""
        super().__init_subclass__(**options)
        for name in ("weights", "new_head"):
            default = cls.__dict__.get(name, dataclasses.MISSING)
            annotation = inspect.get_annotations(cls).get(name, "ClassVar")
            if "ClassVar" not in str(annotation) and not isinstance(default, dataclasses.Field):
                setattr(cls, name, dataclasses.field(default=default, kw_only=True))

    def build(self, sample: Any, classes: int) -> nn.Module:
        """Return the module, initialised with PyTorch's global generator.

        The module takes a batch of the data's first field: of images float32 [batch, channels, height, width],
        normalised. It knows nothing of Ray, ranks or precision.

        Args:
            sample: the shape of one sample as the module will see it: (channels, height, width) of an image.
            classes: the number of the data's classes; 0 for data without labels.
        """
        raise NotImplementedError(f"{type(self).__name__} needs a build(sample, classes)")

    def load(self, module: nn.Module) -> Fit | None:
        """Fill `module` with the weights to start from, in place: those that `weights` names.

        Runs on the driver's machine, once, before the workers start. A URL and a run have become files by then.

        Returns:
            What was filled; None where there are no weights.

        Raises:
            UserError: they are missing or do not fit.
        """
        return self._fill(module, assign=False)

    def check_weights(self, module: nn.Module) -> Fit | None:
        """Check, before anything starts, that the weights for `load` are there and fit.

        Args:
            module: what `build` returned, perhaps on the meta device; it may be changed.

        Returns:
            As `load`.

        Raises:
            UserError: they are missing or do not fit.
        """
        return self._fill(module, assign=True)

    def notes(self) -> list[str]:
        """Return lines that the plan shows about this model, such as missing weights."""
        return []

    def weights_state(self, module: nn.Module) -> tuple[dict[str, Tensor], str] | None:
        """Return the state dict that `weights` names and where it comes from; None for none.

        Args:
            module: what `build` returned.

        Raises:
            UserError: there is none.
        """
        if self.weights == "none":
            return None
        if self.weights in ("cached", "hub"):
            what = f"weights = {self.weights!r} are those of torchvision's and timm's models"
            raise errors.UserError(what, f"in {type(self).__name__}", "give a file, a run or a URL, or none")
        return _weights().read(expanded(self.weights)), self.weights

    def weights_head(self, module: nn.Module) -> tuple[str, ...]:
        """Return the names of the layers that follow the classes: that of the module's last parameter."""
        names = [name for name, _ in module.named_parameters()]
        return (names[-1].rpartition(".")[0],) if names else ()

    def weights_input(self) -> dict[str, Any]:
        """Return values of the data's fields that `weights` were trained with, such as `mean`; the plan gives them to
        the data where its fields have their defaults."""
        return {}

    @property
    def brings_weights(self) -> bool:
        """Whether training may start from other weights than those of `build`."""
        return type(self).load is not Model.load or (self.declares_weights and self.weights != "none")

    @property
    def declares_weights(self) -> bool:
        """Whether `weights` is the field described here, and not a subclass's own, which raytrain leaves alone."""
        return type(self).__dataclass_fields__["weights"] is Model.__dataclass_fields__["weights"]

    def _fill(self, module: nn.Module, assign: bool) -> Fit | None:
        found = self.weights_state(module) if self.declares_weights else None
        if found is None:
            return None
        head = self.weights_head(module)
        return _weights().fill(module, *found, head, self.weights_whole, self.new_head, assign)


def check_image(model: Model, sample: tuple[int, ...]) -> None:
    """Check that samples are images, [channels, height, width].

    Raises:
        UserError: they have another number of axes.
    """
    if len(sample) != 3:
        what = f"{type(model).__name__} takes images [channels, height, width], and a sample is {list(sample)}"
        raise errors.UserError(what, "in model", "use an MLP, or a model of your own")


def torch_nn():
    """Return torch.nn, imported late: `--help` needs the fields only."""
    from torch import nn

    return nn


def _weights():
    """Return the module that reads files, imported late: torch takes seconds, which `--help` must not."""
    from raytrain.models import weights

    return weights
