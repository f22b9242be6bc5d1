"""Real runs that read a pack at a URL while reads fail, and packers that are disturbed: what is injected, and whether
each outcome is the undisturbed one."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from helpers.s3_server import Server, settings
from PIL import Image

from harness.faults import packer, spoiling
from harness.faults.runs import Command, outcome
from raytrain import Run

HERE = Path(__file__).parent
STEPS = 80
_SHARD = re.compile(r"shard-\d{5}\.bin")
_READ_BY_THE_PLAN = (0, 1, 2, 9, 10, 19, 20, 21, 22, 23)
"""Shards of the first batch, of the middle and the last sample of a split, or next to these."""


class World:
    """The server, the way to it that spoils answers, the pack there, and the outcome of the undisturbed run."""

    def __init__(self, folder: Path):
        self.folder, self.server = folder, Server()
        self.spoiler = spoiling.Spoiler(self.server.port)
        os.environ.update(settings(self.server.port), RAY_AUTH_MODE="disabled")
        write_images(folder / "images")
        packer.pack(str(folder / "images"), str(folder / "pack"), 0.0)
        for file in (folder / "pack").iterdir():
            put(file.name, file.read_bytes())
        whole = Reading("whole", 0, folder / "whole", self)
        whole.start()
        assert whole.command.end() == 0, whole.command.said[-3000:]
        self.whole = outcome(Run(str(whole.run)).path)
        assert [row["step"] for row in self.whole[0] if row["kind"] == "step"] == list(range(1, STEPS + 1))

    def close(self) -> None:
        """End both."""
        self.spoiler.close()
        self.server.close()


def put(name: str, content: bytes) -> None:
    """Write a file of the pack to the bucket of the environment's server."""
    import boto3

    client = boto3.client("s3", endpoint_url=os.environ["AWS_ENDPOINT_URL"])
    client.put_object(Bucket="bucket", Key=f"pack/{name}", Body=content)


def write_images(root: Path) -> None:
    """Write 160 images for training and 32 for validation: noise, so that each sample counts to the end."""
    draw = np.random.default_rng(0)
    for split, count in (("train", 160), ("val", 32)):
        for number in range(count):
            file = root / split / f"class {number % 2}" / f"{number:03d}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(draw.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(file)


@dataclass
class Reading:
    """A run, or packers, with faults.

    Attributes:
        injected: the faults so far.
        again: commands that it took, after the first one.
    """

    kind: str
    seed: int
    folder: Path
    world: World
    injected: int = 0
    again: int = 0
    command: Any = None
    draw: random.Random = field(default_factory=random.Random)

    def __post_init__(self) -> None:
        self.draw = random.Random(f"{self.kind} {self.seed}")
        self.folder.mkdir(parents=True)
        self.run, self.cache = self.folder / "run", self.folder / "cache"
        for name in ("reads.py", "paced.py"):
            shutil.copy(HERE / name, self.folder)

    def start(self, *flags: str) -> None:
        """The run's first command."""
        place = ["--data.cache", str(self.cache), "--out", str(self.folder), "--name", "run"]
        self.command = Command("train", str(self.folder / "reads.py"), *place, *flags, **self._environment())

    def resume(self) -> None:
        """The same run goes on with another command."""
        self.again += 1
        self.command = Command("resume", str(self.run), **self._environment())

    def complete(self) -> None:
        """Wait for the run's end, and compare it with the undisturbed one."""
        assert self.command.end(600) == 0, self.command.said[-3000:]
        found = outcome(Run(str(self.run)).path)
        assert [row["step"] for row in found[0] if row["kind"] == "step"] == list(range(1, STEPS + 1))
        assert found[0] == self.world.whole[0], "its losses differ"
        assert found[1] == self.world.whole[1], "its weights differ"

    def fetched(self, pattern: str) -> list[Path]:
        """The files of the pack in the cache."""
        return list(self.cache.glob(f"packs/*/{pattern}"))

    def wait_for(self, true: Callable[[], object]) -> bool:
        """Wait until something is true; return whether it is before the command ends."""
        while self.command.running:
            if true():
                return True
            time.sleep(0.005)
        return False

    def _environment(self) -> dict[str, str]:
        return settings(self.world.spoiler.port)


def spoil(story: Reading, count: int) -> None:
    """Spoil answers: to the first read of some shards, which are fetched, or, with room for a third of the shards, to
    reads of samples throughout the run."""
    fetches = story.kind == "bytes changed" or story.seed % 2 == 0
    story.world.spoiler.spoil(story.kind, count, story.draw, once=fetches)
    story.start(*([] if fetches else ["--data.fetched", "2.5e-5"]))
    story.complete()
    story.injected = story.world.spoiler.spoiled
    story.world.spoiler.spoil("", 0, story.draw, once=False)


def fill_disk(story: Reading, count: int) -> None:
    """Fill the disk of the cache, a small tmpfs, again and again while shards are fetched."""
    story.cache.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=96k", "tmpfs", str(story.cache)], check=True)
    try:
        story.start()
        assert story.wait_for(lambda: len(story.fetched("index-*.arrow")) == 2), story.command.said[-3000:]
        while story.injected < count and story.command.running:
            with contextlib.suppress(OSError), open(story.cache / "filler", "wb", buffering=0) as file:
                while file.write(bytes(4096)):
                    pass
            story.injected += 1
            time.sleep(story.draw.uniform(0, 0.2))
            (story.cache / "filler").unlink(missing_ok=True)
            time.sleep(story.draw.uniform(0, 0.1))
        story.complete()
    finally:
        story.command.abandon()
        subprocess.run(["umount", str(story.cache)], check=True)


