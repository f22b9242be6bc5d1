"""The fast trainer and the stock one give the same runs, and neither leaves anything on a cluster."""

from __future__ import annotations

import hashlib
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import nn

import raytrain
from raytrain import CNN, MLP, SGD, Checkpoint, Digits, Experiment, Model, Run, Scaling, launch
from raytrain.fit import Interrupted, RunFailed

pytestmark = pytest.mark.usefixtures("cluster")

BASE = Experiment(
    model=CNN(channels=(8, 16)),
    data=Digits(),
    optimizer=SGD(lr=0.05, momentum=0.9),
    scaling=Scaling(workers=2, threads_per_worker=1),
    checkpoint=Checkpoint(every_steps=10),
    batch_size=64,
    epochs=2,
)


@dataclass(frozen=True)
class Fragile(Model):
    """Fails on one rank, some steps into the run."""

    def build(self, sample: tuple[int, int, int], classes: int) -> nn.Module:
        class Net(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner, self.calls = MLP(hidden=(8,)).build(sample, classes), 0

            def forward(self, images: torch.Tensor) -> torch.Tensor:
                self.calls += self.training
                if self.calls == 5 and torch.distributed.get_rank() == 1:
                    raise ValueError("the cable is loose")
                return self.inner(images)

        return Net()


def weights(run: Path) -> str:
    return hashlib.sha256((Run(run).checkpoint("last") / "model.safetensors").read_bytes()).hexdigest()


def left_on_the_cluster() -> list[str]:
    """Placement groups that hold resources, and resources that something holds."""
    import ray
    from ray.util import placement_group_table

    groups = [
        f"placement group {name} {group['state']}"
        for name, group in placement_group_table().items()
        if group["state"] != "REMOVED"
    ]
    free, total = ray.available_resources(), ray.cluster_resources()
    return groups + [f"{total['CPU'] - free.get('CPU', 0)} CPUs" for _ in (1,) if free.get("CPU", 0) != total["CPU"]]


def assert_nothing_is_left() -> None:
    deadline = time.monotonic() + 20
    while (left := left_on_the_cluster()) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not left


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_the_fast_trainer_gives_the_run_of_the_stock_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ray.train.torch import TorchTrainer

    assert launch.trainer() is not TorchTrainer
    raytrain.train(BASE, out=str(tmp_path), name="fast", quiet=True)
    assert_nothing_is_left()
    monkeypatch.setattr(launch, "VERSION", "2.59")
    assert launch.trainer() is TorchTrainer
    raytrain.train(BASE, out=str(tmp_path), name="stock", quiet=True)
    assert weights(tmp_path / "fast") == weights(tmp_path / "stock")
    assert names(tmp_path / "fast") == names(tmp_path / "stock")
    assert_nothing_is_left()


def test_the_stock_trainer_takes_over_where_a_private_name_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    from ray.train.torch import TorchTrainer
    from ray.train.v2._internal.execution.controller import TrainController

    monkeypatch.delattr(TrainController, "get_result")
    launch._fast.cache_clear()
    assert launch.trainer() is TorchTrainer


def test_a_node_has_stock_processes_where_ray_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    from ray._private.node import Node

    stock = Node.start_monitor
    with launch.small_node():
        assert Node.start_monitor is not stock
    assert Node.start_monitor is stock
    monkeypatch.setattr(launch, "VERSION", "2.59")
    with launch.small_node():
        assert Node.start_monitor is stock


def test_an_error_of_a_rank_ends_the_run_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match=r"^rank 1: ValueError: the cable is loose \(.*test_launch.py:\d+\)$"):
        raytrain.train(replace(BASE, model=Fragile()), out=str(tmp_path), name="run", quiet=True)
    assert_nothing_is_left()


def test_a_stop_ends_the_run_after_a_checkpoint_and_leaves_nothing(tmp_path: Path) -> None:
    stopping = threading.Thread(target=stop_when_it_trains, args=(tmp_path / "run",))
    stopping.start()
    with pytest.raises(Interrupted):
        raytrain.train(replace(BASE, epochs=10_000), out=str(tmp_path), name="run", quiet=True)
    stopping.join()
    assert Run(tmp_path / "run").summary["status"] == "interrupted"
    assert_nothing_is_left()


def stop_when_it_trains(run: Path) -> None:
    while not (run / "metrics.jsonl").is_file() or not (run / "metrics.jsonl").stat().st_size:
        time.sleep(0.05)
    (run / "stop").touch()


def test_a_second_interrupt_ends_the_workers_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from raytrain.observe import Tail

    def poll(tail: Tail) -> None:
        if tail.path.is_file() and tail.path.stat().st_size:
            raise KeyboardInterrupt

    monkeypatch.setattr(Tail, "poll", poll)
    with pytest.raises(KeyboardInterrupt):
        raytrain.train(replace(BASE, epochs=10_000), out=str(tmp_path), name="run", quiet=True)
    assert_nothing_is_left()
