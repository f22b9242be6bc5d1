"""Hooks: their columns in metrics.jsonl, their state in checkpoints, and the mistakes that are refused."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.cut_runs import BASE, cut_rank, rows, weights
from helpers.ranks import Ranks, new_run, on_workers, train_rank

from raytrain import DDP, SGD, Experiment, Hook, StopOnDivergence, UserError, config, load_experiment
from raytrain.checkpoint import layout
from raytrain.training.hooks import Hooks
from raytrain.training.trainer import Trainer
from raytrain.user_code.parts import check_called


@dataclass(frozen=True)
class GradientNorm(Hook):
    """The norm of each gradient, its mean over an epoch, and the steps since the run began."""

    scale: float = 1.0

    def start(self, trainer: Trainer) -> None:
        self.state.setdefault("steps", 0)
        self.state.setdefault("norms", [])

    def after_backward(self, trainer: Trainer) -> Mapping[str, Any]:
        norm = trainer.strategy.clip(trainer.parameters, math.inf) * self.scale
        self.state["norms"].append(norm.item())
        return {"gradient_norm": norm}

    def after_step(self, trainer: Trainer) -> Mapping[str, Any]:
        self.state["steps"] += 1
        return {"hook_steps": self.state["steps"], "diverged": math.inf}

    def after_epoch(self, trainer: Trainer, row: Mapping[str, Any]) -> Mapping[str, Any]:
        norms = self.state["norms"]
        self.state["norms"] = []
        return {"mean_norm": sum(norms) / len(norms), "norms": len(norms)}


@dataclass(frozen=True)
class Decay(Hook):
    """Changes the training: it shrinks each gradient by a factor that falls from step to step."""

    def after_backward(self, trainer: Trainer) -> None:
        factor = self.state.get("factor", 1.0)
        for parameter in trainer.parameters:
            assert parameter.grad is not None
            parameter.grad.mul_(factor)
        self.state["factor"] = factor * 0.99


@dataclass(frozen=True)
class Returns(Hook):
    """Returns a column after each step, and keeps a value."""

    column: str = "mine"
    kind: str = "number"

    def after_step(self, trainer: Trainer) -> Mapping[str, Any]:
        values = {"number": 1.0, "numpy": np.float32(0.5), "vector": torch.ones(2), "list": [1]}
        return {self.column: values[self.kind]}


@dataclass(frozen=True)
class Three(Hook):
    """Returns no columns."""

    def after_step(self, trainer: Trainer) -> Any:
        return 3


@dataclass(frozen=True)
class Keeps(Hook):
    """Keeps a value that JSON changes."""

    kind: str = "tuple"

    def after_step(self, trainer: Trainer) -> None:
        kinds = {"tuple": (1, 2), "key": {1: 2}, "infinity": math.inf, "tensor": torch.ones(1)}
        self.state["value"] = kinds[self.kind]


HOOKED = replace(BASE, optimizer=SGD(lr=0.05, momentum=0.9), parallel=DDP(reduction="torch"))


def test_hook_state_and_columns_are_bit_equal_after_kills(ranks: Ranks, tmp_path: Path) -> None:
    e = on_workers(replace(HOOKED, hooks=(GradientNorm(scale=2.0), Decay())), 2)
    whole, cut = new_run(tmp_path / "whole", e), new_run(tmp_path / "cut", e)
    ranks.run(2, train_rank, e, whole)
    for call in (13, 4, 19):
        ranks.run(2, cut_rank, e, cut, call)
    ranks.run(2, train_rank, e, cut)
    assert rows(cut) == rows(whole) and weights(cut) == weights(whole)
    steps = [row for row in rows(whole) if row["kind"] == "step"]
    assert [row["hook_steps"] for row in steps] == list(range(1, len(steps) + 1))
    assert all(row["diverged"] is None for row in steps) and len({row["gradient_norm"] for row in steps}) == len(steps)
    ends = [row for row in rows(whole) if row["kind"] == "epoch"]
    norms = [row["gradient_norm"] for row in steps if row["epoch"] == 2]
    assert ends[1]["norms"] == len(norms) and ends[1]["mean_norm"] == sum(norms) / len(norms)
    newest = layout.newest(whole / "checkpoints")
    assert newest is not None
    kept = layout.load_state(newest)
    assert kept["hooks"] == [{"steps": len(steps), "norms": []}, {"factor": pytest.approx(0.99 ** len(steps))}]
    best = json.loads((whole / "best.json").read_text())
    assert best["mean_norm"] == ends[best["epoch"] - 1]["mean_norm"]


def test_hook_that_only_looks_changes_no_bit(ranks: Ranks, tmp_path: Path) -> None:
    plain, seen = new_run(tmp_path / "plain", HOOKED), replace(HOOKED, hooks=(GradientNorm(),))
    watched = new_run(tmp_path / "watched", seen)
    ranks.run(1, train_rank, HOOKED, plain)
    ranks.run(1, train_rank, seen, watched)
    assert weights(plain) == weights(watched)
    own = ("gradient_norm", "hook_steps", "diverged", "mean_norm", "norms")
    assert rows(plain) == [{k: v for k, v in row.items() if k not in own} for row in rows(watched)]


def test_hooks_of_two_trainings_share_no_state() -> None:
    hook = GradientNorm()
    first, second = Hooks((hook,)), Hooks((hook,))
    first.load_state_dict([{"steps": 3}])
    assert first.state_dict() == [{"steps": 3}] and second.state_dict() == [{}] and hook.state == {}


def test_hooks_are_saved_with_the_experiment_and_have_paths(tmp_path: Path) -> None:
    e = replace(BASE, hooks=(GradientNorm(scale=3.0), Decay()))
    saved = config.to_dict(e)["hooks"]
    assert [one["class"].rpartition(":")[2] for one in saved] == ["GradientNorm", "Decay"]
    assert config.from_dict(Experiment, json.loads(json.dumps(config.to_dict(e))), "test") == e
    assert config.replace(e, "hooks.0.scale", 4.0).hooks == (GradientNorm(scale=4.0), Decay())
    old = {name: value for name, value in config.to_dict(e).items() if name != "hooks"}
    assert config.from_dict(Experiment, old, "test").hooks == ()


@dataclass(frozen=True)
class WithoutRow(Hook):
    def after_epoch(self, trainer: Any) -> None:  # type: ignore[override]
        """Forgets an argument."""


@dataclass(frozen=True)
class OfAnyNumber(Hook):
    def after_epoch(self, *arguments: Any, **more: Any) -> None:
        """Takes all."""


@pytest.mark.parametrize(
    ("hook", "said"),
    [
        (Returns(column="loss"), "the row has a column 'loss' already"),
        (Returns(kind="vector"), "the column 'mine' is a tensor of shape (2,)"),
        (Returns(kind="list"), "the column 'mine' is of type list"),
        (Three(), "a hook returned 3"),
        (Keeps(kind="tuple"), "in a checkpoint: JSON turns {'value': (1, 2)} into {'value': [1, 2]}"),
        (Keeps(kind="key"), "the state of a hook cannot be kept"),
        (Keeps(kind="infinity"), "the state of a hook cannot be kept"),
        (Keeps(kind="tensor"), "the state of a hook cannot be kept"),
    ],
)
def test_what_a_hook_must_not_do_is_said_with_its_place(hook: Hook, said: str, tmp_path: Path) -> None:
    e = replace(BASE, hooks=(hook,))
    with pytest.raises(UserError) as caught:
        train_rank(0, 1, e, new_run(tmp_path / "run", e))
    assert said in str(caught.value) and "test_hooks.py:" in caught.value.where


def test_a_column_may_be_a_number_of_numpy(tmp_path: Path) -> None:
    e = replace(BASE, hooks=(Returns(kind="numpy"),))
    train_rank(0, 1, e, run := new_run(tmp_path / "run", e))
    assert {row["mine"] for row in rows(run) if row["kind"] == "step"} == {0.5}


@dataclass(frozen=True)
class OfLightning(Hook):
    def after_epoch_end(self, trainer: Any, row: Any) -> None:
        """Has the name of no method of hooks."""


def test_a_hook_that_nothing_would_call_is_refused() -> None:
    with pytest.raises(UserError, match=r"OfLightning has no method of a Hook, .*; did you mean after_epoch_saved\?"):
        check_called({Hook: (StopOnDivergence(), OfLightning())})
    check_called({Hook: (Hook(),)})


def test_a_hook_with_other_arguments_is_refused() -> None:
    with pytest.raises(UserError) as caught:
        replace(BASE, hooks=(Decay(), WithoutRow()))
    assert str(caught.value).startswith(
        "WithoutRow.after_epoch takes other arguments than (self, trainer, row), in WithoutRow."
    )
    assert "test_hooks.py:" in caught.value.where
    assert str(caught.value).endswith("; define it as after_epoch(self, trainer, row)")
    replace(BASE, hooks=(OfAnyNumber(),))


def test_two_hooks_cannot_return_the_same_column(tmp_path: Path) -> None:
    e = replace(BASE, hooks=(Returns(), Returns()))
    with pytest.raises(UserError, match="the row has a column 'mine' already"):
        train_rank(0, 1, e, new_run(tmp_path / "run", e))


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ([Decay()], "hooks must be a tuple, got"),
        (Decay(), "write hooks=(Decay(...),)"),
        ((Decay,), "write hooks=(Decay(...),)"),
        ((BASE.model,), "did you mean model=CNN(...)"),
        ((print,), "`def after_step(self, trainer)`"),
    ],
)
def test_what_is_no_hook_is_refused(value: Any, said: str) -> None:
    with pytest.raises(UserError) as caught:
        replace(BASE, hooks=value)
    assert said in str(caught.value)


def test_hook_of_an_experiment_file_comes_back_with_the_run(tmp_path: Path) -> None:
    """A hook takes one file: the experiment's own."""
    file = tmp_path / "exp.py"
    file.write_text(
        "from dataclasses import dataclass\nfrom raytrain import CNN, Digits, Experiment, Hook\n\n\n"
        "@dataclass(frozen=True)\nclass Rate(Hook):\n    factor: float = 10.0\n\n"
        "    def after_step(self, trainer):\n"
        "        return {'rate': self.factor * trainer.optimizer.param_groups[0]['lr']}\n\n\n"
        "experiment = Experiment(CNN(channels=(4,)), Digits(), hooks=(Rate(),))\n"
    )
    e, _ = load_experiment(file)
    run = new_run(tmp_path / "run", e)
    (run / "experiment.py").write_text(file.read_text())
    train_rank(0, 1, e, run)
    assert repr(load_experiment(run)[0].hooks) == repr(e.hooks) == "(Rate(factor=10.0),)"
    found = [row for row in rows(run) if row["kind"] == "step"]
    assert found and all(row["rate"] == 10 * row["lr"] for row in found)