def damage_shards(story: Reading, count: int) -> None:
    """Damage shards at the URL: each command ends with one line that names one, until all are mended."""
    originals = {file.name: file.read_bytes() for file in (story.world.folder / "pack").glob("*.bin")}
    may = [name for number, name in enumerate(sorted(originals)) if number not in _READ_BY_THE_PLAN]
    bad = set(story.draw.sample(may, min(count, len(may))))
    try:
        for name in bad:
            raw = bytearray(originals[name])
            raw[story.draw.randrange(len(raw))] ^= 1 << story.draw.randrange(8)
            put(name, bytes(raw))
        story.start()
        while bad:
            assert story.command.end(600) == 1, story.command.said[-3000:]
            said = " ".join(story.command.said.split()).replace("- ", "-")
            named = set(_SHARD.findall(said))
            assert len(named) == 1 and named <= bad and "Traceback" not in said, story.command.said[-3000:]
            story.injected += 1
            bad -= named
            for name in named:
                put(name, originals[name])
            story.resume()
        story.complete()
    finally:
        for name in bad:
            put(name, originals[name])


def evict(story: Reading, count: int) -> None:
    """Remove the fetched shards, once with their folders and once without, while workers fetch them and read from
    them."""
    story.start()
    for number in range(count):
        if not story.wait_for(lambda: len(story.fetched("*.bin")) >= min(2, 1 + story.draw.randrange(3))):
            break
        if number % 2:
            shutil.rmtree(story.cache / "packs", ignore_errors=True)
        else:
            for file in story.fetched("*.bin"):
                file.unlink(missing_ok=True)
        story.injected += 1
        time.sleep(story.draw.uniform(0, 0.05))
    story.complete()


def kill_packers(story: Reading, count: int) -> None:
    """Kill packers; the same command goes on each time, and the files are those of the undisturbed one."""
    while story.injected < count:
        dest = story.folder / f"pack-{story.injected}"
        for _ in range(min(5, count - story.injected)):
            process = _packer(story, dest)
            time.sleep(story.draw.uniform(0.0, 0.4))
            killed = process.is_alive()
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid or 0, signal.SIGKILL)
            process.join()
            if not killed:
                break
            story.injected += 1
        last = _packer(story, dest)
        last.join(60)
        assert last.exitcode == 0, f"the last packer ends with {last.exitcode}"
        story.again += 1
        _same_files(story, dest)


def pack_twice(story: Reading, count: int) -> None:
    """Two packers at once: one writes the pack, and the other is refused or finds it complete."""
    while story.injected < count:
        dest = story.folder / f"pack-{story.injected}"
        first = _packer(story, dest)
        time.sleep(story.draw.uniform(0.0, 0.1))
        second = _packer(story, dest)
        for process in (first, second):
            process.join(60)
        ended = sorted((first.exitcode, second.exitcode), key=str)
        assert ended in ([0, 0], [0, 2]), ended
        story.injected += 1
        _same_files(story, dest)


def _packer(story: Reading, dest: Path) -> Any:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["harness.faults.packer"])
    process = context.Process(target=packer.pack, args=(str(story.world.folder / "images"), str(dest), 0.02))
    process.start()
    return process


def _same_files(story: Reading, dest: Path) -> None:
    expected = {file.name: file.read_bytes() for file in (story.world.folder / "pack").iterdir()}
    found = {file.name: file.read_bytes() for file in dest.iterdir() if file.is_file()}
    assert found == expected, f"{sorted(found)} is not {sorted(expected)}, or the bytes differ"
    shutil.rmtree(dest)


INJECTED: dict[str, Callable[[Reading, int], None]] = {
    **dict.fromkeys(spoiling.KINDS, spoil),
    "disk full": fill_disk,
    "shard damaged": damage_shards,
    "cache evicted": evict,
    "packer killed": kill_packers,
    "two packers": pack_twice,
}
MOST = {
    **dict.fromkeys(spoiling.KINDS, 15),
    "disk full": 15, "shard damaged": 6, "cache evicted": 6, "packer killed": 30, "two packers": 30,
}  # fmt: skip
"""Faults of one run."""


def why_not(kind: str) -> str | None:
    """Why a kind cannot be injected here, or None."""
    if kind == "disk full" and os.geteuid() != 0:
        return "mounting a small disk takes root"
    return None


def play(kind: str, seed: int, count: int, world: World) -> Reading:
    """Inject so many faults of a kind, at most, into a run or into packers, and compare the outcome.

    Raises:
        AssertionError: it was not made good.
    """
    story = Reading(kind, seed, world.folder / f"{kind.replace(' ', '-')}-{seed}", world)
    try:
        INJECTED[kind](story, count)
        assert story.injected, "nothing was injected"
        return story
    finally:
        if story.command:
            story.command.abandon()
        shutil.rmtree(story.folder, ignore_errors=True)
