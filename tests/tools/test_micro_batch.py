"""The search for a micro-batch: its order, what a limit of memory and a death mean, and that what it finds trains."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers.commands import DIGITS, REPOSITORY, VALUE, fails, succeeds, without_ray
from helpers.ranks import Ranks, losses, new_run, on_workers, train_rank

from raytrain import CNN, SGD, Augment, Deterministic, Digits, Experiment, Pipeline, Scaling, UserError
from raytrain.run import experiment_file
from raytrain.tools.micro_batch import Found, Search, Trial, best, doubling, sizes
from raytrain.tools.micro_batch_trials import find

__all__ = ["without_ray"]

pytestmark = pytest.mark.usefixtures("without_ray")
Capture = pytest.CaptureFixture[str]

OWN = """
import os, resource, signal
from dataclasses import dataclass
import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from raytrain import CNN, SGD, Data, Experiment, Index, Model, Scaling

RANK_ONE = {rank_one}

def here():
    return dist.is_initialized() and dist.get_rank() == 1 if RANK_ONE else True

class Net(nn.Sequential):
    def forward(self, images):
        {act}
        return super().forward(images)

@dataclass(frozen=True)
class Own(Model):
    def build(self, sample, classes):
        net = Net(nn.Conv2d(sample[0], 16, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), {norm}
                  nn.Linear(16, classes))
        {built}
        return net

@dataclass(frozen=True)
class Noise(Data):
    side: int = 64
    def index(self):
        return {{name: Index(np.arange(n) % 4, tuple("abcd"), (3, self.side, self.side), name)
                for name, n in (("train", 200), ("val", 4))}}
    def read(self, index, samples):
        return np.random.default_rng(len(samples)).integers(0, 256, (len(samples), *index.shape), np.uint8)

