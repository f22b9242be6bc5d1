"""Operations: torchvision's numbers for the same parameters, the same bits in any batch, masks with their images."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torchvision.transforms import v2
from torchvision.transforms.v2 import InterpolationMode
from torchvision.transforms.v2 import functional as F

import raytrain
from raytrain import (
    Augment,
    AugMix,
    ColorJitter,
    Data,
    Field,
    GaussianBlur,
    HorizontalFlip,
    Index,
    Operation,
    RandAugment,
    RandomAffine,
    RandomCrop,
    RandomErasing,
    RandomGrayscale,
    RandomResizedCrop,
    RandomRotation,
    TrivialAugmentWide,
    VerticalFlip,
    order,
)
from raytrain.config import from_dict, to_dict
from raytrain.data import colour, geometry, policies
from raytrain.data.operation import BOX_DRAWS
from raytrain.data.prepare import Prepare
from raytrain.errors import UserError

POLICIES = (RandAugment(), TrivialAugmentWide(), AugMix(), AugMix(chain_depth=2, alpha=0.5, all_ops=False))
GEOMETRY = (
    RandomCrop(padding=3, fill=0.2),
    RandomCrop(padding=3, padding_mode="reflect"),
    RandomCrop(padding=3, padding_mode="edge"),
    RandomResizedCrop(scale=(0.2, 1.0)),
    HorizontalFlip(),
    VerticalFlip(p=0.3),
    RandomRotation(30),
    RandomAffine((-20.0, 40.0), (0.1, 0.2), (0.8, 1.2), 8.0, "bilinear", 0.4),
    RandomAffine(shear=(-5.0, 5.0, 2.0, 9.0)),
)
COLOURS = (
    ColorJitter(0.4, 0.4, 0.4, 0.1),
    ColorJitter(brightness=(0.5, 0.9)),
    RandomGrayscale(p=0.4),
    GaussianBlur(p=0.5),
    GaussianBlur(kernel_size=9, sigma=(1.0, 1.5)),
    RandomErasing(p=0.6),
)
EVERY = (*GEOMETRY, *COLOURS, *POLICIES)


def images(n: int, *shape: int, dtype: torch.dtype = torch.uint8) -> torch.Tensor:
    found = torch.randint(0, 256, (n, *shape), dtype=torch.uint8, generator=torch.Generator().manual_seed(n))
    return found if dtype == torch.uint8 else found.to(dtype) / 255


def prepare(operations: tuple[Operation, ...], *fields: Field, side: int | None = None) -> Prepare:
    index = Index(fields=fields, count=99)
    data = Data(crop=side, mean=(0.4,), std=(0.3,), augment=Augment(operations=operations))
    data.sample(index)
    return Prepare(data, index)


def draws(operation: Operation, n: int) -> np.ndarray:
    return order.uniform(1, 2, np.arange(n), operation.draws)


@pytest.mark.parametrize("operation", EVERY, ids=lambda one: str(one)[:60])
def test_an_image_is_changed_alike_in_any_batch(operation: Operation, monkeypatch: pytest.MonkeyPatch) -> None:
    stored, ids = images(40, 3, 21, 18), np.arange(40)
    prepared = prepare((operation,), Field("image", (3, 21, 18), kind="image"), side=16)
    whole = prepared.augmented({"image": stored}, ids, 7, 3, mixed=False)["image"]
    assert whole.shape == (40, 3, 16, 16) and whole.dtype == torch.float32 and whole.is_contiguous()
    assert torch.equal(stored, images(40, 3, 21, 18))
    monkeypatch.setattr("raytrain.data.prepare._CACHED", 1)  # one image at a time
    for chosen in (ids, np.array([5]), np.array([31, 2, 2, 9]), ids[:0]):
        assert torch.equal(prepared.augmented({"image": stored[chosen]}, chosen, 7, 3, False)["image"], whole[chosen])
    later = prepared.augmented({"image": stored}, ids, 7, 4, mixed=False)["image"]
    assert not torch.equal(whole, later)


def test_operations_draw_by_themselves_and_in_order() -> None:
    field, ids, stored = Field("image", (3, 12, 12), kind="image"), np.arange(60), images(60, 3, 12, 12)

    def change(*operations: Operation) -> torch.Tensor:
        operations = operations or (HorizontalFlip(p=0.0),)
        return prepare(operations, field).augmented({"image": stored}, ids, 0, 0, False)["image"]

    flipped = [not torch.equal(a, b) for a, b in zip(change(HorizontalFlip()), change(), strict=True)]
    twice = change(HorizontalFlip(), HorizontalFlip())
    back = [torch.equal(a, b) for a, b in zip(twice, change(), strict=True)]
    assert 15 < sum(flipped) < 45 and 15 < sum(back) < 45
    first, last = RandomCrop(padding=4, fill=1.0), ColorJitter(brightness=(0.5, 0.5))
    plain = (change(first, last) * 0.3 + 0.4).clamp(0, 1), (change(last, first) * 0.3 + 0.4).clamp(0, 1)
    assert plain[0].max() < 0.51 and plain[1].max() > 0.99


@pytest.mark.parametrize("channels", [1, 2, 3, 5])
@pytest.mark.parametrize("dtype", ["uint8", "float32", "float64", "uint16"])
@pytest.mark.parametrize("operation", GEOMETRY, ids=lambda one: str(one)[:40])
def test_geometry_takes_any_channels_and_types(operation: Operation, dtype: str, channels: int) -> None:
    full = {"uint8": 255, "uint16": 65535}.get(dtype, 1)
    stored = images(6, channels, 14, 15).numpy()
    scaled = (stored.astype(np.float64) / 255 * full).astype(dtype)
    found = [
        prepare((operation,), Field("image", (channels, 14, 15), kind, "image"), side=12).augmented(
            {"image": torch.from_numpy(array)}, np.arange(6), 0, 0, False
        )["image"]
        for kind, array in (("uint8", stored), (dtype, scaled))
    ]
    torch.testing.assert_close(*found, atol=1.1 / 255 / 0.3, rtol=0)  # torch rounds bytes after each dimension


# The numbers of torchvision's functions


def test_a_resized_crop_is_torchvisions() -> None:
    n, values = 60, images(60, 3, 40, 30, dtype=torch.float32)
    boxes, fits = geometry.boxes(draws(RandomResizedCrop(), n), 40, 30, (0.1, 1.0), (0.75, 4 / 3))
    for side in (16, 48):
        found = geometry.resized_boxes(values, boxes, side, side, blended=True)
        masks = geometry.resized_boxes(values, boxes, side, side, blended=False)
        for image, mask, value, (top, left, h, w) in zip(found, masks, values, boxes.tolist(), strict=True):
            torch.testing.assert_close(image, F.resized_crop(value, top, left, h, w, [side, side]), atol=1e-5, rtol=0)
            exact = F.resized_crop(value, top, left, h, w, [side, side], InterpolationMode.NEAREST_EXACT)
            assert torch.equal(mask, exact)
    assert fits.all() and (boxes[:, :2] >= 0).all()
    assert (boxes[:, 0] + boxes[:, 2]).max() <= 40 and (boxes[:, 1] + boxes[:, 3]).max() <= 30
    share, ratio = boxes[:, 2] * boxes[:, 3] / 1200, boxes[:, 3] / boxes[:, 2]
    assert 0.05 < share.min() < 0.25 and share.max() > 0.8 and 0.7 < ratio.min() and ratio.max() < 1.4
    assert boxes[:, 0].min() == 0 and boxes[:, 1].min() == 0


@pytest.mark.parametrize(("height", "width", "box"), [(8, 40, (0, 14, 8, 11)), (40, 8, (14, 0, 11, 8))])
def test_a_box_that_never_fits_is_the_centre(height: int, width: int, box: tuple[int, ...]) -> None:
    numbers = np.random.default_rng(0).uniform(size=(9, BOX_DRAWS))
    boxes, fits = geometry.boxes(numbers, height, width, (1.0, 1.0), (0.75, 4 / 3))
    assert not fits.any() and (boxes == box).all()


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear"])
@pytest.mark.parametrize("fill", [0.0, 0.7])
@pytest.mark.parametrize("shape", [(24, 24), (17, 30)])
def test_affine_maps_are_torchvisions(shape: tuple[int, int], fill: float, interpolation: Any) -> None:
    n, values, random = 20, images(20, 3, *shape, dtype=torch.float32), np.random.default_rng(0)
    angle, scale = random.uniform(-180, 180, n), random.uniform(0.5, 1.5, n)
    moves, shear = random.integers(-5, 6, (n, 2)), random.uniform(-20, 20, (n, 2))
    maps = geometry.inverse_affine(angle, moves.astype(float), scale, shear)
    turns = geometry.inverse_affine(-angle, np.zeros((n, 2)), np.ones(n), np.zeros((n, 2)))
    found, turned = (geometry.affine(values, each, interpolation, fill) for each in (maps, turns))
    how, filled = InterpolationMode(interpolation), [fill] if fill else None
    for k, value in enumerate(values):
        expected = F.affine(value, angle[k], moves[k].tolist(), scale[k], shear[k].tolist(), how, filled)
        for one, other in ((found[k], expected), (turned[k], F.rotate(value, angle[k], how, fill=filled))):
            same = (one - other).abs() < (
                1e-4 if interpolation == "bilinear" else 1e-6
            )  # float32 places of 2e-6 pixels
            assert same.double().mean() > (0.9999 if interpolation == "bilinear" else 0.995)  # ties of nearest places


def test_colours_are_torchvisions() -> None:
    n, values, random = 30, images(30, 3, 13, 14, dtype=torch.float32), np.random.default_rng(1)
    values[0] = 0.5  # grey, black and white have no hue
    values[1, :, :5], values[1, :, 5:] = 0.0, 1.0
    for name, low, high in (("brightness", 0, 2), ("contrast", 0, 2), ("saturation", 0, 2), ("hue", -0.5, 0.5)):
        factors = random.uniform(low, high, n)
        for channels in (3, 1):
            kinds = np.full((1, len(factors)), colour.JITTER.index(name))
            found = colour.jitter(values[:, :channels].clone(), kinds, factors[None])
            for image, value, factor in zip(found, values[:, :channels], factors, strict=True):
                torch.testing.assert_close(image, getattr(F, f"adjust_{name}")(value, factor), atol=1e-5, rtol=0)
    sigmas = random.uniform(0.1, 2.0, n)
    for size in (3, 9):
        for image, value, sigma in zip(colour.blur(values, size, sigmas), values, sigmas, strict=True):
            torch.testing.assert_close(image, F.gaussian_blur(value, [size, size], [sigma, sigma]), atol=1e-5, rtol=0)
    grey = RandomGrayscale(p=1.0).apply(values.clone(), np.zeros((n, 1)), None)
    torch.testing.assert_close(grey, F.rgb_to_grayscale(values, 3), atol=1e-6, rtol=0)
    boxes = np.array([[2, 3, 4, 5]] * n)
    assert torch.equal(colour.erase(values.clone(), boxes, 0.25), F.erase(values, 2, 3, 4, 5, torch.tensor(0.25)))


def test_one_copy_brings_numbers_of_all_types(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU's way, with a copy that stays on the CPU."""
    random, copies = np.random.default_rng(0), []
    arrays = [np.arange(5), random.random((2, 3, 1)).astype(np.float32), np.arange(3, dtype=np.uint8), np.zeros((0, 2))]
    arrays += [random.random((4, 3)).astype(np.float32).T, np.array([2**40, -7])]

    def copy(array: np.ndarray, like: torch.Tensor) -> torch.Tensor:
        copies.append(array.nbytes)
        return torch.from_numpy(array)

    monkeypatch.setattr(geometry, "on", copy)
    found = geometry.together(arrays, torch.empty(0, device="meta"))
    assert len(copies) == 1
    for tensor, array in zip(found, arrays, strict=True):
        assert np.array_equal(tensor.numpy(), array) and tensor.numpy().dtype == array.dtype


