"""Every write of a sweep's driver goes wrong once, by a kill, a full disk or a broken one. Trials are not trained here:
what they leave is written beside the driver, so that no Ray is needed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from harness.faults.writes import Writes, one_line, run, watching

from raytrain.driver import resources
from raytrain.report import sweep_plots
from raytrain.sweep import driver, record, tuning
from raytrain.sweep.trials import Trials
from raytrain.tools.output import write_file

pytestmark = pytest.mark.usefixtures("every_write_told")


SWEEP = """
from raytrain import *

sweep = Sweep(
    Experiment(MLP(hidden=(8,)), Digits(), epochs=1), (Grid("optimizer.lr", (0.1, 0.2, 0.3)),), objective="val_loss"
)
"""


@contextmanager
def unwatched() -> Iterator[None]:
    """The context in which no write goes wrong: those of a trial's own process."""
    kept = watching[:]
    watching.clear()
    try:
        yield
    finally:
        watching[:] = kept


class NoRay:
    """Stands for the session with Ray."""

    resources = staticmethod(resources.local_resources)
    own = True

    def __init__(self, *_: object):
        """As the session."""

    def __enter__(self) -> NoRay:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing was started."""

    def start(self, *_: object) -> None:
        """Start nothing."""

    keep_logs = start


@pytest.fixture(scope="module", autouse=True)
def cluster() -> None:
    """No Ray: it stands for the fixture of that name."""


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let trials end at once; return the numbers of those that were trained."""
    numbers: list[int] = []

    def train(trials: Trials, *_: object) -> str:
        for number in range(trials.sweep.count):
            if record.read(record.folder(trials.path, number)).get("status") not in record.ENDED:
                trials.propose(number)
                with unwatched():
                    numbers.append(number)
                    folder = record.folder(trials.path, number)
                    row = {"kind": "epoch", "epoch": 1, "step": 23, "val_loss": 1.0 - number / 10}
                    (folder / "metrics.jsonl").write_text(json.dumps(row) + "\n")
                    (folder / "checkpoints" / "step_00000023").mkdir(parents=True, exist_ok=True)
                    record.update(folder, status="completed", attempts=1)
            trials.write("running")
            trials.tidy()
        return "completed"

    made: dict[bool, Any] = {}
    make = driver.make
    monkeypatch.setattr(driver, "make", lambda *arguments: made.setdefault(True, make(*arguments)))
    monkeypatch.setattr(driver, "Session", NoRay)
    monkeypatch.setattr(tuning, "run", train)
    monkeypatch.setattr(tuning, "read", lambda *_: {})
    monkeypatch.setattr(sweep_plots, "write_plots", lambda path, _: write_file(path / "picture.png", b"a picture"))
    return numbers


def outcome(path: Path) -> dict[str, Any]:
    """What a sweep's driver leaves, but for times."""
    answer = json.loads((path / "sweep.json").read_text())
    answer.pop("seconds")
    texts = {name: (path / name).read_bytes() for name in ("best.json", "trials.csv", "picture.png")}
    kept = sorted(str(file.relative_to(path)) for file in path.glob("trials/*/checkpoints"))
    return answer | texts | {"kept": kept}


@pytest.mark.parametrize("kind", ["kill", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("ENOSPC", "EIO"))])
def test_a_sweep_survives_a_fault_at_each_write_of_its_driver(
    kind: str, tmp_path: Path, trained: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "tune.py"
    file.write_text(SWEEP)

    def sweep(folder: Path, writes: Writes) -> int | None:
        return run(writes, "sweep", file, "--out", folder, "--name", "sweep")

    calm = tmp_path / "calm"
    calm.mkdir()
    writes = Writes(calm)
    assert sweep(calm, writes) == 0 and trained == [0, 1, 2]
    whole = outcome(calm / "sweep")
    points = list(zip(writes.places, writes.names, strict=True))
    for at, place in enumerate(points):
        if place in points[:at]:
            continue
        capsys.readouterr()
        trained.clear()
        here = tmp_path / f"{kind}-{at}"
        here.mkdir()
        status = sweep(here, Writes(here, kind, at))
        one_line(capsys, status)
        assert (status is None) == (kind == "kill"), place
        print(*place, "exit status", status)
        path = here / "sweep"
        again = run(Writes(here), "sweep", path) if path.exists() else sweep(here, Writes(here))
        said = capsys.readouterr().err
        assert again == 0, (place, said)
        assert outcome(path) == whole, place
        assert len(trained) <= 4 and set(trained) == {0, 1, 2}, "no trial that has ended is trained again"
        shutil.rmtree(here)
    assert len(points) > 30
