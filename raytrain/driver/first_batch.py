"""The samples that the plan tries a training step with."""

from __future__ import annotations

import contextlib
import math
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import nn

from raytrain import errors
from raytrain.data import Index
from raytrain.data.batch import Batch
from raytrain.data.checks import checked_read
from raytrain.data.images import PROBES
from raytrain.data.prepare import Prepare
from raytrain.data.transforms import full_range
from raytrain.errors import BadSample, UserError
from raytrain.experiment import Experiment
from raytrain.training import freezing
from raytrain.training.precision import Precision
from raytrain.user_code.places import calling

SAMPLES = 2
"""Samples of the step; BatchNorm needs more than one."""
_MOST_VALUES = 4_000_000
"""Values of all images of a second attempt, which has a whole micro-batch or an even part of it."""

_LOOKED_AT = 8
"""Samples whose brightness is looked at."""
_DARK = 64
"""Below which, of 255, all pixels of some images are suspicious."""
_ROUNDING = 1e-3
"""How far beyond 0 and 1 images may go that a resize has rounded."""


class NotTried(Exception):
    """The step could not be tried here, or not all of it, which need not be a mistake.

    Attributes:
        error: the mistake that it is where nothing in training has what the step needs.
        needs: what that is: `gpu` or `worker`.
    """

    def __init__(self, why: str, error: UserError | None = None, needs: str = ""):
        super().__init__(why)
        self.error, self.needs = error, needs


def readable(index: Index, bad: Sequence[BadSample]) -> Index:
    """Return the index without samples that a first look has found unreadable, whose files bear the samples' names.

    Of more than `PROBES` samples a first look skips some, and so does not tell how many are left.

    Raises:
        UserError: none is left.
    """
    if not bad or len(index) > PROBES or index.paths is None:
        return index
    lost = defaultdict[str, list[str]](list)  # by the last parts, so that few of all names are compared
    for one in bad:
        lost[os.path.basename(one.path)].append(f"/{one.path}")
    names = index.names(np.arange(len(index)))
    good = [not any(path.endswith(f"/{name}") for path in lost.get(os.path.basename(name), ())) for name in names]
    if not any(good):
        raise errors.all_samples_bad(bad[0].path, bad[0].reason)
    return index.take(np.flatnonzero(good))


def sizes(e: Experiment, index: Index) -> list[int]:
    """Return the samples of the first attempt, and of the second one if that can have more."""
    size = e.sampler.size(index)
    few, most = min(SAMPLES, e.micro_batch, size), min(e.micro_batch, size)
    room = _MOST_VALUES // max(1, sum(math.prod(field.shape) for field in index.fields))
    even = [size for size in range(few + 1, most + 1) if most % size == 0 and size <= room]
    return [few, *even[-1:]]


def check_last(e: Experiment, index: Index, module: nn.Module, batch: Batch, precision: Precision) -> None:
    """Check that BatchNorm can take the last batch of an epoch.

    Args:
        batch: some samples.

    Raises:
        UserError: it leaves a rank a single sample, of which there are no statistics.
    """
    size = e.sampler.size(index)
    if len(batch) < 2 or not e.parallel.short_passes or _fewest(e, size) > 1:
        return
    freezing.train_mode(module, e.freeze)
    one = Batch({name: array[:1] for name, array in batch.arrays.items()}, batch.ids[:1])
    try:
        with torch.no_grad(), precision.forward():
            e.task.loss(module, one)
    except Exception as error:  # any other may be of this sample alone
        if "Expected more than 1 value per channel" not in str(error):
            return
        rest = size % e.batch_size
        what = f"the last batch of an epoch, of {rest}, leaves a pass of one sample, and BatchNorm needs two"
        how = f", or leave samples out with --sampler.count {size - rest}" if rest < size else ""
        raise UserError(what, "in batch_size", f"use another --batch_size{how}") from None


def _fewest(e: Experiment, size: int) -> int:
    """Return the samples of the smallest pass over an epoch's last batch; a rank without samples makes one of one."""
    cut = e.parallel.batch_shards(e.scaling.ranks)
    even, more = divmod(size % e.batch_size or e.batch_size, e.replicas * (cut or 1))
    parts = [even, even + 1] if more else [even]
    if not all(parts) and not cut:
        return 1
    return min(part % e.micro_batch or e.micro_batch for part in parts if part)


