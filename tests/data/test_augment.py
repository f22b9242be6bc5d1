"""Augment: what happens to the pixels, and that it belongs to the sample."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from raytrain import order
from raytrain.config import replace
from raytrain.data.augment import Augment
from raytrain.data.drawn import DRAWS, Drawn, spread
from raytrain.data.transforms import Normalise, apply_erase, apply_policy, center_crop, crop_and_flip, mix_pairs
from raytrain.errors import UserError

Crop = Literal["center", "random", "random_resized"]
Policy = Literal["randaugment", "trivialaugment"]


def images(n: int, channels: int, height: int, width: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(n + height)
    return torch.randint(0, 256, (n, channels, height, width), dtype=torch.uint8, generator=generator)


def draws(n: int, seed: int = 0) -> np.ndarray:
    return order.uniform(seed, 0, np.arange(n), DRAWS)


def ramp(n: int, height: int, width: int) -> torch.Tensor:
    """Two channels: each pixel's row, and its column."""
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    return torch.stack([rows, columns]).to(torch.uint8).expand(n, 2, height, width)


@pytest.mark.parametrize("flip", [0.0, 0.5])
@pytest.mark.parametrize("side", [None, 20, 28])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("crop", ["center", "random", "random_resized"])
def test_shapes_and_types(crop: Crop, channels: int, side: int | None, flip: float) -> None:
    batch = images(6, channels, 28, 30)
    augment = Augment(crop=crop, flip=flip, padding=2)
    result = crop_and_flip(augment, batch, side, spread(augment, draws(6)))
    assert result.shape == (6, channels, *((side, side) if side else (28, 30)))
    assert result.dtype == (torch.float32 if crop == "random_resized" else torch.uint8)
    assert result.min() >= 0 and result.max() <= 255
    assert crop_and_flip(augment, batch[:0], side, spread(augment, draws(0))).shape == (0, *result.shape[1:])


@pytest.mark.parametrize(
    ("fields", "idle"),
    [
        ({}, []),
        ({"padding": 4}, ["data.augment.padding does nothing: it is for crop='random', and crop is 'center'"]),
        ({"padding": 4, "crop": "random"}, []),
        ({"scale": (0.5, 1.0), "ratio": (1.0, 1.0), "crop": "random_resized"}, []),
        ({"policy": "trivialaugment", "policy_ops": 1}, [".policy_ops does nothing: it is for policy='randaugment'"]),
        ({"policy": "randaugment", "policy_ops": 1}, []),
    ],
)
def test_values_that_do_nothing_are_noted(fields: dict[str, Any], idle: list[str]) -> None:
    found = Augment(**fields).idle()
    assert len(found) == len(idle) and all(text in line for text, line in zip(idle, found, strict=True))


def test_only_a_flip_or_a_random_crop_is_random() -> None:
    assert not Augment().random and not Augment(padding=4, policy_ops=3).random
    for augment in (Augment(policy="randaugment"), Augment(erase=0.1), Augment(mixup=0.1), Augment(cutmix=0.1)):
        assert augment.random and augment.mixes == (augment.mixup > 0 or augment.cutmix > 0)
    assert Augment(flip=0.1).random and Augment(crop="random").random and Augment(crop="random_resized").random


@pytest.mark.parametrize(("height", "width", "top", "left"), [(10, 10, 2, 2), (11, 13, 2, 3), (6, 9, 0, 1)])
def test_the_central_crop_is_the_middle_window(height: int, width: int, top: int, left: int) -> None:
    batch = images(2, 3, height, width)
    assert torch.equal(center_crop(batch, 6), batch[:, :, top : top + 6, left : left + 6])
    assert torch.equal(crop_and_flip(Augment(), batch, 6, draws(2)), center_crop(batch, 6))
    assert center_crop(batch, None) is batch


