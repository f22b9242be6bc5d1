"""Folds that share one copy of their data: each has what it would read by itself, and each sample is read once."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from raytrain import MLP, Data, Digits, Experiment, Folds, Grid, ImageFolder, Index, Sweep, UserError, order
from raytrain.data import packing
from raytrain.data.loader import Loader
from raytrain.data.reader import Epoch, Resident
from raytrain.driver.resources import Node, Resources
from raytrain.errors import BadSample
from raytrain.sweep import fold_data, fold_groups, sweep_plan
from raytrain.sweep.space import Axis

SAMPLES = 60
READS: Counter[int] = Counter()
"""How often each sample was read."""
FOLDS = Grid("data.folds.fold", (0, 1, 2))


@dataclass(frozen=True)
class Counted(Data):
    """Numbers its samples from 1000 on, counts how often each is read, and cannot read some."""

    numbered: bool = True
    bad: tuple[int, ...] = ()

    def index(self) -> dict[str, Index]:
        rows, labels = 1000 + np.arange(SAMPLES), np.arange(SAMPLES) % 3
        train = Index(labels, ("a", "b", "c"), (1, 2, 2), "train", rows if self.numbered else None)  # type: ignore[arg-type]
        return {"train": train, "val": replace(train.take(np.arange(3)), split="val")}

    def read(self, index: Index, samples: np.ndarray) -> np.ndarray:
        rows = index.rows[samples] - 1000 if self.numbered else samples
        for row in rows:
            if row in self.bad:
                raise BadSample(str(row), "it is damaged")
        READS.update(int(row) for row in rows)
        return np.repeat(rows.astype(np.uint8), 4).reshape(-1, 1, 2, 2)


def plans(data: Data, out: Path, *axes: Axis) -> dict[str, sweep_plan.Plan]:
    base = Experiment(model=MLP(hidden=(4,)), data=data, batch_size=16)
    resources = Resources((Node("n", 2.0, 0.0, 2**34),), "a cluster")
    return sweep_plan.make(Sweep(base, axes or (FOLDS,)), lambda: resources, out).variants


def test_folds_of_data_without_a_val_split_share_all_samples(tmp_path: Path) -> None:
    for number in range(12):
        path = tmp_path / "images" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (4, 4), number).save(path)
    shared = fold_data.read(plans(ImageFolder(str(tmp_path / "images"), size=4, folds=Folds(3)), tmp_path))
    assert shared is not None and len(shared.arrays["image"]) == 12


@pytest.mark.parametrize("bad", [(), (0, 7, 8, 59)])
def test_each_sample_is_read_once_and_folds_have_what_they_had(tmp_path: Path, bad: tuple[int, ...]) -> None:
    data = Counted(folds=Folds(3), bad=bad, on_bad_sample="skip")
    variants = plans(data, tmp_path)
    (keys,) = fold_groups.groups(variants)
    assert keys == list(variants) and len(keys) == 3
    READS.clear()
    shared = fold_data.read(variants)
    assert shared is not None and all(READS[row] == (row not in bad) for row in range(SAMPLES))
    assert [one.row for one in shared.bad] == list(bad) and len(shared.arrays["image"]) == SAMPLES - len(bad)
    for key, variant in variants.items():
        for split in ("train", "val"):
            arrays, index, skipped = packing.pack(variant.experiment.data, variant.indices[split])
            part, rows = shared.parts[key][split]
            assert part.fingerprint() == index.fingerprint() and part.split == index.split
            assert arrays is not None and len(rows) == len(index)
            ours, own = Resident(shared.arrays, rows), Resident(arrays)
            assert ours.bytes == own.bytes
            np.testing.assert_array_equal(ours.whole()["image"], arrays["image"])
            way = Epoch(order.Shard(len(index), 16, 0, 1), 3, 2)
            for (a, one), (b, other) in zip(ours.read(way), own.read(way), strict=True):
                np.testing.assert_array_equal(a, b)
                np.testing.assert_array_equal(one["image"], other["image"])
            at = [
                Loader(data, index, reader, 16, 0, 0, 1, torch.device("cpu"), True, on_device=True)
                for reader in (ours, own)
            ]
            for mine, theirs in zip(at[0].epoch(1), at[1].epoch(1), strict=True):
                assert torch.equal(mine.arrays["image"], theirs.arrays["image"])
        assert bool(skipped) == bool([row for row in bad if row in variant.indices["val"].rows - 1000])


def test_only_folds_of_the_same_samples_in_memory_share_them(tmp_path: Path) -> None:
    folds = Digits(folds=Folds(3))
    assert len(fold_groups.groups(plans(folds, tmp_path))[0]) == 3
    assert not fold_groups.groups(plans(replace(folds, mode="streaming"), tmp_path)), "streamed samples have no copy"
    assert not fold_groups.groups(plans(folds, tmp_path, Grid("data.folds.fold", (0,)))), "one fold shares with none"
    assert not fold_groups.groups(plans(Counted(folds=Folds(3), numbered=False), tmp_path))
    two = plans(folds, tmp_path, FOLDS, Grid("data.on_bad_sample", ("error", "skip")))
    assert sorted(map(len, fold_groups.groups(two))) == [3, 3]
    seeds = plans(folds, tmp_path, FOLDS, Grid("data.folds.seed", (0, 1)))
    assert list(map(len, fold_groups.groups(seeds))) == [6], "another split of the same samples"


def test_a_fold_without_a_readable_sample_is_refused(tmp_path: Path) -> None:
    variants = plans(Counted(folds=Folds(3), on_bad_sample="skip"), tmp_path)
    first = next(iter(variants.values())).indices["val"].rows.tolist()
    broken = {
        key: replace(
            v, experiment=replace(v.experiment, data=replace(v.experiment.data, bad=tuple(row - 1000 for row in first)))
        )  # type: ignore[call-arg]
        for key, v in variants.items()
    }
    with pytest.raises(UserError, match="damaged"):
        fold_data.read(broken)


def test_files_that_changed_since_the_plan_are_read_by_fold(tmp_path: Path) -> None:
    variants = plans(Counted(folds=Folds(3)), tmp_path)
    key, one = next(iter(variants.items()))
    fewer = {**one.indices, "val": one.indices["val"].take(np.arange(5))}
    assert fold_data.read({**variants, key: replace(one, indices=fewer)}) is None
