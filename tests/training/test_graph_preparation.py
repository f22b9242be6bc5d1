"""Batches that a graph gathers, changes and normalises, on a CPU: they have the bits of plain ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.graphs import Capture, Replayed, tensors
from helpers.ranks import Ranks, losses, new_run, on_workers, train_rank
from helpers.strategies import BASE
from test_graph import notes, trained
from test_graph_update import Launches, Silent
from test_progressive import Pooled

from raytrain import (
    DDP,
    MLP,
    Augment,
    Balanced,
    Digits,
    Experiment,
    Hook,
    HorizontalFlip,
    Progressive,
    Run,
)
from raytrain.data import loader
from raytrain.data.drawn import Changes
from raytrain.data.prepare import Prepare, Tensors
from raytrain.data.recorded import ROWS
from raytrain.training import graph
from raytrain.training.losses import LossLog
from raytrain.training.trainer import Trainer

E = replace(
    BASE,
    model=MLP(hidden=(16,)),
    data=Digits(augment=Augment(crop="random", padding=2, flip=0.5)),
    micro_batch_size=None,
    hooks=(),
    epochs=2,
    graph="on",
)
PLAINLY, COUNTED = 3, 10
"""Steps before a capture, and before steps are replayed alone."""


@pytest.fixture(autouse=True)
def few_steps_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies the rows of few steps at a time, so that a graph sees several tables."""
    monkeypatch.setattr(loader, "_STEPS", 5)


class Count(Hook):
    """Counts the batches that are prepared by the graph, and those that are not."""

    def start(self, trainer: Trainer) -> None:
        self.captured = self.plain = 0
        prepare = trainer.loaders["train"].prepare
        for name in ("augmented", "evaluated"):
            setattr(prepare, name, self.counted(getattr(prepare, name)))

    def counted(self, call: Any) -> Any:
        def counting(*arguments: Any, **more: Any) -> Any:
            self.plain += 1
            return call(*arguments, **more)

        return counting


def on(augment: Augment) -> Experiment:
    return replace(E, data=Digits(augment=augment))


