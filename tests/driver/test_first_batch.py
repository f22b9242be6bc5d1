"""The samples of the plan's step: the operations of an augmentation are tried on them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from raytrain import MLP, Augment, ColorJitter, Data, Digits, Experiment, Field, HorizontalFlip, Index, Operation
from raytrain.driver import first_batch
from raytrain.driver.first_batch import dark, read_batch
from raytrain.errors import BadSample, UserError


@dataclass(frozen=True)
class Broken(Operation):
    def apply(self, images: torch.Tensor, draws: np.ndarray, side: int | None) -> torch.Tensor:
        return images @ torch.zeros(3)


def test_an_operation_that_fails_is_named_with_its_line() -> None:
    index = Digits().index()["train"]
    good = Experiment(MLP(), Digits(augment=Augment(operations=(HorizontalFlip(),))))
    assert torch.equal(read_batch(good, index, 2).images, read_batch(Experiment(MLP(), Digits()), index, 2).images)
    with pytest.raises(UserError, match=r"an operation of data\.augment fails: RuntimeError: .*; correct it"):
        read_batch(Experiment(MLP(), Digits(augment=Augment(operations=(Broken(),)))), index, 2)


@dataclass(frozen=True)
class Floats(Data):
    """Images of floats, perhaps normalised by their author."""

    low: float = 0.0
    mean: tuple[float, ...] = (0.5,)
    std: tuple[float, ...] = (0.5,)

    def index(self) -> dict[str, Index]:
        field = Field("image", (3, 4, 4), "float32", "image")
        return {
            split: Index(np.zeros(4, np.int64), ("a", "b"), split=split, fields=(field,)) for split in ("train", "val")
        }

    def read(self, index: Index, samples: np.ndarray) -> dict[str, np.ndarray]:
        images = np.linspace(self.low, 1, len(samples) * 48, dtype=np.float32)
        return {"image": images.reshape(len(samples), 3, 4, 4)}


def test_images_that_an_operation_would_cut_off_are_refused() -> None:
    def tried(low: float, operation: Operation) -> None:
        data = Floats(low=low, augment=Augment(operations=(operation,)))
        read_batch(Experiment(MLP(), data), data.index()["train"], 2)

    jitter = ColorJitter(brightness=0.1)
    tried(0.0, jitter)
    tried(-2.0, HorizontalFlip())
    with pytest.raises(
        UserError, match=r"ColorJitter cuts images off at 0 and 1, and 'image' goes from -2 to 1, in data"
    ):
        tried(-2.0, jitter)


@dataclass(frozen=True)
class Stored(Data):
    """Images of uint8 up to a value; one cannot be read."""

    most: int = 255
    dtype: str = "uint8"
    broken: bool = False

    def index(self) -> dict[str, Index]:
        field = Field("image", (3, 4, 4), self.dtype, "image")
        index = Index(np.arange(20) % 2, ("a", "b"), fields=(field,))
        return {"train": index, "val": index}

    def read(self, index: Index, samples: np.ndarray) -> dict[str, np.ndarray]:
        if self.broken:
            raise BadSample("3.png", "it is empty")
        return {"image": np.full((len(samples), 3, 4, 4), self.most, self.dtype)}


@pytest.mark.parametrize(
    ("data", "noted"),
    [
        (Stored(), False),
        (Stored(64), False),
        (Stored(16), True),
        (Stored(1), True),
        (Stored(0), False),
        (Stored(16, dtype="uint16"), False),
        (Stored(16, broken=True), False),
    ],
    ids=str,
)
def test_images_that_use_few_values_are_noted(data: Stored, noted: bool) -> None:
    found = dark(Experiment(MLP(), data), data.index()["train"])
    assert len(found) == noted and all(f"values from 0 to {data.most} of 255" in note for note in found)


def test_no_more_than_images_is_read_for_that_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_batch, "checked_read", lambda *_: pytest.fail("it reads numbers"))
    data = Stored(16, dtype="uint16")
    assert dark(Experiment(MLP(), data), data.index()["train"]) == []
