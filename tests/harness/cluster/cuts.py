"""What is done to hosts while they train, and what comes of it: an elastic run of two to three workers goes on, and has
the losses of the run that nothing happens to."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from harness.cluster.hosts import Hosts
from harness.cluster.launched import Cluster, rows, same_losses

EPOCHS = ("--epochs", "80")
"""Six minutes of steps, were all of them to take their time."""


@dataclass
class Story:
    """A run that something is done to.

    Attributes:
        victim: the host that it is done to: one with a worker, and without the driver.
        seconds: how long after it training went on, and other times.
    """

    hosts: Hosts
    run: Path
    job: subprocess.Popen[str]
    victim: str = ""
    seconds: dict[str, float] = field(default_factory=dict)

    def wait(self, what: str, condition: Callable[[], bool], limit: float = 400) -> float:
        """Waits until something is so, and returns for how long it was not."""
        began = time.monotonic()
        while not condition():
            assert self.job.poll() is None, f"the job ended before {what}: {self.job.communicate()[0][-3000:]}"
            assert time.monotonic() < began + limit, f"{what}: not within {limit:g} s; {self.events()}"
            time.sleep(0.2)
        return time.monotonic() - began

    def step(self) -> int:
        """The last step that has been written."""
        found = rows(self.run)
        return found[-1]["step"] if found else 0

    def goes_on(self, what: str = "goes on", since: float | None = None) -> None:
        """Waits for ten more steps, and notes how long that took."""
        began, before = time.monotonic() if since is None else since, self.step()
        self.wait(f"it {what}", lambda: self.step() >= before + 10)
        self.seconds[what] = time.monotonic() - began

    def three_again(self) -> None:
        """Waits for three workers, and ten steps of theirs."""
        began = time.monotonic()
        self.wait("three workers", lambda: len(self.places()) == 3 and self.victim in self.places().values())
        self.goes_on("three again", began)

    def places(self) -> dict[int, str]:
        """The hosts of the ranks."""
        found = {}
        for file in (self.run / "logs").glob("place_*.json"):
            try:
                found[int(file.stem.removeprefix("place_"))] = json.loads(file.read_text())["host"]
            except (ValueError, OSError):
                continue
        return found

    def events(self) -> list[str]:
        """What became of the workers so far."""
        file = self.run / "logs" / "workers.jsonl"
        return [json.loads(line)["event"] for line in file.read_text().splitlines()] if file.exists() else []


def raylet_killed(story: Story) -> None:
    """SIGKILL of the raylet, and of its workers with it."""
    story.hosts.run(story.victim, "pkill -9 -x raylet")
    story.goes_on()
    story.three_again()


def slow_link(story: Story) -> None:
    """1 Mbit/s each way: no more than slower."""
    story.hosts.slow_down(story.victim, 1)
    try:
        story.goes_on()
        assert story.events() == [], "workers were started again"
    finally:
        story.hosts.slow_down(story.victim, None)


def cut_short(story: Story) -> None:
    """The link down for 10 s."""
    began = time.monotonic()
    story.hosts.unplug(story.victim)
    time.sleep(10)
    story.hosts.plug_in(story.victim)
    story.goes_on(since=began)


def cut_long(story: Story) -> None:
    """The link down for 90 s."""
    began = time.monotonic()
    story.hosts.unplug(story.victim)
    try:
        story.goes_on()
        time.sleep(max(0.0, began + 90 - time.monotonic()))
    finally:
        story.hosts.plug_in(story.victim)
    story.three_again()


def host_killed(story: Story) -> None:
    """A power cut; the host is started again once training goes on."""
    story.hosts.kill(story.victim)
    try:
        story.goes_on()
    finally:
        story.hosts.start(story.victim)
    story.three_again()


CASES: dict[str, Callable[[Story], None]] = {
    "raylet killed": raylet_killed,
    "slow link": slow_link,
    "cut off for 10 s": cut_short,
    "cut off for 90 s": cut_long,
    "host killed": host_killed,
}


def play(used: Cluster, here: Path, what: str) -> Story:
    """One run on a cluster that is up, with one fault.

    Args:
        here: the run that nothing happens to.

    Raises:
        AssertionError: it did not go on, or its losses are others.
    """
    used.wait_for_nodes(3)
    slow, name = used.hosts.shared / "slow", what.replace(" ", "-")
    slow.touch()
    try:
        with used.submit(name, "--scaling.workers", "2:3", *EPOCHS) as job:
            story = Story(used.hosts, used.hosts.shared / "runs" / name, job)
            story.wait("it trains", lambda: story.step() >= 20)
            places = story.places()
            story.victim = min((rank, host) for rank, host in places.items() if host != "head")[1]
            CASES[what](story)
            slow.unlink()
            said = job.communicate(timeout=600)[0]
            assert job.returncode == 0, said[-3000:]
    finally:
        slow.unlink(missing_ok=True)
    same_losses(story.run, here)
    return story
