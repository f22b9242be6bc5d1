"""Damaged and hostile images and IDX files: each is read or named, soon and in little memory, and no process ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from harness.faults import mutated
from helpers.commands import fails, no_runs, without_ray

from raytrain import Run

SEED = 0

__all__ = ["no_runs", "without_ray"]


@pytest.fixture(scope="module")
def data() -> Path | None:
    """The folder with hymenoptera, if it is there."""
    default = Path(__file__).parents[3] / "shared" / "data"
    root = Path(os.environ.get("RAYTRAIN_TEST_DATA", default))
    return root if root.is_dir() else None


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory, data: Path | None) -> tuple[Path, dict[str, str], dict[str, Any]]:
    """The folder, the kind of each mutated file, and what reading them came to, in a process of its own."""
    root = tmp_path_factory.mktemp("mutated")
    kinds = mutated.make_folder(root, SEED, data)
    return root, kinds, mutated.alone("images", root, SEED)


def test_500_mutated_images_give_pixels_or_a_reason(
    read: tuple[Path, dict[str, str], dict[str, Any]],
) -> None:
    _, kinds, found = read
    assert len(kinds) >= 500
    outcomes = Counter((kind, found["results"][name][0] is None) for name, kind in kinds.items())
    assert outcomes["wrong extension", False] == 0, "the format is read from the bytes"
    for kind in ("no image", "no file"):
        assert outcomes[kind, True] == 0 < outcomes[kind, False]
    for kind in ("truncated", "bits flipped", "header edited", "piece moved", "foreign bytes"):
        assert outcomes[kind, False] >= 10 and outcomes[kind, True] > 0, outcomes
    bombs = {
        name.rpartition("/")[2] for name, kind in kinds.items() if kind == "bomb" and not found["results"][name][0]
    }
    assert bombs == {"bomb-data.png", "bomb-palette.png"}, "of more data than pixels the pixels alone are inflated"


def test_none_of_them_takes_seconds_or_hundreds_of_megabytes(
    read: tuple[Path, dict[str, str], dict[str, Any]],
) -> None:
    *_, found = read
    slow = {name: seconds for name, (_, seconds) in found["results"].items() if seconds > 5}
    assert not slow and found["megabytes"] < 200


def test_skip_drops_only_bad_samples_in_both_modes(
    read: tuple[Path, dict[str, str], dict[str, Any]],
) -> None:
    root, kinds, found = read
    refused = {name for name, (reason, _) in found["results"].items() if reason}
    assert refused <= set(kinds) and len(found["results"]) == len(kinds) + 64, "the good ones are read"
    assert found["equal"], "pixels of the good files"
    assert sorted(found["kept"]) == sorted(f"{root}/all/{name}" for name in refused)
    assert found["kept"] == found["streamed"] == found["streamed again"]


def test_error_names_one_of_them_in_a_line(read: tuple[Path, dict[str, str], dict[str, Any]]) -> None:
    root, _, found = read
    what, _, rest = found["message"].partition(f", {root}/all/")
    name = rest.partition("; ")[0]
    assert what == f"cannot read sample: {found['results'][name][0]}" and "\n" not in found["message"]
    assert name == next(n for n, (reason, _) in found["results"].items() if reason), "the first one in the index"


EXPERIMENT = """
from dataclasses import dataclass
from pathlib import Path

import torch

from raytrain import CNN, Classification, Experiment, ImageFolder, Scaling
from raytrain.data import packing

packing._HERE_SECONDS, packing._HERE_ROWS = 0.0, 32  # or Ray Data's tasks would have nothing to read


@dataclass(frozen=True)
class Recording(Classification):
    folder: str = ""

    def loss(self, model, batch):
        with open(Path(self.folder) / f"{{torch.distributed.get_rank()}}.txt", "a") as file:
            file.write("".join(f"{{i}}\\n" for i in batch.ids))
        return super().loss(model, batch)


