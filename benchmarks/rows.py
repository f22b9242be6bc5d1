"""The rows of the table: what is compared with what, the goal, how it is measured, what limits a row that misses it."""

from __future__ import annotations

import statistics
import typing
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

from benchmarks import dataset, whole
from benchmarks.harness import Measured, Side, alternate, compare
from benchmarks.side import Workload
from raytrain import DDP, Experiment


class Skipped(Exception):
    """A row cannot be measured here; the message says why."""


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


@dataclass
class Bench:
    """What all rows share: the size of the measurement, and the data.

    Attributes:
        samples: images of the data set.
        rounds: how often sides alternate.
        root: folder that holds MNIST/raw; None generates digits.
        overrides: fields of raytrain's experiment, by their dotted paths.
    """

    samples: int
    rounds: int
    root: Path | None
    overrides: dict[str, Any] = field(default_factory=dict)

    @property
    def few(self) -> int:
        """Rounds of what takes long and varies little."""
        return max(2, self.rounds - 2)

    @cached_property
    def cold(self) -> tuple[Measured, Measured]:
        """Start and end of commands with a cluster of their own."""
        return whole.start_and_end(self.few, running=False)

    @cached_property
    def cluster(self) -> tuple[Measured, Measured]:
        """Start and end of commands on a running cluster."""
        return whole.start_and_end(self.few, running=True)

    @cached_property
    def packing(self) -> tuple[Measured, Measured]:
        """A first epoch from files, and a second start."""
        return whole.packing(self.workload(samples=60_000), self.workload(), self.few)

    def workload(self, *, samples: int = 0, files: bool = True, **changes: Any) -> Workload:
        """An epoch of MLP training on one rank, with changes; `files` is for sides that read files."""
        samples = samples or self.samples
        changes["overrides"] = self.overrides | changes.get("overrides", {})
        return Workload(str(dataset.prepare(samples, self.root, files)), samples, **changes)

    @cached_property
    def scale(self) -> tuple[Measured, Measured]:
        """(samples/s, private memory) at 60,000 and 600,000 samples against 6,000, in turns of the same length."""
        sizes = (6_000, 60_000, 600_000)
        sides = [Side("raytrain", self.workload(samples=size, files=False, segment=6_000)) for size in sizes]
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


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    name: str
    against: str
    goal: Goal | None
    measure: Callable[[Bench], Measured]
    full: bool = False
    """Whether only `--full` measures it."""
    limits: str = ""
    """What keeps the row from its goal, where it misses it; written by hand from a profile."""


def steady(peer: str, bench: Bench, **changes: Any) -> Measured:
    """Samples per second of raytrain's loop against a peer's, on the same workload."""
    workload = bench.workload(**changes)
    return compare(Side("raytrain", workload), Side(peer, workload), bench.rounds)


def compute(bench: Bench, **changes: Any) -> Measured:
    """The loop against the same model on batches that are there already; neither reads files."""
    samples = 9_600 if "model" in changes else 19_200
    return steady("compute", bench, samples=samples, files=False, **changes)


def ray_streaming(bench: Bench) -> Measured:
    """Ray Data starts its pipeline anew with every epoch: a short one would be all start."""
    workload = bench.workload(samples=max(bench.samples, 25_600))
    return compare(Side("raytrain", workload), Side("ray_streaming", workload), bench.few)


def small(peer: str, bench: Bench) -> Measured:
    """The same with a model whose step is below 1 ms; an epoch of MNIST's 60,000 takes it half a second."""
    return steady(peer, bench, model="small", samples=60_000, files=False)


def ranks(reduction: str, bench: Bench) -> Measured:
    """Two ranks against the tutorials' two, with gradients reduced in a certain way."""
    overrides = {"parallel.reduction": reduction}
    if not hasattr(DDP(), "reduction"):
        if reduction != "torch":
            raise Skipped("parallel.reduction is not there yet")
        overrides = {}  # DDP's own reduction is then the only one
    return steady("tutorial", bench, ranks=2, overrides=overrides)


def auto(bench: Bench, **changes: Any) -> Measured:
    """The precision that raytrain chooses by itself against the tutorials' float32."""
    if "auto" not in typing.get_args(typing.get_type_hints(Experiment)["precision"]):
        raise Skipped("precision=auto is not there yet")
    return steady("tutorial", bench, overrides={"precision": "auto"}, **changes)