def test_colour_jitter_is_torchvisions_functions_in_the_drawn_order() -> None:
    operation, n, values = ColorJitter(0.4, 0.3, 0.2, 0.1), 24, images(24, 3, 9, 9, dtype=torch.float32)
    numbers, functions = (
        draws(operation, n),
        (F.adjust_brightness, F.adjust_contrast, F.adjust_saturation, F.adjust_hue),
    )
    found = operation.apply(values.clone(), numbers, None)
    orders = set()
    for image, value, row in zip(found, values, numbers, strict=True):
        factors = [1 - w + 2 * w * u for w, u in zip((0.4, 0.3, 0.2), row, strict=False)] + [0.2 * row[3] - 0.1]
        ranks = row[4:].argsort()
        for place in range(4):
            k = ranks[place]
            value = functions[k](value, factors[k])
        orders.add(tuple(ranks))
        torch.testing.assert_close(image, value, atol=1e-5, rtol=0)
    assert len(orders) > 10


def step(name: str, magnitude: float, n: int) -> policies.Step:
    return np.full(n, policies.KINDS.index(name)), np.full(n, magnitude)


def test_policies_are_torchvisions_functions() -> None:
    values = images(2, 3, 20, 24)
    spaces = (
        policies.rand_augment_space(31, 20, 24),
        policies.trivial_augment_space(31),
        policies.augmix_space(20, 24, True),
    )
    theirs = (raytrain_v2().RandAugment, raytrain_v2().TrivialAugmentWide, raytrain_v2().AugMix)
    for space, their in zip(spaces, theirs, strict=True):
        known = their._AUGMENTATION_SPACE
        assert set(space) == set(known)
        bins = 10 if their is raytrain_v2().AugMix else 31
        for name, (magnitudes, signed) in space.items():
            expected, theirs_signed = known[name][0](bins, 20, 24), known[name][1]
            assert signed == theirs_signed and (magnitudes is None) == (expected is None)
            for magnitude in magnitudes or [0.0]:
                assert magnitudes is None or magnitude in [float(one) for one in expected]
                for signed in (magnitude, -magnitude) if theirs_signed else (magnitude,):
                    for each in (values, values[:, :1]):
                        found = policies.change(each, [step(name, signed, 2)], "nearest", 0.0)
                        other = their()._apply_image_or_video_transform
                        expected_ = [other(one, name, signed, "nearest", {}) for one in each]
                        assert torch.equal(found, torch.stack(expected_)), (name, signed)


