"""sampler: which sample stands at each position. Distributions are compared with their weights, all else exactly."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from raytrain import Augment, Balanced, Data, Digits, Experiment, Field, Index, Sampler, SimpleModel, Weighted, order
from raytrain.data import streaming
from raytrain.data.loader import Loaded, Loader
from raytrain.data.reader import Resident
from raytrain.data.sampler import check_sampler, drawing
from raytrain.data.streaming import Streaming
from raytrain.errors import UserError

N = 103
LABELS = np.repeat(np.arange(3), (70, 30, 3))
INDEX = Index(
    LABELS,
    ("cat", "dog", "owl"),
    (1, 4, 4),
    "train",
    columns={"weight": np.arange(N) % 5 * 1.0, "patient": np.array([f"p{n % 7}" for n in range(N)])},
)
IMAGES = np.random.default_rng(0).integers(0, 256, (N, 1, 4, 4), dtype=np.uint8)
SAMPLERS = (
    Sampler(),
    Sampler(fraction=0.3),
    Sampler(count=250),
    Balanced(),
    Balanced(count=31),
    Weighted(classes=(("owl", 20.0),)),
    Weighted(weights=(1.0, 0.0, 9.0), count=64),
    Weighted(column="weight", replacement=False, fraction=0.5),
)


def epoch(sampler: Sampler, number: int = 0, index: Index = INDEX, seed: int = 7) -> np.ndarray:
    return sampler.samples(index, seed, number, np.arange(sampler.size(index)))


def chi_square(found: np.ndarray, weights: np.ndarray) -> tuple[float, int]:
    """Pearson's statistic of counts against weights, and its degrees of freedom."""
    counts = np.bincount(found, minlength=len(weights)).astype(float)
    expected = weights / weights.sum() * len(found)
    assert not counts[expected == 0].any()
    kept = expected > 0
    return float(((counts - expected)[kept] ** 2 / expected[kept]).sum()), int(kept.sum()) - 1


@pytest.mark.parametrize("sampler", SAMPLERS, ids=repr)
def test_samples_are_a_pure_function_of_seed_epoch_and_position(sampler: Sampler) -> None:
    whole = epoch(sampler, 3)
    assert whole.dtype == np.int64 and whole.min() >= 0 and whole.max() < N
    shuffled = np.random.default_rng(1).permutation(len(whole))
    assert np.array_equal(sampler.samples(INDEX, 7, 3, shuffled), whole[shuffled])
    assert not np.array_equal(epoch(sampler, 4), whole) and not np.array_equal(epoch(sampler, 3, seed=8), whole)


def test_the_default_is_the_order_of_before() -> None:
    for number in (0, 5):
        assert np.array_equal(epoch(Sampler(), number), order.samples(7, number, N, np.arange(N)))
    assert drawing(Sampler(), INDEX) is None and drawing(Sampler(fraction=0.5), INDEX) is not None


@pytest.mark.parametrize(("sampler", "size"), [(Sampler(fraction=0.3), 31), (Sampler(count=250), 250)])
def test_parts_of_epochs_use_every_sample_once_before_any_twice(sampler: Sampler, size: int) -> None:
    drawn = np.concatenate([epoch(sampler, number) for number in range(10)])
    assert len(drawn) == 10 * size
    for start in range(0, len(drawn) - N + 1, N):
        assert np.array_equal(np.sort(drawn[start : start + N]), np.arange(N))