def blank(e: Experiment, index: Index) -> Batch:
    """Return a batch of one sample as the task sees it, of zeros as they are stored.

    Raises:
        UserError: the fields of the data do not suit its settings; see `Data.sample`.
    """
    e.data.sample(index)
    tensors = {name: torch.from_numpy(array) for name, array in index.empty(1).items()}
    tensors = Prepare(e.data, index).plain(tensors)
    if index.labels is not None:
        tensors["label"] = torch.zeros(1, dtype=torch.int64)
    return Batch(tensors, np.zeros(1, np.int64))


def read_batch(e: Experiment, index: Index, count: int) -> Batch:
    """Return the first samples of training, without augmentation.

    Raises:
        UserError: `data.read` fails, or an operation of the augmentation, or one that cuts off what images have.
        NotTried: none of them can be read.
    """
    ids = e.sampler.samples(index, e.seed, 0, np.arange(count))
    try:
        arrays = checked_read(e.data, index, ids)
    except BadSample as bad:
        if e.data.on_bad_sample == "error":
            raise errors.bad_sample(bad.path, bad.reason) from None
        good = [(sample, found) for sample in ids for found in _readable(e, index, sample)]
        if not good:
            raise NotTried(f"a step was not tried: none of the first {count} samples can be read") from None
        ids = np.array([sample for sample, _ in good])
        arrays = {name: np.concatenate([found[name] for _, found in good]) for name in good[0][1]}
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    if index.labels is not None:
        tensors["label"] = torch.from_numpy(index.labels[ids])
    prepare = Prepare(e.data, index)
    _check_range(e, index, tensors)
    if e.data.augment.operations:  # some may be the user's
        with calling("an operation of data.augment"):
            prepare.augmented(tensors, ids, e.seed, 0, mixed=False)
    tensors = prepare.plain(tensors)
    if e.data.augment.mixes and index.labels is not None:
        tensors["target"] = torch.nn.functional.one_hot(tensors["label"], len(index.classes)).float()
    return Batch(tensors, ids)


def dark(e: Experiment, index: Index) -> list[str]:
    """Return a line for the plan if the first samples of training have images that use a small part of the values of
    uint8, as those of 12 bits in files of 16 bits become."""
    names = [field.name for field in index.fields if field.kind == "image" and field.dtype == "uint8"]
    if not names:
        return []  # before anything is read
    count = min(_LOOKED_AT, e.sampler.size(index))
    try:
        arrays = checked_read(e.data, index, np.unique(e.sampler.samples(index, e.seed, 0, np.arange(count))))
    except Exception:  # of samples that the step does not read
        return []
    for name in names:
        if 0 < (most := int(arrays[name].max())) < _DARK:
            note = f"the first {count} images have values from 0 to {most} of 255: scale them to the whole range before"
            return [f"{note} (of files of 16 bits the values are divided by 257, and those of 12 bits become 0 to 16)"]
    return []


def not_finite(batch: Batch) -> str:
    """Return what to do about the first of a batch's numbers that is not finite, an empty string if all are."""
    for name, array in batch.arrays.items():
        finite = array.isfinite().flatten(1).all(1) if array.ndim > 1 else array.isfinite()
        if not finite.all():
            sample = batch.ids[int(finite.int().argmin())]
            return f"leave sample {sample} out, or replace the values of its {name!r} that are not finite"
    return ""


def _check_range(e: Experiment, index: Index, arrays: Mapping[str, torch.Tensor]) -> None:
    """Check that images are from 0 to 1 where an operation cuts off what is not.

    Raises:
        UserError: they are not.
    """
    name = next((type(one).__name__ for one in e.data.augment.operations if one.clamps), None)
    for field in index.fields if name else ():
        if field.kind != "image":
            continue
        values = arrays[field.name].double() / full_range(field.dtype)
        low, high = float(values.min()), float(values.max())
        if low < -_ROUNDING or high > 1 + _ROUNDING:
            what = f"{name} cuts images off at 0 and 1, and {field.name!r} goes from {low:.4g} to {high:.4g}"
            raise UserError(what, "in data.augment.operations", "give it images from 0 to 1, or leave it out")


def _readable(e: Experiment, index: Index, sample: int) -> Iterator[dict[str, np.ndarray]]:
    with contextlib.suppress(BadSample):
        yield checked_read(e.data, index, np.array([sample], np.int64))
