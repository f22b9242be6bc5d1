"""Code for GPUs, on a machine without one: what torch is told, and what the settings of a GPU make of it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from raytrain import CNN, DDP, FSDP, DataParallel, Digits, Experiment, ModelParallel, UserError
from raytrain.data import loader
from raytrain.parallel.materialise import Parts
from raytrain.parallel.pipeline_stages import Stages
from raytrain.parallel.replicas import Replicas
from raytrain.parallel.strategy import RankContext, Strategy
from raytrain.training import memory
from raytrain.training.trainer import Trainer

CPU = torch.device("cpu")
GPUS = [torch.device("cuda", number) for number in range(4)]
BASE = Experiment(model=CNN(channels=(4, 8)), data=Digits())


# DataParallel


@pytest.mark.parametrize(("chosen", "computed"), [(torch.float16, torch.float16), (None, torch.float32)])
def test_replicas_use_the_callers_precision(
    monkeypatch: pytest.MonkeyPatch, chosen: torch.dtype | None, computed: torch.dtype
) -> None:
    # The CPU's own default is bfloat16, which a thread would fall back to.
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: CPU)
    for name in ("current_stream", "device_index"):
        monkeypatch.setattr(torch.accelerator, name, lambda _: contextlib.nullcontext())
    monkeypatch.setattr(sys.modules["torch.nn.parallel.parallel_apply"], "_get_device_index", lambda *_: 0)
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda kind="cpu", asked=torch.is_autocast_enabled: asked(kind))
    module = nn.Linear(3, 2)
    wrapped = Replicas(module, [CPU])
    wrapped.src_device_obj, wrapped.device_ids = CPU, [0, 0]
    inputs = [(torch.randn(4, 3),), (torch.randn(4, 3),)]
    with torch.autocast("cpu", dtype=chosen or torch.bfloat16, enabled=chosen is not None):
        outputs = wrapped.parallel_apply([module, module], inputs, [{}, {}])
    assert [output.dtype for output in outputs] == [computed] * 2


def test_data_parallel_takes_the_worker_s_gpus_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    torchs = sys.modules["torch.nn.parallel.data_parallel"]
    monkeypatch.setattr(torchs, "_get_available_device_type", lambda: "cuda")
    monkeypatch.setattr(torchs, "_get_all_device_indices", lambda: [0, 1, 2, 3])
    monkeypatch.setattr(torchs, "_check_balance", lambda _: None)
    module = nn.Linear(3, 2)
    monkeypatch.setattr(nn.Module, "to", lambda self, device: self)
    strategy = DataParallel().setup(lambda: module, RankContext(0, 1, GPUS[1], (GPUS[2],)), (1, 1))
    assert isinstance(strategy.model, nn.DataParallel) and strategy.model.device_ids == [1, 2]
    for one in (CPU, GPUS[0]):
        strategy = DataParallel().setup(lambda: module, RankContext(0, 1, one), (1, 1))
        assert strategy.model is module, "visible GPUs are others'"


def test_data_parallel_refuses_to_be_compiled() -> None:
    with pytest.raises(UserError, match=r"torch\.compile does not work with DataParallel"):
        replace(BASE, parallel=DataParallel(), compile=True)


# Devices of a rank


def test_rank_without_ray_train_has_the_gpus_it_asked_for() -> None:
    assert RankContext.alone(0.0).devices == (CPU,) and RankContext.alone(None).devices == (CPU,)
    assert RankContext.alone(0.5).devices == (GPUS[0],)
    assert RankContext.alone(3.0, 1, 2) == RankContext(1, 2, GPUS[0], (GPUS[1], GPUS[2]))


def test_model_parallel_spreads_over_the_rank_s_own_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    filled: list[tuple[str, torch.device]] = []

    def fill(self: Parts, part: nn.Module, device: torch.device) -> None:
        filled.append((type(part).__name__, device))

    monkeypatch.setattr(Parts, "fill", fill)
    # Ray numbers a node's GPUs by their ids: a worker's need not follow each other.
    ranks = RankContext(0, 1, GPUS[1], (GPUS[3],))
    ModelParallel().setup(lambda: nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2)), ranks, (1, 1))
    assert filled == [("Linear", GPUS[1]), ("Linear", GPUS[3]), ("Sequential", GPUS[1])], "what is left comes last"


class Seeded(Trainer):
    """A trainer that has nothing but its rank."""

    def __init__(self, ranks: RankContext):
        self.ranks, self.experiment = ranks, BASE


def test_each_gpu_of_a_rank_is_seeded_with_numbers_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: dict[str, list[int]] = {}

    class Generator:
        def __init__(self, name: str):
            self.name = name

        def manual_seed(self, seed: int) -> None:
            seeds.setdefault(self.name, []).append(seed)

    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "default_generators", [Generator(f"cuda:{number}") for number in range(4)])
    worker = Seeded(RankContext(0, 1, GPUS[1], (GPUS[3],)))
    for step in range(2):
        worker.seed(1, step, 0)
    assert list(seeds) == ["cuda:1", "cuda:3"]
    assert len({seed for each in seeds.values() for seed in each}) == 4, "by step and by GPU"
    alone = Seeded(RankContext(0, 1, GPUS[1]))
    alone.seed(1, 0, 0)
    assert seeds["cuda:1"][-1] == seeds["cuda:1"][0], "whatever other GPUs there are"


def test_stages_of_a_pipeline_draw_numbers_of_their_own() -> None:
    for kind, number in ((Stages, 3), (Strategy, 1)):
        strategy = object.__new__(kind)
        strategy.ranks, strategy.replica = RankContext(3, 4, CPU), 1
        assert strategy.random_stream(0) == number


# Backends


def test_offloaded_parameters_have_a_backend_for_cpus_too() -> None:
    assert FSDP(cpu_offload=True).backend(gpus=True) == "cpu:gloo,cuda:nccl"
    assert FSDP().backend(gpus=True) == DDP().backend(gpus=True) == "nccl"
    assert FSDP().backend(gpus=False) == DDP().backend(gpus=False) == "gloo"


def test_offloaded_gradients_are_not_scaled() -> None:
    with pytest.raises(UserError, match="fp16's gradients cannot be scaled"):
        replace(BASE, parallel=FSDP(cpu_offload=True), precision="fp16")
    assert replace(BASE, parallel=FSDP(), precision="fp16").precision == "fp16"


# Memory


GIB = 2**30


@pytest.mark.parametrize(
    ("fraction", "taken", "reserved", "driver", "room"),
    [
        (1.0, 0, 0, 80, 80),
        (0.5, 0, 0, 80, 40),
        (0.5, 10, 12, 68, 30),  # of 40, ten are taken
        (1.0, 10, 30, 50, 70),  # twenty are kept for reuse
        (0.5, 38, 40, 2, 2),
    ],
)
def test_images_stay_on_a_gpu_within_the_process_s_share_of_it(
    monkeypatch: pytest.MonkeyPatch, fraction: float, taken: int, reserved: int, driver: int, room: int
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (driver * GIB, 80 * GIB))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: taken * GIB)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: reserved * GIB)
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda _: fraction)
    most = room * GIB // 4
    assert loader.fits_device(most, GPUS[0]) and not loader.fits_device(most + GIB // 4, GPUS[0])
    assert not loader.fits_device(0, CPU)


@pytest.mark.parametrize(
    ("share", "memory_limit", "fraction"),
    [
        (1.0, None, 1.0),
        (1.0, 20 * GIB, 0.25),
        (0.5, None, 0.5 - 0.5 / 80),  # each of two processes has half a GiB of context
        (0.25, 30 * GIB, 0.25 - 0.5 / 80),
        (0.25, 10 * GIB, 0.125),
        (0.001, None, 0.0),
    ],
)
def test_a_share_of_a_gpu_leaves_room_for_the_context(
    monkeypatch: pytest.MonkeyPatch, share: float, memory_limit: int | None, fraction: float
) -> None:
    set_to: dict[int, float] = {}
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=80 * GIB))
    monkeypatch.setattr(
        torch.cuda, "set_per_process_memory_fraction", lambda value, device: set_to.update({device: value})
    )
    memory.cap_gpus(share, memory_limit)
    assert set_to == {0: fraction, 1: fraction}


def test_shares_and_contexts_fill_a_gpu() -> None:
    for count in (2, 3, 4):
        room = memory.gpu_room(80 * GIB, 1 / count)
        assert 0 <= 80 * GIB - count * (room + GIB // 2) < count


# Kernels


def test_cudnn_times_its_algorithms_on_a_gpu() -> None:
    for device, timed in ((GPUS[0], True), (CPU, False)):
        with Strategy(nn.Linear(2, 2), RankContext(0, 1, device)).kernels():
            assert torch.backends.cudnn.benchmark == timed
        assert not torch.backends.cudnn.benchmark, "as it was before the run"


# Deterministic kernels

FIRST_LINES = """
import json, os, sys
from types import SimpleNamespace
from raytrain import DDP, Deterministic, Digits, Experiment, MLP
from raytrain.driver.job import Job, work_on_cluster

class Found(Exception):
    pass

def look(*_):
    raise Found(os.environ.get("CUBLAS_WORKSPACE_CONFIG"))

class Ray:  # the first that a worker asks for
    def __getattr__(self, name):
        look()

e = Experiment(model=MLP(), data=Digits(), parallel=Deterministic() if sys.argv[1] == "True" else DDP())
sys.modules["ray"] = Ray()
sys.meta_path.insert(0, SimpleNamespace(find_spec=lambda name, *_: look() if name == "torch" else None))
try:
    work_on_cluster({"job": Job(e, None, None, {}, None, 0.0, False)})
except Found as found:
    print(json.dumps([found.args[0], "torch" in sys.modules]))
"""


@pytest.mark.parametrize(("deterministic", "expected"), [(True, ":4096:8"), (False, None)])
def test_cublas_is_deterministic_before_torch_is_imported(deterministic: bool, expected: str | None) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "CUBLAS_WORKSPACE_CONFIG"}
    command = [sys.executable, "-c", FIRST_LINES, str(deterministic)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [expected, False]
