"""On a GPU: images are changed as on a CPU, by the same random numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from raytrain import (
    Augment,
    AugMix,
    ColorJitter,
    Digits,
    GaussianBlur,
    HorizontalFlip,
    Index,
    RandAugment,
    RandomAffine,
    RandomCrop,
    RandomErasing,
    RandomGrayscale,
    RandomResizedCrop,
    RandomRotation,
    TrivialAugmentWide,
    VerticalFlip,
)
from raytrain.data.prepare import Prepare

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
N, SIDE = 96, 40


def images() -> np.ndarray:
    """Smooth random images, uint8 [N, 3, SIDE, SIDE]."""
    rough = torch.rand(N, 3, 5, 5, generator=torch.Generator().manual_seed(0)) * 255
    smooth = torch.nn.functional.interpolate(rough, size=(SIDE, SIDE), mode="bicubic")
    return smooth.clamp(0, 255).to(torch.uint8).numpy()


def changed(augment: Augment, device: str) -> tuple[np.ndarray, np.ndarray]:
    """The images [N, 3, SIDE, SIDE] and labels after an augmentation, of mean 0 and standard deviation 1 / 255."""
    labels = np.arange(N) % 10
    index = Index(labels, tuple("0123456789"), (3, SIDE, SIDE), "train")
    data = replace(Digits(), mean=(0.0,), std=(1 / 255,), augment=augment)
    arrays = {"image": torch.from_numpy(images()).to(device), "label": torch.from_numpy(labels).to(device)}
    done = Prepare(data, index, torch.device(device)).augmented(arrays, np.arange(N), 3, 1, mixed=True)
    return done["image"].cpu().numpy(), done["label"].cpu().numpy()


@pytest.mark.parametrize(
    "augment",
    [
        Augment(crop="random", padding=4, flip=0.5),
        Augment(crop="random_resized", flip=0.5),
        Augment(erase=0.5),
        Augment(crop="random", padding=4, mixup=0.4, cutmix=1.0),
        Augment(policy="randaugment"),
        Augment(policy="trivialaugment"),
        *(
            Augment(operations=(operation,))
            for operation in (
                RandomCrop(padding=2),
                RandomResizedCrop(),
                HorizontalFlip(),
                VerticalFlip(),
                ColorJitter(0.4, 0.4, 0.4, 0.1),
                RandomGrayscale(),
                GaussianBlur(),
                RandomErasing(),
                RandomRotation(30),
                RandomAffine(20, translate=(0.1, 0.1), scale=(0.8, 1.2), shear=10),
                RandAugment(),
                TrivialAugmentWide(),
                AugMix(),
            )
        ),
    ],
    ids=lambda augment: type(augment.operations[0]).__name__ if augment.operations else str(augment.policy),
)
def test_images_are_changed_as_on_a_cpu(augment: Any) -> None:
    (there, labels), (here, known) = changed(augment, "cuda"), changed(augment, "cpu")
    assert np.array_equal(labels, known) or np.allclose(labels, known)
    apart = np.abs(there.astype(np.float64) - here)
    # A CPU resizes images of uint8 by integers, which round other values up.
    few = 0.25 if any(isinstance(one, RandomResizedCrop) for one in augment.operations) else 0.02
    assert (apart > 2.5).mean() < 1e-3 and (apart > 0.01).mean() < few, (apart.max(), (apart > 0.01).mean())
