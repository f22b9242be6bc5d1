"""The loader: a rank's part of every global batch, moved to its device, augmented and normalised there."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from raytrain import order
from raytrain.data.batch import Batch
from raytrain.data.blocks import Arrays
from raytrain.data.geometry import moved
from raytrain.data.pinning import Pinned
from raytrain.data.prepare import Prepare, Tensors
from raytrain.data.reader import Epoch, Resident
from raytrain.data.recorded import ROWS, Recorder, why_not
from raytrain.data.sampler import Sampler, drawing
from raytrain.data.source import Data, Index
from raytrain.watchdog import MOVING, PREPARING, awaited, doing

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_MMAP_MAX = -1, -3, -4
"""Of glibc's malloc.h."""
_DEVICE_SHARE = 0.25
"""Share of a GPU's free memory that the arrays of a split may take to be kept there."""
_STEPS = 64
"""Steps whose samples are copied to such a GPU at once."""


class Reader(Protocol):
    """A source of samples for a loader, such as `Resident` and `Streaming`."""

    def read(self, epoch: Epoch) -> Iterator[tuple[np.ndarray, Arrays]]:
        """Yield (samples int64 [k], their arrays) of each step."""
        ...


class Pass(NamedTuple):
    """A micro-batch, in training.

    Attributes:
        batch: what the task gets.
        last: whether it is the last of its step.
        blank: whether it stands in for samples that this rank, with fewer micro-batches than others, does not have.
        size: samples of the step's global batch.
    """

    batch: Batch
    last: bool
    blank: bool
    size: int


