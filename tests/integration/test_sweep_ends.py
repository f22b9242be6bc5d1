"""How sweeps end on real actors of Ray Tune: without a result, by their budget, and after a trial's processes died."""

from __future__ import annotations

import os
import signal
import textwrap
import threading
import time
from pathlib import Path

import pytest

from raytrain import MLP, Digits, Experiment, Grid, Sweep, cli
from raytrain.driver.endings import RunFailed
from raytrain.driver.options import Options
from raytrain.loggers import Logger
from raytrain.report.sweep import write_files
from raytrain.sweep import driver, record, sweep_run
from raytrain.sweep.sweep_file import load

pytestmark = pytest.mark.usefixtures("cluster")

DYING = '''
    """Trials that end, each in its way, at the tenth step."""
    import os, time
    from dataclasses import dataclass
    import torch
    from torch import nn
    from raytrain import Digits, Experiment, Grid, Model, Scaling, Sweep

    class Net(nn.Module):
        def __init__(self, mode, inputs, classes):
            super().__init__()
            self.mode, self.steps, self.linear = mode, 0, nn.Linear(inputs, classes)

        def forward(self, x):
            self.steps += self.training
            if self.steps >= 10:
                if "raises" in self.mode:
                    raise ValueError("a mistake of the model's")
                if self.mode == "exits" and torch.distributed.get_rank() == 1:
                    os._exit(3)
                if self.mode == "waits":
                    time.sleep(0.2)
            return self.linear(x.flatten(1))

    @dataclass(frozen=True)
    class Dying(Model):
        mode: str = "good"
        def build(self, sample, classes):
            return Net(self.mode, sample[0] * sample[1] * sample[2], classes)

    sweep = Sweep(
        experiment=Experiment(model=Dying(), data=Digits(), epochs=1, scaling=Scaling(workers=WORKERS)),
        axes=(Grid("model.mode", MODES),),
        retries=0,
        concurrent=1,
        budget_seconds=120.0,
    )
'''


class Heard(Logger):
    """Keeps what the driver says of its state."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def status(self, text: str) -> None:
        self.heard.append(text)


def dying(folder: Path, workers: int, modes: tuple[str, ...]) -> Path:
    file = folder / "dying.py"
    file.write_text(textwrap.dedent(DYING).replace("WORKERS", str(workers)).replace("MODES", repr(modes)))
    return file


def test_sweep_of_failed_trials_exits_1_with_the_first_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = dying(tmp_path, 1, ("raises", "raises too"))
    begin, again = ["sweep", str(file), "--out", str(tmp_path), "--name", "sweep"], ["resume", str(tmp_path / "sweep")]
    for command in (begin, again):  # the second one finds nothing left to train
        assert cli.run(command) == 1
        said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
        why = "no trial has a result: trial 0 failed: ValueError: a mistake of the model's"
        assert len(said) == 1 and said[0].startswith(f"error: the sweep failed: {why}")
    assert [one["status"] for one in sweep_run.SweepRun(tmp_path / "sweep").trials] == ["failed"] * 2


def test_sweep_of_which_no_trial_reaches_the_accuracy_says_so(tmp_path: Path) -> None:
    base = Experiment(model=MLP(hidden=(8,)), data=Digits(), epochs=1)
    sweep = Sweep(base, (Grid("optimizer.lr", (0.001,)),), objective=("time_to_accuracy(1.0)", "val_loss"))
    with pytest.raises(RunFailed, match=r"^no trial reached the accuracy of time_to_accuracy\(1.0\)$") as caught:
        driver.sweep(sweep, Options(out=str(tmp_path)), Logger(), None, time.time(), write_files)
    assert caught.value.how == "start a new sweep with a lower one, or longer trials"


def test_budget_begins_with_the_first_trial(tmp_path: Path) -> None:
    base = Experiment(model=MLP(hidden=(8,)), data=Digits(), epochs=100_000)
    sweep = Sweep(base, (Grid("optimizer.lr", (0.1, 0.01)),), budget_seconds=5.0, concurrent=1)
    long_ago = time.time() - 600  # as if Ray had taken ten minutes to start
    observer = Heard()
    found = driver.sweep(sweep, Options(out=str(tmp_path), name="sweep"), observer, None, long_ago, write_files)
    assert found is not None and found.answer["status"] == "out_of_time"
    assert "stopping after a step, with checkpoints; the budget is spent" in observer.heard
    assert found.trials[0]["status"] == "interrupted" and found.trials[0]["epochs"] > 0
    assert 600 < found.answer["seconds"] < 700, "each second of the command is counted once"


@pytest.mark.slow
def test_process_that_ends_between_two_trials_costs_a_retry_and_no_trial(tmp_path: Path) -> None:
    """The model of the second trial ends the process that the first one has left, as soon as it is read there."""
    text = textwrap.dedent(DYING).replace("WORKERS", "1").replace("MODES", "('good', 'ends once', 'good too')")
    ending = """
    def __post_init__(self):
        import ray
        folder = Path(FOLDER)
        if self.mode == "ends once" and ray.get_runtime_context().get_actor_id() and not (folder / "was").exists():
            if (folder / "sweep/trials/0000/summary.json").exists():
                (folder / "was").touch()
                os._exit(1)
