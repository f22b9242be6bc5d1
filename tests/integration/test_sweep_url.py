"""A sweep at a URL whose processes are all killed, on a machine that is then forgotten: another one goes on."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import textwrap
import time
from pathlib import Path

import pytest
from helpers.killed_runs import command
from helpers.processes import tree

from raytrain import Run, cli
from raytrain.checkpoint import location
from raytrain.checkpoint.storage import Storage
from raytrain.sweep.sweep_run import SweepRun

FILE = """
    from raytrain import MLP, SGD, Digits, Experiment, Grid, Sweep

    sweep = Sweep(
        experiment=Experiment(model=MLP(hidden=(16,)), data=Digits(), optimizer=SGD(lr=0.05), epochs=6),
        axes=(Grid("optimizer.lr", (0.01, 0.1, 0.3, 0.03)),),
        concurrent=1,
    )
"""


def known(trials: list[dict]) -> list[tuple]:
    return [(one["number"], one["status"], one["values"], one["objective"], one["epochs"]) for one in trials]


@pytest.mark.slow
def test_killed_sweep_at_a_url_loses_and_repeats_no_trial(
    s3: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "lr.py"
    file.write_text(textwrap.dedent(FILE))
    start = command("sweep", str(file))
    subprocess.run([*start, "--out", str(tmp_path), "--name", "whole"], check=True, capture_output=True, timeout=600)
    url = f"{s3}/sweeps/cut"
    process = subprocess.Popen([*start, "--out", f"{s3}/sweeps", "--name", "cut"], stdout=subprocess.DEVNULL)
    storage, deadline = Storage(url), time.monotonic() + 600
    while "trials/0002/metrics.jsonl" not in storage.names():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.2)
    for pid in reversed(tree(process.pid)):
        os.kill(pid, signal.SIGKILL)
    process.communicate()
    ended = {f"trials/{number:04d}/trial.json": storage.read(f"trials/{number:04d}/trial.json") for number in (0, 1)}
    assert all(json.loads(content)["status"] == "completed" for content in ended.values())
    shutil.rmtree(location.mirror(url))
    done = subprocess.run(command("resume", url), capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    assert f"the sweep is in {url}" in done.stdout and f"raytrain evaluate {url}/trials/" in done.stdout
    assert {name: storage.read(name) for name in ended} == ended, "trials that had ended are not touched"
    whole = SweepRun(tmp_path / "whole")
    shutil.rmtree(location.mirror(url))
    found = SweepRun(url)
    assert known(found.trials) == known(whole.trials) and found.answer["best"] == whole.answer["best"]
    assert (found.path / "best.json").read_bytes() == (whole.path / "best.json").read_bytes()
    best = found.best
    assert isinstance(best, Run) and best.url == f"{url}/trials/{found.answer['best']:04d}"
    assert whole.best is not None and {n: t.tolist() for n, t in best.model().state_dict().items()} == {
        n: t.tolist() for n, t in whole.best.model().state_dict().items()
    }
    weights = [name for name in storage.names() if "/checkpoints/" in name]
    assert {name.split("/")[1] for name in weights} == {f"{found.answer['best']:04d}"}, weights
    assert {"trials.csv", "report.html", "plots/accuracy_time.png", "best.json"} <= storage.names().keys()
    storage.remove("report.html")
    assert cli.run(["report", url]) == 0 and "report.html" in storage.names()
    assert url in capsys.readouterr().out
