"""Sources of other things than labelled images: segmentation, a table, token sequences (tests/experiments)."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from helpers.ranks import Ranks, losses, new_run, train_rank
from helpers.times import without_times
from torch import nn

from raytrain import MLP, Data, Deterministic, Experiment, Field, Index, Parallel, Run, Scaling, config, order
from raytrain.data.checks import checked_read
from raytrain.data.drawn import DRAWS
from raytrain.data.prepare import Prepare
from raytrain.errors import UserError
from raytrain.run.experiment_file import load, save
from raytrain.tools.export import export
from raytrain.tools.inference import evaluate, predict

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


Arrays = dict[str, torch.Tensor]


def cut(value: Experiment, arrays: Arrays, epoch: int, ids: np.ndarray) -> Arrays:
    """Crop and flip images and masks one by one, and scale images from 0..255 to -1..1."""
    draws, padding = order.uniform(value.seed, epoch, ids, DRAWS), value.data.augment.padding
    found = {name: array.clone() for name, array in arrays.items()}
    for name in found.keys() & {"image", "mask"}:
        for place, (down, right, _, _, flip) in enumerate(draws):
            height, width = arrays[name].shape[-2:]
            padded = nn.functional.pad(arrays[name][place], [padding] * 4)
            top, left = int(down * (2 * padding + 1)), int(right * (2 * padding + 1))
            piece = padded[..., top : top + height, left : left + width]
            found[name][place] = piece.flip(-1) if flip < value.data.augment.flip else piece
    return scaled(found)


def scaled(arrays: Arrays) -> Arrays:
    return {name: (array / 255 - 0.5) / 0.5 if name == "image" else array for name, array in arrays.items()}


def plain_loss(model: nn.Module, arrays: Arrays) -> torch.Tensor:
    """The mean loss of a batch, as each of the three files has it."""
    if "mask" in arrays:
        return nn.functional.cross_entropy(model(arrays["image"]), arrays["mask"])
    if "y" in arrays:
        return nn.functional.mse_loss(model(arrays["x"])[:, 0], arrays["y"])
    chances = model(arrays["tokens"]).log_softmax(2)[:, :-1]
    return -chances.gather(2, arrays["tokens"][:, 1:, None]).mean()


def plain_loop(value: Experiment) -> tuple[list[float], float]:
    """Train in one process, without the package's loop, loader and augmentation.

    Returns:
        The loss of each step, and that of the validation at the end.
    """
    indices, stored = value.data.index(), {}
    for split in ("train", "val"):
        arrays = checked_read(value.data, indices[split], np.arange(len(indices[split])))
        stored[split] = {name: torch.from_numpy(array) for name, array in arrays.items()}
    torch.manual_seed(order.key(value.seed, 0) >> 1)
    model = value.model.build(value.data.sample(indices["train"]), 0)
    optimizer, found, count = value.optimizer.build(value.optimizer.groups(model)), [], len(indices["train"])
    for epoch in range(value.epochs):
        for start in range(0, count, value.batch_size):
            ids = order.samples(value.seed, epoch, count, np.arange(start, min(start + value.batch_size, count)))
            batch = cut(value, {name: array[ids] for name, array in stored["train"].items()}, epoch, ids)
            loss = plain_loss(model, batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
    with torch.no_grad():
        return found, plain_loss(model, scaled(stored["val"])).item()


@pytest.mark.parametrize("name", NAMES)
def test_losses_are_those_of_a_plain_loop_on_any_number_of_ranks(ranks: Ranks, table: Path, name: str) -> None:
    expected, validated = plain_loop(experiment(name, table))
    assert expected[-1] < 0.8 * expected[0]
    for world in (1, 2, 4):
        run = train(ranks, world, name, table)
        np.testing.assert_allclose(losses(run.path), expected, rtol=2e-5)
        assert run.metrics()["val_loss"].to_pylist()[-1] == pytest.approx(validated, rel=2e-5)


@pytest.mark.parametrize("name", NAMES)
def test_deterministic_losses_are_bit_equal_on_1_2_4_ranks(ranks: Ranks, table: Path, name: str) -> None:
    runs = [train(ranks, world, name, table, Deterministic()) for world in (1, 2, 4)]
    rows = [[without_times(row) for row in run.metrics().to_pylist()] for run in runs]
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


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("ignore:The tensor attributes self.gru")  # torch.export's, of any GRU
def test_evaluate_and_export_work_and_predict_refuses(ranks: Ranks, table: Path, name: str) -> None:
    run = train(ranks, 2, name, table)
    shutil.copy(EXPERIMENTS / f"{name}.py", run.path / "experiment.py")
    found, row = evaluate(run, which="last"), run.metrics().to_pylist()[-1]
    figures = {f"val_{name}": found[name] for name in found if f"val_{name}" in row}
    assert figures == pytest.approx({name: row[name] for name in row if name.startswith("val_")}, rel=1e-5)
    export(run, table.parent / "model.pt2", "last")
    program, data = torch.export.load(table.parent / "model.pt2").module(), run.experiment.data
    arrays = checked_read(data, data.index()["train"], np.arange(5))
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    stored, given = (next(iter(each.values())) for each in (tensors, scaled(tensors)))
    torch.testing.assert_close(program(stored), run.model("last")(given), rtol=1e-4, atol=1e-5)
    with pytest.raises(UserError, match="predict needs a task that says what it predicts, and this run's task is "):
        predict(run, [str(table)])


@pytest.mark.parametrize("name", NAMES)
def test_an_experiment_is_a_file_below_sixty_lines(name: str) -> None:
    assert len((EXPERIMENTS / f"{name}.py").read_text().splitlines()) < 60


@dataclass(frozen=True)
class Points(Data):
    """Points on both sides of a line, as columns of a table with labels."""

    width: int = 4

    def index(self) -> dict[str, Index]:
        labels = (self._values().sum(1) > 0).astype(np.int64)
        one = Index(labels, ("below", "above"), fields=(Field("place", (self.width,), "float32"),))
        return {split: replace(one, split=split) for split in ("train", "val")}

    def read(self, index: Index, samples: np.ndarray) -> np.ndarray:
        return self._values()[samples]

    def _values(self) -> np.ndarray:
        return np.random.default_rng(0).normal(size=(96, self.width)).astype(np.float32)


def test_classification_takes_the_columns_of_a_table(ranks: Ranks, tmp_path: Path) -> None:
    e = Experiment(MLP(hidden=(16,)), Points(), batch_size=16, epochs=5, scaling=Scaling(workers=2))
    run = Run(new_run(tmp_path / "run", e))
    assert ranks.run(2, train_rank, e, run.path) == ["completed"] * 2
    assert run.summary["val_accuracy"] > 0.9 and evaluate(run)["accuracy"] == run.summary["val_accuracy"]
    with pytest.raises(UserError, match=r"image files do not suit this run's model, .* no image \(kind='plain'\)"):
        predict(run, [str(tmp_path)])
    file = run.path / "experiment.json"
    file.write_text(file.read_text().replace('"width": 4', '"width": 5'))
    message = r"was trained on samples of float32 \[4\], and the data has float32 \[5\], Points; give data of"
    with pytest.raises(UserError, match=message):
        evaluate(Run(run.path))
