"""`raytrain cluster up`, with a `ray` of ours: it ends once all nodes have joined, and says which are missing."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest
import yaml
from helpers.cluster_files import filled

from raytrain import cli, cluster
from raytrain.cluster import start

STATUS = """======== Autoscaler status: 2026-11-23 04:31:00 ========
Node status
---------------------------------------------------------------
Active:
{active}
Pending:
{pending}
Recent failures:
 (no failures)

Resources
---------------------------------------------------------------
Total Usage:
 0.0/6.0 CPU
"""
Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files `up`, whose status a `ray` of ours ends with, and `status.N`, which it prints at the Nth
    `ray exec`; it notes how it was called in `called`."""
    script = tmp_path / "ray.py"
    script.write_text(f"""
import os, pathlib, sys
folder = pathlib.Path({str(tmp_path)!r})
with open(folder / "called", "a") as file:
    print(sys.argv[1], os.environ.get("RAY_UP_enable_autoscaler_v2"), *sys.argv[2:], file=file)
if sys.argv[1] == "up":
    sys.exit(int((folder / "up").read_text()))
said = sorted(folder.glob("status.*"))
print(said[0].read_text())
if len(said) > 1:
    said[0].unlink()
""")
    (tmp_path / "up").write_text("0")
    monkeypatch.setattr(start, "_RAY", (sys.executable, str(script)))
    monkeypatch.setattr(start, "_PAUSE_SECONDS", 0.0)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("RAY_UP_enable_autoscaler_v2", raising=False)
    monkeypatch.chdir(tmp_path)
    for name in ("raytrain", "experiments", "Makefile", "requirements.lock", "README.md", "LICENSE"):
        (tmp_path / name).touch()
    (tmp_path / "project").mkdir()
    text = filled(cluster.text("on-premises")).replace("  ~/raytrain/pyproject.toml: pyproject.toml\n", "")
    (tmp_path / "machines.yaml").write_text(text)
    return tmp_path


def put(folder: Path, number: int, active: str, pending: str = " (no pending nodes)") -> None:
    (folder / f"status.{number}").write_text(STATUS.format(active=active, pending=pending))