def raytrain_v2() -> Any:
    from torchvision.transforms import v2

    return v2


def test_augmix_blends_by_shares_that_sum_to_1() -> None:
    operation = AugMix()
    shares = operation.shares(np.random.default_rng(0).uniform(size=4_000))
    np.testing.assert_allclose(shares.sum(1), 1, rtol=1e-12)
    np.testing.assert_allclose(shares.mean(0), [1 / 2, 1 / 6, 1 / 6, 1 / 6], atol=0.02)
    assert abs(AugMix(alpha=9.0).shares(np.linspace(0, 0.99, 500))[:, 0].std() - np.sqrt(1 / 76)) < 0.02
    flat = torch.full((5, 3, 9, 9), 128, dtype=torch.uint8)
    gone = AugMix(all_ops=False, severity=1).apply(flat, draws(operation, 5), None)  # nothing moves at strength 0
    assert gone.shape == flat.shape and gone.max() <= 1


# Masks


@pytest.mark.parametrize("operation", GEOMETRY, ids=lambda one: str(one)[:40])
def test_a_mask_moves_exactly_with_its_image(operation: Operation) -> None:
    """The image is the mask: where an operation blends, where the mask's neighbours are equal."""
    blends = isinstance(operation, RandomResizedCrop) or getattr(operation, "interpolation", "") == "bilinear"
    fill = round(255 * getattr(operation, "fill", 0.0))
    mask = torch.randint(0, 2, (30, 5, 5), generator=torch.Generator().manual_seed(0)).mul_(200)
    mask = mask.repeat_interleave(8, 1).repeat_interleave(8, 2)
    fields = Field("image", (1, 40, 40), kind="image"), Field("mask", (40, 40), "int64", "mask", fill)
    prepared = prepare((operation, HorizontalFlip()), *fields, side=32)
    arrays = {"image": mask[:, None].to(torch.uint8), "mask": mask}
    found = prepared.augmented(arrays, np.arange(30), 0, 0, False)
    assert found["mask"].dtype == torch.int64 and found["mask"].shape == (30, 32, 32)
    image = (found["image"][:, 0] * 0.3 + 0.4) * 255
    same = (image - found["mask"]).abs() < 0.01
    if blends:
        low, high = (torch.nn.functional.max_pool2d(sign * found["mask"][:, None].float(), 5, 1, 2) for sign in (1, -1))
        flat = (low + high)[:, 0] == 0
        assert flat.double().mean() > 0.3 and same[flat].double().mean() > 0.995
    else:
        assert same.all()
    assert torch.equal(arrays["mask"], mask) and not torch.equal(found["mask"], mask[:, 4:36, 4:36])


