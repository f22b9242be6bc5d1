"""The samples of the plan's step: the operations of an augmentation are tried on them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from raytrain import MLP, Augment, Digits, Experiment, HorizontalFlip, Operation
from raytrain.driver.first_batch import read_batch
from raytrain.errors import UserError


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
