"""Trainings by `raytrain.train` on a Ray that is there already, as a notebook would do it."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import raytrain
from raytrain import (
    CNN,
    SGD,
    Augment,
    Batch,
    Checkpoint,
    Classification,
    Cosine,
    Data,
    Digits,
    Experiment,
    ImageFolder,
    Scaling,
    config,
)
from raytrain.data import packing
from raytrain.driver.endings import RunFailed
from raytrain.tools.inference import evaluate

pytestmark = pytest.mark.usefixtures("cluster")

BASE = Experiment(
    model=CNN(channels=(8, 16)),
    data=Digits(),
    optimizer=SGD(lr=0.05, momentum=0.9),
    schedule=Cosine(warmup_epochs=1),
    scaling=Scaling(workers=2, threads_per_worker=1),
    checkpoint=Checkpoint(every_steps=10),
    batch_size=64,
    epochs=3,
)

ONE_WORKER: dict[str, Any] = {"scaling.workers": 1}
STREAMING: dict[str, Any] = {"data.mode": "streaming"}
NEW_LR: dict[str, Any] = {"optimizer.lr": 1.0}


@dataclass(frozen=True)
class Recording(Classification):
    """Notes which samples each rank saw, and a hash of their pixels."""

    folder: str = ""

    def loss(self, model: nn.Module, batch: Batch) -> tuple[torch.Tensor, int]:
        pixels = [hashlib.sha256(image.numpy().tobytes()).hexdigest()[:12] for image in batch.images]
        with open(Path(self.folder) / f"{torch.distributed.get_rank()}.jsonl", "a") as file:
            file.write(json.dumps(list(zip(batch.ids.tolist(), pixels, strict=True))) + "\n")
        return super().loss(model, batch)


def rows(run: Path) -> list[dict]:
    from helpers.times import without_times  # here, for workers run this file too, without the folder of the tests

    found = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [without_times(row) for row in found]


def recorded(experiment: Experiment, folder: Path, name: str, **changes: object) -> list[list]:
    """What all ranks saw, step after step."""
    seen = folder / name
    seen.mkdir()
    e = replace(experiment, task=Recording(folder=str(seen)))
    for path, value in changes.items():
        e = config.replace(e, path, value)
    raytrain.train(e, out=str(folder), name=f"run-{name}", quiet=True)
    files = [(seen / f"{rank}.jsonl").read_text().splitlines() for rank in range(max(1, e.scaling.ranks))]
    return [[pair for part in step for pair in json.loads(part)] for step in zip(*files, strict=True)]


@pytest.fixture(scope="module")
def images(data_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some of hymenoptera's JPEGs, and one that is cut off."""
    root = tmp_path_factory.mktemp("images")
    for kind in ("ants", "bees"):
        files = sorted((data_root / "hymenoptera" / "train" / kind).glob("*.jpg"))[:31]
        (root / kind).mkdir()
        for file in files:
            os.symlink(file, root / kind / file.name)
    whole = files[0].read_bytes()
    (root / "ants" / "broken.jpg").write_bytes(whole[: len(whole) // 2])
    return root


def test_resident_and_streaming_give_the_same_batches(
    tmp_path: Path, images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "_HERE_SECONDS", 0.0)  # or so few images would never be Ray Data's work
    monkeypatch.setattr(packing, "_HERE_ROWS", 8)
    data = ImageFolder(
        root=str(images),
        size=40,
        crop=32,
        on_bad_sample="skip",
        augment=Augment(crop="random_resized", scale=(0.3, 1.0), flip=0.5),
    )
    e = replace(BASE, data=data, batch_size=14, epochs=2)
    found = {mode: recorded(e, tmp_path, mode, **{"data.mode": mode}) for mode in ("resident", "streaming")}
    assert found["resident"] == found["streaming"]
    steps = found["resident"]
    ids = [i for step in steps for i, _ in step]
    count = len(ids) // 2
    assert sorted(ids[:count]) == sorted(ids[count:]) == list(range(count))
    hashes = {h for step in steps for _, h in step}
    assert len(hashes) > 1.8 * count, "an image is augmented in another way in every epoch"
    assert rows(tmp_path / "run-resident") == rows(tmp_path / "run-streaming")
    skipped = json.loads((tmp_path / "run-resident" / "skipped.json").read_text())
    assert [Path(one["path"]).name for split in skipped.values() for one in split] == ["broken.jpg"]
    assert skipped == json.loads((tmp_path / "run-streaming" / "skipped.json").read_text())


@pytest.mark.slow
def test_resumed_run_keeps_skipping_a_repaired_sample(tmp_path: Path) -> None:
    for number in range(40):
        (tmp_path / "data" / "ab"[number % 2]).mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 256, (8, 8, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "data" / "ab"[number % 2] / f"{number}.bmp")
    data = ImageFolder(root=str(tmp_path / "data"), size=8, crop=None, on_bad_sample="skip")
    sick = tmp_path / "data" / data.index()["train"].name(3)
    whole = sick.read_bytes()
    sick.write_bytes(bytes(len(whole)))
    e = replace(BASE, data=data, batch_size=8, epochs=1)
    count = len(data.index()["train"]) - 1
    first = [i for step in recorded(e, tmp_path, "sick") for i, _ in step]
    run = tmp_path / "run-sick"
    skipped = json.loads((run / "skipped.json").read_text())
    assert [(one["row"], one["path"]) for one in skipped["train"]] == [(3, str(sick))] and not skipped["val"]
    sick.write_bytes(whole)
    for epochs, changes in ((2, {}), (3, STREAMING)):
        raytrain.resume(run, quiet=True, epochs=epochs, **changes)
        assert json.loads((run / "skipped.json").read_text()) == skipped
    lines = [(tmp_path / "sick" / f"{rank}.jsonl").read_text().splitlines() for rank in (0, 1)]
    ids = [i for rank in lines for line in rank for i, _ in json.loads(line)]
    assert sorted(first) == list(range(count)) and sorted(ids) == sorted(3 * list(range(count)))
    other = tmp_path / "data" / data.index()["train"].name(5)
    other.write_bytes(bytes(len(whole)))
    with pytest.raises(raytrain.UserError, match=f"could be read when the run began: .*, {other}; restore it"):
        raytrain.resume(run, quiet=True, epochs=4)


def test_run_from_python_repeats_bit_for_bit(tmp_path: Path) -> None:
    run = raytrain.train(BASE, out=str(tmp_path), name="first", quiet=True)
    assert run.summary["status"] == "completed" and run.summary["workers"] == 2
    assert run.summary["val_accuracy"] == max(run.metrics()["val_accuracy"].to_pylist()) > 0.9
    assert run.summary["baseline"]["val_accuracy"] < 0.15, "what a constant answer scores"
    for figure in ("val_loss", "seconds", "samples_per_second", "first_step_seconds", "peak_memory_bytes"):
        assert run.summary[figure] > 0
    assert run.metrics("step").num_rows == run.summary["steps"] == 69 and run.summary["epochs"] == 3
    index = BASE.data.index()["val"]
    model = run.model()
    assert not model.training and isinstance(model, nn.Module)
    result = evaluate(run)
    best = json.loads((run.path / "best.json").read_text())
    assert result["count"] == len(index) == 359
    assert result["accuracy"] == best["val_accuracy"] and result["loss"] == pytest.approx(best["val_loss"], rel=1e-6)
    experiment, _ = raytrain.load_experiment(run.path / "experiment.json")
    again = raytrain.train(experiment, out=str(tmp_path), name="second", quiet=True)
    assert rows(again.path) == rows(run.path)
    with pytest.raises(raytrain.UserError, match="complete at 3 epochs"):
        raytrain.resume(run, quiet=True)
    longer = raytrain.resume(run, quiet=True, epochs=4, **ONE_WORKER)
    assert longer.summary["epochs"] == 4 and longer.summary["workers"] == 1
    assert rows(run.path)[: len(rows(again.path))] == rows(again.path)
    with pytest.raises(raytrain.UserError, match=r"cannot change optimizer\.lr"):
        raytrain.resume(run, quiet=True, epochs=5, **NEW_LR)


def test_no_workers_train_in_this_process(tmp_path: Path) -> None:
    e = config.replace(replace(BASE, epochs=1), "scaling.workers", 0)
    run = raytrain.train(e, out=str(tmp_path), quiet=True)
    one = replace(e, scaling=Scaling(workers=1, threads_per_worker=1))
    other = raytrain.train(one, out=str(tmp_path), quiet=True)
    assert run.path.name == "run-1" and other.path.name == "run-2"
    assert rows(run.path) == rows(other.path)


def test_an_unreadable_sample_is_named_before_a_run_is_left(tmp_path: Path) -> None:
    e = replace(BASE, data=Sick())
    with pytest.raises(raytrain.UserError, match="cannot read sample: it has a fever, sample 77"):
        raytrain.train(e, out=str(tmp_path), name="run", quiet=True)
    assert not (tmp_path / "run").exists()


@dataclass(frozen=True)
class Sick(Digits):
    """One sample that only reading finds."""

    def read(self, index: raytrain.Index, samples: np.ndarray) -> np.ndarray:
        if 77 in samples and index.split == "train":
            raise raytrain.BadSample("sample 77", "it has a fever")
        return super().read(index, samples)


def test_streaming_names_the_unreadable_sample_when_it_comes(tmp_path: Path) -> None:
    e = replace(BASE, data=Sick(mode="streaming"))
    assert isinstance(e.data, Data)
    with pytest.raises(RunFailed, match=r"rank \d: cannot read sample: it has a fever, sample 77"):
        raytrain.train(e, out=str(tmp_path), name="run", quiet=True)
