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
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from helpers.ranks import Ranks, losses, new_run, on_workers, reference, train_rank
from safetensors.torch import load_file

from raytrain import (
    DDP,
    FSDP,
    MLP,
    SGD,
    Checkpoint,
    Digits,
    Experiment,
    Hook,
    ModelParallel,
    Parallel,
    Pipeline,
    Run,
    TensorParallel,
)
from raytrain.tools.export import export
from raytrain.training.memory import give_back

pytestmark = pytest.mark.slow

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
WEIGHTS = 4 * (40 * 768 * 768 + 64 * 768 + 10 * 768)
STATE = 3 * WEIGHTS
"""Bytes of weights, gradients and momentum."""


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
        small = replace(e, model=SMALL.model, steps=2, validate_every_steps=None)
        assert train_rank(rank, world, small, new_run(Path(folder) / "run", small)) == "completed"
    gc.collect()
    with allowed(allowance):
        return train_rank(rank, world, e, run, hooks=hooks)


def begin(folder: Path) -> Path:
    new_run(folder, LARGE)
    return folder


def go_on(ranks: Ranks, run: Path, parallel: Parallel, world: int, allowance: int, *hooks: Hook) -> list[str]:
    e = on_workers(replace(LARGE, parallel=parallel), world)
    return ranks.run(world, limited_rank, e, run, allowance, hooks)


Expected = tuple[list[float], dict[str, torch.Tensor]]


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    """Processes whose heaps have no free memory from other tests, which the limit would not count."""
    pool = Ranks(tmp_path_factory.mktemp("fresh"))
    yield pool
    pool.close()


@pytest.fixture(scope="module")
def expected() -> Expected:
    found, model = reference(LARGE, 6)
    return found, model.state_dict()


def check(run: Path, expected: Expected) -> None:
    np.testing.assert_allclose(losses(run), expected[0], rtol=1e-5)
    weights = Run(run).model("last").state_dict()
    for name, value in expected[1].items():
        assert (weights[name] - value).norm() <= 1e-5 * value.norm()


def killed_rank(rank: int, world: int, e: Experiment, run: Path, allowance: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{run}/store", rank=rank, world_size=world)
    limited_rank(rank, world, e, run, allowance, (Kill(),))


def begin_and_kill(run: Path, parallel: Parallel, world: int, allowance: int) -> None:
    """Train in processes of their own, of which the first is killed after step 5."""
    context = mp.get_context("spawn")
    arguments = (world, on_workers(replace(LARGE, parallel=parallel), world), run, allowance)
    processes = [context.Process(target=killed_rank, args=(rank, *arguments)) for rank in range(world)]
    for process in processes:
        process.start()
    processes[0].join(200)
    for process in processes[1:]:
        process.kill()
        process.join()
    assert processes[0].exitcode == -signal.SIGKILL
    assert Run(run).metrics("step").num_rows >= 3


def test_fsdp_is_killed_resumes_on_other_numbers_of_workers_and_exports(
    fresh: Ranks, tmp_path: Path, expected: Expected
) -> None:
    run = begin(tmp_path / "run")
    begin_and_kill(run, FSDP(), 2, int(STATE / 1.5))
    assert "interrupted" in go_on(fresh, run, FSDP(), 4, int(STATE / 2.4), Stop(5))
    (run / "stop").unlink()
    assert go_on(fresh, run, FSDP(), 2, int(STATE / 1.5)) == ["completed"] * 2
    check(run, expected)
    export(Run(run), tmp_path / "model.safetensors", "last")
    exported = load_file(tmp_path / "model.safetensors")
    assert all(torch.equal(value, exported[name]) for name, value in Run(run).model("last").state_dict().items())


@pytest.mark.parametrize(
    ("parallel", "world", "allowance"),
    [
        (Pipeline(), 2, int(STATE / 1.2)),
        (TensorParallel(), 2, int(STATE / 1.2)),
        (ModelParallel(), 1, STATE + WEIGHTS // 2),
    ],
    ids=["pipeline", "tensor", "model parallel"],
)
def test_stops_and_goes_on_within_its_memory(
    fresh: Ranks, tmp_path: Path, expected: Expected, parallel: Parallel, world: int, allowance: int
) -> None:
    """On CPUs all parts of model parallel lie in one process: it has no room for a second copy of the weights."""
    run = begin(tmp_path / "run")
    assert "interrupted" in go_on(fresh, run, parallel, world, allowance, Stop(3))
    (run / "stop").unlink()
    assert go_on(fresh, run, parallel, world, allowance) == ["completed"] * world
    check(run, expected)


def test_replicas_do_not_fit(fresh: Ranks, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"can't allocate memory|MemoryError"):
        go_on(fresh, begin(tmp_path / "run"), DDP(reduction="torch"), 2, int(STATE / 1.5))
