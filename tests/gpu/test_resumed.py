"""On a GPU: SIGKILL of the whole process tree in the middle of an epoch, then `raytrain resume`."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.killed_runs import command, rows, rows_so_far, wait_for_step, weights
from helpers.processes import tree

from raytrain import Run

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
DIGITS = Path(__file__).parents[2] / "experiments" / "digits.py"


@pytest.mark.parametrize(
    "flags",
    [
        ["--parallel.strategy", "deterministic", "--epochs", "40"],
        ["--parallel.strategy", "deterministic", "--epochs", "40", "--precision", "bf16", "--ema_decay", "0.9"],
        ["--graph", "on", "--epochs", "200", "--precision", "fp16"],
    ],
    ids=["deterministic", "bf16 and ema", "graph and fp16"],
)
def test_a_killed_run_goes_on_as_if_nothing_had_happened(tmp_path: Path, flags: list[str]) -> None:
    common = ["train", str(DIGITS), "--out", str(tmp_path), "--scaling.workers", "1", *flags]
    common += ["--checkpoint.every_steps", "7", "--data.augment.flip", "0.5"]
    process = subprocess.Popen(command(*common, "--name", "cut"), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    cut, whole = tmp_path / "cut", tmp_path / "whole"
    wait_for_step(cut, 100, process, within_epoch=23)
    for pid in tree(process.pid):
        os.kill(pid, signal.SIGKILL)
    process.communicate()
    steps = 23 * int(flags[flags.index("--epochs") + 1])
    assert max(row["step"] for row in rows_so_far(cut)) < steps, "the kill came before the end"
    for words in (["resume", str(cut)], [*common, "--name", "whole"]):
        done = subprocess.run(command(*words), capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
    assert Run(whole).summary["device"] == "cuda"
    assert [row["step"] for row in rows(cut) if row["kind"] == "step"] == list(range(1, steps + 1))
    if "deterministic" in flags:
        assert rows(cut) == rows(whole) and weights(cut) == weights(whole)
    else:
        mine, other = ([row["loss"] for row in rows(run) if row["kind"] == "step"][:300] for run in (cut, whole))
        np.testing.assert_allclose(mine, other, rtol=0.1, atol=0.02)
