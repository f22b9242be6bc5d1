"""Loader: the same global batches for any number of ranks, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

from raytrain import order
from raytrain.data import Augment, Data, Index
from raytrain.data import loader as loader_module
from raytrain.data.drawn import DRAWS, Drawn, spread
from raytrain.data.loader import Loaded, Loader
from raytrain.data.reader import Resident
from raytrain.data.transforms import Normalise, center_crop, crop_and_flip, mix_pairs

N, BATCH, SEED = 103, 16, 5
IMAGES = np.random.default_rng(0).integers(0, 256, (N, 3, 24, 20), dtype=np.uint8)
INDEX = Index(np.arange(N) * 7 % 10, tuple("0123456789"), (3, 24, 20), "train")
PLAIN = Data(crop=16, mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4))
AUGMENTED = [
    Data(crop=16, augment=Augment(crop=crop, padding=2, flip=0.5)) for crop in ("center", "random", "random_resized")
]
EVERYTHING = Augment(crop="random_resized", flip=0.5, policy="randaugment", erase=0.5, mixup=0.4, cutmix=1.0)
MIXED = Data(crop=16, augment=EVERYTHING)


def loaders(data: Data, world: int, train: bool = True, batch: int = BATCH, n: int = N) -> list[Loader]:
    index, reader = INDEX.take(np.arange(n)), Resident({"image": IMAGES[:n]})
    device = torch.device("cpu")
    return [Loader(data, index, reader, batch, SEED, rank, world, device, train) for rank in range(world)]


def steps(many: list[Loader], number: int, first_step: int = 0) -> Iterator[tuple[Loaded, ...]]:
    """All ranks' parts of each step."""
    return zip(*(loader.epoch(number, first_step) for loader in many), strict=True)


def whole(parts: tuple[Loaded, ...], micro: int = 1_000) -> tuple[np.ndarray, torch.Tensor, torch.Tensor]:
    """A global batch put together from all ranks' micro-batches."""
    batches = [batch for part in parts for batch in part.micro_batches(micro)]
    images, labels = (torch.cat([getattr(batch, name) for batch in batches]) for name in ("images", "labels"))
    return np.concatenate([batch.ids for batch in batches]), images, labels


@pytest.mark.parametrize("micro", [1_000, 3])
@pytest.mark.parametrize("data", [PLAIN, *AUGMENTED])
def test_global_batches_are_bit_equal_for_1_2_and_4_ranks(data: Data, micro: int) -> None:
    for number in (0, 3):
        alone = [whole(parts) for parts in steps(loaders(data, 1), number)]
        for world in (2, 4):
            for expected, parts in zip(alone, steps(loaders(data, world), number), strict=True):
                ids, images, labels = whole(parts, micro)
                assert np.array_equal(ids, expected[0])
                assert torch.equal(images, expected[1])
                assert torch.equal(labels, expected[2])


