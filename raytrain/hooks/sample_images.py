"""Pictures of validation samples and of what the model says of them."""

from __future__ import annotations

import contextlib
import importlib
import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from raytrain import errors
from raytrain.config import at_least, check
from raytrain.files import write_atomically
from raytrain.hooks.base import Hook

if TYPE_CHECKING:
    import torch

_LEAST, _LINE = 96, 14
"""Pixels: the least side of a sample in the picture, and the height of a line of text."""
_COLOURS = ((0, 0, 0), (230, 159, 0), (86, 180, 233), (0, 158, 115), (240, 228, 66), (0, 114, 178), (213, 94, 0))
"""Of the classes of masks, in turn: Okabe and Ito, Color Universal Design (2008)."""


@dataclass(frozen=True)
class SampleImages(Hook):
    """Writes a picture after each epoch, `samples/epoch_0003.png` in the run's directory: the first validation samples
    of rank 0, each with its class and the model's prediction, or with its mask and the predicted one. TensorBoard and
    MLflow show it. Rank 0 computes a forward pass of one micro-batch for it. A strategy that shards the model is
    refused.

    The model's input must be images, and the task must have `predictions`.
    """

    count: int = 8
    """Samples in the picture; no more than rank 0 has of the first batch."""

    def __post_init__(self) -> None:
        check(self, count=at_least(1))

    def start(self, trainer: Any) -> None:
        """Check that rank 0 can compute predictions by itself.

        Raises:
            UserError: it has a part of the model.
        """
        if trainer.strategy.sharded:
            what = f"SampleImages needs the whole model on rank 0, and {type(trainer.experiment.parallel).__name__}"
            raise errors.UserError(f"{what} shards it", "in hooks", "leave SampleImages out")

    def after_epoch(self, trainer: Any, row: Mapping[str, Any]) -> None:
        """Write the picture. A disk that refuses it does not end the run."""
        if trainer.ranks.rank:
            return
        picture = self._picture(trainer)
        name = f"samples/epoch_{row['epoch']:04d}.png"
        with contextlib.suppress(OSError, errors.UserError):
            if trainer.storage:
                trainer.storage.write(name, picture)
            (trainer.run.path / "samples").mkdir(exist_ok=True)
            write_atomically(trainer.run.path / name, picture)

    def _picture(self, trainer: Any) -> bytes:
        """Return the PNG."""
        torch, image, draw = map(importlib.import_module, ("torch", "PIL.Image", "PIL.ImageDraw"))
        e, strategy = trainer.experiment, trainer.strategy
        with contextlib.closing(trainer.loaders["val"].epoch(0)) as batches:
            batch = next(next(batches).passes(e.micro_batch, False)).batch
        strategy.module.eval()
        with trainer.averaged(), torch.no_grad(), trainer.precision.forward():
            said = e.task.predictions(e.task.forward(strategy.module, batch), trainer.classes)[: self.count]
        used = e.data.normalisation(batch.input.shape[1])  # a source may derive them
        mean, std = (torch.tensor(values).view(-1, 1, 1) for values in used)
        shown = [_image(one.float().cpu() * std + mean) for one in batch.input[: self.count]]
        truths = _truths(batch, e.task, trainer.classes, len(shown))
        rows = [[one, *_masks(truth, found)] for one, truth, found in zip(shown, truths, said, strict=True)]
        texts = [_text(truth, found) for truth, found in zip(truths, said, strict=True)]
        times = max(1, -(-_LEAST // min(shown[0].size)))
        width, height = (side * times for side in shown[0].size)
        whole = image.new("RGB", (len(rows) * (width + 4), max(map(len, rows)) * (height + 4) + 2 * _LINE), "white")
        pen, letters = draw.Draw(whole), importlib.import_module("raytrain.data.font").font()
        for column, (tiles, lines) in enumerate(zip(rows, texts, strict=True)):
            left = column * (width + 4)
            for number, tile in enumerate(tiles):
                whole.paste(tile.resize((width, height), image.Resampling.NEAREST), (left, number * (height + 4)))
            for number, line in enumerate(lines):
                at = (left + 2, max(map(len, rows)) * (height + 4) + number * _LINE)
                wrong = number == 1 and said[column].get("label", truths[column]) != truths[column]
                pen.text(at, line[: max(1, width // 6)], fill="red" if wrong else "black", font=letters)
        file = io.BytesIO()
        whole.save(file, "PNG")
        return file.getvalue()


def _image(values: torch.Tensor) -> Any:
    """Return the picture of an image, float32 [channels, height, width] from 0 to 1; of other than three channels the
    first one."""
    some = values if len(values) == 3 else values[:1].expand(3, -1, -1)
    array = some.clamp(0, 1).mul(255).round().byte().permute(1, 2, 0).contiguous().numpy()
    return importlib.import_module("PIL.Image").fromarray(array)


def _truths(batch: Any, task: Any, classes: tuple[str, ...], count: int) -> list[Any]:
    """Return each sample's mask, its class or None."""
    if (name := getattr(task, "mask", "")) in batch.arrays:
        return list(batch[name][:count].cpu().numpy())
    if "label" in batch.arrays and classes:
        return [classes[label] for label in batch.labels[:count].tolist()]
    return count * [None]


def _masks(truth: Any, found: Mapping[str, Any]) -> list[Any]:
    """Return the pictures of a sample's masks: the true one and the predicted one."""
    image = importlib.import_module("PIL.Image")
    pictures = []
    for mask in (truth, found["mask"]) if "mask" in found else ():
        picture = image.fromarray((mask % len(_COLOURS)).astype("uint8")).convert("P")
        picture.putpalette([part for colour in _COLOURS for part in colour])
        pictures.append(picture.convert("RGB"))
    return pictures


def _text(truth: Any, found: Mapping[str, Any]) -> list[str]:
    """Return two lines: what the sample is, and what the model says."""
    if "mask" in found:
        return []
    said = [
        one if isinstance(one, str) else f"{one:.3g}" for one in found.values() if isinstance(one, str | float | int)
    ]
    return [str(truth) if truth is not None else "", "> " + ", ".join(said)]
