"""What keeps a row from its goal: a profile of its parts on this machine, and the sentence that they make."""

from __future__ import annotations

import statistics
import subprocess
import sys
from dataclasses import replace

from benchmarks.harness import Measured, Side, alternate, environment
from benchmarks.side import Workload

SENTENCES = {
    "steady-mlp": (
        "The model: of {mlp_step:.2f} ms a step, {mlp_passes:.2f} are its forward and backward pass and "
        "{mlp_optimizer:.2f} the optimizer. compute-mlp has the loop against one whose batches are there already."
    ),
    "compute-mlp": (
        "The loop: of {mlp_step:.2f} ms a step, {mlp_own:.2f} are neither forward and backward pass nor optimizer, but "
        "the batch's gather and normalisation, the step's seed and the loss in float64."
    ),
    "two-ranks-gloo": (
        "gloo: two bare models do {ddp:,.0f} samples/s with DistributedDataParallel and {alone:,.0f} without any "
        "exchange. Both sides pay that."
    ),
    "two-ranks-shared": (
        "The cores disturb each other: two bare models that exchange nothing reach {alone_efficiency:.2f} of twice "
        "one. The exchange in shared memory takes {exchange:.2f} of {two_step:.2f} ms a step."
    ),
    "accelerate": "The model: it is the same on both sides and takes nine tenths of a step of either (steady-mlp).",
    "accelerate-small": (
        "Python: of {small_step:.3f} ms a step, {small_own:.3f} are neither forward and backward pass nor optimizer, "
        "but the step's seed and learning rate, the loss in float64 and the loader, which is the same on both sides."
    ),
    "first-epoch": (
        "Packing takes {packed:.1f} s, the epoch behind it {epoch:.1f} s. Decoding is {decoding:.1f} s of that where "
        "one process does it ({png:.0f} us a file); beyond three seconds Ray Data's tasks take over, which need as "
        "long to start."
    ),
    "streaming-jpeg": (
        "Decoding: a core alone reads, decodes and resizes {photographs:.0f} of these files a second. In each epoch "
        "{first:.2f} s pass until the first batch is there, as nothing is read while the other side runs."
    ),
    "pack-raw": (
        "CPUs: a sample takes {wall:.0f} us, and for {own:.0f} of these the thread that normalises has a CPU. "
        "The thread that copies the next samples out of the page cache wants one too."
    ),
    "scan": (
        "A stat for each file takes {stat:.1f} us: it tells the size and the time of change, by which a run knows its "
        "data again and the cache never serves an image that was replaced. The names alone take {list:.1f} us."
    ),
    "scale-speed": (
        "Nothing that the loop does depends on the number of samples, but for the memory that a batch is gathered "
        "from. The spread says how well these rounds can tell."
    ),
    "memory": (
        "PyTorch, on both sides: a process that has done no more than import it has {torch_memory:.0f} MiB, with Ray "
        "Train's modules {ray_memory:.0f} MiB."
    ),
    "efficiency-64": "As two-ranks-shared: {alone_efficiency:.2f} without any exchange.",
    "efficiency-256": "As two-ranks-shared: the exchange takes the same {exchange:.2f} ms of a longer step.",
}


def sentence(name: str, found: Measured, parts: dict[str, float]) -> str:
    """What limits a row, with the figures of `parts` and of the row."""
    known = SENTENCES.get(name, "What limits it has not been looked into yet.")
    return known.format(**parts | found.more)


def parts(workload: Workload, arrays: Workload, rounds: int) -> dict[str, float]:
    """Measures them.

    Args:
        workload: with files.
        arrays: the same without.
    """
    with Side("parts", workload) as side:
        figures = side.turn().more
    two = replace(arrays, ranks=2)
    sides = [
        Side("compute", arrays),
        Side("compute", replace(two, exchange=False)),
        Side("compute", two),
        Side("raytrain", two),
    ]
    with sides[0], sides[1], sides[2], sides[3]:
        turns = alternate(sides, rounds)
    one, alone, ddp, ours = (statistics.median(turn.rate for turn in taken[1:]) for taken in turns)
    batch = 2 * arrays.batch_size * 1e3
    return figures | {
        "mlp_own": figures["mlp_step"] - figures["mlp_passes"] - figures["mlp_optimizer"],
        "small_own": figures["small_step"] - figures["small_passes"] - figures["small_optimizer"],
        "decoding": figures["png"] * 60_000 / 1e6,
        "photographs": 1e6 / figures["jpeg"],
        "alone": alone,
        "ddp": ddp,
        "alone_efficiency": alone / one / 2,
        "two_step": batch / ours,
        "exchange": batch / ours - batch / alone,
        "torch_memory": _memory("torch"),
        "ray_memory": _memory("torch, ray.train.torch"),
    }


def _memory(modules: str) -> float:
    """PSS in MiB of a process that has imported some modules."""
    code = f"import {modules}; from benchmarks.side import memory; print(memory()['pss'] / 2**20)"
    command = [sys.executable, "-c", code]
    return float(subprocess.run(command, capture_output=True, text=True, env=environment(1), check=True).stdout)