@pytest.mark.parametrize("n", [N, 98])  # the last batch has 7 samples, or 2
def test_shards_are_bit_equal_for_1_2_and_4_ranks(n: int) -> None:
    def shards(world: int) -> list[tuple[int, np.ndarray, torch.Tensor, torch.Tensor | None]]:
        index, reader, found = INDEX.take(np.arange(n)), Resident({"image": IMAGES[:n]}), []
        for rank in range(world):
            loader = Loader(
                MIXED, index, reader, BATCH, SEED, rank, world, torch.device("cpu"), train=True, shards=4 // world
            )
            for step, loaded in enumerate(loader.epoch(3, 2), 2):
                for number, shard in loaded.shards():
                    (batch,) = shard.micro_batches(1_000)
                    assert loaded.step == shard.step == step and shard.size == min(BATCH, n - step * BATCH)
                    assert batch.labels.tolist() == (batch.ids * 7 % 10).tolist()
                    found.append((4 * step + number, batch.ids, batch.images, batch.targets))
        return sorted(found, key=lambda one: one[0])

    alone = shards(1)
    last = 4 * (n // BATCH)
    assert [number for number, *_ in alone] == list(range(8, last + min(4, n % BATCH)))
    chosen = order.Order(SEED, 3, n)
    assert np.array_equal(np.concatenate([ids for _, ids, _, _ in alone]), chosen[2 * BATCH : n])
    for world in (2, 4):
        for one, other in zip(alone, shards(world), strict=True):
            assert one[0] == other[0] and np.array_equal(one[1], other[1]) and torch.equal(one[2], other[2])
            assert (one[3] is None) == (other[3] is None) == (one[0] >= last)
            assert one[3] is None or other[3] is None or torch.equal(one[3], other[3])


def test_an_epoch_follows_the_order_and_has_every_sample_once() -> None:
    for number in (0, 1):
        ids = np.concatenate([whole(parts)[0] for parts in steps(loaders(PLAIN, 2), number)])
        assert np.array_equal(ids, order.samples(SEED, number, N, np.arange(N)))


def test_batches_are_the_transformed_samples() -> None:
    for data in (PLAIN, *AUGMENTED):
        for parts in steps(loaders(data, 2), 1):
            ids, images, labels = whole(parts)
            draws = order.uniform(SEED, 1, ids, DRAWS)
            expected = Normalise(data.mean, data.std)(
                crop_and_flip(data.augment, torch.from_numpy(IMAGES[ids]), 16, spread(data.augment, draws))
            )
            assert images.dtype == torch.float32 and images.shape == (len(ids), 3, 16, 16)
            assert torch.equal(images, expected)
            assert labels.dtype == torch.int64 and np.array_equal(labels, INDEX.labels[ids])


@pytest.mark.parametrize("data", AUGMENTED)
def test_augmentation_changes_from_epoch_to_epoch(data: Data) -> None:
    def by_sample(number: int) -> torch.Tensor:
        ids, images, _ = whole(next(steps(loaders(data, 1, batch=N), number)))
        return images[np.argsort(ids)]

    different = (by_sample(0) != by_sample(1)).flatten(1).any(dim=1)
    assert different.double().mean() > 0.35


@pytest.mark.parametrize(("n", "short"), [(103, [2, 2, 2, 1]), (97, [1, 0, 0, 0]), (96, [4, 4, 4, 4])])
def test_the_last_short_batch_has_its_true_size_on_all_ranks(n: int, short: list[int]) -> None:
    *full, last = list(steps(loaders(AUGMENTED[1], 4, n=n), 0))
    assert all([part.size for part in parts] == [BATCH] * 4 for parts in full)
    assert all([len(part.ids) for part in parts] == [4] * 4 for parts in full)
    assert [part.size for part in last] == [sum(short)] * 4
    assert [len(part.ids) for part in last] == short
    assert [part.step for parts in [*full, last] for part in parts] == [k for k in range(-(-n // 16)) for _ in range(4)]
    for part in last:
        assert part.arrays["image"].shape == (len(part.ids), 3, 24, 20)
        assert part.arrays["label"].shape == (len(part.ids),)
        assert len(list(part.micro_batches(4))) == (len(part.ids) > 0)


def test_micro_batches_are_consecutive_and_of_the_size_asked_for() -> None:
    loaded = next(iter(loaders(AUGMENTED[2], 1)[0].epoch(0)))
    for size in (1, 5, 16, 100):
        batches = list(loaded.micro_batches(size))
        assert [len(batch) for batch in batches] == [len(part) for part in torch.arange(16).split(size)]
        assert not any(batch.targets is not None for batch in batches)
        assert np.array_equal(np.concatenate([batch.ids for batch in batches]), loaded.ids)
        assert torch.equal(torch.cat([batch.labels for batch in batches]), loaded.arrays["label"])
        prepared = loaded.prepare(loaded.arrays, loaded.ids)["image"]
        assert torch.equal(torch.cat([batch.images for batch in batches]), prepared)


def targets(parts: tuple[Loaded, ...], micro: int) -> list[list[float]] | None:
    found = [batch.targets for part in parts for batch in part.micro_batches(micro)]
    kept = [part for part in found if part is not None]
    assert len(kept) in (0, len(found))
    return torch.cat(kept).tolist() if kept else None


@pytest.mark.parametrize("micro", [1_000, 2])
def test_mixed_batches_are_bit_equal_for_1_2_and_4_ranks(micro: int) -> None:
    stored = IMAGES.copy()
    alone = [(whole(parts), targets(parts, 16)) for parts in steps(loaders(MIXED, 1), 1)]
    assert [wanted is not None for _, wanted in alone] == [True] * 6 + [False]  # the last one has 7 samples
    for world in (2, 4):
        for (expected, wanted), parts in zip(alone, steps(loaders(MIXED, world), 1), strict=True):
            assert torch.equal(whole(parts, micro)[1], expected[1]) and targets(parts, micro) == wanted
    assert np.array_equal(IMAGES, stored)


def test_mixing_only_mixes_what_comes_without_it() -> None:
    unmixed = Data(crop=16, augment=replace(EVERYTHING, mixup=0.0, cutmix=0.0))
    for before, after in zip(steps(loaders(unmixed, 1), 0), steps(loaders(MIXED, 1), 0), strict=True):
        ids, images, labels = whole(before)
        expected = (
            mix_pairs(MIXED.augment, images, labels, 10, Drawn(MIXED.augment, SEED, 0, ids))
            if len(ids) == BATCH
            else None
        )
        assert torch.equal(whole(after)[1], images)
        assert targets(after, BATCH) == (None if expected is None else expected.tolist())


def test_preparing_images_leaves_torchs_generator_as_it_was() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    for loaded in loaders(MIXED, 1)[0].epoch(0):
        for _ in loaded.micro_batches(4):
            assert torch.equal(torch.get_rng_state(), before)


def test_rank_without_samples_gets_a_blank_pass() -> None:
    *full, last = steps(loaders(MIXED, 4, n=97), 0)
    for parts in full:
        passes = [batch for part in parts for batch in part.passes(2, together=True)]
        assert (
            len(passes) == 8 and not any(p.blank for p in passes) and all(p.batch.targets is not None for p in passes)
        )
    (one,), (blank,) = last[0].passes(2, together=True), last[3].passes(2, together=True)
    assert (one.blank, blank.blank) == (False, True) and one.batch.targets is None and blank.batch.targets is None
    assert blank.batch.images.shape == (1, 3, 16, 16) and blank.last


@pytest.mark.parametrize("data", [PLAIN, *AUGMENTED, MIXED])
def test_an_epoch_continued_at_a_step_is_the_rest_of_it(data: Data) -> None:
    later = [whole(parts) for parts in steps(loaders(data, 1), 2)][4:]
    for world in (1, 4):
        continued = list(steps(loaders(data, world), 2, first_step=4))
        assert [parts[0].step for parts in continued] == [4, 5, 6]
        for expected, parts in zip(later, continued, strict=True):
            ids, images, _ = whole(parts)
            assert np.array_equal(ids, expected[0]) and torch.equal(images, expected[1])


@pytest.mark.parametrize("data", [PLAIN, *AUGMENTED, MIXED])
@pytest.mark.parametrize("world", [1, 2, 4])
def test_evaluation_sees_plain_samples_once_in_sequence(world: int, data: Data) -> None:
    for number in (0, 1):
        ids, images, labels = zip(
            *(whole(parts) for parts in steps(loaders(data, world, train=False), number)), strict=True
        )
        assert np.array_equal(np.concatenate(ids), np.arange(N))
        assert np.array_equal(torch.cat(labels), INDEX.labels)
        expected = Normalise(data.mean, data.std)(center_crop(torch.from_numpy(IMAGES), 16))
        assert torch.equal(torch.cat(images), expected)


@pytest.mark.parametrize(("batch", "expected"), [(1, 103), (16, 7), (103, 1), (500, 1)])
def test_steps_count_the_last_short_batch(batch: int, expected: int) -> None:
    assert [loader.steps for loader in loaders(PLAIN, 2, batch=batch)] == [expected] * 2


@pytest.mark.parametrize("data", [PLAIN, *AUGMENTED])
@pytest.mark.parametrize("first_step", [0, 3])
def test_images_that_live_on_the_device_make_the_same_batches(
    data: Data, first_step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader_module, "_STEPS", 2)
    images = IMAGES.copy()
    images.flags.writeable = False  # as Ray's object store has it
    settings = (data, INDEX, Resident({"image": images}), BATCH, SEED, 1, 2, torch.device("cpu"), True)
    here, there = Loader(*settings, on_device=False), Loader(*settings, on_device=True)
    assert here.on_device is None and there.on_device is not None
    for a, b in zip(here.epoch(1, first_step), there.epoch(1, first_step), strict=True):
        assert (a.step, a.size) == (b.step, b.size) and np.array_equal(a.ids, b.ids)
        assert a.arrays.keys() == b.arrays.keys() == {"image", "label"}
        assert all(torch.equal(array, b.arrays[name]) for name, array in a.arrays.items())


@pytest.mark.parametrize("data", [PLAIN, AUGMENTED[2], MIXED])
def test_channels_last_changes_the_layout_only(data: Data) -> None:
    settings = (data, INDEX, Resident({"image": IMAGES}), BATCH, SEED, 0, 1, torch.device("cpu"), True)
    plain, last = Loader(*settings), Loader(*settings, memory_format=torch.channels_last)
    for a, b in zip(plain.epoch(0), last.epoch(0), strict=True):
        expected, images = next(a.micro_batches(99)).images, next(b.micro_batches(99)).images
        assert images.is_contiguous(memory_format=torch.channels_last) and torch.equal(images, expected)