@pytest.mark.parametrize(
    ("sampler", "weights"),
    [
        (Weighted(weights=(1.0, 0.0, 9.0), count=20_000), np.array([1.0, 0.0, 9.0])[LABELS]),
        (Weighted(classes=(("owl", 20.0), ("cat", 0.5)), count=20_000), np.array([0.5, 1.0, 20.0])[LABELS]),
        (Weighted(column="weight", count=20_000), INDEX.columns["weight"]),
    ],
    ids=repr,
)
def test_draws_with_replacement_have_the_distribution_of_the_weights(sampler: Weighted, weights: np.ndarray) -> None:
    for number in range(3):
        statistic, freedom = chi_square(epoch(sampler, number), weights)
        assert statistic < freedom + 4 * np.sqrt(2 * freedom), "of 4 standard deviations"
        # Successive draws are independent: no less do those that follow a certain sample.
        drawn = epoch(sampler, number)
        after = drawn[1:][LABELS[drawn[:-1]] == 0]
        statistic, freedom = chi_square(after, weights)
        assert statistic < freedom + 4 * np.sqrt(2 * freedom)


def test_draws_without_replacement_repeat_nothing_and_follow_the_weights() -> None:
    weights = np.array([1.0, 2.0, 4.0, 0.0, 8.0])
    index = Index(fields=(Field("x", (2,), "float32"),), count=5, columns={"w": weights})
    two = Weighted(column="w", replacement=False, count=2)
    found = np.array([epoch(two, number, index) for number in range(20_000)])
    assert (found[:, 0] != found[:, 1]).all() and not (found == 3).any()
    share = weights / weights.sum()
    pairs = np.array([[0 if a == b else share[a] * share[b] / (1 - share[a]) for b in range(5)] for a in range(5)])
    statistic, freedom = chi_square(found[:, 0] * 5 + found[:, 1], pairs.ravel())  # one after the other
    assert statistic < freedom + 4 * np.sqrt(2 * freedom)
    everyone = Weighted(column="w", replacement=False)
    assert everyone.size(index) == 4 and sorted(epoch(everyone, 0, index)) == [0, 1, 2, 4]


def test_balanced_classes_come_equally_often_and_their_samples_in_turn() -> None:
    sampler = Balanced(count=100)
    drawn = [epoch(sampler, number) for number in range(40)]
    for one in drawn:
        counts = np.bincount(LABELS[one], minlength=3)
        assert counts.max() - counts.min() <= 1 and counts.sum() == 100
    times = np.bincount(np.concatenate(drawn), minlength=N)
    for label in range(3):
        of_class = times[label == LABELS]
        assert of_class.max() - of_class.min() <= 1
    labels = LABELS[np.concatenate(drawn)]
    ahead = np.bincount(labels[:-1] * 3 + labels[1:], minlength=9) / (len(labels) - 1)
    assert np.abs(ahead - 1 / 9).max() < 0.02, "classes come in random order, not in blocks or in turn"


class Source(Data):
    def read(self, index: Index, samples: np.ndarray) -> np.ndarray:
        return IMAGES[samples]


def loaded(
    sampler: Sampler, world: int, reader: Any, data: Data, number: int = 1, first: int = 0
) -> list[list[Loaded]]:
    loaders = [
        Loader(data, INDEX, reader, 12, 7, rank, world, torch.device("cpu"), True, sampler=sampler)
        for rank in range(world)
    ]
    return [list(loader.epoch(number, first)) for loader in loaders]


def seen(steps: list[list[Loaded]]) -> list[tuple[bytes, bytes]]:
    """What the model sees of each global batch: samples, and pixels."""
    return [
        tuple(
            np.concatenate([part(one) for one in of_ranks]).tobytes()
            for part in (lambda one: one.ids, lambda one: one.prepare(one.arrays, one.keys)["image"].numpy())
        )
        for of_ranks in zip(*steps, strict=True)
    ]  # type: ignore[return-value]


