"""An error in the middle of a training in the user's code: the advice, the correction, and the run that goes on."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
from helpers.commands import succeeds, without_ray
from helpers.killed_runs import command, rows, weights
from helpers.projects import write

from raytrain import order

__all__ = ["without_ray"]

EXPERIMENT = """
from dataclasses import dataclass
from raytrain import CNN, Checkpoint, Classification, Digits, Experiment, Scaling
from shapes import grown

@dataclass(frozen=True)
class Mine(Classification):
    def loss(self, model, batch):
        loss, count = super().loss(model, batch)
        return loss * grown(batch.ids), count

experiment = Experiment(
    CNN((8,)), Digits(), task=Mine(), epochs=2, scaling=Scaling(workers=2), checkpoint=Checkpoint(every_steps=5)
)
"""
FIXED = "def grown(ids):\n    return 1.0\n"
STEP = 16
"""The step that fails first."""


def answer(cwd: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*map(str, arguments)), cwd=cwd, capture_output=True, text=True, check=False, timeout=300
    )


@pytest.mark.usefixtures("without_ray")
def test_corrected_code_resumes_bit_for_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sample = int(order.samples(0, 0, 1438, np.array([(STEP - 1) * 64]))[0])
    broken = f"def grown(ids):\n    return 1.0 / ({sample} not in ids.tolist())\n"
    project = write(tmp_path / "project", {"exp.py": EXPERIMENT, "shapes.py": broken})
    right = write(tmp_path / "right", {"exp.py": EXPERIMENT, "shapes.py": FIXED})
    failed = answer(project, "train", "exp.py", "--name", "run")
    assert failed.returncode == 1 and failed.stderr.count("\n") == 1
    assert f"ZeroDivisionError: float division by zero ({project}/shapes.py:2)" in failed.stderr
    assert "correct shapes.py:2, then go on with `raytrain resume runs/run --experiment exp.py`" in failed.stderr
    run = project / "runs" / "run"
    assert len(rows(run)) in (10, STEP - 1) and weights(run)

    (project / "shapes.py").write_text(FIXED)
    train = command("train", "exp.py", "--name", "whole")
    with subprocess.Popen(train, cwd=right, stdout=subprocess.DEVNULL) as whole:  # beside the resumed one
        done = answer(project, "resume", "runs/run", "--experiment", "exp.py")
    assert done.returncode == 0, done.stderr
    assert "code replaced after step 15: shapes.py" in done.stdout.splitlines()
    assert whole.returncode == 0
    assert rows(run) == rows(right / "runs" / "whole") and weights(run) == weights(right / "runs" / "whole")

    (project / "shapes.py").unlink()  # what follows takes the run's own code, which is the new one
    longer = answer(project, "resume", "runs/run", "--epochs", 3)
    assert longer.returncode == 0 and "code replaced after step 15" in longer.stdout, longer.stderr
    monkeypatch.chdir(project)
    assert json.loads(succeeds(capsys, "evaluate", "runs/run", "--json"))["count"] == 359
    assert succeeds(capsys, "export", "runs/run", "model.pth")
    assert (run / "modules" / "shapes.py").read_text() == FIXED and not (run / "replacing.json").exists()
