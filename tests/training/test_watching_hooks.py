"""Hooks that show a run: the machine's use, and pictures of samples. Training keeps its bits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers.cut_runs import BASE, rows, weights
from helpers.ranks import Ranks, new_run, on_workers, train_rank
from helpers.scenes import CLASSES, experiment
from PIL import Image

from raytrain import (
    DDP,
    FSDP,
    Experiment,
    Held,
    ImageFolder,
    MultiLabel,
    Regression,
    RunInfo,
    SampleImages,
    Segmentation,
    SystemMetrics,
    TensorBoard,
    UserError,
)

SYSTEM = ("cpu_percent", "memory_bytes")
SHOWN = replace(BASE, ema_decay=0.9, hooks=(SystemMetrics(), SampleImages(4)), parallel=DDP(reduction="torch"))


def plain(run: Path) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name not in SYSTEM} for row in rows(run)]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_columns_and_pictures_leave_the_bits_of_two_ranks(ranks: Ranks, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    e = on_workers(SHOWN, 2)
    run, other = new_run(tmp_path / "run", e), new_run(tmp_path / "other", e)
    ranks.run(2, train_rank, e, run)
    ranks.run(2, train_rank, replace(e, hooks=()), other)
    assert plain(run) == rows(other) and weights(run) == weights(other)
    epochs = [row for row in rows(run) if row["kind"] == "epoch"]
    assert len(epochs) == 2 and not any(name in row for row in rows(run) if row["kind"] == "step" for name in SYSTEM)
    assert all(0 <= row["cpu_percent"] <= 100 and row["memory_bytes"] > 1e6 for row in epochs)
    files = sorted((run / "samples").iterdir())
    assert [file.name for file in files] == ["epoch_0001.png", "epoch_0002.png"]
    with Image.open(files[1]) as opened:
        picture = np.asarray(opened)
    assert picture.shape == (96 + 4 + 28, 4 * 100, 3)
    stored = e.data.read(e.data.index()["val"], np.arange(7))
    assert isinstance(stored, np.ndarray)
    images = stored[:, 0]  # rank 0 has every second one, or the first ones
    tiles = [picture[6:96:12, column * 100 + 6 : column * 100 + 96 : 12, 0] for column in range(4)]
    assert any(all(np.abs(tile.astype(int) - image).max() <= 1 for tile, image in zip(tiles, some, strict=True))
               for some in (images[:4], images[::2]))  # fmt: skip

    logger = TensorBoard()
    logger.start(RunInfo(run, str(run), e, 23, 1438), Held())
    logger.log(rows(run))
    logger.close()
    found = EventAccumulator(str(run / "logs/tensorboard"), {"images": 0})
    found.Reload()
    shown = {one.step: one.encoded_image_string for one in found.Images("samples")}
    assert shown == {row["step"]: file.read_bytes() for row, file in zip(epochs, files, strict=True)}


@pytest.mark.parametrize(
    ("e", "height"),
    [
        (experiment(Segmentation(), "mask", CLASSES, True), 3 * 100 + 28),
        (experiment(MultiLabel(target="tags"), "tags", 5), 100 + 28),
        (experiment(Regression(target="sizes"), "sizes", 2), 100 + 28),
    ],
    ids=["masks", "tags", "numbers"],
)
def test_picture_of_each_task(tmp_path: Path, e: Experiment, height: int) -> None:
    e = replace(e, epochs=1, hooks=(SampleImages(3),))
    run = new_run(tmp_path / "run", e)
    train_rank(0, 1, e, run)
    with Image.open(run / "samples/epoch_0001.png") as picture:
        assert picture.size == (3 * 100, height)


def test_picture_undoes_a_normalisation_that_the_source_derives(tmp_path: Path) -> None:
    for number in range(8):
        folder = tmp_path / "data" / ("red", "grey")[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (24, 24), ((200, 20, 20), (90, 90, 90))[number % 2]).save(folder / f"{number}.png")
    data = ImageFolder(str(tmp_path / "data"), 24, cache="off")
    run = new_run(tmp_path / "run", e := replace(BASE, data=data, batch_size=4, epochs=1, hooks=(SampleImages(2),)))
    train_rank(0, 1, e, run)
    with Image.open(run / "samples/epoch_0001.png") as picture:
        assert {picture.getpixel((48, 48)), picture.getpixel((148, 48))} == {(200, 20, 20), (90, 90, 90)}


def test_strategy_that_shards_the_model_is_refused() -> None:
    trainer = SimpleNamespace(strategy=SimpleNamespace(sharded=True), experiment=SimpleNamespace(parallel=FSDP()))
    with pytest.raises(UserError, match="the whole model on rank 0, and FSDP shards it"):
        SampleImages().start(trainer)
