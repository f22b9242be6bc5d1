"""Measures a sweep of raytrain against the same trials one after another, and against Ray Tune over Ray Train.

    python benchmarks/sweep.py [--small] [--fp32] [--rounds N] [--write]

The sweep is experiments/sweep_amp_batch.py: eight trials of an MLP on MNIST, two at a time. Each side is a whole
command, from its start to its exit. A round takes about ten minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks import dataset, report
from benchmarks.harness import ROOT, Measured, SideFailed, environment
from benchmarks.rows import Goal, Row
from raytrain import MNIST, SGD, Cosine, Grid, Sweep, config
from raytrain.run import experiment_file
from raytrain.sweep import record
from raytrain.sweep.space import combinations
from raytrain.sweep.sweep_file import load, to_dict

EXPERIMENT = ROOT / "experiments" / "sweep_amp_batch.py"
AT_ONCE = 2
"""Trials at a time."""
COMMAND_SECONDS = 1200
"""A command that takes longer has failed."""
NOISE = 0.005
"""Accuracies of equal trials may differ by so much: each side has initial weights and shuffles of its own. Those of six
seeds were 0.0025 apart with a batch of 64, and 0.0018 with 512."""

INTRODUCTION = (
    "# Benchmarks of sweeps",
    "Written by `make bench-sweep BENCH=--write`. The trials are those of `experiments/sweep_amp_batch.py`: the MLP "
    "784-512-512-10 on MNIST for two epochs, with precision fp32 or bf16 (with `--fp32`: momentum 0.9 or 0.8, for CPUs "
    "that emulate bf16) and a batch of 64, 128, 256 or 512; one worker each, two at a time. A side is a whole "
    "command, timed from its start to its exit: `raytrain sweep`; "
    "`raytrain train` once a trial, with the threads that it takes by itself; `benchmarks/sides/ray_tune.py`, which is "
    "Tune over Train V2 as Ray's guide has it, around the tutorials' loop, and for `sweep-resident` with all images as "
    "one normalised tensor in memory. All validate and write a checkpoint after each epoch.",
    "trial-start is the longest time between the end of a trial and the end of the first step of the next one in the "
    "same process.",
)


@dataclass(frozen=True)
class Trial:
    """What a side's trial came to.

    Attributes:
        accuracy: on the validation images after the last epoch.
        seconds: of training and validation.
        record: what raytrain's sweep keeps of it, and `first_step_seconds`; empty for the other sides.
    """

    accuracy: float
    seconds: float
    record: Mapping[str, Any]


@dataclass(frozen=True)
class Command:
    """What a side took.

    Attributes:
        began: Unix time at which the command was started, or the first of several.
        ended: Unix time of its exit, or of the last one's.
        trials: by their values.
    """

    began: float
    ended: float
    trials: Mapping[str, Trial]

    @property
    def seconds(self) -> float:
        """From start to exit."""
        return self.ended - self.began

    @property
    def training(self) -> float:
        """Seconds of all trials, as if one came after the other."""
        return sum(trial.seconds for trial in self.trials.values())


@dataclass(frozen=True)
class Round:
    """What the sides took, one after the other."""

    sweep: Command
    shell: Command
    tune: Command
    resident: Command


def workload(data: Path, small: bool, fp32: bool = False) -> Sweep:
    """The sweep that all sides do; in fp32 alone where bf16 is emulated, since nothing else would be measured."""
    value = load(EXPERIMENT)[0]
    base = config.replace(value.experiment, "data.root", str(data))
    precisions, sizes = value.axes
    first = Grid("optimizer.momentum", (0.9, 0.8)) if fp32 else precisions
    axes = (first, Grid("batch_size", (64, 128)) if small else sizes)
    return replace(value, experiment=base, axes=axes, concurrent=AT_ONCE)


def by_sweep(value: Sweep, folder: Path) -> Command:
    """`raytrain sweep` of it."""
    (folder / "sweep.json").write_text(json.dumps({"sweep": to_dict(value)}))
    began, ended = _run("raytrain.cli", "sweep", str(folder / "sweep.json"), "--out", str(folder), "--name", "sweep")
    trials = {}
    for one in json.loads((folder / "sweep" / "sweep.json").read_text())["trials"]:
        run = record.folder(folder / "sweep", one["number"])
        if one["status"] != "completed":
            raise SideFailed(f"a trial of raytrain sweep is {one['status']}: {one.get('error')}")
        trials[_name(one["values"])] = _trial(run, one)
    return Command(began, ended, trials)


def by_shell(value: Sweep, folder: Path) -> Command:
    """`raytrain train` of each of its experiments, one after the other."""
    times, trials = [], {}
    for number, values in enumerate(combinations(value.axes)):
        file = folder / f"{number}.json"
        experiment_file.save(value.trial(values), file)
        times += _run("raytrain.cli", "train", str(file), "--out", str(folder), "--name", str(number))
        trials[_name(values)] = _trial(folder / str(number), {})
    return Command(times[0], times[-1], trials)


def by_tune(value: Sweep, folder: Path, resident: bool = False) -> Command:
    """Ray Tune over Ray Train."""
    answer = folder / "answer.json"
    told = peer(value) | {"answer": str(answer), "at_once": AT_ONCE, "resident": resident}
    began, ended = _run("benchmarks.sides.ray_tune", json.dumps(told))
    names = [axis.path for axis in value.axes]
    trials = {
        _name({name: one[_last(name)] for name in names}): Trial(one["val_accuracy"], one["seconds"], {})
        for one in json.loads(answer.read_text())
    }
    return Command(began, ended, trials)


def peer(value: Sweep) -> dict[str, Any]:
    """The sweep in the words of benchmarks/sides/ray_tune.py, whose model has its own."""
    e = value.experiment
    assert isinstance(e.data, MNIST) and isinstance(e.optimizer, SGD) and isinstance(e.schedule, Cosine)
    return {
        "data": e.data.root,
        "epochs": e.epochs,
        "lr": e.optimizer.lr,
        "momentum": e.optimizer.momentum,
        "warmup_epochs": e.schedule.warmup_epochs,
        "precision": e.precision,
        "axes": {_last(axis.path): list(axis.finite or ()) for axis in value.axes},
    }


SIDES: dict[str, Callable[[Sweep, Path], Command]] = {
    "sweep": by_sweep,
    "shell": by_shell,
    "tune": by_tune,
    "resident": partial(by_tune, resident=True),
}


def one_round(value: Sweep) -> Round:
    """Lets each side do the sweep."""
    found = {}
    for name, side in SIDES.items():
        time.sleep(3)  # until the processes of the side before are gone, which do not all end with their command
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            found[name] = side(value, Path(folder))
        print(f"{name}: {found[name].seconds:.1f} s for {len(found[name].trials)} trials", flush=True)
    return Round(**found)


def against(side: str, rounds: Sequence[Round]) -> Measured:
    """Seconds of the sweep's command against those of another side, and whether the models came out alike."""
    pairs = [(one.sweep, getattr(one, side)) for one in rounds]
    apart = max(difference(ours, theirs) for ours, theirs in pairs)
    return Measured(
        statistics.median(ours.seconds for ours, _ in pairs),
        statistics.median(theirs.seconds for _, theirs in pairs),
        tuple(ours.seconds / theirs.seconds for ours, theirs in pairs),
        unit="s",
        note=f"accuracies within {apart:.4f}",
        warning="accuracies differ" if apart > NOISE else "",
    )