def test_the_cluster_is_up_once_all_min_workers_have_joined(ray: Path, capsys: Capture) -> None:
    put(ray, 1, " (no active nodes)", " 10.1.2.10: local.cluster.node, setting-up")
    put(ray, 2, " 1 local.cluster.node", " 10.1.2.11: local.cluster.node, waiting-for-ssh")
    put(ray, 3, " 3 local.cluster.node")
    assert cli.run(["cluster", "up", "machines.yaml", "--yes"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "waiting for 3 nodes of type local.cluster.node (10.1.2.10: local.cluster.node, setting-up)"
    assert lines[1].startswith("waiting for 2 nodes of type local.cluster.node (10.1.2.11: ")
    assert lines[2].startswith("all 3 nodes have joined") and len(lines) == 3
    started, *asked = (ray / "called").read_text().splitlines()
    assert started == "up 0 --yes machines.yaml" and len(asked) == 3
    assert all("ray status --address 127.0.0.1:6379" in line for line in asked)


def test_nodes_that_do_not_come_end_it_with_1_and_their_type(ray: Path, capsys: Capture) -> None:
    put(ray, 1, " 2 local.cluster.node", " 10.1.2.12: local.cluster.node, uninitialized")
    assert cli.run(["cluster", "up", "machines.yaml", "--minutes", "0.001"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("error: the cluster is not complete: 1 node of type local.cluster.node did not join within ")
    assert "10.1.2.12: local.cluster.node, uninitialized" in said and "`ray down machines.yaml`" in said
    assert said.count("\n") == 1


def test_nodes_whose_setup_failed_are_not_waited_for(
    ray: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start, "_FAILED_SECONDS", 0.0)
    put(ray, 1, " 2 local.cluster.node", " 10.1.2.12: local.cluster.node, setting-up")
    put(ray, 2, " 2 local.cluster.node", " 10.1.2.12: local.cluster.node, uninitialized")
    assert cli.run(["cluster", "up", "machines.yaml"]) == 1
    said = capsys.readouterr().err
    assert (
        "1 node of type local.cluster.node failed to start, and Ray does not try again; why is in monitor.out" in said
    )
    assert (
        "on the head: 10.1.2.12: local.cluster.node, uninitialized" in said
        and "`raytrain cluster up machines.yaml` tries again" in said
    )


def test_a_head_that_does_not_answer_is_said(ray: Path, capsys: Capture) -> None:
    (ray / "status.1").write_text("ssh: connect to host 10.1.2.10 port 22: Connection refused\n")
    assert cli.run(["cluster", "up", "machines.yaml", "--minutes", "0.001"]) == 1
    assert "3 nodes of type local.cluster.node did not join" in (said := capsys.readouterr().err)
    assert "Connection refused" in said


def test_a_ray_up_that_fails_ends_it_with_1(ray: Path, capsys: Capture) -> None:
    (ray / "up").write_text("7")
    assert cli.run(["cluster", "up", "machines.yaml", "--yes"]) == 1
    assert "`ray up` ended with 7" in capsys.readouterr().err


def test_nothing_starts_from_a_wrong_file(ray: Path, capsys: Capture) -> None:
    (ray / "broken.yaml").write_text(cluster.text("on-premises"))
    (ray / "kube.yaml").write_text(filled(cluster.text("kuberay")))
    (ray / "list.yaml").write_text("- a\n")
    for arguments, says in (
        (("broken.yaml",), "errors in the cluster's file"),
        (("kube.yaml",), "`ray up` does not start what this file describes"),
        (("list.yaml",), "`ray up` does not start what this file describes"),
        (("gone.yaml",), "no such cluster file"),
        (("machines.yaml", "--minutes", "0"), "--minutes must be above 0"),
        (("machines.yaml", "--minutes", "nan"), "--minutes must be above 0"),
    ):
        assert cli.run(["cluster", "up", *arguments]) == 2
        assert says in capsys.readouterr().err
    assert not (ray / "called").exists()


@pytest.mark.parametrize(
    ("kind", "module", "package"),
    [("aws", "boto3", "raytrain[aws]"), ("gcp", "googleapiclient", "google-api-python-client")],
)
def test_a_cloud_s_missing_package_is_one_line(
    ray: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture, kind: str, module: str, package: str
) -> None:
    text = yaml.safe_load(filled(cluster.text(kind)))
    (ray / "cloud.yaml").write_text(yaml.safe_dump(text | {"file_mounts": {"~/.ray/auth_token": "~/.ray/auth_token"}}))
    (ray / ".ray").mkdir()
    (ray / ".ray" / "auth_token").touch(0o600)
    find = start.importlib.util.find_spec
    monkeypatch.setattr(start.importlib.util, "find_spec", lambda name: None if name == module else find(name))
    assert cli.run(["cluster", "up", "cloud.yaml", "--yes"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"needs {module}" in line and line.endswith(f"pip install '{package}'")
    assert not (ray / "called").exists()


def test_autoscaler_v2_is_used_on_request_with_a_warning(
    ray: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("RAY_UP_enable_autoscaler_v2", "1")
    put(ray, 1, " 1 local.cluster.node\nIdle:\n 2 local.cluster.node")  # as v2 prints it
    assert cli.run(["cluster", "up", "machines.yaml", "--yes"]) == 0
    assert (ray / "called").read_text().startswith("up 1 ")
    assert capsys.readouterr().out.startswith("warning: autoscaler v2 may leave out workers; unset RAY_UP_enable")


def test_ray_asks_before_it_restarts_a_cluster(ray: Path) -> None:
    put(ray, 1, " 3 local.cluster.node")
    for more in ([], ["--yes"]):
        assert cli.run(["cluster", "up", "machines.yaml", *more]) == 0
    started = [line for line in (ray / "called").read_text().splitlines() if line.startswith("up ")]
    assert started == ["up 0 machines.yaml", "up 0 --yes machines.yaml"]


def test_a_file_asks_for_its_head_and_its_min_workers(ray: Path) -> None:
    text = filled(cluster.text("aws"))
    for old, new, wanted in (
        ("min_workers: 0", "min_workers: 0", {"head": 1}),
        ("min_workers: 0", "min_workers: 3", {"head": 1, "gpu": 3}),
    ):
        (ray / "aws.yaml").write_text(text.replace(old, new))
        assert cluster.nodes(ray / "aws.yaml") == wanted
    text = filled(cluster.text("on-premises"))
    for new, count in (("", 3), ("min_workers: 0", 1), ("min_workers: 1", 2)):
        (ray / "local.yaml").write_text(text.replace("min_workers: 2", new))
        assert cluster.nodes(ray / "local.yaml") == {"local.cluster.node": count}


def _ended(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def test_the_stop_of_a_start_command_ends_its_own_cluster_alone(ray: Path) -> None:
    """The shipped commands, in a shell: the processes with the cluster's variable end, others live on."""
    own = f"raytrain-{uuid.uuid4().hex}"  # a real cluster of this machine is left alone
    command = yaml.safe_load(cluster.text("on-premises"))["worker_start_ray_commands"][0]
    script = ray / "plain.sh"
    script.write_text(cluster.text("plain").replace("raytrain-plain", own))
    assert own in script.read_text() and "raytrain-cluster" in command
    for stop, variable in (
        (command.replace("raytrain-cluster", own), f"/tmp/{own}"),
        (f"bash {shlex.quote(str(script))} stop", f"/tmp/{own}-{os.getuid()}"),
    ):
        # The second one's child no longer has the variable, as Ray's processes that change their title.
        started = [
            subprocess.Popen(command, env={**os.environ, "RAY_TMPDIR": value}, stdout=-1)
            for value, command in (
                (variable, ["sleep", "100"]),
                (variable, ["bash", "-c", "env -u RAY_TMPDIR sleep 100 & echo $!; wait"]),
                *((other, ["sleep", "100"]) for other in (f"{variable}-2", f"/home{variable}", "")),
            )
        ]
        assert started[1].stdout is not None
        child = int(started[1].stdout.readline())
        try:
            subprocess.run(["bash", "-ec", stop], check=True, capture_output=True, timeout=30)
            assert [process.wait(10) for process in started[:2]] == [-9, -9]
            deadline = time.monotonic() + 10
            while not _ended(child):  # it is killed, and may have to wait for a CPU to end on
                assert time.monotonic() < deadline
                time.sleep(0.01)
            assert [process.poll() for process in started[2:]] == [None, None, None]
            subprocess.run(["bash", "-ec", stop], check=True, capture_output=True, timeout=30)  # nothing is left to end
        finally:
            for process in started:
                process.kill()
                process.communicate()
