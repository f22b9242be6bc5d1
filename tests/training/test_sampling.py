"""Training with samplers: the losses of a plain loop, on any number of ranks, and after a resume."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.cut_runs import BASE as AUGMENTED
from helpers.cut_runs import cut_rank, rows, weights
from helpers.ranks import Ranks, losses, new_run, on_workers, train_rank
from torch import nn

from raytrain import (
    CNN,
    MLP,
    SGD,
    Augment,
    Balanced,
    Checkpoint,
    Deterministic,
    Digits,
    Experiment,
    Index,
    Run,
    Sampler,
    Weighted,
    order,
)
from raytrain.data.transforms import Normalise
from raytrain.tools.inference import evaluate

BASE = Experiment(
    model=CNN(channels=(8, 16)),
    data=Digits(),
    optimizer=SGD(lr=0.05, momentum=0.9),
    sampler=Weighted(classes=(("1", 5.0), ("8", 0.0)), count=401),
    batch_size=48,
    epochs=2,
)


def plain(e: Experiment) -> list[float]:
    """The losses of a loop that draws its batches without the package's loader."""
    index = e.data.index()["train"]
    images, labels = torch.from_numpy(e.data.read(index, np.arange(len(index)))), torch.from_numpy(index.labels)
    torch.manual_seed(order.key(e.seed, 0) >> 1)
    model = e.model.build(index.shape, len(index.classes))
    optimizer = torch.optim.SGD(model.parameters(), lr=e.optimizer.lr, momentum=0.9)
    found, normalise = [], Normalise(e.data.mean, e.data.std)
    for epoch in range(e.epochs):
        drawn = torch.from_numpy(e.sampler.samples(index, e.seed, epoch, np.arange(e.sampler.size(index))))
        for ids in drawn.split(e.batch_size):
            loss = nn.functional.cross_entropy(model(normalise(images[ids])), labels[ids])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
    return found


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_losses_are_those_of_a_plain_loop_on_any_number_of_ranks(ranks: Ranks, tmp_path: Path, world: int) -> None:
    e = on_workers(BASE, world)
    run = new_run(tmp_path / "run", e)
    ranks.run(world, train_rank, e, run)
    expected = plain(e)
    assert len(expected) == 2 * 9, "401 samples in batches of 48, the last one short"
    np.testing.assert_allclose(losses(run), expected, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize(
    ("world", "sampler"), [(1, BASE.sampler), (2, BASE.sampler), (2, Balanced(count=600)), (2, Sampler(fraction=0.4))]
)
def test_resume_in_mid_epoch_is_bit_equal(ranks: Ranks, tmp_path: Path, world: int, sampler: Sampler) -> None:
    e = on_workers(replace(AUGMENTED, sampler=sampler, checkpoint=Checkpoint(every_steps=2)), world)
    whole, cut = new_run(tmp_path / "whole", e), new_run(tmp_path / "cut", e)
    ranks.run(world, train_rank, e, whole)
    for call in (4, 3):
        ranks.run(world, cut_rank, e, cut, call)
    ranks.run(world, train_rank, e, cut)
    assert rows(cut) == rows(whole) and weights(cut) == weights(whole)


@pytest.mark.slow
@pytest.mark.parametrize(
    "sampler",
    [BASE.sampler, replace(BASE.sampler, count=350, replacement=False), Balanced(count=400), Sampler(fraction=0.3)],
)
def test_every_sampler_trains_as_a_plain_loop_after_a_kill(ranks: Ranks, tmp_path: Path, sampler: Sampler) -> None:
    e = replace(BASE, sampler=sampler, checkpoint=Checkpoint(every_steps=2))
    expected = plain(e)
    for begin, end, way in (*((world, world, e.parallel) for world in (1, 2, 3, 4)), (4, 2, Deterministic())):
        e = replace(e, parallel=way)
        run = new_run(tmp_path / f"{type(way).__name__}-{begin}", on_workers(e, begin))
        ranks.run(begin, cut_rank, on_workers(e, begin), run, 12)
        ranks.run(end, train_rank, on_workers(e, end), run)
        np.testing.assert_allclose(losses(run), expected, rtol=2e-5, atol=2e-6)


def test_deterministic_bits_are_equal_on_1_2_and_4_ranks(ranks: Ranks, tmp_path: Path) -> None:
    data = Digits(augment=Augment(crop="random", padding=1, flip=0.5))
    sampler = Weighted(classes=(("1", 5.0),), count=250)
    e = replace(AUGMENTED, data=data, sampler=sampler, parallel=Deterministic(), batch_size=64, checkpoint=Checkpoint())
    found = []
    for world in (1, 2, 4):
        run = new_run(tmp_path / str(world), on_workers(e, world))
        ranks.run(world, train_rank, on_workers(e, world), run)
        found.append((rows(run), weights(run)))
    assert found[0] == found[1] == found[2] and len(found[0][0]) == 2 * 4 + 2


def test_a_saved_experiment_without_a_sampler_and_folds_has_the_defaults(tmp_path: Path) -> None:
    run = new_run(tmp_path / "run", replace(BASE, sampler=Sampler()))
    file = run / "experiment.json"
    values = json.loads(file.read_text())
    del values["sampler"], values["data"]["folds"]
    file.write_text(json.dumps(values))
    assert "sampler" not in file.read_text() and Run(run).experiment == replace(BASE, sampler=Sampler())
    other = new_run(tmp_path / "other", BASE)
    assert Run(other).experiment == BASE, "names and weights survive JSON"


@dataclass(frozen=True)
class Imbalanced(Digits):
    """Digits of which the odd ones have a fiftieth of their training samples; validation has all."""

    def index(self) -> dict[str, Index]:
        found = super().index()
        labels = found["train"].labels
        rare = [
            np.flatnonzero(labels == digit)[: max(1, int((labels == digit).sum()) // 50)] for digit in (1, 3, 5, 7, 9)
        ]
        kept = np.sort(np.concatenate([np.flatnonzero(labels % 2 == 0), *rare]))
        return {"train": found["train"].take(kept), "val": found["val"]}


def macro_f1(confusion: np.ndarray) -> float:
    """The mean over classes of 2 TP / (2 TP + FP + FN), of counts [true class, predicted class]."""
    true = np.diag(confusion)
    return float(np.mean(2 * true / np.maximum(confusion.sum(0) + confusion.sum(1), 1)))


def test_balanced_sampling_raises_macro_f1_of_imbalanced_digits(ranks: Ranks, tmp_path: Path) -> None:
    """1:50; the largest of the differences between seeds is far below the five points."""
    found = {}
    for name, sampler in (("uniform", Sampler()), ("balanced", Balanced())):
        scores = []
        for seed in (0, 1):
            e = Experiment(
                MLP(hidden=(64,)),
                Imbalanced(),
                optimizer=SGD(lr=0.1, momentum=0.9),
                sampler=sampler,
                epochs=8,
                seed=seed,
            )
            run = new_run(tmp_path / f"{name}-{seed}", e)
            ranks.run(1, train_rank, e, run)
            scores.append(macro_f1(np.array(evaluate(Run(run), which="last")["confusion"])))
        found[name] = scores
    assert min(found["balanced"]) >= max(found["uniform"]) + 0.05, found
