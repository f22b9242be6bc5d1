"""mixup and cutmix of samples with several labels or numbers in place of one label."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.ranks import losses, new_run, train_rank

from raytrain import MLP, Augment, Data, Digits, Experiment, Field, Index, MultiLabel, Regression, UserError
from raytrain.data.prepare import Prepare

MIX = Augment(mixup=0.4, cutmix=1.0, flip=0.5)


@dataclass(frozen=True)
class OneHot(Data):
    """Digits with a number for each class."""

    more: bool = False
    """Whether samples have another field."""

    def index(self) -> dict[str, Index]:
        image, further = Field("image", (1, 8, 8), kind="image"), (Field("age", ()),) * self.more
        fields = (image, Field("tags", (10,)), *further)
        return {
            split: Index(fields=fields, count=len(index), split=split, rows=index.rows)
            for split, index in Digits().index().items()
        }

    def read(self, index: Index, samples: np.ndarray) -> dict[str, np.ndarray]:
        own = Digits().index()[index.split]
        images = Digits().read(own, samples)
        found = {"image": images, "tags": np.eye(10, dtype=np.uint8)[own.labels[samples]]}
        return found | ({"age": np.zeros(len(samples), np.uint8)} if self.more else {})


def test_numbers_are_mixed_as_labels_are() -> None:
    ids = np.array([4, 5, 0, 1, 30, 31])
    labelled, numbered = Digits(augment=MIX), OneHot(augment=MIX, mean=(0.3,), std=(0.4,))
    labelled = replace(labelled, mean=(0.3,), std=(0.4,))
    found = {}
    for data in (labelled, numbered):
        index = data.index()["train"]
        arrays = data.read(index, ids)
        tensors = (
            {"image": torch.from_numpy(arrays)}
            if isinstance(arrays, np.ndarray)
            else {name: torch.from_numpy(array) for name, array in arrays.items()}
        )
        if index.labels is not None:
            tensors["label"] = torch.from_numpy(index.labels[ids])
        before = {name: tensor.clone() for name, tensor in tensors.items()}
        found[data] = Prepare(data, index).augmented(tensors, ids, 7, 2, mixed=True)
        assert all(torch.equal(tensors[name], before[name]) for name in tensors), "they are copies"
        plain = Prepare(data, index).augmented(tensors, ids, 7, 2, mixed=False)
        assert "tags" not in plain or torch.equal(plain["tags"], before["tags"])
    assert torch.equal(found[numbered]["image"], found[labelled]["image"])
    assert found[numbered]["tags"].dtype == torch.float32
    assert torch.equal(found[numbered]["tags"], found[labelled]["target"])


@pytest.mark.parametrize("task", [MultiLabel(target="tags"), Regression(target="tags")])
def test_a_run_learns_from_mixed_numbers_in_any_micro_batches(tmp_path: Path, task: MultiLabel | Regression) -> None:
    def trained(name: str, **fields: Any) -> np.ndarray:
        e = Experiment(MLP(hidden=(8,), outputs=10), OneHot(augment=MIX), task, batch_size=32, steps=6)
        run = new_run(tmp_path / name, replace(e, **fields))
        assert train_rank(0, 1, replace(e, **fields), run) == "completed"
        return np.array(losses(run))

    whole, parts = trained("whole"), trained("parts", micro_batch_size=16)
    np.testing.assert_allclose(whole, parts, rtol=1e-5)
    plain = trained("plain", data=OneHot(augment=replace(MIX, mixup=0.0, cutmix=0.0)))
    assert np.isfinite(whole).all() and not np.allclose(whole, plain, rtol=1e-3)


def test_other_fields_are_not_mixed() -> None:
    data = OneHot(augment=MIX, more=True)
    with pytest.raises(UserError, match="mix an image and a label, or a field of numbers"):
        data.sample(data.index()["train"])
    data = replace(data, more=False)
    assert data.sample(data.index()["train"]) == (1, 8, 8)