@pytest.mark.parametrize("operation", GEOMETRY, ids=lambda one: str(one)[:40])
def test_masks_of_16_bits_move_as_wider_ones(operation: Operation) -> None:
    mask = torch.randint(0, 65536, (8, 40, 40), generator=torch.Generator().manual_seed(0))
    found = []
    for dtype in ("int64", "uint16"):
        fields = Field("image", (1, 40, 40), kind="image"), Field("mask", (40, 40), dtype, "mask", 65535)
        arrays = {"image": mask[:, None].to(torch.uint8), "mask": mask.to(getattr(torch, dtype))}
        prepared = prepare((operation, HorizontalFlip()), *fields, side=32)
        found.append(prepared.augmented(arrays, np.arange(8), 0, 0, False)["mask"])
    assert found[1].dtype == torch.uint16 and torch.equal(found[1].long(), found[0])


MOVED = ("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate")


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool, torch.int64])
def test_policies_move_masks_as_torchvision_does(dtype: torch.dtype) -> None:
    masks = images(6, 2, 20, 24).to(dtype)
    fill = {torch.uint8: 255, torch.bool: 1, torch.int64: -1}[dtype]
    spaces = policies.rand_augment_space(31, 20, 24), policies.trivial_augment_space(31)
    for name, m in ((name, m) for space in spaces for name, (every, _) in space.items() for m in (every or [0.0])[::6]):
        for magnitude in (m, -m) if name in MOVED else (m,):
            affine = {"angle": 0.0, "translate": [0, 0], "scale": 1.0, "shear": [0.0, 0.0], "fill": fill}
            if name in ("ShearX", "ShearY"):
                degrees = float(np.degrees(np.arctan(magnitude)))
                shear = [degrees, 0.0] if name == "ShearX" else [0.0, degrees]
                expected = F.affine_mask(masks, **{**affine, "shear": shear, "center": [0, 0]})
            elif name in ("TranslateX", "TranslateY"):
                move = [int(magnitude), 0] if name == "TranslateX" else [0, int(magnitude)]
                expected = F.affine_mask(masks, **{**affine, "translate": move})
            else:
                expected = F.rotate_mask(masks, magnitude, fill=[float(fill)]) if name == "Rotate" else masks
            found = policies.change_masks(masks.clone(), [step(name, magnitude, 6)], fill)
            assert found.dtype == dtype and torch.equal(found, expected), (name, magnitude)
    large = torch.full((1, 1, 20, 24), 2**60 + 1)  # torchvision would round it
    found = policies.change_masks(large, [step("Rotate", 30.0, 1)], -(2**60) - 1)
    assert set(found.unique().tolist()) == {2**60 + 1, -(2**60) - 1}