experiment = Experiment(
    model=Own(), data=Noise(), optimizer=SGD(lr=0.01), batch_size=96, scaling=Scaling(threads_per_worker=1)
)
"""


def own(
    folder: Path, act: str = "", built: str = "", norm: str = "", rank_one: bool = False
) -> tuple[Experiment, Path]:
    """An experiment with a model of its own, and its file."""
    file = folder / "own.py"
    file.write_text(OWN.format(act=act or "pass", built=built or "pass", norm=norm, rank_one=rank_one))
    return experiment_file.load(file)[0], file


def outcomes(trials: tuple[Trial, ...]) -> dict[int, str]:
    return {trial.micro_batch: trial.outcome for trial in trials}


# The order of trials


def said(of: Callable[[int], str], tried: list[int]) -> Callable[[int], Trial]:
    def attempt(size: int) -> Trial:
        tried.append(size)
        return Trial(size, 1, of(size))  # type: ignore[arg-type]

    return attempt


@pytest.mark.parametrize("part", [1, 2, 7, 48, 60, 64, 720])
def test_doubling_and_bisection_find_the_last_divisor_that_fits(part: int) -> None:
    divisors = [size for size in range(1, part + 1) if part % size == 0]
    for limit in range(part + 2):
        tried: list[int] = []
        trials = doubling(divisors, said(lambda size, limit=limit: "fits" if size <= limit else "full", tried))
        assert Found("fp32", trials).largest == max(
            (trial for trial in trials if trial.micro_batch <= limit), key=lambda trial: trial.micro_batch, default=None
        )
        assert max((d for d in divisors if d <= limit), default=None) == max(
            (size for size in tried if size <= limit), default=None
        )
        assert len(tried) == len(set(tried)) <= 2 * np.log2(part) + 2
        assert sum(size > limit for size in tried) <= 1 + np.log2(len(divisors)), "each costs a process"


def test_other_failures_end_the_doubling_above_a_good_size() -> None:
    tried: list[int] = []
    batch_norm = doubling([1, 2, 3, 4, 6, 8, 12], said(lambda size: "fits" if 2 <= size < 12 else "fails", tried))
    assert tried == [1, 2, 4, 8, 12] and Found("fp32", batch_norm).largest == Trial(8, 1, "fits")
    assert set(outcomes(doubling([1, 2, 4], said(lambda size: "fails", tried))).values()) == {"fails"}
    below = doubling([1, 2, 4, 8], said(lambda size: "fails" if size < 4 else "full", tried))
    assert outcomes(below) == {1: "fails", 2: "fails", 4: "full"} and Found("fp32", below).largest is None


def test_micro_batches_divide_a_workers_part() -> None:
    assert sizes(replace(VALUE, batch_size=60)) == [1, 2, 3, 4, 5, 6, 10, 12, 15, 20, 30, 60]
    assert sizes(replace(VALUE, batch_size=60, scaling=Scaling(workers=4))) == [1, 3, 5, 15]
    assert sizes(replace(VALUE, batch_size=60, scaling=Scaling(workers=2), parallel=Deterministic())) == [1, 3, 5, 15]
    mixed = replace(VALUE, batch_size=60, data=Digits(augment=Augment(mixup=0.2)))
    assert sizes(mixed) == [2, 4, 6, 10, 12, 20, 30, 60]


def test_less_exact_precision_must_be_clearly_faster() -> None:
    def found(name: str, rate: float) -> Found:
        slower = Trial(4, 16, "fits", 1, rate / 2)
        return Found(name, (slower, Trial(8, 8, "fits", 1, rate), replace(slower, micro_batch=16)))

    assert best([found("fp32", 100), found("bf16", 104)]) == ("fp32", Trial(8, 8, "fits", 1, 100))
    assert best([found("fp32", 100), found("bf16", 107)]) == ("bf16", Trial(8, 8, "fits", 1, 107))
    nothing = Found("fp32", (Trial(1, 64, "full"),))
    assert best([nothing]) is None and best([nothing, found("bf16", 1)]) == ("bf16", Trial(8, 8, "fits", 1, 1))


# Memory


@pytest.mark.slow
def test_the_largest_micro_batch_is_what_the_memory_has_room_for(tmp_path: Path, ranks: Ranks) -> None:
    value, file = own(tmp_path)
    value = replace(value, data=replace(value.data, side=128), batch_size=24)  # type: ignore[call-arg]
    (whole,), room = find(value, Search(("fp32",)), file), 80 * 2**20
    free = whole.largest
    assert free and free.micro_batch == 24
    assert (free.peak_bytes or 0) > room, "there is something to limit"
    (capped,) = find(value, Search(("fp32",), room / 2**30), file)
    found = outcomes(capped.trials)
    assert capped.largest and 4 <= capped.largest.micro_batch < 24 and found[24] == "full"
    assert all((outcome == "fits") == (size <= capped.largest.micro_batch) for size, outcome in found.items())
    assert (capped.largest.peak_bytes or 0) <= 1.2 * room, "libraries that were mapped before come into memory"
    assert "memory" in str(next(trial.why for trial in capped.trials if trial.outcome == "full")).lower()
    for trial in capped.trials:
        assert trial.accumulation == 24 // trial.micro_batch
        assert (trial.samples_per_second or 0) > 0 or trial.outcome == "full"
    assert capped.fastest in capped.trials
    plain = replace(value, model=CNN(channels=(4,)), data=Digits(), batch_size=24, optimizer=SGD(lr=0.05))
    for name, micro in (("whole", None), ("found", capped.largest.micro_batch)):
        ranks.run(1, train_rank, e := replace(plain, micro_batch_size=micro), new_run(tmp_path / name, e))
    np.testing.assert_allclose(losses(tmp_path / "found"), losses(tmp_path / "whole"), rtol=1e-5)


@pytest.mark.slow
def test_with_two_ranks_a_size_fits_only_where_it_fits_on_both(tmp_path: Path) -> None:
    """Rank 1 keeps memory for itself."""
    room = "net.ballast = torch.ones(2**20 * 16) if here() else None"
    value, file = own(tmp_path, built=room, rank_one=True)
    value = on_workers(value, 2)
    search, on_one = Search(("fp32",), 0.16), replace(value.scaling, workers=1)
    alone = find(replace(value, batch_size=48, scaling=on_one), search, file)[0].largest
    both = find(value, search, file)[0].largest
    assert alone and both and both.micro_batch < alone.micro_batch <= 48
    assert both.accumulation == 48 // both.micro_batch


def test_where_nothing_fits_the_command_says_so(capsys: Capture, tmp_path: Path) -> None:
    _, file = own(tmp_path)
    said = succeeds(capsys, "batch", file, "--memory", "0.001", "--precisions", "fp32")
    assert "none fits" in said and "a micro-batch of 1 needs more memory: " in said
    assert said.splitlines()[-1].startswith("next:  give more --memory") and "--micro_batch_size" not in said


# Deaths


@pytest.mark.slow
def test_killed_process_means_that_its_size_does_not_fit(capsys: Capture, tmp_path: Path) -> None:
    kills = "if len(images) > 8: os.kill(os.getpid(), signal.SIGKILL)"
    _, file = own(tmp_path, act=kills, norm="nn.BatchNorm1d(16),")
    flags = ("--data.side", "8", "--micro-batch-size=2", "--precisions", "fp32", "bf16", "--optimizer.lr", "0.1")
    result = json.loads(succeeds(capsys, "batch", file, *flags, "--json", "--batch_size", "48"))
    assert [one["precision"] for one in result["precisions"]] == ["fp32", "bf16"]
    for one in result["precisions"]:
        found = {trial["micro_batch"]: trial["outcome"] for trial in one["trials"]}
        expected = {1: "fails", 2: "fits", 4: "fits", 8: "fits", 12: "full", 16: "full"}
        assert found == expected, "BatchNorm takes no single sample"
        assert one["largest"]["micro_batch"] == 8 and one["fastest"]["samples_per_second"] > 0
        assert next(t["why"] for t in one["trials"] if t["micro_batch"] == 12) == "the process ended by SIGKILL"
    start = f"raytrain train {file} --data.side 8 --optimizer.lr 0.1 --batch_size 48 --micro_batch_size "
    assert result["next"].startswith(start) and result["next"].count("--micro_batch_size") == 1
    assert (result["batch_size"], result["replicas"]) == (48, 1)


@pytest.mark.slow
def test_the_death_of_one_rank_leaves_no_other_waiting(tmp_path: Path) -> None:
    kills = "if here() and len(images) > 4: os.kill(os.getpid(), signal.SIGSEGV)"
    value, file = own(tmp_path, act=kills, rank_one=True)
    value = on_workers(replace(value, data=replace(value.data, side=8), batch_size=16), 2)  # type: ignore[call-arg]
    started = time.monotonic()
    largest = find(value, Search(("fp32",)), file)[0].largest
    assert largest and (largest.micro_batch, largest.accumulation) == (4, 2)
    assert time.monotonic() - started < 120 and not processes(str(REPOSITORY), "raytrain.tools.probe")


def processes(*marks: str) -> list[int]:
    """Processes that this one, or one that it has started, left behind."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            line = (folder / "cmdline").read_bytes().decode() + (folder / "environ").read_bytes().decode()
        except OSError:
            continue
        if all(mark in line for mark in marks):
            found.append(int(folder.name))
    return found