@pytest.mark.parametrize("sampler", SAMPLERS, ids=repr)
def test_global_batches_are_the_same_for_1_2_3_and_4_ranks_and_from_any_step(sampler: Sampler) -> None:
    data, reader = Source(augment=Augment(crop="random", padding=2, flip=0.5)), Resident({"image": IMAGES})
    alone = seen(loaded(sampler, 1, reader, data))
    assert len(alone) == -(-sampler.size(INDEX) // 12)
    ids = np.concatenate([np.frombuffer(one[0], np.int64) for one in alone])
    assert np.array_equal(ids, epoch(sampler, 1))
    for world in (2, 3, 4):
        assert seen(loaded(sampler, world, reader, data)) == alone
        assert seen(loaded(sampler, world, reader, data, first=2)) == alone[2:]


@pytest.mark.parametrize("sampler", SAMPLERS, ids=repr)
def test_streamed_batches_equal_resident_ones(sampler: Sampler, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_blocks(data: Data, index: object, samples: Any, total: int, *_: object) -> Any:
        for start in range(0, total, 7):  # tasks ask for any ranges
            chosen = samples(np.arange(start, min(start + 7, total)))
            yield {"image": IMAGES[chosen]}, []

    monkeypatch.setattr(streaming, "read_blocks", read_blocks)
    data = Source(augment=Augment(flip=0.5))
    resident, stream = Resident({"image": IMAGES}), Streaming(data, INDEX, None)
    for world, first in ((1, 0), (3, 2)):
        expected = seen(loaded(sampler, world, resident, data, first=first))
        assert seen(loaded(sampler, world, stream, data, first=first)) == expected


def test_a_sample_drawn_twice_is_augmented_differently() -> None:
    data = Source(augment=Augment(crop="random", padding=4))
    sampler = Weighted(weights=(0.0, 0.0, 1.0), count=60)  # three samples, twenty times each
    ((*steps,),) = loaded(sampler, 1, Resident({"image": IMAGES}), data)
    pixels: dict[int, set[bytes]] = {}
    for one in steps:
        for sample, image in zip(one.ids, one.prepare(one.arrays, one.keys)["image"].numpy(), strict=True):
            pixels.setdefault(int(sample), set()).add(image.tobytes())
    assert all(len(variants) > 8 for variants in pixels.values()) and len(pixels) == 3
    (default,) = loaded(Sampler(), 1, Resident({"image": IMAGES}), data)
    assert all(np.array_equal(one.keys, one.ids) for one in default)


def test_validation_takes_every_sample_once() -> None:
    loader = Loader(
        Source(), INDEX, Resident({"image": IMAGES}), 12, 7, 0, 1, torch.device("cpu"), False, sampler=SAMPLERS[6]
    )
    assert np.array_equal(np.concatenate([one.ids for one in loader.epoch(0)]), np.arange(N))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Weighted(), "Weighted has no weights, in Weighted; give weights"),
        (lambda: Weighted(weights=(1.0,), column="w"), "weights of several kinds, weights and column"),
        (lambda: Weighted(weights=(1.0, -2.0)), "a weight must be a finite number of at least 0, got -2"),
        (lambda: Weighted(weights=(1.0, float("nan"))), "a weight must be a finite number of at least 0, got nan"),
        (lambda: Weighted(weights=(0.0, 0.0)), "all weights are 0, so that no sample can be drawn"),
        (lambda: Weighted(classes=(("cat", 1.0), ("cat", 2.0))), "class 'cat' has two weights"),
        (lambda: Weighted(classes=(("cat", -1.0),)), "at least 0, got -1"),
        (lambda: Sampler(fraction=0.0), "fraction = 0.0 is out of range, in Sampler; give a value above 0 and at most"),
        (lambda: Sampler(fraction=1.5), "fraction = 1.5 is out of range"),
        (lambda: Sampler(count=0), "count = 0 is out of range"),
        (lambda: Sampler(fraction=0.5, count=10), "fraction and count both say how many"),
        (lambda: Weighted(weights=("a",)), "weights = \\('a',\\) is of the wrong type"),  # type: ignore[arg-type]
    ],
)
def test_a_sampler_that_cannot_be_is_refused(make: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        make()


@dataclass(frozen=True)
class Own(Sampler):
    """A user's sampler that returns what a test gives it."""

    what: str = "first"

    def samples(self, index: Index, seed: int, epoch: int, positions: np.ndarray) -> Any:
        return {
            "first": positions % 2,
            "list": list(positions),
            "float": positions / 2,
            "far": positions + 1,
            "random": np.random.default_rng().integers(0, len(index), len(positions)),
            "fails": positions if self.what != "fails" else [][0],
        }[self.what]

    def size(self, index: Index) -> Any:
        return 7.5 if self.what == "half" else super().size(index)


UNLABELLED = Index(fields=(Field("x", (2,), "float32"),), count=5)


@pytest.mark.parametrize(
    ("sampler", "index", "message"),
    [
        (Weighted(classes=(("dgo", 1.0),)), INDEX, r"no class 'dgo', in Weighted; did you mean dog\? the classes are"),
        (Weighted(weights=(1.0, 2.0)), INDEX, "one number per class, 3, got 2, in Weighted; the classes are cat, dog"),
        (Weighted(column="wieght"), INDEX, r"no column 'wieght', in Weighted; did you mean weight\? the columns are"),
        (Weighted(column="site"), INDEX, r"the columns are .*; name it in `columns` of a Manifest, or let index"),
        (Weighted(column="weight"), UNLABELLED, "no column 'weight', .* of a Manifest, or let index"),
        (Weighted(column="patient"), INDEX, "weights in column 'patient' must be numbers, got <U2"),
        (Weighted(weights=(1.0,)), UNLABELLED, "goes by classes, and the data has none"),
        (Balanced(), UNLABELLED, "Balanced goes by classes, and the data has none"),
        (Weighted(weights=(0.0, 0.0, 1.0), replacement=False, count=4), INDEX, "count = 4 is out of range, .* most 3"),
        (Weighted(weights=(0.0, 0.0, 1.0)), INDEX.take(np.arange(50)), "all weights are 0"),
        (Own(what="list"), INDEX, r"must return int64 \[\d+\] of 0 to 102, got list, in Own.samples \(.*test_sampler"),
        (Own(what="float"), INDEX, "got float64"),
        (Own(what="far"), INDEX, "got 1 to 103"),
        (Own(what="random"), INDEX, "other samples for the same positions of epoch 0"),
        (Own(what="fails"), INDEX, "Own.samples fails: IndexError"),
        (Own(what="half"), INDEX, r"size\(\) must return a whole number of samples above 0, got 7.5"),
    ],
)
def test_a_sampler_that_does_not_suit_the_data_is_refused(sampler: Sampler, index: Index, message: str) -> None:
    with pytest.raises(UserError, match=message):
        check_sampler(sampler, index, 0)


def test_samplers_that_suit_pass() -> None:
    for sampler in (*SAMPLERS, Own()):
        check_sampler(sampler, INDEX, 0)


def test_columns_follow_the_samples_and_count_in_the_fingerprint() -> None:
    some = INDEX.take(np.array([5, 1]))
    assert some.columns["patient"].tolist() == ["p5", "p1"] and some.columns["weight"].tolist() == [0.0, 1.0]
    other = Index(LABELS, INDEX.classes, INDEX.shape, "train", columns={**INDEX.columns, "weight": np.ones(N)})
    assert other.fingerprint() != INDEX.fingerprint() != Index(LABELS, INDEX.classes, INDEX.shape).fingerprint()


def test_a_torch_sampler_is_refused_with_what_to_write() -> None:
    torchs: Any = torch.utils.data.WeightedRandomSampler([1.0], 1)
    wanted = "sampler must be a Sampler of raytrain, got .*WeightedRandomSampler; in Experiment; use .*Weighted"
    with pytest.raises(UserError) as refused:
        Experiment(SimpleModel(), Digits(), sampler=torchs)
    assert re.search(wanted.replace("; in", ", in"), str(refused.value)), refused.value