@pytest.mark.parametrize("padding", [0, 3])
@pytest.mark.parametrize("side", [None, 9])
def test_random_crop_is_any_window_of_the_padded_image(side: int | None, padding: int) -> None:
    batch = images(1, 3, 12, 12).expand(2_000, 3, 12, 12)
    result = crop_and_flip(Augment(crop="random", padding=padding), batch, side, draws(2_000)).numpy()
    padded = np.pad(batch[0].numpy(), ((0, 0), (padding, padding), (padding, padding)))
    size = side or 12
    places = 12 + 2 * padding - size + 1
    windows = {
        padded[:, top : top + size, left : left + size].tobytes(): (top, left)
        for top in range(places)
        for left in range(places)
    }
    found = [windows[image.tobytes()] for image in result]
    assert len(set(found)) == len(windows) == places**2
    expected = 2_000 / places
    for axis in (0, 1):
        counts = np.bincount([place[axis] for place in found], minlength=places)
        assert np.abs(counts - expected).max() < 5 * np.sqrt(expected) + 1


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_flip_mirrors_the_requested_share(share: float) -> None:
    batch, numbers = images(3_000, 1, 4, 5), draws(3_000)
    result = crop_and_flip(Augment(flip=share), batch, None, numbers)
    flipped = torch.from_numpy(numbers[:, 4] < share)
    assert torch.equal(result[flipped], batch[flipped].flip(-1))
    assert torch.equal(result[~flipped], batch[~flipped])
    assert abs(flipped.double().mean().item() - share) < 5 * np.sqrt(share * (1 - share) / 3_000) + 1e-9


@pytest.mark.parametrize(("height", "width"), [(28, 28), (32, 32), (48, 31), (256, 256)])
def test_a_resized_crop_of_all_is_the_image_itself(height: int, width: int) -> None:
    batch = images(4, 3, height, width)
    ratio = width / height
    augment = Augment(crop="random_resized", scale=(1.0, 1.0), ratio=(ratio, ratio))
    assert (crop_and_flip(augment, batch, None, spread(augment, draws(4))) - batch).abs().max() / 255 < 1e-4


@pytest.mark.parametrize(("height", "width"), [(200, 200), (160, 240)])
def test_resized_crop_has_the_requested_area_and_ratio(height: int, width: int) -> None:
    augment, side, n = Augment(crop="random_resized", scale=(0.1, 0.5), ratio=(0.8, 1.25)), 32, 500
    result = crop_and_flip(augment, ramp(n, height, width), side, spread(augment, draws(n))).double().numpy()
    rows, columns = result[:, 0], result[:, 1]
    assert np.abs(rows - rows[:, :, :1]).max() < 1e-2 and np.abs(columns - columns[:, :1]).max() < 1e-2
    # Between the borders the value is the place: low + (i + 1/2) size / side - 1/2.
    box_h, box_w = ((line[:, -2] - line[:, 1]) * side / (side - 3) for line in (rows[:, :, 0], columns[:, 0]))
    top, left = rows[:, 1, 0] + 0.5 - 1.5 * box_h / side, columns[:, 0, 1] + 0.5 - 1.5 * box_w / side
    area, ratio = box_h * box_w / (height * width), box_w / box_h
    assert 0.1 - 1e-3 < area.min() < 0.12 and 0.48 < area.max() < 0.5 + 1e-3
    assert 0.8 - 1e-3 < ratio.min() < 0.82 and 1.22 < ratio.max() < 1.25 + 1e-3
    assert min(top.min(), left.min()) > -1e-2
    assert (top + box_h).max() < height + 1e-2 and (left + box_w).max() < width + 1e-2
    assert abs(np.median(area) - 0.3) < 0.03 and abs(np.median(np.log(ratio))) < 0.03


@settings(deadline=None, max_examples=25)
@given(
    seed=st.integers(0, 100),
    chosen=st.lists(st.integers(0, 31), min_size=1, max_size=40),
    crop=st.sampled_from(["center", "random", "random_resized"]),
    side=st.sampled_from([None, 24]),
)
def test_a_sample_is_changed_alike_in_any_batch(seed: int, chosen: list[int], crop: Crop, side: int | None) -> None:
    stored, ids = images(32, 3, 33, 28), np.array(chosen)
    augment = Augment(crop=crop, padding=2, flip=0.5)

    def change(ids: np.ndarray) -> torch.Tensor:
        return crop_and_flip(augment, stored[ids], side, spread(augment, order.uniform(seed, 3, ids, DRAWS)))

    assert torch.equal(change(ids), change(np.arange(32))[ids])
    assert torch.equal(change(ids[:1]), change(ids)[:1])