@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)],
)
@pytest.mark.slow
def test_a_signal_leaves_no_process(tmp_path: Path, number: signal.Signals, status: int) -> None:
    """Not even one that waits for another for ever."""
    own(tmp_path, act="import time; time.sleep(600 if here() else 0)", rank_one=True)
    command = [sys.executable, "-m", "raytrain.cli", "batch", tmp_path / "own.py", "--scaling.workers", "2"]
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    environment = os.environ | {"TMPDIR": str(temporary), "PYTHONPATH": str(REPOSITORY)}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        deadline = time.monotonic() + 60
        while not list(temporary.glob("raytrain-batch-*/metrics.jsonl")) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert len(processes(f"TMPDIR={temporary}", "raytrain.tools.probe")) == 2
        process.send_signal(number)
        _, error = process.communicate(timeout=60)
    assert process.returncode == status and "Traceback" not in error
    deadline = time.monotonic() + 10
    while processes(f"TMPDIR={temporary}") and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not processes(f"TMPDIR={temporary}")
    assert number == signal.SIGKILL or not list(temporary.glob("raytrain-*"))


# Mistakes


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--memory", "0"], "memory = 0.0 is out of range, in Search; give a value above 0"),
        (["--memory", "nan"], "memory = nan is out of range"),
        (["--memory", "much"], "--memory"),
        (["--precisions", "half"], "--precisions"),
        (["--precisions", "fp32", "tf32"], "tf32"),
        (["--precision", "bf16", "--memry", "3"], "unknown flag --memry; did you mean --memory?"),
        (["stray"], "unexpected argument 'stray'"),
        (["--batch_size", "7", "--scaling.workers", "2"], "batch_size 7 does not divide by scaling.workers 2"),
        (["--scaling.workers", "640", "--batch_size", "640"], "the run asks for 640 workers"),
        (["--parallel.strategy", "tensor", "--precisions", "fp16"], "fp16's gradients cannot be scaled"),
        (["--data.crop", "9"], "crop = 9 is out of range"),
    ],
)
def test_a_mistake_is_one_line(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.setattr(subprocess, "Popen", None)  # nothing is started
    assert message in fails(capsys, "batch", DIGITS, *arguments)


def test_no_experiment_and_one_whose_steps_never_work(capsys: Capture, tmp_path: Path) -> None:
    assert "EXPERIMENT must come first; see `raytrain batch --help`" in fails(capsys, "batch", "--memory", "1")
    assert "no such experiment file, missing.py" in fails(capsys, "batch", "missing.py")
    value, file = own(tmp_path, act="assert not self.training, 'no training'")
    assert "the first training step fails for images float32 [4, 3, 64, 64] and labels int64 [4]" in fails(
        capsys, "batch", file, "--batch_size", "4", "--precisions", "fp32"
    )
    # The plan's own step works, and those of the processes do not.
    value, file = own(tmp_path, act=f"assert __import__('os').getpid() == {os.getpid()}, 'no training'")
    message = "no training step in fp32 works, whatever the micro-batch: AssertionError: no training, in Own; "
    assert message in fails(capsys, "batch", file, "--batch_size", "4", "--precisions", "fp32")
    with pytest.raises(UserError, match="no training step in fp32 works, whatever the micro-batch: AssertionError"):
        find(replace(value, batch_size=4), Search(("fp32",)))  # which finds the class's file by itself


# Strategies


@pytest.mark.slow
def test_a_pipeline_has_as_many_micro_batches_as_keep_it_busy() -> None:
    """Larger ones fail, and not for their memory."""
    value = replace(VALUE, model=CNN(channels=(4, 8)), batch_size=16, scaling=Scaling(workers=2), parallel=Pipeline())
    largest = find(value, Search(("fp32",)))[0].largest
    assert largest and (largest.micro_batch, largest.accumulation) == (8, 2)