def efficiency(batch_size: int, bench: Bench) -> Measured:
    """Samples per second of two ranks against twice those of one, at the same batch a rank."""
    one = bench.workload(batch_size=batch_size, samples=38_400, files=False)
    two = replace(one, ranks=2)
    found = compare(Side("raytrain", two), Side("raytrain", one), bench.rounds)
    # The two take different steps: their losses are not to be compared.
    return Measured(found.ours, 2 * found.theirs, tuple(ratio / 2 for ratio in found.ratios), note="theirs: 2 x 1 rank")


def memory(bench: Bench) -> Measured:
    """PSS of a whole run's worker against that of Ray Train's worker. One after the other: pages that both map would
    count half for each."""
    workload, found = bench.workload(), []
    for name, turns in (("raytrain_train", 1), ("ray_streaming", 2)):
        with Side(name, workload) as side:
            found.append([side.turn().memory["pss"] / 2**20 for _ in range(turns)][-1])
    ours, theirs = found
    return Measured(ours, theirs, (ours / theirs,), unit="MiB")


def streaming(bench: Bench) -> Measured:
    """Real JPEG files, decoded while they are needed; no model."""
    workload = Workload(str(dataset.photographs(2_048)), 2_048)
    return compare(Side("streaming", workload), Side("dataloader", workload), bench.few)


def scan(bench: Bench) -> Measured:
    """Listing 60,000 files."""
    return whole.scan(dataset.prepare(60_000, bench.root) / "png", 60_000, bench.rounds)


LIMITS = {
    "steady-mlp": (
        "The model: see compute-mlp. raytrain runs at 0.97 to 1.02 of a loop that has its batches already, so "
        "that on this machine the goal is out of reach for every loader; a step of 3.1 ms is 2.9 ms of forward "
        "and backward pass, 0.16 ms of optimizer and about 0.1 ms of all else."
    ),
    "two-ranks-gloo": (
        "gloo: its exchange of 2.7 MB takes longer than forward and backward pass together (two ranks without any "
        "exchange do 38,000 to 44,000 samples/s here, DistributedDataParallel alone 12,600 to 15,500), and both "
        "sides pay it."
    ),
    "two-ranks-shared": (
        "Two cores of this machine disturb each other: two ranks without any exchange reach 0.83 to 0.95 of twice "
        "one rank. The exchange itself takes 0.5 of 4.3 ms: 0.2 to write 2.7 MB of gradients that the other core "
        "has in its cache, 0.16 to add the other's, 0.1 to wait for it."
    ),
    "accelerate-small": (
        "Python: a step of 0.5 ms has 0.07 ms of raytrain's own (the seed of the step, its learning rate, the "
        "loss in float64, one gather and two passes over the images); PyTorch's forward, backward and optimizer "
        "calls are the same on both sides."
    ),
    "first-epoch": (
        "Half of the packing is Ray Data's tasks starting, each in a process that imports Ray, NumPy and Pillow "
        "first: decoding alone is 60,000 x 27 us on two cores, 0.8 s. The epoch behind it took 3.9 s, in the "
        "process that holds the cluster; 2.9 s would be the speed of compute-mlp."
    ),
    "streaming-jpeg": (
        "Ray Data's scheduling: per epoch 0.6 s pass until the first block is there, and its tasks use 4 of 6.6 "
        "CPU seconds, since a free CPU waits up to 0.1 s for its next task. A core decodes and resizes 490 to 590 "
        "of these files a second alone."
    ),
    "scan": (
        "One stat a file, 1.7 to 2.6 us from Python: it tells the size and the time of change, by which a run "
        "knows its data again and the cache never serves an image that was replaced. Listing the names alone "
        "takes 0.4 us a file."
    ),
    "memory": (
        "PyTorch itself, in both: a process that has done no more than import it has 290 MiB of its own, with "
        "Ray Train's modules 376 MiB. Pages that several processes map count a share for each, and Ray Data's "
        "tasks, which import PyTorch too, take such shares from the peer's worker."
    ),
    "efficiency-64": ("See two-ranks-shared."),
    "efficiency-256": ("See two-ranks-shared; the same 0.5 ms of exchange, in 12 ms."),
}
"""What keeps a row from its goal on the machine of docs/benchmarks.md, where it misses it: from profiles."""

