"""On a GPU: a run that was killed goes on with the bits of one that was not."""

from __future__ import annotations

import os
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.cut_runs import BASE, Cut
from helpers.cut_runs import rows as measured
from helpers.cut_runs import weights as trained_weights
from helpers.killed_runs import command, rows, rows_so_far, wait_for_step, weights
from helpers.on_gpu import trained
from helpers.processes import tree
from helpers.ranks import losses

from raytrain import Deterministic, Experiment, Hook, Run

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
DIGITS = Path(__file__).parents[2] / "experiments" / "digits.py"


class CutAfter(Hook):
    """Ends the process's run after a step, without another word."""

    def __init__(self, step: int):
        self.step = step

    def after_backward(self, trainer: object) -> None:
        if trainer.progress.step == self.step:  # type: ignore[attr-defined]
            raise Cut


@pytest.mark.parametrize("step", [12, 33])
@pytest.mark.parametrize(
    "e",
    [
        replace(BASE, parallel=Deterministic()),
        replace(BASE, parallel=Deterministic(), precision="bf16", ema_decay=0.9),
        replace(BASE, graph="on", precision="fp16"),
    ],
    ids=["deterministic", "bf16 and ema", "graph and fp16"],
)
def test_a_run_that_was_cut_goes_on_as_if_nothing_had_happened(tmp_path: Path, e: Experiment, step: int) -> None:
    with pytest.raises(Cut):
        trained(tmp_path / "cut", e, CutAfter(step))
    cut, whole = trained(tmp_path / "cut", e), trained(tmp_path / "whole", e)
    if isinstance(e.parallel, Deterministic):
        assert measured(cut.path) == measured(whole.path) and trained_weights(cut.path) == trained_weights(whole.path)
    else:  # cuDNN may choose other kernels
        np.testing.assert_allclose(losses(cut.path), losses(whole.path), rtol=0.02)


def test_a_killed_command_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    common = ["train", str(DIGITS), "--out", str(tmp_path), "--scaling.workers", "1", "--epochs", "40"]
    common += ["--parallel.strategy", "deterministic", "--checkpoint.every_steps", "7", "--data.augment.flip", "0.5"]
    process = subprocess.Popen(command(*common, "--name", "cut"), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    cut, whole = tmp_path / "cut", tmp_path / "whole"
    wait_for_step(cut, 100, process, within_epoch=23)
    for pid in tree(process.pid):
        os.kill(pid, signal.SIGKILL)
    process.communicate()
    assert max(row["step"] for row in rows_so_far(cut)) < 40 * 23, "the kill came before the end"
    for words in (["resume", str(cut)], [*common, "--name", "whole"]):
        done = subprocess.run(command(*words), capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
    assert Run(whole).summary["device"] == "cuda"
    assert [row["step"] for row in rows(cut) if row["kind"] == "step"] == list(range(1, 40 * 23 + 1))
    assert rows(cut) == rows(whole) and weights(cut) == weights(whole)
