"""The rows that a resumed run begins with."""

from __future__ import annotations

from pathlib import Path

from raytrain.driver.launch import rows_before
from raytrain.run.metrics_log import read_metrics


def test_a_resumed_run_shows_no_rows_that_come_again(tmp_path: Path) -> None:
    assert rows_before(tmp_path) == ([], 0)
    log = tmp_path / "metrics.jsonl"
    log.write_text("".join(f'{{"kind": "step", "step": {step}}}\n' for step in range(1, 7)))
    rows, size = read_metrics(log)
    assert rows_before(tmp_path) == ([], size), "without a checkpoint it begins anew"
    for step in (2, 4):
        folder = tmp_path / "checkpoints" / f"step_{step:08d}"
        folder.mkdir(parents=True)
        (folder / "manifest.json").touch()
    assert rows_before(tmp_path) == (rows[:4], size)
