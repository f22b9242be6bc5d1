"""Packs that Ray Data writes, and trainings from packs, which see what those from the folder see, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.packs import packed
from PIL import Image

import raytrain
from raytrain import CNN, SGD, Augment, Checkpoint, Deterministic, Experiment, ImageFolder, Packed, Run, config
from raytrain.tools import pack as packing

pytestmark = pytest.mark.usefixtures("cluster")


def test_a_training_from_a_pack_is_that_from_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    for number in range(72):
        folder = tmp_path / "photos" / ("val" if number % 3 == 0 else "train") / f"class {number % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        image = Image.fromarray(random.integers(0, 256, (5, 4, 3), dtype=np.uint8)).resize((22, 27))
        image.save(folder / f"{number:02d}.jpg")
    source = ImageFolder(str(tmp_path / "photos"), size=20, crop=16, augment=Augment(crop="random", flip=0.5))
    monkeypatch.setattr(packing, "SHARD_BYTES", 9_000)
    for name in ("tasks", "threads"):
        packed(source, tmp_path / name, codec="raw", address="auto" if name == "tasks" else None)
    files = sorted(path.name for path in (tmp_path / "threads").iterdir())
    assert len(files) > 10 and files == sorted(path.name for path in (tmp_path / "tasks").iterdir())
    for name in files:
        assert (tmp_path / "threads" / name).read_bytes() == (tmp_path / "tasks" / name).read_bytes(), name
    value = Experiment(
        CNN(channels=(8,)), source, optimizer=SGD(0.05), parallel=Deterministic(), batch_size=16, epochs=2
    )
    for path, change in (("checkpoint", Checkpoint(every_steps=2)), ("scaling.threads_per_worker", 1)):
        value = config.replace(value, path, change)

    def weights(run: Run) -> dict[str, bytes]:
        return {name: tensor.numpy().tobytes() for name, tensor in run.model("last").state_dict().items()}

    def trained(**changes: Any) -> Run:
        changed = value
        for path, change in changes.items():
            changed = config.replace(changed, path, change)
        return raytrain.train(changed, out=str(tmp_path / "runs"), quiet=True)

    pack = Packed("tasks", augment=source.augment, mode="streaming")
    monkeypatch.chdir(tmp_path)  # workers have another folder
    here: dict[str, Any] = {"scaling.workers": 0}
    expected = weights(trained(**here))
    begun = trained(**here, data=pack, steps=5)  # in the middle of an epoch of 3 steps
    changes: dict[str, Any] = {"scaling.workers": 2, "epochs": 2, "steps": None}
    assert weights(raytrain.resume(begun, quiet=True, **changes)) == expected
