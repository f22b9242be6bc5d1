"""Runs commands in this process for tests, where starting Ray is an error."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from raytrain import CNN, Digits, Experiment, Run, cli, config
from raytrain.checkpoint import checkpoints
from raytrain.driver.session import Session
from raytrain.run import experiment_file
from raytrain.run.metrics_log import MetricsLog

REPOSITORY = Path(__file__).parents[2]
DIGITS = str(REPOSITORY / "experiments" / "digits.py")
VALUE = Experiment(model=CNN(channels=(8,), batch_norm=True), data=Digits(), epochs=2)


@pytest.fixture
def without_ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fails a test that starts Ray; takes back what a loaded experiment file leaves in the process."""
    started: list[object] = []
    for name in ("start", "_connect"):
        monkeypatch.setattr(Session, name, lambda self: started.append(self))
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    before = _connected()
    yield
    sys.modules.pop(config.EXPERIMENT_MODULE, None)
    assert not started and _connected() == before


def _connected() -> bool:
    """Whether this process has a Ray: that of other tests may be there."""
    ray = sys.modules.get("ray")
    return ray is not None and ray.is_initialized()


@pytest.fixture
def no_runs(tmp_path: Path) -> Iterator[Path]:
    """Where runs would be made, and none is."""
    yield tmp_path / "runs"
    assert not (tmp_path / "runs").exists()


def succeeds(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """Runs a command that ends well and returns what it printed."""
    assert cli.run([str(argument) for argument in arguments]) == 0, capsys.readouterr().err
    said = capsys.readouterr()
    assert said.err == ""
    return said.out


def fails(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """Runs a command that must end with exit status 2 and one line on stderr, and returns that line."""
    assert cli.run([str(argument) for argument in arguments]) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith("error: ") and "Traceback" not in said.err
    assert said.err.count("\n") == 1 and said.err.endswith("\n")
    what, _, how = said.err.strip().removeprefix("error: ").rpartition("; ")
    assert what and how, "it says what is wrong and how to mend it"
    return said.err.strip()


def make_run(path: Path, value: Experiment = VALUE, steps: int = 30) -> Run:
    """A completed run of a model that has learnt a little, made without workers."""
    path.mkdir()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    index = value.data.index()
    some = np.arange(min(256, len(index["train"])))
    images, mean, std = value.data.read(index["train"], some), value.data.mean[0], value.data.std[0]
    images = images["image"] if isinstance(images, dict) else images
    inputs, labels = (torch.from_numpy(images) / 255 - mean) / std, torch.from_numpy(index["train"].labels[some])
    module = value.model.build(value.data.sample(index["train"]), len(index["train"].classes))
    optimizer, log = torch.optim.SGD(module.parameters(), lr=0.1), MetricsLog(path / "metrics.jsonl", 0)
    for step in range(steps + 1):
        if step in (steps // 2, steps):
            state = {
                "sample": value.data.sample(index["train"]),
                "stored": index["train"].shape,
                "classes": index["train"].classes,
                "progress": {"step": step},
                "metrics_bytes": log.size,
            }
            checkpoints.save(path / "checkpoints", step, module.state_dict(), {}, state)
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(inputs), labels).backward()
        optimizer.step()
        log.write([{"kind": "step", "step": step + 1, "epoch": 1, "loss": 0.5, "lr": 0.1}])
    log.close()
    experiment_file.save(value, path / "experiment.json")
    fingerprints = {split: part.fingerprint() for split, part in index.items()}
    (path / "environment.json").write_text(json.dumps({"data_fingerprint": fingerprints}))
    (path / "best.json").write_text(json.dumps({"checkpoint": f"step_{steps:08d}"}))
    (path / "last.json").write_text(json.dumps({"checkpoint": f"step_{steps // 2:08d}"}))
    (path / "summary.json").write_text(json.dumps({"status": "completed", "epochs": 2}))
    return Run(path)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return make_run(tmp_path_factory.mktemp("runs") / "digits-1")


@pytest.fixture
def copied(finished: Run, tmp_path: Path) -> Run:
    """A run that the test may damage."""
    return Run(shutil.copytree(finished.path, tmp_path / "copied"))


@pytest.fixture
def digit_files(tmp_path: Path) -> Path:
    """The first twelve images to validate on, as PNG files of their true size, some below another folder."""
    index = Digits().index()["val"]
    (tmp_path / "digits" / "more").mkdir(parents=True)
    for number, image in enumerate(Digits().read(index, np.arange(12))):
        Image.fromarray(image[0]).save(tmp_path / "digits" / ("more" if number > 8 else ".") / f"{number:02}.png")
    (tmp_path / "digits" / "notes.txt").touch()
    return tmp_path / "digits"
