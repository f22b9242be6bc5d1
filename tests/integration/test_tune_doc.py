"""docs/tune.md: the Tune script, the sweep that replaces it, and the sweep with a searcher and a metric of its own."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from helpers.scripts import changed, succeeds, write_shapes

TEXT = (Path(__file__).parents[2] / "docs" / "tune.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
COMMANDS = re.findall(r"^    raytrain (.*)$", TEXT, re.MULTILINE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with images of two classes."""
    folder = tmp_path_factory.mktemp("tune")
    write_shapes(folder, 8, 40)
    return folder


@pytest.mark.slow
def test_the_tune_script_and_the_sweep_that_replaces_it_both_run(folder: Path) -> None:
    script, sweep, _ = BLOCKS
    assert len(script.splitlines()) > 2 * len(sweep.splitlines())
    short = changed(changed(script, "num_samples=18", "num_samples=2"), "range(9)", "range(2)")
    (folder / "script.py").write_text(short)
    # Neither the cluster of another test, nor results in the user's folder.
    said = succeeds(folder, "script.py", RAY_ADDRESS="local", HOME=str(folder))
    assert re.search(r"\{'lr': [\d.e-]+, 'batch_size': (16|32|64)\}", said)
    (folder / "shapes.py").write_text(sweep)
    assert COMMANDS == ["sweep shapes.py --name shapes"]
    succeeds(folder, "-m", "raytrain.cli", *COMMANDS[0].split(), "--trials", "3", "--epochs", "3")
    found = json.loads((folder / "runs" / "shapes" / "sweep.json").read_text())
    assert len(found["trials"]) == 3 and {one["status"] for one in found["trials"]} <= {"completed", "stopped"}
    assert {*found["trials"][0]["values"]} == {"optimizer.lr", "batch_size"}


@pytest.mark.slow
def test_the_searcher_and_the_metric_of_the_page_lead_somewhere(folder: Path) -> None:
    (folder / "walk.py").write_text(BLOCKS[2])
    succeeds(folder, "-m", "raytrain.cli", "sweep", "walk.py", "--name", "walk", "--trials", "4", "--epochs", "2")
    found = json.loads((folder / "runs" / "walk" / "sweep.json").read_text())
    doubts = [one["objective"][0] for one in found["trials"]]
    assert len(doubts) == 4 and all(0 < one < 1 for one in doubts)
    assert found["best"] == doubts.index(min(doubts)) and found["objectives"][0]["mode"] == "min"
    rates = [one["values"]["optimizer.lr"] for one in found["trials"]]
    best = doubts.index(min(doubts[:3]))
    assert 1 / 3.001 < rates[3] / rates[best] < 3.001, "it goes on from the best of the first three"
