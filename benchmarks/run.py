"""Measures raytrain against its peers, and prints what it finds as a table.

    python benchmarks/run.py [--full] [--rows NAME ...] [--write] [--FIELD VALUE ...]
    python benchmarks/run.py --smoke

Fields of raytrain's experiment are given by their dotted paths, such as --precision bf16 or
--parallel.bucket_cap_mb 1.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import math
import signal
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from typing import Any

from benchmarks import dataset, limits, report
from benchmarks.harness import SideFailed
from benchmarks.rows import ROWS, Bench, Row

INTRODUCTION = (
    "# Benchmarks",
    "Written by `benchmarks/run.py --write`. Only ratios count: the sides alternate A B A B. A ratio is the "
    "median of the rounds' ratios, its spread their range. Losses are ours/theirs, of the first and the last epoch; "
    "each side shuffles its own way. Sweeps have [a page of their own](benchmarks-sweeps.md), "
    "and so do [GPUs](gpus.md#measured).",
    "The MLP is 784-512-512-10 and the CNN has 16 and 32 channels; MNIST, batch 64 a rank, fp32 and one rank where the "
    "row does not say otherwise. Rows that name no model train the MLP, *-small rows one of 32 hidden units, on images "
    "that are in memory already; streaming-jpeg and pack-* read photographs and train nothing.",
)


def main() -> int:
    """Print a row as soon as it is measured. Return 1 if a row failed; one that misses its goal has not failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="60,000 images and 9 rounds; 9,600 and 5 otherwise")
    parser.add_argument("--rows", nargs="+", metavar="NAME", choices=[row.name for row in ROWS], help="only these")
    parser.add_argument("--root", help="folder that holds MNIST/raw")
    parser.add_argument("--samples", type=int, help="images in an epoch")
    parser.add_argument("--rounds", type=int, help="how often the sides alternate")
    parser.add_argument(
        "--smoke", action="store_true", help="run rows once on little data, each kind of side; no figures"
    )
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md")
    arguments, fields = parser.parse_known_args()
    if len(fields) % 2 or not all(name.startswith("--") for name in fields[::2]):
        parser.error(f"not pairs of --FIELD VALUE: {' '.join(fields)}")
    if arguments.root and not dataset.find_mnist(arguments.root):
        parser.error(f"{arguments.root} holds no MNIST/raw")
    if arguments.smoke and (arguments.write or arguments.full):
        parser.error("--smoke measures nothing: leave out --full and --write")
    bench = Bench(
        arguments.samples or (60_000 if arguments.full else 9_600),
        arguments.rounds or (1 if arguments.smoke else 9 if arguments.full else 5),
        None if arguments.smoke else dataset.find_mnist(arguments.root),
        {name.removeprefix("--"): _value(text) for name, text in zip(fields[::2], fields[1::2], strict=True)},
        arguments.smoke,
    )
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # unwind and so end the sides, which would go on alone
    chosen = (
        [row for row in ROWS if row.name in arguments.rows]
        if arguments.rows
        else [row for row in ROWS if (not row.alike if arguments.smoke else arguments.full or not row.full)]
    )
    if arguments.smoke:
        return smoke(bench, chosen)
    data = "MNIST" if bench.root else "generated digits (MNIST is not there)"
    machine = report.machine(f"{bench.samples:,} images of {data} as PNG files; {bench.rounds} rounds; 1 thread a rank")
    print("\n".join(machine), report.header(), sep="\n", flush=True)
    lines, began = [], time.monotonic()
    for row in chosen:
        started = time.monotonic()
        try:
            found: Any = row.measure(bench)
        except SideFailed as error:
            found = error
        lines.append(report.Line(row, found, time.monotonic() - started))
        print(lines[-1], flush=True)
    misses = {}
    for line in lines:
        if miss := line.miss(lambda found, name=line.row.name: limits.sentence(name, found, bench.parts)):
            misses[line.row.name] = miss
    for name, miss in misses.items():
        print(f"\n{name} misses its goal: {miss}", flush=True)
    print(f"\n{(time.monotonic() - began) / 60:.1f} minutes")
    if arguments.write:
        report.write("benchmarks.md", INTRODUCTION, machine, lines, misses)
    return int(any(isinstance(line.found, SideFailed) for line in lines))


def smoke(bench: Bench, rows: Sequence[Row[Bench]]) -> int:
    """Run each row once, two at a time. Return 1 if one of them failed."""
    began, waiting, failed = time.monotonic(), list(reversed(rows)), threading.Event()

    def work() -> None:
        with contextlib.suppress(IndexError):
            while row := waiting.pop():
                started = time.monotonic()
                outcome = _outcome(bench, row)
                if outcome.startswith("failed"):
                    failed.set()
                print(f"{row.name:<17} {time.monotonic() - started:5.1f} s  {outcome}", flush=True)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(f"{time.monotonic() - began:.0f} s")
    return int(failed.is_set())


def _outcome(bench: Bench, row: Row[Bench]) -> str:
    """Measure a row and what would limit it, and say how that went."""
    if row.package and importlib.util.find_spec(row.package) is None:
        return f"skipped: {row.package} is not installed"
    try:
        found = row.measure(bench)
        limits.sentence(row.name, found, bench.parts)
    except Exception as error:  # one row must not hide what is wrong with the others
        traceback.print_exc()
        return f"failed: {error}"
    return "ok" if math.isfinite(found.ratio) else f"failed: the ratio is {found.ratio}"


def _value(text: str) -> Any:
    """Return the value that a text has in JSON, or the text itself where it is not JSON."""
    try:
        return json.loads(text)
    except ValueError:
        return text


if __name__ == "__main__":
    sys.exit(main())
