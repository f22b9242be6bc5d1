"""A node that joins the cluster in mid-sweep takes a trial."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from helpers import nodes

SWEEP = '''
    """Two trials that wait after their first epoch until both have come so far."""

    import time
    from dataclasses import dataclass
    from pathlib import Path

    from raytrain import MLP, SGD, Digits, Experiment, Grid, Hook, Scaling, Sweep


    @dataclass(frozen=True)
    class Meeting(Hook):
        folder: str = ""

        def after_epoch(self, trainer, row):
            Path(self.folder, str(trainer.experiment.optimizer.lr)).touch()
            while len(list(Path(self.folder).iterdir())) < 2:
                time.sleep(0.1)


    sweep = Sweep(
        Experiment(
            model=MLP(hidden=(32,)),
            data=Digits(),
            optimizer=SGD(lr=0.05),
            epochs=2,
            scaling=Scaling(threads_per_worker=1),
            hooks=(Meeting("FOLDER"),),
        ),
        (Grid("optimizer.lr", (0.05, 0.01)),),
    )
'''


@pytest.mark.slow
def test_a_node_that_joins_takes_a_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    (came := tmp_path / "came").mkdir()
    file = tmp_path / "two.py"
    file.write_text(textwrap.dedent(SWEEP).replace("FOLDER", str(came)))
    with nodes.started(1) as cluster:
        command = ["sweep", str(file), "--address", cluster.address, "--out", str(tmp_path), "--name", "sweep"]
        command = [sys.executable, "-m", "raytrain.cli", *command]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            deadline = time.monotonic() + 240
            while not list(came.iterdir()) and process.poll() is None:
                assert time.monotonic() < deadline, "the first trial does not begin"
                time.sleep(0.1)
            cluster.add_node(num_cpus=1)
            said, _ = process.communicate(timeout=240)
        finally:
            process.kill()
    assert process.returncode == 0 and "1 trial of 1 worker" in said, said
    trials = json.loads((tmp_path / "sweep" / "sweep.json").read_text())["trials"]
    assert [one["status"] for one in trials] == ["completed", "completed"] and trials[1]["started"] < trials[0]["ended"]
