"""A trial that takes the memory of its machine is ended by Ray, and not the sweep."""

from __future__ import annotations

import os
import subprocess
import textwrap
from pathlib import Path

import pytest
from helpers.killed_runs import command

from raytrain import machine
from raytrain.sweep.sweep_run import SweepRun

FILE = '''
    """The second trial takes 4 GiB, from its thirtieth step on."""
    import time
    from dataclasses import dataclass
    import torch
    from torch import nn
    from raytrain import Digits, Experiment, Grid, Model, Sweep

    class Net(nn.Module):
        def __init__(self, taken, inputs, classes):
            super().__init__()
            self.taken, self.waste, self.steps, self.linear = taken, [], 0, nn.Linear(inputs, classes)

        def forward(self, x):
            self.steps += self.training
            while self.steps >= 30 and len(self.waste) < self.taken:
                self.waste.append(torch.ones(2**26))
                time.sleep(0.5)
            return self.linear(x.flatten(1))

    @dataclass(frozen=True)
    class Taking(Model):
        quarters: int = 0
        def build(self, sample, classes):
            return Net(self.quarters, sample[0] * sample[1] * sample[2], classes)

    experiment = Experiment(model=Taking(), data=Digits(), epochs=2)
    sweep = Sweep(experiment, axes=(Grid("model.quarters", (0, 16, 1)),), concurrent=1, retries=0)
'''


@pytest.mark.slow
def test_a_trial_without_memory_is_infeasible_and_the_others_are_trained(tmp_path: Path) -> None:
    (tmp_path / "taking.py").write_text(textwrap.dedent(FILE))
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    used = (int(lines["MemTotal"].split()[0]) - int(lines["MemAvailable"].split()[0])) * 1024
    share = (used + 3 * 2**30) / machine.host_memory()  # Ray and a trial of the plain kind take half of it
    if share > 0.9:
        pytest.skip("this machine has less than 4 GiB to spare")
    limits = {"RAY_memory_usage_threshold": f"{share:.3f}", "RAY_memory_monitor_refresh_ms": "200"}
    arguments = ("sweep", str(tmp_path / "taking.py"), "--out", str(tmp_path), "--name", "sweep")
    done = subprocess.run(
        command(*arguments), env=os.environ | limits, capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stderr
    trials = SweepRun(tmp_path / "sweep").trials
    assert [one["status"] for one in trials] == ["completed", "infeasible", "completed"]
    assert trials[1]["error"] == "the system ended its process because memory ran out"
