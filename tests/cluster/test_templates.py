"""The files that `raytrain cluster init` gives."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from raytrain import cli, cluster
from raytrain.cli.flags.again import again
from raytrain.driver.ray_internals import cluster_file

ROOT = Path(__file__).parents[2]
LAUNCHED = ("aws", "gcp", "azure", "on-premises")
Capture = pytest.CaptureFixture[str]


def test_the_top_level_file_is_that_for_aws() -> None:
    assert (ROOT / "cluster.yaml").read_text() == cluster.text("aws")


@pytest.mark.parametrize("kind", LAUNCHED)
def test_rays_own_schema_takes_the_files(kind: str) -> None:
    values = yaml.safe_load(cluster.text(kind))
    assert cluster_file.refused_cluster(values) is None
    assert cluster_file.refused_cluster({**values, "cluster_name": 7}) == (
        ("cluster_name",),
        "7 is not of type 'string'",
    )


def test_every_file_has_a_kind_and_says_how_it_is_used() -> None:
    files = {path.name for path in (ROOT / "raytrain/cluster/files").iterdir()}
    assert len(cluster.KINDS) == len(files)
    for kind in cluster.KINDS:
        text = cluster.text(kind)
        assert "token" in text.partition("\n\n")[0] or kind.startswith("kuberay"), kind
        assert "RAY_AUTH_MODE=token" in text or "mode: token" in text, kind
        assert "/shared" in text, kind


@pytest.mark.parametrize("kind", cluster.KINDS)
def test_init_prints_or_writes_and_never_over_a_file(kind: str, tmp_path: Path, capsys: Capture) -> None:
    assert cli.run(["cluster", "init", kind]) == 0
    text = capsys.readouterr().out
    assert text == cluster.text(kind)
    file = tmp_path / "mine"
    assert cli.run(["cluster", "init", kind, "--out", str(file)]) == 0
    said = capsys.readouterr().out
    assert file.read_text() == text and said.startswith(f"wrote {file}")
    lines = [int(number) for number in re.findall(r"\d+", said.partition("EDIT: ")[2])]
    assert lines == [n for n, line in enumerate(text.splitlines(), 1) if "# EDIT" in line]
    file.write_text("mine")
    assert cli.run(["cluster", "init", kind, "--out", str(file)]) == 2 and file.read_text() == "mine"
    assert "is not written over" in capsys.readouterr().err


def test_mistakes_of_init(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for arguments, said in (
        (("gpc",), "no kind of cluster 'gpc'; did you mean gcp?"),
        (("aws", "--out", str(tmp_path / "no" / "f")), "cannot be written"),
        (("aws", "--out", str(tmp_path)), "is not written over"),
        (("aws", "--out", str(tmp_path / "link")), "is not written over"),
        ((), "KIND"),
    ):
        assert cli.run(["cluster", "init", *arguments]) == 2
        assert said in capsys.readouterr().err
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("kind", ["slurm", "plain"])
def test_the_scripts_are_ones_that_bash_reads(kind: str, tmp_path: Path) -> None:
    (tmp_path / "script").write_text(cluster.text(kind))
    subprocess.run(["bash", "-n", tmp_path / "script"], check=True)


def stubs(folder: Path, **commands: str) -> dict[str, str]:
    """An environment in which some commands are scripts of ours."""
    (folder / "bin").mkdir()
    for name, body in commands.items():
        (folder / "bin" / name).write_text(f"#!/bin/bash\n{body}\n")
        (folder / "bin" / name).chmod(0o755)
    return {"PATH": f"{folder / 'bin'}:/usr/bin:/bin", "HOME": str(folder)}


@pytest.mark.parametrize(
    ("ray", "status"),
    [
        ('shift 3; while [ $1 != -- ]; do shift; done; shift; exec "$@"', 0),
        ('while [ $1 != -- ]; do shift; done; shift; "$@"', 7),
        ("exit 0", 1),  # as symmetric-run does where Ray did not start
        ("exit 1", 1),
    ],
    ids=["trained", "failed", "not started, exit 0", "not started, exit 1"],
)
def test_the_slurm_script_ends_as_the_training_did(ray: str, status: int, tmp_path: Path) -> None:
    environment = stubs(
        tmp_path,
        scontrol="printf 'n1\\nn2\\n'",
        hostname="echo 192.0.2.1 fe80::1",
        srun='while [[ $1 == --* ]]; do shift; done; exec "$@"',
        ray=ray,
        raytrain=f'echo "$RAY_ADDRESS $RAY_AUTH_MODE $*" > $HOME/called; exit {status if status == 7 else 0}',
    )
    (tmp_path / "raytrain").mkdir()
    script = tmp_path / "slurm.sh"
    script.write_text(cluster.text("slurm").replace("/shared/runs", str(tmp_path / "runs")))
    job = {"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_JOB_ID": "5", "SLURM_JOB_NUM_NODES": "2", "SLURM_CPUS_PER_TASK": "8"}
    done = subprocess.run(["bash", script], env={**environment, **job}, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stderr
    assert ("Ray did not start" in done.stderr) == (status == 1)
    if status != 1:
        called = (tmp_path / "called").read_text()
        assert called.startswith("192.0.2.1:6379 token train experiments/digits.py --scaling.workers 2 --out ")
        assert called.endswith(" --name slurm-5 --resume\n"), "a job that is queued again goes on"


def test_plain_script_never_starts_without_a_token(tmp_path: Path) -> None:
    environment = stubs(tmp_path, ray='echo "$RAY_AUTH_MODE $*"')
    script = tmp_path / "plain.sh"
    script.write_text(cluster.text("plain"))

    def run(*arguments: str) -> tuple[int, str]:
        done = subprocess.run(
            ["bash", script, *arguments], env=environment, capture_output=True, text=True, check=False
        )
        return done.returncode, done.stdout + done.stderr

    assert run("head", "192.0.2.10")[0] == 2 and "no token" in run("head", "192.0.2.10")[1]
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("secret")
    assert run("head", "192.0.2.10") == (
        *(0, "token start --head --node-ip-address=192.0.2.10 --port=6379 --disable-usage-stats\n"),
    )
    assert run("worker", "192.0.2.10") == (0, "token start --address=192.0.2.10:6379 --disable-usage-stats\n")
    for arguments in ((), ("head",), ("boss", "192.0.2.10")):
        assert run(*arguments)[0] == 2 and "usage:" in run(*arguments)[1]


def test_the_files_come_with_the_package(tmp_path: Path) -> None:
    """They are read beside the modules, from any folder."""
    done = subprocess.run(
        [sys.executable, "-c", "from raytrain import cluster; print([len(cluster.text(k)) for k in cluster.KINDS])"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert json.loads(done.stdout) == [len(cluster.text(kind)) for kind in cluster.KINDS]


def test_a_rayjob_that_is_retried_goes_on_with_its_run(tmp_path: Path) -> None:
    job = yaml.safe_load(cluster.text("kuberay-job").replace("/shared/runs", str(tmp_path)))
    _, _, *arguments = shlex.split(job["spec"]["entrypoint"])
    assert again(arguments) is None, "the first attempt begins the run"
    (tmp_path / "digits").mkdir()
    (tmp_path / "digits" / "experiment.json").write_text("{}")
    assert again(arguments) == [str(tmp_path / "digits"), "--address", "auto", "--scaling.workers", "1:2"]
