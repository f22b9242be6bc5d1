"""An error in the middle of a training in the user's code: the advice, the correction, and the run that goes on."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from helpers.commands import succeeds
from helpers.killed_runs import rows, weights
from helpers.projects import write

from raytrain import cli, order

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
    CNN((8,)), Digits(), task=Mine(), epochs=2, scaling=Scaling(workers=1), checkpoint=Checkpoint(every_steps=5)
)
"""
FIXED = "def grown(ids):\n    return 1.0\n"
STEP = 16
"""The step that fails first."""


@pytest.mark.usefixtures("cluster")
def test_corrected_code_resumes_bit_for_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sample = int(order.samples(0, 0, 1438, np.array([(STEP - 1) * 64]))[0])
    broken = f"def grown(ids):\n    return 1.0 / ({sample} not in ids.tolist())\n"
    project = write(tmp_path / "project", {"exp.py": EXPERIMENT, "shapes.py": broken})
    right = write(tmp_path / "right", {"exp.py": EXPERIMENT, "shapes.py": FIXED})
    monkeypatch.chdir(project)
    assert cli.run(["train", "exp.py", "--name", "run"]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert f"ZeroDivisionError: float division by zero ({project}/shapes.py:2)" in said
    assert "correct shapes.py:2, then go on with `raytrain resume runs/run --experiment exp.py`" in said
    run = project / "runs" / "run"
    assert len(rows(run)) in (10, STEP - 1) and weights(run)

    (project / "shapes.py").write_text(FIXED)
    said = succeeds(capsys, "resume", "runs/run", "--experiment", "exp.py")
    assert "code replaced after step 15: shapes.py" in said.splitlines()
    monkeypatch.chdir(right)
    succeeds(capsys, "train", "exp.py", "--name", "whole")
    assert rows(run) == rows(right / "runs" / "whole") and weights(run) == weights(right / "runs" / "whole")

    monkeypatch.chdir(project)
    (project / "shapes.py").unlink()  # what follows takes the run's own code, which is the new one
    assert "code replaced after step 15" in succeeds(capsys, "resume", "runs/run", "--epochs", 3)
    assert json.loads(succeeds(capsys, "evaluate", "runs/run", "--json"))["count"] == 359
    assert succeeds(capsys, "export", "runs/run", "model.pth")
    assert (run / "modules" / "shapes.py").read_text() == FIXED and not (run / "replacing.json").exists()