@pytest.mark.parametrize("operation", [RandAugment(num_ops=3), TrivialAugmentWide()])
def test_policies_move_each_mask_with_its_image(operation: Operation) -> None:
    values, numbers = images(60, 1, 20, 24), draws(operation, 60)
    steps = []
    with pytest.MonkeyPatch.context() as patch:
        real = policies.change
        patch.setattr(policies, "change", lambda *given: steps.extend(given[1]) or real(*given))
        operation.apply(values.clone(), numbers, None)
    found, moved = operation.apply_to_masks(values.clone(), numbers, None, 0), 0
    for place, (mask, value) in enumerate(zip(found, values, strict=True)):
        image = value[None]
        for kinds, magnitudes in steps:
            if policies.KINDS[kinds[place]] in MOVED:
                moved += 1
                image = policies.change(image, [(kinds[[place]], magnitudes[[place]])], "nearest", 0.0)
        assert torch.equal(mask, image[0])
        alone = operation.apply_to_masks(value[None].clone(), numbers[[place]], None, 0)
        assert torch.equal(alone[0], mask)
    assert moved > 10


def test_colours_leave_masks_and_plain_fields_alone() -> None:
    fields = (
        Field("image", (3, 8, 8), kind="image"),
        Field("mask", (2, 8, 8), "bool", "mask"),
        Field("x", (4,), "float32"),
    )
    prepared = prepare(COLOURS[:4] + COLOURS[5:], *fields)
    arrays = {"image": images(9, 3, 8, 8), "mask": images(9, 2, 8, 8) > 99, "x": torch.rand(9, 4)}
    found = prepared.augmented(arrays, np.arange(9), 0, 0, False)
    for name in ("mask", "x"):
        assert torch.equal(found[name], arrays[name]) and found[name].data_ptr() != arrays[name].data_ptr()
    assert not torch.equal(found["image"], prepared.plain(arrays)["image"])


