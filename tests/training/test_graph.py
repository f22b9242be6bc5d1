"""The captured pass on a CPU, with a graph that does recorded work again and writes to the same memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.cut_runs import BASE as DROPOUT
from helpers.graphs import Capture, Replayed, Slow
from helpers.ranks import losses, new_run
from helpers.strategies import BASE, Eventful
from torch import nn

from raytrain import (
    DDP,
    FSDP,
    MLP,
    Augment,
    Deterministic,
    Digits,
    Experiment,
    GradientNorm,
    Hook,
    Model,
    ModelParallel,
    Parallel,
    Run,
    Scaling,
    UserError,
)
from raytrain.data.checks import checked_read
from raytrain.data.reader import Resident
from raytrain.parallel.strategy import RankContext
from raytrain.training import graph
from raytrain.training.trainer import Trainer

E = replace(BASE, micro_batch_size=None, ema_decay=0.9, hooks=(GradientNorm(),))


def trained(folder: Path, e: Experiment, hook: Capture | None = None, *more: Hook) -> Run:
    indices = e.data.index()
    readers = {
        split: Resident(checked_read(e.data, indices[split], np.arange(len(indices[split]))))
        for split in ("train", "val")
    }
    run, cpu = new_run(folder, e), RankContext(0, 1, torch.device("cpu"))
    (run / "logs").mkdir()
    Trainer(e, run, indices, readers, None, cpu, time.time(), hooks=[hook or Capture(None), *more]).fit()
    return Run(run)


def alike(one: Run, other: Run) -> None:
    np.testing.assert_array_equal(losses(one.path), losses(other.path))
    assert one.metrics("step")["gradient_norm"].equals(other.metrics("step")["gradient_norm"])
    for mine, theirs in zip(
        one.model("last").state_dict().values(), other.model("last").state_dict().values(), strict=True
    ):
        assert torch.equal(mine, theirs)


def notes(run: Run) -> str:
    file = run.path / "logs" / "notes.log"
    return file.read_text() if file.is_file() else ""


@pytest.mark.parametrize(
    "e",
    [
        E,
        replace(E, precision="bf16"),
        replace(E, precision="fp16"),
        replace(DROPOUT, micro_batch_size=None, hooks=(GradientNorm(),)),
        replace(E, data=Digits(augment=Augment(mixup=0.2, flip=0.5)), on_nonfinite="skip"),
        replace(E, model=MLP(hidden=(32,)), freeze=("*.0.*",), clip_norm=None),
    ],
    ids=["batch norm and ema", "bf16", "fp16", "dropout", "mixup", "frozen"],
)
def test_captured_passes_train_as_plain_ones(tmp_path: Path, e: Experiment) -> None:
    hook = Capture()
    captured, plain = trained(tmp_path / "captured", replace(e, graph="on"), hook), trained(tmp_path / "plain", e)
    alike(captured, plain)
    (found,) = hook.steps.known.values()
    steps = len(losses(plain.path))
    short = -(-1437 // e.batch_size) * e.batch_size != 1437
    assert found.replays == steps - 3 - int(e.epochs) * short, "all but the first three and the short last batches"
    assert found.update is not None and found.update.replays == found.replays - 3, "all but the compared passes and one"
    assert not notes(captured)


def test_a_task_that_reads_ids_is_not_captured(tmp_path: Path) -> None:
    e = replace(E, task=Eventful(factor=2.0))
    hook = Capture()
    captured, plain = trained(tmp_path / "captured", replace(e, graph="on"), hook), trained(tmp_path / "plain", e)
    alike(captured, plain)
    assert hook.steps.reason == "the task reads batch.ids" and hook.steps.reason in notes(captured)


@dataclass(frozen=True)
class Counting(Model):
    """A model whose answers depend on how often it was called, which a graph would not know."""

    def build(self, sample: tuple[int, ...], classes: int) -> nn.Module:
        class Counted(nn.Linear):
            calls = 0

            def forward(self, input: torch.Tensor) -> torch.Tensor:
                Counted.calls += 1
                return super().forward(input.flatten(1)) * (1 + 0.5 * Counted.calls)

        return Counted(64, classes)


def test_a_pass_that_python_changes_is_not_captured(tmp_path: Path) -> None:
    hook = Capture()
    run = trained(tmp_path / "run", replace(E, model=Counting(), graph="on", ema_decay=None, epochs=1), hook)
    assert hook.steps.reason == "a replay gives another loss or other gradients"
    assert hook.steps.reason in notes(run) and not hook.steps.known


class First(Hook):
    """Logs a view of a gradient, whose memory the next replay writes to."""

    def after_backward(self, trainer: Any) -> dict[str, Any]:
        return {"first": trainer.parameters[0].grad.view(-1)[0]}


def test_a_column_has_the_value_of_its_step(tmp_path: Path) -> None:
    e = replace(E, epochs=1)
    captured, plain = (trained(tmp_path / name, e, hook, First()) for name, hook in (("a", Capture()), ("b", None)))
    assert captured.metrics("step")["first"].equals(plain.metrics("step")["first"])
    assert len(set(plain.metrics("step")["first"].to_pylist())) > 10


FULL = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


def is_update(one: Replayed) -> bool:
    return any("fused" in str(call[0]) for call in one.calls)


class Full(Replayed):
    """No memory holds the pass."""

    def capture(self, work: Callable[[], list[torch.Tensor]]) -> list[torch.Tensor]:
        super().capture(work)
        raise FULL


class FullUpdate(Replayed):
    """No memory holds the update."""

    def capture(self, work: Callable[[], list[torch.Tensor]]) -> list[torch.Tensor]:
        found = super().capture(work)
        if is_update(self):
            raise FULL
        return found


class FullLater(Replayed):
    """No memory holds what an update is compared with."""

    def replay(self) -> None:
        super().replay()
        if is_update(self):
            raise FULL


@pytest.mark.parametrize(
    ("kind", "what"),
    [(Full, "pass"), (Replayed, "pass"), (FullUpdate, "update"), (FullLater, "update")],
    ids=["capture", "compare", "capture an update", "compare an update"],
)
def test_a_run_that_memory_holds_without_graphs_goes_on_without(
    tmp_path: Path, kind: type[Replayed], what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reserve(size: int, device: torch.device) -> None:
        raise FULL

    if kind is Replayed:
        monkeypatch.setattr(graph, "reserve", reserve)
    hook, e = Capture(kind), replace(E, epochs=1)
    captured = trained(tmp_path / "captured", replace(e, graph="on"), hook)
    alike(captured, trained(tmp_path / "plain", e))
    assert notes(captured) == f"the {what} is not captured as a CUDA graph: {FULL}\n"
    assert bool(hook.steps.known) == (what == "update")
    assert not any(found.update for found in hook.steps.known.values()), "nothing holds on to the memory"


class Rounded(Replayed):
    """Gives other gradients, as kernels do that add in another order."""

    factor, noise = 1.0, 0.0

    def replay(self) -> None:
        super().replay()
        if not is_update(self):
            gradients = self.tensors[1:]
            most = max(float(each.abs().max()) for each in gradients if each.is_floating_point())
            for each in gradients:
                each.mul_(self.factor).add_(self.noise * most)


@pytest.mark.parametrize(
    ("precision", "factor", "same"),
    [("fp32", 1 + 2**-14, True), ("fp32", 1 + 2**-7, False), ("bf16", 1 + 2**-7, True), ("bf16", 1.1, False)],
)
def test_gradients_may_differ_by_the_rounding_of_the_precision(
    tmp_path: Path, precision: Any, factor: float, same: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Rounded, "factor", factor)
    hook = Capture(Rounded, resident=False)
    trained(tmp_path / "run", replace(E, precision=precision, graph="on", epochs=1), hook)
    assert hook.steps.reason == ("" if same else "a replay gives another loss or other gradients")


@dataclass(frozen=True)
class Biased(Model):
    """A model with a bias before BatchNorm, whose gradient would be 0 without rounding."""

    def build(self, sample: tuple[int, ...], classes: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, classes))


def test_gradients_that_are_rounding_alone_are_not_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Rounded, "noise", 1e-6)
    hook = Capture(Rounded, resident=False)
    trained(tmp_path / "run", replace(E, model=Biased(), graph="on", epochs=1), hook)
    assert not hook.steps.reason


@pytest.mark.parametrize("kind", [Replayed, Slow])
def test_auto_times_both_ways_and_keeps_the_faster(
    tmp_path: Path, kind: type[Replayed], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph, "_TIMED", 4)
    hook = Capture(kind)
    alike(trained(tmp_path / "auto", replace(E, graph="auto"), hook), trained(tmp_path / "plain", E))
    assert [len(seconds) for seconds in hook.steps.seconds.values()] == [4, 4] and not hook.steps.undecided
    if kind is Slow:
        assert "ms as a graph" in hook.steps.reason


@pytest.mark.parametrize(
    ("gpus", "workers", "fields", "reason"),
    [
        (0.0, 1, {}, "the workers are on CPUs"),
        (1.0, 2, {"parallel": DDP(sync_batchnorm=True)}, "workers exchange BatchNorm's statistics"),
        (1.0, 2, {"parallel": DDP(find_unused_parameters=True)}, "may change from step to step"),
        (1.0, 2, {"parallel": FSDP()}, "FSDP exchanges tensors of 2 workers"),
        (1.0, 1, {"parallel": Deterministic()}, "in 4 shards"),
        (1.0, 1, {"parallel": ModelParallel()}, "several devices"),
        (2.0, 1, {}, "the model is on several GPUs"),
        (1.0, 1, {"micro_batch_size": 8}, "a step has several micro-batches"),
    ],
)
def test_what_cannot_be_captured_is_refused(gpus: float, workers: int, fields: dict[str, Any], reason: str) -> None:
    scaling = Scaling(workers=workers, gpus_per_worker=gpus)
    (note,) = graph.check(replace(E, graph="auto", scaling=scaling, **fields))
    assert reason in note
    with pytest.raises(UserError, match=reason):
        graph.check(replace(E, graph="on", scaling=scaling, **fields))


@pytest.mark.parametrize(("workers", "parallel"), [(1, DDP(sync_batchnorm=True)), (2, DDP()), (1, FSDP())])
def test_a_graph_of_the_right_kind_is_accepted(workers: int, parallel: Parallel) -> None:
    e = replace(E, graph="on", parallel=parallel, scaling=Scaling(workers=workers, gpus_per_worker=1.0))
    assert graph.check(e) == []
