"""The fast trainer and the stock one give the same runs, and neither leaves anything on a cluster."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import nn

import raytrain
from raytrain import CNN, MLP, SGD, Checkpoint, Digits, Experiment, Model, Run, Scaling
from raytrain.driver.endings import Interrupted, RunFailed
from raytrain.driver.ray_internals import own_node, ray_train, versions

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


@pytest.mark.slow
def test_the_fast_trainer_gives_the_run_of_the_stock_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ray.train.torch import TorchTrainer

    assert ray_train.trainer() is not TorchTrainer
    raytrain.train(BASE, out=str(tmp_path), name="fast", quiet=True)
    assert_nothing_is_left()
    monkeypatch.setattr(versions, "VERSION", "2.59")
    assert ray_train.trainer() is TorchTrainer
    raytrain.train(BASE, out=str(tmp_path), name="stock", quiet=True)
    assert weights(tmp_path / "fast") == weights(tmp_path / "stock")
    assert names(tmp_path / "fast") == names(tmp_path / "stock")
    assert_nothing_is_left()


def test_stock_trainer_replaces_a_missing_private_name(monkeypatch: pytest.MonkeyPatch) -> None:
    from ray.train.torch import TorchTrainer
    from ray.train.v2._internal.execution.controller import TrainController

    assert ray_train.trainer() is not TorchTrainer
    monkeypatch.delattr(TrainController, "get_result")
    assert ray_train.trainer() is TorchTrainer


def test_a_node_has_stock_processes_where_ray_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    from ray._private.node import Node

    stock = Node.start_monitor
    with own_node.small_node():
        assert Node.start_monitor is not stock
    assert Node.start_monitor is stock
    monkeypatch.setattr(versions, "VERSION", "2.59")
    with own_node.small_node():
        assert Node.start_monitor is stock


def test_error_of_a_rank_is_shown_with_rank_and_place(tmp_path: Path) -> None:
    message = r"^rank 1: ValueError: the cable is loose \(.*test_launch.py:\d+\)$"
    with pytest.raises(RunFailed, match=message) as failure:
        raytrain.train(replace(BASE, model=Fragile()), out=str(tmp_path), name="run", quiet=True)
    assert failure.value.rank == 1
    summary = Run(tmp_path / "run").summary
    assert summary["status"] == "failed" and "the cable is loose" in summary["error"] and summary["retry"] is False
    assert "the cable is loose" in (tmp_path / "run" / "logs" / "rank_1.log").read_text()
    assert_nothing_is_left()


def test_stop_ends_the_run_after_a_checkpoint(tmp_path: Path) -> None:
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
    from raytrain.driver.observe import Tail

    def poll(tail: Tail) -> None:
        if tail.path.is_file() and tail.path.stat().st_size:
            raise KeyboardInterrupt

    monkeypatch.setattr(Tail, "poll", poll)
    with pytest.raises(KeyboardInterrupt):
        raytrain.train(replace(BASE, epochs=10_000), out=str(tmp_path), name="run", quiet=True)
    assert_nothing_is_left()


COMPILER = """
import sys
import torch
from torch import nn
from raytrain import SGD, Adam, AdamW, Torchvision
from raytrain.driver.ray_internals import compiler

compiler.defer_compiler()
for optimizer in (SGD(momentum=0.9), Adam(), AdamW()):
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(36, 2))
    built = optimizer.build(model.parameters())
    for _ in range(2):
        model(torch.zeros(2, 3, 5, 5)).sum().backward()
        built.step()
        built.zero_grad()
    built.load_state_dict(built.state_dict())
deferred = isinstance(sys.modules["torch._dynamo"], compiler._Dynamo)
{access}
assert not isinstance(sys.modules["torch._dynamo"], compiler._Dynamo)
assert not isinstance(torch._dynamo, compiler._Dynamo)
print("deferred", deferred)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "access",
    [
        "torch._dynamo.utils.counters.clear()",
        "torch._dynamo.reset()",
        "import torch._dynamo.config; assert torch._dynamo.config.suppress_errors is False",
        "from torch._dynamo.utils import dynamo_timed",
        "assert torch.compile(lambda x: x + 1, backend='eager')(torch.ones(1)) == 2",
        "Torchvision(name='resnet18').build((3, 32, 32), 2)(torch.zeros(2, 3, 32, 32)).sum().backward()",
    ],
)
def test_deferred_compiler_is_imported_on_use(access: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", COMPILER.format(access=access)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "deferred True\n"), done.stderr
