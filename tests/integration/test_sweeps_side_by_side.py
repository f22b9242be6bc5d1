"""Two sweeps on one cluster: both end, their results are those of each alone, and a killed one costs the other
nothing."""

from __future__ import annotations

import json
import subprocess
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from helpers.killed_runs import rows, weights
from helpers.own_cluster import Cluster, started

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
SWEEP = '''
    """A sweep whose trials wait after their first epoch until the file FOLDER/WAITS exists."""

    import time
    from dataclasses import dataclass
    from pathlib import Path

    from raytrain import MLP, SGD, Digits, Experiment, Grid, Hook, Scaling, Sweep


    @dataclass(frozen=True)
    class Meeting(Hook):
        folder: str = ""
        comes: str = ""
        waits: str = ""

        def after_epoch(self, trainer, row):
            Path(self.folder, self.comes).touch()
            while self.waits and not Path(self.folder, self.waits).exists():
                time.sleep(0.1)


    sweep = Sweep(
        Experiment(
            model=MLP(hidden=(32,)),
            data=Digits(mode="MODE"),
            optimizer=SGD(lr=0.05, momentum=0.9),
            epochs=2,
            scaling=Scaling(workers=WORKERS, cpus_per_worker=1),
            hooks=(Meeting("FOLDER", "COMES", "WAITS"),),
        ),
        (Grid("optimizer.lr", RATES),),
        concurrent=1,
    )
'''


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with started(tmp_path_factory.mktemp("home"), cpus=2) as cluster:
        yield cluster


def sweep_file(folder: Path, name: str, mode: str, workers: int, waits: str, *rates: float) -> Path:
    file = folder / f"{name}.py"
    text = textwrap.dedent(SWEEP).replace("MODE", mode).replace("WORKERS", str(workers)).replace("RATES", repr(rates))
    file.write_text(text.replace("FOLDER", str(folder)).replace("COMES", f"{name}_came").replace("WAITS", waits))
    return file


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 300
    while not condition():
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            pytest.fail(str(process.communicate()))
        time.sleep(0.1)


def ended(process: subprocess.Popen[str]) -> str:
    said, error = process.communicate(timeout=300)
    assert process.returncode == 0, said + error
    return said


def assert_results_are_those_of(found: Path, alone: Path, attempts: int = 1) -> None:
    """Compare all rows of two sweeps' trials, but for times, and the weights of their best."""
    answers = [json.loads((path / "sweep.json").read_text()) for path in (found, alone)]
    assert answers[0]["best"] == answers[1]["best"] and answers[0]["status"] == "completed"
    for one, other in zip(answers[0]["trials"], answers[1]["trials"], strict=True):
        trial = f"trials/{one['number']:04d}"
        assert one["status"] == other["status"] == "completed" and one["attempts"] <= attempts
        assert [row["step"] for row in rows(found / trial) if row["kind"] == "step"] == [*range(1, 47)], "each once"
        assert rows(found / trial) == rows(alone / trial) and one["objective"] == other["objective"]
    best = f"trials/{answers[0]['best']:04d}"
    assert weights(found / best) == weights(alone / best)


def test_trials_of_two_workers_wait_for_another_sweep_that_is_killed(cluster: Cluster, tmp_path: Path) -> None:
    first = sweep_file(tmp_path, "first", "resident", 2, "go", 0.1, 0.02)
    second = sweep_file(tmp_path, "second", "resident", 2, "", 0.1, 0.02)
    common = ("--address", cluster.address, "--out", tmp_path)
    killed = cluster.start("sweep", first, *common, "--name", "killed")
    wait_for((tmp_path / "first_came").exists, killed)
    waiting = cluster.start("sweep", second, *common, "--name", "waiting")
    assert waiting.stdout is not None
    said = ""
    while "waiting for trial 0: it needs 2 workers of 1 CPU each, and " not in said:
        line = waiting.stdout.readline()
        assert line, said
        said += line
    assert " has 2 CPUs, 0 CPUs free" in said and not (tmp_path / "second_came").exists()
    killed.kill()
    killed.communicate()
    assert "completed: 2 trials (2 completed)" in ended(waiting)
    (tmp_path / "go").touch()
    done = cluster.command("resume", tmp_path / "killed", "--address", cluster.address)
    assert done.returncode == 0, done.stdout + done.stderr
    for file, found, attempts in ((first, "killed", 2), (second, "waiting", 1)):
        alone = cluster.command("sweep", file, *common, "--name", f"{found}_alone")
        assert alone.returncode == 0, alone.stdout + alone.stderr
        assert_results_are_those_of(tmp_path / found, tmp_path / f"{found}_alone", attempts)


def test_streams_of_two_sweeps_do_not_wait_for_each_others_cpus(cluster: Cluster, tmp_path: Path) -> None:
    """Each trial holds one of the two CPUs, and trains beside the other: neither leaves a CPU to Ray Data."""
    common = ("--address", cluster.address, "--out", tmp_path)
    names = (("left", "right_came"), ("right", "left_came"))
    files = [sweep_file(tmp_path, name, "streaming", 1, waits, 0.1) for name, waits in names]
    sweeps = [cluster.start("sweep", file, *common, "--name", file.stem) for file in files]
    for process in sweeps:
        ended(process)
    for file in files:
        alone = cluster.command("sweep", file, *common, "--name", f"{file.stem}_alone")
        assert alone.returncode == 0, alone.stdout + alone.stderr
        assert_results_are_those_of(tmp_path / file.stem, tmp_path / f"{file.stem}_alone")
