"""breakpoint() in a run without workers: the debugger reads the terminal."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

CODE = """
from raytrain import MLP, Classification, Digits, Experiment

class Stops(Classification):
    def loss(self, model, batch):
        if not hasattr(Stops, "stopped") and model.training and len(batch) > 2:
            Stops.stopped = True
            breakpoint()
        return super().loss(model, batch)

experiment = Experiment(MLP(hidden=(8,)), Digits(), Stops(), epochs=1, batch_size=64)
"""


def test_a_breakpoint_stops_in_the_commands_process(tmp_path: Path) -> None:
    (tmp_path / "stops.py").write_text(CODE)
    command = [sys.executable, "-m", "raytrain.cli", "train", "stops.py", "--scaling.workers", "0", "--name", "run"]
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONBREAKPOINT"}
    process = subprocess.run(
        command,
        cwd=tmp_path,
        env=variables,
        input="p 'rows', len(batch)\nc\n",
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert process.returncode == 0, process.stderr
    assert "('rows', 64)" in process.stdout
