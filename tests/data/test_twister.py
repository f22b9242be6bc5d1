"""Streams: torch's CPU generator, seed by seed."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from raytrain import order
from raytrain.data.twister import Streams, words

SEEDS = np.random.default_rng(0).integers(0, 2**63, 300, dtype=np.uint64)


@pytest.fixture(autouse=True)
def generator():
    with torch.random.fork_rng(devices=[]):
        yield


def seeded(seed: np.uint64) -> None:
    torch.default_generator.manual_seed(int(seed))


def test_words_are_the_generators_beyond_its_first_state() -> None:
    found = words(SEEDS[:3], 1500)
    for column, seed in enumerate(SEEDS[:3]):
        seeded(seed)
        assert torch.randint(2**27, (1500,)).tolist() == (found[:, column] % 2**27).tolist()
    assert np.array_equal(words(SEEDS[:3], 5), found[:5])


def test_numbers_are_torchs_in_any_order_of_calls() -> None:
    streams = Streams(SEEDS)
    found = [streams.integers(14), streams.floats(), streams.doubles(), streams.integers(np.full(300, 224))]
    for row, seed in enumerate(SEEDS):
        seeded(seed)
        assert torch.randint(14, ()).item() == found[0][row] and torch.rand(()).item() == found[1][row]
        assert torch.rand((), dtype=torch.float64).item() == found[2][row]
        assert torch.randint(224, (1,)).item() == found[3][row]
    some = np.array([7, 2])
    streams = Streams(SEEDS)
    streams.floats(some)
    assert np.array_equal(streams.floats(np.array([2, 7, 0])), [found[1][2], found[1][7], Streams(SEEDS).floats()[0]])


@pytest.mark.parametrize("alpha", [0.05, 0.2, 0.4, 1.0, 1.7, 8.0])
def test_betas_are_torchs(alpha: float) -> None:
    streams, two = Streams(SEEDS), torch.tensor([0.5, 0.5])
    firsts, betas, later = streams.firsts(), streams.betas(alpha), streams.integers(97)
    beta = torch.distributions.Beta(torch.tensor([alpha]), torch.tensor([alpha]))
    for row, seed in enumerate(SEEDS):
        seeded(seed)
        assert (torch.multinomial(two, 1).item() == 0) == firsts[row]
        assert beta.sample(()).item() == betas[row] and torch.randint(97, ()).item() == later[row]
    assert 100 < firsts.sum() < 200


def test_keys_are_those_of_each_sample() -> None:
    ids = np.array([0, 1, 5, 2**40, 2**63 - 1])
    for seed, epoch, purpose in ((0, 0, 1 << 32), (2**63, 7, 3 << 32), (-5, 2, 0)):
        expected = [order.key(seed, epoch, int(one), purpose) for one in ids]
        assert order.keys(seed, epoch, ids, purpose).tolist() == expected
