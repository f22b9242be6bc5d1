"""Each extra alone in a fresh environment: its feature runs there, and without it one line says what to install."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from helpers.cluster_files import filled
from helpers.wandb_server import synced

from raytrain import cluster

ROOT = Path(__file__).parents[2]
UV = shutil.which("uv") or str(Path(sys.executable).parent / "uv")
BASE = 107
"""Packages of an installation without extras, with this one, on Linux and Python 3.11, in November 2026; the declared
dependencies were then what they were before there were trackers, reports, export and serving."""
TRAIN = ("train", "digits.py", "--scaling.workers", "0", "--epochs", "1", "--name", "one")
TIMM = "from raytrain import *\nexperiment = Experiment(model=Timm('test_resnet'), data=Digits(), epochs=1)\n"
SWEEP = """from raytrain import *
sweep = Sweep(Experiment(model=CNN(), data=Digits(), epochs=2), axes=(LogUniform("optimizer.lr", 0.01, 0.1),), {})
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]  # needs a package index, and installs PyTorch


class Environment:
    """A fresh environment with the package, in a folder of files to work on."""

    def __init__(self, folder: Path, what: str):
        self.bin, self.work = folder / "env" / "bin", folder / "work"
        self.work.mkdir(parents=True)
        (self.work / "digits.py").write_text((ROOT / "experiments" / "digits.py").read_text())
        (self.work / "vit.py").write_text(TIMM)
        (self.work / "tpe.py").write_text(SWEEP.format("search=TPE(startup=1), trials=3"))
        (self.work / "pb2.py").write_text(SWEEP.format("scheduler=PB2(), trials=4"))
        token = {"file_mounts": {"~/.ray/auth_token": "~/.ray/auth_token"}}
        (self.work / "aws.yaml").write_text(yaml.safe_dump(yaml.safe_load(filled(cluster.text("aws"))) | token))
        (self.work / ".ray").mkdir()
        (self.work / ".ray" / "auth_token").write_text(64 * "0")
        (self.work / ".ray" / "auth_token").chmod(0o600)
        self._uv("venv", "--quiet", "--python", sys.executable, folder / "env")
        self._uv("pip", "install", "--quiet", "--python", self.bin / "python", what)

    def packages(self) -> list[str]:
        return [
            one["name"] for one in json.loads(self._uv("pip", "list", "--format=json", "--python", self.bin / "python"))
        ]

    def start(self, *words: object, **more: str) -> subprocess.Popen[str]:
        out = {"PYTHONPATH", "VIRTUAL_ENV", "MLFLOW_TRACKING_URI", "WANDB_MODE"}
        env = {name: value for name, value in os.environ.items() if name not in out}
        env |= {"HOME": str(self.work)} | more
        command = [str(word) for word in words]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(command, cwd=self.work, env=env, start_new_session=True, **pipes)  # type: ignore

    def raytrain(self, *words: object, status: int = 0) -> str:
        said, errors = (process := self.start(self.bin / "raytrain", *words)).communicate(timeout=600)
        assert process.returncode == status, said + errors
        return errors if status else said

    def python(self, code: str) -> str:
        said, errors = (process := self.start(self.bin / "python", "-c", code)).communicate(timeout=300)
        assert process.returncode == 0, said + errors
        return said.strip()

    def _uv(self, *words: object) -> str:
        done = subprocess.run([UV, *map(str, words)], capture_output=True, text=True, timeout=1200)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    done = subprocess.run(
        [UV, "build", "--quiet", "--wheel", "--out-dir", folder, ROOT], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    [file] = folder.glob("*.whl")
    return file


@pytest.fixture(scope="module")
def base(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    made = Environment(tmp_path_factory.mktemp("base"), str(wheel))
    made.raytrain(*TRAIN)
    return made


@pytest.fixture
def extra(wheel: Path, tmp_path: Path) -> Iterator[Callable[[str], Environment]]:
    yield lambda name: Environment(tmp_path, f"raytrain[{name}] @ {wheel.as_uri()}")
    shutil.rmtree(tmp_path / "env", ignore_errors=True)


def test_an_installation_without_extras_has_not_grown(base: Environment) -> None:
    found = base.packages()
    assert len(found) <= BASE, found


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("mlflow", (*TRAIN[:-1], "two", "--log", "mlflow")),
        ("wandb", (*TRAIN[:-1], "two", "--log", "wandb")),
        ("onnx", ("export", "runs/one", "model.onnx")),
        ("serve", ("serve", "runs/one")),
        ("timm", ("train", "vit.py")),
        ("sweep", ("sweep", "tpe.py")),
        ("sweep", ("sweep", "pb2.py")),
        ("aws", ("cluster", "up", "aws.yaml", "--yes")),
    ],
)
def test_without_an_extra_one_line_names_it(base: Environment, name: str, words: tuple[str, ...]) -> None:
    said = base.raytrain(*words, status=2)
    assert said.startswith("error: ") and said.rstrip().endswith(f"pip install 'raytrain[{name}]'")
    assert said.count("\n") == 1 and not (base.work / "runs" / "two").exists()


