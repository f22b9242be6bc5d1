"""Passes that several ranks capture: two processes joined by gloo, with a graph that does recorded work again."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.ranks import Ranks, losses, new_run, on_workers, train_rank
from helpers.strategies import BASE
from torch import nn

from raytrain import CNN, DDP, Augment, Digits, Experiment, Model, Run
from raytrain.data import Index
from raytrain.training import graph


@dataclass(frozen=True)
class Centred(Model):
    """A model whose gradients depend on a buffer that each pass changes: DistributedDataParallel gives it rank 0's
    values before."""

    def build(self, sample: tuple[int, ...], classes: int) -> nn.Module:
        class Centre(nn.Module):
            mean: torch.Tensor

            def __init__(self) -> None:
                super().__init__()
                self.register_buffer("mean", torch.zeros(64))
                self.head = nn.Linear(64, classes)

            def forward(self, images: torch.Tensor) -> torch.Tensor:
                flat = images.flatten(1)
                self.mean.lerp_(flat.mean(0), 0.1)
                return self.head(flat - self.mean)

        return Centre()


E = on_workers(
    replace(BASE, micro_batch_size=None, parallel=DDP(reduction="torch"), graph="on", ema_decay=0.9, epochs=2), 2
)
SAMPLES = 5 * 64 + 63
"""Of the last batch rank 0 has 32 samples, as of a whole one, and rank 1 has 31."""


def captured_rank(rank: int, world: int, e: Experiment, run: Path, fault: str) -> tuple[str, str, int, int]:
    """Train with captured steps; return the reasons why not, and the numbers of replays, of passes and of updates."""
    from helpers.graphs import Capture, Replayed, Slow

    class Broken(Replayed):
        def capture(self, work: Any) -> list[torch.Tensor]:
            super().capture(work)
            raise RuntimeError("operation not permitted when stream is capturing")

    class Unmoved(Replayed):
        def capture(self, work: Any) -> list[torch.Tensor]:
            found = super().capture(work)
            if any("fused" in str(call[0]) for call in self.calls):
                raise RuntimeError("operation not permitted when stream is capturing")
            return found

    class Full(Replayed):
        def capture(self, work: Any) -> list[torch.Tensor]:
            super().capture(work)
            raise torch.OutOfMemoryError("CUDA out of memory")

    def no_room(size: int, device: torch.device) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    class Rounded(Replayed):
        def replay(self) -> None:
            super().replay()
            if len(self.tensors) > 2:  # not an update: the second one is what ranks exchange
                self.tensors[1].mul_(1.01)

    class Wrong(Replayed):
        def replay(self) -> None:
            super().replay()
            self.tensors[0].mul_(2)

    kind = Replayed
    if rank == 1:
        kinds = {"broken": Broken, "unmoved": Unmoved, "slow": Slow, "wrong": Wrong, "rounded": Rounded, "full": Full}
        kind = kinds.get(fault, Replayed)
    hook = Capture(kind)
    (run / "logs").mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graph, "_TIMED", 3)
        if fault == "no room" and rank == 1:
            patch.setattr(graph, "reserve", no_room)
        train_rank(rank, world, e, run, few(e), hooks=[hook])
    known = list(hook.steps.known.values())
    updates = sum(each.update.replays for each in known if each.update)
    return hook.steps.reason, hook.steps.reason_of_update, sum(each.replays for each in known), updates


def plain_rank(rank: int, world: int, e: Experiment, run: Path) -> None:
    from helpers.graphs import Capture

    train_rank(rank, world, e, run, few(e), hooks=[Capture(None)])


def few(e: Experiment) -> dict[str, Index]:
    return {split: index.take(np.arange(min(SAMPLES, len(index)))) for split, index in e.data.index().items()}


def alike(one: Path, other: Path) -> None:
    np.testing.assert_array_equal(losses(one), losses(other))
    weights = Run(other).model("last").state_dict()
    for name, weight in Run(one).model("last").state_dict().items():
        assert torch.equal(weight, weights[name]), name


@pytest.mark.parametrize(
    "e",
    [
        replace(E, model=CNN(channels=(8, 16), batch_norm=True), data=Digits(augment=Augment(mixup=0.2))),
        replace(E, model=Centred(), parallel=DDP(reduction="torch", compression="bf16")),
        replace(E, parallel=DDP(reduction="torch", static_graph=True), precision="fp16", on_nonfinite="skip"),
    ],
    ids=["batch norm", "a buffer, compressed", "static graph, fp16"],
)
def test_ranks_train_by_captured_passes_as_by_plain_ones(ranks: Ranks, tmp_path: Path, e: Experiment) -> None:
    captured, plain = new_run(tmp_path / "captured", e), new_run(tmp_path / "plain", e)
    found = ranks.run(2, captured_rank, e, captured, "")
    ranks.run(2, plain_rank, e, plain)
    alike(captured, plain)
    assert found == [("", "", 7, 4)] * 2, "of 10 full batches 3 are plain, 2 passes compared, one makes Adam's state"


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("broken", "operation not permitted when stream is capturing"),
        ("wrong", "a replay gives another loss or other gradients"),
        ("unmoved", "the update is not captured as a CUDA graph: operation not permitted"),
        ("slow", "ms as a graph"),
        ("full", "CUDA out of memory"),
        ("no room", "CUDA out of memory"),
    ],
)
def test_ranks_give_up_together(ranks: Ranks, tmp_path: Path, fault: str, reason: str) -> None:
    e = replace(E, graph="auto" if fault == "slow" else "on", epochs={"slow": 3, "unmoved": 2}.get(fault, 1))
    captured, plain = new_run(tmp_path / "captured", e), new_run(tmp_path / "plain", e)
    first, second = ranks.run(2, captured_rank, e, captured, fault)
    ranks.run(2, plain_rank, e, plain)
    alike(captured, plain)
    given_up = fault == "unmoved"
    assert [bool(reason) for reason in (*first[:2], *second[:2])] == [not given_up, given_up] * 2
    assert first[2:] == second[2:] == ((7, 0) if given_up else (0, 0))
    notes = (captured / "logs" / "notes.log").read_text().splitlines()
    assert len(notes) == 1 and reason in notes[0]


@pytest.mark.parametrize(("compression", "reason"), [("bf16", ""), ("none", "a replay gives another loss")])
def test_compressed_gradients_may_be_rounded_otherwise(
    ranks: Ranks, tmp_path: Path, compression: Any, reason: str
) -> None:
    e = replace(E, parallel=DDP(reduction="torch", compression=compression), epochs=1)
    for found in ranks.run(2, captured_rank, e, new_run(tmp_path / "run", e), "rounded"):
        assert found[0].startswith(reason) and bool(found[0]) == bool(reason), "half a per cent off"
