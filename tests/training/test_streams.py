"""The code for a GPU's streams, on a CPU: copies are made late, and nothing is read or changed before."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.ranks import new_run
from helpers.strategies import BASE
from helpers.streams import Streams
from torch import nn

from raytrain import CNN, Checkpoint, Experiment
from raytrain.checkpoint import layout
from raytrain.checkpoint.checkpoints import load_model, load_optimizer
from raytrain.data.checks import checked_read
from raytrain.data.loader import Loader
from raytrain.data.reader import Resident
from raytrain.parallel import host_copies
from raytrain.parallel.host_copies import HostCopies
from raytrain.parallel.strategy import RankContext
from raytrain.run.writer import CheckpointWriter
from raytrain.training.cuda_graph import own_stream
from raytrain.training.trainer import Trainer

CPU, GPU = torch.device("cpu"), torch.device("cuda")
E = replace(BASE, micro_batch_size=None, ema_decay=0.9, model=CNN(channels=(8,), batch_norm=True), epochs=1)


def read(e: Experiment) -> tuple[Any, Any]:
    indices = e.data.index()
    arrays = {split: checked_read(e.data, one, np.arange(len(one))) for split, one in indices.items()}
    return indices, {split: Resident(arrays[split]) for split in ("train", "val")}


def batches(loader: Loader) -> list[tuple[list[int], torch.Tensor, torch.Tensor]]:
    found = []
    for epoch in range(2):
        for one in loader.epoch(epoch):
            found.append((one.ids.tolist(), one.arrays["image"].clone(), one.arrays["label"].clone()))
    return found


def test_a_batch_is_used_when_its_copy_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    indices, readers = read(E)

    def loader() -> Loader:
        return Loader(E.data, indices["train"], readers["train"], 64, 0, 0, 1, CPU, train=True, on_device=False)

    plain = batches(loader())
    streams, other = Streams(monkeypatch), loader()
    other.device = GPU
    for mine, expected in zip(batches(other), plain, strict=True):
        assert mine[0] == expected[0] and torch.equal(mine[1], expected[1]) and torch.equal(mine[2], expected[2])
    assert streams.made == 1, "one stream for all epochs"
    assert streams.recorded == 2 * len(plain), "each array of each batch"
    assert streams.pinned == 4, "two buffers of each array, which all batches use again"
    assert loader().device == CPU and "_thread" not in vars(loader()._pinned), "a CPU has no thread for it"


def test_a_pass_that_ends_early_leaves_nothing_to_its_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    indices, readers = read(E)
    loader = Loader(E.data, indices["train"], readers["train"], 64, 0, 0, 1, CPU, train=True, on_device=False)
    plain = [one.arrays["image"].clone() for one in loader.epoch(0)]
    Streams(monkeypatch)
    loader.device = GPU
    for first in (0, 5, 20):
        steps = loader.epoch(0, first)
        for number in range(2):
            assert torch.equal(next(steps).arrays["image"], plain[first + number])
        steps.close()  # type: ignore[attr-defined]
    found = [one.arrays["image"].clone() for one in loader.epoch(0)]
    assert all(torch.equal(one, other) for one, other in zip(found, plain, strict=True))


def test_training_has_a_stream_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """It begins with what was computed before, and what comes after waits for it."""
    streams, done = Streams(monkeypatch), []
    streams.main.later(lambda: done.append("before"))
    with own_stream(GPU):
        assert streams.current is not streams.main and streams.made == 1
        streams.current.later(lambda: done.append("training"))
    assert streams.current is streams.main and done == ["before", "training"]
    with own_stream(CPU):
        assert streams.current is streams.main


def test_an_error_of_a_reader_reaches_training(monkeypatch: pytest.MonkeyPatch) -> None:
    indices, _ = read(E)

    class Broken:
        def read(self, epoch: Any) -> Any:
            yield next(epoch.steps()), {"image": np.zeros((64, 1, 8, 8), np.uint8)}
            raise OSError("the disk is gone")

    loader = Loader(E.data, indices["train"], Broken(), 64, 0, 0, 1, CPU, train=True)
    Streams(monkeypatch)
    loader.device = GPU
    with pytest.raises(OSError, match="the disk is gone"):
        list(loader.epoch(0))


def states(folder: Path, e: Experiment) -> dict[str, dict[str, Any]]:
    indices, readers = read(e)
    run = new_run(folder, e)
    Trainer(e, run, indices, readers, None, RankContext(0, 1, CPU), time.time()).fit()
    names = layout.committed(run / "checkpoints")
    return {
        name: {
            "model": load_model(run / "checkpoints" / name),
            "optimizer": load_optimizer(run / "checkpoints" / name),
        }
        for name in names
    }


def flat(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [one for key in value for one in flat(value[key])]
    return [one for each in value for one in flat(each)] if isinstance(value, list | tuple) else [value]


@pytest.mark.parametrize("small", [0, 500, 1 << 16])
def test_checkpoints_hold_the_state_of_their_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: int) -> None:
    monkeypatch.setattr(host_copies, "_SMALL", small)
    e = replace(E, checkpoint=Checkpoint(every_steps=3, keep=99))
    plain = states(tmp_path / "plain", e)
    streams = Streams(monkeypatch)
    monkeypatch.setattr(host_copies, "on_gpu", lambda tensor: True)
    monkeypatch.setattr(CheckpointWriter, "settle", lambda writer: None)  # it waits as long as it can
    late = states(tmp_path / "late", e)
    assert list(late) == list(plain) and len(plain) > 5 and streams.made == 1
    assert 0 < streams.pinned <= 4 * (len(plain) + 1), "the model and the rest, each of two types"
    for name, expected in plain.items():
        for mine, theirs in zip(flat(late[name]), flat(expected), strict=True):
            assert torch.equal(mine, theirs) if isinstance(theirs, torch.Tensor) else mine == theirs, name


def test_a_validation_waits_for_the_checkpoint_of_its_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    indices, readers = read(E)
    trainer = Trainer(E, new_run(tmp_path / "run", E), indices, readers, None, RankContext(0, 1, CPU), time.time())
    Streams(monkeypatch)
    monkeypatch.setattr(host_copies, "on_gpu", lambda tensor: True)
    with trainer.started():
        trainer.clock = time.monotonic()
        for loaded in islice(trainer.batches(), 5):
            trainer.losses.add(trainer.step(loaded))
        trainer.flush()
        expected = {name: weight.detach().clone() for name, weight in trainer.strategy.module.named_parameters()}
        trainer.save()
        trainer.evaluate()  # with the averages in place of the weights
        assert trainer.writer is not None
        trainer.writer.wait()
    (name,) = layout.committed(trainer.run.checkpoints)
    trained = load_optimizer(trainer.run.checkpoints / name)["ema"]["trained"]
    assert trained.keys() == expected.keys()
    for each, weight in expected.items():
        assert torch.equal(trained[each], weight), each


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> Streams:
    monkeypatch.setattr(host_copies, "on_gpu", lambda tensor: True)
    return Streams(monkeypatch)


@pytest.mark.parametrize("fenced", [True, False])
def test_without_the_fence_a_copy_would_be_of_what_came_later(
    streams: Streams, monkeypatch: pytest.MonkeyPatch, fenced: bool
) -> None:
    monkeypatch.setattr(host_copies, "_SMALL", 0)
    module = nn.BatchNorm1d(3)
    weight, buffer, copies = module.weight.detach(), module.running_mean, HostCopies(module, CPU)
    assert buffer is not None
    weight.fill_(1)
    buffer.fill_(1)
    found, kept = copies.begin([weight, buffer])
    if fenced:
        copies.fence()
    weight.fill_(2)
    buffer.fill_(2)  # as the next forward pass does, without waiting
    copies.wait()
    assert found.tolist() == [1.0 if fenced else 2.0] * 3 and kept.tolist() == [1.0] * 3
    assert streams.recorded == 1, "the buffer's copy on the GPU"


def test_copies_are_made_of_what_the_gpu_has_still_to_compute(
    streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_copies, "_SMALL", 0)
    weight, copies = torch.zeros(3), HostCopies(nn.Identity(), CPU)
    streams.main.later(lambda: weight.fill_(1))
    (found,) = copies.begin([weight])
    copies.wait()
    assert found.tolist() == [1.0] * 3


@pytest.mark.parametrize("small", [0, 64, 1 << 16])
def test_copies_of_a_model_take_one_block_for_each_type(
    streams: Streams, monkeypatch: pytest.MonkeyPatch, small: int
) -> None:
    monkeypatch.setattr(host_copies, "_SMALL", small)
    layout = torch.channels_last
    tensors = [torch.randn(size, 3, 2, 2).to(memory_format=layout) for size in range(5)]
    tensors += [torch.tensor(3.0), torch.arange(4), torch.tensor(7), torch.randn(6)[::2], torch.zeros(0, 2)]
    copies = HostCopies(nn.Identity(), CPU)
    found = copies.begin(tensors)
    assert (streams.made, streams.pinned) == (1, 2) and all(each.isnan().all() for each in found[:5])
    assert small <= 64 or streams.recorded == 2, "one copy of each type"
    copies.wait()
    for mine, theirs in zip(found, tensors, strict=True):
        assert mine.dtype == theirs.dtype and torch.equal(mine, theirs)
    assert [each.stride() for each in found[2:5]] == [each.stride() for each in tensors[2:5]]
    copies.begin(tensors)
    assert (streams.made, streams.pinned) == (1, 4)
