"""Real runs with faults in them: what is injected, how the run goes on, and whether it is the undisturbed one."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from helpers.s3_server import Gate, Server, settings
from helpers.times import without_times

from harness.faults.paced import memory
from raytrain import Run
from raytrain.checkpoint import layout, location

PACED = Path(__file__).with_name("paced.py")
EVERY = 10
"""Steps between checkpoints."""
STEPS = 24 * 23
WAYS = tuple((optimizer, precision) for optimizer in ("SGD", "AdamW") for precision in ("fp32", "bf16"))
"""What the runs train with; a seed takes one after the other."""


class Command:
    """A raytrain command in a session of its own, which all that it starts stays in."""

    def __init__(self, *arguments: str, **environment: str):
        self.lines: list[str] = []
        inherited = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
        self.process = subprocess.Popen(
            [sys.executable, "-u", "-m", "raytrain.cli", *arguments],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=inherited | environment,
            start_new_session=True,
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        COMMANDS.append(self)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)

    @property
    def said(self) -> str:
        return "".join(self.lines)

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def end(self, timeout: float = 180) -> int:
        """Waits for its own end, and returns the exit status."""
        try:
            self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it does not end: {self.said[-2000:]}") from None
        self._reader.join(5)
        return self.process.returncode

    def processes(self) -> list[int]:
        """All of its session that still run."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    state, _, _, session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
                except OSError:
                    continue
                if state != "Z" and int(session) == self.process.pid:
                    found.append(int(entry.name))
        return found

    def abandon(self) -> None:
        """Ends all that is left of it."""
        for pid in self.processes():
            with_pid(pid, signal.SIGKILL)
        self.process.wait()


COMMANDS: list[Command] = []


def with_pid(pid: int, number: int) -> None:
    """Sends a signal to a process that may be gone."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


@dataclass
class Injected:
    """One fault: at which step, from which checkpoint the run went on, and after how many seconds a new step came."""

    kind: str
    seed: int
    step: int
    redone: int = -1
    seconds: float = float("nan")
    recovered: bool = False
    equal: bool = False
    note: str = ""


class Nodes:
    """A cluster of two nodes on this machine: a head with room for Ray Data and a worker, and a node for another. Its
    CPUs are more than this machine may have: with fewer, an elastic run would not need the second node."""

    def __init__(self) -> None:
        os.environ["RAY_AUTH_MODE"] = "disabled"
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 3, "include_dashboard": False}
        self._cluster: Any = Cluster(initialize_head=True, head_node_args=head)
        self.address: str = self._cluster.address
        self._node: Any = None
        self.add()

    def add(self) -> None:
        """Starts the second node, or another one in its place."""
        if self._node is None:
            self._node = self._cluster.add_node(num_cpus=2)

    def kill(self) -> None:
        """Kills the second node's processes."""
        self._cluster.remove_node(self._node, allow_graceful=False)
        self._node = None

    def call_back(self) -> None:
        """Says that the second node will go in a minute, as a cloud does of a spot instance."""
        drain = [sys.executable, "-m", "ray.scripts.scripts", "drain-node", "--address", self.address]
        drain += ["--node-id", self._node.node_id, "--reason", "DRAIN_NODE_REASON_PREEMPTION"]
        drain += ["--reason-message", "spot", "--deadline-remaining-seconds", "60"]
        subprocess.run(drain, check=True, capture_output=True, timeout=60)
        self._node = None

    def close(self) -> None:
        """Ends all nodes."""
        for node in [*self._cluster.worker_nodes, self._cluster.head_node]:
            with contextlib.suppress(Exception):
                node.kill_all_processes(check_alive=False, allow_graceful=False)


class Bucket:
    """Storage at a URL, for this process and, by a way that can be shut, for commands."""

    def __init__(self, folder: Path):
        self.server = Server()
        self.gate = Gate(self.server.port)
        os.environ.update(settings(self.server.port), XDG_CACHE_HOME=str(folder / "cache"))
        self.environment = settings(self.gate.port)

    def close(self) -> None:
        """End both."""
        self.gate.close()
        self.server.close()