ROWS = (
    Row("steady-mlp", "tutorial", Goal(5.0), partial(steady, "tutorial"), limits=LIMITS["steady-mlp"]),
    Row("steady-cnn", "tutorial", Goal(1.75), partial(steady, "tutorial", model="cnn", samples=6_400)),
    Row("steady-mlp-mnist", "tutorial, MNIST class", None, partial(steady, "tutorial_mnist"), full=True),
    Row("two-ranks-gloo", "tutorial, 2 ranks", Goal(3.8), partial(ranks, "torch"), limits=LIMITS["two-ranks-gloo"]),
    Row(
        "two-ranks-shared", "tutorial, 2 ranks", Goal(6.0), partial(ranks, "shared"), limits=LIMITS["two-ranks-shared"]
    ),
    Row("compute-mlp", "compute alone", Goal(0.98), compute),
    Row("compute-cnn", "compute alone", Goal(0.98), partial(compute, model="cnn")),
    Row("ray-streaming", "Ray Train + Data", Goal(7.0), ray_streaming),
    Row("ray-materialised", "Ray Train + Data, materialised", Goal(1.08), partial(steady, "ray_materialised")),
    Row("loader-alone", "Ray Data, materialised", Goal(8.0), partial(steady, "ray_materialised", loader_alone=True)),
    Row("lightning", "Lightning, equal loader", Goal(1.0), partial(steady, "lightning")),
    Row("lightning-small", "Lightning, step < 1 ms", Goal(1.3), partial(small, "lightning")),
    Row("accelerate", "Accelerate, equal loader", Goal(1.0), partial(steady, "accelerate")),
    Row(
        "accelerate-small",
        "Accelerate, step < 1 ms",
        Goal(1.3),
        partial(small, "accelerate"),
        limits=LIMITS["accelerate-small"],
    ),
    Row(
        "first-epoch",
        "tutorial, without packing",
        Goal(2.4),
        lambda bench: bench.packing[0],
        limits=LIMITS["first-epoch"],
    ),
    Row("second-start", "packing", Goal(0.05, "<="), lambda bench: bench.packing[1]),
    Row("streaming-jpeg", "DataLoader, 2 processes", Goal(1.5), streaming, limits=LIMITS["streaming-jpeg"]),
    Row("scan", "1 us a file", Goal(1.0, "<="), scan, limits=LIMITS["scan"]),
    Row("reopen", "50 ms for 600,000 files", Goal(1.0, "<="), lambda bench: whole.reopen(600_000, bench.rounds)),
    Row("scale-speed", "itself at 6,000 samples", Goal(0.97), lambda bench: bench.scale[0]),
    Row("scale-memory", "itself at 6,000 samples", Goal(1.02, "<="), lambda bench: bench.scale[1]),
    Row("memory", "Ray Train + Data, PSS", Goal(0.75, "<="), memory, limits=LIMITS["memory"]),
    Row("efficiency-64", "itself, 1 rank", Goal(0.88), partial(efficiency, 64), limits=LIMITS["efficiency-64"]),
    Row("efficiency-256", "itself, 1 rank", Goal(0.96), partial(efficiency, 256), limits=LIMITS["efficiency-256"]),
    Row("auto-mlp", "tutorial, fp32", Goal(5.6), auto),
    Row("auto-cnn", "tutorial, fp32", Goal(2.0), partial(auto, model="cnn", samples=6_400)),
    Row("start", "raw TorchTrainer", Goal(0.6, "<="), lambda bench: bench.cold[0]),
    Row("end", "raw TorchTrainer", Goal(0.3, "<="), lambda bench: bench.cold[1]),
    Row("start-cluster", "raw TorchTrainer there", Goal(0.5, "<="), lambda bench: bench.cluster[0]),
    Row("end-cluster", "raw TorchTrainer there", Goal(0.3, "<="), lambda bench: bench.cluster[1]),
    Row(
        "checkpoint-stall",
        "torch.save and report",
        Goal(0.2, "<="),
        lambda bench: whole.checkpoint(bench.workload(samples=60_000, files=False), bench.few),
    ),
)
"""In the order in which they are measured."""
