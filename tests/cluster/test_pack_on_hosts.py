"""A run on two hosts from a pack at a URL: each host fetches each shard once, and one of them goes in mid-epoch."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.cluster.hosts import LAUNCHER, ROOT, Hosts, why_not
from harness.faults.data_runs import STEPS
from helpers.s3_server import settings
from helpers.times import without_times

_RAY = "ray start --disable-usage-stats --num-cpus=2 --node-ip-address="


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    if reason := why_not():
        pytest.skip(reason)
    with Hosts(tmp_path_factory.mktemp("hosts"), count=2) as made:
        for name in ("raytrain", "tests"):
            left_out = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, made.shared / "project" / name, ignore=left_out)
        for name in made.names:
            made.run(name, "cp -r /mnt/shared/project/* ~/raytrain")
        (made.shared / "bucket").mkdir()
        yield made


def rows(run: Path) -> list[dict]:
    try:
        lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    except FileNotFoundError:
        return []
    return [without_times(json.loads(line)) for line in lines if line.endswith("\n")]


@pytest.fixture
def bucket(hosts: Hosts) -> Iterator[Path]:
    """The folder of a bucket with the pack, which serves until the test ends."""
    folder, deadline = hosts.shared / "bucket", time.monotonic() + 120
    served = hosts.popen(LAUNCHER, "PYTHONPATH=tests exec python -m harness.cluster.bucket /mnt/shared/bucket")
    while not (folder / "port").exists():
        assert served.poll() is None and time.monotonic() < deadline, "no bucket"
        time.sleep(0.1)
    yield folder
    served.kill()
    served.wait()


@pytest.mark.slow
def test_each_host_fetches_each_shard_once_and_one_may_go(hosts: Hosts, bucket: Path) -> None:
    known = settings(int((bucket / "port").read_text())) | {"RAY_AUTH_MODE": "disabled"}
    known["AWS_ENDPOINT_URL"] = known["AWS_ENDPOINT_URL"].replace("127.0.0.1", hosts.addresses[LAUNCHER])
    export = "export " + " ".join(f"{name}={shlex.quote(value)}" for name, value in known.items())
    head = hosts.addresses["head"]
    hosts.run("head", f"{export}; {_RAY}{head} --head --port=6379 --include-dashboard=false")
    hosts.run("worker1", f"{export}; {_RAY}{hosts.addresses['worker1']} --address={head}:6379")

    def command(name: str, workers: str, *flags: str) -> str:
        place = f"--address {head}:6379 --out /mnt/shared/runs --name {name} --parallel.strategy deterministic"
        scaling = f"--scaling.workers {workers} --scaling.cpus_per_worker 1.5 --scaling.max_failures 3"
        return f"{export}; raytrain train tests/harness/faults/reads.py {place} {scaling} {' '.join(flags)}"

    run = hosts.shared / "runs" / "cut"
    cut = hosts.popen(
        "head", command("cut", "1:2", "--task.seconds 0.1"), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    with cut:
        while len([row for row in rows(run) if row["kind"] == "step"]) < 25:  # the middle of the third epoch
            assert cut.poll() is None, cut.communicate()[0]
            time.sleep(0.1)
        places = {json.loads(file.read_text())["host"] for file in (run / "logs").glob("place_*.json")}
        assert places == {"head", "worker1"}
        hosts.kill("worker1")
        said = cut.communicate(timeout=400)[0]
    assert cut.returncode == 0 and "lost: " in said, said
    reads = Counter(
        (host, found[0])
        for host, path in (line.split() for line in (bucket / "log").read_text().splitlines())
        if (found := re.findall(r"shard-\d{5}\.bin", path))
    )
    assert set(reads.values()) == {1}, "a host has fetched a shard twice"
    by_host = Counter(host for host, _ in reads)
    assert by_host == {head: 24, hosts.addresses["worker1"]: by_host[hosts.addresses["worker1"]]}
    assert by_host[hosts.addresses["worker1"]] >= 20, "all of the training"
    hosts.run("head", command("whole", "1", "--task.seconds 0"), timeout=400)
    assert rows(run) == rows(hosts.shared / "runs" / "whole")
    steps = [row["step"] for row in rows(run) if row["kind"] == "step"]
    assert steps == list(range(1, STEPS + 1))
