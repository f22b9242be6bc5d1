"""The commands of the README and its pages, word for word but for the names of folders and what makes them short."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from helpers.commands import succeeds
from helpers.processes import tree
from helpers.readme import BLOCKS, COMMANDS, ROOT, the
from PIL import Image

from raytrain import Digits, Run, cli, config
from raytrain.sweep.sweep_run import SweepRun


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, data_root: Path) -> Path:
    """A folder as a user's clone has it, with data where README speaks of data."""
    folder = tmp_path_factory.mktemp("home")
    (folder / "experiments").symlink_to(ROOT / "experiments")
    (folder / "data").mkdir()
    (folder / "data" / "mnist").symlink_to(data_root / "mnist")
    for kind in ("ants", "bees"):
        (folder / "DIR" / kind).mkdir(parents=True)
        for file in sorted((data_root / "hymenoptera" / "train" / kind).glob("*.jpg"))[:16]:
            (folder / "DIR" / kind / file.name).symlink_to(file)
    index = Digits().index()["val"]
    (folder / "IMAGE_OR_FOLDER").mkdir()
    for number, image in enumerate(Digits().read(index, range(20))):  # type: ignore[arg-type]
        Image.fromarray(image[0]).save(folder / "IMAGE_OR_FOLDER" / f"{number:02}.png")
    return folder


def sh(command: str, home: Path, **environment: str) -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(command, shell=True, cwd=home, capture_output=True, text=True, timeout=300,
                          env={**os.environ, "PATH": path, **environment})  # fmt: skip
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    assert done.stderr == "", f"{command} has something to say at the default verbosity:\n{done.stderr}"
    return done.stdout


Command = Callable[[str], str]


@pytest.fixture
def arguments(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], list[str]]]:
    """The arguments of a command that runs in this process, in the user's folder."""
    monkeypatch.chdir(home)
    monkeypatch.setattr(sys, "path", [*sys.path])

    def split(command: str) -> list[str]:
        sys.modules.pop(config.EXPERIMENT_MODULE, None)
        return shlex.split(command)[1:]

    yield split
    sys.modules.pop(config.EXPERIMENT_MODULE, None)


