"""The hooks of the package, against plain PyTorch, on ranks and strategies, and after kills."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers import cut_runs, strategies
from helpers.cut_runs import cut_rank, rows, weights
from helpers.ranks import Ranks, new_run, on_workers, reference, train_rank
from torch import nn

from raytrain import (
    CNN,
    DDP,
    FSDP,
    SGD,
    Digits,
    Experiment,
    GradientNorm,
    Hook,
    LearningRates,
    Parallel,
    Pipeline,
    Run,
    StopOnDivergence,
    TensorParallel,
    UpdateRatio,
    UserError,
)
from raytrain.checkpoint import layout
from raytrain.parallel.strategy import Strategy
from raytrain.training.trainer import Trainer

ALL = (GradientNorm(), UpdateRatio(every=3), LearningRates(), StopOnDivergence(factor=1e6))
PLAIN = replace(strategies.SHORT, clip_norm=None, epochs=1, hooks=ALL)
CUT = replace(cut_runs.BASE, parallel=DDP(reduction="torch"))
WAYS: dict[str, tuple[Parallel, int]] = {
    "one rank": (DDP(), 1),
    "ddp": (DDP(), 2),
    "fsdp": (FSDP(block_parameters=500), 2),
    "pipeline": (Pipeline(), 2),
    "tensor": (TensorParallel(), 2),
}


def steps_of(run: Path) -> list[dict[str, Any]]:
    return [row for row in rows(run) if row["kind"] == "step"]


class Norms:
    """What the hooks shall find, of a plain loop's model after each step."""

    def __init__(self) -> None:
        self.before: list[torch.Tensor] = []
        self.gradients: list[float] = []
        self.ratios: list[float] = []

    def __call__(self, model: nn.Module) -> None:
        parameters = list(model.parameters())
        self.gradients.append(nn.utils.clip_grad_norm_(parameters, math.inf).item())
        after = [parameter.detach().clone() for parameter in parameters]
        if self.before:
            change = torch.cat([(new - old).flatten() for new, old in zip(after, self.before, strict=True)])
            self.ratios.append((change.norm() / torch.cat([old.flatten() for old in self.before]).norm()).item())
        self.before = after


@pytest.mark.parametrize("way", WAYS)
def test_norms_equal_those_of_a_plain_loop(ranks: Ranks, tmp_path: Path, way: str) -> None:
    parallel, world = WAYS[way]
    e = on_workers(replace(PLAIN, parallel=parallel), world)
    run = new_run(tmp_path / "run", e)
    ranks.run(world, train_rank, e, run)
    found, expected = steps_of(run), Norms()
    reference(e, len(found), each=expected)
    assert [row["gradient_norm"] for row in found] == pytest.approx(expected.gradients, rel=1e-4)
    third = {row["step"]: row["update_ratio"] for row in found if "update_ratio" in row}
    assert list(third) == list(range(3, len(found) + 1, 3))
    assert list(third.values()) == pytest.approx(expected.ratios[1::3], rel=1e-4)


def clipped_rank(rank: int, world: int, e: Experiment, run: Path) -> list[float]:
    """The norms that a rank's clipping finds."""
    clip, found = Strategy.clip, []

    def clip_and_note(self: Strategy, parameters: list[nn.Parameter], most: float) -> torch.Tensor:
        found.append(clip(self, parameters, most))
        return found[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Strategy, "clip", clip_and_note)
        train_rank(rank, world, e, run)
    return [norm.item() for norm in found]


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_the_gradient_norm_is_what_clipping_finds(ranks: Ranks, tmp_path: Path, precision: str, world: int) -> None:
    """Unscaled in fp16, and without the layers that are not trained yet."""
    e = replace(CUT, precision=precision, clip_norm=0.5, unfreeze=((1, "0.*"),), hooks=(GradientNorm(),))
    run = new_run(tmp_path / "run", on_workers(e, world))
    found = ranks.run(world, clipped_rank, on_workers(e, world), run)
    norms = [row["gradient_norm"] for row in steps_of(run)]
    assert len(norms) > 40 and max(norms) < 100
    for clipped in found:
        expected = [norm if math.isfinite(norm) else None for norm in clipped]
        assert norms == [norm if norm is None else pytest.approx(norm, rel=1e-5) for norm in expected]


def test_hooks_that_only_look_change_no_bit(ranks: Ranks, tmp_path: Path) -> None:
    plain, watched = new_run(tmp_path / "plain", CUT), new_run(tmp_path / "watched", replace(CUT, hooks=ALL))
    ranks.run(1, train_rank, CUT, plain)
    ranks.run(1, train_rank, replace(CUT, hooks=ALL), watched)
    assert weights(plain) == weights(watched)
    own = ("gradient_norm", "update_ratio")
    assert rows(plain) == [{k: v for k, v in row.items() if k not in own} for row in rows(watched)]


