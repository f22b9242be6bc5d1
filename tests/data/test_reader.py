"""reader: a rank's way through an epoch, and the images on it. Ray's part of Streaming is replaced by a list."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raytrain import order
from raytrain.data import Data, Index, blocks, packing, streaming
from raytrain.data.blocks import Arrays, Bad
from raytrain.data.reader import Direct, Epoch, Resident
from raytrain.data.streaming import Streaming
from raytrain.errors import BadSample, UserError
from raytrain.user_code.shipping import Shipped

IMAGES = np.random.default_rng(0).integers(0, 256, (103, 1, 4, 4), dtype=np.uint8)
INDEX = Index(np.arange(103) % 10, tuple("0123456789"), (1, 4, 4), "train")


def ways(world: int, number: int | None, first_step: int = 0, batch: int = 16) -> list[Epoch]:
    return [Epoch(order.Shard(103, batch, rank, world), 7, number, first_step) for rank in range(world)]


@settings(deadline=None)
@given(
    n=st.integers(1, 400),
    batch=st.integers(1, 60),
    world=st.integers(1, 6),
    number=st.none() | st.integers(0, 9),
    part=st.floats(0, 1),
)
def test_the_samples_behind_a_ranks_count_are_those_of_its_steps(
    n: int, batch: int, world: int, number: int | None, part: float
) -> None:
    for rank in range(world):
        shard = order.Shard(n, batch, rank, world)
        way = Epoch(shard, 3, number, int(part * shard.steps))
        steps = list(way.steps())
        assert len(steps) == shard.steps - way.first_step
        together = np.concatenate([np.empty(0, np.int64), *steps])
        assert np.array_equal(way.samples(np.arange(shard.count(way.first_step))), together)


@pytest.mark.parametrize("world", [1, 2, 4])
def test_training_is_in_order_and_evaluation_in_sequence(world: int) -> None:
    for number, expected in ((2, order.samples(7, 2, 103, np.arange(103))), (None, np.arange(103))):
        steps = zip(*(way.steps() for way in ways(world, number)), strict=True)
        assert np.array_equal(np.concatenate([part for parts in steps for part in parts]), expected)


def test_steps_from_a_later_step_are_the_rest() -> None:
    for whole, rest in zip(ways(2, 1), ways(2, 1, first_step=3), strict=True):
        later = list(whole.steps())[3:]
        assert all(np.array_equal(a, b) for a, b in zip(later, rest.steps(), strict=True))


@pytest.mark.parametrize("number", [0, None])
def test_resident_gives_each_samples_own_image(number: int | None) -> None:
    shared = IMAGES.copy()
    shared.flags.writeable = False  # as a map of the object store is
    for way in ways(4, number):
        for samples, arrays in Resident({"image": shared}).read(way):
            images = arrays["image"]
            assert images.dtype == np.uint8 and np.array_equal(images, IMAGES[samples])
            images += 1  # a batch is the loader's own
    assert np.array_equal(shared, IMAGES)


def served(sizes: list[int], bad: list[Bad]) -> Callable[..., Iterator[object]]:
    """Stands in for `read_blocks`: read-only blocks of the given sizes over and over."""

    def read_blocks(
        data: Data, index: object, samples: Callable[[np.ndarray], np.ndarray], total: int, size: int, *_: object
    ) -> Iterator[tuple[Arrays, list[Bad]]]:
        assert total > 0, "there is nothing to stream"
        chosen, start = samples(np.arange(total)), 0
        while start < total:
            for length in sizes:
                block = IMAGES[chosen[start : start + length]]
                block.flags.writeable = False
                yield {"image": block}, bad
                start += length

    return read_blocks


@pytest.mark.parametrize("sizes", [[1], [5, 40, 1, 2], [1_000]])
@pytest.mark.parametrize("first_step", [0, 4])
@pytest.mark.parametrize(("world", "batch"), [(1, 16), (3, 17), (8, 102), (5, 2)])
def test_streamed_blocks_of_any_size_equal_resident(
    world: int, batch: int, first_step: int, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming, "read_blocks", served(sizes, []))
    first_step = min(first_step, -(-103 // batch) - 1)
    for way in ways(world, 0, first_step, batch):
        expected, streamed = Resident({"image": IMAGES}).read(way), Streaming(Data(), INDEX, None).read(way)
        for (samples, arrays), (same, found) in zip(expected, streamed, strict=True):
            others = found["image"]
            assert np.array_equal(samples, same) and np.array_equal(arrays["image"], others)
            assert others.dtype == np.uint8 and others.shape == (len(samples), 1, 4, 4) and others.flags.writeable


def test_a_bad_sample_in_the_stream_is_an_error_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "read_blocks", served([8], [Bad(0, "ants/1.jpg", "the file is empty", True)]))
    with pytest.raises(UserError, match=r"cannot read sample: the file is empty, ants/1\.jpg"):
        next(Streaming(Data(), INDEX, None).read(ways(1, 0)[0]))


class Slow(Data):
    """A source whose samples take a second each by the clock of the test, and one of which is bad."""

    now, read_here = 0.0, 0

    def read(self, index: Index, samples: np.ndarray) -> np.ndarray:
        Slow.now += len(samples)
        Slow.read_here += len(samples)
        if 70 in samples:
            raise BadSample("ants/70.jpg", "the file is empty")
        return IMAGES[samples]


@pytest.mark.parametrize(("seconds", "here"), [(1_000.0, 103), (102.0, 64), (0.0, 64)])
def test_short_reads_run_here_and_long_ones_in_ray(monkeypatch: pytest.MonkeyPatch, seconds: float, here: int) -> None:
    def read_blocks(
        data: Data, index: object, samples: Callable[[np.ndarray], np.ndarray], total: int, size: int, **_: object
    ):
        assert (index, size) == ("index", total * 16)
        for start in range(0, total, 20):
            chosen = samples(np.arange(start, min(start + 20, total)))
            at = np.flatnonzero(chosen == 70)
            yield (
                {"image": np.where((chosen == 70)[:, None, None, None], 0, IMAGES[chosen])},
                [Bad(int(row), "ants/70.jpg", "the file is empty", True) for row in at],
            )

    Slow.now, Slow.read_here = 0.0, 0
    monkeypatch.setattr(packing, "time", SimpleNamespace(perf_counter=lambda: Slow.now))
    monkeypatch.setattr(packing, "_HERE_SECONDS", seconds)
    monkeypatch.setattr(streaming, "read_blocks", read_blocks)
    monkeypatch.setattr(streaming, "ray", SimpleNamespace(put=lambda _: "index"))
    arrays, index, skipped = packing.pack(Slow(on_bad_sample="skip"), INDEX)
    good = np.delete(np.arange(103), 70)
    assert arrays is not None and np.array_equal(arrays["image"], IMAGES[good])
    assert np.array_equal(index.labels, INDEX.labels[good])
    assert skipped == [Bad(70, "ants/70.jpg", "the file is empty", True)]
    assert Slow.read_here == here + (39 if here == 103 else 0), "a block with a bad sample is read again, one by one"
    with pytest.raises(UserError, match=r"cannot read sample: the file is empty, ants/70\.jpg"):
        packing.pack(Slow(), INDEX)


class Array(Data):
    """IMAGES, of which some cannot be read."""

    bad: tuple[int, ...] = ()

    def read(self, index: Index, samples: np.ndarray) -> np.ndarray:
        for sample in samples:
            if sample in self.bad:
                raise BadSample(f"{sample}.png", "broken")
        return IMAGES[samples]


class Odd(Array):
    """IMAGES, of which one is a float, too small, or fails."""

    how = ""

    def read(self, index: Index, samples: np.ndarray) -> np.ndarray:
        images = super().read(index, samples)
        if 70 not in samples:
            return images
        if self.how == "fails":
            raise ValueError("no such image")
        return {"float": images / 2, "small": images[..., :1], "few": images[:1]}[self.how]


@pytest.mark.parametrize("bad", [(), (3, 65)])
@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("float", r"must return uint8 \[1, 1, 4, 4\], got float64 \[1, 1, 4, 4\] for sample 70, train, in Odd.read \("),
        ("small", r"must return uint8 \[1, 1, 4, 4\], got uint8 \[1, 1, 4, 1\] for sample 70"),
        ("fails", r"Odd.read of sample 70, train, fails: ValueError: no such image, .*test_reader.py:\d+;"),
    ],
)
def test_later_sample_of_another_form_is_an_error(
    monkeypatch: pytest.MonkeyPatch, how: str, message: str, bad: tuple[int, ...]
) -> None:
    monkeypatch.setattr(Odd, "how", how)
    monkeypatch.setattr(Array, "bad", bad)
    with pytest.raises(UserError, match=message):
        packing.pack(Odd(on_bad_sample="skip"), INDEX)
    with pytest.raises(UserError, match=message):
        list(Direct(Odd(on_bad_sample="skip"), INDEX).read(ways(1, None)[0]))


def test_batch_of_too_few_images_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Odd, "how", "few")
    with pytest.raises(
        UserError, match=r"uint8 \[39, 1, 4, 4\], got uint8 \[1, 1, 4, 4\] for sample 64 to sample 102, tr"
    ):
        packing.pack(Odd(), INDEX)


def test_an_error_in_a_task_comes_back_as_the_error_that_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Odd, "how", "float")
    monkeypatch.setattr(streaming, "_fetch", lambda _: INDEX)
    yielded = list(
        streaming._read({"start": np.array([0]), "stop": np.array([103])}, Shipped(Odd()), None, np.array, 20)
    )
    assert [len(block["image"]) for block in yielded] == [20, 20, 20, 1]
    with pytest.raises(UserError, match=r"got float64 .* for sample 70, train, in Odd.read"):
        for block in yielded:
            blocks.arrays_and_bad(block)


@pytest.mark.parametrize(("path", "shown"), [("", "sample 70"), ("a\0b.png", "a\\x00b.png"), ("\0", "\\x00")])
def test_a_bad_sample_of_an_odd_name_is_skipped(path: str, shown: str) -> None:
    class Named(Odd):
        def read(self, index: Index, samples: np.ndarray) -> np.ndarray:
            if 70 in samples:
                raise BadSample(path, "gone")
            return np.zeros((len(samples), *index.input.shape), np.uint8)

    _, _, bad = packing.pack(Named(on_bad_sample="skip"), INDEX)
    assert bad == [Bad(70, shown, "gone", True)]


def test_resume_skips_the_samples_skipped_before(monkeypatch: pytest.MonkeyPatch) -> None:
    data = Array(on_bad_sample="skip")
    monkeypatch.setattr(Array, "bad", (5, 40))
    began = packing.pack(data, INDEX)
    monkeypatch.setattr(Array, "bad", (5,))  # the way to the other one is open again
    for keep in (True, False):
        with monkeypatch.context() as patch:
            if not keep:  # which samples there are is known, and training reads them
                patch.setattr(packing, "_read_all", None)
            arrays, index, skipped = packing.pack(data, INDEX, keep, before=began[2])
        assert skipped == began[2] and np.array_equal(index.labels, began[1].labels)
        assert (arrays is not None) == keep
        assert arrays is None or np.array_equal(arrays["image"], IMAGES[np.delete(np.arange(103), (5, 40))])
    assert len(packing.pack(data, INDEX, before=None)[1]) == 102
    monkeypatch.setattr(Array, "bad", (5, 40, 41))
    with pytest.raises(
        UserError, match=r"that could be read when the run began: broken, 41\.png; restore it and resume"
    ):
        packing.pack(data, INDEX, before=began[2])
    with pytest.raises(UserError, match=r"that could be read when the run began: broken, 5\.png"):
        packing.pack(data, INDEX, before=[])


def test_sample_that_goes_bad_in_a_stream_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(streaming, "read_blocks", served([8], [Bad(0, "ants/1.jpg", "the file is empty", True)]))
    with pytest.raises(
        UserError, match=r"could be read when the run began: the file is empty, ants/1\.jpg; restore it"
    ):
        next(Streaming(Data(on_bad_sample="skip"), INDEX, None).read(ways(1, 0)[0]))


@pytest.mark.parametrize("number", [2, None])
def test_this_processs_threads_give_what_memory_gives(number: int | None) -> None:
    for way in ways(2, number, first_step=1):
        for (ids, arrays), (expected, theirs) in zip(
            Direct(Array(), INDEX).read(way), Resident({"image": IMAGES}).read(way), strict=True
        ):
            assert np.array_equal(ids, expected) and np.array_equal(arrays["image"], theirs["image"])


def test_threads_skip_or_name_bad_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Array, "bad", (5, 40))
    direct = Direct(Array(on_bad_sample="skip"), INDEX)
    read = np.concatenate([ids for ids, _ in direct.read(ways(1, 1)[0])])
    assert sorted(read) == sorted(set(range(103)) - {5, 40}) and sorted(direct.skipped) == ["40.png", "5.png"]
    with pytest.raises(UserError, match="cannot read sample: broken"):
        list(Direct(Array(), INDEX).read(ways(1, 1)[0]))
