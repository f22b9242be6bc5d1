"""A run's model that answers single images, given as the bytes of their files, as `raytrain predict` answers files."""

from __future__ import annotations

import base64
import tempfile
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from raytrain import errors
from raytrain.checkpoint.layout import load_state
from raytrain.data.batch import Batch
from raytrain.data.checks import checked_read
from raytrain.run.run import Run
from raytrain.tools import columns
from raytrain.tools.inference import check_task, file_index, file_source
from raytrain.tools.predictor import Predictor


class Answers:
    """The model of a checkpoint on a device, with the run's preprocessing and its task's predictions.

    Attributes:
        run: the run.
        checkpoint: the checkpoint's name.
        classes: the names of what `probabilities` are of.
        shape: (channels, height, width) of a decoded image.

    Raises:
        UserError: the model takes no images, the task does not say what it predicts, or the checkpoint cannot be read.
    """

    def __init__(self, run: Run, which: str = "best", device: torch.device | str = "cpu"):
        state, e = load_state(run.checkpoint(which)), run.experiment
        check_task(run, state, images=True, features=None, tta="")
        self._source, self._data_classes = file_source(e.data, tuple(state["stored"])), tuple(state["classes"])
        self.run, self.checkpoint = run, run.checkpoint(which).name
        self.classes = e.task.class_names(self._data_classes)
        index, self._device = file_index([], self._source, self._data_classes), torch.device(device)
        self._name, self.shape = index.input.name, index.shape
        self._predictor = Predictor(run.model(which), e, self._source, index, self._data_classes, self._device)

    def decode(self, content: bytes) -> np.ndarray:
        """Return the image of a file's bytes, uint8 [channels, size, size], by the reader of the run's data.

        Raises:
            BadSample: they are no image that can be decoded.
        """
        # The reader takes a file, and may be a user's own.
        with tempfile.NamedTemporaryFile(prefix="raytrain-image-") as file:
            file.write(content)
            file.flush()
            index = file_index([file.name], self._source, self._data_classes)
            try:
                return checked_read(self._source, index, np.zeros(1, np.int64))[self._name][0]
            except errors.UserError as error:  # the reader raised something else than a BadSample
                raise errors.BadSample(file.name, error.what) from None

    def predict(self, images: Sequence[np.ndarray]) -> list[dict[str, Any]]:
        """Return the answer to each of some decoded images, ready for JSON."""
        stored = {self._name: torch.from_numpy(np.stack(images)).to(self._device)}
        batch = Batch(self._predictor.prepare.plain(stored), np.arange(len(images)))
        return [self._answer(row) for row in self._predictor.rows(batch)]

    def _answer(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return a row of `Task.predictions` with `probabilities` by the classes' names, and a `mask` as a PNG with the
        `shares` of its pixels."""
        found = {name: columns.for_json(value) for name, value in row.items() if name not in ("probabilities", "mask")}
        if "probabilities" in row:
            names = columns.share_names(self.classes, len(row["probabilities"]))
            found["probabilities"] = dict(zip(names, columns.for_json(row["probabilities"]), strict=True))
        if "mask" in row:
            mask = row["mask"]
            values, counts = np.unique(mask, return_counts=True)
            names = [self.classes[value] if value < len(self.classes) else str(value) for value in values.tolist()]
            shares = (counts / mask.size).tolist()
            found["shares"] = dict(zip(names, shares, strict=True))
            found["mask"] = "data:image/png;base64," + base64.b64encode(columns.png(mask)).decode()
        return found