@pytest.fixture
def here(arguments: Callable[[str], list[str]], capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs a command in this process, which takes seconds less than `sh`, and returns what it printed."""
    return lambda command: succeeds(capsys, *arguments(command))


@pytest.fixture
def refused(arguments: Callable[[str], list[str]], capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs a command in this process that must end with 2, and returns its error."""

    def run(command: str) -> str:
        assert cli.run(arguments(command)) == 2, command
        return capsys.readouterr().err

    return run


def test_every_command_of_the_pages_is_tested() -> None:
    here = [Path(__file__), Path(__file__).with_name("test_submit.py")]
    run = re.findall(r'the\("(raytrain [^"]+)"\)', "".join(file.read_text() for file in here))
    for command in COMMANDS:
        assert command.startswith("make ") or [command.startswith(start) for start in run].count(True) == 1, command


def test_make_train_trains_the_digits_and_make_test_runs_pytest() -> None:
    for target, wants in (("train", ".venv/bin/raytrain train experiments/digits.py"), ("test", "-m pytest")):
        assert f"make {target}" in COMMANDS
        printed = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        assert wants in printed


@pytest.mark.parametrize("name", ["mnist.py", "sweep_amp_batch.py"])
def test_the_experiments_shown_are_those_that_are_there(name: str) -> None:
    code = (ROOT / "experiments" / name).read_text().split('"""', 2)[2]
    assert code.strip() in [block.strip() for block in BLOCKS]


def test_a_first_run_and_what_is_done_with_it(home: Path, cluster: None, here: Command, refused: Command) -> None:
    assert "--optimizer.momentum" in here(the("raytrain train experiments/digits.py --help"))
    plan = here(the("raytrain train experiments/digits.py --optimizer.lr"))
    assert "4 workers x 16 micro-batch x 1 accumulation = 64 global" in plan and not (home / "runs").exists()
    output = sh(the("raytrain train experiments/digits.py --epochs 5"), home)
    assert "best val_accuracy" in output and "raytrain evaluate runs/first" in output
    assert Run(home / "runs/first").summary["val_accuracy"] > 0.95
    result = json.loads(here(the("raytrain evaluate runs/first")))
    assert result["count"] == 359 and result["accuracy"] == Run(home / "runs/first").summary["val_accuracy"]
    here(the("raytrain export runs/first first.pth"))
    here(the("raytrain export runs/first first.safetensors"))
    assert "greatest difference" in here(the("raytrain export runs/first first.onnx"))
    assert "completed" in here(the("raytrain runs"))
    assert (home / "first.pth").stat().st_size > 80_000 and (home / "first.safetensors").is_file()
    here(the("raytrain predict"))
    lines = (home / "predictions.csv").read_text().splitlines()
    assert len(lines) == 21 and lines[0].replace('"', "").startswith("path,label,probability,p_0")
    labels = [Digits().index()["val"].labels[n] for n in range(20)]
    said = [int(line.split(",")[1].strip('"')) for line in lines[1:]]
    assert sum(a == b for a, b in zip(said, labels, strict=True)) >= 18
    first = (home / "runs/first/metrics.jsonl").read_text()
    here(the("raytrain train runs/first/experiment.json"))
    both = [Run(home / f"runs/{name}").metrics("step")["loss"].to_pylist() for name in ("first", "again")]
    assert both[0] == both[1] and len(both[0]) == 115
    here(the("raytrain resume runs/first --epochs") + " --scaling.workers 0")
    assert Run(home / "runs/first").summary["epochs"] == 8
    assert (home / "runs/first/metrics.jsonl").read_text().startswith(first)
    (home / "exp.py").write_text((home / "experiments/digits.py").read_text())
    assert "is complete" in refused(the("raytrain resume runs/first --experiment"))


@pytest.mark.slow
def test_sweeps_that_repeat_their_configurations(home: Path) -> None:
    said = sh(the("raytrain sweep --precision_and_batch") + " --trial_samples 512 --repeats 2 --name headline", home)
    assert (
        re.search("recommended +configuration [0-9]+: ", said) and (home / "runs/headline/recommended.json").is_file()
    )
    repeated = the("raytrain sweep experiments/sweep_amp_batch.py --repeats")
    said = sh(f"{repeated} --epochs 1 --trials 2 --name repeated", home)
    assert "completed: 6 trials" in said and "confidence intervals" in said


def test_an_experiment_is_written_for_a_folder_of_images(here: Command) -> None:
    assert "experiment.py" in here(the("raytrain new FOLDER").replace("FOLDER", "DIR"))
    assert "2 classes" in here(the("raytrain train experiment.py") + " --dry_run --model.weights none")


@pytest.mark.slow
def test_a_run_at_a_url(home: Path, s3: str) -> None:
    assert s3 == "s3://bucket", "README's name for it"
    said = sh(the("raytrain train experiments/digits.py --out s3") + " --epochs 5", home)
    assert "the run is at s3://bucket/runs/first" in said
    sh(the("raytrain resume s3://bucket/runs"), home)
    assert "359" in sh(the("raytrain evaluate s3"), home) and Run("s3://bucket/runs/first").summary["epochs"] == 8


@pytest.mark.slow
def test_a_sweep_at_a_url(home: Path, s3: str) -> None:
    started = the("raytrain sweep experiments/sweep_amp_batch.py --out")
    said = sh(f"{started} --epochs 1 --trials 2", home)
    assert f"the sweep is in {s3}/sweeps/amp" in said and "2 trials (2 completed)" in said
    assert "3 trials (3 completed)" in sh(the("raytrain resume s3://bucket/sweeps") + " --trials 3", home)
    assert "3 trials (3 completed)" in sh(the("raytrain report s3"), home)


@pytest.mark.slow
def test_a_run_goes_on_with_another_strategy(home: Path, refused: Command) -> None:
    elastic = sh(the("raytrain train experiments/digits.py --scaling.workers 1:2"), home)
    assert "(elastic, 1 or 2 as there is room)" in elastic
    assert Run(home / "runs" / "elastic").summary["workers"] == 2
    assert "is complete" in refused(the("raytrain resume RUN").replace("RUN", "runs/elastic"))
    sh(the("raytrain train experiments/digits.py --parallel.strategy fsdp"), home)
    sh(the("raytrain resume runs/sharded"), home)
    run = Run(home / "runs/sharded")
    assert run.summary["epochs"] == 4 and run.summary["workers"] == 1 and run.summary["val_accuracy"] > 0.9


def test_a_learning_rate_is_found(home: Path, here: Command) -> None:
    output = here(the("raytrain lr"))
    assert "raytrain train experiments/digits.py --optimizer.lr 0." in output and not (home / "lr.png").exists()


@pytest.mark.slow
def test_a_micro_batch_is_found(home: Path) -> None:
    output = sh(the("raytrain batch"), home)
    assert re.search(
        r"\n *next: +raytrain train experiments/digits.py --micro_batch_size \d+ --precision fp32\n", output
    )


def test_a_sweep_its_best_trial_and_its_report(home: Path, cluster: None, here: Command) -> None:
    output = here(the("raytrain sweep experiments/sweep_amp_batch.py --name") + " --steps 60 --trials 3 --concurrent 1")
    assert "completed: 3 trials (3 completed)" in output and "raytrain train runs/amp/best.json" in output
    found = SweepRun(home / "runs/amp")
    assert [trial["values"]["batch_size"] for trial in found.trials] == [64, 128, 256]
    here(the("raytrain train runs/amp/best.json"))
    best = found.best
    assert best is not None and best.experiment.batch_size == found.trials[found.answer["best"]]["values"]["batch_size"]
    again = Run(home / "runs/amp-1")
    assert (again.path / "report.html").is_file() and not (best.path / "report.html").exists()
    assert again.metrics("step")["loss"].to_pylist() == best.metrics("step")["loss"].to_pylist()
    (home / "runs/amp/plots/pareto.png").unlink()
    assert "3 trials" in here(the("raytrain report runs")) and (home / "runs/amp/plots/pareto.png").is_file()
    assert "3 trials" in (home / "runs/amp/report.html").read_text()
    before = found.trials
    assert "3 trials (3 completed)" in here("raytrain sweep runs/amp") and found.trials == before


def test_mnist(home: Path, cluster: None, here: Command) -> None:
    command = the("raytrain train experiments/mnist.py").replace("--scaling.workers 2", "--scaling.workers 0")
    here(f"{command} --epochs 1 --batch_size 256")
    assert Run(home / "runs/mnist-1").summary["val_accuracy"] > 0.93


def test_fine_tuning(home: Path, cluster: None, here: Command) -> None:
    command = the("raytrain train experiments/finetune.py")
    assert command.endswith("--model.weights hub")
    short = command.replace("hub", "none") + " --epochs 1 --data.size 64 --data.crop 56 --scaling.workers 0"
    output = here(short)
    assert "21,285,698 parameters, 1,026 of them trained" in output
    assert Run(home / "runs/finetune-1").summary["status"] == "completed"


def test_a_running_cluster_is_used_and_left_running(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (token := home / "token").write_text("0123456789abcdef" * 4)
    token.chmod(0o600)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(token))
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    start = f"{sys.executable} -m ray.scripts.scripts start --head --port 6399 --num-cpus 3 --include-dashboard=false"
    head = subprocess.Popen([*start.split(), "--disable-usage-stats", "--block"], stdout=subprocess.DEVNULL,
                            stderr=subprocess.DEVNULL)  # fmt: skip
    try:
        deadline = time.monotonic() + 60
        while not listens(6399):
            assert time.monotonic() < deadline and head.poll() is None
            time.sleep(0.2)
        doctor = the("raytrain doctor").replace("auto", "127.0.0.1:6399").replace("/shared", str(home / "shared"))
        assert "Ray counts 3 of" in sh(doctor, home) and not (home / "shared").exists()
        command = the("raytrain train experiments/digits.py --address auto").replace("/shared", str(home / "shared"))
        output = sh(command.replace("auto", "127.0.0.1:6399") + " --epochs 2 --scaling.workers 1", home)
        assert ":6399 (3 CPUs" in output
        assert Run(home / "shared/runs/digits-1").summary["status"] == "completed"
        plan = sh("raytrain train experiments/digits.py --dry_run", home, RAY_ADDRESS="127.0.0.1:6399")
        assert ":6399 (3 CPUs" in plan and head.poll() is None
    finally:
        for pid in tree(head.pid):  # and no other Ray of this machine
            os.kill(pid, signal.SIGKILL)
        head.wait()
        last = Path(os.environ.get("RAY_TMPDIR", "/tmp"), "ray", "ray_current_cluster")
        with contextlib.suppress(OSError):  # a later ray.init() would wait for the head that it names
            if last.read_text().endswith(":6399"):
                last.unlink()


def test_clusters_files_are_begun_and_checked(
    home: Path, monkeypatch: pytest.MonkeyPatch, here: Command, refused: Command
) -> None:
    (elsewhere := home / "elsewhere").mkdir()
    monkeypatch.chdir(elsewhere)
    monkeypatch.setenv("HOME", str(elsewhere))  # so that nobody's token has a say
    for name in ("cluster.yaml", "raytrain", "experiments", "Makefile", "pyproject.toml", "requirements.lock",
                 "README.md", "LICENSE"):  # fmt: skip
        (elsewhere / name).symlink_to(ROOT / name)  # as in a clone: files for `ray up` bring the project
    for command, file in (
        (the("raytrain cluster init on-premises"), "machines.yaml"),
        (the("raytrain cluster init kuberay-job"), "job.yaml"),
        (the("raytrain cluster init slurm"), "train.sh"),
    ):
        said = here(command)
        assert said.startswith(f"wrote {file}; edit the lines marked EDIT: ")
    checks = {
        "machines.yaml": the("raytrain cluster check machines.yaml"),
        "job.yaml": the("raytrain cluster check job.yaml"),
        "cluster.yaml": the("raytrain cluster check cluster.yaml"),
    }
    starts = (the("raytrain cluster up machines.yaml"), the("raytrain cluster up cluster.yaml"))
    for command in (*checks.values(), *starts):
        assert "in the cluster's file" in refused(command), "placeholders are left"
    machines = elsewhere / "machines.yaml"
    machines.write_text(re.sub(" +# EDIT.*", "", machines.read_text().replace("192.0.2.", "10.0.0.")))
    assert here(checks["machines.yaml"]) == "machines.yaml: nothing is wrong\n"


def test_submitted_commands_are_parsed_before_they_are_sent(refused: Command) -> None:
    submit = the("raytrain submit experiments/digits.py --address http://localhost:8265 --out /shared/runs --scaling")
    assert "http://localhost:1" in refused(submit.replace("8265", "1"))
    assert "unknown flag --scaling.worker;" in refused(submit.replace("8265", "1").replace("workers", "worker"))


def listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def test_own_model_and_task_are_trained_and_kept(home: Path, cluster: None, here: Command) -> None:
    (home / "own.py").write_text(next(block for block in BLOCKS if "class AutoEncoder" in block))
    here("raytrain train own.py --epochs 2 --scaling.workers 1 --model.width 8 --name own")
    summary = Run(home / "runs/own").summary
    assert summary["status"] == "completed" and summary["val_loss"] > 0 and "val_accuracy" not in summary
    (home / "own.py").unlink()
    assert "AutoEncoder, 1,096 parameters" in here("raytrain train runs/own/experiment.json --dry_run")
    assert json.loads(here("raytrain evaluate runs/own --json"))["loss"] == pytest.approx(summary["val_loss"])
