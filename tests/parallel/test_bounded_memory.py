"""Processes that are limited to less memory than the model's weights, gradients and optimizer state take train, write
checkpoints, are killed and resume on another number of workers, with the losses of one unlimited process."""

from __future__ import annotations

import gc
import multiprocessing as mp
import os
import re
import resource
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from helpers.ranks import Ranks, losses, new_run, on_workers, reference, serve, train_rank
from safetensors.torch import load_file
from torch import nn

from raytrain import (
    DDP,
    FSDP,
    MLP,
    SGD,
    Checkpoint,
    Digits,
    Experiment,
    Hook,
    Model,
    ModelParallel,
    Parallel,
    Pipeline,
    Run,
    TensorParallel,
)
from raytrain.tools.export import export
from raytrain.training.memory import give_back


@dataclass(frozen=True)
class Encoder(Model):
    """torchvision's ViT, of one patch."""

    layers: int = 1
    width: int = 32

    def build(self, sample: tuple[int, int, int], classes: int) -> nn.Module:
        from torchvision.models import VisionTransformer

        module = VisionTransformer(
            sample[1], sample[1], self.layers, 4, self.width, 4 * self.width, num_classes=classes
        )
        module.conv_proj = nn.Conv2d(sample[0], self.width, sample[1], sample[1])
        nn.init.normal_(module.heads[0].weight, std=0.1)  # type: ignore[arg-type]
        return module


SMALL = Experiment(
    model=MLP(hidden=(32, 32, 32)),
    data=Digits(),
    optimizer=SGD(lr=0.01, momentum=0.9),
    batch_size=64,
    steps=6,
    validate_every_steps=3,
    checkpoint=Checkpoint(every_steps=2),
)
LARGE = replace(SMALL, model=MLP(hidden=(768,) * 41))
SHORT = replace(SMALL, steps=2, validate_every_steps=None)
VIT = replace(SHORT, model=Encoder(layers=24, width=272))
DEEP = replace(SHORT, model=MLP(hidden=(512,) * 31))


def state(e: Experiment) -> int:
    """Bytes of weights, gradients and momentum."""
    with torch.device("meta"):
        return 12 * sum(parameter.numel() for parameter in e.model.build((1, 8, 8), 10).parameters())


@dataclass(frozen=True)
class Kill(Hook):
    """End the process as the system does, after a step, once the last checkpoint is on the disk."""

    step: int = 5

    def after_step(self, trainer) -> dict:
        if trainer.progress.step == self.step:
            if trainer.writer:
                trainer.writer.wait()
            os.kill(os.getpid(), signal.SIGKILL)
        return {}


@dataclass(frozen=True)
class Stop(Hook):
    """Ask for a stop after a step; the run stops when it next looks."""

    step: int = 3

    def after_step(self, trainer) -> dict:
        if trainer.progress.step == self.step:
            (trainer.run.path / "stop").touch()
        return {}


def data_bytes() -> int:
    """Bytes that this process has allocated: what RLIMIT_DATA limits."""
    found = re.search(r"VmData:\s+(\d+)", Path("/proc/self/status").read_text())
    assert found
    return int(found[1]) * 1024