@dataclass
class Story:
    """A run with faults in it."""

    kind: str
    seed: int
    folder: Path
    way: tuple[str, str]
    faults: list[Injected] = field(default_factory=list)
    command: Any = None
    environment: dict[str, str] = field(default_factory=dict)
    nodes: Nodes | None = None
    bucket: Bucket | None = None

    def __post_init__(self) -> None:
        self.draw = random.Random(f"{self.kind} {self.seed}")
        self.resumed: list[tuple[float, int]] = []
        self.run, self.orders = self.folder / "run", self.folder / "orders"
        self.out, self.where = str(self.folder), str(self.run)
        self.orders.mkdir(parents=True)

    def move(self, bucket: Bucket) -> None:
        """Have the run at a URL; `run` is then rank 0's directory."""
        self.bucket, self.out = bucket, f"s3://bucket/{self.folder.name}"
        self.where = location.join(self.out, "run")
        self.run = location.mirror(self.where, "workers")
        self.environment |= bucket.environment

    # --- the run ---

    def start(self) -> None:
        """The run's first command."""
        pace = "0.1" if self.kind in SLOW else "0.01"
        self.command = Command(
            "train", *written(self.folder, self.way), "--task.seconds", pace, "--task.orders", str(self.orders),
            "--out", self.out,
            "--name", "run", *self.layout(), **self.environment,
        )  # fmt: skip

    def layout(self) -> list[str]:
        """The flags that say where it runs."""
        if self.kind == "rank hung":
            return ["--scaling.hang_seconds", "5"]
        if self.kind == "resized":
            return ["--parallel.strategy", "deterministic", "--scaling.workers", "4"]
        if self.nodes is None:
            return []
        elastic = ["--scaling.workers", "1:2", "--scaling.cpus_per_worker", "2"]
        return ["--parallel.strategy", "deterministic", *elastic, "--address", self.nodes.address]

    def resume(self, *arguments: str, step: int | None = None) -> None:
        """The same run goes on with another command, from the newest checkpoint, or from that of a step."""
        self.resumed.append((time.time(), self.newest() if step is None else step))
        self.command = Command("resume", self.where, *arguments, **self.environment)

    def rows(self) -> list[dict[str, Any]]:
        """The step rows so far."""
        try:
            lines = (self.run / "metrics.jsonl").read_bytes().splitlines(keepends=True)
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in lines if line.startswith(b'{"kind": "step') and line.endswith(b"\n")]

    def step(self) -> int:
        """The last step whose row is there."""
        rows = self.rows()
        return rows[-1]["step"] if rows else 0

    def wait_for_step(self, step: int, timeout: float = 120) -> None:
        """Waits until the row of a step is there."""
        deadline = time.monotonic() + timeout
        while self.step() < step:
            assert self.command.running, f"it ended before step {step}: {self.command.said[-3000:]}"
            assert time.monotonic() < deadline, f"no step {step}: {self.command.said[-3000:]}"
            time.sleep(0.02)

    def newest(self) -> int:
        """The step of the newest checkpoint that verifies."""
        found = layout.newest(self.run / "checkpoints")
        return int(found.name.partition("_")[2]) if found else 0

    def steps(self) -> list[int]:
        """How many steps rank 0 did after each start of the workers."""
        return [len(line.partition(" ")[2]) for line in self._starts()]

    def _starts(self) -> list[str]:
        """A line for each: when, and a dot for every step."""
        try:
            return (self.orders / "steps").read_text().split("\n")[1:]
        except FileNotFoundError:
            return []

    def count_redone(self) -> None:
        """Tells from all steps how many steps were trained twice, at most, after a fault."""
        start, redone = 0, [0]
        log = self.run / "logs" / "workers.jsonl"
        events = log.read_text().splitlines() if log.is_file() else []
        came = [(json.loads(line)["time"], int((json.loads(line)["checkpoint"] or "_0")[5:])) for line in events]
        began = [float(line.partition(" ")[0]) for line in self._starts()]
        for steps, then in zip(self.steps(), began[1:], strict=False):
            begin = max(one for one in came + self.resumed if one[0] < then)[1]
            redone.append(start + steps - begin)
            start = begin
        assert start + self.steps()[-1] == STEPS, (self.steps(), began, came, self.resumed)
        for fault in self.faults:
            fault.redone = max(redone)

    def places(self) -> dict[int, int]:
        """The process of each rank."""
        return {
            int(file.stem.partition("_")[2]): json.loads(file.read_text())["pid"]
            for file in (self.run / "logs").glob("place_*.json")
        }

    def wait_for_both_nodes(self) -> None:
        """Waits until the workers are on two nodes."""
        deadline = time.monotonic() + 120
        while len({json.loads(f.read_text())["node"] for f in (self.run / "logs").glob("place_*.json")}) < 2:
            assert self.command.running and time.monotonic() < deadline, self.command.said[-3000:]
            time.sleep(0.1)

    def order(self, **what: Any) -> None:
        """Lets a rank do something in its next pass."""
        file = self.orders / f"{len(self.faults)}.json"
        partial = file.with_suffix(".partial")
        partial.write_text(json.dumps({"rank": self.draw.choice([0, 1])} | what))
        os.replace(partial, file)

    def outcome(self) -> tuple[list[dict[str, Any]], str]:
        """Every row but for times, and the final weights' sha256."""
        return outcome(Run(self.where).path)


