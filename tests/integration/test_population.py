"""PBT and PB2 on real actors: a sweep is the same with any number of trials at once, and after kills."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
from harness.faults.sweeps import apart, outcome, statuses
from helpers.killed_runs import command

from raytrain.sweep import population, record

FILE = """
    from raytrain import *

    sweep = Sweep(
        Experiment(
            MLP(hidden=(16,)),
            Digits(),
            optimizer=SGD(lr=0.05),
            epochs=6,
            schedule=Constant(),
            scaling=Scaling(threads_per_worker=1),
        ),
        axes=(LogUniform("optimizer.lr", 0.0005, 0.5), Uniform("optimizer.momentum", 0.0, 0.9)),
        scheduler={kind}(every_epochs=2),
        trials=5,
        concurrent={concurrent},
        keep=5,
    )
"""


def began(tmp_path: Path, name: str, kind: str, concurrent: int) -> subprocess.Popen[bytes]:
    file = tmp_path / f"{name}.py"
    file.write_text(textwrap.dedent(FILE).format(kind=kind, concurrent=concurrent))
    start = command("sweep", str(file), "--out", str(tmp_path), "--name", name)
    return subprocess.Popen(start, stdout=subprocess.DEVNULL, start_new_session=True)


def whole(tmp_path: Path, name: str, kind: str, concurrent: int) -> dict[str, Any]:
    assert began(tmp_path, name, kind, concurrent).wait(600) == 0
    return found(tmp_path / name)


def found(sweep: Path) -> dict[str, Any]:
    """The outcome of a sweep, without what trials reserve, which is more where there are fewer at once."""
    answer = outcome(sweep)
    for one in (*answer["trials"], *(run["record"] for run in answer["runs"].values())):
        del one["planned"]["scaling.cpus_per_worker"]
    return answer


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["PBT", "PB2"])
def test_population_is_the_same_one_at_a_time_and_after_kills(tmp_path: Path, kind: str) -> None:
    if kind == "PB2":
        pytest.importorskip("sklearn")
    alone, two = whole(tmp_path, "alone", kind, 1), whole(tmp_path, "two", kind, 2)
    taken = [one for trial in alone["trials"] for one in trial.get("taken", ())]
    assert len(taken) == 4, "two comparisons, of which each has two quarters of five trials"
    assert not apart(two, alone)
    assert not apart(_killed(tmp_path, kind), alone)
    files = [(tmp_path / name / population.FILE).read_bytes() for name in ("alone", "two", "cut")]
    assert files[0] == files[1] == files[2] and not (tmp_path / "cut" / "pool").exists()


@pytest.mark.slow
def test_population_stopped_while_trials_wait_goes_on_alike(tmp_path: Path) -> None:
    alone = whole(tmp_path, "alone", "PBT", 1)
    process, cut = began(tmp_path, "cut", "PBT", 2), tmp_path / "cut"
    deadline = time.monotonic() + 300
    # Until the first trial waits for the others.
    while not any(len(record.validations(one.parent)) == 2 for one in cut.glob("trials/*/metrics.jsonl")):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130 and _made(cut) == 0
    ended = 0
    while ended < 5:  # each stops at a budget that is too small for all that is left
        assert time.monotonic() < deadline + 300
        more = command("sweep", str(cut), "--budget_seconds", "1.5")
        assert subprocess.run(more, stdout=subprocess.DEVNULL, check=False).returncode == 0
        ended = sum(status in record.ENDED for status in statuses(cut, 5).values())
    assert not apart(found(cut), alone)
    assert (cut / population.FILE).read_bytes() == (tmp_path / "alone" / population.FILE).read_bytes()


def _killed(tmp_path: Path, kind: str) -> dict[str, Any]:
    """The outcome of a sweep whose driver gets SIGKILL soon after two comparisons; the second time with the loss
    of the weights that trials have yet to take."""
    process, cut = began(tmp_path, "cut", kind, 2), tmp_path / "cut"
    for number in (1, 2):
        deadline = time.monotonic() + 300
        while _made(cut) < number:
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.01)
        time.sleep(0.2 if number == 1 else 0.0)
        process.send_signal(signal.SIGKILL)
        process.wait()
        if number == 2:
            time.sleep(2.0)  # its trials' processes may still write there
            shutil.rmtree(cut / "pool")
        process = subprocess.Popen(command("sweep", str(cut)), stdout=subprocess.DEVNULL, start_new_session=True)
    assert process.wait(600) == 0
    return found(cut)


def _made(sweep: Path) -> int:
    file = sweep / population.FILE
    return len(json.loads(file.read_text())["comparisons"]) if file.exists() else 0
