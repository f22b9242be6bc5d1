"""What a constant answer scores: the least that a model has to beat."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from raytrain import errors
from raytrain.data import Index
from raytrain.data.batch import Batch
from raytrain.data.blocks import arrays_and_bad, read_part, rows_of
from raytrain.data.prepare import Prepare
from raytrain.experiment import Experiment
from raytrain.tasks.metric import ClassMetric
from raytrain.tasks.metrics import Sums
from raytrain.tasks.multilabel import MultiLabel, outside_of_answers
from raytrain.tasks.segmentation import Segmentation, check_numbers
from raytrain.tasks.supervised import Supervised

_MOST_BYTES = 16 * 2**20
"""Bytes of the samples that are read of each split; of larger splits, samples at equal distances."""
_MOST_VALUES = 20_000_000
"""Values of the constant outputs for validation, for tasks whose targets need no reading."""
_MOST_SHOWN = 5
_STEP_VALUES = 4_000_000
"""Values of the constant outputs that are compared at once."""


@dataclass(frozen=True)
class Baseline:
    """What the best constant answer to the training samples scores on those of validation.

    Attributes:
        scores: finite values by the names of metrics.jsonl; empty if they are not known.
        line: the scores and the answer, for people; empty if they are not known.
        note: why they are not known, or mean nothing; else empty.
    """

    scores: dict[str, float]
    line: str
    note: str


UNKNOWN = Baseline({}, "", "")
"""The baseline of a plan that computes none: that of a sweep's trial, which has the sweep's."""


def baseline(e: Experiment, indices: dict[str, Index], output: tuple[int, ...] = ()) -> Baseline:
    """Return the scores of the best constant answer; without scores if the task knows no such answer, or it cannot be
    scored.

    Args:
        output: the shape of the model's output for one sample; () if it is unknown.

    Raises:
        UserError: a sample that was read for it is damaged and is not to be skipped, a mask has a number that is no
            class of the model, or targets of several labels are not from 0 to 1.
    """
    kind = type(e.task).__name__
    if not isinstance(e.task, Supervised) or type(e.task).constant is Supervised.constant:
        return Baseline({}, "", f"no baseline: {kind} has no `constant(wanted, classes)`, a constant answer to score")
    try:
        found = _scored(e, e.task, indices, output)
    except errors.UserError:
        raise
    except Exception as error:  # such as a metric that cannot compare this answer: it is no reason not to train
        reason = errors.one_line(f"{type(error).__name__}: {error}")
        return Baseline({}, "", f"no baseline: the constant answer of {kind} could not be scored ({reason})")
    return found or Baseline({}, "", f"no baseline: {kind} knows no constant answer to these samples")


def _scored(e: Experiment, task: Supervised, indices: dict[str, Index], output: tuple[int, ...]) -> Baseline | None:
    train, val = (_batch(e, task, indices[split]) for split in ("train", "val"))
    wanted, target = task.wanted(train), task.wanted(val)
    for split, targets, batch in (("train", wanted, train), ("val", target, val)):
        if note := _unfit(task, targets, indices[split], batch.ids):
            return Baseline({}, "", note)
        if type(task).each is Segmentation.each and len(output) == 4:  # another class may have another loss
            for number, mask in zip(batch.ids, targets, strict=True):
                check_numbers(mask, output[1], f"the mask of {indices[split].name(int(number))}")
        if type(task).each is MultiLabel.each:
            outside = np.flatnonzero(((targets < 0) | (targets > 1)).any(1).numpy())
            if len(outside):
                name = f"{indices[split].name(int(batch.ids[outside[0]]))} of {split}"
                raise outside_of_answers(targets[outside[0]], name)
    names = indices["train"].classes
    classes = len(task.class_names(names))  # also those that no mask has
    if not wanted.is_floating_point():
        classes = max(classes, int(wanted.max()) + 1, int(target.max()) + 1)
    answer = task.constant(wanted, classes)
    if answer is None:
        return None
    # Of a mask, [classes, 1, 1] is one answer for all pixels.
    shape = torch.Size((*answer.shape[:-2], *target.shape[-2:])) if answer.ndim == 3 else answer.shape
    outputs, sums, step = answer.expand(len(val), *shape), Sums(), max(1, _STEP_VALUES // max(1, shape.numel()))
    with torch.no_grad():  # metrics of libraries may change tensors in place, as torchmetrics does
        for start in range(0, len(val), step):
            part = slice(start, start + step)
            one = Batch({name: array[part] for name, array in val.arrays.items()}, val.ids[part])
            sums.add(task.compare(outputs[part].contiguous(), one))
        found = task.results(sums.reduce(torch.device("cpu")))
    unknown = _without_value(task, found) if len(val) == len(indices["val"]) else ""
    found = {f"val_{name}": value for name, value in found.items() if math.isfinite(value)}
    first = [task.monitor, *(name for name in found if name != task.monitor)][:_MOST_SHOWN]
    scores = ", ".join(f"{name} {_rounded(found[name]):.4g}" for name in first if name in found)
    scores += f" and {more} more" if (more := len(found) - _MOST_SHOWN) > 0 else ""
    few = len(val) < len(indices["val"]) or len(train) < len(indices["train"])
    of = f" (of {len(train):,} and {len(val):,} samples)" if few else ""
    note = unknown or task.constant_note(wanted)
    if len(names) == 1 and task.kind == "label":
        note = f"the data has one class, {names[0]!r}: there is nothing to tell apart, and every answer is right"
    return Baseline(found, f"{scores}, by {task.constant_words(answer, names)}{of}", note)


def _without_value(task: Supervised, found: dict[str, float]) -> str:
    """Return a note where the monitored metric is of a class that validation cannot measure; else nothing.

    Args:
        found: the metrics of a constant answer.
    """
    name = task.monitor.removeprefix("val_")
    if math.isfinite(found.get(name, 0.0)):
        return ""
    if not any(isinstance(metric, ClassMetric) and name in metric.declared() for metric in task.metrics):
        return ""  # others may have no value for a constant answer alone, such as a correlation
    return (
        f"val has no samples by which {task.monitor} could be measured, as without any of its class: while it is not a "
        "number, the first checkpoint stays the best; let task.monitor name another value"
    )


def _unfit(task: Supervised, wanted: torch.Tensor, index: Index, ids: np.ndarray) -> str:
    """Return why no answer to these targets, [n, ...], has a score, and what that means for training; else nothing."""
    if task.kind == "mask" and not (wanted >= 0).any():
        return f"no pixel of the masks of {index.split} counts: all are ignored"
    wrong = np.flatnonzero(~wanted.isfinite().reshape(len(wanted), -1).all(1).numpy())
    if not len(wrong):
        return ""
    some = f"the targets of {len(wrong):,} of {len(wanted):,} samples of {index.split} are not finite"
    return (
        f"{some}, as that of {index.name(int(ids[wrong[0]]))}: neither is their loss, unless the task leaves them out"
    )


def _rounded(value: float) -> float:
    """Return 0 for what the rounding of float64 leaves of it, as in the R2 of a mean."""
    return value if abs(value) > 1e-12 else 0.0


def _batch(e: Experiment, task: Supervised, index: Index) -> Batch:
    """Return samples of a split as an evaluation sees them, without their images if the labels suffice, and without
    those that training would skip.

    Raises:
        UserError: one cannot be read, and is not to be skipped.
    """
    if task.kind == "label":
        ids = _spread(len(index), _MOST_VALUES // max(1, len(index.classes)))
        return Batch({"label": torch.from_numpy(index.labels[ids])}, ids)
    ids = _spread(len(index), _MOST_BYTES // max(1, index.sample_bytes))
    arrays, bad = arrays_and_bad(read_part(e.data, index, ids))
    if bad and e.data.on_bad_sample == "error":
        raise errors.bad_sample(bad[0].path, bad[0].reason)
    if bad:
        good = np.delete(np.arange(len(ids)), [one.row for one in bad])
        ids, arrays = ids[good], rows_of(arrays, good)
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    return Batch(Prepare(e.data, index).plain(tensors), ids)


def _spread(count: int, most: int) -> np.ndarray:
    """Return int64 numbers below `count`: all, or about `most` at equal distances."""
    return np.arange(0, count, max(1, -(-count // max(1, most))))