@dataclass
class Loaded:
    """One rank's part of one step's global batch.

    Attributes:
        step: the step in its epoch.
        size: the number of samples of all ranks.
        ids: int64 [n], this rank's samples, on the CPU.
        keys: int64 [n], what the randomness of each sample's augmentation is keyed by besides seed and epoch: the
            sample, or under a sampler, which may draw a sample twice, its position in the epoch.
        arrays: the samples' arrays as they are stored, each [n, ...] and on the device.
        prepare: turns (arrays, keys) into the arrays that the task sees.
        most: the largest number of samples of any rank.
        first: this rank's first shard, as numbered over all ranks.
        cuts: the number of samples of each of its shards; None if its part is one shard.
        recorder: prepares the samples by their rows, which are then their only array.
        spare: the arrays of one sample that this rank had in an earlier step.
    """

    step: int
    size: int
    ids: np.ndarray
    keys: np.ndarray
    arrays: Tensors
    prepare: Callable[[Tensors, np.ndarray], Tensors]
    most: int
    first: int
    cuts: tuple[int, ...] | None = None
    recorder: Recorder | None = None
    spare: Tensors | None = None

    def shards(self) -> Iterator[tuple[int, Loaded]]:
        """Yield (number, part) of each shard: the whole part, which may be empty, or each cut that has samples."""
        if self.cuts is None:
            yield self.first, self
            return
        stops = itertools.accumulate(self.cuts)
        for number, (size, stop) in enumerate(zip(self.cuts, stops, strict=True), self.first):
            part = slice(stop - size, stop)
            if len(self.ids[part]):
                yield number, replace(self.rows(part), cuts=None)

    def rows(self, part: slice) -> Loaded:
        """Return some of the samples, as a part of the same global batch."""
        arrays = {name: array[part] for name, array in self.arrays.items()}
        return replace(self, ids=self.ids[part], keys=self.keys[part], arrays=arrays)

    def micro_batches(self, size: int) -> Iterator[Batch]:
        """Yield batches of at most `size` samples."""
        for start in range(0, len(self.ids), size):
            part = self.rows(slice(start, start + size)) if size < len(self.ids) else self
            if self.recorder:
                yield self.recorder.batch(part.arrays, part.ids, part.keys, self.prepare)
                continue
            doing.at(PREPARING)
            yield Batch(self.prepare(part.arrays, part.keys), part.ids)

    def passes(self, size: int, together: bool) -> Iterator[Pass]:
        """Yield the micro-batches: at least one, and for ranks that work `together` as many as the fullest rank has,
        the missing ones blank."""
        own = -(-len(self.ids) // size)
        count = max(1, -(-self.most // size) if together else own)
        for number, batch in enumerate(self.micro_batches(size), 1):
            yield Pass(batch, number == count, False, self.size)
        for number in range(own + 1, count + 1):
            yield Pass(self._blank(), number == count, True, self.size)

    def _blank(self) -> Batch:
        """Return a batch of one sample that takes part in collectives and must not count. The sample is one of the
        rank's, or of zeros if there is none: with zeros, what divides by a sample's norm has gradients of NaN, whatever
        the loss is multiplied by."""
        arrays = self.recorder.gathered(self.arrays) if self.recorder else self.arrays
        known = {name: array[:1] for name, array in arrays.items()} if len(self.ids) else self.spare or {}
        one = {name: _like(array, known.get(name)) for name, array in arrays.items()}
        none = np.zeros(1, np.int64)
        doing.at(PREPARING)
        return Batch(self.prepare(one, none), none)


class Loader:
    """Load one rank's part of the global batches of a split.

    Args:
        data: the source, for its crop, augmentation and normalisation.
        index: the split's samples.
        reader: where their arrays come from.
        batch: size of the global batch.
        train: whether to shuffle and augment.
        memory_format: the memory layout of the images that the model sees.
        shards: the number of shards of the rank's part of a batch; None does not cut it.
        on_device: whether to keep all arrays on the device; by default on a GPU with enough memory.
        sampler: which samples an epoch has, in training.
    """

    def __init__(
        self,
        data: Data,
        index: Index,
        reader: Reader,
        batch: int,
        seed: int,
        rank: int,
        world: int,
        device: torch.device,
        train: bool,
        memory_format: torch.memory_format = torch.contiguous_format,
        shards: int | None = None,
        on_device: bool | None = None,
        sampler: Sampler = Sampler(),
    ):
        self.epochs = 1
        """Epochs of the run, on which the size of images may depend; its trainer sets the number."""
        self.data, self.reader, self.seed, self.device, self.train = data, reader, seed, device, train
        self.draw = drawing(sampler, index) if train else None
        size = sampler.size(index) if train else len(index)
        self.shard, self.cut = order.Shard(size, batch, rank, world, shards or 1), shards is not None
        self.labels = index.labels
        self.prepare = Prepare(data, index, device, memory_format, cropped=train and data.whole)
        self.recorder: Recorder | None = None
        self.records = False
        """Whether full batches are left to the recorder."""
        self._spare: Tensors | None = None
        self._side: torch.cuda.Stream | None = None
        self._pinned = Pinned(device)
        self.on_device: Tensors | None = None
        if isinstance(reader, Resident) and (fits_device(reader.bytes, device) if on_device is None else on_device):
            self.on_device = {name: torch.tensor(array, device=device) for name, array in reader.whole().items()}
            if index.labels is not None:
                self.on_device["label"] = torch.tensor(index.labels, device=device)

    def __len__(self) -> int:
        """Samples of an epoch."""
        return self.shard.n

    @property
    def steps(self) -> int:
        """Steps of an epoch."""
        return self.shard.steps

    def record(self) -> str:
        """Leave full batches to be gathered and prepared by a graph, or when their arrays are first asked for, if that
        can be. Return why it cannot; empty where it can."""
        reason = why_not(self.prepare)
        if self.on_device is None:
            reason = "the samples are not in the GPU's memory"
        elif not reason:
            self.recorder, self.records = Recorder(self.prepare, self.on_device), True
        return reason

    def epoch(self, number: int, first_step: int = 0) -> Iterator[Loaded]:
        """Yield the steps of an epoch from `first_step` on."""
        way = Epoch(self.shard, self.seed, number if self.train else None, first_step, self.draw, self.epochs)
        augmented = self.train and self.data.augment.changes
        for step, (ids, arrays) in enumerate(self._ahead(self._batches(way)), first_step):
            size = self.shard.size(step)
            # No mixing in a short batch: its split over the ranks may separate a pair.
            prepare = self._augmented(number, mixed=size == self.shard.batch) if augmented else self.prepare.evaluated
            most, first = -(-size // self.shard.world), self.shard.rank * self.shard.parts
            cuts = self.shard.cuts(step) if self.cut else None
            recorder = self.recorder if ROWS in arrays else None
            if self._spare is None and len(ids) and self.shard.world > 1:
                self._spare = {name: array[:1].clone() for name, array in arrays.items()}
            keys = way.keys(step, ids)
            yield Loaded(step, size, ids, keys, arrays, prepare, most, first, cuts, recorder, self._spare)

    def _batches(self, way: Epoch) -> Iterator[tuple[np.ndarray, Tensors]]:
        """Yield (ids, arrays) of each step, on the device."""
        if self.on_device is not None:
            for step, ids, chosen in self._chosen(way):
                if chosen.dim() == 1:
                    yield ids, {name: array.index_select(0, chosen) for name, array in self.on_device.items()}
                elif self.recorder and not (self.records and self.shard.size(step) == self.shard.batch):
                    yield ids, self.recorder.gathered({ROWS: chosen})
                else:
                    yield ids, {ROWS: chosen}
        elif self.device.type == "cuda":
            yield from self._pinned.batches(self._labelled(self.reader.read(way)), self._copy)
        else:
            for ids, arrays in self._labelled(awaited(self.reader.read(way))):
                doing.at(MOVING)
                yield ids, {name: torch.from_numpy(array) for name, array in arrays.items()}

    def _chosen(self, way: Epoch) -> Iterator[tuple[int, np.ndarray, torch.Tensor]]:
        """Yield each step with its samples, on the host and on the device, there as rows if a recorder wants these. The
        device gets those of many steps at once: most steps neither pin memory nor copy to the device."""
        coming = enumerate(way.steps(), way.first_step)
        while some := list(itertools.islice(coming, _STEPS)):
            found = np.concatenate([ids for _, ids in some])
            if self.recorder and self.records and way.number is not None:
                keys = np.concatenate([way.keys(step, ids) for step, ids in some])
                found = self.recorder.rows(found, keys, self.seed, way.number)
            chosen = moved(torch.from_numpy(found), self.device)
            for (step, ids), part in zip(some, chosen.split([len(ids) for _, ids in some]), strict=True):
                yield step, ids, part

    def _labelled(self, batches: Iterator[tuple[np.ndarray, Arrays]]) -> Iterator[tuple[np.ndarray, Arrays]]:
        """Yield the same with the labels, where the samples have some."""
        for ids, arrays in batches:
            yield ids, arrays if self.labels is None else {**arrays, "label": self.labels[ids]}

    def _copy(self, pinned: Tensors) -> tuple[Tensors, Any]:
        """Begin to copy a batch to the GPU; return the copies, and an event after them."""
        doing.at(MOVING)
        copies = {name: tensor.to(self.device, non_blocking=True) for name, tensor in pinned.items()}
        return copies, torch.cuda.current_stream(self.device).record_event()

    def _ahead(self, batches: Iterator[tuple[np.ndarray, Tensors]]) -> Iterator[tuple[np.ndarray, Tensors]]:
        """Copy the next batch to a GPU on a separate stream while the model computes with this one; what is there
        already needs no stream, whose switches take the host longer than the GPU gathers."""
        if self.device.type != "cuda" or self.on_device is not None:
            yield from batches
            return
        if self._side is None:  # once: each stream keeps memory of its own
            self._side = torch.cuda.Stream(self.device)
        side, ready = self._side, None
        while True:
            with torch.cuda.stream(side):
                following = next(batches, None)
                copied = side.record_event()
            if ready is not None:
                (ids, arrays), event = ready
                current = torch.cuda.current_stream(self.device)
                current.wait_event(event)
                for array in arrays.values():
                    array.record_stream(current)  # its memory is not reused before this stream is done with it
                yield ids, arrays
            if following is None:
                return
            ready = following, copied

    def _augmented(self, epoch: int, mixed: bool) -> Callable[[Tensors, np.ndarray], Tensors]:
        return partial(self.prepare.augmented, seed=self.seed, epoch=epoch, mixed=mixed, epochs=self.epochs)


def _like(array: torch.Tensor, one: torch.Tensor | None) -> torch.Tensor:
    """Return the array of one sample, [1, ...]: `one` if it is as the others of this batch, else zeros."""
    if one is not None and (one.shape[1:], one.dtype) == (array.shape[1:], array.dtype):
        return one
    return array.new_zeros((1, *array.shape[1:]))


@cache
def keep_memory() -> None:
    """Make this process keep freed memory for the next batch. glibc returns large blocks to the system, which fills
    each new one with zeros: for 64 images of 224 x 224 that takes longer than normalising them."""
    with contextlib.suppress(OSError, AttributeError):  # another C library
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_MAX, 0)
        libc.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)


def return_memory() -> None:
    """Make this process return each large block that it frees. By default glibc keeps blocks of up to 32 MiB once such
    have been freed, and between them what a sharded model has gathered and dropped takes several times its size."""
    with contextlib.suppress(OSError, AttributeError):  # another C library
        libc = ctypes.CDLL(None)
        for setting, value in ((_M_MMAP_MAX, 65536), (_M_MMAP_THRESHOLD, 1 << 20), (_M_TRIM_THRESHOLD, 1 << 17)):
            libc.mallopt(setting, value)


def fits_device(size: int, device: torch.device) -> bool:
    """Return whether a split's arrays, of `size` bytes, are kept on the device."""
    return device.type == "cuda" and size <= _DEVICE_SHARE * _free(device)


def _free(device: torch.device) -> float:
    """Return the bytes that this process can still allocate on a GPU: free memory and memory that the allocator keeps
    for reuse, up to the process's limit."""
    free, total = torch.cuda.mem_get_info(device)
    taken = torch.cuda.memory_allocated(device)
    kept = torch.cuda.memory_reserved(device) - taken
    return min(free + kept, torch.cuda.get_per_process_memory_fraction(device) * total - taken)