def outcome(run: Path) -> tuple[list[dict[str, Any]], str]:
    """Every row of a run but for times, and the final weights' sha256."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    rows = [without_times(row) for row in rows]
    weights = (Run(run).checkpoint("last") / layout.MODEL).read_bytes()
    return rows, hashlib.sha256(weights).hexdigest()


# --- kinds: each injects one fault into a story whose run is under way, and says how many steps are lost by it ---


def kill_worker(story: Story) -> None:
    """SIGKILL of one rank."""
    with_pid(story.draw.choice(sorted(story.places().values())), signal.SIGKILL)


def kill_workers(story: Story) -> None:
    """SIGKILL of all ranks at once."""
    for pid in story.places().values():
        with_pid(pid, signal.SIGKILL)


def crash_worker(story: Story) -> None:
    """SIGSEGV of one rank."""
    with_pid(story.draw.choice(sorted(story.places().values())), signal.SIGSEGV)


def stop_worker(story: Story) -> None:
    """SIGSTOP of one rank: it neither ends nor answers."""
    with_pid(story.draw.choice(sorted(story.places().values())), signal.SIGSTOP)


def hang(story: Story) -> None:
    """One rank waits for ever in its own code, while its process answers Ray."""
    rank, log = story.draw.choice([0, 1]), story.run / "logs" / "workers.jsonl"
    before, deadline = len(log.read_text().splitlines()) if log.is_file() else 0, time.monotonic() + 60
    story.order(kind="hang", rank=rank)
    while not log.is_file() or len(log.read_text().splitlines()) == before:
        assert story.command.running and time.monotonic() < deadline, story.command.said[-3000:]
        time.sleep(0.05)
    why = json.loads(log.read_text().splitlines()[-1])["why"]
    assert why.startswith(f"rank {rank} hung after step ") and "paced.py:" in why and ", in _obey" in why, why


def out_of_memory(story: Story) -> None:
    """One rank takes more memory than its node has, as Ray's monitor counts it."""
    total, _ = memory()
    most = float(story.environment["RAY_memory_usage_threshold"]) * total
    story.order(kind="memory", used=min(most + 2**30, 0.99 * total))


def kill_driver(story: Story) -> None:
    """SIGKILL of the driver, which Ray Train's controller is a part of."""
    story.command.process.kill()
    story.command.process.wait()
    _wait_for_end(list(story.places().values()))
    story.resume()


def kill_all(story: Story) -> None:
    """SIGKILL of every process of the run and of its Ray, as when a machine goes down."""
    story.command.abandon()
    story.resume()


def _wait_for_end(workers: list[int]) -> None:
    """Workers train on until they notice that their Ray is gone, and commit checkpoints."""
    deadline = time.monotonic() + 60
    while any(Path(f"/proc/{pid}").exists() for pid in workers):
        assert time.monotonic() < deadline, "workers outlive their Ray by a minute"
        time.sleep(0.05)


def _kill_part_of_ray(story: Story, name: str) -> None:
    workers = list(story.places().values())  # the driver removes what says so when it ends
    for pid in story.command.processes():
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]
        except OSError:
            continue
        if command.endswith(name.encode()):
            with_pid(pid, signal.SIGKILL)
    assert story.command.end(60) == 1, story.command.said[-3000:]
    assert "raytrain resume" in story.command.said and "Traceback" not in story.command.said, story.command.said[-3000:]
    _wait_for_end(workers)
    story.resume()


def kill_gcs(story: Story) -> None:
    """SIGKILL of the head's control store: the run ends with one line, and the same command goes on."""
    _kill_part_of_ray(story, "gcs_server")