# Operations of a user, JSON, mistakes


@dataclass(frozen=True)
class Noise(Operation):
    """Add the same number to all pixels of an image."""

    width: float = 0.1
    draws: ClassVar[int] = 1

    def apply(self, images: torch.Tensor, draws: np.ndarray, side: int | None) -> torch.Tensor:
        assert images.dtype == torch.float32 and 0 <= images.min() and images.max() <= 1
        return images + self.width * torch.from_numpy(draws.astype(np.float32))[:, :, None, None]


def test_an_operation_of_ones_own() -> None:
    prepared = prepare((HorizontalFlip(p=0.0), Noise()), Field("image", (2, 6, 6), kind="image"))
    stored, ids = images(5, 2, 6, 6), np.array([3, 1, 8, 8, 0])
    found = prepared.augmented({"image": stored}, ids, 4, 9, False)["image"]
    added = order.uniform(order.key(4, 4 << 32, 1), 9, ids, 1)
    expected = (stored / 255 + 0.1 * torch.from_numpy(added.astype(np.float32))[:, :, None, None] - 0.4) / 0.3
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_operations_survive_json() -> None:
    value = Data(augment=Augment(operations=tuple(one for one in EVERY if one != RandomErasing(p=0.6))))
    assert from_dict(Data, json.loads(json.dumps(to_dict(value))), "x") == value
    assert not Augment().random and Augment(operations=(HorizontalFlip(),)).random


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: HorizontalFlip(p=1.1), r"p = 1.1 is out of range, in HorizontalFlip; give a value in \[0, 1\]"),
        (lambda: RandomGrayscale(p=-0.1), r"p = -0.1 is out of range, in RandomGrayscale"),
        (lambda: GaussianBlur(kernel_size=4), "kernel_size = 4 .*an odd number"),
        (lambda: GaussianBlur(sigma=(0.0, 1.0)), "sigma = .*0 < low <= high"),
        (lambda: RandomResizedCrop(scale=(0.5, 1.5)), "scale = .*high <= 1"),
        (lambda: RandomErasing(ratio=(2.0, 1.0)), "ratio = "),
        (lambda: ColorJitter(hue=0.6), r"hue = 0.6 .*in \[0, 0.5\]"),
        (lambda: ColorJitter(brightness=-1.0), "brightness = -1.0"),
        (lambda: ColorJitter(contrast=(2.0, 1.0)), "contrast = "),
        (lambda: RandomRotation(-5), "degrees = -5"),
        (lambda: RandomAffine(shear=(3.0, 1.0)), "shear = "),
        (lambda: RandomAffine(translate=(0.1, 1.1)), r"translate = .*in \[0, 1\]"),
        (lambda: RandAugment(magnitude=31), "magnitude = 31 .*from 0 to 30"),
        (lambda: AugMix(severity=11), "severity = 11"),
        (lambda: AugMix(chain_depth=0), "chain_depth = 0"),
        (lambda: Augment((HorizontalFlip(),)), "operations are given by name, in Augment; write operations="),  # type: ignore[arg-type]
        (lambda: Augment(HorizontalFlip()), "operations are given by name, in Augment; write operations="),  # type: ignore[arg-type]
        (lambda: RandomCrop(32), r"RandomCrop takes no size, and its values by name only; write RandomCrop\(\)"),  # type: ignore[misc]
        (lambda: RandomCrop(32, padding=4), r"write RandomCrop\(padding=4\): the data gives the side"),  # type: ignore[misc]
        (lambda: Augment(operations=(v2.RandomHorizontalFlip(),)), "did you mean HorizontalFlip"),  # type: ignore[arg-type]
        (lambda: RandomResizedCrop(224, scale=(0.1, 1)), "RandomResizedCrop takes no size"),  # type: ignore[misc]
        (lambda: Augment(operations=[HorizontalFlip()]), "operations must be a tuple of raytrain's operations, got "),  # type: ignore[arg-type]
        (lambda: Augment(operations=(HorizontalFlip,)), "got the class HorizontalFlip, in Augment; write operations="),  # type: ignore[arg-type]
        (lambda: Augment(operations=(raytrain_v2().RandomHorizontalFlip(),)), "got RandomHorizontalFlip"),
        (
            lambda: Augment(flip=0.5, operations=(ColorJitter(),)),
            "operations take the place of flip, .*; leave flip out",
        ),
        (
            lambda: Augment(operations=(RandomErasing(), ColorJitter())),
            "RandomErasing changes normalised.*; put Rand.* last",
        ),
    ],
)
def test_values_out_of_range_are_refused(make: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        make()


IMAGE, MASK = Field("image", (3, 8, 8), kind="image"), Field("mask", (8, 8), kind="mask")


@pytest.mark.parametrize(
    ("operation", "fields", "message"),
    [
        (
            RandAugment(),
            (replace(IMAGE, dtype="float32"),),
            "RandAugment changes images of uint8, and 'image' is float32",
        ),
        (RandAugment(), (replace(IMAGE, shape=(4, 8, 8)),), "RandAugment takes images of 1 or 3 channels"),
        (AugMix(), (IMAGE, MASK), "would leave the mask 'mask' where it is"),
        (ColorJitter(0.1), (replace(IMAGE, shape=(2, 8, 8)),), "ColorJitter takes images of 1 or 3 channels, .* has 2"),
        (GaussianBlur(kernel_size=17), (IMAGE,), "kernel_size = 17 .*images of 8 x 8"),
        (RandomCrop(padding=8, padding_mode="reflect"), (IMAGE,), "padding = 8 .*images of 8 x 8"),
        (HorizontalFlip(), (Field("x", (5,)),), "augment is for images, and the data has none"),
    ],
)
def test_operations_that_do_not_suit_the_data_are_refused(operation: Operation, fields: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        prepare((operation,), *fields)


def test_a_crop_larger_than_the_image_is_refused() -> None:
    with pytest.raises(UserError, match="crop = 9 is out of range"):
        prepare((RandomResizedCrop(),), IMAGE, side=9)

    @dataclass(frozen=True)
    class Half(Operation):
        def apply(self, images: torch.Tensor, draws: np.ndarray, side: int | None) -> torch.Tensor:
            return images[:, :, ::2]

    with pytest.raises(UserError, match="operations leave 4 x 8 pixels, less than the 8 x 8"):
        prepare((Half(),), IMAGE).augmented({"image": images(2, 3, 8, 8)}, np.arange(2), 0, 0, False)


def test_all_operations_are_public() -> None:
    assert {type(one).__name__ for one in EVERY} | {"Operation"} <= set(raytrain.__all__)
