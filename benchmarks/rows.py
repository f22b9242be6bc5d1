"""The rows of the table: what is compared with what, the goal, how it is measured."""

from __future__ import annotations

import statistics
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar, cast

from benchmarks import dataset, limits, whole
from benchmarks.harness import Measured, Side, alternate, compare, compare_each, measured
from benchmarks.side import Form, Workload


@dataclass(frozen=True)
class Goal:
    """What a ratio has to reach."""

    ratio: float
    direction: Literal[">=", "<="] = ">="

    def met(self, ratio: float) -> bool:
        """Whether it does."""
        return ratio >= self.ratio if self.direction == ">=" else ratio <= self.ratio

    def __str__(self) -> str:
        return f"{self.direction} {self.ratio:g}"


Found = TypeVar("Found")


def _shared(measure: Callable[[Bench], Found]) -> Found:
    """Make a property of what several rows need, which is measured once: a smoke test's rows ask from two threads."""
    name = measure.__name__

    def once(bench: Bench) -> Found:
        with bench.locks.setdefault(name, threading.Lock()):
            if name not in bench.found:
                bench.found[name] = measure(bench)
            return bench.found[name]

    return cast(Found, property(once))


@dataclass
class Bench:
    """What all rows share: the size of the measurement, and the data.

    Attributes:
        samples: images of the data set.
        rounds: how often sides alternate.
        root: folder that holds MNIST/raw; None generates digits.
        overrides: fields of raytrain's experiment, by their dotted paths.
        smoke: whether rows only have to run: one round of a hundredth of the work, whose figures mean nothing.
    """

    samples: int
    rounds: int
    root: Path | None
    overrides: dict[str, Any] = field(default_factory=dict)
    smoke: bool = False
    locks: dict[str, threading.Lock] = field(default_factory=dict, init=False)
    found: dict[str, Any] = field(default_factory=dict, init=False)

    @property
    def few(self) -> int:
        """Rounds of what takes long and varies little."""
        return 1 if self.smoke else max(2, self.rounds - 3)

    def size(self, count: int, least: int = 640) -> int:
        """Return how many samples or files a row takes that asks for `count`; a smoke test has at least `least`."""
        return min(count, max(least, count // 100)) if self.smoke else count

    @_shared
    def cold(self) -> tuple[Measured, Measured]:
        """Start and end of commands with a cluster of their own."""
        return whole.start_and_end(self.few, running=False)

    @_shared
    def cluster(self) -> tuple[Measured, Measured]:
        """Start and end of commands on a running cluster."""
        return whole.start_and_end(self.few, running=True)

    @_shared
    def packing(self) -> tuple[Measured, Measured]:
        """A first epoch from files, and a second start."""
        return whole.packing(self.workload(samples=60_000), self.workload(), self.few)

    @_shared
    def tutorial(self) -> dict[str, list[Measured]]:
        """The tutorials' loop on one rank, model by model, against raytrain in fp32 and in the precision it chooses."""
        return {model: self.against_tutorial({"model": model}, "precision", "fp32", "auto") for model in ("mlp", "cnn")}

    @_shared
    def two_ranks(self) -> list[Measured]:
        """The tutorials' two ranks against raytrain's with DistributedDataParallel and with shared memory."""
        return self.against_tutorial({"ranks": 2}, "parallel.reduction", "torch", "shared")

    def against_tutorial(self, changes: dict[str, Any], path: str, *values: str) -> list[Measured]:
        """raytrain with some values of a field against the tutorials' loop."""
        ours = [Side("raytrain", self.workload(**changes, overrides={path: value})) for value in values]
        return compare_each(ours, Side("tutorial", self.workload(**changes)), self.rounds)

    @_shared
    def ray(self) -> tuple[Measured, float]:
        """raytrain against Ray Train with Ray Data; and that one's PSS in MiB while it is alone."""
        workload = self.workload(samples=6_400)
        with Side("ray_streaming", workload) as theirs:
            other = [theirs.turn()]
            with Side("raytrain", workload) as ours:
                mine = [ours.turn()]
                for _ in range(self.rounds):
                    mine.append(ours.turn())
                    other.append(theirs.turn())
        return measured(mine, other), other[0].memory["pss"] / 2**20

    @_shared
    def parts(self) -> dict[str, float]:
        """A profile, for rows that miss their goals."""
        return limits.parts(self.workload(), self.workload(files=False, samples=19_200), self.few)

    def workload(self, *, samples: int = 0, least: int = 640, files: bool = True, **changes: Any) -> Workload:
        """An epoch of MLP training on one rank, with changes; `files` is for sides that read files."""
        samples = self.size(samples or self.samples, least)
        changes["overrides"] = self.overrides | changes.get("overrides", {})
        return Workload(str(dataset.prepare(samples, self.root, files)), samples, **changes)

    @_shared
    def scale(self) -> tuple[Measured, Measured]:
        """(samples/s, private memory) at 60,000 and 600,000 samples against 6,000, in turns of the same length."""
        sizes = (6_000, 60_000, 600_000)
        segment = self.size(6_000)
        sides = [Side("raytrain", self.workload(samples=size, files=False, segment=segment)) for size in sizes]
        with sides[0], sides[1], sides[2]:
            few, *more = alternate(sides, 2 * self.rounds)
        speed = [_ratios(turns, few, lambda turn: turn.rate) for turns in more]
        space = [_ratios(turns, few, lambda turn: turn.memory["private"]) for turns in more]
        slowest = speed.index(min(speed, key=statistics.median))
        largest = space.index(max(space, key=statistics.median))
        return (
            Measured(
                statistics.median(turn.rate for turn in more[slowest][1:]),
                statistics.median(turn.rate for turn in few[1:]),
                speed[slowest],
                note=f"worst at {sizes[1:][slowest]:,}",
            ),
            Measured(
                statistics.median(turn.memory["private"] for turn in more[largest][1:]) / 2**20,
                statistics.median(turn.memory["private"] for turn in few[1:]) / 2**20,
                space[largest],
                unit="MiB",
                note=f"worst at {sizes[1:][largest]:,}",
            ),
        )


def _ratios(ours: list[Any], theirs: list[Any], figure: Callable[[Any], float]) -> tuple[float, ...]:
    return tuple(figure(a) / figure(b) for a, b in zip(ours[1:], theirs[1:], strict=True))


Source = TypeVar("Source")


@dataclass(frozen=True)
class Row(Generic[Source]):
    """One line of a table, and how it is measured by what all its rows share."""

    name: str
    against: str
    goal: Goal | None
    measure: Callable[[Source], Measured]
    full: bool = False
    """Whether only `--full` measures it, and a smoke test."""
    package: str = ""
    """What a peer needs that `make setup` does not install."""
    alike: bool = False
    """Whether another row runs the same sides with other numbers: a smoke test leaves this one out."""


def steady(peer: str, bench: Bench, **changes: Any) -> Measured:
    """Samples per second of raytrain's loop against a peer's, on the same workload."""
    workload = bench.workload(**changes)
    return compare(Side("raytrain", workload), Side(peer, workload), bench.rounds)


def compute(bench: Bench, **changes: Any) -> Measured:
    """The loop against the same model on batches that are there already; neither reads files."""
    samples = 6_400 if "model" in changes else 19_200
    return steady("compute", bench, samples=samples, files=False, **changes)


def small(peer: str, bench: Bench) -> Measured:
    """The same with a model whose step is below 1 ms; an epoch of MNIST's 60,000 takes it half a second."""
    return steady(peer, bench, model="small", samples=60_000, files=False)


def efficiency(batch_size: int, bench: Bench) -> Measured:
    """Samples per second of two ranks against twice those of one, at the same batch a rank."""
    one = bench.workload(batch_size=batch_size, samples=19_200, files=False)
    two = replace(one, ranks=2)
    found = compare(Side("raytrain", two), Side("raytrain", one), bench.rounds)
    # The two take different steps: their losses are not to be compared.
    return Measured(found.ours, 2 * found.theirs, tuple(ratio / 2 for ratio in found.ratios), note="theirs: 2 x 1 rank")


def memory(bench: Bench) -> Measured:
    """PSS of a whole run's worker against that of Ray Train's worker. One after the other: pages that both map would
    count half for each."""
    with Side("raytrain_train", bench.workload(samples=6_400)) as side:
        ours = side.turn().memory["pss"] / 2**20
    theirs = bench.ray[1]
    return Measured(ours, theirs, (ours / theirs,), unit="MiB")


def photographs(form: Form, peer: Literal["dataloader", "resident"], bench: Bench) -> Measured:
    """Batches of real photographs, read while they are needed; no model."""
    files = bench.size(2_048, least=256)
    workload = Workload(str(dataset.photographs(files)), files, form=form)
    other = Side("streaming", replace(workload, form=peer)) if peer == "resident" else Side(peer, workload)
    return compare(Side("streaming", workload), other, bench.few)


def scan(bench: Bench) -> Measured:
    """Listing 60,000 files."""
    files = bench.size(60_000)
    return whole.scan(dataset.prepare(files, bench.root) / "png", files, bench.rounds)


def reopen(bench: Bench) -> Measured:
    """Finding and mapping the cached images of 600,000 files."""
    return whole.reopen(bench.size(600_000), bench.rounds)


ROWS: tuple[Row[Bench], ...] = (
    Row("steady-mlp", "tutorial", Goal(5.0), lambda bench: bench.tutorial["mlp"][0]),
    Row("steady-cnn", "tutorial", Goal(1.75), lambda bench: bench.tutorial["cnn"][0]),
    Row("steady-mlp-mnist", "tutorial, MNIST class", None, partial(steady, "tutorial_mnist"), full=True),
    Row("two-ranks-gloo", "tutorial, 2 ranks", Goal(3.8), lambda bench: bench.two_ranks[0]),
    Row("two-ranks-shared", "tutorial, 2 ranks", Goal(6.0), lambda bench: bench.two_ranks[1]),
    Row("compute-mlp", "compute alone", Goal(0.98), compute),
    Row("compute-cnn", "compute alone", Goal(0.98), partial(compute, model="cnn"), alike=True),
    Row("ray-streaming", "Ray Train + Data", Goal(7.0), lambda bench: bench.ray[0]),
    Row(
        "ray-materialised",
        "Ray Train + Data, materialised",
        Goal(1.08),
        partial(steady, "ray_materialised", samples=6_400),
    ),
    Row(
        "loader-alone",
        "Ray Data, materialised",
        Goal(8.0),
        partial(steady, "ray_materialised", loader_alone=True),
        alike=True,
    ),
    Row("lightning", "Lightning, equal loader", Goal(1.0), partial(steady, "lightning_trainer"), package="lightning"),
    Row(
        "lightning-small",
        "Lightning, step < 1 ms",
        Goal(1.3),
        partial(small, "lightning_trainer"),
        package="lightning",
        alike=True,
    ),
    Row("accelerate", "Accelerate, equal loader", Goal(1.0), partial(steady, "accelerate_loop"), package="accelerate"),
    Row(
        "accelerate-small",
        "Accelerate, step < 1 ms",
        Goal(1.3),
        partial(small, "accelerate_loop"),
        package="accelerate",
        alike=True,
    ),
    Row(
        "first-epoch",
        "tutorial, without packing",
        Goal(2.4),
        lambda bench: bench.packing[0],
    ),
    Row("second-start", "packing", Goal(0.05, "<="), lambda bench: bench.packing[1]),
    Row("streaming-jpeg", "DataLoader, 2 processes", Goal(1.5), partial(photographs, "files", "dataloader")),
    Row("pack-jpeg", "DataLoader, 2 processes", Goal(4.0), partial(photographs, "jpeg", "dataloader"), alike=True),
    Row("pack-raw", "the same, resident", Goal(0.95), partial(photographs, "raw", "resident")),
    Row("scan", "1 us a file", Goal(1.0, "<="), scan),
    Row("reopen", "50 ms for 600,000 files", Goal(1.0, "<="), reopen),
    Row("scale-speed", "itself at 6,000 samples", Goal(0.97), lambda bench: bench.scale[0]),
    Row("scale-memory", "itself at 6,000 samples", Goal(1.02, "<="), lambda bench: bench.scale[1]),
    Row("memory", "Ray Train + Data, PSS", Goal(0.75, "<="), memory),
    Row("efficiency-64", "itself, 1 rank", Goal(0.88), partial(efficiency, 64)),
    Row("efficiency-256", "itself, 1 rank", Goal(0.96), partial(efficiency, 256), alike=True),
    Row("auto-mlp", "tutorial, fp32", Goal(5.6), lambda bench: bench.tutorial["mlp"][1]),
    Row("auto-cnn", "tutorial, fp32", Goal(2.0), lambda bench: bench.tutorial["cnn"][1]),
    Row("start", "raw TorchTrainer", Goal(0.6, "<="), lambda bench: bench.cold[0]),
    Row("end", "raw TorchTrainer", Goal(0.3, "<="), lambda bench: bench.cold[1]),
    Row("start-cluster", "raw TorchTrainer there", Goal(0.5, "<="), lambda bench: bench.cluster[0], alike=True),
    Row("end-cluster", "raw TorchTrainer there", Goal(0.3, "<="), lambda bench: bench.cluster[1], alike=True),
    Row(
        "checkpoint-stall",
        "torch.save and report",
        Goal(0.2, "<="),
        lambda bench: whole.checkpoint(bench.workload(samples=60_000, least=4_096, files=False), bench.few),
    ),
)
"""In the order in which they are measured."""
