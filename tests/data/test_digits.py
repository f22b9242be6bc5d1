"""Digits: the embedded set."""

from __future__ import annotations

import numpy as np

from raytrain.data import Digits


def test_1438_samples_train_and_359_others_validate() -> None:
    indices = Digits().index()
    assert {split: len(index) for split, index in indices.items()} == {"train": 1438, "val": 359}
    rows = [index.rows for index in indices.values() if index.rows is not None]
    assert np.array_equal(np.sort(np.concatenate(rows)), np.arange(1797))


def test_each_class_has_a_fifth_held_out() -> None:
    indices = Digits().index()
    train, val = (np.bincount(indices[split].labels, minlength=10) for split in ("train", "val"))
    assert train.tolist() == [142, 146, 142, 146, 145, 146, 145, 143, 139, 144]
    assert np.abs(val - (train + val) / 5).max() <= 0.5
    assert indices["train"].classes == indices["val"].classes == tuple("0123456789")


def test_the_split_is_the_same_every_time() -> None:
    prints = [index.fingerprint() for index in Digits().index().values()]  # a resumed run compares them
    assert prints == ["cce4de8d52374da8", "911f403825a2a76e"]


def test_pixels_are_bytes_over_the_whole_range() -> None:
    data = Digits()
    for index in data.index().values():
        images = data.read(index, np.arange(len(index)))
        assert images.shape == (len(index), 1, 8, 8) == (len(index), *index.shape) and images.dtype == np.uint8
        assert len(np.unique(images)) == 17 and (images.min(), images.max()) == (0, 255)


def test_the_default_mean_and_deviation_are_the_training_pixels() -> None:
    data = Digits()
    index = data.index()["train"]
    pixels = data.read(index, np.arange(len(index))) / 255
    assert abs(pixels.mean() - data.mean[0]) < 1e-3 and abs(pixels.std() - data.std[0]) < 1e-3


def test_read_gives_samples_in_the_order_asked_also_of_a_part() -> None:
    data = Digits()
    index = data.index()["val"]
    whole = data.read(index, np.arange(len(index)))
    assert np.array_equal(data.read(index, np.array([5, 300, 5])), whole[[5, 300, 5]])
    assert np.array_equal(data.read(index.take(np.array([9, 4])), np.array([1, 0])), whole[[4, 9]])


def test_images_of_a_digit_resemble_each_other_more_than_others() -> None:
    data = Digits()
    index = data.index()["train"]
    images = data.read(index, np.arange(len(index))).reshape(len(index), -1).astype(float)
    means = np.stack([images[index.labels == digit].mean(axis=0) for digit in range(10)])
    nearest = np.argmin(((images[:, None] - means) ** 2).sum(axis=2), axis=1)
    assert np.mean(nearest == index.labels) > 0.85
