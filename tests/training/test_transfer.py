"""experiments/transfer.py: what was learnt from some digits helps with others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.commands import REPOSITORY
from helpers.ranks import new_run, train_rank

from raytrain import MNIST, SGD, Experiment, Run, config, load_experiment


@pytest.fixture(scope="module")
def transfer(data_root: Path) -> Experiment:
    e, _ = load_experiment(REPOSITORY / "experiments" / "transfer.py")
    e = config.replace(e, "scaling.threads_per_worker", 1)
    return config.replace(e, "data.root", str(data_root / "mnist"))


def accuracy(e: Experiment, folder: Path) -> float:
    """The validation accuracy after the last epoch."""
    torch.set_num_threads(1)
    train_rank(0, 1, e, new_run(folder, e))
    return Run(folder).metrics()["val_accuracy"][-1].as_py()


def test_the_chosen_digits_become_the_classes(transfer: Experiment) -> None:
    data: Any = transfer.data
    some = replace(data, digits=(5, 7), each=3)
    whole, index = data.index(), some.index()
    assert len(whole["train"]) == 30_596 and whole["train"].classes == tuple("01234")
    assert index["val"].classes == ("5", "7") and len(index["val"]) == 400
    assert np.bincount(index["train"].labels).tolist() == [30, 30] and len({*index["train"].rows}) == 6
    original = MNIST(data.root).index()["train"].labels
    assert (original[index["train"].rows] == np.array([5, 7])[index["train"].labels]).all()
    other = replace(some, draw=1).index()["train"]
    assert not {*other.rows} & {*index["train"].rows}


@pytest.mark.slow
def test_pretraining_on_other_digits_gains_five_points(transfer: Experiment, tmp_path: Path) -> None:
    assert accuracy(transfer, tmp_path / "pretrained") > 0.99
    few: Any = replace(transfer, batch_size=10, epochs=4)
    model, slow = replace(few.model, weights=str(tmp_path / "pretrained")), SGD(lr=0.005, momentum=0.9)
    ways = {
        "scratch": replace(few, optimizer=SGD(lr=0.01, momentum=0.9)),
        "frozen": replace(few, model=model, optimizer=slow, freeze=("[0-5].*",)),
        "staged": replace(few, model=model, optimizer=slow, unfreeze_epoch=2),
    }
    found: dict[str, float] = {}
    for name, e in ways.items():
        data = [replace(e.data, digits=(5, 6, 7, 8, 9), each=10, draw=draw) for draw in range(5)]
        each = [accuracy(replace(e, data=one), tmp_path / f"{name}-{one.draw}") for one in data]
        found[name] = sum(each) / len(each)
    assert found["frozen"] > found["scratch"] + 0.05 and found["staged"] > found["scratch"] + 0.05, found