def difference(ours: Command, theirs: Command) -> float:
    """The largest difference between the accuracies of the same trial."""
    assert ours.trials.keys() == theirs.trials.keys()
    return max(abs(trial.accuracy - theirs.trials[name].accuracy) for name, trial in ours.trials.items())


def trial_start(rounds: Sequence[Round]) -> Measured:
    """Seconds from the end of a trial to the next one's first step in the same process, against 1: the longest of each
    round."""
    gaps = [starts(one.sweep) for one in rounds]
    every = [seconds for each in gaps for seconds in each.values()]
    if not every:
        raise SideFailed("no process had a second trial")
    worst = tuple(max(each.values()) for each in gaps)
    note = f"of {len(every)} starts, median {statistics.median(every):.2f} s"
    return Measured(statistics.median(worst), 1.0, worst, unit="s", note=note)


def starts(command: Command) -> dict[str, float]:
    """Seconds from the end of the trial before in the same process to the end of the first step, for each trial that
    has one before it. A first step is timed from when its trial has its data, at most 13 ms after it `started`."""
    by_process: dict[int, list[tuple[str, Mapping[str, Any]]]] = {}
    for name, trial in sorted(command.trials.items(), key=lambda item: item[1].record["started"]):
        by_process.setdefault(trial.record["pid"], []).append((name, trial.record))
    return {
        name: now["started"] + now["first_step_seconds"] - before["ended"]
        for trials in by_process.values()
        for (_, before), (name, now) in pairwise(trials)
    }


ROWS: tuple[Row[Sequence[Round]], ...] = (
    Row("sweep-shell", "raytrain train, one by one", Goal(0.5, "<="), partial(against, "shell")),
    Row("sweep-tune", "Ray Tune + Train", Goal(0.4, "<="), partial(against, "tune")),
    Row("sweep-resident", "Ray Tune + Train, data in memory", Goal(0.4, "<="), partial(against, "resident")),
    Row("trial-start", "1 s", Goal(1.0, "<="), trial_start),
)


