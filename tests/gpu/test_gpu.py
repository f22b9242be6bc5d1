"""On a GPU: the command trains there by itself, in every precision, with the curve that a CPU gives."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.on_gpu import CPU, trained

from raytrain import CNN, SGD, Augment, Cosine, DataParallel, Deterministic, Digits, Experiment, Run

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
DIGITS = Path(__file__).parents[2] / "experiments" / "digits.py"


def train(folder: Path, name: str, *flags: str) -> Run:
    command = [sys.executable, "-m", "raytrain.cli", "train", str(DIGITS), "--out", str(folder), "--name", name]
    command += ["--scaling.workers", "1", "--epochs", "3", *flags]  # the last one counts
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=dict(os.environ))
    assert done.returncode == 0, done.stderr
    return Run(folder / name)


E = Experiment(
    CNN(channels=(32, 64)),
    Digits(augment=Augment(flip=0.5)),
    optimizer=SGD(lr=0.05, momentum=0.9),
    schedule=Cosine(warmup_epochs=1),
    epochs=3,
)


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16", "fp16"])
def test_a_gpu_trains_as_a_cpu_does(tmp_path: Path, precision: Any) -> None:
    gpu = trained(tmp_path / "gpu", replace(E, precision=precision))
    cpu = trained(tmp_path / "cpu", E, device=CPU)
    assert gpu.summary["device"] == "cuda" and cpu.summary["device"] == "cpu"
    there, here = (run.metrics()["train_loss"].to_pylist() for run in (gpu, cpu))
    assert there == pytest.approx(here, rel=0.02 if precision == "fp32" else 0.1)


def test_auto_tries_all_precisions_of_the_gpu(tmp_path: Path) -> None:
    run = trained(tmp_path / "auto", replace(E, precision="auto"))
    times = run.summary["precision_milliseconds"]
    assert set(times) - {"tf32", "bf16"} == {"fp32", "fp16"} and times[run.summary["precision"]] <= times["fp32"]


@pytest.mark.parametrize("parallel", [DataParallel(), Deterministic()], ids=["data_parallel", "deterministic"])
def test_a_strategy_of_one_gpu_trains_as_a_cpu_does(tmp_path: Path, parallel: Any) -> None:
    gpu = trained(tmp_path / "gpu", replace(E, parallel=parallel))
    cpu = trained(tmp_path / "cpu", E, device=CPU)
    there, here = (run.metrics()["train_loss"].to_pylist() for run in (gpu, cpu))
    assert there == pytest.approx(here, rel=0.02)


@pytest.mark.parametrize(
    ("gpus", "flags"),
    [
        (1, ["--graph", "on"]),
        (2, ["--graph", "on", "--scaling.workers", "2"]),
        (2, ["--parallel.strategy", "data_parallel", "--scaling.gpus_per_worker", "2"]),
        (2, ["--parallel.strategy", "model_parallel", "--scaling.gpus_per_worker", "2"]),
        (2, ["--scaling.workers", "2"]),
        (2, ["--parallel.strategy", "fsdp", "--scaling.workers", "2"]),
        (2, ["--parallel.strategy", "fsdp", "--scaling.workers", "2", "--parallel.cpu_offload"]),
        (2, ["--parallel.strategy", "pipeline", "--scaling.workers", "2"]),
        (2, ["--parallel.strategy", "tensor", "--scaling.workers", "2"]),
        (4, ["--parallel.strategy", "pipeline", "--parallel.stages", "2", "--scaling.workers", "4"]),
        (4, ["--parallel.strategy", "model_parallel", "--scaling.workers", "2", "--scaling.gpus_per_worker", "2"]),
    ],
    ids=lambda value: " ".join(value[1::2]) if isinstance(value, list) else str(value),
)
def test_workers_train_on_gpus_as_one_cpu_does(tmp_path: Path, gpus: int, flags: list[str]) -> None:
    if torch.cuda.device_count() < gpus:
        pytest.skip(f"needs {gpus} GPUs")
    gpu = train(tmp_path, "gpu", *flags)
    cpu = train(tmp_path, "cpu", "--scaling.gpus_per_worker", "0")
    assert gpu.summary["device"] == "cuda"
    there, here = (run.metrics()["train_loss"].to_pylist() for run in (gpu, cpu))
    assert there == pytest.approx(here, rel=0.02)
    notes = gpu.path / "logs" / "notes.log"
    assert not notes.is_file() or "not captured" not in notes.read_text()


SWEEP = """
from raytrain import MLP, SGD, Digits, Experiment, Grid, Scaling, Sweep

sweep = Sweep(
    experiment=Experiment(
        model=MLP(hidden=(64,)), data=Digits(), optimizer=SGD(lr=0.05), scaling=Scaling(gpus_per_worker=0.5), epochs=2
    ),
    axes=(Grid("precision", ("fp32", "bf16")), Grid("model.hidden", ((64,), (40_000, 40_000)))),
    memory_gib=2.0,
)
"""


def test_two_trials_share_a_gpu(tmp_path: Path) -> None:
    (tmp_path / "half.py").write_text(SWEEP)
    command = [sys.executable, "-m", "raytrain.cli", "sweep", str(tmp_path / "half.py"), "--out", str(tmp_path)]
    done = subprocess.run([*command, "--name", "half"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    answer = json.loads((tmp_path / "half" / "sweep.json").read_text())
    assert answer["concurrent"] == 2 * torch.cuda.device_count() or answer["concurrent"] == 4
    found = {(t["values"]["precision"], t["values"]["model.hidden"][0]): t for t in answer["trials"]}
    for (_, hidden), trial in found.items():
        assert trial["status"] == ("completed" if hidden == 64 else "infeasible"), trial
    assert found["fp32", 64]["peak_memory_bytes"] < 2**30 and "out of memory" in found["fp32", 40_000]["error"]
    assert Run(tmp_path / "half" / "trials" / "0000").summary["device"] == "cuda"


RANK = """
import json, sys, torch, torch.distributed as dist
from raytrain import DDP
rank, world, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
torch.cuda.set_device(device := torch.device("cuda", rank))
dist.init_process_group("nccl", init_method=f"file://{folder}/store-{world}", rank=rank, world_size=world)
torch.manual_seed(0)
module = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.BatchNorm2d(4)).to(device)
images = torch.randn(8, 1, 6, 6).to(device)
from raytrain.parallel.strategy import RankContext
strategy = DDP(sync_batchnorm=True).setup(lambda: module, RankContext(rank, world, device), (1, 1))
strategy.model(images.chunk(world)[rank]).square().mean().backward()
print(json.dumps([module[1].running_mean.tolist(), module[1].running_var.tolist(), module[0].weight.grad.sum().item()]))
dist.destroy_process_group()
"""


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_synchronised_batch_normalisation_sees_the_whole_batch(tmp_path: Path) -> None:
    found = {}
    for world in (1, 2):
        command = [sys.executable, "-c", RANK]
        ranks = [
            subprocess.Popen([*command, str(rank), str(world), str(tmp_path)], stdout=subprocess.PIPE)
            for rank in range(world)
        ]
        found[world] = [json.loads(rank.communicate(timeout=120)[0]) for rank in ranks]
    for one in found[2]:
        for value, expected in zip(one, found[1][0], strict=True):
            assert value == pytest.approx(expected, rel=1e-4, abs=1e-6)
