"""The benchmarks: their calls of the package are checked like the package's own, and each row has a smoke form."""

from __future__ import annotations

import ast
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from benchmarks import resident, run
from benchmarks.harness import Measured
from benchmarks.resident import DATA, OPTIMIZER
from benchmarks.rows import ROWS, Bench, Row
from benchmarks.sides.checkpoint_raytrain import timed
from raytrain import MLP, Checkpoint, Experiment, Scaling
from raytrain.data import Index

ROOT = Path(run.__file__).parent


def test_a_timed_trainer_notes_each_checkpoint_that_a_run_writes(tmp_path: Path) -> None:
    index = Index(np.zeros(640, np.int64), ("0", "1"), (1, 28, 28), "train")
    value = Experiment(
        MLP(hidden=(8,)),
        DATA,
        optimizer=OPTIMIZER,
        checkpoint=Checkpoint(every_steps=3),
        scaling=Scaling(threads_per_worker=1),
    )
    images = np.zeros((640, 1, 28, 28), np.uint8)
    trainer, stalls = resident.trainer(value, str(tmp_path), images, index), list[float]()
    trainer.save = timed(trainer.save, stalls)
    assert trainer.fit() == "completed"
    assert len(stalls) == 4 and min(stalls) > 0  # after steps 3, 6 and 9, and the epoch


@pytest.mark.parametrize("file", sorted(ROOT.rglob("*.py")), ids=lambda file: str(file.relative_to(ROOT)))
def test_benchmarks_hide_no_call_from_the_type_checker(file: Path) -> None:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("cast", "typing.cast", "setattr"):
            assert ast.unparse(node.args[0]) != "Any" and ast.unparse(node.func) != "setattr", ast.unparse(node)


def test_a_smoke_test_runs_each_row_once_and_fails_with_any(capsys: pytest.CaptureFixture[str]) -> None:
    measured: list[str] = []
    bench = Bench(9_600, 1, None, smoke=True)
    bench.found["parts"] = {}

    def row(name: str, package: str = "") -> Row[Bench]:
        def measure(_: Bench) -> Measured:
            measured.append(name)
            if name == "broken":
                raise TypeError("save() takes 1 positional argument but 2 were given")
            return Measured(1.0, 1.0, (float("nan") if name == "empty" else 1.0,))

        return Row(name, "itself", None, measure, package=package)

    assert run.smoke(bench, [row("one"), row("two"), row("absent", "no_such_package")]) == 0
    assert sorted(measured) == ["one", "two"]
    assert "skipped: no_such_package is not installed" in capsys.readouterr().out
    for name, why in (("broken", "save() takes 1 positional argument"), ("empty", "the ratio is nan")):
        assert run.smoke(bench, [row("one"), row(name)]) == 1
        assert f"failed: {why}" in capsys.readouterr().out


def test_smoke_rows_are_small_and_independent(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, full = Bench(9_600, 1, None, smoke=True), Bench(9_600, 5, None)
    assert [bench.size(count) for count in (600, 9_600, 600_000)] == [600, 640, 6_000]
    assert full.size(600_000) == 600_000
    asked: list[int] = []

    def measure(rounds: int, running: bool) -> tuple[int, int]:
        asked.append(rounds)
        time.sleep(0.05)
        return 1, 2

    monkeypatch.setattr("benchmarks.whole.start_and_end", measure)
    threads = [threading.Thread(target=lambda: bench.cold) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert asked == [1] and bench.cold == (1, 2)


def test_a_smoke_test_has_each_kind_of_side(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["run.py", "--smoke"])
    monkeypatch.setattr("signal.signal", lambda *_: None)
    chosen: list[str] = []
    monkeypatch.setattr(run, "smoke", lambda bench, rows: chosen.extend(row.name for row in rows) or 0)
    assert run.main() == 0 and chosen == [row.name for row in ROWS if not row.alike]
    assert {row.alike for row in ROWS} == {True, False} and {"pack-raw", "start", "memory"} <= {*chosen}
    chosen.clear()
    monkeypatch.setattr("sys.argv", ["run.py", "--smoke", "--rows", "pack-jpeg"])
    assert run.main() == 0 and chosen == ["pack-jpeg"]
