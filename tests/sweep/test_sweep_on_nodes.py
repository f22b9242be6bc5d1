"""Trials of a sweep at a URL in folders of their own, without Ray: what goes where, and what another node finds."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from raytrain import MLP, Digits, Experiment, Scaling, UserError
from raytrain.checkpoint import checkpoints, layout, location
from raytrain.checkpoint.storage import Storage
from raytrain.driver.resources import Node as machine
from raytrain.driver.resources import Resources
from raytrain.sweep import at_url, driver, on_nodes, record
from raytrain.sweep.desk import Desk


class Here:
    """The handle of a desk in this process."""

    def __init__(self, desk: Desk):
        self._desk = desk

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(remote=getattr(self._desk, name))


@pytest.fixture(autouse=True)
def no_ray(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Calls go straight to the desk, and a process that would end raises SystemExit."""
    here = SimpleNamespace(get_node_id=lambda: "node")
    monkeypatch.setattr(on_nodes, "ray", SimpleNamespace(get=lambda one, **_: one, get_runtime_context=lambda: here))
    monkeypatch.setattr(on_nodes, "_ROUND_SECONDS", 3600.0)
    monkeypatch.setattr(on_nodes, "_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(on_nodes.os, "_exit", lambda status: (_ for _ in ()).throw(SystemExit(status)))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield


def begun(url: str) -> tuple[Path, Here]:
    """A sweep's mirror with one trial that was proposed, and its desk."""
    path = location.mirror(url)
    run = record.folder(path, 0)
    run.mkdir(parents=True)
    (run / "experiment.json").write_text("{}")
    record.update(run, number=0, status="pending")
    (path / "sweep.json").write_text(json.dumps({"status": "running", "trials": []}))
    location.note_url(path, url)
    return path, Here(Desk(str(path)))


def train(run: Path, steps: int) -> bytes:
    """What a trial does: `steps` more rows, then a checkpoint."""
    file = run / "metrics.jsonl"
    done = len(file.read_bytes().splitlines()) if file.exists() else 0
    with open(file, "a") as log:
        log.writelines(json.dumps({"kind": "step", "step": done + k + 1}) + "\n" for k in range(steps))
    record.update(run, status="running")
    state = {"metrics_bytes": file.stat().st_size, "progress": {"best": {}}}
    weights = {"w": torch.full((2,), float(done + steps))}
    checkpoints.save(run / "checkpoints", done + steps, weights, {"w": torch.zeros(1)}, state)
    return file.read_bytes()


def test_trial_goes_on_on_another_node_from_its_checkpoint_at_the_url(s3: str) -> None:
    path, desk = begun(f"{s3}/sweeps/elsewhere-{id(object())}")
    mirror, url = record.folder(path, 0), str(location.url_of(path))
    first, second = on_nodes.Node(url, desk), on_nodes.Node(url, desk)
    first.begin(0)
    assert first.take() and not first.take() and first.run is not None
    whole = train(first.run, 3)
    with open(first.run / "metrics.jsonl", "a") as log:
        log.write(json.dumps({"kind": "step", "step": 4}) + "\n")
    first._round()
    assert len((mirror / "metrics.jsonl").read_bytes().splitlines()) == 4 and not (mirror / "checkpoints").exists()
    assert record.read(mirror)["status"] == "running"
    second.begin(0)
    first._round()
    assert second.take() and second.run is not None and (second.run / "metrics.jsonl").read_bytes() == whole, (
        "the fourth row is dropped"
    )
    assert layout.committed(second.run / "checkpoints") == ["step_00000003"]
    rows = train(second.run, 2)
    second._round()
    assert (mirror / "metrics.jsonl").read_bytes() == rows and len(rows.splitlines()) == 5
    train(first.run, 7)  # its node was only cut off
    with pytest.raises(SystemExit):
        first._round()
    there = Storage(url).below("trials/0000")
    assert [*there.committed()] == ["step_00000003", "step_00000005"] and there.read("metrics.jsonl") == rows
    record.update(second.run, status="completed")
    second.finish()
    assert record.read(mirror)["status"] == "completed" and not (mirror / at_url.HOLDER).exists()


def test_end_of_a_trial_is_known_after_its_weights_are_uploaded(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path, desk = begun(f"{s3}/sweeps/end-{id(object())}")
    mirror, url = record.folder(path, 0), str(location.url_of(path))
    node, write, refused = on_nodes.Node(url, desk), Storage.write, list[str]()
    node.begin(0)
    assert node.take() and node.run is not None
    rows = train(node.run, 3)
    record.update(node.run, status="completed")

    def refuse(self: Storage, name: str, content: Path | bytes) -> None:
        assert record.read(mirror)["status"] == "pending" and (mirror / at_url.HOLDER).exists()
        if len(refused) < 3:
            refused.append(name)
            raise OSError("no answer")
        write(self, name, content)

    monkeypatch.setattr(Storage, "write", refuse)
    node._round()
    assert not refused, "a trial that has ended is left to `finish`"
    node.finish()
    assert len(refused) == 3 and record.read(mirror)["status"] == "completed"
    there = Storage(url).below("trials/0000")
    assert [*there.committed()] == ["step_00000003"] and there.read("metrics.jsonl") == rows
    said = desk.said.remote()
    assert len(said) == 1 and "trial 0 on " in said[0] and "waits for storage: no answer" in said[0]
    node.begin(0)
    node.finish()
    assert [*there.committed()] == ["step_00000003"], "a trial that has ended is read only"


def test_driver_uploads_an_end_once_its_node_has_let_the_trial_go(s3: str) -> None:
    path, desk = begun(f"{s3}/sweeps/driver-{id(object())}")
    mirror, url, bare = record.folder(path, 0), str(location.url_of(path)), set[int]()
    uploads = at_url.NodeUploads(path, lambda: [0], print, lambda: bare)
    uploads.push()
    there, node = Storage(url).below("trials/0000"), on_nodes.Node(url, desk)
    assert {"experiment.json", "trial.json"} <= there.names().keys()
    node.begin(0)
    assert node.take() and node.run is not None
    rows = train(node.run, 3)
    (node.run / "summary.json").write_text("{}")
    node._round()
    assert (mirror / "summary.json").exists()
    (mirror / "stop").touch()
    (node.run / "summary.json").unlink()
    node._round()
    assert (node.run / "stop").exists(), "the driver's request reaches the trial"
    assert not (mirror / "summary.json").exists(), "what a new attempt removes"
    record.update(mirror, status="stopped")
    uploads.push()
    assert json.loads(there.read("trial.json"))["status"] == "pending", "its node may have more to upload"
    record.update(node.run, status="paused")
    node.finish()
    uploads.push()
    assert json.loads(there.read("trial.json"))["status"] == "stopped"
    assert there.read("metrics.jsonl") == rows and [*there.committed()] == ["step_00000003"]
    shutil.rmtree(path)
    assert at_url.opened(url) == path and record.read(mirror)["status"] == "stopped"
    assert not (mirror / "checkpoints").exists()
    at_url.Uploads(path, lambda: [0], print).assume()
    assert layout.committed(mirror / "checkpoints") == ["step_00000003"], "a sweep on one machine goes on with them"
    bare.add(0)
    uploads.push()
    assert not there.committed(), "weights that are not kept"


def test_what_one_machine_could_not_upload_is_uploaded_before_nodes_go_on(s3: str) -> None:
    path, _ = begun(f"{s3}/sweeps/unsent-{id(object())}")
    mirror, url = record.folder(path, 0), str(location.url_of(path))
    at_url.Uploads(path, lambda: [0], print).push()  # then its driver is killed
    rows = train(mirror, 3)
    there = Storage(url).below("trials/0000")
    assert at_url.opened(url) == path and not there.committed()
    at_url.NodeUploads(path, lambda: [0], print, lambda: ()).assume()
    assert [*there.committed()] == ["step_00000003"] and there.read("metrics.jsonl") == rows
    assert json.loads(there.read("trial.json"))["status"] == "running"
    assert not (path / at_url._UNSENT).exists(), "from now on the URL alone counts"


def test_workers_that_fit_on_no_single_node_are_refused() -> None:
    value = Experiment(MLP(), Digits(), scaling=Scaling(workers=2, cpus_per_worker=1.0))
    nodes = Resources((machine("a", 2.0, 0.0, 1 << 30), machine("b", 1.0, 0.0, 1 << 30)), "there")

    def planned(*widths: int) -> Any:
        return SimpleNamespace(base=SimpleNamespace(experiment=value), widths=widths, share=nodes)

    driver._check_one_node(planned(1, 2), "s3://bucket/sweep")
    with pytest.raises(UserError, match="the 3 workers of a trial fit on no single node"):
        driver._check_one_node(planned(2, 3), "s3://bucket/sweep")


def test_what_a_pool_has_is_found_on_other_nodes(s3: str) -> None:
    path, desk = begun(f"{s3}/sweeps/pool-{id(object())}")
    url = str(location.url_of(path))
    first, second = on_nodes.Node(url, desk), on_nodes.Node(url, desk)
    for step in (1, 2, 3):
        pool = first.folder / "pool" / f"0007_step_{step:08d}"
        (pool / "step").mkdir(parents=True)
        (pool / "step" / "model").write_text(str(step))
        first.share(pool)
    there = second.folder / "pool" / "0007_step_00000003"
    second.shared(there)
    assert (there / "step" / "model").read_text() == "3"
    names = {name.split("/")[1] for name in Storage(url).names("pool")}
    assert names == {"0007_step_00000002", "0007_step_00000003"}, "the last two of a trial stay"
    second.shared(second.folder / "pool" / "0007_step_00000001")
    assert not (second.folder / "pool" / "0007_step_00000001").exists()
