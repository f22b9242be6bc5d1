"""Measures what a sweep's driver costs a trial, and its memory, when 10, 100 and 1,000 trials have ended.

    python benchmarks/sweep_driver.py [--trials 10 100 1000] [--further 20] [--asha]

Trials are one step of a tiny MLP on digits; with --asha up to three epochs of a step, each with a validation, after the
first of which ASHA ends two thirds of them. Two real ones are copied until so many have ended; then the sweep goes on
with further ones. The CPU time is that of the driver's process, Ray Tune and the table included, from the end of the
second further trial to that of the last. The goal is 50 ms a trial, the same for all numbers of trials.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.harness import ROOT, SideFailed
from raytrain import ASHA, MLP, SGD, Complete, Digits, Experiment, LogUniform, Sampler, Sweep
from raytrain.cli import sweep as cli
from raytrain.driver.options import Options
from raytrain.report.sweep import Table
from raytrain.sweep import record
from raytrain.sweep.sweep_file import load, to_dict

GOAL = 0.05
"""Seconds of the driver's CPU time a trial."""
BEGIN = 2
"""Trials that are real before the others are copied, and further ones that are not measured."""


class Meter(Table):
    """The table of a sweep, and the driver's CPU time and memory at each look at the trials."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[int, float, float, float]] = []

    def trials(
        self,
        records: list[dict[str, Any]],
        objectives: list[dict[str, Any]],
        elapsed: float,
        count: int | None = None,
    ) -> None:
        """Show the trials, and note the figures."""
        super().trials(records, objectives, elapsed, count)
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        ended = sum(one["status"] in record.ENDED for one in records)
        self.seen.append((ended, time.process_time(), time.time(), pages * os.sysconf("SC_PAGE_SIZE") / 2**20))


def grown(source: Path, path: Path, count: int) -> None:
    """Copy a sweep, and one of its trials until there are `count`."""
    shutil.copytree(source, path)
    kept = record.read(record.folder(source, 0)) or {}
    for number in range(BEGIN, count):
        shutil.copytree(record.folder(source, 0), record.folder(path, number))
        values = {"optimizer.lr": 0.001 + 1e-5 * number}
        text = json.dumps(kept | {"number": number, "values": values}, indent=2)
        (record.folder(path, number) / record.FILE).write_text(text)


def driven(path: Path, trials: int, ended: int) -> dict[str, float]:
    """Go on with a sweep in this process, and return the driver's figures for a trial."""
    meters: list[Meter] = []
    cli.Table = lambda: meters.append(Meter()) or meters[0]  # type: ignore[assignment,misc]
    cli.sweep(path, replace(load(path)[0], trials=trials), Options(report=False), None)
    first = next(look for look in meters[0].seen if look[0] >= ended + BEGIN)
    last = next(look for look in meters[0].seen if look[0] >= trials - 1)
    count = last[0] - first[0]
    return {"cpu": (last[1] - first[1]) / count, "wall": (last[2] - first[2]) / count, "mib": last[3]}


def last_line(*arguments: object) -> str:
    """Run Python in a process of its own and return the last line that it prints.

    Raises:
        SideFailed: it failed.
    """
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    if done.returncode:
        raise SideFailed(done.stderr[-2000:])
    return done.stdout.strip().splitlines()[-1]


def main(given: Sequence[str] | None = None) -> int:
    """Print a line for each number of trials."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, nargs="+", default=[10, 100, 1000], help="how many have ended")
    parser.add_argument("--further", type=int, default=20, help="trials that then go on")
    parser.add_argument("--asha", action="store_true", help="let ASHA end trials early")
    parser.add_argument("--side", help="the sweep that this process goes on with")
    arguments = parser.parse_args(given)
    if arguments.side:
        ended = arguments.trials[0]
        print(json.dumps(driven(Path(arguments.side), ended + arguments.further, ended)))
        return 0
    base = Experiment(model=MLP(hidden=(8,)), data=Digits(), optimizer=SGD(lr=0.05), steps=1)
    if arguments.asha:
        base = replace(base, steps=None, epochs=3, sampler=Sampler(count=base.batch_size))
    scheduler = ASHA() if arguments.asha else Complete()
    value = Sweep(base, (LogUniform("optimizer.lr", 0.001, 1.0),), trials=BEGIN, scheduler=scheduler)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        (Path(folder) / "sweep.json").write_text(json.dumps({"sweep": to_dict(value)}))
        last_line("-m", "raytrain.cli", "sweep", f"{folder}/sweep.json", "--out", folder, "--name", "begun")
        print(f"goal: {1000 * GOAL:.0f} ms of the driver's CPU time a trial")
        for count in arguments.trials:
            path = Path(folder) / f"of_{count}"
            grown(Path(folder) / "begun", path, count)
            found = json.loads(last_line(__file__, "--side", path, "--trials", count, "--further", arguments.further))
            print(
                f"{count:6,} trials ended: {1000 * found['cpu']:.0f} ms of CPU time a trial, {found['wall']:.2f} s "
                f"from one end to the next, {found['mib']:.0f} MiB",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