@settings(deadline=None, max_examples=15)
@given(
    seed=st.integers(0, 2**63),
    chosen=st.lists(st.integers(0, 31), min_size=1, max_size=20),
    policy=st.sampled_from(["randaugment", "trivialaugment"]),
    channels=st.sampled_from([1, 3]),
)
def test_a_policy_and_erasing_change_a_sample_alike_in_any_batch(
    seed: int, chosen: list[int], policy: Policy, channels: int
) -> None:
    stored, ids, normalise = images(32, channels, 12, 11), np.array(chosen), Normalise((0.5,), (0.5,))
    augment = Augment(policy=policy, erase=0.7)

    def change(ids: np.ndarray) -> torch.Tensor:
        changed = apply_policy(augment, stored[ids], seed, 3, ids)
        assert changed.dtype == torch.uint8
        changed = normalise(changed)
        apply_erase(augment, changed, Drawn(augment, seed, 3, ids))
        return changed

    assert torch.equal(change(ids), change(np.arange(32))[ids])
    assert torch.equal(change(ids[:1]), change(ids)[:1])


def test_policy_rounds_the_floats_of_a_resized_crop() -> None:
    augment, batch, ids = Augment(policy="randaugment"), images(8, 3, 9, 9), np.arange(8)
    expected = apply_policy(augment, batch, 0, 0, ids)
    for floats in (batch.float(), batch + 0.4, batch - 0.4):
        assert torch.equal(apply_policy(augment, floats, 0, 0, ids), expected)
    assert apply_policy(Augment(), batch, 0, 0, ids) is batch
    assert apply_policy(augment, batch[:0], 0, 0, ids[:0]).shape == (0, 3, 9, 9)


def test_policy_has_the_requested_strength_and_number() -> None:
    batch, ids = images(64, 3, 16, 16), np.arange(64)

    def distance(ops: int, magnitude: int) -> float:
        augment = Augment(policy="randaugment", policy_ops=ops, policy_magnitude=magnitude)
        return (apply_policy(augment, batch, 0, 0, ids).double() - batch).abs().mean().item()

    assert distance(2, 0) < distance(2, 9) < distance(2, 30)
    assert distance(1, 9) < distance(2, 9) < distance(4, 9)


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_the_share_of_images_asked_for_has_a_rectangle_erased(share: float) -> None:
    n = 1_000
    batch = torch.ones(n, 2, 12, 12)
    augment = Augment(erase=share)
    apply_erase(augment, batch, Drawn(augment, 0, 0, np.arange(n)))
    erased = batch[:, 0] == 0
    assert torch.equal(batch[:, 0], batch[:, 1])
    count = int(erased.any(2).any(1).sum())
    assert abs(count / n - share) < 5 * np.sqrt(share * (1 - share) / n) + 1e-9
    areas = erased.any(2).sum(1) * erased.any(1).sum(1)
    assert torch.equal(areas, erased.sum((1, 2))) and areas.max() < 0.45 * 144