def test_each_parameter_group_has_its_learning_rate(ranks: Ranks, tmp_path: Path) -> None:
    one = replace(PLAIN, hooks=(LearningRates(),))
    two = replace(one, optimizer=SGD(lr=0.05, backbone_lr_factor=0.1))
    for name, e in (("one", one), ("two", two)):
        ranks.run(1, train_rank, e, new_run(tmp_path / name, e))
    assert not [name for row in steps_of(tmp_path / "one") for name in row if name.startswith("lr_")]
    found = steps_of(tmp_path / "two")
    assert len({row["lr"] for row in found}) > 5, "the schedule changes it"
    assert all(row["lr_0"] == row["lr"] * 0.1 and row["lr_1"] == row["lr"] for row in found)


# StopOnDivergence


@dataclass(frozen=True)
class Spoil(Hook):
    """Multiplies the weights after one step, on all ranks alike."""

    at: int = 12

    def after_step(self, trainer: Trainer) -> None:
        if trainer.progress.step == self.at:
            for parameter in trainer.parameters:
                parameter.detach().mul_(30.0)


def expected_state(losses: Sequence[float | None], factor: float, steps: int) -> dict[str, Any]:
    """The state after losses, by its definition."""
    seen: list[float] = []
    smoothed = best = None
    above = number = 0
    for loss in losses:
        number += 1
        above = above + 1 if loss is None or (best is not None and loss > factor * best) else 0
        if loss is not None:
            seen.append(loss)
            smoothed = loss if smoothed is None else smoothed + (loss - smoothed) / min(len(seen), steps)
            best = smoothed if best is None else min(best, smoothed)
        if above == steps:
            break
    found = {"seen": len(seen), "smoothed": smoothed, "best": best, "above": above, "step": number}
    return found | {"first": seen[0], "gains": {}, "fallen": 0}


def taken(hook: StopOnDivergence, losses: Sequence[float | None], at_once: int) -> list[str]:
    """The reasons to end that a hook gives, which sees some losses at once."""
    ends: list[str] = []
    trainer = SimpleNamespace(timing=SimpleNamespace(end=ends.append))
    hook.start(trainer)
    table: list[Mapping[str, Any]] = [{"step": step, "loss": loss} for step, loss in enumerate(losses, 1)]
    for start in range(0, len(table), at_once):
        hook.after_losses(trainer, table[start : start + at_once])
    return ends


@pytest.mark.parametrize("at_once", [1, 3, 100])
def test_divergence_counts_steps_in_a_row_whenever_losses_are_known(at_once: int) -> None:
    falling = [2.0, 1.5, 1.0, 0.9, 0.8]
    losses = [*falling, 5.0, 5.0, 0.7, None, 5.0, 9.0, 0.1, 0.1]
    hook = StopOnDivergence(factor=2.0, steps=3)
    assert not taken(hook, losses[:10], at_once) and hook.state["above"] == 2
    hook = StopOnDivergence(factor=2.0, steps=3)
    ends = taken(hook, losses, at_once)
    assert hook.state == expected_state(losses, 2.0, 3) and hook.state["step"] == 11
    best = min(2.0, 1.75, 1.5, 1.3, 1.3 - 0.5 / 3)
    assert hook.state["best"] == pytest.approx(best)
    assert set(ends) == {f"the loss diverged: not finite or above 2 times its best, {best:.4g}, for 3 steps up to 11"}


def test_divergence_without_any_finite_loss_and_wrong_values() -> None:
    assert taken(StopOnDivergence(steps=2), [None, None], 2) == ["the loss diverged: not finite, for 2 steps up to 2"]
    for make in (
        lambda: StopOnDivergence(factor=1.0),
        lambda: StopOnDivergence(steps=0),
        lambda: GradientNorm(every=0),
        lambda: UpdateRatio(every=0),
    ):
        with pytest.raises(UserError):
            make()


