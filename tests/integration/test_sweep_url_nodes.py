"""Sweeps at a URL on the nodes of a cluster that share nothing but the URL."""

from __future__ import annotations

import json
import socket
import subprocess
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers import nodes
from helpers.killed_runs import command, rows

from raytrain import Run
from raytrain.checkpoint.storage import Storage
from raytrain.sweep import record
from raytrain.sweep.sweep_run import SweepRun

FILE = '''
    """Two trials wait for each other in their first epoch, so that both nodes train, and take some seconds."""

    import time
    from dataclasses import dataclass
    from pathlib import Path

    from raytrain import MLP, SGD, Digits, Experiment, Grid, Hook, Scaling, Sweep


    @dataclass(frozen=True)
    class Slow(Hook):
        folder: str

        def after_epoch(self, trainer, row):
            Path(self.folder, str(trainer.experiment.optimizer.lr)).touch()
            while len(list(Path(self.folder).iterdir())) < 2:
                time.sleep(0.1)
            time.sleep(0.5)


    sweep = Sweep(
        experiment=Experiment(
            model=MLP(hidden=(16,)),
            data=Digits(),
            optimizer=SGD(lr=0.05),
            epochs=12,
            scaling=Scaling(threads_per_worker=1),
            hooks=(Slow("FOLDER"),),
        ),
        axes=(Grid("optimizer.lr", (0.01, 0.1, 0.3, 0.2)),),
        keep=2,
        retries=0,
    )
'''


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A node without CPUs, for the driver, and two for a trial each. Each has a cache of its own."""
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with nodes.started(0) as found:
        caches = [tmp_path / "cache0", tmp_path / "cache1", tmp_path / "cache2"]
        for cache in caches[1:]:
            found.add_node(num_cpus=1, env_vars={"XDG_CACHE_HOME": str(cache)})
        monkeypatch.setenv("XDG_CACHE_HOME", str(caches[0]))
        yield SimpleNamespace(address=found.address, kill_node=found.kill_node, caches=caches)


def known(trials: list[dict]) -> list[tuple]:
    return [(one["number"], one["status"], one["values"], one["objective"], one["epochs"]) for one in trials]


def held_by(cluster: Any, number: int) -> str | None:
    """The id of the node that has a trial; None before it trains."""
    for file in cluster.caches[0].glob(f"raytrain/runs/*/nodes/trials/{number:04d}/holder.json"):
        return json.loads(file.read_text())["node"]
    return None


def started(file: Path, folder: Path, *arguments: str) -> subprocess.Popen:
    """The sweep, whose trials meet in a new folder."""
    folder.mkdir()
    own = file.with_name(f"{folder.name}.py")
    own.write_text(file.read_text().replace("FOLDER", str(folder)))
    return subprocess.Popen(
        command("sweep", str(own), *arguments), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


@pytest.mark.slow
def test_sweep_at_a_url_loses_no_trial_with_a_node(s3: str, tmp_path: Path, cluster: Any) -> None:
    file, url = tmp_path / "lr.py", f"{s3}/sweeps/nodes"
    file.write_text(textwrap.dedent(FILE))
    process = started(file, tmp_path / "whole_met", "--out", str(tmp_path), "--name", "whole", "--concurrent", "2")
    said, _ = process.communicate(timeout=600)
    assert process.returncode == 0, said
    whole = SweepRun(tmp_path / "whole")
    at = ("--address", cluster.address, "--out", f"{s3}/sweeps", "--name", "nodes")
    process, storage, deadline = started(file, tmp_path / "met", *at), Storage(url), time.monotonic() + 900
    try:
        before = set[str]()
        while before != {"running"}:  # a checkpoint gets there before its trial's status
            assert process.poll() is None and time.monotonic() < deadline, process.communicate(timeout=5)
            time.sleep(0.5)
            if storage.below("trials/0001").committed():
                before = {json.loads(storage.read(f"trials/{n:04d}/trial.json"))["status"] for n in (0, 1)}
        lost = held_by(cluster, 1)
        assert lost is not None and held_by(cluster, 0) not in (None, lost), "both nodes train"
        cluster.kill_node(lost)
        said, _ = process.communicate(timeout=900)
    finally:
        process.kill()
    assert process.returncode == 0, said
    found = SweepRun(url)
    assert known(found.trials) == known(whole.trials) and found.answer["best"] == whole.answer["best"]
    assert [one["attempts"] for one in found.trials] == [1, 2, 1, 1], "it went on on the other node"
    for number in range(4):
        own, expected = (record.folder(one.path, number) for one in (found, whole))
        assert rows(own) == rows(expected), "each step once, and each loss bit for bit"
    kept = {name.split("/")[1] for name in storage.names() if "/checkpoints/" in name}
    assert kept == {one.parent.name for one in whole.path.glob("trials/*/checkpoints")}
    for name in kept:
        ours, theirs = Run(f"{url}/trials/{name}").model(), Run(whole.path / "trials" / name).model()
        assert {n: t.tolist() for n, t in ours.state_dict().items()} == {
            n: t.tolist() for n, t in theirs.state_dict().items()
        }
    left = [one for one in cluster.caches[0].rglob("model.safetensors") if "/workers/" not in str(one)]
    assert {one.parents[2].name for one in left} <= kept, "the driver's node has only what the test has read"
    assert all((cache / "raytrain" / "trials").is_dir() for cache in cluster.caches[1:]), "both nodes trained"
    assert {one["host"] for one in found.trials} == {socket.gethostname()}
    assert "host" in (found.path / "trials.csv").read_text().splitlines()[0].split(",")


POPULATION = """
    from raytrain import *

    sweep = Sweep(
        Experiment(
            MLP(hidden=(16,)), Digits(), optimizer=SGD(lr=0.05), epochs=12, scaling=Scaling(threads_per_worker=1)
        ),
        axes=(LogUniform("optimizer.lr", 0.0005, 0.5), Uniform("optimizer.momentum", 0.0, 0.9)),
        scheduler=PBT(every_epochs=4),
        trials=4,
    )
"""


@pytest.mark.slow
def test_population_takes_weights_from_other_nodes(s3: str, tmp_path: Path, cluster: Any) -> None:
    file, url = tmp_path / "population.py", f"{s3}/sweeps/over_nodes"
    file.write_text(textwrap.dedent(POPULATION))
    start = command("sweep", str(file), "--address", cluster.address, "--out", f"{s3}/sweeps", "--name", "over_nodes")
    done = subprocess.run(start, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    found = SweepRun(url)
    assert [(one["status"], one["epochs"]) for one in found.trials] == [("completed", 12)] * 4
    taken = [one for one in found.trials if one.get("taken")]
    assert taken and all(1 <= len(one["taken"]) <= 2 for one in taken), "the worst one, at each comparison but the last"
    for number in range(4):
        steps = [row["step"] for row in rows(record.folder(found.path, number)) if row["kind"] == "step"]
        assert steps == list(range(1, 12 * 23 + 1))
    assert not any(name.startswith("pool/") for name in Storage(url).names())
    again = command("train", str(found.path / "best.json"), "--out", str(tmp_path), "--name", "again")
    subprocess.run(again, check=True, capture_output=True, timeout=600)
    assert found.best is not None
    ours, theirs = found.best.model(), Run(tmp_path / "again").model()
    assert {n: t.tolist() for n, t in ours.state_dict().items()} == {
        n: t.tolist() for n, t in theirs.state_dict().items()
    }
