"""TorchModel: a plain class or function that returns an `nn.Module`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from raytrain import errors
from raytrain.config import check
from raytrain.models.base import Model
from raytrain.user_code.wrappers import Wrapped, Wraps, target_of, where_is

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, repr=False)
class TorchModel(Wrapped, Model):
    """A plain PyTorch model: `TorchModel(Net, width=32)`.

    The first argument is a class derived from `nn.Module`, or a function that returns a module: one of your own at the
    top level of a file, or one of torchvision.models or timm. All its arguments are given by name and become fields:
    numbers, strings, booleans, None and tuples of them. Other defaults stay as they are. An argument `num_classes` or
    `classes` that is not given, or None, is the data's number of classes.
    """

    _wraps: ClassVar[Wraps] = Wraps(
        "a class derived from nn.Module or a function that returns a module",
        "Net",
        ("torch.nn", "Module"),
        functions=("torchvision.models.", "timm."),
        derived=("num_classes", "classes"),
        replaced=("weights",),
    )
    """What it wraps."""

    def __post_init__(self) -> None:
        target = target_of(type(self))
        if not isinstance(self.weights, str) and type(self.weights).__module__.startswith("torchvision."):
            what = f"weights are the name of a file here, got {self.weights}"
            how = f'write model=Torchvision("{target.__name__}", weights="hub"), or download the file'
            raise errors.UserError(what, f"in TorchModel({where_is(target)})", how)
        check(self)

    def build(self, sample: Any, classes: int) -> nn.Module:
        """Return the module that the class or function makes."""
        module = self._called(num_classes=classes or None, classes=classes or None)
        target = target_of(type(self))
        if not callable(getattr(module, "named_parameters", None)):
            what = f"{target.__name__} must return an nn.Module, got {type(module).__name__}"
            raise errors.UserError(what, f"in {where_is(target)}", "let it end in `return module`")
        return module
