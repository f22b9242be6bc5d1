"""Updates that a run captures besides its passes, on a CPU: they have the bits of plain ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.graphs import Capture, Replayed
from helpers.strategies import BASE
from test_graph import alike, notes, trained
from torch.utils._python_dispatch import TorchDispatchMode

from raytrain import MLP, SGD, AdamW, Digits, Experiment, GradientNorm, Hook, TorchOptimizer
from raytrain.training.captured_update import Update

E = replace(
    BASE,
    model=MLP(hidden=(16, 16)),
    data=Digits(),
    micro_batch_size=None,
    hooks=(GradientNorm(),),
    epochs=1,
    graph="on",
)
STEPS = 22
"""Full batches of an epoch: three are plain, the passes of two are compared, one makes the optimizer's state."""


@dataclass(frozen=True)
class Spoil(Hook):
    """Makes the gradients of some steps infinite, among them one whose update is compared."""

    def after_backward(self, trainer: Any) -> None:
        if trainer.progress.step in (1, 7, 10, 11):
            trainer.parameters[0].grad.fill_(float("inf"))


@pytest.mark.parametrize(
    "e",
    [
        replace(E, optimizer=SGD(lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01, layer_decay=0.7)),
        replace(E, optimizer=AdamW(lr=0.01), ema_decay=0.9, clip_norm=None),
        replace(E, optimizer=AdamW(lr=0.01), on_nonfinite="skip", hooks=(Spoil(), GradientNorm()), ema_decay=0.9),
        replace(E, precision="fp16", hooks=(Spoil(), GradientNorm())),
        replace(E, precision="fp16", optimizer=AdamW(lr=0.01), clip_norm=None, hooks=(Spoil(), GradientNorm())),
    ],
    ids=["groups", "adam and ema", "skip", "fp16", "fp16, adam, not clipped"],
)
def test_captured_updates_train_as_plain_ones(tmp_path: Path, e: Experiment) -> None:
    hook = Capture()
    captured, plain = trained(tmp_path / "captured", e, hook), trained(tmp_path / "plain", e)
    alike(captured, plain)
    assert captured.metrics("step").to_pylist() == plain.metrics("step").to_pylist(), "also what was skipped"
    (found,) = hook.steps.known.values()
    assert found.update is not None and found.update.replays == STEPS - 6 and not notes(captured)
    skipped = [row["step"] for row in plain.metrics("step").to_pylist() if row.get("skipped")]
    assert skipped == [2, 8, 11, 12] * (len(e.hooks) > 1)


@dataclass(frozen=True)
class Steps(Hook):
    """Calls a function with the trainer in each step, before the update."""

    call: Callable[[Any], None] = print

    def after_backward(self, trainer: Any) -> None:
        self.call(trainer)


def shrink(trainer: Any) -> None:
    """Makes gradients of its own from the tenth step on."""
    if trainer.progress.step >= 10:
        for parameter in trainer.parameters:
            parameter.grad = parameter.grad * 0.5


def momentum(trainer: Any) -> None:
    trainer.optimizer.param_groups[0]["momentum"] = 0.9 if trainer.progress.step < 12 else 0.5


@pytest.mark.parametrize(
    ("call", "replays", "note"), [(shrink, 4, ""), (momentum, 6, "a hook changes the optimizer's settings")]
)
def test_what_a_hook_changes_is_not_overlooked(
    tmp_path: Path, call: Callable[[Any], None], replays: int, note: str
) -> None:
    hook = Capture()
    captured = trained(tmp_path / "captured", E, hook, Steps(call))
    alike(captured, trained(tmp_path / "plain", E, None, Steps(call)))
    (found,) = hook.steps.known.values()
    assert found.update is not None and found.update.replays == replays
    assert note in notes(captured) and bool(note) == bool(notes(captured))


def test_parameters_that_wait_are_updated_when_their_epoch_comes(tmp_path: Path) -> None:
    e, hook = replace(E, optimizer=AdamW(lr=0.01), unfreeze_epoch=1, epochs=2), Capture()
    alike(trained(tmp_path / "captured", e, hook), trained(tmp_path / "plain", e))
    (found,) = hook.steps.known.values()
    assert found.update is not None and found.update.replays == STEPS - 1, "one step makes Adam's state"


