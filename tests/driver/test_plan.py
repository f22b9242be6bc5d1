"""plan: what a run would be laid out as, and what cannot work, before anything starts."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import nn

from raytrain import (
    CNN,
    DDP,
    FSDP,
    MLP,
    SGD,
    Adam,
    AdamW,
    BadSample,
    Batch,
    Checkpoint,
    Classification,
    Data,
    Deterministic,
    Digits,
    Experiment,
    Index,
    Mixed,
    Model,
    ModelParallel,
    Optimizer,
    Parallel,
    Pipeline,
    Scaling,
    SimpleModel,
    Task,
    TensorParallel,
    TorchModel,
    Torchvision,
    UserError,
)
from raytrain.checkpoint import checkpoints
from raytrain.driver import plan, resources
from raytrain.driver.plan import Plan
from raytrain.driver.resources import Node, Resources
from raytrain.files import size
from raytrain.machine import host_cpus


def nodes(*cpus: float, gpus: float = 0.0, memory: int = 8 << 30) -> Resources:
    """Nodes with so many CPUs each, and as many GPUs."""
    return Resources(tuple(Node(f"n{n}", count, gpus, memory) for n, count in enumerate(cpus)), "this machine")


SMALL = nodes(2)


def make(found: Resources = SMALL, **fields: Any) -> Plan:
    experiment = Experiment(**{"model": SimpleModel(), "data": Digits(), "batch_size": 60} | fields)
    return plan.make(experiment, lambda: found, "runs/x-N")


def text(planned: Plan, name: str) -> str:
    return "; ".join(said for line, said in planned.lines() if line == name)


# CPUs, GPUs, threads


@pytest.mark.parametrize(
    ("cpus", "workers", "share"),
    [(2, 1, 1.0), (2, 2, 0.5), (2, 3, 0.33), (2, 4, 0.25), (1, 1, 0.5), (1, 2, 0.25), (4, 3, 1.0), (4, 4, 0.75)],
)
def test_cpus_are_shared_out_and_one_stays_with_ray_data(cpus: int, workers: int, share: float) -> None:
    planned = make(nodes(cpus), scaling=Scaling(workers=workers), batch_size=12)
    assert planned.experiment.scaling.cpus_per_worker == share
    assert cpus - workers * share >= min(1, cpus / 2)
    assert planned.experiment.scaling.gpus_per_worker == 0


@pytest.mark.parametrize(("cpus", "workers", "most"), [(2, 5, 4), (2, 1000, 4), (1, 3, 2), (8, 29, 28)])
def test_too_many_workers_names_the_most_that_fit(cpus: int, workers: int, most: int) -> None:
    found = nodes(cpus)
    with pytest.raises(UserError, match=rf"asks for {workers} workers and the cluster has {most}, in scaling.workers"):
        make(found, scaling=Scaling(workers=workers), batch_size=workers)
    make(found, scaling=Scaling(workers=most), batch_size=most)
    with pytest.raises(UserError, match=f"asks for {most + 1} workers and the cluster has {most}, in"):
        make(found, scaling=Scaling(workers=most + 1), batch_size=most + 1)


def test_explicit_cpus_leave_one_for_streaming() -> None:
    streamed = Digits(mode="streaming")
    planned = make(nodes(4), scaling=Scaling(workers=2, cpus_per_worker=1.5), data=streamed)
    assert planned.experiment.scaling.cpus_per_worker == 1.5
    two = Scaling(workers=2, cpus_per_worker=2)
    with pytest.raises(UserError, match=r"2 workers of 2 CPUs leave no CPU of n0 \(4 CPUs\) to Ray Data, .*resident"):
        make(nodes(4), scaling=two, data=streamed)
    assert make(nodes(4), scaling=two).experiment.scaling.cpus_per_worker == 2, (
        "Ray Data reads before the workers start"
    )
    assert make(nodes(2, 2, 1), scaling=two, data=streamed).experiment.scaling.cpus_per_worker == 2
    make(SMALL, scaling=Scaling(workers=10, cpus_per_worker=0.1), data=streamed)


@pytest.mark.parametrize(
    ("cpus", "scaling", "holds"),
    [
        ((3, 3), Scaling(cpus_per_worker=4), "none"),
        ((2, 2, 2), Scaling(workers=2, cpus_per_worker=3), "none"),
        ((3, 3), Scaling(workers=3, cpus_per_worker=2), "2"),
    ],
)
def test_a_worker_needs_one_node_and_not_the_sum_of_them(cpus: tuple[int, ...], scaling: Scaling, holds: str) -> None:
    with pytest.raises(UserError, match=rf"cannot be placed: each needs one node, and n0 .*hold {holds}, in scaling"):
        make(nodes(*cpus), scaling=scaling)


def test_gpus_of_a_worker_are_on_one_node() -> None:
    with pytest.raises(
        UserError, match=r"1 worker of 2 GPUs cannot be placed: .*in scaling.gpus_per_worker; request less"
    ):
        make(nodes(4, 4, gpus=1), scaling=Scaling(gpus_per_worker=2))
    both = Scaling(workers=2, gpus_per_worker=1, cpus_per_worker=4)
    with pytest.raises(UserError, match=r"of 4 CPUs and 1 GPUs cannot .*scaling.cpus_per_worker and scaling.gpus_per"):
        make(nodes(4, 3, gpus=1), scaling=both)
    assert make(nodes(4, 4, gpus=1), scaling=both).experiment.scaling.cpus_per_worker == 4


@pytest.mark.parametrize("placement", ["pack", "spread"])
@pytest.mark.parametrize(
    ("cpus", "workers"),
    [((2, 2), 4), ((1,), 1), ((1,), 2), ((1, 1), 1), ((1, 1), 2), ((2, 2), 1), ((8, 1, 1), 9), ((1, 1, 1, 1), 10)],
)
def test_streaming_leaves_ray_data_a_part_of_a_cpu(cpus: tuple[int, ...], workers: int, placement: Any) -> None:
    scaling = Scaling(workers=workers, placement=placement)
    planned = make(nodes(*cpus), scaling=scaling, data=Digits(mode="streaming"), batch_size=workers)
    each = planned.experiment.scaling.cpus_per_worker or 0
    assert 0.25 <= each <= 1
    counts = nodes(*cpus).placed(workers, each, 0.0, placement == "spread")
    assert sum(counts) == workers
    assert max(has - count * each for has, count in zip(cpus, counts, strict=True)) >= 0.25


@dataclass(frozen=True)
class Threads(Digits):
    """Digits that threads of each worker read."""

    @property
    def direct(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("cpus", "scaling", "threads"),
    [
        ((8,), Scaling(), 8),
        ((8,), Scaling(workers=3), 2),
        ((8, 4), Scaling(workers=2, placement="spread"), 4),
        ((2, 2), Scaling(), 2),  # no more CPUs elsewhere than here
        ((2,), Scaling(workers=4, cpus_per_worker=0.5), 1),  # none need stay free
        ((2, 8), Scaling(cpus_per_worker=2), 8),
        ((2, 2, 2), Scaling(), 0),
    ],
)
def test_threads_share_a_nodes_cpus_unless_more_are_elsewhere(
    cpus: tuple[int, ...], scaling: Scaling, threads: int
) -> None:
    planned = make(nodes(*cpus), scaling=scaling, data=Threads(mode="streaming"))
    assert planned.threads == threads
    said = (
        f"{threads} thread{'s' if threads > 1 else ''} of each worker, its share" if threads else "Ray Data: nodes wit"
    )
    assert f"images streamed by {said}" in text(planned, "memory")
    assert make(nodes(*cpus), data=Threads()).threads == 0 == make(nodes(*cpus), data=Digits(mode="streaming")).threads
    sweep = replace(planned, resources=replace(planned.resources, runs=2))
    assert sweep.threads <= max(1, threads)


def test_raw_samples_are_read_by_more_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Threads, "raw", True)
    planned = make(nodes(2), data=Threads(mode="streaming"))
    assert planned.threads == 2 and "images streamed by 8 threads of each worker" in text(planned, "memory")
    assert "share of" not in text(planned, "memory")


def test_workers_are_placed_as_ray_does_it() -> None:
    found = nodes(2, 4, 1)
    assert found.placed(3, 1.0, 0.0, spread=False) == [0, 3, 0]
    assert found.placed(6, 1.0, 0.0, spread=False) == [2, 4, 0]
    assert found.placed(3, 1.0, 0.0, spread=True) == [1, 1, 1]
    assert found.placed(6, 1.0, 0.0, spread=True) == [2, 3, 1]
    assert found.placed(9, 1.0, 0.0, spread=True) == [2, 4, 1], "two have no room"


@pytest.mark.parametrize(("gpus", "workers", "share"), [(0, 2, 0.0), (1, 2, 0.0), (2, 2, 1.0), (8, 2, 1.0)])
def test_gpus_are_taken_where_there_are_enough(gpus: int, workers: int, share: float) -> None:
    planned = make(nodes(2, gpus=gpus), scaling=Scaling(workers=workers))
    assert planned.experiment.scaling.gpus_per_worker == share
    assert ("of 1 GPU on" in text(planned, "workers")) == bool(share)


def test_more_gpus_than_there_are_are_refused() -> None:
    with pytest.raises(UserError, match=r"the run asks for 2 GPUs and the cluster has 1, in scaling.workers x"):
        make(nodes(2, gpus=1), scaling=Scaling(workers=2, gpus_per_worker=1))
    assert make(nodes(2, gpus=1), scaling=Scaling(workers=1, gpus_per_worker=0.5))
    with pytest.raises(UserError, match=r"2 workers of 0.5 GPU may share a GPU, .*not support, in scaling"):
        make(nodes(2, gpus=1), scaling=Scaling(workers=2, gpus_per_worker=0.5))
    assert make(nodes(2, gpus=8), scaling=Scaling(workers=2, gpus_per_worker=0)).experiment.scaling == Scaling(
        workers=2, gpus_per_worker=0, cpus_per_worker=0.5, threads_per_worker=1
    )


@pytest.mark.parametrize(
    ("cpus", "workers", "placement", "threads"),
    [
        ((2,), 2, "pack", 1),
        ((8,), 2, "pack", 4),
        ((4, 4), 2, "pack", 2),  # both are on one node
        ((4, 4), 2, "spread", 4),
        ((4, 4), 8, "pack", 1),
        ((8, 2), 3, "spread", 2),  # the threads of the smaller node
        ((2,), 4, "pack", 1),
    ],
)
def test_threads_are_a_node_s_cores_shared_by_its_workers(
    cpus: tuple[int, ...], workers: int, placement: Any, threads: int
) -> None:
    scaling = Scaling(workers=workers, placement=placement)
    planned = make(nodes(*cpus), scaling=scaling, batch_size=24)
    assert planned.experiment.scaling.threads_per_worker == threads
    fixed = make(nodes(*cpus), scaling=replace(scaling, threads_per_worker=3), batch_size=24)
    assert fixed.experiment.scaling.threads_per_worker == 3


def test_runs_that_share_the_nodes_share_their_cores() -> None:
    four = replace(nodes(8), runs=4)
    assert make(four, scaling=Scaling(workers=2)).experiment.scaling == Scaling(
        workers=2, gpus_per_worker=0, cpus_per_worker=0.87, threads_per_worker=1
    )


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_deterministic_has_one_thread_unless_set(workers: int) -> None:
    found = nodes(16)
    planned = make(found, scaling=Scaling(workers=workers), parallel=Deterministic())
    assert planned.experiment.scaling.threads_per_worker == 1
    fixed = make(found, scaling=Scaling(workers=workers, threads_per_worker=3), parallel=Deterministic())
    assert fixed.experiment.scaling.threads_per_worker == 3
    copies = f"{workers} worker" + ("s" if workers > 1 else "")
    assert text(planned, "batch") == f"{copies} x 15 micro-batch x {4 // workers} accumulation = 60 global"
    gradients = planned.state_bytes - make(found, scaling=Scaling(workers=workers)).state_bytes
    assert gradients == {1: 2, 2: 1, 4: 0}[workers] * 4 * planned.parameters[1]


def test_this_machine_is_counted_as_it_is() -> None:
    found = resources.local_resources()
    assert found.cpus == host_cpus() <= len(os.sched_getaffinity(0)) and found.gpus == torch.cuda.device_count()
    assert 2**28 < found.memory <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


# Memory


@dataclass(frozen=True)
class Blank(Data):
    """Black images in any number and of any shape."""

    count: int = 1000
    channels: int = 1
    side: int = 1024
    bad: int = 0

    def index(self) -> dict[str, Index]:
        def one(count: int, split: str) -> Index:
            shape = (self.channels, self.side, self.side)
            return Index(np.zeros(count, np.int64), ("a", "b"), shape, split, ignored=("notes.txt",))

        return {"train": one(self.count, "train"), "val": one(self.count // 10, "val"), "test": one(10**7, "test")}

    def read(self, index: Index, samples: np.ndarray) -> np.ndarray:
        return np.zeros((len(samples), *index.shape), np.uint8)

    def probe(self, index: Index) -> list[BadSample]:
        return [BadSample(f"{index.split}/{number}.jpg", "no image") for number in range(self.bad)]


@pytest.mark.parametrize(("memory", "mode"), [(4400 << 20, "resident"), (4396 << 20, "streaming")])
def test_auto_mode_is_resident_up_to_a_quarter_of_memory(memory: int, mode: str) -> None:
    found = nodes(2, memory=memory)
    planned = make(found, data=Blank())
    assert planned.mode == mode
    said = "images resident, 1.1 GiB per node" if mode == "resident" else "images streamed"
    assert said in text(planned, "memory")
    assert make(found, data=Blank(mode="streaming")).mode == "streaming"
    if mode == "streaming":
        with pytest.raises(UserError, match=r"resident needs 1,100 MiB and there are 1,099 MiB, in data.mode; use --d"):
            make(found, data=Blank(mode="resident"))


@pytest.mark.parametrize(
    ("optimizer", "slots"),
    [(SGD(), 0), (SGD(momentum=0.9), 1), (SGD(momentum=0.5, nesterov=True), 1), (Adam(), 2), (AdamW(), 2)],
)
def test_state_bytes_equal_torchs(optimizer: Optimizer, slots: int) -> None:
    planned = make(model=MLP(hidden=(50,)), optimizer=optimizer)
    count = 64 * 50 + 50 + 50 * 10 + 10
    assert planned.parameters == (count, count) and planned.state_bytes == 4 * count * (2 + slots)
    assert make(model=MLP(hidden=(50,)), optimizer=optimizer, ema_decay=0.9).state_bytes == 4 * count * (3 + slots)
    module = MLP(hidden=(50,)).build((1, 8, 8), 10)
    own = optimizer.build(module.parameters())
    module(torch.zeros(1, 1, 8, 8)).sum().backward()
    own.step()
    tensors = [*module.parameters(), *(p.grad for p in module.parameters())]
    tensors += [value for state in own.state.values() for value in state.values() if torch.is_tensor(value)]
    held = sum(t.numel() * t.element_size() for t in tensors if t is not None and t.dim() > 0)
    assert held == planned.state_bytes


def test_memory_line_of_a_sharded_model_is_per_copy() -> None:
    one, two = Scaling(workers=1), Scaling(workers=2)
    for parallel, scaling in ((FSDP(), one), (DDP(), two)):
        assert "optimizer state per worker;" in text(make(parallel=parallel, scaling=scaling), "memory")
    for parallel, held, whole in (
        (FSDP(), "15.8", "30.7 MiB more for a while (the largest block with its gradients)"),
        (TensorParallel(), "15.8", "15.3 MiB more for a while (the largest tensor)"),
        (Pipeline(), "30.7", "15.3 MiB more for a while (the largest tensor)"),
    ):
        said = text(make(model=MLP(hidden=(2000, 2000)), parallel=parallel, scaling=two), "memory")
        state = "31.7 MiB of weights, gradients and optimizer state per copy"
        assert said.startswith(f"{state}, at most {held} MiB of it on each worker and {whole};")


@dataclass(frozen=True)
class Frozen(Model):
    def build(self, sample: tuple[int, int, int], classes: int) -> nn.Module:
        module = MLP(hidden=(50,)).build(sample, classes)
        module.get_submodule("1").requires_grad_(False)
        return module


def test_frozen_parameters_take_weights_alone() -> None:
    planned = make(model=Frozen(), optimizer=Adam())
    assert planned.parameters == (3760, 510) and planned.state_bytes == 4 * (3760 + 3 * 510)
    assert text(planned, "model") == "Frozen, 3,760 parameters, 510 of them trained"


# lines


@pytest.mark.parametrize("fields", [{}, {"ema_decay": 0.9}, {"optimizer": AdamW()}, {"model": CNN(channels=(64, 64))}])
def test_a_checkpoint_is_as_large_as_the_plan_says(tmp_path: Path, fields: dict[str, Any]) -> None:
    e = make(**{"model": CNN(channels=(32,)), "optimizer": SGD(momentum=0.9)} | fields)
    module = e.experiment.model.build((1, 8, 8), 10)
    optimizer = e.experiment.optimizer.build(e.experiment.optimizer.groups(module))
    module(torch.zeros(2, 1, 8, 8)).sum().backward()
    optimizer.step()
    rest = {"optimizer": optimizer.state_dict()} | ({"ema": module.state_dict()} if "ema_decay" in fields else {})
    path = checkpoints.save(tmp_path, 1, module.state_dict(), rest, {})
    size = sum(file.stat().st_size for file in path.iterdir())
    assert e.checkpoint_bytes < size < 1.05 * e.checkpoint_bytes + 20_000


@pytest.mark.parametrize(
    ("settings", "epochs", "needs"),
    [
        (Checkpoint(), 9, 4),  # two, the best one, and one that is being written
        (Checkpoint(keep=5), 9, 7),
        (Checkpoint(keep_every=2), 9, 8),
        (Checkpoint(keep_every=10), 9, 4),
        (Checkpoint(keep=5, max_gib=2.5 / 1024), 9, 3.5),  # a checkpoint is 1 MiB
        (Checkpoint(max_gib=100.0), 9, 4),
    ],
)
def test_a_disk_without_room_for_the_checkpoints_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: Checkpoint, epochs: int, needs: float
) -> None:
    planned = make(checkpoint=settings, epochs=epochs, optimizer=SGD(momentum=0.0))
    planned = replace(planned, parameters=(1 << 18, 1 << 18))
    assert planned.checkpoint_bytes == 1 << 20
    free = int(needs * 2**20)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free, total=free + 1))
    planned.check_disk(tmp_path / "not" / "yet")
    free -= 1
    with pytest.raises(
        UserError, match=r"keeping the run's .* checkpoints needs .* MiB and there are .*; free some, or"
    ):
        planned.check_disk(tmp_path)
    (tmp_path / "checkpoints" / "step_00000001").mkdir(parents=True)
    (tmp_path / "checkpoints" / "step_00000001" / "model.safetensors").write_bytes(b"x")
    planned.check_disk(tmp_path)  # what a resumed run has there already


def test_room_for_a_small_models_checkpoints_is_in_kib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=3000, total=1 << 20))
    with pytest.raises(UserError, match=r"4 checkpoints needs [1-9]\d* KiB and there are 3 KiB, on the disk of"):
        make(model=CNN(channels=(8,))).check_disk(tmp_path)


def test_checkpoint_budget_holds_one_and_notes_a_second() -> None:
    one = make(model=CNN(channels=(64, 64))).checkpoint_bytes / 2**30
    with pytest.raises(UserError, match=r"one checkpoint needs .*, in checkpoint.max_gib; allow more"):
        make(model=CNN(channels=(64, 64)), checkpoint=Checkpoint(max_gib=one * 0.99))
    noted = make(model=CNN(channels=(64, 64)), checkpoint=Checkpoint(max_gib=one * 1.99)).notes
    assert noted[-1].startswith("checkpoint.max_gib has room for one checkpoint: the best one goes")
    assert not make(model=CNN(channels=(64, 64)), checkpoint=Checkpoint(max_gib=one * 2.01)).notes


def test_lines_show_the_arithmetic_of_the_batch() -> None:
    planned = make(scaling=Scaling(workers=2), batch_size=64, micro_batch_size=8, epochs=3)
    assert text(planned, "batch") == "2 workers x 8 micro-batch x 4 accumulation = 64 global"
    assert text(planned, "epochs") == "3 x 23 steps; about 719 samples per rank; fp32"
    assert planned.steps_per_epoch == 23 == -(-1438 // 64)
    assert text(make(batch_size=1438), "batch") == "1 worker x 1438 micro-batch x 1 accumulation = 1438 global"
    assert make(batch_size=1438).steps_per_epoch == 1 and make(batch_size=1437).steps_per_epoch == 2


def test_several_learning_rates_have_a_line() -> None:
    model = MLP(hidden=(50, 40))
    assert text(make(model=model, optimizer=SGD(lr=0.1)), "lr") == ""
    decayed = make(model=model, optimizer=SGD(lr=0.1, layer_decay=0.5))
    assert text(decayed, "lr") == "0.025 to 0.1 in 3 groups of parameters"
    factors = SGD(lr=0.1, lr_factors=(("1.*", 0.01),), decay_norms_and_biases=False)
    scaled = make(model=model, optimizer=factors, lr_scaling="linear", lr_batch_size=30)
    assert text(scaled, "lr") == "0.1 x 60/30 = 0.2; 0.002 to 0.2 in 4 groups of parameters"
    below = make(model=model, optimizer=SGD(lr=0.1, backbone_lr_factor=0.1), freeze=("1.*",))
    assert text(below, "lr") == "0.01 to 0.1 in 2 groups of parameters"
    assert text(below, "model").endswith("of them trained")


def test_parameters_that_are_trained_later_are_counted() -> None:
    model = MLP(hidden=(50, 40))  # 3,250, 2,040 and 410 parameters
    frozen = make(model=model, freeze=("1.*",), unfreeze_epoch=1, epochs=3)
    assert text(frozen, "model") == "MLP, 5,700 parameters, 2,450 of them trained, 2,040 not from the first epoch on"
    staged = make(model=model, unfreeze=((2, "1.*"),), epochs=3)
    assert text(staged, "model") == "MLP, 5,700 parameters, 3,250 not from the first epoch on"


def test_a_batch_larger_than_an_epoch_is_noted() -> None:
    samples = make().samples_per_epoch
    assert "a batch holds" not in text(make(batch_size=samples), "note")
    said = text(make(batch_size=samples + 1), "note")
    assert (
        f"a batch holds all {samples:,} samples of an epoch, which is one step: batch_size is {samples + 1:,}" in said
    )


def test_lines_say_what_is_trained_on_what_and_where() -> None:
    planned = make(scaling=Scaling(workers=2))
    assert text(planned, "model") == "SimpleModel, 870 parameters"
    assert text(planned, "data") == "Digits: 1,438 train, 359 val; 10 classes, images 1x8x8"
    assert text(planned, "workers") == "2 workers of 0.5 CPU, 1 thread on this machine (2 CPUs, 0 GPUs, 1 node)"
    assert text(planned, "run") == "runs/x-N"
    assert text(make(scaling=Scaling(workers=0)), "workers").startswith("this process (no workers) on")


def test_lines_list_ignored_files_and_skipped_samples() -> None:
    planned = make(data=Blank(on_bad_sample="skip", bad=2, side=8))
    assert text(planned, "ignored").split("; ")[0] == "1 file of train, hidden or without an image's suffix: notes.txt"
    assert text(planned, "skipped").split("; ")[0] == "2 of train cannot be read: train/0.jpg (no image) ..."
    with pytest.raises(UserError, match=r"cannot read sample: no image, train/0.jpg; repair or remove it"):
        make(data=Blank(bad=1, side=8))


# The model


@dataclass(frozen=True)
class Odd(Model):
    """A model that is made of one function."""

    what: str = ""

    def build(self, sample: tuple[int, int, int], classes: int) -> nn.Module:
        what = self.what

        class Net(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.head = nn.Linear(64, classes + (what == "head"))
                self.register_buffer("ready", torch.from_numpy(np.ones(1, np.float32)))
                self.requires_grad_(what != "frozen")

            def forward(self, images: torch.Tensor) -> Any:
                if what == "reads values" and float(images.abs().max()) > 1e9:
                    raise AssertionError
                if what == "raises":
                    raise KeyError("my reason\nover two lines")
                outputs = self.head(images.flatten(1)) * self.ready
                if what == "a number":
                    return outputs.sum()
                if what == "two":
                    return outputs, images
                return {"logits": outputs} if what == "no tensor" else outputs

        return Net()


@pytest.mark.parametrize(
    ("what", "message"),
    [
        (
            "head",
            r"it gives \[1, 11\] .* has 10 classes, in Odd \(.*test_plan.py:\d+\); let its last layer have 10 outputs",
        ),
        ("no tensor", r"the model returns a dict of logits, and the task takes a tensor, in Odd .*self.net"),
        ("two", r"returns a tuple of Tensor, Tensor, and the task takes a tensor, in Odd .*self.net\(images\)\[0\]"),
        ("a number", r"it gives \[\] for one sample and the data has 10 classes, in Odd"),
        ("frozen", r"the model has no parameter that requires a gradient, in Odd"),
        (
            "raises",
            r"the model cannot take a sample of this data: KeyError: .*over two.*, .*test_plan.py:\d+; make build",
        ),
    ],
)
def test_a_model_that_cannot_be_trained_is_refused_in_one_line(what: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        make(model=Odd(what))
    assert "\n" not in str(caught.value)


class Lit(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(64, 10)

    def training_step(self, batch: Any, number: int) -> torch.Tensor:
        return self.net(batch[0].flatten(1)).sum()


def test_a_lightning_module_is_named() -> None:
    message = (
        r"cannot take a sample of this data: NotImplementedError.*; Lit is a LightningModule: give the nn.Module in"
    )
    with pytest.raises(UserError, match=message):
        make(model=TorchModel(Lit))


class First(nn.Module):
    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.model(images)[0]


@dataclass(frozen=True)
class TakesTheFirst(Classification):
    def loss(self, model: nn.Module, batch: Batch) -> tuple[torch.Tensor, int]:
        return super().loss(First(model), batch)

    def sums(self, model: nn.Module, batch: Batch) -> dict[str, torch.Tensor]:
        return super().sums(First(model), batch)


def test_a_loss_of_ones_own_may_take_several_outputs() -> None:
    assert make(model=Odd("two"), task=TakesTheFirst()).parameters == (650, 650)


@pytest.mark.parametrize("what", ["", "reads values"])
def test_model_that_fails_on_meta_is_tried_on_the_cpu(what: str) -> None:
    assert make(model=Odd(what)).parameters == (650, 650)


@dataclass(frozen=True)
class Fixed(Model):
    dtype: Any = None

    def build(self, sample: tuple[int, int, int], classes: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(784, classes))


def test_an_experiment_that_no_run_could_keep_is_refused() -> None:
    @dataclass(frozen=True)
    class Inner(Model):
        pass

    with pytest.raises(UserError, match=r"class Inner is defined inside a function.*; move it to the top level"):
        make(model=Inner())
    with pytest.raises(UserError, match=r"cannot be saved as JSON: Object of type dtype .*; let fields hold numbers"):
        make(model=Fixed(dtype=torch.float32))


def test_a_model_for_another_shape_is_refused_with_torchs_reason() -> None:
    with pytest.raises(UserError, match=r"this data: RuntimeError: .*64.*784.*, in Fixed .*\(1, 8, 8\)"):
        make(model=Fixed())


def test_planning_allocates_no_model_and_keeps_random_state() -> None:
    before = torch.random.get_rng_state()
    planned = make(model=MLP(hidden=(200_000, 200_000)))
    assert planned.parameters[0] == 64 * 200_000 + 200_000 + 200_000**2 + 200_000 + 200_000 * 10 + 10
    assert torch.equal(before, torch.random.get_rng_state())


@dataclass(frozen=True)
class Squared(Task):
    def loss(self, model: nn.Module, batch: Batch) -> tuple[torch.Tensor, int]:
        return model(batch.images).square().sum(), len(batch)


def test_another_task_takes_any_output() -> None:
    assert make(model=Odd("head"), task=Squared()).parameters[0] == 715
    with pytest.raises(UserError, match="the model's head does not fit the classes"):
        make(model=Odd("head"), task=Classification())


def test_weights_are_checked_for_new_runs_only(tmp_path: Path) -> None:
    model = Torchvision(name="squeezenet1_1", weights=str(tmp_path / "gone.pth"))
    experiment = Experiment(model=model, data=Blank(channels=3, side=64))
    with pytest.raises(UserError, match="no such weights file"):
        plan.make(experiment, lambda: SMALL, "x")
    assert plan.make(experiment, lambda: SMALL, "x", resumed=True).parameters[0] > 700_000


def test_resources_are_asked_for_last() -> None:
    """To count GPUs takes seconds: a mistake is told before."""
    with pytest.raises(UserError, match="cannot take a sample"):
        plan.make(Experiment(model=Odd("raises"), data=Digits()), lambda: pytest.fail("too early"), "x")


# Memory format


@dataclass(frozen=True)
class Viewing(Model):
    """Calls view() after its convolution, as tutorials do: impossible in channels_last."""

    def build(self, sample: tuple[int, int, int], classes: int) -> nn.Module:
        class Net(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.conv, self.head = nn.Conv2d(sample[0], 4, 3, padding=1), nn.Linear(4 * sample[1] ** 2, classes)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                x = self.conv(x)
                return self.head(x.view(len(x), -1))

        return Net()


@pytest.mark.parametrize(
    ("model", "asked", "taken"),
    [
        (CNN(channels=(8,)), "auto", "channels_last"),
        (CNN(channels=(8,)), "contiguous", "contiguous"),
        (CNN(channels=(8,)), "channels_last", "channels_last"),
        (MLP(hidden=(8,)), "auto", "contiguous"),
        (Viewing(), "auto", "contiguous"),
        (Viewing(), "contiguous", "contiguous"),
    ],
)
def test_channels_last_is_taken_for_convolutions_that_can(model: Model, asked: str, taken: str) -> None:
    assert make(model=model, memory_format=asked).experiment.memory_format == taken


def test_channels_last_is_refused_where_the_model_cannot() -> None:
    with pytest.raises(UserError, match="RuntimeError with channels_last, in Viewing; use --memory_format contiguous"):
        make(model=Viewing(), memory_format="channels_last")


def test_compiling_without_a_compiler_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setattr(plan.shutil, "which", lambda name: None)
    with pytest.raises(UserError, match="needs a C\\+\\+ compiler and there is none"):
        make(compile=True)


# Learning rates that follow the batch


@pytest.mark.parametrize(
    ("scaling", "says"), [("none", ""), ("linear", "0.1 x 60/15 = 0.4"), ("sqrt", "0.1 x sqrt(60/15) = 0.2")]
)
def test_the_learning_rate_is_said_where_it_follows_the_batch(scaling: str, says: str) -> None:
    assert text(make(lr_scaling=scaling, lr_batch_size=15), "lr") == says


@pytest.mark.parametrize("scaling", ["linear", "sqrt"])
def test_lr_scaling_needs_lr_batch_size(scaling: str) -> None:
    with pytest.raises(UserError, match=f"lr_scaling {scaling} needs lr_batch_size, .*; add --lr_batch_size N"):
        make(lr_scaling=scaling)
    with pytest.raises(UserError, match="lr_batch_size = 0 is out of range"):
        make(lr_scaling=scaling, lr_batch_size=0)
    assert make(lr_batch_size=15).experiment.lr == 0.1


# GPUs' memory


@pytest.mark.parametrize(
    ("parallel", "precision", "gib", "said"),
    [
        # 0.56 GiB of weights; 2.23 GiB with gradients and AdamW's state
        (DDP(), "fp32", 2, "what DDP has of weights, gradients and optimizer state on a GPU needs 2,"),
        (DDP(), "fp32", 3, None),
        (FSDP(), "fp32", 1, "what FSDP has of weights, gradients and optimizer state on a GPU needs 1,"),
        (FSDP(), "fp32", 2, "what FSDP has on a GPU together with the largest block with its gradients, whole there"),
        (FSDP(), "fp32", 3, None),
        (FSDP(), "auto", 1, "what FSDP has of weights, gradients and optimizer state on a GPU needs 1,"),
        (FSDP(cpu_offload=True), "fp32", 1, "what FSDP has on a GPU together with the largest block"),
        (FSDP(cpu_offload=True), "fp32", 2, None),
        (TensorParallel(), "fp32", 1, "what TensorParallel has of weights"),
        (Pipeline(), "fp32", 1, "what Pipeline has of weights"),
        (ModelParallel(), "fp32", 1, "what ModelParallel has of weights"),
    ],
)
def test_what_cannot_fit_on_the_smallest_gpu_is_refused(
    parallel: Parallel, precision: Literal["fp32", "auto"], gib: int, said: str | None
) -> None:
    found = replace(nodes(8, gpus=4), gpu_memory=lambda: gib << 30)
    gpus = 2.0 if isinstance(parallel, ModelParallel) else 1.0
    fields = {"parallel": parallel, "precision": precision, "scaling": Scaling(workers=2, gpus_per_worker=gpus)}
    fields |= {"model": MLP(hidden=(12_000, 12_000)), "optimizer": AdamW(), "batch_size": 64}
    if said is None:
        assert make(found, **fields).experiment.parallel == parallel
        return
    with pytest.raises(UserError, match=re.escape(said)) as refused:
        make(found, **fields)
    assert f"there are {gib * 1024:,} MiB, on the smallest GPU; use " in str(refused.value)


def test_largest_block_of_a_sharded_model_must_fit_on_a_gpu() -> None:
    found = replace(nodes(64, gpus=16), gpu_memory=lambda: 1 << 30)
    fields = {"batch_size": 64, "optimizer": AdamW(), "scaling": Scaling(workers=16, gpus_per_worker=1.0)}
    fields |= {"model": MLP(hidden=(20_000, 20_000))}  # 0.4 GiB a worker, and a layer of 1.5 GiB
    with pytest.raises(UserError, match="with the largest block with its gradients, whole there for a while, needs 3,"):
        make(found, parallel=FSDP(), **fields)
    with pytest.raises(UserError, match="with the largest tensor, whole there for a while, needs 1,"):
        make(found, parallel=TensorParallel(), **fields)
    fields["model"] = MLP(hidden=(5_000,) * 13)  # 1.1 GiB of weights, whose gradients several passes keep whole
    assert make(replace(found, gpu_memory=lambda: 1 << 30), parallel=FSDP(), **fields)
    with pytest.raises(UserError, match="with the largest block and all gradients, whole there for a while, needs 1,"):
        make(found, parallel=FSDP(), micro_batch_size=2, **fields)


@pytest.mark.parametrize("model", [SimpleModel(), MLP(hidden=(12_000, 12_000))])
def test_gpu_memory_is_asked_only_where_it_matters(model: Model) -> None:
    asked = []
    found = replace(nodes(8, gpus=2), gpu_memory=lambda: asked.append(1))
    for gpus in (0.0, 1.0):
        make(found, model=model, optimizer=AdamW(), scaling=Scaling(workers=2, gpus_per_worker=gpus))
    assert len(asked) == (0 if isinstance(model, SimpleModel) else 1), "and what none can say is no reason to refuse"


def test_trials_that_share_a_gpu_have_a_share_of_its_memory() -> None:
    found = replace(nodes(8, gpus=1), gpu_memory=lambda: 4 << 30)
    fields = {"model": MLP(hidden=(12_000, 12_000)), "optimizer": AdamW()}
    assert make(found, scaling=Scaling(gpus_per_worker=1.0), **fields)
    with pytest.raises(UserError, match="and there are 1,536 MiB, on the smallest GPU"):
        make(found, scaling=Scaling(gpus_per_worker=0.5), **fields)


@pytest.mark.parametrize(
    ("listed", "count", "found"),
    [("81559\n81559\n", 2, 81559), ("2048\n81559\n", 1, 81559), ("2048\n81559\n", 2, 2048), ("[N/A]\n", 1, None)],
)
def test_the_smallest_gpu_is_one_of_those_that_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listed: str, count: int, found: int | None
) -> None:
    command = tmp_path / "nvidia-smi"
    command.write_text(f"#!/bin/sh\nprintf '{listed}'\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert resources.smallest_gpu(count) == (None if found is None else found * 2**20)
    command.write_text("#!/bin/sh\nexit 9\n")
    assert resources.smallest_gpu(count) is None


@pytest.mark.parametrize(
    ("count", "said"),
    [(0, "0 bytes"), (900, "900 bytes"), (4_416, "4.3 KiB"), (1_500_000, "1.4 MiB"), (2**40, "1024.0 GiB")],
)
def test_a_size_is_never_zero_of_a_larger_unit(count: int, said: str) -> None:
    assert size(count) == said


@dataclass(frozen=True)
class Noted(Digits):
    def index(self) -> dict[str, Index]:
        return {split: replace(index, notes=(f"of {split}",)) for split, index in super().index().items()}


def test_the_plan_shows_the_notes_of_the_training_samples() -> None:
    one = Noted()
    both = Mixed(sources=(one, one), mean=one.mean, std=one.std)
    assert make(data=one).notes == make(data=both).notes == ("of train",)
