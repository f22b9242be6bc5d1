"""A sweep of raytrain 0.1 resumes: tests/old_runs/sweep without its second trial."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from raytrain import Run
from raytrain.driver.options import Options
from raytrain.loggers import Logger
from raytrain.report.sweep import write_files
from raytrain.sweep import driver
from raytrain.sweep.sweep_file import load

pytestmark = pytest.mark.usefixtures("cluster")
OLD = Path(__file__).parents[1] / "old_runs" / "sweep"


def losses(run: Path) -> list[float]:
    return [row["loss"] for row in Run(run).metrics("step").to_pylist()]


def test_an_old_sweep_resumes_with_the_trial_that_is_missing(tmp_path: Path) -> None:
    path = shutil.copytree(OLD, tmp_path / "sweep")
    shutil.rmtree(path / "trials" / "0001")
    value, _ = load(path / "sweep.json")
    assert driver.resume(path, value, Options(), Logger(), 0.0, write_files) is not None
    for name in ("0000", "0001"):
        old, new = (json.loads((each / "trials" / name / "trial.json").read_text()) for each in (OLD, path))
        assert old["values"] == new["values"] and new["status"] == "completed"
        np.testing.assert_allclose(losses(path / "trials" / name), losses(OLD / "trials" / name), rtol=0, atol=1e-4)