@pytest.mark.parametrize(
    "e",
    [
        replace(E, memory_format="contiguous", precision="bf16"),
        on(Augment()),
        on(Augment(crop="random_resized", scale=(0.3, 1.0), flip=0.5)),
        on(Augment(flip=0.3, erase=0.5)),
        on(Augment(crop="random", padding=1, mixup=0.4, cutmix=1.0)),
        on(Augment(cutmix=0.5)),
        replace(E, sampler=Balanced(), precision="fp16"),
    ],
    ids=["crop and flip", "nothing", "resized", "erased", "mixed", "cut", "weighted"],
)
def test_captured_preparations_have_the_bits_of_plain_ones(tmp_path: Path, e: Experiment) -> None:
    hook, count = Capture(), Count()
    captured, plain = (
        trained(tmp_path / "captured", e, hook, count),
        trained(tmp_path / "plain", replace(e, graph="off")),
    )
    alike_without_norms(captured, plain)
    (found,) = hook.steps.known.values()
    steps, full = len(losses(plain.path)), 2 * (1437 // 64)
    assert found.replays == full - PLAINLY and not notes(captured)
    assert count.plain == PLAINLY + 2 + steps - full, "before the capture, compared, and short last batches"


def alike_without_norms(one: Run, other: Run) -> None:
    np.testing.assert_array_equal(losses(one.path), losses(other.path))
    weights = other.model("last").state_dict()
    for name, weight in one.model("last").state_dict().items():
        assert torch.equal(weight, weights[name]), name


PROGRESSIVE = replace(on(Augment(progressive=Progressive(4, multiple=4))), model=Pooled())


class Stale(Replayed):
    """Gathers the right samples, and goes on with the random numbers of the capture."""

    def capture(self, work: Callable[[], list[torch.Tensor]]) -> list[torch.Tensor]:
        found = super().capture(work)
        self.rows = next(
            (one for one in tensors(self.calls[0][1]) if one.dtype == torch.float64 and one.dim() == 2), None
        )
        self.old = None if self.rows is None else self.rows[:, 1:].clone()
        return found

    def replay(self) -> None:
        if self.rows is not None and self.old is not None:
            self.rows[:, 1:].copy_(self.old)
        super().replay()


@pytest.mark.parametrize("compared", [2, 0])
def test_old_random_numbers_are_found_out(tmp_path: Path, compared: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph, "_COMPARED", compared)
    hook = Capture(Stale)
    captured, plain = trained(tmp_path / "captured", E, hook), trained(tmp_path / "plain", replace(E, graph="off"))
    if not compared:
        assert (losses(captured.path) != losses(plain.path)).sum() > 30, "nothing else would find it"
        return
    alike_without_norms(captured, plain)
    assert notes(captured) == "the preparation is not captured as a CUDA graph: a replay prepares another batch\n"
    assert not hook.steps.reason and [ROWS in one.given for one in hook.steps.known.values()] == [False]


def waits(prepare: Prepare, arrays: Tensors, changes: Changes) -> Tensors:
    arrays["image"][0, 0, 0, 0].item()
    return arrays


@pytest.mark.parametrize(
    ("e", "reason"),
    [
        (on(Augment(policy="trivialaugment")), "trivialaugment sorts the images on the host"),
        (on(Augment(operations=(HorizontalFlip(),))), "HorizontalFlip takes its random numbers on the host"),
        (PROGRESSIVE, "the size of the images changes"),
        (E, "the samples are not in the GPU's memory"),
        (E, "it waits"),
    ],
    ids=["policy", "operations", "progressive", "elsewhere", "waits"],
)
def test_other_preparations_are_plain_and_their_passes_captured(
    tmp_path: Path, e: Experiment, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if reason == "it waits":
        monkeypatch.setattr(Prepare, "recorded", waits)
    hook = Capture(resident="memory" not in reason)
    captured, plain = trained(tmp_path / "captured", e, hook), trained(tmp_path / "plain", replace(e, graph="off"))
    alike_without_norms(captured, plain)
    assert notes(captured).startswith(f"the preparation is not captured as a CUDA graph: {reason}")
    assert notes(captured).count("\n") == 1 and not hook.steps.reason
    assert sum(one.replays for one in hook.steps.known.values()) > 30


class Stop(Hook):
    """Stops the run after a step."""

    def after_step(self, trainer: Trainer) -> None:
        if trainer.progress.step == 17:
            (trainer.run.path / "stop").touch()


def test_a_run_goes_on_with_the_random_numbers_of_its_next_step(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LossLog, "due", property(lambda self: True))
        trained(tmp_path / "captured", E, Capture(), Stop())
    (tmp_path / "captured" / "stop").unlink()
    assert len(losses(tmp_path / "captured")) == 17, "in the middle of an epoch and of the rows that are copied at once"
    hook = Capture()
    train_rank(0, 1, E, tmp_path / "captured", hooks=[hook])
    alike_without_norms(Run(tmp_path / "captured"), trained(tmp_path / "plain", replace(E, graph="off")))
    assert sum(one.replays for one in hook.steps.known.values()) == 2 * 22 - 17 - PLAINLY


def rank_of_two(rank: int, world: int, e: Experiment, run: Path, resident: int) -> tuple[bool, int]:
    """Train with a given number of ranks whose images are on their device; return whether the preparation is captured,
    and the number of replays."""
    from helpers.graphs import Capture

    (run / "logs").mkdir(exist_ok=True)
    hook = Capture(resident=rank < resident)
    train_rank(rank, world, e, run, hooks=[hook])
    return hook.steps.loader.records, sum(one.replays for one in hook.steps.known.values())


@pytest.mark.parametrize("resident", [2, 1])
def test_ranks_capture_their_preparations_together(ranks: Ranks, tmp_path: Path, resident: int) -> None:
    e = on_workers(replace(E, model=BASE.model, parallel=DDP(reduction="torch"), epochs=1), 2)
    captured, plain = new_run(tmp_path / "captured", e), new_run(tmp_path / "plain", replace(e, graph="off"))
    assert ranks.run(2, rank_of_two, e, captured, resident) == [(resident == 2, 22 - PLAINLY)] * 2
    ranks.run(2, train_rank, replace(e, graph="off"), plain)
    alike_without_norms(Run(captured), Run(plain))
    file = captured / "logs" / "notes.log"
    noted = file.read_text() if file.is_file() else ""
    assert noted.count("\n") == (resident < 2) and ("not in the GPU's memory" in noted) == (resident < 2)


@pytest.mark.parametrize("augment", [Augment(), E.data.augment, Augment(crop="random_resized", mixup=0.4, cutmix=1.0)])
def test_a_step_launches_two_graphs_and_at_most_three_operations(
    tmp_path: Path, augment: Augment, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[list[str]] = []

    class Each(Hook):
        def start(self, trainer: Any) -> None:
            self.batches = trainer.batches
            trainer.batches = self.counted

        def counted(self) -> Any:
            coming = self.batches()
            for _ in range(COUNTED):
                yield next(coming)
            Silent.on = False
            while True:
                with Launches() as launches:
                    one = next(coming)
                    if one.size < E.batch_size:
                        break
                    yield one  # the trainer's step follows
                found.append(launches.found)
            Silent.on = True
            yield one

    monkeypatch.setattr(LossLog, "due", False)
    e = replace(on(augment), epochs=1)
    trained(tmp_path / "run", e, Capture(Silent), Each())
    assert len(found) == 22 - COUNTED and max(map(len, found)) == 3, "the rows, the loss, and the learning rate"


def test_a_captured_preparation_is_four_kernels(tmp_path: Path) -> None:
    """Images and labels are gathered, and images normalised."""
    hook = Capture()
    trained(tmp_path / "run", replace(on(Augment()), epochs=1), hook)
    (found,) = hook.steps.known.values()
    assert isinstance(found.graph, Replayed)
    names = [str(call[0]._overloadpacket) for call in found.graph.calls]
    passed = names[: names.index("aten.addmm")]
    no_work = {f"aten.{name}" for name in ("view", "split_with_sizes", "select", "detach", "empty", "t")}
    kernels = [name for name in passed if name not in no_work]
    assert kernels == ["aten.index_select", "aten.index_select", "aten.sub", "aten.mul_"]
