"""Frozen parameters and staged unfreezing: equal to a plain loop, on several ranks, and after a resume."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.commands import fails, no_runs, without_ray
from helpers.cut_runs import cut_rank, rows, weights
from helpers.ranks import Ranks, losses, new_run, on_workers, train_rank
from helpers.strategies import BLOCKS, SHORT
from torch import nn

from raytrain import (
    CNN,
    DDP,
    SGD,
    AdamW,
    Checkpoint,
    Deterministic,
    Digits,
    Experiment,
    Optimizer,
    Parallel,
    Pipeline,
    TensorParallel,
    UserError,
    order,
)
from raytrain.checkpoint.checkpoints import load_model
from raytrain.data.transforms import Normalise
from raytrain.driver.model_check import build_model
from raytrain.training import freezing

__all__ = ["no_runs", "without_ray"]

# Of the layers 0 (convolution), 1 (norm), 4 (convolution), 5 (norm) and 9 (linear):
STAGED = Experiment(
    model=CNN(channels=(8, 16), batch_norm=True),
    data=Digits(),
    optimizer=SGD(lr=0.05, momentum=0.9, weight_decay=0.1, layer_decay=0.8),
    freeze=("1.*", "5.*"),
    unfreeze=((1, "4.*"), (2, "0.*")),
    checkpoint=Checkpoint(keep=9),
    batch_size=128,
    epochs=3,
)
STEPS = 12
FACTORS = {"0": 0.8**4, "4": 0.8**2, "9": 1.0}


def plain(e: Experiment) -> tuple[list[float], nn.Module]:
    """The same training as a plain loop: an optimizer for each layer, from the epoch on in which it is trained."""
    torch.set_num_threads(1)
    torch.manual_seed(order.key(e.seed, 0) >> 1)
    model, index = e.model.build((1, 8, 8), 10), e.data.index()["train"]
    images = Normalise(e.data.mean, e.data.std)(torch.from_numpy(e.data.read(index, np.arange(len(index)))))
    labels, found = torch.from_numpy(index.labels), []
    optimizers: dict[str, torch.optim.Optimizer] = {}
    model.requires_grad_(False).train()
    for norm in (model[1], model[5]):  # type: ignore[index]
        norm.eval()
    for step in range(STEPS * e.epochs):
        epoch, k = divmod(step, STEPS)
        for layer in {0: "9", 1: "4", 2: "0"}[epoch]:
            if layer not in optimizers:
                parameters = [*model.get_submodule(layer).requires_grad_().parameters()]
                lr = 0.05 * FACTORS[layer]
                optimizers[layer] = torch.optim.SGD(parameters, lr=lr, momentum=0.9, weight_decay=0.1)
        ids = order.samples(
            e.seed, epoch, len(index), np.arange(k * e.batch_size, min((k + 1) * e.batch_size, len(index)))
        )
        loss = nn.functional.cross_entropy(model(images[ids]), labels[ids])
        model.zero_grad()
        loss.backward()
        for optimizer in optimizers.values():
            optimizer.step()
        found.append(loss.item())
    return found, model


@pytest.mark.parametrize(
    ("world", "parallel"),
    [(1, DDP()), (2, DDP()), (2, Deterministic()), (2, BLOCKS), pytest.param(4, DDP(), marks=pytest.mark.slow)],
    ids=["1", "2", "deterministic", "fsdp", "4"],
)
def test_stages_equal_a_plain_loop(ranks: Ranks, tmp_path: Path, world: int, parallel: Parallel) -> None:
    e = on_workers(replace(STAGED, parallel=parallel), world)
    ranks.run(world, train_rank, e, run := new_run(tmp_path / "run", e))
    wanted, model = plain(e)
    np.testing.assert_allclose(losses(run), wanted, rtol=1e-5, atol=1e-6)
    ours = load_model(run / "checkpoints" / f"step_{3 * STEPS:08d}")
    for name, value in model.state_dict().items():
        torch.testing.assert_close(ours[name], value, rtol=1e-4, atol=1e-5)
    torch.manual_seed(order.key(e.seed, 0) >> 1)
    start = e.model.build((1, 8, 8), 10).state_dict()
    for name, value in start.items():
        if name[0] in "15":
            assert torch.equal(ours[name], value), "a frozen norm keeps its bits, statistics included"


@pytest.mark.parametrize(
    "optimizer",
    [SGD(lr=0.05, momentum=0.9, weight_decay=0.1), pytest.param(AdamW(lr=1e-2), marks=pytest.mark.slow)],
    ids=["sgd", "adamw"],
)
@pytest.mark.parametrize("parallel", [DDP(), BLOCKS, Pipeline(), TensorParallel()], ids=["ddp", "fsdp", "pipe", "tp"])
def test_layers_wait_for_their_epoch_under_every_strategy(
    ranks: Ranks, tmp_path: Path, parallel: Parallel, optimizer: Optimizer
) -> None:
    optimizer = replace(optimizer, layer_decay=0.9, lr_factors=(("0.*", 0.5),), weight_decays=(("*.bias", 0.0),))
    e = replace(SHORT, parallel=parallel, optimizer=optimizer, micro_batch_size=None, ema_decay=0.9)
    e = on_workers(replace(e, unfreeze=((1, "0.*"),), freeze=("3.*",), checkpoint=Checkpoint(keep=9)), 2)
    if isinstance(parallel, Pipeline):
        e = replace(e, freeze=("3.bias",))
    ranks.run(2, train_rank, e, run := new_run(tmp_path / "run", e))
    torch.manual_seed(order.key(e.seed, 0) >> 1)
    start = e.model.build((1, 8, 8), 10).state_dict()
    after = [load_model(run / "checkpoints" / f"step_{STEPS * epoch:08d}") for epoch in (1, 2)]
    for name, value in start.items():
        changed = [not torch.equal(value, one[name]) for one in after]
        frozen = freezing.patterns.matches(name, e.freeze)
        assert changed == ([False, False] if frozen else [False, True] if name[0] == "0" else [True, True]), name


@pytest.mark.parametrize(("world", "parallel"), [(1, DDP()), (2, DDP()), (2, BLOCKS)], ids=["1", "2", "fsdp"])
def test_a_run_resumes_in_every_stage(ranks: Ranks, tmp_path: Path, world: int, parallel: Parallel) -> None:
    e = replace(STAGED, optimizer=AdamW(lr=1e-2, layer_decay=0.8), parallel=parallel)
    e = on_workers(replace(e, checkpoint=Checkpoint(every_steps=5)), world)
    whole, cut = new_run(tmp_path / "whole", e), new_run(tmp_path / "cut", e)
    ranks.run(world, train_rank, e, whole)
    for call in (8, 12, 14):  # in the first, the second and the third stage
        ranks.run(world, cut_rank, e, cut, call)
    ranks.run(world, train_rank, e, cut)
    assert rows(cut) == rows(whole) and weights(cut) == weights(whole)


def test_only_norms_that_match_keep_their_statistics() -> None:
    def training(*frozen: str) -> list[bool]:
        module = STAGED.model.build((1, 8, 8), 10)
        freezing.train_mode(module, frozen)
        freezing.train_mode(module.eval(), frozen)
        return [layer.training for layer in module.modules() if isinstance(layer, nn.BatchNorm2d)]

    assert training() == [True, True] and training("1.*") == [False, True]
    assert training("*.running_mean") == [False, False] and training("*.weight") == [True, True]


def test_frozen_parameters_need_no_gradient_from_the_plan_on() -> None:
    module = build_model(STAGED, (1, 8, 8), 10, "meta")
    needs = {name.partition(".")[0] for name, one in module.named_parameters() if one.requires_grad}
    assert needs == {"0", "4", "9"}


def test_the_first_pattern_that_matches_counts_and_the_head_first_adds_up() -> None:
    module = STAGED.model.build((1, 8, 8), 10)
    names = {id(one): name for name, one in module.named_parameters()}

    def waiting(epoch: int, **changes: Any) -> set[str]:
        found = freezing.Waiting(replace(STAGED, **changes), module).in_epoch(epoch)
        return {names[id(one)].partition(".")[0] for one in found}

    rules = ((0, "9.*"), (2, "4.*"), (3, "*"))
    assert [waiting(n, unfreeze=rules) for n in range(4)] == [{"0", "1", "4", "5"}] * 2 + [{"0", "1", "5"}, set()]
    both = {"unfreeze": ((3, "0.*"),), "unfreeze_epoch": 1}
    assert [waiting(n, **both) for n in range(4)] == [{"0", "1", "4", "5"}, {"0"}, {"0"}, set()]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"freeze": ("bakbone.*",)}, r"'bakbone.\*' matches no parameter of the model, in freeze; "),
        (
            {"unfreeze": ((1, "9.wieght"),)},
            r"'9.wieght' matches no parameter of the model, in unfreeze; did you mean 9",
        ),
        ({"unfreeze": ((1, "4.running_mean"),)}, "matches no parameter"),
        ({"optimizer": SGD(lr_factors=(("7.*", 2.0),))}, r"'7.\*' matches no parameter .*in optimizer.lr_factors"),
        ({"optimizer": SGD(weight_decays=(("7.*", 2.0),))}, "in optimizer.weight_decays"),
        ({"unfreeze": ((1, "*"),)}, "nothing is trained in the first epoch, in unfreeze"),
    ],
)
def test_patterns_without_effect_are_refused(changes: dict[str, Any], message: str) -> None:
    e = replace(STAGED, **{"freeze": (), "unfreeze": (), **changes})
    with pytest.raises(UserError, match=message):
        freezing.check(e, e.model.build((1, 8, 8), 10), e.epochs)


def test_a_stage_after_the_end_is_a_note() -> None:
    module = STAGED.model.build((1, 8, 8), 10)
    assert freezing.check(STAGED, module, STAGED.epochs) == []
    assert freezing.check(replace(STAGED, epochs=1, steps=99), module, 4.5) == []  # steps count, and not epochs
    (note,) = freezing.check(STAGED, module, 2)
    assert note == "some layers are never trained: unfreeze has epoch 2, and training ends after 2"


@pytest.mark.usefixtures("without_ray", "no_runs")
def test_mistakes_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("train", "experiments/digits.py", "--out", tmp_path / "runs")
    assert "did you mean 0.*" in fails(capsys, *flags, "--freeze", "00.*")
    assert "no parameter that requires a gradient, in freeze" in fails(capsys, *flags, "--freeze", "*")
    assert "unfreeze = ((-1, '0.*'),) is out of range" in fails(capsys, *flags, "--unfreeze", "-1", "0.*")
