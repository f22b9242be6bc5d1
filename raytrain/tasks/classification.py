"""Classification by cross-entropy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from raytrain import errors
from raytrain.config import at_least, check, within
from raytrain.data.batch import Batch
from raytrain.tasks import counts
from raytrain.tasks.metric import Direction, Kind
from raytrain.tasks.supervised import Supervised
from raytrain.tasks.task import losses

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import nn

    from raytrain.data.source import Index


@dataclass(frozen=True)
class Classification(Supervised):
    """One label a sample: cross entropy, top-1 and top-5 accuracy, and a confusion matrix."""

    directions: ClassVar[Mapping[str, Direction]] = {"accuracy": "max", "top5_accuracy": "max"}
    """The highest accuracy is the best."""
    kind: ClassVar[Kind] = "label"
    """What the task wants of a sample."""

    monitor: str = "val_accuracy"
    """The metric that chooses the best checkpoint: val_accuracy, val_loss, val_top5_accuracy for more than five
    classes, or a value of `metrics`, such as val_macro_f1."""
    label_smoothing: float = 0.0
    """Share of the target that is spread over all classes while training (Szegedy et al., 2016)."""
    class_weights: tuple[float, ...] = ()
    """Factors on the training loss of each class, in the classes' order. The weighted losses are summed and divided by
    the number of samples of the global batch, so the result is the same on any number of workers. (PyTorch's
    reduction="mean" divides by the weights of the batch instead.) Weights with mean 1 over the training samples keep
    the loss's size. Validation's loss has no weights."""
    focal_gamma: float = 0.0
    """Exponent of the focal loss, which multiplies the training loss by (1 - p) ** focal_gamma for the probability p of
    the right class (Lin et al., 2017); 0 is the cross entropy. Validation's loss is the cross entropy."""

    def __post_init__(self) -> None:
        check(
            self,
            label_smoothing=within(0, 1),
            class_weights=counts.WEIGHTS,
            focal_gamma=at_least(0),
        )
        self.check_metrics()

    def loss(self, model: nn.Module, batch: Batch) -> tuple[torch.Tensor, int]:
        """Return the cross entropy with label smoothing, to the targets of mixed images."""
        return self.training_loss(self.forward(model, batch), batch), len(batch)

    def training_loss(self, outputs: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Return the sum over samples, from the model's outputs [n, classes]."""
        wanted = batch.labels if batch.targets is None else batch.targets
        return losses().classes(outputs, wanted, self.class_weights, self.label_smoothing, self.focal_gamma)

    def wanted(self, batch: Batch) -> torch.Tensor:
        """Return the labels, int64 [n]."""
        return batch.labels

    def each(self, outputs: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        """Return the cross entropy, without smoothing, weights and focus."""
        return losses().labels(outputs, wanted)

    def own_sums(self, outputs: torch.Tensor, wanted: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return right answers among the first 1 and 5, and counts of (label, answer), int64 [classes, classes]. Of
        classes with equal logits the first one comes first, as in `predictions` and in all metrics."""
        classes, best = outputs.shape[1], outputs.argmax(1)
        pairs = (wanted * classes + best).bincount(minlength=classes * classes)
        return {
            "top1": (best == wanted).sum(),
            "top5": (losses().places(outputs, wanted) < 5).sum(),
            "confusion": pairs.view(classes, classes),
        }

    def results(self, sums: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Return the mean loss, the accuracy, and the top-5 accuracy for more than five classes."""
        count, found = float(sums["count"]), super().results(sums)
        found["accuracy"] = float(sums["top1"]) / count
        if len(sums["confusion"]) > 5:
            found["top5_accuracy"] = float(sums["top5"]) / count
        return found

    def per_class(self, sums: Mapping[str, np.ndarray], classes: tuple[str, ...]) -> list[dict[str, Any]]:
        """Return precision, recall, F1 and number of samples of each class."""
        return counts.per_class(counts.of_confusion(sums["confusion"]), classes)

    def mean_of_views(self, outputs: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the logarithm of the mean probabilities."""
        return losses().mean_share(outputs)

    def predictions(self, outputs: torch.Tensor, classes: tuple[str, ...]) -> list[dict[str, Any]]:
        """Return the likeliest class as `label`, its `probability`, and the `probabilities` of all classes."""
        shares = outputs.float().softmax(dim=1).cpu()
        best = shares.argmax(dim=1).tolist()
        return [
            {"label": classes[label], "probability": float(share[label]), "probabilities": share.tolist()}
            for label, share in zip(best, shares, strict=True)
        ]

    def truths(self, batch: Batch, classes: tuple[str, ...]) -> list[dict[str, Any]]:
        """Return the class as `true_label`."""
        return [{"true_label": classes[label]} for label in batch.labels.tolist()]

    def constant(self, wanted: torch.Tensor, classes: int) -> torch.Tensor:
        """Return the logits of the classes' shares among the labels."""
        return wanted.bincount(minlength=classes).double().div(len(wanted)).clamp_min(1e-7).log().float()

    def constant_words(self, answer: torch.Tensor, classes: tuple[str, ...]) -> str:
        """Return the name of the most frequent class."""
        return f"always {classes[int(answer.argmax())]!r}"

    def check_data(self, index: Index) -> None:
        """Check that each sample has one class, that there is a weight for each class, and that there are the classes
        that metrics name."""
        if index.classes and index.labels is None:
            what = f"{type(self).__name__} wants one class of each sample, and the data has several"
            raise errors.UserError(what, "in task", "use task=MultiLabel()")
        if classes := len(index.classes):  # `check_model` refuses data without classes
            counts.check_weights("class_weights", self.class_weights, classes)
            for metric in self.metrics:
                metric.check_classes(classes)

    def check_model(self, output: tuple[int, ...], classes: int, where: str) -> None:
        """Check that the data has labels and the output is [1, classes]."""
        if not classes:
            raise errors.UserError(
                f"{type(self).__name__} needs labels, and the data has none",
                "in task",
                "give labels and classes to Index (samples of a TorchData are (image, label) or dicts with a `label`), "
                "or write a Task of your own, with a loss for this data",
            )
        if output != (1, classes):
            named = "an argument `num_classes` or `classes` that is left out gets that number"
            how = f"let its last layer have {classes} outputs; {named}"
            if len(output) != 2:
                how = f"let it return logits [n, {classes}] of n images, without argmax() or squeeze()"
            raise errors.UserError(
                f"the model's head does not fit the classes: it gives {list(output)} for one sample and "
                f"the data has {classes} classes",
                f"in {where}",
                how,
            )
