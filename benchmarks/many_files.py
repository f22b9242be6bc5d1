"""Starts of runs on an ImageFolder of many files, and on a pack of it: `python benchmarks/many_files.py FOLDER`.

The files are hard links to one small JPEG per class, in FOLDER, and are removed at the end. Nothing empties the page
cache, so the names and times of the files are in memory.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from PIL import Image

_INDEX = """
import sys, time
from raytrain import ImageFolder
from raytrain.data.checks import checked_indices
data = ImageFolder(sys.argv[1], size=32, cache=sys.argv[2], verify=sys.argv[3])
import pyarrow, raytrain.data.image_files
began = time.perf_counter()
found = checked_indices(data)["train"]
print(time.perf_counter() - began, "" if found.times is not None else "(not all files looked at)")
"""
_EXPERIMENT = """
from raytrain import CNN, Experiment, ImageFolder, Packed
data = {data}
experiment = Experiment(CNN(channels=(8, 16)), data, batch_size=64, steps=100)
"""


def make(root: Path, count: int, classes: int) -> None:
    """Write `count` images for training and two of each class for validation."""
    random = np.random.default_rng(0)
    for label in range(classes):
        base = root.parent / "base" / f"{label}.jpg"
        base.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(base)
        for split, each in (("train", count // classes), ("val", 2)):
            folder = root / split / f"n{label:08d}"
            folder.mkdir(parents=True)
            for number in range(each):
                os.link(base, folder / f"n{label:08d}_{number}.JPEG")


def timed(*command: str, folder: Path) -> tuple[float, str]:
    """Return the seconds that a command takes, and what it prints."""
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, text=True, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    if done.returncode:
        sys.exit(f"{' '.join(command)}:\n{done.stdout}")
    return time.perf_counter() - began, done.stdout.strip()


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="an empty or new folder, on a disk with 20 GB of room")
    parser.add_argument("--count", type=int, default=1_280_000, help="the number of training images")
    parser.add_argument("--classes", type=int, default=1_000)
    parser.add_argument("--no_pack", action="store_true", help="leave the pack out, which takes the longest")
    given = parser.parse_args()
    folder = given.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    root, cache = folder / "images", folder / "cache"
    try:
        make(root, given.count, given.classes)
        print(f"{given.count:,} images in {given.classes:,} classes; load {os.getloadavg()[0]:.1f} at the start\n")
        print("| what | seconds |\n|---|---|", flush=True)

        def row(what: str, seconds: str | float) -> None:
            print(f"| {what} | {seconds if isinstance(seconds, str) else f'{seconds:.1f}'} |", flush=True)

        def index(what: str, verify: str = "auto") -> None:
            said = timed("-c", _INDEX, str(root), str(cache), verify, folder=folder)[1].partition(" ")
            row(what, f"{float(said[0]):.1f} {said[2]}".strip())

        time.sleep(2.5)  # folders that change just now are listed again
        index("index, first start")
        index("index, second start")
        index("index, all files looked at again (verify=all)", "all")
        os.link(folder / "base" / "0.jpg", root / "train" / "n00000000" / "one more.jpg")
        time.sleep(2.5)
        index("index, after a file was added")

        def train(what: str, data: str) -> None:
            (folder / "experiment.py").write_text(_EXPERIMENT.format(data=data))
            for start in ("first", "second"):
                command = ("-m", "raytrain.cli", "train", "experiment.py", "--out", "runs", "--quiet")
                row(
                    f"{what}, 100 streamed steps of 64: the whole command, {start} run",
                    timed(*command, folder=folder)[0],
                )

        train("folder", f"ImageFolder({str(root)!r}, size=32, cache={str(cache)!r}, mode='streaming')")
        if not given.no_pack:
            command = ("-m", "raytrain.cli", "pack", str(root), str(folder / "pack"), "--data.size", "32")
            row("packing (original)", timed(*command, folder=folder)[0])
            train("pack", f"Packed({str(folder / 'pack')!r}, cache={str(cache)!r}, mode='streaming')")
    finally:
        for name in ("images", "base", "cache", "pack", "runs", "experiment.py"):
            path = folder / name
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