experiment = Experiment(
    model=CNN(channels=(4,)),
    data=ImageFolder(root="{root}/all", size=16, crop=None, on_bad_sample="skip"),
    task=Recording(folder="{folder}"),
    scaling=Scaling(workers=2, threads_per_worker=1),
    batch_size=32,
    epochs=1,
)
"""


@pytest.mark.slow
def test_a_run_on_them_skips_them_on_all_workers_and_says_so(
    read: tuple[Path, dict[str, str], dict[str, Any]], tmp_path: Path
) -> None:
    root, _, found = read
    (tmp_path / "run.py").write_text(EXPERIMENT.format(root=root, folder=tmp_path))
    command = [sys.executable, "-m", "raytrain.cli", "train", str(tmp_path / "run.py"), "--out", str(tmp_path)]
    environment = dict(os.environ)  # without COLUMNS, which readline may set behind Python's back
    done = subprocess.run([*command, "--name", "run"], env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    skipped = json.loads((tmp_path / "run" / "skipped.json").read_text())
    reasons = {f"{root}/all/{name}": reason for name, (reason, _) in found["results"].items() if reason}
    assert {one["path"]: one["reason"] for split in skipped.values() for one in split} == reasons
    for split, bad in skipped.items():
        said = f"skipped  {len(bad)} of {split} cannot be read: {bad[0]['path']} ({bad[0]['reason']}) ..."
        assert done.stdout.count(said) == 1
    assert f"all skipped samples are listed in {tmp_path}/run/skipped.json" in done.stdout
    good = sum(name.startswith("train") and not reason for name, (reason, _) in found["results"].items())
    ids = [int(line) for rank in (0, 1) for line in (tmp_path / f"{rank}.txt").read_text().split()]
    blank = [0] if good % 32 == 1 else []  # for the rank that has no sample of the last batch
    assert sorted(ids) == sorted([*range(good), *blank])
    assert Run(tmp_path / "run").summary["steps"] == -(-good // 32)


def test_mutated_files_depend_on_the_seed() -> None:
    first = mutated.images(SEED, None)
    assert first == mutated.images(SEED, None) and mutated.idx_files(SEED) == mutated.idx_files(SEED)
    assert len({file.name for file in first}) == len(first) >= 500
    other = {file.name: file.raw for file in mutated.images(SEED + 1, None)}
    assert sum(file.raw != other.get(file.name) for file in first) > len(first) / 2


def test_mutated_idx_files_are_read_or_named(tmp_path: Path) -> None:
    found = mutated.alone("idx", tmp_path, SEED)
    assert len(found["files"]) >= 400 and found["megabytes"] < 60 and max(s for *_, s in found["files"]) < 5
    outcomes = Counter((kind, message is None) for kind, message, _ in found["files"])
    for suffix in ("", ".gz"):
        assert outcomes[f"IDX{suffix}: truncated", True] == outcomes[f"IDX{suffix}: bomb", True] == 0
        assert outcomes[f"IDX{suffix}: bomb", False] == 12 and outcomes[f"IDX{suffix}: header edited", True] > 0
    assert outcomes["IDX: no images", True] == 0 < outcomes["IDX: bits flipped", True], outcomes


@pytest.mark.usefixtures("without_ray")
def test_a_mutated_idx_file_is_one_line_and_exit_status_2(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, no_runs: Path
) -> None:
    experiment = tmp_path / "mnist.py"
    experiment.write_text(
        "from raytrain import CNN, MNIST, Experiment\n"
        f"experiment = Experiment(model=CNN(channels=(4,)), data=MNIST(root={str(tmp_path)!r}))\n"
    )
    told = Counter()
    for file in mutated.idx_files(SEED):
        if told[file.kind, file.name] == 0 and file.kind.partition(": ")[2] in ("truncated", "bomb", "no images"):
            path = mutated.place_idx(tmp_path, file)
            assert str(path) in fails(capsys, "train", experiment, "--out", no_runs)
            told[file.kind, file.name] += 1
    assert sum(told.values()) >= 20
