"""A sweep under HyperBand that is resumed when one of its trials has been told to stop and has no record of it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from raytrain import MLP, SGD, Digits, Experiment, HyperBand, LogUniform, Sweep, cli
from raytrain.driver.options import Options
from raytrain.loggers import Logger
from raytrain.report.sweep import write_files
from raytrain.sweep import driver, record

pytestmark = [pytest.mark.usefixtures("cluster"), pytest.mark.slow]


def ends(sweep: Path) -> dict[int, tuple[str, int]]:
    trials = json.loads((sweep / "sweep.json").read_text())["trials"]
    return {one["number"]: (one["status"], one["epochs"]) for one in trials}


def test_a_trial_that_waited_for_the_last_rung_stops_there(tmp_path: Path) -> None:
    """Of 10 epochs, Tune's second bracket is 5 trials, of which 2 go on after 3 epochs and stop after 9."""
    base = Experiment(MLP(hidden=(8,)), Digits(), optimizer=SGD(momentum=0.9), epochs=10)
    value = Sweep(base, (LogUniform("optimizer.lr", 1e-3, 0.1),), trials=8, concurrent=2, keep=8, scheduler=HyperBand())
    found = driver.sweep(value, Options(out=str(tmp_path), name="whole"), Logger(), None, 0.0, write_files)
    assert found is not None
    whole = ends(found.path)
    last = [number for number, end in whole.items() if end == ("stopped", 9)]
    assert len(last) == 2 and list(whole.values()).count(("stopped", 3)) == 3
    for number in last:
        cut = Path(shutil.copytree(found.path, tmp_path / f"cut-{number}"))
        for file, status in ((cut / "sweep.json", "running"), (record.folder(cut, number) / "trial.json", "running")):
            file.write_text(json.dumps(json.loads(file.read_text()) | {"status": status}))
        assert cli.run(["sweep", str(cut)]) == 0
        assert ends(cut) == whole
