"""A tracker whose disk is full: training ends as without it, and the user is told once."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.cut_runs import BASE, rows, weights
from helpers.ranks import new_run, train_rank

from raytrain import CSVLogger, Held, Logger, RunInfo, TensorBoard, WandB
from raytrain.driver.observe import Loggers, watched
from raytrain.files import known_json

LOGGERS = TensorBoard(), CSVLogger(), WandB()


class Notes(Logger):
    """The terminal of these tests."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def note(self, text: str) -> None:
        self.said.append(text)


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Path]:
    """A disk of its own, which has room for three more pages."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(disk)]
    if os.geteuid() or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("needs to mount a file system")
    try:
        with pytest.raises(OSError), open(disk / "filler", "wb", buffering=0) as filler:
            while True:
                filler.write(bytes(4096))
        os.truncate(disk / "filler", (disk / "filler").stat().st_size - 3 * 4096)
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_training_beside_trackers_with_a_full_disk_is_bit_equal(tmp_path: Path, full: Path) -> None:
    run, alone, notes = new_run(tmp_path / "run", BASE), new_run(tmp_path / "alone", BASE), Notes()
    (run / "logs").mkdir()
    for name in ("tensorboard", "csv", "wandb"):
        (full / name).mkdir()
        (run / "logs" / name).symlink_to(full / name)
    with watched(notes, LOGGERS) as observer:
        info = RunInfo(run, str(run), BASE, 23, 1438)
        observer.start(info, Held())
        train_rank(0, 1, BASE, run)
        observer.finish(info, {"status": known_json(run / "summary.json")["status"]})
    train_rank(0, 1, BASE, alone)
    assert rows(run) == rows(alone) and weights(run) == weights(alone)
    failed = {text.split(" failed, and training goes on: ")[0] for text in notes.said if "failed" in text}
    assert "the logger WandB" in failed  # its file is larger than the room by itself
    assert all("No space left on device" in text for text in notes.said if "failed" in text)
    behind = {text.split(" lacks the rows after step ")[0] for text in notes.said if "lacks" in text}
    assert len(notes.said) == len(failed) + len(behind), "each is said once"

    os.truncate(full / "filler", 0)
    later = Notes()
    with watched(later, LOGGERS) as observer:
        assert isinstance(observer, Loggers)
        observer.catch_up(info, {"status": "completed"})
    assert later.said == [] and all(row["kind"] in ("step", "epoch") for row in rows(run))
    lines = [len((run / f"logs/csv/{kind}.csv").read_text().splitlines()) - 1 for kind in ("step", "epoch")]
    assert lines == [46, 2] and len(list((run / "logs/wandb").glob("offline-run-*/run-*.wandb"))) == 1
