"""Checks and measures raytrain on one GPU in eight minutes, without Ray, a package index or data.

    PYTHONPATH=. python3 benchmarks/gpu.py [--minutes 8] [--rows NAME ...] [--dry_run]

Two sides take turns, and the ratio of their medians counts. The most telling rows come first. A row's windows share its
seconds; one whose share is used up ends early. Making a side and its first steps, in which libraries load and choose
kernels, do not count. A row that does not fit into the time is "not run", and then the verdict is not "passed".
`--dry_run` tries all rows with tiny sizes on a CPU, and its figures mean nothing. Images are made: digits as PNG files,
photographs as JPEG files of 500 x 375.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

from raytrain import CNN, DDP, FSDP, MNIST, SGD, Augment, Experiment, ImageFolder, Model, Scaling, Torchvision, order
from raytrain.data import Index
from raytrain.data.decode_gpu import Decoder
from raytrain.data.prepare import Prepare
from raytrain.data.reader import Direct, Epoch, Resident
from raytrain.driver import model_check
from raytrain.driver.first_batch import blank
from raytrain.parallel import distributed, dtensors
from raytrain.parallel.materialise import Parts
from raytrain.parallel.strategy import RankContext
from raytrain.run.experiment_file import save
from raytrain.training.precision import memory_format
from raytrain.training.trainer import Trainer

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda:0" if CUDA else "cpu")
IMAGENET = {"precision": "bf16", "memory_format": "channels_last"}
Side = Callable[[], float]
"""Measures once: samples a second, or where the row says so milliseconds."""


@dataclass(frozen=True)
class Window:
    """Steps that are timed at once, and those before."""

    warm: int
    steps: int


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    digits: int = 61_440
    """Full batches alone: cuDNN would choose kernels for a short one within a window."""
    png_files: int = 9_600
    photographs: int = 4_096
    side: int = 224
    stored: int = 256
    batch: int = 128
    small: Window = Window(100, 1_500)
    """Of a network for digits, whose step takes less than a millisecond."""
    slow: Window = Window(0, 150)
    """Of the tutorials' loop."""
    large: Window = Window(8, 40)
    """Of a ResNet."""
    rounds: int = 3


SIZES = Sizes()
DRY = Sizes(1_024, 1_024, 16, 32, 40, 8, Window(2, 3), Window(0, 3), Window(2, 3), 1)


def wait() -> None:
    """Let the GPU finish."""
    if CUDA:
        torch.cuda.synchronize()


class Deadline:
    """When the row that is measured must end, `time.monotonic()`, and the seconds of one of its windows."""

    row = window = float("inf")


def warm(steps: int, step: Callable[[], object]) -> None:
    """Do steps that are not measured."""
    for _ in range(steps):
        step()
    wait()


def timed(steps: int, step: Callable[[], object]) -> float:
    """Return seconds for each of some steps, after the GPU has finished all of them; of fewer where time is up."""
    wait()
    started, done = time.perf_counter(), 0
    while done < steps and (not done or time.perf_counter() - started < Deadline.window):
        step()
        done += 1
    wait()
    return (time.perf_counter() - started) / max(1, done)


# Data


def digits() -> tuple[dict[str, np.ndarray], Index]:
    """Return random images of MNIST's size."""
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (SIZES.digits, 1, 28, 28), dtype=np.uint8)
    labels = generator.integers(0, 10, SIZES.digits)
    return {"image": images}, Index(labels, tuple("0123456789"), (1, 28, 28), "train")


@cache
def png_folder() -> str:
    """Write the same as an ImageFolder of PNG files."""
    folder = Path(tempfile.mkdtemp())
    arrays, index = digits()
    for number in range(SIZES.png_files):
        (folder / str(index.labels[number])).mkdir(exist_ok=True)
        Image.fromarray(arrays["image"][number, 0]).save(folder / str(index.labels[number]) / f"{number}.png")
    return str(folder)


