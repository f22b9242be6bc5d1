"""Memory of normalised images that later batches use again."""

from __future__ import annotations

import pytest
import torch

from raytrain.data.transforms import Normalise

LAYOUTS = [torch.contiguous_format, torch.channels_last]


def normaliser(layout: torch.memory_format) -> Normalise:
    return Normalise((0.1, 0.2, 0.3), (0.4, 0.5, 0.6), memory_format=layout)


def pixels(count: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 256, (count, 3, 64, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_large_batches_have_the_values_and_strides_of_new_memory(layout: torch.memory_format) -> None:
    normalise, places = normaliser(layout), set[int]()
    for number in range(20):
        images = pixels(32 - number % 3, number)
        known = images.to(torch.float32, copy=True, memory_format=layout).sub_(normalise.shift).mul_(normalise.scale)
        found = normalise(images)
        assert torch.equal(found, known) and found.stride() == known.stride()
        places.add(found.data_ptr())
    assert len(places) <= 3, "a batch's memory serves for the next but one"


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_batches_that_are_kept_keep_their_values(layout: torch.memory_format) -> None:
    normalise, weight = normaliser(layout), torch.ones(3, 64, 64, requires_grad=True)
    kept = [normalise(pixels(32, number))[1:] for number in range(5)]
    known = [normaliser(layout)(pixels(32, number))[1:] for number in range(5)]
    assert all(map(torch.equal, kept, known))
    products = [(images * weight).sum() for images in kept]  # autograd alone refers to the images then
    kept.clear()
    for number in range(5, 10):
        normalise(pixels(32, number))
    for product, images in zip(products, known, strict=True):
        (gradient,) = torch.autograd.grad(product, weight)
        torch.testing.assert_close(gradient, images.sum(0))


def test_memory_of_a_smaller_batch_grows() -> None:
    normalise = normaliser(torch.contiguous_format)
    for count in (32, 64, 32, 64):
        assert torch.equal(normalise(pixels(count)), normaliser(torch.contiguous_format)(pixels(count)))
    assert len(normalise.memory.free) == 1
