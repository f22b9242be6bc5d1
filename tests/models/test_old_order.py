"""Copies of experiment files in old runs: arguments in the order of raytrain 0.1."""

from __future__ import annotations

import inspect
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from raytrain import SGD, Digits, Experiment, Torchvision, UserError
from raytrain.run.experiment_file import save

OLD = """
from dataclasses import dataclass

from raytrain import SGD, Digits, Experiment, Torchvision


@dataclass(frozen=True)
class Mine(SGD):
    pass


experiment = Experiment(Torchvision("resnet34", "none", True), Digits(), optimizer=Mine(lr=0.1))
"""


def test_the_old_order_of_torchvisions_arguments_is_understood() -> None:
    Kind: Any = Torchvision  # its declared order is the new one
    assert Kind("resnet34", "hub") == Kind("resnet34", weights="hub")
    assert Kind("resnet34", "hub", True) == Kind("resnet34", True, weights="hub")
    assert Kind("resnet34", "cached", freeze=True) == Kind("resnet34", freeze=True, weights="cached")
    assert replace(Kind("resnet34", "hub"), freeze=True).weights == "hub"
    assert list(inspect.signature(Kind).parameters)[:2] == ["name", "freeze"], "one order is documented"
    for wrong in (("resnet34", True, "hub"), ("resnet34", "hub", True, 1)):
        with pytest.raises(TypeError, match="positional argument"):
            Kind(*wrong)
    with pytest.raises(UserError, match="freeze = 'hub' is of the wrong type"):
        Kind("resnet34", "hub", weights="none")


def test_a_runs_copy_of_an_old_file_is_read(tmp_path: Path) -> None:
    e = Experiment(Torchvision("resnet34", True), Digits(), optimizer=SGD(lr=0.1))
    save(e, tmp_path / "experiment.json")
    text = (tmp_path / "experiment.json").read_text()
    saved = text.replace("raytrain:SGD", "experiment:Mine", 1)
    assert saved != text
    (tmp_path / "experiment.json").write_text(saved)
    (tmp_path / "experiment.py").write_text(OLD)
    code = "import sys, raytrain; e = raytrain.Run(sys.argv[1]).experiment; print(type(e.optimizer).__name__, e.model)"
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("Mine Torchvision("), done.stderr