@contextmanager
def allowed(more: int) -> Iterator[None]:
    """Limit this process to so many bytes beyond those that it has."""
    give_back()
    before = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (data_bytes() + more, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def limited_rank(rank: int, world: int, e: Experiment, run: Path, allowance: int, hooks: tuple[Hook, ...] = ()) -> str:
    """One rank with so many bytes for all that belongs to the run's model; a small run has loaded what it needs."""
    with tempfile.TemporaryDirectory() as folder:
        model = Encoder() if isinstance(e.model, Encoder) else SMALL.model
        small = replace(e, model=model, steps=2, validate_every_steps=None)
        assert train_rank(rank, world, small, new_run(Path(folder) / "run", small)) == "completed"
    gc.collect()
    with allowed(allowance):
        return train_rank(rank, world, e, run, hooks=hooks)


def go_on(ranks: Ranks, run: Path, e: Experiment, world: int, share: float, *hooks: Hook) -> list[str]:
    """Train on some workers that may each have a share of the model's state."""
    return ranks.run(world, limited_rank, on_workers(e, world), run, int(share * state(e)), hooks)


Expected = tuple[list[float], dict[str, torch.Tensor]]


class Spawned(Ranks):
    """Ranks that are no forks of a process, whose free memory the limit would not count."""

    def __init__(self, folder: Path, count: int):
        context = mp.get_context("spawn")
        self.folder, self.jobs, self.results = folder, [context.SimpleQueue() for _ in range(count)], context.Queue()
        for jobs in self.jobs:
            context.Process(target=serve, args=(jobs, self.results), daemon=True).start()

    def send(self, store: Path, world: int, call: bytes) -> None:
        for rank, jobs in enumerate(self.jobs[:world]):
            jobs.put((store, rank, world, call))

    def close(self) -> None:
        for jobs in self.jobs:
            jobs.put(None)


@pytest.fixture
def fresh(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Ranks]:
    """Processes whose heaps have no free memory from other tests, which the limit would not count."""
    pool = Spawned(tmp_path, getattr(request, "param", 4))
    yield pool
    pool.close()


@cache
def expected(e: Experiment) -> Expected:
    found, model = reference(e, e.steps or 0)
    return found, model.state_dict()


def check(run: Path, e: Experiment) -> None:
    found, weights = expected(e)
    np.testing.assert_allclose(losses(run), found, rtol=1e-5)
    own = Run(run).model("last").state_dict()
    for name, value in weights.items():
        assert (own[name] - value).norm() <= 1e-5 * value.norm()


def killed_rank(rank: int, world: int, e: Experiment, run: Path, allowance: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{run}/store", rank=rank, world_size=world)
    limited_rank(rank, world, e, run, allowance, (Kill(),))


def begin_and_kill(run: Path, e: Experiment, world: int, share: float) -> None:
    """Train in processes of their own, of which the first is killed after step 5."""
    context = mp.get_context("spawn")
    arguments = (world, on_workers(e, world), run, int(share * state(e)))
    processes = [context.Process(target=killed_rank, args=(rank, *arguments)) for rank in range(world)]
    for process in processes:
        process.start()
    processes[0].join(200)
    for process in processes[1:]:
        process.kill()
        process.join()
    assert processes[0].exitcode == -signal.SIGKILL
    assert Run(run).metrics("step").num_rows >= 3


@pytest.mark.slow
def test_fsdp_is_killed_resumes_on_other_numbers_of_workers_and_exports(fresh: Ranks, tmp_path: Path) -> None:
    e = replace(LARGE, parallel=FSDP())
    run = new_run(tmp_path / "run", LARGE)
    begin_and_kill(run, e, 2, 1 / 1.5)
    assert "interrupted" in go_on(fresh, run, e, 4, 1 / 2.4, Stop(5))
    (run / "stop").unlink()
    assert go_on(fresh, run, e, 2, 1 / 1.5) == ["completed"] * 2
    check(run, LARGE)
    export(Run(run), tmp_path / "model.safetensors", "last")
    exported = load_file(tmp_path / "model.safetensors")
    assert all(torch.equal(value, exported[name]) for name, value in Run(run).model("last").state_dict().items())


CASES = [
    pytest.param(VIT, FSDP(), 2, 1 / 1.1, id="fsdp"),
    pytest.param(DEEP, Pipeline(), 2, 1 / 1.2, id="pipeline"),
    pytest.param(DEEP, ModelParallel(), 1, 1.2, id="model parallel", marks=pytest.mark.slow),
    pytest.param(LARGE, Pipeline(), 2, 1 / 1.2, id="pipeline, large", marks=pytest.mark.slow),
    pytest.param(LARGE, TensorParallel(), 2, 1 / 1.2, id="tensor, large", marks=pytest.mark.slow),
    pytest.param(LARGE, ModelParallel(), 1, 1.1, id="model parallel, large", marks=pytest.mark.slow),
]
"""Of weights, gradients and momentum a process has room for a share. On CPUs all parts of model parallel lie in one
process, which cannot train in less than all of them: it has room for the stack of a thread or two (8 MiB each), and not
for a second copy of the weights."""


@pytest.mark.parametrize("fresh", [2], indirect=True, ids=[""])
@pytest.mark.parametrize(("e", "parallel", "world", "share"), CASES)
def test_trains_and_goes_on_within_its_memory(
    fresh: Ranks, tmp_path: Path, e: Experiment, parallel: Parallel, world: int, share: float
) -> None:
    run, spread = new_run(tmp_path / "run", e), replace(e, parallel=parallel)
    for steps in ((e.steps or 0) // 2, e.steps):
        assert go_on(fresh, run, replace(spread, steps=steps), world, share) == ["completed"] * world
    check(run, e)


@pytest.mark.parametrize("fresh", [2], indirect=True, ids=[""])
@pytest.mark.parametrize(
    ("e", "world", "share"),
    [
        pytest.param(DEEP, 2, 1 / 1.2, id="deep"),
        pytest.param(LARGE, 2, 1 / 1.5, id="large", marks=pytest.mark.slow),
    ],
)
def test_replicas_do_not_fit(fresh: Ranks, tmp_path: Path, e: Experiment, world: int, share: float) -> None:
    with pytest.raises(AssertionError, match=r"can't allocate memory|MemoryError"):
        go_on(fresh, new_run(tmp_path / "run", e), replace(e, parallel=DDP(reduction="torch")), world, share)