def limit(name: str, rounds: Sequence[Round]) -> str:
    """What keeps a row from its goal, with the figures of the last round."""
    last = rounds[-1]
    ours, records = last.sweep, [trial.record for trial in last.sweep.trials.values()]
    if name == "trial-start":
        slow, seconds = max(starts(ours).items(), key=lambda item: item[1])
        own = ours.trials[slow].record["first_step_seconds"]
        return (
            f"The longest was {slow}: {seconds:.2f} s, of which {seconds - own:.2f} until Tune had handed the trial "
            f"over and {own:.2f} for its model, its loaders and its first step."
        )
    first, final = min(one["started"] for one in records), max(one["ended"] for one in records)
    theirs = getattr(last, name.removeprefix("sweep-"))
    return (
        f"Of {ours.seconds:.1f} s, {first - ours.began:.1f} pass before the first trial begins, {final - first:.1f} "
        f"with trials and {ours.ended - final:.1f} behind the last one. The trials train {ours.training:.1f} s in all, "
        f"{AT_ONCE} at a time; those of the other side {theirs.training:.1f} of its {theirs.seconds:.1f} s."
    )


def _trial(run: Path, kept: Mapping[str, Any]) -> Trial:
    summary = json.loads((run / "summary.json").read_text())
    more = {**kept, "first_step_seconds": summary["first_step_seconds"]} if kept else {}
    return Trial(record.validations(run)[-1]["val_accuracy"], summary["seconds"], more)


def _name(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def _last(path: str) -> str:
    return path.rpartition(".")[2]


def _run(*arguments: str) -> tuple[float, float]:
    """Runs a module as a command.

    Returns:
        Unix times of its start and its exit.

    Raises:
        SideFailed: it failed, or took too long.
    """
    threads = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")  # a user leaves them to raytrain, and to Ray
    variables = {name: text for name, text in environment(1).items() if name not in threads}
    # A note of a cluster that is gone would have Train's controllers look for it there: 12 s at the end of each trial.
    folder = tempfile.TemporaryDirectory(dir="/tmp", prefix="rt-", ignore_cleanup_errors=True)
    began = time.time()
    with folder as notes, tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=ROOT,
            env=variables | {"RAY_AUTH_MODE": "disabled", "RAY_TMPDIR": notes},
            start_new_session=True,
        )
        try:
            status = process.wait(COMMAND_SECONDS)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            status = f"no end in {COMMAND_SECONDS} s"
        ended = time.time()
        if status != 0:
            output.seek(0)
            raise SideFailed(f"{' '.join(arguments[:2])} ended with {status}:\n" + "".join(output.readlines()[-20:]))
    return began, ended


def main() -> int:
    """Prints the table when all rounds are done. Returns 1 if a side failed; a row that misses its goal has not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="four trials on 12,000 generated digits, to see it work")
    parser.add_argument("--fp32", action="store_true", help="momenta instead of precisions, where bf16 is emulated")
    parser.add_argument("--root", help="folder that holds MNIST/raw")
    parser.add_argument("--rounds", type=int, default=1, help="how often the sides alternate")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks-sweeps.md")
    arguments = parser.parse_args()
    root = None if arguments.small else dataset.find_mnist(arguments.root)
    if arguments.root and not dataset.find_mnist(arguments.root):
        parser.error(f"{arguments.root} holds no MNIST/raw")
    if arguments.rounds < 1:
        parser.error("--rounds is 1 at the least")
    samples = 12_000 if arguments.small else 60_000
    value = workload(dataset.idx(samples, root).absolute(), arguments.small, arguments.fp32)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # leave by way of the commands, which would go on alone
    data = "MNIST" if root else "generated digits"
    machine = report.machine(
        f"{samples:,} training images of {data} as idx files; {value.count} trials; rounds: {arguments.rounds}"
    )
    print("\n".join(machine), flush=True)
    began = time.monotonic()
    # Whoever came first would read the packages from the disk for all.
    subprocess.run([sys.executable, "-c", "import ray.tune, ray.train.torch, torchvision"], check=True, cwd=ROOT)
    try:
        rounds = [one_round(value) for _ in range(arguments.rounds)]
        seconds = [time.monotonic() - began, *[0.0] * (len(ROWS) - 1)]
        lines = [report.Line(row, row.measure(rounds), took) for row, took in zip(ROWS, seconds, strict=True)]
    except SideFailed as error:
        print(error)
        return 1
    print(report.header(), *lines, sep="\n")
    misses = {
        line.row.name: miss for line in lines if (miss := line.miss(lambda _, row=line.row: limit(row.name, rounds)))
    }
    for name, miss in misses.items():
        print(f"\n{name} misses its goal: {miss}")
    print(f"\n{(time.monotonic() - began) / 60:.1f} minutes")
    if arguments.write:
        report.write("benchmarks-sweeps.md", INTRODUCTION, machine, lines, misses)
    return 0


if __name__ == "__main__":
    sys.exit(main())