class Refused(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "fused_sgd" in str(func):
            raise RuntimeError("operation not permitted\nwhen stream is capturing")
        return func(*args, **(kwargs or {}))


class Broken(Replayed):
    """Cannot record an update, and says so in the middle of it."""

    def capture(self, work: Callable[[], list[torch.Tensor]]) -> list[torch.Tensor]:
        with Refused():
            return super().capture(work)


class Halved(Replayed):
    """Records updates that are half as large as the last replay's rates say."""

    def replay(self) -> None:
        for _, _, kwargs, _ in self.calls:
            if "lr" in kwargs:
                kwargs["lr"] = kwargs["lr"] * 0.5
        super().replay()


@pytest.mark.parametrize(
    ("e", "kind", "reason"),
    [
        (replace(E, precision="fp16"), Broken, "operation not permitted when stream is capturing"),
        (replace(E, precision="fp16", clip_norm=None), Broken, "operation not permitted when stream is capturing"),
        (E, Halved, "a replay changes the weights in another way"),
        (replace(E, optimizer=TorchOptimizer(torch.optim.RMSprop, lr=0.01)), Replayed, "RMSprop is not PyTorch's SGD"),
        (replace(E, optimizer=TorchOptimizer(torch.optim.Adam, lr=0.01)), Replayed, "Adam is not fused"),
    ],
    ids=["broken", "broken, not clipped", "halved", "RMSprop", "not fused"],
)
def test_an_update_that_cannot_be_captured_is_plain(
    tmp_path: Path, e: Experiment, kind: type[Replayed], reason: str
) -> None:
    hook = Capture(kind)
    captured = trained(tmp_path / "captured", e, hook)
    alike(captured, trained(tmp_path / "plain", e))
    assert notes(captured) == f"the update is not captured as a CUDA graph: {hook.steps.reason_of_update}\n"
    assert reason in hook.steps.reason_of_update and not hook.steps.reason


class Launches(TorchDispatchMode):
    """Counts operators that a step launches outside of its graphs, and refuses those for which the host would wait."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert not str(func).startswith(("aten._local_scalar_dense", "aten.is_nonzero", "aten.item"))
        if not func.is_view:
            self.found.append(str(func))
        return func(*args, **(kwargs or {}))


class Silent(Replayed):
    """A graph that computes nothing: what else a step launches is counted."""

    def replay(self) -> None:
        if Silent.on:
            super().replay()

    on = True


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_captured_step_launches_little_else(tmp_path: Path, precision: Any) -> None:
    found: list[list[str]] = []

    class Count(Hook):
        def start(self, trainer: Any) -> None:
            self.step = trainer.step
            trainer.step = lambda batch: self.counted(trainer, batch)

        def counted(self, trainer: Any, batch: Any) -> Any:
            if not 15 <= trainer.progress.step < STEPS:
                return self.step(batch)
            Silent.on = False
            with Launches() as launches:
                step = self.step(batch)
            Silent.on = True
            found.append(launches.found)
            return step

    e = replace(E, precision=precision, hooks=())
    trained(tmp_path / "run", e, Capture(Silent), Count())
    assert len(found) == STEPS - 15 and max(map(len, found)) <= 4, "the batch, the loss, the rate, whether fp16 updates"


def test_settings_are_the_optimizer_s_own_again_after_a_capture(tmp_path: Path) -> None:
    kept: list[dict[str, Any]] = []

    def look(trainer: Any) -> None:
        kept.extend({k: v for k, v in group.items() if k != "params"} for group in trainer.optimizer.param_groups)

    hook = Capture()
    trained(tmp_path / "run", replace(E, optimizer=AdamW(lr=0.01)), hook, Steps(look))
    (found,) = hook.steps.known.values()
    assert isinstance(found.update, Update) and found.update.replays
    assert all(isinstance(group["lr"], float) and group["capturable"] is False for group in kept)
