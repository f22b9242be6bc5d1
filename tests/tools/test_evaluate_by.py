"""`evaluate --by COLUMN`: each group has the metrics that an evaluation of its samples alone has."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.commands import fails, finished, make_run, succeeds, without_ray
from PIL import Image
from torch import nn

import raytrain
from raytrain import AUROC, CNN, F1, Augment, Batch, Classification, Experiment, Manifest, Run, Task, UserError
from raytrain.tools.groups import Groups

__all__ = ["finished", "without_ray"]

pytestmark = pytest.mark.usefixtures("without_ray")
SITES = ("north", "south", "west")


def table(root: Path, sites: tuple[str, ...] = SITES) -> str:
    rows = []
    root.mkdir()
    for number, image in enumerate(np.random.default_rng(0).integers(0, 256, (90, 8, 8), np.uint8)):
        site, label, split = SITES[number % 3], "ab"[number // 3 % 2], "val" if number >= 30 else "train"
        if site in sites and not (site == "west" and label == "b"):
            Image.fromarray(image).save(root / f"{number}.png")
            rows.append((f"{number}.png", label, split, site, number % 3))
    with open(root / "table.csv", "w", newline="") as file:
        csv.writer(file).writerows([("path", "label", "split", "site", "machine"), *rows])
    return str(root / "table.csv")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    place = tmp_path_factory.mktemp("groups")
    grey: dict[str, Any] = {"channels": 1, "mean": (0.5,), "std": (0.5,), "augment": Augment(flip=0.5)}
    task = Classification(metrics=(F1(), AUROC()))
    return make_run(place / "run", Experiment(CNN(channels=(4,)), Manifest(table(place / "all"), size=8, **grey), task))


@pytest.mark.parametrize("tta", ["", "flip"])
def test_a_group_has_the_metrics_of_its_samples_alone(run: Run, tmp_path: Path, tta: str) -> None:
    whole = raytrain.evaluate(run, by="site", tta=tta)
    groups = whole.pop("groups")
    assert whole == raytrain.evaluate(run, tta=tta) and whole["count"] == sum(one["count"] for one in groups.values())
    assert list(groups) == list(SITES)
    for site in ("north", "south"):
        alone = raytrain.evaluate(run, root=table(tmp_path / site, (site,)), tta=tta)
        assert groups[site].keys() == {"loss", "accuracy", "macro_f1", "auroc", "count"}
        for name, value in groups[site].items():
            assert value == pytest.approx(alone[name], abs=1e-6), name
    assert np.isnan(groups["west"]["auroc"]) and groups["west"]["count"] == 10, "it has one class alone"


def test_numbers_name_groups_too_and_the_table_is_printed(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(succeeds(capsys, "evaluate", run.path, "--by", "machine", "--json"))
    assert list(found["groups"]) == ["0", "1", "2"] and found["groups"]["2"]["auroc"] is None
    lines = succeeds(capsys, "evaluate", run.path, "--by", "site").splitlines()
    (head,) = (line for line in lines if line.split()[:1] == ["group"])
    assert head.split()[-1] == "count" and lines[lines.index(head) + 3].split()[0] == "west"


def test_a_column_that_is_not_there_is_named(run: Run, finished: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no column 'sit'" in (said := fails(capsys, "evaluate", run.path, "--by", "sit")) and "site" in said
    assert "no column 'site', in --by; only tables" in fails(capsys, "evaluate", finished.path, "--by", "site")


@dataclass(frozen=True)
class Own(Task):
    def loss(self, model: nn.Module, batch: Batch) -> tuple[torch.Tensor, int]:
        return model(batch.images).square().sum(), len(batch)


def test_a_task_without_outputs_to_compare_is_refused() -> None:
    with pytest.raises(UserError, match=r"--by needs the outputs of the model, and Own has `sums` of its own"):
        Groups(Own(), np.zeros(3))
