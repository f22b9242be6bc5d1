"""Sources of other things than labelled images: segmentation, a table, token sequences (tests/experiments)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from ranks import Ranks, losses, train_rank
from torch import nn

from raytrain import SGD, Deterministic, Experiment, Parallel, Run, config, order
from raytrain.data.prepare import Prepare
from raytrain.data.source import checked_read
from raytrain.experiment_file import load, save

EXPERIMENTS = Path(__file__).parents[1] / "experiments"
NAMES = ("segmentation", "tabular", "tokens")


@pytest.fixture
def table(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    x = random.normal(size=(100, 6)).astype(np.float32)
    y = (x @ np.arange(1, 7, dtype=np.float32)) / 10 + 0.5
    columns = {f"x{number}": x[:, number] for number in range(6)} | {"y": y.astype(np.float32)}
    pq.write_table(pa.table(columns), tmp_path / "table.parquet")
    return tmp_path / "table.parquet"


def experiment(name: str, table: Path, parallel: Parallel | None = None) -> Experiment:
    value, _ = load(EXPERIMENTS / f"{name}.py")
    if name == "tabular":
        value = config.replace(value, "data.file", str(table))
    return replace(value, parallel=parallel or value.parallel)


def train_file(rank: int, world: int, name: str, table: Path, parallel: Parallel | None, run: Path) -> str:
    """A rank of a run of an experiment file, which each process loads for itself."""
    value = config.replace(experiment(name, table, parallel), "scaling.workers", world)
    return train_rank(rank, world, value, run)


def train(ranks: Ranks, world: int, name: str, table: Path, parallel: Parallel | None = None) -> Run:
    run = table.parent / f"{name}-{world}"
    run.mkdir()
    save(experiment(name, table, parallel), run / "experiment.json")
    assert ranks.run(world, train_file, name, table, parallel, run) == ["completed"] * world
    return Run(run)


@pytest.mark.parametrize("name", NAMES)
def test_losses_are_equal_on_any_number_of_ranks(ranks: Ranks, table: Path, name: str) -> None:
    one, two, four = (train(ranks, world, name, table) for world in (1, 2, 4))
    np.testing.assert_allclose(losses(two.path), losses(one.path), rtol=2e-5)
    np.testing.assert_allclose(losses(four.path), losses(one.path), rtol=2e-5)
    assert losses(one.path)[-1] < 0.8 * losses(one.path)[0]


@pytest.mark.parametrize("name", NAMES)
def test_deterministic_losses_are_bit_equal_on_any_number_of_ranks(ranks: Ranks, table: Path, name: str) -> None:
    runs = [train(ranks, world, name, table, Deterministic()) for world in (1, 2, 4)]
    rows = [run.metrics().drop_columns(["seconds", "samples_per_second"]) for run in runs]
    assert losses(runs[0].path).tolist() == losses(runs[1].path).tolist() == losses(runs[2].path).tolist()
    assert rows[0] == rows[1] == rows[2]


def test_image_and_mask_are_cropped_and_flipped_alike(table: Path) -> None:
    value = experiment("segmentation", table)
    index = value.data.index()["train"]
    ids = np.arange(64)
    stored = {name: torch.from_numpy(array) for name, array in checked_read(value.data, index, ids).items()}
    seen = Prepare(value.data, index).augmented(stored, ids, seed=0, epoch=1, mixed=False)
    bright = seen["image"].mean(dim=1) * 0.5 + 0.5 > 125 / 255  # noise is below 100, a disc from 150 on
    assert seen["mask"].dtype == torch.int64 and torch.equal(seen["mask"] == 1, bright)
    moved = (seen["mask"] != stored["mask"]).flatten(1).any(dim=1)
    assert moved.double().mean() > 0.9, "crop and flip change nearly all samples"


def test_a_table_trains_as_a_plain_pytorch_loop(ranks: Ranks, table: Path) -> None:
    value = experiment("tabular", table)
    assert isinstance(value.optimizer, SGD)
    index = value.data.index()["train"]
    arrays = checked_read(value.data, index, np.arange(len(index)))
    x, y = torch.from_numpy(arrays["x"]), torch.from_numpy(arrays["y"])  # Arrow's memory was read-only
    torch.manual_seed(order.key(value.seed, 0) >> 1)
    model = value.model.build((6,), 0)
    optimizer, found = torch.optim.SGD(model.parameters(), lr=value.optimizer.lr, momentum=value.optimizer.momentum), []
    for step in range(15):
        epoch, k = divmod(step, 5)
        ids = order.samples(value.seed, epoch, len(index), np.arange(k * 16, min((k + 1) * 16, len(index))))
        loss = nn.functional.mse_loss(model(x[ids])[:, 0], y[ids])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    np.testing.assert_allclose(losses(train(ranks, 1, "tabular", table).path), found, rtol=1e-5)
