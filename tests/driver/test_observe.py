"""observe: what the driver sees of a run through its files."""

from __future__ import annotations

import errno
import io
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console as RichConsole

from raytrain import CSVLogger, MLflow, TensorBoard, WandB
from raytrain.driver import observe
from raytrain.driver.observe import Loggers, Tail
from raytrain.errors import UserError
from raytrain.loggers import Logger
from raytrain.report.console import Console


class Seen(Logger):
    def __init__(self) -> None:
        self.found: list[Any] = []

    def rows(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self.found += [row["step"] for row in rows]

    def note(self, text: str) -> None:
        self.found.append(text)


def line(step: int) -> str:
    return json.dumps({"kind": "step", "step": step}) + "\n"


def test_rows_are_seen_once_also_where_the_directory_was_away(tmp_path: Path) -> None:
    run, seen = tmp_path / "run", Seen()
    run.mkdir()
    tail = Tail(run / "metrics.jsonl", 0, seen)
    tail.poll()
    (run / "metrics.jsonl").write_text(line(1) + line(2) + line(3)[:5])
    tail.poll()
    run.rename(tmp_path / "away")
    tail.poll()
    (tmp_path / "away").rename(run)
    (run / "metrics.jsonl").write_text(line(1) + line(2) + line(3))
    tail.poll()
    assert [found for found in seen.found if isinstance(found, int)] == [1, 2, 3] and tail.seen


def test_refusal_by_storage_is_said_once(tmp_path: Path) -> None:
    log, seen = tmp_path / "logs" / "checkpoints.log", Seen()
    log.parent.mkdir()
    log.write_text("before\n")
    tail = Tail(tmp_path / "metrics.jsonl", 0, seen)
    tail.poll()
    with open(log, "a") as file:
        file.write("2026-11-21T20:30:02 step 5: No space left on device\n")
    tail.poll()
    tail.poll()
    (said,) = seen.found
    assert said.endswith("training goes on: 2026-11-21T20:30:02 step 5: No space left on device")
    out = io.StringIO()
    Console(RichConsole(file=out, soft_wrap=True)).note(said)
    assert out.getvalue().split() == ["note", *said.split()]


def test_a_full_disk_is_said_each_time_that_it_fills(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tail, space = Tail(tmp_path / "metrics.jsonl", 0, seen := Seen()), [5]
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_blocks=9, f_bavail=space[0], f_bfree=space[0]))
    for space[0] in (5, 0, 0, 3, 0):
        tail.poll()
    assert len(seen.found) == 2 and f"no space is left on the disk of {tmp_path}," in seen.found[0]


def test_a_read_only_disk_is_said_each_time_that_it_becomes_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tail, why = Tail(tmp_path / "metrics.jsonl", 0, seen := Seen()), [0]
    monkeypatch.setattr(observe, "_TRY_SECONDS", 0.0)

    def utime(path: Path) -> None:
        if why[0]:
            raise OSError(why[0], os.strerror(why[0]))

    monkeypatch.setattr(os, "utime", utime)
    for why[0] in (0, errno.EROFS, errno.EROFS, 0, errno.EACCES, errno.ENOENT, errno.EIO):
        tail.poll()
    first, second = seen.found
    assert f"{tmp_path} cannot be written (Read-only file system), and training goes on" in first
    assert "(Input/output error)" in second


def test_a_folder_that_is_gone_is_said_each_time(tmp_path: Path) -> None:
    run, away = tmp_path / "run", tmp_path / "away"
    run.mkdir()
    tail = Tail(run / "metrics.jsonl", 0, seen := Seen())
    for source, target in ((run, away), (away, run), (run, away)):
        tail.poll()
        source.rename(target)
    tail.poll()
    tail.poll()
    assert len(seen.found) == 2 and f"{run} is gone, and training goes on" in seen.found[0]


@pytest.mark.parametrize("kind", [CSVLogger, TensorBoard, WandB])
def test_two_loggers_of_a_class_write_to_folders_of_their_own(
    kind: type[CSVLogger | TensorBoard | WandB], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kind, "check", lambda self: None)  # the package need not be there
    with pytest.raises(UserError, match=f"two {kind.__name__} write to logs/a, .* leave one of them out"):
        Loggers(Logger(), (kind(folder="logs/a"), Logger(), Logger(), kind(folder="logs/a/")))
    Loggers(Logger(), (kind(folder="logs/a"), kind(folder="logs/b"))).close()


def test_two_mlflow_loggers_write_to_experiments_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MLflow, "check", lambda self: None)  # the package need not be there
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(UserError, match=r"two MLflow write to the experiment raytrain of mlflow.db, which would"):
        Loggers(Logger(), (MLflow(), MLflow()))
    Loggers(Logger(), (MLflow(), MLflow(experiment="other"), MLflow(tracking_uri="http://there:1"))).close()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://there:1/")
    with pytest.raises(UserError, match=r"two MLflow write to the experiment raytrain of http://there:1,"):
        Loggers(Logger(), (MLflow(), MLflow(tracking_uri="http://there:1")))