def test_tensorboard(extra: Callable[[str], Environment]) -> None:
    env = extra("tensorboard")
    env.raytrain(*TRAIN, "--log", "tensorboard")
    code = """from tensorboard.backend.event_processing.event_accumulator import EventAccumulator as Read
(read := Read("runs/one/logs/tensorboard")).Reload()
print(*(event.step for event in read.Scalars("step/loss")))"""
    assert env.python(code) == " ".join(map(str, range(1, 24)))


def test_mlflow(extra: Callable[[str], Environment]) -> None:
    env = extra("mlflow")
    env.raytrain(*TRAIN, "--log", "mlflow")
    code = """from mlflow import MlflowClient
client = MlflowClient("sqlite:///runs/mlflow.db")
[run] = client.search_runs([client.get_experiment_by_name("raytrain").experiment_id])
print(run.info.status, *(one.step for one in client.get_metric_history(run.info.run_id, "step/loss")))"""
    assert env.python(code).split() == ["FINISHED", *map(str, range(1, 24))]


def test_wandb(extra: Callable[[str], Environment]) -> None:
    env = extra("wandb")
    env.raytrain(*TRAIN, "--log", "wandb")
    found = synced(env.work / "runs" / "one" / "logs" / "wandb", env.bin / "python")
    assert sorted(line["_step"] for line in found.lines) == [*range(1, 24)]


def test_onnx(extra: Callable[[str], Environment]) -> None:
    env = extra("onnx")
    env.raytrain(*TRAIN)
    assert "greatest difference to the run's model" in env.raytrain("export", "runs/one", "model.onnx")
    code = """import numpy, onnxruntime
images = numpy.zeros((5, 1, 8, 8), "uint8")
print(*onnxruntime.InferenceSession("model.onnx").run(["outputs"], {"image": images})[0].shape)"""
    assert env.python(code) == "5 10"


def test_serve(extra: Callable[[str], Environment]) -> None:
    env = extra("serve")
    env.raytrain(*TRAIN)
    code = "from PIL import Image; Image.new('L', (8, 8)).save('one.png')"
    env.python(code)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = env.start(env.bin / "raytrain", "serve", "runs/one", "--port", port)
    try:
        assert server.stdout
        lines = iter(server.stdout.readline, "")
        assert any("Ctrl-C ends it" in line for line in lines), server.communicate()[1]
        request = urllib.request.Request(f"http://127.0.0.1:{port}/predict", (env.work / "one.png").read_bytes())
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert len(json.loads(answer.read())["probabilities"]) == 10
    finally:
        server.send_signal(signal.SIGINT)
        server.communicate(timeout=120)


def test_timm(extra: Callable[[str], Environment]) -> None:
    env = extra("timm")
    assert "completed: epoch 1 of 1" in env.raytrain("train", "vit.py", "--scaling.workers", "0")


def test_sweep(extra: Callable[[str], Environment]) -> None:
    env = extra("sweep")
    for file in ("tpe", "pb2"):
        env.raytrain("sweep", f"{file}.py", "--name", file)
        trials = json.loads((env.work / "runs" / file / "sweep.json").read_text())["trials"]
        assert {trial["status"] for trial in trials} == {"completed"}


def test_aws(extra: Callable[[str], Environment]) -> None:
    """The check knows AWS's regions, and the launcher's package is there."""
    env = extra("aws")
    file = env.work / "aws.yaml"
    file.write_text(file.read_text().replace("region: us-west-2", "region: us-moon-2"))
    said, _ = (process := env.start(env.bin / "raytrain", "cluster", "check", "aws.yaml")).communicate(timeout=600)
    assert process.returncode == 2 and "aws has no region us-moon-2" in said
    assert env.python("from ray.autoscaler._private.providers import _import_aws as a; print(a({}).__name__)") == (
        "AWSNodeProvider"
    )