@cache
def photographs() -> tuple[ImageFolder, Index]:
    """Write smooth random images as JPEG files, which decode as photographs do; return them as a source."""
    folder, generator = Path(tempfile.mkdtemp()), np.random.default_rng(0)
    for number in range(min(64, SIZES.photographs)):
        rough = generator.integers(0, 256, (24, 32, 3), dtype=np.uint8)
        Image.fromarray(rough).resize((500, 375), Image.Resampling.BICUBIC).save(
            first := folder / f"{number}.jpg", quality=90
        )
        for copy in range(number, SIZES.photographs, 64):
            (folder / str(copy % 8)).mkdir(exist_ok=True)
            os.link(first, folder / str(copy % 8) / f"{copy}.jpg")
    data = ImageFolder(root=str(folder), size=SIZES.stored, crop=SIZES.side, val_fraction=0.02)
    return data, data.index()["train"]


@cache
def stored() -> tuple[ImageFolder, Index, dict[str, np.ndarray]]:
    """Return the photographs' source with random pixels in place of the decoded ones."""
    data, index = photographs()
    return data, index, {"image": np.random.default_rng(0).integers(0, 256, (len(index), *index.shape), dtype=np.uint8)}


class OnHost:
    """A reader whose arrays stay in the host's memory."""

    def __init__(self, arrays: dict[str, np.ndarray]):
        self.read = Resident(arrays).read


# Sides


def network(name: str) -> Model:
    """Return one of torchvision's models; in a dry run a small one, which compiles in seconds."""
    return CNN(channels=(4,)) if SIZES is DRY else Torchvision(name=name)


def experiment(model: Model, batch: int, **fields: Any) -> Experiment:
    """Return the experiment of a row."""
    values = {"data": MNIST(root="-"), "scaling": Scaling(threads_per_worker=4)} | fields
    return Experiment(model, optimizer=SGD(lr=1e-3, momentum=0.9), batch_size=batch, **values)


@contextmanager
def trainer(e: Experiment, index: Index, reader: Any) -> Iterator[tuple[Trainer, Iterator[Any]]]:
    """Make raytrain's trainer, and its batches without end."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "logs").mkdir()
        one, classes = blank(e, index), len(index.classes)
        layout = model_check.memory_format(e, one, classes, model_check.check_model(e, one, classes)[0])
        e = replace(e, memory_format=layout, graph=e.graph if CUDA else "off")
        save(e, Path(folder) / "experiment.json")
        few = index.take(np.arange(min(64, len(index))))
        readers = {"train": reader, "val": Resident(few.empty(len(few)))}
        one = Trainer(e, Path(folder), {"train": index, "val": few}, readers, None, RankContext(0, 1, DEVICE), 0.0)
        with one.started():
            one.clock = time.monotonic()  # as `Trainer.train` begins
            yield one, itertools.chain.from_iterable(map(one.loaders["train"].epoch, itertools.count()))


def step_of(one: Trainer, batches: Iterator[Any]) -> None:
    """Train a step, and reduce losses when that is due, as a run does."""
    one.losses.add(one.step(next(batches)))
    if one.losses.due:
        one.flush()


def ours(e: Experiment, index: Index, reader: Any, window: Window) -> Side:
    """Measure raytrain's steps, from the reader to the reduced losses."""

    def run() -> float:
        with trainer(e, index, reader) as (one, batches):
            warm(window.warm, partial(step_of, one, batches))
            return e.batch_size / timed(window.steps, partial(step_of, one, batches))

    return run


def tutorial(batch: int) -> Side:
    """Measure the tutorials' loop: ImageFolder, ToTensor, DataLoader, `.to(device)`, `loss.item()`."""
    steps = transforms.Compose([transforms.Grayscale(), transforms.ToTensor(), transforms.Normalize((0.13,), (0.31,))])
    loader = DataLoader(datasets.ImageFolder(png_folder(), steps), batch_size=batch, shuffle=True, drop_last=True)
    net = CNN(channels=(16, 32)).build((1, 28, 28), 10).to(DEVICE)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    batches = itertools.chain.from_iterable(itertools.repeat(loader))
    total = 0.0

    def step() -> None:
        nonlocal total
        images, labels = next(batches)
        images, labels = images.to(DEVICE), labels.to(DEVICE)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(images), labels)
        loss.backward()
        optimizer.step()
        total += loss.item()

    warm(3, step)
    return lambda: batch / timed(SIZES.slow.steps, step)