def kill_raylet(story: Story) -> None:
    """SIGKILL of the only node's raylet."""
    _kill_part_of_ray(story, "raylet")


def _break_disk(story: Story, number: int, call: str = "") -> None:
    call = call or story.draw.choice(["open", "fsync", "replace"])
    story.order(kind="disk", rank=0, errno=number, call=call, after=story.draw.randint(0, 5), times=1 if number else -1)


def no_space(story: Story) -> None:
    """ENOSPC at one call that writes a checkpoint."""
    _break_disk(story, errno.ENOSPC)


def bad_disk(story: Story) -> None:
    """EIO at one call that writes a checkpoint."""
    _break_disk(story, errno.EIO)


def kill_in_checkpoint(story: Story) -> None:
    """SIGKILL of rank 0 at one call that writes a checkpoint: within a file, between two, around the manifest."""
    _break_disk(story, 0)


def storage_vanishes(story: Story) -> None:
    """The folder of the checkpoints is not there for a second, as an unmounted disk."""
    away = story.run / "away"
    os.rename(story.run / "checkpoints", away)
    time.sleep(story.draw.uniform(0.2, 1.0))
    made = story.run / "checkpoints"
    if made.exists():  # what was written meanwhile
        for one in made.iterdir():
            shutil.move(one, away / one.name)
        made.rmdir()
    os.rename(away, story.run / "checkpoints")


def exception(story: Story) -> None:
    """An error in the training on one rank: it is not tried again; one line names the rank."""
    story.order(kind="exception")
    assert story.command.end(60) == 1, story.command.said[-3000:]
    assert "error: the run failed: rank" in story.command.said and "injected" in story.command.said
    assert "Traceback" not in story.command.said
    story.resume()


def nan(story: Story) -> None:
    """A loss that is not a number on one rank."""
    story.order(kind="nan")
    assert story.command.end(60) == 1 and "the loss became nan" in story.command.said, story.command.said[-3000:]
    story.resume()


