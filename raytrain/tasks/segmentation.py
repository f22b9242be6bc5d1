"""Semantic segmentation: a class for each pixel."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from raytrain import errors
from raytrain.config import check, within
from raytrain.data.batch import Batch
from raytrain.tasks import counts
from raytrain.tasks.metric import Direction, Kind, Metric
from raytrain.tasks.supervised import Supervised
from raytrain.tasks.task import losses

if TYPE_CHECKING:
    import numpy as np
    import torch

    from raytrain.data.source import Index


def check_numbers(mask: torch.Tensor, classes: int, name: str) -> None:
    """Check that the numbers of a mask are classes of the model.

    Args:
        mask: int64 [height, width], -1 where a pixel does not count.
        name: what the message calls it.

    Raises:
        UserError: one of them is not.
    """
    least, most = int(mask.min()), int(mask.max())
    if -1 <= least and most < classes:
        return
    what = f"{name} has the number {least if most < classes else most}, and the model's "
    what += f"{classes} classes are 0 to {classes - 1}" if classes > 1 else "one class is 0"
    how = "tell which numbers are classes (MaskFolder(mask_values=...)) or do not count (task.ignore_index)"
    raise errors.UserError(what, "in task", f"{how}, or give the model more outputs")


@dataclass(frozen=True)
class Segmentation(Supervised):
    """A class for each pixel: cross entropy, and the share of right pixels (`pixel_accuracy`).

    The loss of a sample is the mean over its pixels that count, and the loss of a batch is the mean over its samples.
    So samples count alike whatever is ignored in them, and the result is the same on any number of workers. A sample
    without such pixels has the loss 0. Without ignored pixels that is PyTorch's mean over all pixels. IoU, Dice and
    pixel accuracy are of all pixels of all samples together.
    """

    directions: ClassVar[Mapping[str, Direction]] = {"pixel_accuracy": "max"}
    """The highest accuracy is the best."""
    kind: ClassVar[Kind] = "mask"
    """What the task wants of a sample."""

    mask: str = "mask"
    """The field with the class of each pixel: whole numbers [height, width], in the data as kind="mask"."""
    ignore_index: int = 255
    """Pixels of this value in the mask do not count, in the loss and in all metrics."""
    classes: tuple[str, ...] = field(default=(), kw_only=True)
    """Names of the pixels' classes, for tables and metrics; the data's by default, or numbers."""
    class_weights: tuple[float, ...] = ()
    """Factors on the training loss of each class's pixels. Weighted losses are divided by the number of the sample's
    pixels that count, not by their weights. Validation's loss has no weights."""
    label_smoothing: float = 0.0
    """Share of the target that is spread over all classes while training."""
    monitor: str = "val_macro_iou"
    """The metric that chooses the best checkpoint: val_macro_iou, val_macro_dice, val_pixel_accuracy, val_loss or
    another value of `metrics`."""
    metrics: tuple[Metric, ...] = field(  # type: ignore[assignment]
        default_factory=lambda: (counts.IoU(), counts.Dice()), kw_only=True
    )
    """What an evaluation measures besides; each value can be `monitor`."""

    def __post_init__(self) -> None:
        check(
            self,
            class_weights=counts.WEIGHTS,
            label_smoothing=within(0, 1),
        )
        self.check_metrics()

    def training_loss(self, outputs: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Return the cross entropy: for each sample the mean over its pixels that count, summed over samples."""
        wanted = batch["target"]
        with self._known_classes(outputs, wanted):
            return losses().pixels(outputs, wanted, self.class_weights, self.label_smoothing).sum()

    def wanted(self, batch: Batch) -> torch.Tensor:
        """Return the classes of pixels, int64 [n, height, width]; -1 does not count."""
        mask = batch[self.mask].long()
        return mask.masked_fill(mask == self.ignore_index, -1)

    def fitted(self, outputs: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        """Check that there are logits for each pixel of the mask."""
        if outputs.ndim != 4 or outputs.shape[2:] != wanted.shape[1:]:
            what = f"the model gives {list(outputs.shape)} and the masks are {list(wanted.shape)}"
            how = "let the model give [n, classes, height, width], as large as the mask"
            raise errors.UserError(what, "in task", how)
        return outputs

    def each(self, outputs: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        """Return the cross entropy, without weights and smoothing."""
        with self._known_classes(outputs, wanted):
            return losses().pixels(outputs.float(), wanted, ())

    @contextlib.contextmanager
    def _known_classes(self, outputs: torch.Tensor, wanted: torch.Tensor) -> Iterator[None]:
        """Say which number of a mask is no class of the model, where torch refuses it (on CPUs)."""
        try:
            yield
        except IndexError:
            for mask in wanted:
                check_numbers(mask, outputs.shape[1], "a mask")
            raise

    def own_sums(self, outputs: torch.Tensor, wanted: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the pixels of each class."""
        return counts.count_answers(outputs, wanted)

    def results(self, sums: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Return the mean loss and the share of right pixels."""
        pixels = float(sums["actual"].sum())
        return {**super().results(sums), "pixel_accuracy": float(sums["right"].sum()) / pixels if pixels else 0.0}

    def per_class(self, sums: Mapping[str, np.ndarray], classes: tuple[str, ...]) -> list[dict[str, Any]]:
        """Return precision, recall, F1, IoU and number of pixels of each class."""
        names = self.class_names(classes)
        return counts.per_class(sums, names if len(names) == len(sums["actual"]) else ())

    def class_names(self, classes: tuple[str, ...]) -> tuple[str, ...]:
        """Return the task's names of classes, or the data's."""
        return self.classes or classes

    def mean_of_views(self, outputs: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the logarithm of the mean probabilities of each pixel."""
        return losses().mean_share(outputs)

    def predictions(self, outputs: torch.Tensor, classes: tuple[str, ...]) -> list[dict[str, Any]]:
        """Return the likeliest class of each pixel as `mask`, uint8 [height, width]; int32 for more than 256
        classes."""
        masks = outputs.argmax(1).cpu().numpy().astype("uint8" if outputs.shape[1] <= 256 else "int32")
        return [{"mask": mask} for mask in masks]

    def constant(self, wanted: torch.Tensor, classes: int) -> torch.Tensor:
        """Return the logits of the classes' shares of all pixels, [classes, 1, 1]."""
        pixels = wanted[wanted >= 0].bincount(minlength=classes).double()
        return pixels.div(pixels.sum().clamp_min(1)).clamp_min(1e-7).log().float()[:, None, None]

    def constant_words(self, answer: torch.Tensor, classes: tuple[str, ...]) -> str:
        """Return the most frequent class."""
        best, names = int(answer.argmax()), self.class_names(classes)
        return f"every pixel of class {names[best] if len(names) == len(answer) else best}"

    def check_data(self, index: Index) -> None:
        """Check that there is a mask of whole numbers [height, width], which moves with the images."""
        known = {field.name: field for field in index.fields[1:]}
        found = known.get(self.mask)
        if found is None:
            how = errors.nearest(self.mask, known) + (f"there are {', '.join(known)}" if known else "add it to Index")
            raise errors.UserError(f"the data has no field {self.mask!r} besides the input", "in task.mask", how)
        if len(found.shape) != 2 or found.dtype.startswith("float"):
            what = f"a mask must be whole numbers [height, width], got {found.dtype} {list(found.shape)}"
            raise errors.UserError(what, f"in field {self.mask!r}", "declare it as a class's number for each pixel")
        if found.kind != "mask" and any(field.kind == "image" for field in index.fields):
            what = f"crops and flips would move the images without their masks, as the field is of kind {found.kind!r}"
            raise errors.UserError(what, f"in field {self.mask!r}", 'declare it with kind="mask"')

        values = getattr(index, "values", ())  # of a MaskIndex: the number of each class in the masks
        if self.classes and values and len(values) != len(self.classes):
            what = f"data.mask_values has {len(values)} numbers for the {len(self.classes)} classes of task.classes"
            raise errors.UserError(what, "in data.mask_values", "give one for each class, in their order")

    def check_model(self, output: tuple[int, ...], classes: int, where: str) -> None:
        """Check that the output is [1, classes, height, width], and the weights and metrics against its classes."""
        if len(output) != 4:
            what = f"the model must give [n, classes, height, width], got {list(output)} for one sample"
            raise errors.UserError(what, f"in {where}", "let it end in a convolution with an output for each class")
        counts.check_weights("classes", self.classes, output[1])
        counts.check_weights("class_weights", self.class_weights, output[1])
        for metric in self.metrics:
            metric.check_classes(output[1])