"""
    text = text.replace('    mode: str = "good"\n', '    mode: str = "good"\n' + ending, 1)
    text = text.replace("retries=0", "retries=1").replace(
        "import os, time", "import os, time\nfrom pathlib import Path"
    )
    (tmp_path / "ending.py").write_text(text.replace("FOLDER", repr(str(tmp_path))))
    assert cli.run(["sweep", str(tmp_path / "ending.py"), "--out", str(tmp_path), "--name", "sweep"]) == 0
    assert (tmp_path / "was").exists()
    found = sweep_run.SweepRun(tmp_path / "sweep").trials
    assert [(one["status"], one["attempts"]) for one in found] == [("completed", 1)] * 3


SAVING = """
import os
from dataclasses import dataclass
from raytrain import ASHA, MLP, SGD, Digits, Experiment, Grid, Sweep

@dataclass(frozen=True)
class Net(MLP):
    def build(self, sample, classes):
        from raytrain.sweep.trial import Trial
        Trial.save_checkpoint = lambda self, folder: os._exit(1)
        return super().build(sample, classes)

sweep = Sweep(
    Experiment(Net(hidden=(8,)), Digits(), optimizer=SGD(momentum=0.9), epochs=3),
    (Grid("optimizer.lr", (0.05, 0.001, 0.0001)),),
    scheduler=ASHA(reduction_factor=2),
    concurrent=1,
)
"""


def test_no_process_saves_a_trial_that_a_scheduler_has_stopped(tmp_path: Path) -> None:
    """If it were lost meanwhile, Tune would start the trial again and forget that it was to stop."""
    (tmp_path / "saving.py").write_text(SAVING)
    assert cli.run(["sweep", str(tmp_path / "saving.py"), "--out", str(tmp_path), "--name", "sweep"]) == 0
    found = sweep_run.SweepRun(tmp_path / "sweep").trials
    assert [(one["status"], one["epochs"], one["attempts"]) for one in found] == [
        ("completed", 3, 1), ("stopped", 1, 1), ("stopped", 1, 1),
    ]  # fmt: skip


def test_hosts_answer_while_they_are_alive() -> None:
    import ray

    from raytrain.driver.ray_cluster import all_answer

    here = {node["NodeID"] for node in ray.nodes()}
    assert all_answer(here) and all_answer(set()) and not all_answer({*here, "f" * 56})


class Deaths(threading.Thread):
    """Kills the actor of trial 1 when it trains, and measures how long the groups of dead trials outlive them."""

    def __init__(self, path: Path):
        super().__init__(daemon=True)
        self.path, self.over = path, threading.Event()
        self.groups: dict[int, set[str]] = {}
        self.died: dict[int, float] = {}
        self.gone: dict[int, float] = {}

    def run(self) -> None:
        """Look at the records and at Ray's table of groups five times a second."""
        from ray.util import placement_group_table

        while not self.over.wait(0.2):
            alive = {name for name, group in placement_group_table().items() if group["state"] != "REMOVED"}
            now = time.monotonic()
            for number in (0, 1):
                folder = record.folder(self.path, number)
                found = record.read(folder)
                if found.get("status") == "running" and number not in self.died:
                    self.groups[number] = alive
                    if number == 1 and (folder / "metrics.jsonl").exists():
                        os.kill(found["pid"], signal.SIGKILL)
                        self.died[1] = now
                if found.get("status") in record.ENDED:
                    self.died.setdefault(number, now)
                if number in self.died and not self.groups[number] & alive:
                    self.gone.setdefault(number, now)


@pytest.mark.slow
def test_placement_groups_of_a_dead_trial_go_within_10_s(tmp_path: Path) -> None:
    """A worker's os._exit, then SIGKILL of an actor (what the system's end for want of memory is), with two workers."""
    from ray.util import placement_group_table

    sweep, source = load(dying(tmp_path, 2, ("exits", "waits", "good")))
    deaths = Deaths(tmp_path / "sweep")
    deaths.start()
    try:
        found = driver.sweep(sweep, Options(out=str(tmp_path), name="sweep"), Logger(), source, 0.0, write_files)
    finally:
        deaths.over.set()
        deaths.join()
    print(deaths.groups, deaths.died, deaths.gone)
    assert found is not None and found.answer["status"] == "completed"
    assert [one["status"] for one in found.trials] == ["crashed", "crashed", "completed"]
    assert all(deaths.groups[number] for number in (0, 1)), "each trial had a group"
    assert all(deaths.gone[number] - deaths.died[number] < 10 for number in (0, 1))
    assert {group["state"] for group in placement_group_table().values()} == {"REMOVED"}