def plain(model: Model, shape: tuple[int, ...], batch: int, **fields: Any) -> tuple[Callable[[], None], Any]:
    """Return a step of plain PyTorch on one random batch that stays on the device: the limit of every loader."""
    e = experiment(model, batch, **fields)
    layout = memory_format(e.memory_format)
    net: Any = model.build(shape, 10).to(DEVICE, memory_format=layout)  # type: ignore[call-overload]
    net = torch.compile(net) if e.compile else net
    images = torch.randn(batch, *shape, device=DEVICE).contiguous(memory_format=layout)
    labels = torch.randint(0, 10, (batch,), device=DEVICE)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, fused=True)
    dtype = torch.float16 if e.precision == "fp16" else torch.bfloat16

    def step() -> None:
        with torch.autocast(DEVICE.type, dtype, enabled=e.precision in ("bf16", "fp16")):
            loss = nn.functional.cross_entropy(net(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step, optimizer


def synthetic(model: Model, batch: int, **fields: Any) -> Side:
    """Measure such steps."""
    step, _ = plain(model, (3, SIZES.side, SIZES.side), batch, **fields)
    warm(SIZES.large.warm, step)
    return lambda: batch / timed(SIZES.large.steps, step)


def by_hand(batch: int) -> Side:
    """Measure a hand-written CUDA graph of the whole step, on one resident batch of digits."""
    step, _ = plain(CNN(channels=(16, 32)), (1, 28, 28), batch)
    if CUDA:
        with torch.cuda.stream(side := torch.cuda.Stream()):
            warm(5, step)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        return lambda: batch / timed(SIZES.small.steps, partial(_replayed, graph, step))
    return lambda: batch / timed(SIZES.small.steps, step)


def _replayed(graph: torch.cuda.CUDAGraph, recorded: Callable[[], None]) -> None:
    """Replay what was recorded, whose tensors must stay."""
    graph.replay()


# Rows


def compare(mine: Side, other: Side) -> tuple[float, float]:
    """Return the medians of two sides in turns, each window in its share of the time that the row has left."""
    found: tuple[list[float], list[float]] = ([], [])
    for turn in range(windows := 2 * SIZES.rounds):
        Deadline.window = max(0.5, (Deadline.row - time.monotonic()) / (windows - turn))
        found[turn % 2].append((mine, other)[turn % 2]())
    return statistics.median(found[0]), statistics.median(found[1])


def mnist(batch: int, against: Callable[[int], Side], **fields: Any) -> tuple[float, float]:
    """Digits on the device, in one process."""
    arrays, index = digits()
    e = experiment(CNN(channels=(16, 32)), batch, **fields)
    return compare(ours(e, index, Resident(arrays), SIZES.small), against(batch))


def resnet(name: str, where: str) -> tuple[float, float]:
    """A ResNet in bf16 from the memory of the device or the host, or from JPEG files."""
    data, index, arrays = stored()
    reader = {"device": Resident, "host": OnHost}[where](arrays) if where != "jpeg" else Direct(data, index)
    e = experiment(network(name), SIZES.batch, data=data, precision="bf16")
    return compare(ours(e, index, reader, SIZES.large), synthetic(e.model, SIZES.batch, **IMAGENET))


def decoding() -> tuple[float, float]:
    """Photographs a second that one thread for each CPU reads, decoded by nvJPEG, against decoded by the threads."""
    data, index = photographs()
    shard = order.Shard(len(index), SIZES.batch, 0, 1)

    def on_cpu(raws: list[torch.Tensor], channels: int) -> list[torch.Tensor]:
        return [torch.ops.image.decode_jpeg(raw, channels, False) for raw in raws]

    def side(decoder: Decoder | None) -> float:
        direct = Direct(data, index, decoder=decoder)
        started, read = time.perf_counter(), 0
        for ids, _ in direct.read(Epoch(shard, 0, 0)):
            read += len(ids)
            if time.perf_counter() - started > Deadline.window:
                break
        direct.close()
        return read / (time.perf_counter() - started)

    decoder = Decoder(DEVICE, None if CUDA else on_cpu)
    return compare(lambda: side(decoder), lambda: side(None))


def precision(**fields: Any) -> tuple[float, float]:
    """A ResNet-50 of raytrain from the device's memory, against plain PyTorch on a synthetic batch in float32 and in
    contiguous memory."""
    data, index, arrays = stored()
    e = experiment(network("resnet50"), SIZES.batch, data=data, **fields)
    other = synthetic(e.model, SIZES.batch, memory_format="contiguous")
    return compare(ours(e, index, Resident(arrays), SIZES.large), other)


def augmented(augment: Augment) -> tuple[float, float]:
    """Batches a second through an augmentation on the device, against crop and normalisation alone."""
    data, index = photographs()
    changed = replace(data, augment=augment)
    images = torch.randint(0, 256, (SIZES.batch, *index.shape), dtype=torch.uint8, device=DEVICE)
    arrays = {"image": images, "label": torch.zeros(SIZES.batch, dtype=torch.int64, device=DEVICE)}
    keys, prepare, bare = np.arange(SIZES.batch), Prepare(changed, index, DEVICE), Prepare(data, index, DEVICE)
    steps = SIZES.large.steps

    def augmenting() -> object:
        return prepare.augmented(arrays, keys, 0, 0, mixed=True)

    warm(2, augmenting)
    return compare(lambda: 1 / timed(steps, augmenting), lambda: 1 / timed(steps, lambda: bare.plain(arrays)))


def checkpoint_stall() -> tuple[float, float]:
    """Milliseconds that a checkpoint of a ResNet-50 holds training up, and those of a step."""
    data, index, arrays = stored()
    with trainer(experiment(network("resnet50"), SIZES.batch, data=data), index, Resident(arrays)) as (
        one,
        batches,
    ):
        warm(3, partial(step_of, one, batches))
        stalls, each = [], 0.0
        assert one.writer is not None
        for _ in range(4):
            each = timed(5, partial(step_of, one, batches))
            one.writer.wait()
            started = time.perf_counter()
            one.save()
            stalls.append(time.perf_counter() - started)
        one.writer.wait()
    return 1000 * statistics.median(stalls[1:]), 1000 * each  # the first one pins memory


class Wrapped(DDP):
    """DistributedDataParallel around a single rank."""

    def setup(self, build: Callable[[], nn.Module], ranks: RankContext, shape: Any) -> Any:
        """Wrap the model as with several ranks."""
        devices = [ranks.device] if CUDA else None
        return distributed.Distributed(build().to(ranks.device), ranks, device_ids=devices)


class Sharded(FSDP):
    """FSDP2 over a single rank."""

    def setup(self, build: Callable[[], nn.Module], ranks: RankContext, shape: Any) -> Any:
        """Shard the model as with several ranks."""
        return dtensors.FullySharded(Parts(build, ranks), ranks, self)


def wrapped(parallel: Any) -> tuple[float, float]:
    """A ResNet-50 under a strategy of one rank, against none."""
    data, index, arrays = stored()
    e = experiment(network("resnet50"), SIZES.batch, data=data, precision="bf16")
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("nccl" if CUDA else "gloo", init_method=f"file://{folder}/s", rank=0, world_size=1)
        try:
            alone = ours(e, index, Resident(arrays), SIZES.large)
            return compare(ours(replace(e, parallel=parallel), index, Resident(arrays), SIZES.large), alone)
        finally:
            dist.destroy_process_group()


_RANK = """
import json, os, sys, torch, torch.distributed as dist
from raytrain import CNN, DDP
from raytrain.parallel.materialise import Parts
from raytrain.parallel.strategy import RankContext
rank, world, store, backend = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
dist.init_process_group(backend, init_method="file://" + store, rank=rank, world_size=world)
torch.manual_seed(0)
build = lambda: CNN(channels=(8,)).build((1, 8, 8), 10)
strategy = DDP(reduction="torch").setup(build, RankContext(rank, world, device), (1, 1))
images, labels = torch.randn(32, 1, 8, 8), torch.arange(32) % 10
losses = []
optimizer = torch.optim.SGD(strategy.module.parameters(), lr=0.1)
strategy.module.eval()
for _ in range(5):
    part = images.chunk(world)[rank].to(device), labels.chunk(world)[rank].to(device)
    loss = torch.nn.functional.cross_entropy(strategy.model(part[0]), part[1])
    optimizer.zero_grad(); loss.backward(); strategy.reduce_gradients(); optimizer.step()
    total = loss.detach().double() / world
    dist.all_reduce(total)
    losses.append(total.item())
print(json.dumps(losses))
dist.destroy_process_group()
"""


def two_ranks() -> tuple[float, float]:
    """The largest difference of losses of two ranks on one GPU from those of one; NCCL, else gloo."""
    with tempfile.TemporaryDirectory() as folder:

        def losses(world: int, backend: str) -> list[float]:
            command = [sys.executable, "-c", _RANK]
            environment = os.environ | {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}
            tail = [str(world), f"{folder}/{world}-{backend}", backend]
            ranks = [
                subprocess.Popen([*command, str(rank), *tail], stdout=-1, stderr=subprocess.DEVNULL, env=environment)
                for rank in range(world)
            ]
            try:
                said = [rank.communicate(timeout=20 if backend == "nccl" else 60)[0] for rank in ranks]
            finally:
                for rank in ranks:
                    rank.kill()
            return json.loads(said[0])

        one = losses(1, "gloo")
        try:
            two = losses(2, "nccl" if CUDA else "gloo")
        except (ValueError, subprocess.TimeoutExpired):  # this NCCL takes one rank for each GPU
            two = losses(2, "gloo")
    return max(abs(a - b) for a, b in zip(one, two, strict=True)), 1.0


def busy(e: Experiment, index: Index, reader: Any) -> tuple[float, float]:
    """Share of the time in which the GPU computes, by the profiler's kernels."""
    with trainer(e, index, reader) as (one, batches):
        warm(SIZES.small.warm, partial(step_of, one, batches))
        activities = [torch.profiler.ProfilerActivity.CUDA if CUDA else torch.profiler.ProfilerActivity.CPU]
        with torch.profiler.profile(activities=activities) as found:
            started = time.perf_counter()
            timed(SIZES.slow.steps, partial(step_of, one, batches))
            seconds = time.perf_counter() - started
    kernels = sum(getattr(event, "self_device_time_total", 0.0) for event in found.key_averages())
    return kernels / 1e6 / seconds, 1.0


def no_waiting() -> tuple[float, float]:
    """Steps without one that makes the host wait for the GPU: from its memory and from the host's, and augmented."""
    (arrays, index), steps, done = digits(), 200 if CUDA else SIZES.small.steps, 0
    ways = (
        (Resident, Augment()),
        (OnHost, Augment(crop="random", padding=4, flip=0.5)),
        (OnHost, Augment(policy="randaugment")),
        (Resident, Augment(crop="random_resized", erase=0.5, mixup=0.2)),
    )
    for reader, augment in ways:
        e = experiment(CNN(channels=(16, 32)), 64, data=MNIST(root="-", augment=augment))
        with trainer(e, index, reader(arrays)) as (one, batches):
            warm(SIZES.small.warm, partial(step_of, one, batches))  # fills caches
            if CUDA:
                torch.cuda.set_sync_debug_mode("error")
            try:
                for _ in range(steps):
                    one.losses.add(one.step(next(batches)))
                    done += 1
            finally:
                if CUDA:
                    torch.cuda.set_sync_debug_mode("default")
    return done, steps * len(ways)


@dataclass(frozen=True)
class Row:
    """One line of the table: what is measured, its goal for the ratio, and about how many seconds it takes."""

    against: str
    goal: float | None
    measure: Callable[[], tuple[float, float]]
    seconds: float
    least: bool = True
    """Whether the ratio must be at least the goal, rather than at most."""


def _digits(**fields: Any) -> tuple[Experiment, Index, Any]:
    arrays, index = digits()
    return experiment(CNN(channels=(16, 32)), 64, **fields), index, Resident(arrays)


ROWS: dict[str, Row] = {
    "mnist-64": Row("tutorial", None, lambda: mnist(64, tutorial), 10),
    "mnist-64 graph": Row("tutorial", 8.0, lambda: mnist(64, tutorial, graph="on"), 12),
    "mnist-64 graph, resident": Row("graph by hand", 0.9, lambda: mnist(64, by_hand, graph="on"), 8),
    "mnist-1024 graph": Row("tutorial", 30.0, lambda: mnist(1024, tutorial, graph="on"), 25),
    "mnist-1024 graph, resident": Row("graph by hand", 0.9, lambda: mnist(1024, by_hand, graph="on"), 8),
    "resnet50 device": Row("synthetic", 0.97, lambda: resnet("resnet50", "device"), 28),
    "no waiting": Row("800 steps", 1.0, no_waiting, 12),
    "checkpoint, ms": Row("5 ms", 5.0, lambda: (checkpoint_stall()[0], 1.0), 12, least=False),
    "resnet50 host": Row("synthetic", 0.97, lambda: resnet("resnet50", "host"), 25),
    "resnet50 jpeg": Row("synthetic", None, lambda: resnet("resnet50", "jpeg"), 25),
    "nvjpeg, images/s": Row("cpus", None, decoding, 15),
    "resnet18 device": Row("synthetic", 0.97, lambda: resnet("resnet18", "device"), 18),
    "ddp, one rank": Row("none", 0.95, lambda: wrapped(Wrapped()), 25),
    "fsdp, one rank": Row("none", None, lambda: wrapped(Sharded()), 25),
    "two ranks, one gpu": Row("one rank", 1e-4, two_ranks, 50, least=False),
    "busy, mnist graph": Row("all the time", None, lambda: busy(*_digits(graph="on")), 8),
    "mnist-64 compiled": Row("graph by hand", None, lambda: mnist(64, by_hand, graph="on", compile=True), 30),
    "bf16, channels_last": Row("fp32", None, lambda: precision(**IMAGENET), 25),
    "fp16, channels_last": Row("fp32", None, lambda: precision(precision="fp16", memory_format="channels_last"), 25),
    "bf16, compiled": Row("fp32", 2.5, lambda: precision(compile=True, **IMAGENET), 60),
    **{
        f"augment {name}": Row("crop only", None, partial(augmented, augment), 4)
        for name, augment in {
            "crop, flip": Augment(crop="random", padding=4, flip=0.5),
            "random_resized": Augment(crop="random_resized", flip=0.5),
            "randaugment": Augment(policy="randaugment"),
            "trivial": Augment(policy="trivialaugment"),
            "mixup": Augment(mixup=0.2),
            "cutmix": Augment(cutmix=1.0),
            "erase": Augment(erase=0.5),
        }.items()
    },
}
"""name: how; the most telling first."""


def main() -> int:
    """Measure, and print a table. Return 0 where every row has run and met its goal."""
    global SIZES
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dry_run", action="store_true", help="tiny sizes, also on a CPU")
    parser.add_argument("--minutes", type=float, default=8.0, help="time for all rows")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS), metavar="NAME", help="only these")
    arguments = parser.parse_args()
    if not CUDA and not arguments.dry_run:
        parser.error("there is no GPU here; --dry_run tries the rows out on the CPU")
    SIZES = DRY if arguments.dry_run else Sizes()
    torch.backends.cudnn.benchmark = True  # as raytrain has it: for both sides
    end = time.monotonic() + 60 * arguments.minutes
    name = torch.cuda.get_device_name() if CUDA else "CPU"
    dry = "; a dry run, whose figures mean nothing" if arguments.dry_run else ""
    print(f"{name}; torch {torch.__version__}, Python {sys.version.split()[0]}{dry}\n")
    print("| row | against | raytrain | other | ratio | goal | met |\n|---|---|---|---|---|---|---|", flush=True)
    failed: list[str] = []
    if CUDA:  # libraries load when they are first used, which takes seconds
        for fields in ({}, IMAGENET):
            warm(2, plain(network("resnet18"), (3, SIZES.side, SIZES.side), 8, **fields)[0])
    for title in arguments.rows:
        row, place = ROWS[title], f"| {title} | {ROWS[title].against} |"
        if time.monotonic() + row.seconds * (not arguments.dry_run) > end:
            failed.append(title)
            print(f"{place} not run: no time is left ||||", flush=True)
            continue
        Deadline.window = float("inf")
        Deadline.row = end if arguments.dry_run else min(end, time.monotonic() + row.seconds)
        try:
            mine, other = row.measure()
        except Exception as error:  # one row must not cost the others
            failed.append(title)
            print(f"{place} {type(error).__name__}: {' '.join(str(error).split())[:120]} ||||", flush=True)
            traceback.print_exc()
            continue
        ratio = mine / other
        met = row.goal is None or (ratio >= row.goal if row.least else ratio <= row.goal)
        failed += [] if met or arguments.dry_run else [title]
        goal = "" if row.goal is None else f"{'>=' if row.least else '<='} {row.goal:g}"
        said = "" if row.goal is None or arguments.dry_run else ("yes" if met else "no")
        print(f"{place} {mine:,.4g} | {other:,.4g} | {ratio:.4g} | {goal} | {said} |", flush=True)
    print(f"\n{'not passed: ' + ', '.join(failed) if failed else 'passed'}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
