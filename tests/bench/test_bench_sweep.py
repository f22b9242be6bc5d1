"""The benchmark of sweeps: its workload, its arithmetic and its page, without a single trial."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from torchvision import datasets

from benchmarks import dataset, report, sweep
from benchmarks.harness import Measured, SideFailed
from benchmarks.rows import Goal, Row
from benchmarks.sweep import Command, Round, Trial
from raytrain import MNIST


def command(seconds: float, accuracy: float = 0.98) -> Command:
    """Four trials in two processes: 11 follows 10 after 0.4 s, 21 follows 20 after 0.9 s."""
    records = {
        "10": {"pid": 1, "started": 5.0, "ended": 8.0, "first_step_seconds": 0.5},
        "11": {"pid": 1, "started": 8.1, "ended": 9.0, "first_step_seconds": 0.3},
        "20": {"pid": 2, "started": 5.5, "ended": 7.0, "first_step_seconds": 0.5},
        "21": {"pid": 2, "started": 7.7, "ended": 9.5, "first_step_seconds": 0.2},
    }
    trials = {name: Trial(accuracy, 2.0, record) for name, record in reversed(records.items())}
    return Command(100.0, 100.0 + seconds, trials)


def test_the_workload_is_the_experiments_eight_trials(tmp_path: Path):
    value = sweep.workload(tmp_path, small=False)
    assert value.count == 8 and value.concurrent == 2 and value.experiment.epochs == 2
    assert value.experiment.model.hidden == (512, 512)  # type: ignore[attr-defined]
    told = sweep.peer(value)
    assert told["axes"] == {"precision": ["fp32", "bf16"], "batch_size": [64, 128, 256, 512]}
    assert (told["data"], told["lr"], told["momentum"], told["warmup_epochs"]) == (str(tmp_path), 0.05, 0.9, 0.2)
    assert sweep.workload(tmp_path, small=True).count == 4
    exact = sweep.workload(tmp_path, small=False, fp32=True)
    told = sweep.peer(exact)
    assert exact.count == 8 and told["axes"] == {"momentum": [0.9, 0.8], "batch_size": [64, 128, 256, 512]}
    assert told["precision"] == exact.experiment.precision == "fp32"


def test_starts_are_counted_between_trials_of_one_process():
    assert sweep.starts(command(20)) == pytest.approx({"11": 0.4, "21": 0.9})


def test_the_longest_start_of_each_round_counts():
    found = sweep.trial_start([Round(command(20), command(50), command(60), command(40))] * 2)
    assert found.ours == pytest.approx(0.9) and found.ratios == pytest.approx((0.9, 0.9))
    assert found.note == "of 4 starts, median 0.65 s"


def test_sweep_of_one_trial_per_process_has_no_start():
    alone = Command(0.0, 1.0, {"10": command(1).trials["10"]})
    with pytest.raises(SideFailed, match="no process had a second trial"):
        sweep.trial_start([Round(alone, alone, alone, alone)])


def test_whole_commands_are_compared_round_by_round():
    first = Round(command(20), command(50), command(80), command(40))
    rounds = [first, Round(command(30), command(50), command(60), command(40))]
    shell, tune, resident = (sweep.against(name, rounds) for name in ("shell", "tune", "resident"))
    assert shell.ratios == (0.4, 0.6) and (shell.ours, shell.theirs) == (25, 50) and not shell.warning
    assert tune.ratios == (0.25, 0.5) and (tune.ours, tune.theirs) == (25, 70)
    assert resident.ratios == (0.5, 0.75) and (resident.ours, resident.theirs) == (25, 40)


def test_goal_needs_equal_accuracies():
    one = Round(command(20, 0.980), command(50, 0.976), command(80, 0.974), command(40))
    assert sweep.difference(one.sweep, one.tune) == pytest.approx(0.006)
    lines = [report.Line(row, row.measure([one]), 0.0) for row in sweep.ROWS[:2]]
    assert [line.met for line in lines] == [True, False]
    said = lines[1].miss(lambda _: pytest.fail("nothing limits it"))
    assert said == "0.25 would meet it, but the accuracies differ: the sides did different work."
    assert "accuracies within 0.0040" in str(lines[0]) and "ACCURACIES DIFFER" in str(lines[1])


@pytest.mark.parametrize("name", [row.name for row in sweep.ROWS])
def test_every_row_can_say_what_limits_it(name: str):
    early = Command(0.0, 20.0, command(1).trials)
    said = sweep.limit(name, [Round(early, command(50), command(60), command(40))])
    if name == "trial-start":
        assert said.startswith("The longest was 21: 0.90 s, of which 0.70 until")
    else:
        assert "Of 20.0 s, 5.0 pass before the first trial begins, 4.5 with trials and 10.5 behind the last" in said
        theirs = {"sweep-shell": 50, "sweep-tune": 60, "sweep-resident": 40}[name]
        assert f"8.0 of its {theirs}.0 s" in said


def test_a_page_has_a_section_for_a_row_that_is_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(report, "ROOT", tmp_path)
    (tmp_path / "docs").mkdir()
    row = Row("slow", "nothing", Goal(0.5, "<="), lambda _: Measured(3, 4, (0.75,), unit="s"))
    line = report.Line(row, row.measure(None), 1.0)
    miss = line.miss(lambda found: f"It takes {found.ours} s.")
    assert miss == "0.75 instead of <= 0.5: 50% off. It takes 3 s."
    report.write("page.md", ("# Title", "Text."), ["machine: M"], [line], {"slow": miss})
    text = (tmp_path / "docs" / "page.md").read_text()
    assert text.startswith("# Title\n\nText.\n\n- machine: M\n\n| row |")
    assert "| slow | nothing | 3 s | 4 s | 0.75 | 0.75-0.75 | 1 | <= 0.5 | no | 1 |  |" in text
    assert text.endswith(f"## slow misses its goal\n\n{miss}\n")


def test_the_idx_files_are_what_torchvision_and_raytrain_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(dataset, "CACHE", tmp_path)
    folder = dataset.idx(60, None)
    ours = MNIST(root=str(folder)).index()
    assert (len(ours["train"]), len(ours["val"])) == (60, 10)
    for split, train in (("train", True), ("val", False)):
        theirs = datasets.MNIST(str(folder), train=train)
        assert theirs.targets.tolist() == ours[split].labels.tolist()
    train, val = (MNIST(root=str(folder)).read(ours[split], np.arange(10)) for split in ("train", "val"))
    assert train.any(axis=(1, 2, 3)).all() and not (train == val).all(axis=(1, 2, 3)).any()
