"""What a run spends its time on: staged slow-downs, each of which must be named, by the rows and by a profile."""

from __future__ import annotations

import gzip
import json
import math
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from helpers.cut_runs import BASE, cut_rank, rows, weights
from helpers.ranks import Ranks, new_run, on_workers, train_rank

from raytrain import DDP, MLP, Augment, Checkpoint, Classification, Digits, Experiment, Hook, Operation, Run
from raytrain.checkpoint import checkpoints
from raytrain.data import Data, streaming
from raytrain.data.blocks import Arrays, Bad
from raytrain.data.checks import checked_read
from raytrain.data.streaming import Streaming
from raytrain.parallel.distributed import Distributed
from raytrain.parallel.shared import Exchange
from raytrain.parallel.strategy import RankContext
from raytrain.report.profile import epoch_of
from raytrain.report.run_time import bottleneck
from raytrain.training import phases
from raytrain.training.phases import PHASES, read
from raytrain.training.profiling import FIGURES, WARM_UP, Profiling, Span, device_seconds
from raytrain.training.trainer import Trainer

SLOW = 0.04
"""Seconds that each step loses."""
STEPS = 6
E = replace(BASE, model=MLP(hidden=(8,)), data=Digits(), epochs=1, steps=WARM_UP + STEPS, checkpoint=Checkpoint())


@dataclass(frozen=True)
class Heavy(Operation):
    """An operation that takes long."""

    def apply(self, images: torch.Tensor, draws: np.ndarray, side: int | None) -> torch.Tensor:
        time.sleep(SLOW)
        return images


@dataclass(frozen=True)
class SlowLoss(Classification):
    """A model that takes long, in training."""

    def loss(self, model: torch.nn.Module, batch: Any) -> tuple[torch.Tensor, int]:
        time.sleep(SLOW)
        return super().loss(model, batch)


@dataclass(frozen=True)
class SlowHook(Hook):
    """A hook that takes long."""

    def after_step(self, trainer: Any) -> None:
        time.sleep(SLOW)


CASES: dict[str, tuple[str, Experiment]] = {
    "slow disk on one rank": ("data", E),
    "heavy augmentation": ("augment", replace(E, data=Digits(augment=Augment(operations=(Heavy(),))))),
    "slow exchange in shared memory": ("exchange", E),
    "slow exchange of DDP": ("exchange", replace(E, parallel=DDP(reduction="torch"))),
    "frequent checkpoints": ("checkpoint", replace(E, checkpoint=Checkpoint(every_steps=1))),
    "slow model on one rank": ("compute", replace(E, task=SlowLoss())),
    "slow hook": ("hooks", replace(E, hooks=(SlowHook(),))),
}


def staged_rank(rank: int, world: int, e: Experiment, run: Path, case: str) -> str:
    """One rank of a profiled run that streams its samples, with a slow-down in it."""
    indices = e.data.index()

    def read_blocks(data: Data, split: str, samples: Any, total: int, *_: Any) -> Iterator[tuple[Arrays, list[Bad]]]:
        chosen = samples(np.arange(total))
        for start in range(0, total, 32):
            if case == "slow disk on one rank" and rank == 1 and split == "train":
                time.sleep(SLOW)
            yield checked_read(data, indices[split], chosen[start : start + 32]), []

    reduce, save, build = Exchange.reduce, checkpoints.save, Distributed.__init__

    def slow_reduce(exchange: Exchange) -> None:
        time.sleep(SLOW)
        reduce(exchange)

    def slow_save(*arguments: Any) -> Any:
        time.sleep(SLOW)
        return save(*arguments)

    def build_slow(self: Distributed, *arguments: Any, **options: Any) -> None:
        build(self, *arguments, **options)

        def late(state, bucket):  # type: ignore[no-untyped-def]  # DDP checks annotations
            """As on a slow network: what is sent arrives late, in another thread."""
            sent, future = dist.all_reduce(bucket.buffer().div_(2), async_op=True), torch.futures.Future[torch.Tensor]()

            def arrive() -> None:
                assert sent
                sent.wait()
                time.sleep(SLOW)
                future.set_result(bucket.buffer())

            threading.Thread(target=arrive).start()
            return future

        self.ddp.register_comm_hook(None, late)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streaming, "read_blocks", read_blocks)
        if case == "slow exchange in shared memory":
            patch.setattr(Exchange, "reduce", slow_reduce)
        if case == "slow exchange of DDP":
            patch.setattr(Distributed, "__init__", build_slow)
        if case == "frequent checkpoints":
            patch.setattr(checkpoints, "save", slow_save)
        if case == "slow model on one rank" and rank == 0:
            patch.setattr(SlowLoss, "loss", Classification.loss)
        readers = {split: Streaming(e.data, indices[split], split) for split in ("train", "val")}
        ranks = RankContext(rank, world, torch.device("cpu"))
        return Trainer(e, run, indices, readers, None, ranks, time.time(), hooks=[Profiling(STEPS)]).fit()


