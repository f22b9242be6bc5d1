"""A run's model with what comes before and after it: from stored samples to rows of predictions or features."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from raytrain import errors
from raytrain.data import Data, Index
from raytrain.data.batch import Batch
from raytrain.data.prepare import Prepare
from raytrain.experiment import Experiment
from raytrain.tasks.supervised import Supervised
from raytrain.tools.columns import FEATURES, TAKEN
from raytrain.tools.features import Features, Layer
from raytrain.tools.views import Views, averaged, check_tta
from raytrain.training.precision import Precision, memory_format
from raytrain.user_code.places import place


class Predictor:
    """What a run's model says of samples.

    Args:
        model: the run's, on the CPU, in evaluation mode.
        data: the source, for its crop and normalisation.
        index: for the fields of its samples.
        classes: the names of the data's classes.
        tta: test-time augmentation, as for `evaluate`.
        layer: the layer whose features to return; None for predictions.

    Attributes:
        prepare: turns arrays as they are stored into the model's input.

    Raises:
        UserError: `tta` does not suit the run.
    """

    def __init__(
        self,
        model: nn.Module,
        e: Experiment,
        data: Data,
        index: Index,
        classes: tuple[str, ...],
        device: torch.device,
        tta: str = "",
        layer: Layer | None = None,
    ):
        e = e.bound(index)
        views, self.layout = check_tta(tta, e, index.input.kind), memory_format(e.memory_format)
        self.task, self.classes, self.layer = e.task, classes, layer
        self.model: nn.Module = model.to(device, memory_format=self.layout)  # type: ignore[call-overload]
        self.prepare = Prepare(data, index, device, self.layout)
        self.precision = Precision(e.precision, device)
        if layer is not None:
            self.model = Features(self.model, layer)
        elif tta:
            self.prepare = Views(self.prepare, tta, views, e.seed, e.task)
            self.task, self.model = averaged(self.task, self.model, index, self.layout)

    @torch.inference_mode()
    def rows(self, batch: Batch, compared: bool = False) -> list[dict[str, Any]]:
        """Return the columns of each sample: those of the task's `predictions`, or `features`, float32 [d].

        Args:
            batch: prepared, on the device.
            compared: append the columns of `Supervised.compared`; to features those of the targets alone.

        Raises:
            UserError: the task returns more or fewer rows.
        """
        with self.precision.forward():
            outputs = self.task.forward(self.model, batch)
        rows = self._answers(outputs, len(batch))
        if not compared or not isinstance(self.task, Supervised):
            return rows
        theirs = self.prepare.index.classes  # of other data, perhaps others than the model's, of which it has no loss
        seen = outputs if self.layer is None and theirs == self.classes else None
        truths = self.task.compared(seen, batch, theirs)
        return [row | truth for row, truth in zip(rows, truths, strict=True)]

    def _answers(self, outputs: Any, count: int) -> list[dict[str, Any]]:
        if self.layer is not None:
            return [{FEATURES: row} for row in outputs.cpu().numpy()]
        rows = self.task.predictions(outputs, self.classes)
        if len(rows) != count:
            what = f"predictions() must return a dict for each of the {count} samples, got {len(rows)}"
            raise errors.UserError(
                what, f"in {place(type(self.task).predictions)}", "return one for each of the outputs"
            )
        return [{f"{name}_" if name in TAKEN else name: value for name, value in row.items()} for row in rows]