@pytest.mark.parametrize(("mixup", "cutmix"), [(1.0, 0.0), (0.0, 1.0), (0.4, 1.0)])
def test_mixed_targets_are_the_shares_of_two_samples(mixup: float, cutmix: float) -> None:
    n = 2_000
    labels = torch.arange(n) * 3 % 7
    batch = torch.arange(n).remainder(2).float()[:, None, None, None].repeat(1, 1, 10, 10)  # 0 and 1 in turn
    augment = Augment(mixup=mixup, cutmix=cutmix)
    targets = mix_pairs(augment, batch, labels, 7, Drawn(augment, 0, 0, np.arange(n)))
    assert targets is not None and targets.shape == (n, 7) and targets.dtype == torch.float32
    torch.testing.assert_close(targets.sum(1), torch.ones(n))
    second = targets[torch.arange(n), labels[torch.arange(n) // 2 * 2 + 1]]  # the share of the sample that is 1
    torch.testing.assert_close(batch.mean((1, 2, 3)), second, atol=1e-5, rtol=0)
    torch.testing.assert_close(second[::2], 1 - second[1::2])
    cut = ((batch == 0) | (batch == 1)).flatten(1).all(1)[::2]
    expected = 0.5 if mixup and cutmix else float(cutmix > 0)
    assert abs(cut.double().mean().item() - expected) < 0.1
    own = second[1::2]
    assert own.min() < 0.5 and own.max() > 0.9 and len(own.unique()) > 20


def test_a_pair_is_mixed_alike_in_any_batch() -> None:
    augment, labels, normalise = Augment(mixup=0.4, cutmix=1.0), torch.arange(32) % 5, Normalise((0.5,), (0.5,))

    def mix(ids: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        batch = normalise(images(32, 3, 12, 11)[ids])
        targets = mix_pairs(augment, batch, labels[ids], 5, Drawn(augment, 7, 2, ids))
        assert targets is not None
        return batch, targets

    everything = mix(np.arange(32))
    for ids in (np.array([4, 5]), np.array([30, 31, 0, 1, 16, 17])):
        for found, expected in zip(mix(ids), everything, strict=True):
            assert torch.equal(found, expected[ids])
    assert mix_pairs(Augment(), everything[0], labels, 5, Drawn(Augment(), 7, 2, np.arange(32))) is None


def test_another_epoch_changes_a_sample_otherwise() -> None:
    batch, ids = images(8, 3, 32, 32), np.arange(8)
    augment = Augment(crop="random_resized", flip=0.5)
    first, second = (
        crop_and_flip(augment, batch, None, spread(augment, order.uniform(0, epoch, ids, DRAWS))) for epoch in (0, 1)
    )
    assert all(not torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize(
    ("mean", "std"), [((0.1307,), (0.3081,)), ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)), ((0.0,), (1.0,))]
)
def test_normalise_is_torchvisions_on_scaled_floats(
    mean: tuple[float, ...], std: tuple[float, ...], dtype: torch.dtype
) -> None:
    batch = images(4, 3, 16, 17).to(dtype)
    kept = batch.clone()
    expected = F.normalize(batch.to(torch.float32) / 255, list(mean) * (3 // len(mean)), list(std) * (3 // len(std)))
    result = Normalise(mean, std)(batch)
    assert result.dtype == torch.float32
    torch.testing.assert_close(result, expected, atol=2e-6, rtol=1e-6)
    assert torch.equal(batch, kept)  # the images stay as they were


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(("count", "channels", "side"), [(23, 3, 96), (2, 3, 400), (11, 1, 200)])
def test_large_batches_are_normalised_in_either_layout(
    layout: torch.memory_format, count: int, channels: int, side: int
) -> None:
    batch, normalise = images(count, channels, side + 5, side)[:, :, 5:], Normalise((0.4,), (0.2,), "cpu", layout)
    kept, result = batch.clone(), normalise(batch)
    assert torch.equal(result, (batch.to(torch.float32) - normalise.shift) * normalise.scale)
    assert result.is_contiguous(memory_format=layout)
    assert torch.equal(batch, kept)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("flip", -0.1),
        ("flip", 1.1),
        ("padding", -1),
        ("crop", "left"),
        ("scale", (0.0, 1.0)),
        ("scale", (0.5, 0.4)),
        ("scale", (0.5, 1.1)),
        ("ratio", (0.0, 1.0)),
        ("ratio", (2.0, 1.0)),
        ("ratio", (1.0,)),
        ("policy", "autoaugment"),
        ("policy_ops", 0),
        ("policy_magnitude", -1),
        ("policy_magnitude", 31),
        ("erase", -0.1),
        ("erase", 1.1),
        ("mixup", -0.1),
        ("cutmix", float("inf")),
    ],
)
def test_values_out_of_range_are_refused(field: str, value: Any) -> None:
    with pytest.raises(UserError, match=f"{field} = .*, in Augment; give"):
        replace(Augment(), field, value)


# The same, image by image with torchvision's transforms and torch's generator


def seeded(ids: np.ndarray, purpose: int) -> Iterator[int]:
    with torch.random.fork_rng(devices=[]):
        for place, sample in enumerate(ids.tolist()):
            torch.default_generator.manual_seed(order.key(5, 2, sample, purpose << 32) >> 1)
            yield place


@pytest.mark.parametrize(("channels", "side"), [(3, 32), (1, 28), (3, 90)])
@pytest.mark.parametrize("augment", [Augment(policy="randaugment", policy_ops=3), Augment(policy="trivialaugment")])
def test_policies_are_torchvisions_image_by_image(augment: Augment, channels: int, side: int) -> None:
    batch, ids = images(60, channels, side, side + 3), np.arange(60) * 3
    batch[:30] = v2.functional.gaussian_blur(batch[:30], [9, 9])
    batch[4] = 77
    policy = v2.RandAugment(3) if augment.policy == "randaugment" else v2.TrivialAugmentWide()
    expected = torch.stack([policy(batch[place]) for place in seeded(ids, 1)])
    assert torch.equal(apply_policy(augment, batch, 5, 2, ids), expected)


@pytest.mark.parametrize("side", [9, 32, 100])
def test_erasing_is_torchvisions_image_by_image(side: int) -> None:
    batch, ids = torch.rand(120, 3, side, side + 2), np.arange(120)
    expected, erasing = batch.clone(), v2.RandomErasing(0.6, inplace=True)
    for place in seeded(ids, 2):
        erasing(expected[place])
    apply_erase(Augment(erase=0.6), batch, Drawn(Augment(erase=0.6), 5, 2, ids))
    assert torch.equal(batch, expected)


@pytest.mark.parametrize(("mixup", "cutmix"), [(0.2, 0.0), (0.0, 1.0), (1.3, 0.4)])
@pytest.mark.parametrize("side", [12, 300])
def test_mixing_is_torchvisions_pair_by_pair(mixup: float, cutmix: float, side: int) -> None:
    n = 128 if side < 100 else 8
    batch, labels, ids = torch.randn(n, 3, side, side + 1), torch.arange(n) % 7, np.arange(n)
    mixers = [m(alpha=a, num_classes=7) for m, a in ((v2.MixUp, mixup), (v2.CutMix, cutmix)) if a]
    expected, targets = batch.clone(), torch.empty(n, 7)
    for place in seeded(ids[::2], 3):
        pair = slice(2 * place, 2 * place + 2)
        mix = v2.RandomChoice(mixers) if len(mixers) > 1 else mixers[0]
        expected[pair], targets[pair] = mix(batch[pair], labels[pair])
    for layout in (torch.contiguous_format, torch.channels_last):
        found = batch.contiguous(memory_format=layout).clone()
        augment = Augment(mixup=mixup, cutmix=cutmix)
        shares = mix_pairs(augment, found, labels, 7, Drawn(augment, 5, 2, ids))
        assert shares is not None and torch.equal(found, expected) and torch.equal(shares, targets)
        assert found.is_contiguous(memory_format=layout)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool, torch.uint16, torch.int64, torch.float16, torch.float64])
def test_images_of_each_dtype_are_normalised(dtype: torch.dtype, layout: torch.memory_format) -> None:
    images, mean, std = (torch.rand(3, 2, 5, 4) * 255).to(dtype), (0.5, 0.25), (0.25, 0.5)
    before = images.clone()
    found = Normalise(mean, std, memory_format=layout)(images)
    each = images.float().div(255) - torch.tensor(mean).view(1, 2, 1, 1)
    torch.testing.assert_close(found, each / torch.tensor(std).view(1, 2, 1, 1), rtol=1e-5, atol=1e-6)
    assert found.is_contiguous(memory_format=layout) and torch.equal(images, before)