@pytest.mark.parametrize("case", CASES)
def test_the_rows_and_the_profile_name_a_staged_slow_down(ranks: Ranks, tmp_path: Path, case: str) -> None:
    phase, e = CASES[case]
    e = on_workers(e, 2)
    run = Run(new_run(tmp_path / "run", e))
    assert ranks.run(2, staged_rank, e, run.path, case) == ["completed"] * 2
    total, figures = read(run.summary), json.loads((run.path / FIGURES).read_text())
    found = bottleneck(total, e)
    assert found and found.phase == phase, total
    assert total[phase] > SLOW * (WARM_UP + STEPS - 2), total
    rank = min(figures["ranks"], key=lambda one: phases.grouped(one["activities"])["exchange"])
    profiled = bottleneck(epoch_of(rank, 23, 0.0), e)
    assert profiled and profiled.phase == phase, rank
    assert (figures["first"], rank["steps"], figures["steps_per_epoch"]) == (WARM_UP + 1, STEPS, 23)
    for number in range(2):
        with gzip.open(run.path / "profile" / f"rank{number}.json.gz") as file:
            names = {event.get("name") for event in json.load(file)["traceEvents"]}
        assert "aten::addmm" in names
    linear = next(one for one in rank["operators"] if one["name"] == "aten::addmm")
    assert linear["calls"] >= STEPS and linear["seconds"] > 0


def test_totals_after_a_resume_are_those_of_the_rows(ranks: Ranks, tmp_path: Path) -> None:
    """And a profile changes no row and no weight."""
    e = replace(BASE, epochs=2, validate_every_steps=10)
    whole, cut = new_run(tmp_path / "whole", e), new_run(tmp_path / "cut", e)
    ranks.run(1, train_rank, e, whole)
    ranks.run(1, cut_rank, e, cut, 33)
    ranks.run(1, train_rank, e, cut, None, [Profiling(2)])
    assert rows(cut) == rows(whole) and weights(cut) == weights(whole)
    last: dict[int, dict[str, float]] = {}
    for line in (cut / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        if row["kind"] in ("epoch", "validation"):
            last[row["epoch"]] = read(row)
            assert read(row).keys() == PHASES.keys() - {"hooks"}
            assert math.fsum(read(row).values()) < row["seconds"] + 5
    total = read(Run(cut).summary)
    for name in PHASES.keys() - {"hooks"}:
        assert total[name] == pytest.approx(math.fsum(seconds[name] for seconds in last.values()), rel=1e-9), name
    assert total["compute"] > 0 and total["validation"] > 0


def test_the_rank_that_waits_least_is_the_one_that_counts() -> None:
    reads, waits = dict.fromkeys(PHASES, 0.0), dict.fromkeys(PHASES, 0.0)
    reads |= {"data": 9.0, "compute": 1.0, "exchange": 0.1}
    waits |= {"data": 0.1, "compute": 1.0, "exchange": 9.0}
    for ranks in ((reads, waits), (waits, reads)):
        assert phases.slowest([value for rank in ranks for value in rank.values()]) == reads


@pytest.mark.parametrize("damaged", [{"data": math.nan}, {"data": "1"}, {"disk": 1.0}, {"data": True}])
def test_a_checkpoint_with_other_phases_is_refused(damaged: dict[object, object]) -> None:
    assert phases.are_seconds({"data": 1, "compute": 0.5}) and not phases.are_seconds(damaged)


def test_a_gpu_s_exchange_counts_where_computing_does_not_hide_it() -> None:
    spans = [
        *(Span("sgemm", 0, 40), Span("ncclDevKernel_AllReduce", 30, 60), Span("Memcpy HtoD (Pinned)", 55, 70)),
        *(Span("sgemm", 100, 110), Span("Memcpy HtoD (Pinned)", 102, 104)),
    ]
    found = {name: round(1e6 * seconds) for name, seconds in device_seconds(spans).items()}
    assert found == {"compute": 50, "exchange": 20, "copies": 10, "idle": 30}
    assert not any(device_seconds([]).values())
    rank = {"steps": 2, "activities": {"in a forward pass": 4.0, "exchanging gradients": 1.0}, "device": found}
    seconds = epoch_of(rank | {"device": {"exchange": 3.0}}, 10, 5.0)
    assert (seconds["compute"], seconds["exchange"], seconds["validation"]) == (5.0, 20.0, 5.0)