def corrupt_newest(story: Story) -> None:
    """All processes are killed, and the newest checkpoint is damaged: the one before it counts."""
    story.command.abandon()
    found = layout.newest(story.run / "checkpoints")
    assert found is not None
    file = found / story.draw.choice([layout.MODEL, layout.OPTIMIZER, layout.STATE, layout.MANIFEST])
    raw = bytearray(file.read_bytes())
    raw[story.draw.randrange(len(raw))] ^= 1 << story.draw.randrange(8)
    file.write_bytes(raw[: len(raw) // 2] if story.draw.random() < 0.3 else raw)
    story.resume()


def lose_files(story: Story) -> None:
    """All processes are killed, and the user's file and the run's experiment.json are gone: one line, and nothing else
    changes; with experiment.json back, the run goes on."""
    story.command.abandon()
    (story.folder / "paced.py").unlink(missing_ok=True)
    away = story.run / "experiment.json"
    away.rename(story.folder / "away.json")
    before = {file: file.stat().st_mtime_ns for file in story.run.rglob("*") if file.is_file()}
    refused = Command("resume", str(story.run))
    assert refused.end(60) == 2 and "has no experiment.json" in refused.said, refused.said
    assert {file: file.stat().st_mtime_ns for file in story.run.rglob("*") if file.is_file()} == before
    (story.folder / "away.json").rename(away)
    story.resume()


def resume_twice(story: Story) -> None:
    """All processes are killed, and two commands resume the run at the same time: one is refused, the other goes on."""
    story.command.abandon()
    story.resume()
    first, second = story.command, Command("resume", str(story.run), **story.environment)
    deadline = time.monotonic() + 60
    while first.running and second.running:
        assert time.monotonic() < deadline, "neither of two commands is refused"
        time.sleep(0.05)
    refused, story.command = (first, second) if second.running else (second, first)
    assert refused.end(10) == 2 and "the run is still going" in refused.said, refused.said


def kill_while_it_starts(story: Story) -> None:
    """All processes are killed, and those of the next two commands too, while they begin to resume the run."""
    story.command.abandon()
    for _ in range(2):
        story.resume()  # a fast machine trains steps before the kill
        time.sleep(story.draw.uniform(1, 8))
        story.command.abandon()
    story.resume()


def tear_metrics(story: Story) -> None:
    """All processes are killed, and rows of metrics that the newest checkpoint vouches for are gone or damaged: the
    checkpoint before it counts."""
    story.command.abandon()
    before, newest = layout.committed(story.run / "checkpoints")[-2:]
    file, first, last = (
        story.run / "metrics.jsonl",
        *(layout.load_state(story.run / "checkpoints" / name)["metrics_bytes"] for name in (before, newest)),
    )
    at, rows = story.draw.randrange(first, last), bytearray(file.read_bytes())
    rows[at] ^= 1 << story.draw.randrange(8)
    file.write_bytes(rows[:at] if story.draw.random() < 0.5 else rows)
    story.resume(step=int(before.partition("_")[2]))


def clock_jump(story: Story) -> None:
    """One rank's clock is set an hour or a day forwards or back."""
    story.order(kind="clock", seconds=story.draw.choice([-86400, -3600, 3600, 86400]))


def interrupt(story: Story) -> None:
    """SIGINT to the whole group, as from a terminal: a checkpoint at the next step, and nothing is left."""
    _signalled(story, signal.SIGINT)


def terminate(story: Story) -> None:
    """SIGTERM to the driver."""
    _signalled(story, signal.SIGTERM)


def resize(story: Story) -> None:
    """SIGINT, and another number of workers: 4, 2, 1, 4."""
    _signalled(story, signal.SIGINT, "--scaling.workers", str((2, 1, 4)[(len(story.faults) - 1) % 3]))


def kill_node(story: Story) -> None:
    """Every process of the second node is killed: the run goes on with what is left, until a new node comes."""
    assert story.nodes
    story.nodes.add()
    story.wait_for_both_nodes()
    story.nodes.kill()


def call_node_back(story: Story) -> None:
    """The second node will go in a minute: a checkpoint, and the run goes on without it, until another one comes."""
    assert story.nodes
    story.nodes.add()
    story.wait_for_both_nodes()
    story.nodes.call_back()


def hang_storage(story: Story) -> None:
    """The server of a run at a URL accepts connections and answers none; after some seconds SIGINT ends the run. When
    the server answers again, the run goes on from what could not be uploaded."""
    assert story.bucket
    story.bucket.gate.shut()
    time.sleep(story.draw.uniform(0, 8))
    asked = time.monotonic()
    _ended_by(story, signal.SIGINT)
    assert time.monotonic() < asked + 20 and f"raytrain resume {story.where}" in story.command.said
    story.bucket.gate.open()
    story.resume()


def _signalled(story: Story, number: signal.Signals, *resumed_with: str) -> None:
    _ended_by(story, number)
    story.resume(*resumed_with)


def _ended_by(story: Story, number: signal.Signals) -> None:
    if number == signal.SIGINT:
        os.killpg(story.command.process.pid, number)
    else:
        story.command.process.send_signal(number)
    asked = time.monotonic()
    assert story.command.end(60) == 128 + number, story.command.said[-3000:]
    while (left := story.command.processes()) and time.monotonic() < asked + 10:
        time.sleep(0.1)
    assert not left, f"{len(left)} processes are left 10 s after the signal"
    assert story.newest() == story.step(), "the checkpoint is not the last step's"


ITSELF: dict[str, Callable[[Story], None]] = {
    "worker killed": kill_worker,
    "all workers killed": kill_workers,
    "worker crashed": crash_worker,
    "worker stopped": stop_worker,
    "rank hung": hang,
    "worker out of memory": out_of_memory,
    "killed while writing": kill_in_checkpoint,
    "no space": no_space,
    "disk error": bad_disk,
    "storage away": storage_vanishes,
    "clock jump": clock_jump,
    "node killed": kill_node,
    "node called back": call_node_back,
}
"""After these the run goes on by itself."""
RESUMED: dict[str, Callable[[Story], None]] = {
    "driver killed": kill_driver,
    "machine down": kill_all,
    "GCS killed": kill_gcs,
    "raylet killed": kill_raylet,
    "error on a rank": exception,
    "NaN on a rank": nan,
    "newest damaged": corrupt_newest,
    "files gone": lose_files,
    "resumed twice": resume_twice,
    "killed at start": kill_while_it_starts,
    "metrics torn": tear_metrics,
    "SIGINT": interrupt,
    "SIGTERM": terminate,
    "resized": resize,
    "storage hung": hang_storage,
}
"""After these `raytrain resume` goes on."""
KINDS = ITSELF | RESUMED
NODES = ("node killed", "node called back")
"""These take a cluster of several nodes."""
DETERMINISTIC = (*NODES, "resized")
"""With these the number of workers changes, and the bits must not."""
SLOW = ("driver killed", "GCS killed", "raylet killed", "storage hung")
"""After these workers train on for seconds: a step takes longer."""
QUIET = ("no space", "disk error", "storage away", "clock jump")
"""These need not stop a run."""


def written(folder: Path, way: tuple[str, str]) -> list[str]:
    """The experiment's file, with another optimizer, and the flags that go with it."""
    optimizer, precision = way
    text, sgd = PACED.read_text(), "SGD(lr=0.05, momentum=0.9)"
    assert sgd in text
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "paced.py"
    file.write_text(text if optimizer == "SGD" else text.replace(sgd, "AdamW(lr=0.002)").replace("SGD,", "AdamW,"))
    return [str(file), "--precision", precision]


def undisturbed(folder: Path, way: tuple[str, str], *flags: str) -> tuple[list[dict[str, Any]], str]:
    """The outcome of the run that nothing happens to."""
    command = Command(
        "train", *written(folder, way), *flags, "--task.seconds", "0", "--out", str(folder), "--name", "whole"
    )
    assert command.end() == 0, command.said[-3000:]
    return outcome(folder / "whole")


def environment_of(kind: str) -> dict[str, str]:
    """What the command's Ray must be told: when a node is out of memory."""
    if kind != "worker out of memory":
        return {}
    total, used = memory()
    share = min(0.97, (used + 3.5 * 2**30) / total)
    return {"RAY_memory_usage_threshold": f"{share:.3f}", "RAY_memory_monitor_refresh_ms": "100"}


def play(kind: str, seed: int, folder: Path, faults: int, whole: tuple[list[dict[str, Any]], str]) -> Story:
    """Runs with so many faults of a kind, at steps drawn from the seed, to the end, and compares.

    Raises:
        AssertionError: with the story so far as its second argument: it was not made good.
    """
    story = Story(kind, seed, folder, WAYS[seed % len(WAYS)], environment=environment_of(kind))
    try:
        story.nodes = Nodes() if kind in NODES else None
        if kind == "storage hung":
            story.move(Bucket(folder))
        story.start()
        window = (STEPS - 60) // faults
        for number in range(faults):
            story.wait_for_step(30 + number * window + story.draw.randrange(window // 2))
            fault = Injected(kind, seed, story.step())
            story.faults.append(fault)
            starts, began = len(story.steps()), time.monotonic()
            KINDS[kind](story)
            _watch(story, fault, starts, began)
        assert story.command.end() == 0, story.command.said[-3000:]
        story.count_redone()
        found = story.outcome()
        for fault in story.faults:
            fault.equal = found == whole
        assert found[0] == whole[0], _first_difference(found[0], whole[0])
        assert found[1] == whole[1], "the final weights differ"
        steps = [row["step"] for row in found[0] if row["kind"] == "step"]
        assert steps == list(range(1, STEPS + 1))
        assert not (partial := [*story.run.glob(".*.[0-9]*")]), partial
        return story
    except AssertionError as error:
        raise AssertionError(str(error), story) from error
    finally:
        if story.command:
            story.command.abandon()
        if story.nodes:
            story.nodes.close()
        if story.bucket:
            story.bucket.close()


def _watch(story: Story, fault: Injected, starts: int, began: float) -> None:
    """Waits for the first step after the run has gone on, or, where it need not stop, for thirty more."""
    deadline, before = time.monotonic() + 120, sum(story.steps())
    while len(found := story.steps()) == starts:
        assert time.monotonic() < deadline, f"it does not go on: {story.command.said[-3000:]}"
        if not story.command.running:
            ended = story.command.process.returncode
            assert ended == 0, f"it ended with {ended}: {story.command.said[-3000:]}"
            assert story.kind in QUIET, "it ended as if nothing had been injected"
            break
        if story.kind in QUIET and sum(found) >= before + 30:
            break
        time.sleep(0.01)
    fault.seconds = time.monotonic() - began
    fault.recovered = True


def _first_difference(found: list[dict[str, Any]], whole: list[dict[str, Any]]) -> str:
    for mine, other in zip(found, whole, strict=False):
        if mine != other:
            return f"{mine} is not {other}"
    return f"{len(found)} rows instead of {len(whole)}"
