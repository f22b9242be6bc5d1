"""The tutorials' systems, a file each: what it says of itself, and that it trains as a plain loop does."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers.ranks import Ranks, losses, new_run, reference, train_rank

from raytrain import MNIST, SGD, Experiment, ImageFolder, config, load_experiment
from raytrain.data import Index

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "experiments" / "tutorials").glob("*.py"))
DOCUMENTS = (
    'An untitled answer in an examination review ("PyTorch, an open-source machine learning library ..."), "',
    '"Setting up multi GPU processing in PyTorch" (Mandal, 2022), ',
    '"Scale training on multiple GPUs with PyTorch" (Das), "',
    "RiseUnion's article on distributed training with PyTorch (2024, untitled), ",
    '"How to Use Multiple GPUs in PyTorch for Faster Training", "',
)
STEPS = 4


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Loading a file leaves its module and its folder behind, as running it would."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    sys.modules.pop(config.EXPERIMENT_MODULE, None)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_tutorial_names_document_commands_and_result(file: Path) -> None:
    text = file.read_text()
    about = text.split('"""')[1]
    said = " ".join(about.split())
    commands = [shlex.split(line) for line in re.findall(r"^    (raytrain .*)$", about, re.MULTILINE)]
    experiment, _ = load_experiment(file)
    assert text.count("\n") < 40 and any(document in said for document in DOCUMENTS)
    assert commands and all(
        words[:3] == ["raytrain", "train", f"experiments/tutorials/{file.name}"] for words in commands
    )
    flags = {word[2:] for words in commands for word in words if word.startswith("--")}
    assert flags <= {*config.paths(experiment), "address", "out"}
    assert re.search(r"On two CPU cores: .*\d s", said)
    assert f"`{file.name}`" in (ROOT / "docs/strategies.md").read_text()


def load_and_train(rank: int, world: int, run: Path, indices: dict[str, Index]) -> str:
    """A rank reads the run's own copy of the file, as workers do: its classes are no module's."""
    return train_rank(rank, world, load_experiment(run)[0], run, indices)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_tutorial_trains_as_a_plain_pytorch_loop_does(
    ranks: Ranks, tmp_path: Path, file: Path, request: pytest.FixtureRequest
) -> None:
    e = replace(here(load_experiment(file)[0], request), epochs=1)
    indices = {split: few(index, STEPS * e.batch_size) for split, index in e.data.index().items()}
    run = new_run(tmp_path / "run", e)
    shutil.copy(file, run / "experiment.py")
    assert ranks.run(e.scaling.ranks, load_and_train, run, indices) == ["completed"] * e.scaling.ranks
    found = losses(run)
    assert len(found) == STEPS and np.isfinite(found).all()
    if isinstance(e.optimizer, SGD):  # fine-tuning has Adam, and each worker its own BatchNorm
        expected, _ = reference(e, STEPS, index=indices["train"])
        np.testing.assert_allclose(found, expected, rtol=1e-5 if e.precision == "fp32" else 1e-2)
        assert found[-1] < found[0]


def here(e: Experiment, request: pytest.FixtureRequest) -> Experiment:
    """The experiment on the tests' data, with small images."""
    if isinstance(e.data, MNIST):
        root = request.getfixturevalue("data_root") / "mnist"
        return replace(e, data=replace(e.data, root=str(root), download=False))
    if isinstance(e.data, ImageFolder):
        root = request.getfixturevalue("data_root") / "hymenoptera"
        return replace(e, data=replace(e.data, root=str(root), size=40, crop=32))
    return e


def few(index: Index, most: int) -> Index:
    """Some of the samples, of all classes."""
    return index.take(np.linspace(0, len(index) - 1, min(most, len(index))).astype(np.int64))