def ended(run: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """A run's summary, and its newest checkpoint's state."""
    newest = layout.newest(run / "checkpoints")
    assert newest is not None
    summary = json.loads((run / "summary.json").read_text())
    assert Run(run).summary == summary
    return summary, layout.load_state(newest)


@pytest.mark.parametrize("world", [1, 2])
def test_a_run_that_diverged_ends_with_a_checkpoint_also_after_kills(ranks: Ranks, tmp_path: Path, world: int) -> None:
    hooks = (Spoil(), StopOnDivergence(factor=3.0, steps=6), GradientNorm())
    e = on_workers(replace(CUT, model=CNN(channels=(8, 16)), hooks=hooks, epochs=40), world)
    whole, cut = new_run(tmp_path / "whole", e), new_run(tmp_path / "cut", e)
    assert ranks.run(world, train_rank, e, whole) == ["completed"] * world
    for call in (8, 9):
        ranks.run(world, cut_rank, e, cut, call)
    assert ranks.run(world, train_rank, e, cut) == ["completed"] * world
    summary, state = ended(whole)
    assert summary["status"] == "completed" and summary["stopped_early"] and summary["steps"] < 40 * 23
    hook = state["hooks"][1]
    assert hook == expected_state([row["loss"] for row in steps_of(whole)], 3.0, 6) and hook["step"] > 12
    assert summary["stopped_because"].endswith(f"for 6 steps up to {hook['step']}")
    assert state["progress"]["step"] == state["progress"]["validated"] == summary["steps"] >= hook["step"]
    assert Run(whole).model("last")
    again, state_again = ended(cut)
    assert state_again["hooks"][1] == hook and again["stopped_because"] == summary["stopped_because"]
    assert steps_of(cut)[: hook["step"]] == steps_of(whole)[: hook["step"]]
    # The driver was killed before it read the summary: the run ends again, where it was.
    (whole / "summary.json").unlink()
    assert ranks.run(world, train_rank, e, whole) == ["completed"] * world
    once_more = ended(whole)[0]
    assert once_more["stopped_because"] == summary["stopped_because"] and once_more["steps"] == summary["steps"]


FLOOR = {"val_accuracy": 0.1, "val_loss": 2.3, "val_top5_accuracy": 0.5}


def chance_ends(seen: Sequence[tuple[float, float, float]], floor: dict[str, float] | None, **fields: Any) -> int:
    """The number of validations after which a run ends, 0 for none; each has the training loss before it, and then its
    accuracy and loss."""
    ends: list[str] = []
    task = SimpleNamespace(declared=lambda: {"val_accuracy": "max", "val_top5_accuracy": "max", "val_loss": "min"})
    experiment = SimpleNamespace(task=task)
    trainer = SimpleNamespace(timing=SimpleNamespace(end=ends.append), baseline=floor, experiment=experiment)
    hook = StopOnDivergence(steps=10, **fields)
    hook.start(trainer)
    for number, (loss, accuracy, val_loss) in enumerate(seen, 1):
        losses = [2.35, *19 * [loss]] if number == 1 else 20 * [loss]
        hook.after_losses(trainer, [{"step": 20 * number - 19 + step, "loss": one} for step, one in enumerate(losses)])
        row = {"step": 20 * number, "val_accuracy": accuracy, "val_loss": val_loss, "val_top5_accuracy": 0.5}
        (hook.after_epoch if number % 2 else hook.after_validation)(trainer, row)
        if ends:
            assert "fell back to chance" in ends[0] and ends[0].endswith(f"up to step {20 * number}")
            return number
    return 0


def test_a_fall_back_to_chance_ends_a_run_that_had_learnt() -> None:
    learnt, chance = (1.6, 0.5, 1.5), (2.31, 0.11, 2.32)  # the loss rises by less than a factor of 2
    assert chance_ends([learnt, *3 * [chance]], FLOOR) == 4
    assert chance_ends([learnt, chance, chance, learnt, *4 * [chance]], FLOOR) == 7  # in a row
    assert chance_ends([learnt, chance], FLOOR, validations=1) == 2


@pytest.mark.parametrize(
    ("validations", "floor"),
    [
        (9 * [(2.31, 0.1, 2.31)], FLOOR),  # never learnt
        ([(1.6, 0.5, 1.5), *9 * [(1.7, 0.48, 4.0)]], FLOOR),  # overfits: the loss is worse, and the accuracy is not
        ([(1.6, 0.5, 1.5), *9 * [(1.5, 0.1, 2.5)]], FLOOR),  # only the validation fails
        ([(1.6, 0.5, 1.5), (2.3, 0.1, 2.3), (2.3, 0.1, 2.3), *4 * [(2.2, 0.3, 1.9)]], FLOOR),  # recovers
        ([(1.6, 0.5, 1.5), *9 * [(2.3, 0.1, 2.3)]], None),  # nothing to compare with
        ([(1.6, 0.5, 1.5), *9 * [(2.3, 0.1, 2.3)]], {"val_accuracy": 0.1}),
    ],
)
def test_a_run_that_has_not_unlearnt_goes_on(
    validations: list[tuple[float, float, float]], floor: dict[str, float] | None
) -> None:
    assert chance_ends(validations, floor) == 0
    assert chance_ends([(1.6, 0.5, 1.5), *9 * [(2.3, 0.1, 2.3)]], FLOOR, validations=0) == 0


@dataclass(frozen=True)
class Unlearn(Hook):
    """Sets the weights to zero from the third epoch on: the model answers all samples alike."""

    def start(self, trainer: Trainer) -> None:
        trainer.baseline = FLOOR

    def after_step(self, trainer: Trainer) -> None:
        if trainer.progress.epoch >= 2:
            for parameter in trainer.parameters:
                parameter.detach().zero_()


def test_a_run_that_unlearns_ends_also_after_kills(ranks: Ranks, tmp_path: Path) -> None:
    hooks = (Unlearn(), StopOnDivergence(factor=100.0, steps=20))
    e = replace(CUT, model=CNN(channels=(8, 16)), data=Digits(), hooks=hooks, epochs=8)
    whole, cut = new_run(tmp_path / "whole", e), new_run(tmp_path / "cut", e)
    assert ranks.run(1, train_rank, e, whole) == ["completed"]
    ranks.run(1, cut_rank, e, cut, 9)
    assert ranks.run(1, train_rank, e, cut) == ["completed"]
    summary, state = ended(whole)
    assert summary["stopped_early"] and "fell back to chance" in summary["stopped_because"] and summary["epochs"] == 5
    again, state_again = ended(cut)
    assert state_again["hooks"] == state["hooks"] and again["stopped_because"] == summary["stopped_because"]
