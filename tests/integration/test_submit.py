"""Jobs on a real cluster of one machine, with a token: sent, followed, refused, stopped; what is open without one."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.own_cluster import Cluster, started, status_of
from helpers.processes import tree
from helpers.readme import the

from raytrain import Run
from raytrain.driver.ray_internals import cluster_state
from raytrain.sweep.sweep_run import SweepRun


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with started(tmp_path_factory.mktemp("home"), cpus=3) as cluster:
        yield cluster


def test_ports_refuse_requests_without_a_token(cluster: Cluster) -> None:
    asked = {
        ("GET", f"{cluster.url}/api/version"),
        ("GET", f"{cluster.url}/api/jobs/"),
        ("POST", f"{cluster.url}/api/jobs/"),
        ("GET", f"{cluster.url}/nodes?view=summary"),
        ("GET", f"{cluster.url}/api/cluster_status"),
        ("GET", f"{cluster.url}/logs"),
        ("POST", f"{cluster.agent}/api/job_agent/jobs/"),
    }
    for method, url in asked:
        assert (status_of(url, None, method), status_of(url, "wrong", method)) == (401, 403), url
    for token in ("", "wrong"):
        with pytest.raises(PermissionError):
            cluster_state.ask_version(cluster.address, token)
    assert cluster_state.ask_version(cluster.address, cluster.token) == "2.60.0"
    import grpc

    with grpc.insecure_channel(f"127.0.0.1:{cluster.ports['ray-client-server-port']}") as channel:
        with pytest.raises(grpc.RpcError) as refused:
            channel.unary_unary("/ray.rpc.RayletDriver/ClusterInfo")(b"", timeout=60, wait_for_ready=True)
    assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED  # type: ignore[attr-defined]
    listing = [sys.executable, "-m", "ray.scripts.scripts", "job", "list", "--address", cluster.url]
    for more, works in (({}, False), ({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "wrong"}, False),
                        ({"RAY_AUTH_MODE": "token"}, True)):  # fmt: skip
        done = subprocess.run(listing, env=cluster.environment(**more), capture_output=True, text=True, timeout=90)
        assert (done.returncode == 0) == works, done.stderr
    # What docs/security.md names as open, and no more of it than that.
    opened = ("/", "/api/gcs_healthz", "/api/authentication_mode")
    assert [status_of(cluster.url + path) for path in opened] == [200, 200, 200]


def test_wrong_token_is_one_line_within_15_seconds(cluster: Cluster, tmp_path: Path) -> None:
    for arguments in (
        ("train", "experiments/digits.py", "--address", cluster.address, "--dry_run"),
        ("submit", "experiments/digits.py", "--address", cluster.url, "--out", tmp_path),
    ):
        for more, says in (
            ({"RAY_AUTH_TOKEN": "wrong"}, "error: the cluster refuses the token of RAY_AUTH_TOKEN, "),
            ({"HOME": str(tmp_path)}, "error: the cluster requires a token, and there is none here ("),
        ):
            began = time.monotonic()
            done = cluster.command(*arguments, **more)
            assert done.returncode == 2 and done.stdout == "" and time.monotonic() - began < 15
            assert done.stderr.startswith(says) and done.stderr.count("\n") == 1


@pytest.mark.slow
def test_jobs_train_are_refused_and_stop_with_a_checkpoint(cluster: Cluster, tmp_path: Path) -> None:
    common = ("--address", cluster.url, "--out", tmp_path / "runs")
    done = cluster.readme(
        the("raytrain submit experiments/digits.py --address http://localhost:8265 --out /shared/runs --name"),
        "--epochs",
        3,
        **{"/shared": tmp_path},
    )
    assert done.returncode == 0 and done.stderr == "", done.stdout + done.stderr
    for text in (
        "workers  2 workers of 1 CPU",
        "3/3 ",
        "completed: epoch 3 of 3, best val_accuracy",
        "next:  raytrain evaluate",
    ):
        assert text in done.stdout
    run = Run(tmp_path / "runs" / "job")
    assert run.summary["status"] == "completed" and run.summary["val_accuracy"] > 0.9

    long = cluster.start("submit", "experiments/digits.py", *common, "--epochs", 100_000, "--name", "long")
    assert long.stdout is not None
    job = next(word for word in long.stdout.readline().split() if word.startswith("raytrain-long-"))
    refused = cluster.start("submit", "experiments/digits.py", *common, "--scaling.gpus_per_worker", 1)
    said = ""
    while "1/100000 " not in said:  # the first epoch's line
        line = long.stdout.readline()
        assert line, long.communicate()[1]
        said = said + line if "model  " in line or said else ""
    arguments = " ".join(Path(f"/proc/{pid}/cmdline").read_text() for pid in tree(cluster.pid))
    assert "raytrain.cli" in arguments and cluster.token not in arguments
    assert "RUNNING" in cluster.readme(the("raytrain status")).stdout
    assert said in cluster.readme(the("raytrain logs"), JOB=job).stdout
    stopped = cluster.readme(the("raytrain stop"), JOB=job)
    assert stopped.returncode == 0 and "STOPPED" in stopped.stdout and "interrupted: epoch " in stopped.stdout
    assert f"next:  raytrain resume {tmp_path}/runs/long" in stopped.stdout
    assert long.wait(120) == 143 and "stopped: " in long.communicate()[0]
    run = Run(tmp_path / "runs" / "long")
    assert run.summary["status"] == "interrupted" and run.checkpoint("last").name == f"step_{run.summary['steps']:08d}"
    _, error = refused.communicate(timeout=300)
    assert refused.returncode == 2 and error.count("\n") == 1
    assert error.startswith("error: the run asks for 2 GPUs and the cluster has 0")

    status = cluster.command("status", job, "--json", "--address", cluster.url)
    assert status.returncode == 0 and job in status.stdout and cluster.token not in status.stdout
    request = urllib.request.Request(f"{cluster.url}/api/jobs/", headers={"Authorization": f"Bearer {cluster.token}"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert cluster.token not in (told := answer.read().decode()) and job in told
    for folder in (tmp_path / "runs", cluster.temporary):
        files = [file for file in folder.rglob("*") if file.is_file() and not file.is_symlink()]
        assert files
        for file in files:
            assert cluster.token.encode() not in file.read_bytes(), file


@pytest.mark.slow
@pytest.mark.parametrize("at_url", [False, True])
def test_sweeps_go_on_when_they_are_submitted_again(cluster: Cluster, tmp_path: Path, at_url: bool) -> None:
    out = f"file://{tmp_path}/bucket" if at_url else str(tmp_path / "runs")
    there = tmp_path / ("bucket" if at_url else "runs") / "job"
    file = tmp_path / "project" / "lrs.py"
    file.parent.mkdir()
    file.write_text(
        "from raytrain import MLP, Digits, Experiment, Grid, Sweep\n"
        "base = Experiment(model=MLP(hidden=(32,)), data=Digits(), epochs=60)\n"
        "sweep = Sweep(base, (Grid('optimizer.lr', (0.1, 0.02)),), concurrent=1)\n"
    )
    again = ("submit", file, "--address", cluster.url, "--out", out, "--name", "job", "--resume")
    first = cluster.start(*again)
    assert first.stdout is not None
    job = next(word for word in first.stdout.readline().split() if word.startswith("raytrain-job-"))
    checkpoints, deadline = there / "trials" / "0000" / "checkpoints", time.monotonic() + 240
    while not [*checkpoints.glob("*/manifest.json")]:
        if first.poll() is not None or time.monotonic() > deadline:
            first.kill()
            pytest.fail(str(first.communicate()))
        time.sleep(0.1)
    stopped = cluster.command("stop", job, "--address", cluster.url)
    assert stopped.returncode == 0 and "STOPPED" in stopped.stdout, stopped.stdout + stopped.stderr
    first.communicate(timeout=120)
    assert first.returncode == 143 and SweepRun(there).answer["status"] == "interrupted"
    done = cluster.command(*again)
    assert done.returncode == 0 and "completed: 2 trials (2 completed)" in done.stdout, done.stdout + done.stderr
    answer = SweepRun(there).answer
    assert answer["status"] == "completed" and [trial["epochs"] for trial in answer["trials"]] == [60, 60]
    rows = [json.loads(line) for line in (there / "trials" / "0000" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if row["kind"] == "step"] == [*range(1, 60 * 23 + 1)]
    once_more = cluster.command(*again)
    assert once_more.returncode == 0 and SweepRun(there).answer["trials"] == answer["trials"]


@pytest.mark.slow
def test_submitted_question_for_precision_and_batch_is_answered(cluster: Cluster, tmp_path: Path) -> None:
    question = ("submit", "--precision_and_batch", "experiments/digits.py", "--address", cluster.url)
    short = ("--trial_samples", 64, "--repeats", 1, "--batch_size", 8, "--scaling.workers", 1)
    done = cluster.command(*question, "--out", tmp_path, "--name", "job", *short)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "each trial was measured alone, once: --repeats 3 shows" in done.stdout and "as flags" in done.stdout
    assert "each trial was measured alone" in (tmp_path / "job" / "report.html").read_text()
    found = SweepRun(tmp_path / "job")
    assert {trial["values"]["precision"] for trial in found.trials} == {"fp32", "bf16"}
    assert {trial["status"] for trial in found.trials} == {"completed"} and (
        tmp_path / "job/recommended.json"
    ).is_file()
