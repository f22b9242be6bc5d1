"""The files of a sweep at a URL, without Ray: what is uploaded when, and what another machine finds there."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from helpers.commands import fails, no_runs, without_ray

from raytrain import cli
from raytrain.checkpoint import layout, location
from raytrain.checkpoint.storage import Storage
from raytrain.run.lock import Lock
from raytrain.sweep import at_url, record

__all__ = ["no_runs", "without_ray"]


def sweep(url: str, statuses: dict[int, str]) -> Path:
    """A sweep's mirror with trials that have a row of metrics each."""
    path = location.mirror(url)
    shutil.rmtree(path, ignore_errors=True)
    for number, status in statuses.items():
        run = record.folder(path, number)
        (run / "logs").mkdir(parents=True)
        (run / "metrics.jsonl").write_text(json.dumps({"kind": "epoch", "epoch": number}) + "\n")
        (run / "logs" / "rank_0.log").write_text("")
        record.update(run, number=number, status=status)
    (path / "sweep.json").write_text(json.dumps({"status": "running", "trials": []}))
    location.note_url(path, url)
    return path


def written(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The objects that are written from now on, in order."""
    found, write = list[str](), Storage.write

    def note(self: Storage, name: str, content: Path | bytes) -> None:
        found.append(f"{self._root}/{name}".partition("/sweeps/")[2].partition("/")[2])
        write(self, name, content)

    monkeypatch.setattr(Storage, "write", note)
    return found


def test_record_of_a_trial_is_uploaded_after_its_files(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = sweep(f"{s3}/sweeps/order", {0: "completed", 1: "running"})
    names, said = written(monkeypatch), list[str]()
    uploads = at_url.Uploads(path, lambda: [0, 1], said.append)
    with uploads:
        files = ["logs/rank_0.log", "metrics.jsonl", "trial.json"]
        assert names == [*(f"trials/{k:04d}/{name}" for k in (0, 1) for name in files), "sweep.json"]
        names.clear()
    assert names == [], "what has not changed is not uploaded again"
    record.update(record.folder(path, 1), status="completed")
    uploads.push()
    assert names == ["trials/0001/trial.json"] and not said


def test_nothing_stays_of_weights_that_are_pruned_while_they_are_uploaded(
    s3: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = sweep(f"{s3}/sweeps/pruned", {0: "completed"})
    checkpoint = record.folder(path, 0) / "checkpoints" / "step_00000037"
    checkpoint.mkdir(parents=True)
    for name in (*layout.PARTS, layout.MANIFEST):
        (checkpoint / name).write_text("{}")
    write = Storage.write

    def prune(self: Storage, name: str, content: Path | bytes) -> None:
        write(self, name, content)
        if name.endswith(layout.PARTS[0]):
            shutil.rmtree(checkpoint.parent)

    monkeypatch.setattr(Storage, "write", prune)
    uploads = at_url.Uploads(path, lambda: [0], list[str]().append)
    uploads.push()
    assert [name for name in Storage(f"{s3}/sweeps/pruned").names() if "/checkpoints/" in name], "parts are there"
    uploads.push()
    assert not [name for name in Storage(f"{s3}/sweeps/pruned").names() if "/checkpoints/" in name]


def test_another_machine_finds_what_is_at_the_url(s3: str) -> None:
    url = f"{s3}/sweeps/moved"
    path = sweep(url, {0: "completed", 1: "running"})
    with at_url.Uploads(path, lambda: [0, 1], print):
        pass
    files = {name: (path / name).read_bytes() for name in Storage(url).names()}
    assert len(files) == 7
    (path / "trials" / "0001" / "trial.json").write_text('{"status": "completed"}')  # not uploaded: does not count
    record.folder(path, 2).mkdir()
    record.update(record.folder(path, 2), status="pending")
    lock = (path / "trials" / "0001" / record.LOCK).stat().st_ino
    assert at_url.opened(url) == path and not record.read(record.folder(path, 2))
    assert lock == (path / "trials" / "0001" / record.LOCK).stat().st_ino, "an ending trial may hold it"
    assert {name: (path / name).read_bytes() for name in files} == files and location.url_of(path) == url
    Storage(url).write("trials/0001/checkpoints/step_00000023/state.json", b"{}")
    again = at_url.Uploads(path, lambda: [0, 1], print)
    again.assume()
    assert Storage(url).names().keys() == files.keys(), "a part of a checkpoint is removed"
    Storage(url).remove("sweep.json")
    with again:
        assert "sweep.json" not in Storage(url).names(), "what was downloaded is not uploaded again"
    assert at_url.opened(url) is None and at_url.opened(f"{s3}/sweeps/none") is None


def test_mirror_of_a_sweep_that_goes_on_here_is_not_touched(s3: str) -> None:
    url = f"{s3}/sweeps/live"
    path = sweep(url, {0: "running"})
    with Lock(path):
        assert at_url.opened(url) == path and (path / "trials" / "0000" / "trial.json").is_file()
    assert at_url.opened(url) is None, "nothing is there"


def test_storage_that_fails_is_said_once_and_tried_again(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    url, said, write = f"{s3}/sweeps/fails", list[str](), Storage.write
    path = sweep(url, {0: "completed"})
    uploads = at_url.Uploads(path, lambda: [0], said.append)

    def refuse(self: Storage, name: str, content: Path | bytes) -> None:
        raise OSError("refused")

    monkeypatch.setattr(Storage, "write", refuse)
    uploads._try()
    uploads._try()
    assert len(said) == 1 and "refused" in said[0]
    monkeypatch.setattr(Storage, "write", write)
    uploads._try()
    assert {"sweep.json", "trials/0000/trial.json"} <= Storage(url).names().keys()


@pytest.mark.usefixtures("without_ray")
def test_a_sweep_at_a_url_is_planned_and_its_name_is_taken(s3: str, tmp_path: Path, capsys) -> None:  # type: ignore[no-untyped-def]
    file, out = tmp_path / "lr.py", f"{s3}/sweeps"
    file.write_text(
        "from raytrain import MLP, Digits, Experiment, Grid, Sweep\n"
        'sweep = Sweep(Experiment(model=MLP(), data=Digits()), (Grid("optimizer.lr", (0.1, 0.2)),))\n'
    )
    assert cli.run(["sweep", str(file), "--out", out, "--name", "new", "--dry_run"]) == 0
    assert f"in  {out}/new" in capsys.readouterr().out and not Storage(f"{out}/new").names()
    Storage(f"{out}/new").write("sweep.json", b"{}")
    assert "a run of that name exists" in fails(capsys, "sweep", file, "--out", out, "--name", "new")


@pytest.mark.usefixtures("without_ray")
def test_a_url_without_a_sweep_is_named_as_it_was_given(s3: str, capsys) -> None:  # type: ignore[no-untyped-def]
    said = fails(capsys, "sweep", f"{s3}/sweeps/none")
    assert f"no sweep there (it has no sweep.json), {s3}/sweeps/none; give a folder" in said


def test_what_storage_has_refused_stays_in_the_mirror(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    url, said, write = f"{s3}/sweeps/unsent", list[str](), Storage.write
    path = sweep(url, {0: "running"})
    own = record.folder(path, 0)
    uploads = at_url.Uploads(path, lambda: [0], said.append)
    with uploads:
        (path / "sweep.json").write_text(json.dumps({"status": "running", "trials": [0]}))
        uploads.push()

        def refuse(self: Storage, name: str, content: Path | bytes) -> None:
            raise OSError("refused")

        monkeypatch.setattr(Storage, "write", refuse)
        record.update(own, status="completed")  # then the command ends
    assert len(said) == 1 and f"`raytrain resume {url}` on this machine" in said[0]
    monkeypatch.setattr(Storage, "write", write)
    assert at_url.opened(url) == path
    assert record.read(own)["status"] == "completed", "an ended trial is not trained again"
    again = at_url.Uploads(path, lambda: [0], said.append)
    again.assume()
    with again:
        pass
    assert json.loads(Storage(url).read("trials/0000/trial.json"))["status"] == "completed"
    assert at_url._UNSENT not in {one.name for one in path.iterdir()} | Storage(url).names().keys()


def test_another_machine_that_went_on_wins_over_what_is_left_here(s3: str) -> None:
    url = f"{s3}/sweeps/elsewhere"
    path = sweep(url, {0: "running"})
    uploads = at_url.Uploads(path, lambda: [0], print)
    uploads.push()  # then the driver is killed
    record.update(record.folder(path, 0), status="completed")
    Storage(url).write("sweep.json", json.dumps({"status": "running", "trials": [], "seconds": 7}).encode())
    assert at_url.opened(url) == path
    assert record.read(record.folder(path, 0))["status"] == "running", "that machine trains it"
    assert json.loads((path / "sweep.json").read_text())["seconds"] == 7
