"""`raytrain runs`: what it lists, in which order, and that damage does not break it."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import pytest
from helpers.commands import fails, finished, succeeds, without_ray

import raytrain
from raytrain import MLP, Digits, Experiment, Run, UserError
from raytrain.checkpoint.location import mirror
from raytrain.driver import endings, fit, plan, resources
from raytrain.report import runs
from raytrain.run import experiment_file
from raytrain.run.lock import LOCK, WRITER_LOCK, Lock

__all__ = ["finished", "without_ray"]

pytestmark = pytest.mark.usefixtures("without_ray")
Capture = pytest.CaptureFixture[str]
SWEEP = Path(__file__).parents[1] / "old_runs" / "sweep"


@pytest.fixture
def root(finished: Run, tmp_path: Path) -> Path:
    """Runs in all states, and a sweep."""
    runs = tmp_path / "runs"
    outcomes = {
        "good": {"status": "completed", "monitor": "val_accuracy", "val_accuracy": 0.9, "epochs": 3, "steps": 69},
        "group/worse": {"status": "failed", "monitor": "val_accuracy", "val_accuracy": 0.25, "epochs": 1, "steps": 23},
    }
    for age, (name, outcome) in enumerate(outcomes.items()):
        shutil.copytree(finished.path, runs / name)
        (runs / name / "summary.json").write_text(json.dumps(outcome))
        for file in ("summary.json", "metrics.jsonl", "experiment.json"):
            os.utime(runs / name / file, (1e9 - age * 1e6, 1e9 - age * 1e6))
    shutil.copytree(SWEEP, runs / "search")
    return runs


def listed(capsys: Capture, *arguments: object) -> list[dict]:
    return json.loads(succeeds(capsys, "runs", *arguments, "--json"))


def test_runs_and_sweeps_are_listed_without_trials(root: Path, capsys: Capture) -> None:
    found = {one["name"]: one for one in listed(capsys, root)}
    assert found.keys() == {"good", "group/worse", "search"}
    good, worse, sweep = found["good"], found["group/worse"], found["search"]
    assert (good["kind"], good["status"], good["epochs"], good["steps"]) == ("run", "completed", 3, 69)
    assert (good["of_epochs"], good["of_steps"]) == (2, None)
    assert (good["metric"], good["best"], worse["status"], worse["best"]) == ("val_accuracy", 0.9, "failed", 0.25)
    assert good["bytes"] == sum(path.stat().st_size for path in (root / "good").rglob("*") if path.is_file())
    answer = json.loads((SWEEP / "sweep.json").read_text())
    assert (sweep["kind"], sweep["trials"], sweep["status"]) == ("sweep", len(answer["trials"]), answer["status"])
    assert sweep["best"] == answer["trials"][answer["best"]]["objective"][0]


def test_runs_at_a_url_are_those_of_its_folder(root: Path, capsys: Capture, tmp_path: Path) -> None:
    (root / "group" / "worse" / "summary.json").unlink()  # its progress is that of its rows
    assert listed(capsys, f"file://{root}") == listed(capsys, root)
    assert succeeds(capsys, "runs", f"file://{root}/", "--sort", "name") == succeeds(
        capsys, "runs", root, "--sort", "name"
    )
    assert listed(capsys, f"file://{root}/good") == listed(capsys, root / "good")
    url = f"file://{root}/group"
    mirror(f"{url}/worse").mkdir(parents=True, exist_ok=True)
    with Lock(mirror(f"{url}/worse")):
        (one,) = listed(capsys, url)
    assert one["status"] == "running", "a process of this machine trains it"
    (tmp_path / "empty").mkdir()
    assert succeeds(capsys, "runs", f"file://{tmp_path}/empty") == f"no runs in file://{tmp_path}/empty\n"
    assert "nothing is there, file:///" in fails(capsys, "runs", f"file://{tmp_path}/none")
    assert "the URL holds a password" in fails(capsys, "runs", "s3://a:b@bucket/runs")


def test_the_best_of_a_sweep_with_repeats_is_a_mean(tmp_path: Path, capsys: Capture) -> None:
    """The best repeat of a configuration is better than what the configuration reaches."""
    trials = [
        {"number": n, "status": "completed", "objective": [value]} for n, value in enumerate((0.7, 0.6, 0.5, 0.9))
    ]
    rows = [
        {"number": n, "trials": [2 * n, 2 * n + 1], "whole": True, "objectives": [{"values": values, "mean": mean}]}
        for n, values, mean in ((1, [0.5, 0.9], 0.7), (0, [0.7, 0.6], 0.65))
    ]
    answer = {"status": "completed", "objectives": [{"name": "val_accuracy", "mode": "max"}], "best": 3}
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep" / "sweep.json").write_text(json.dumps(answer | {"trials": trials, "configurations": rows}))
    assert listed(capsys, tmp_path)[0]["best"] == 0.7


def test_the_order_is_what_was_asked_for(root: Path, capsys: Capture) -> None:
    def names(by: str) -> list[str]:
        return [one["name"] for one in listed(capsys, root, "--sort", by) if one["kind"] == "run"]

    (root / "none").mkdir()
    (root / "none" / "experiment.json").write_text("{}")
    assert names("name") == ["good", "group/worse", "none"]
    assert names("when") == ["none", "good", "group/worse"]
    assert names("metric") == ["good", "group/worse", "none"] and names("size")[-1] == "none"
    for run in ("good", "group/worse"):
        summary = json.loads((root / run / "summary.json").read_text())
        (root / run / "summary.json").write_text(json.dumps(summary | {"direction": "min"}))
    assert names("metric") == ["group/worse", "good", "none"], "the lowest is the best"


def test_runs_are_ranked_by_any_metric(tmp_path: Path, capsys: Capture) -> None:
    """Not by values of different metrics in one order."""

    def write(name: str, monitor: str, auroc: float | None, loss: float, **more: object) -> None:
        summary = {"status": "completed", "monitor": monitor, "val_auroc": auroc, "val_loss": loss, "val_accuracy": 0.5}
        (tmp_path / name).mkdir()
        (tmp_path / name / "experiment.json").write_text("{}")
        (tmp_path / name / "summary.json").write_text(json.dumps(summary | more))

    def names(by: str) -> list[str]:
        return [one["name"] for one in listed(capsys, tmp_path, "--sort", by)]

    write("a", "val_auroc", 0.7, 0.9, direction="max")
    write("b", "val_loss", 0.8, 0.2, direction="min")
    write("c", "val_auroc", 0.6, 0.4, direction="max")
    write("d", "val_loss", None, 0.3, direction="min")
    assert names("metric") == ["a", "c", "b", "d"]
    assert names("val_auroc") == ["b", "a", "c", "d"] and names("val_loss") == ["b", "d", "c", "a"]
    said = succeeds(capsys, "runs", tmp_path, "--sort", "val_auroc").splitlines()
    assert ["auroc" in line for line in said[1:]] == [True, True, True, False] and "0.8 auroc" in said[1]
    assert [one["best"] for one in listed(capsys, tmp_path, "--sort", "val_loss")] == [0.2, 0.3, 0.4, 0.9]
    assert listed(capsys, tmp_path)[0]["metrics"].keys() <= {"val_auroc", "val_loss", "val_accuracy"}
    what = "no run says whether the highest or the lowest val_accuracy is the best; sort by a metric that one"
    assert what in fails(capsys, "runs", tmp_path, "--sort", "val_accuracy")
    write("e", "val_auroc", 0.9, 0.1, directions={"val_accuracy": "max"}, val_accuracy=0.6)
    assert names("val_accuracy")[0] == "e"
    said = fails(capsys, "runs", tmp_path, "--sort", "val_auorc")
    assert "no run has the metric 'val_auorc'; did you mean val_auroc? sort by when, name, metric, size or a" in said


def test_a_cross_validation_is_ranked_by_its_means(root: Path, capsys: Capture) -> None:
    metrics = {"val_auroc": {"mean": 0.75, "std": 0.1, "direction": "max"}, "val_loss": None}
    (root / "search" / "folds.json").write_text(json.dumps({"metrics": metrics}))
    (root / "good" / "summary.json").write_text(json.dumps({"monitor": "val_loss", "val_auroc": 0.7}))
    for place in (root, f"file://{root}"):
        first, second, _ = listed(capsys, place, "--sort", "val_auroc")
        assert (first["name"], first["best"], first["std"], second["name"]) == ("search", 0.75, None, "good")


def test_a_failed_run_has_the_direction_of_its_metric(tmp_path: Path, capsys: Capture) -> None:
    planned = plan.make(Experiment(MLP(), Digits()), resources.local_resources, "runs/x-N")
    experiment_file.save(planned.experiment, tmp_path / "experiment.json")
    fit._summarise(tmp_path, planned, "failed", "the cable is loose", retry=True)
    assert Run(tmp_path).summary["retry"] is True
    assert endings.ClusterLost("the head is gone", tmp_path, None).retry
    assert [endings.RunFailed("it fell", tmp_path, 0, lost=lost).retry for lost in (True, False)] == [True, False]
    (one,) = listed(capsys, tmp_path)
    assert (one["status"], one["metric"], one["direction"]) == ("failed", "val_accuracy", "max")
    assert Run(tmp_path).summary["directions"].items() >= {"val_loss": "min", "val_accuracy": "max"}.items()


def test_damaged_runs_are_listed(root: Path, capsys: Capture) -> None:
    for name, content in (("a", b"{"), ("b", b"[1]"), ("c", b"\xff\x00"), ("d", b'{"task": 3, "status": [1]}')):
        (root / name).mkdir()
        for file in ("experiment.json", "summary.json", "best.json", "metrics.jsonl"):
            (root / name / file).write_bytes(content)
    for name, content in (("s", b"{"), ("t", b'{"trials": 3, "objectives": [1], "best": "x"}')):
        (root / name).mkdir()
        (root / name / "sweep.json").write_bytes(content)
    (root / "link").symlink_to(root / "missing")
    found = {one["name"] for one in listed(capsys, root)}
    assert found == {"good", "group/worse", "search", *"abcdst"}
    assert len(succeeds(capsys, "runs", root).splitlines()) == 1 + len(found)


@pytest.mark.parametrize("lock", [LOCK, WRITER_LOCK])  # a sweep's trial has the second alone
def test_a_run_is_running_while_its_lock_is_held(root: Path, capsys: Capture, lock: str) -> None:
    def status() -> str:
        return next(one["status"] for one in listed(capsys, root) if one["name"] == "good")

    with Lock(root / "good", lock):
        assert status() == "running"
    assert status() == "completed"


def test_lines_fit_80_columns(root: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "good").rename(root / ("long-" * 20))
    monkeypatch.setenv("COLUMNS", "80")
    lines = succeeds(capsys, "runs", root).splitlines()
    assert len(lines) == 4 and max(map(len, lines)) <= 80 and lines[0].startswith("name")
    assert any("0.9" in line and "completed" in line and "3/2 epochs" in line for line in lines)


@pytest.mark.parametrize("width", range(45, 90, 5))
def test_a_narrow_terminal_cuts_no_number(
    root: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    (root / "good").rename(root / "a-run-of-20-columns")
    whole = [re.split(r"  +", line) for line in succeeds(capsys, "runs", root).splitlines()]
    monkeypatch.setenv("COLUMNS", str(width))
    lines = [re.split(r"  +", line) for line in succeeds(capsys, "runs", root).splitlines()]
    assert all(len("  ".join(line)) <= width for line in lines) and lines[0][:2] == ["name", "status"]
    for line, full in zip(lines, whole, strict=True):
        assert all(one in full or one.endswith("…") for one in line)
        assert line[0] == full[0]  # what other commands take
    assert "best" in lines[0] and any(one.startswith("0.9") for line in lines for one in line)


@pytest.mark.parametrize("width", range(45, 90, 3))
def test_a_narrow_terminal_cuts_no_spread(capsys: Capture, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    known = ("val_accuracy", "max", 0.6217, 0.059, 9, {}, {})
    one = runs.Found("a", "sweep", "completed", 0, None, None, None, None, 3, *known)
    runs.show([one], "")
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= width and "0.6217 ± 0.059 a" in lines[1]


def test_an_empty_folder_and_a_missing_one(tmp_path: Path, capsys: Capture) -> None:
    assert succeeds(capsys, "runs", tmp_path) == f"no runs in {tmp_path}\n"
    assert "no such folder" in fails(capsys, "runs", tmp_path / "missing")


def test_runs_are_listed_from_python_as_json_has_them(root: Path, capsys: Capture) -> None:
    assert raytrain.runs(root) == raytrain.runs(f"file://{root}") == listed(capsys, root)
    with pytest.raises(UserError, match="no such folder"):
        raytrain.runs(root / "none")
