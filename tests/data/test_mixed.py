"""Mixed: several sources as one, with shares of each epoch."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.ranks import Ranks, losses, new_run, train_rank
from PIL import Image

from raytrain import (
    MLP,
    Augment,
    Balanced,
    Data,
    Digits,
    Experiment,
    Folds,
    ImageFolder,
    Index,
    Manifest,
    Mixed,
    Run,
    Sampler,
    UserError,
)
from raytrain.data.checks import checked_indices, checked_read
from raytrain.data.mixed import MixedIndex
from raytrain.data.sampler import check_sampler
from raytrain.driver.correction import may_change
from raytrain.driver.plan import survey
from raytrain.errors import BadSample
from raytrain.sweep import record


@dataclass(frozen=True)
class Plain(Data):
    """`count` training samples of two classes; each pixel is the sample's number plus `base`."""

    base: int = 0
    count: int = 10
    names: tuple[str, ...] = ("a", "b")
    side: int = 2
    bad: int | None = None

    def index(self) -> dict[str, Index]:
        sizes = {"train": self.count, "val": 4}
        return {
            split: Index(np.arange(n) % 2, self.names, (1, self.side, 2), split, columns={"n": np.arange(n)})
            for split, n in sizes.items()
        }

    def read(self, index: Index, samples: np.ndarray) -> np.ndarray:
        if self.bad is not None and self.bad in samples and index.split == "train":
            raise BadSample(f"{self.base}/{self.bad}.png", "broken")
        found = np.empty((len(samples), *index.shape), np.uint8)
        found[:] = (self.base + index.columns["n"][samples])[:, None, None, None]
        return found


MIXED = Mixed(sources=(Plain(0, 10), Plain(100, 90)))


def drawn(mixed: Mixed, epochs: int, sampler: Sampler = Sampler()) -> list[np.ndarray]:
    index = mixed.index()["train"]
    return [sampler.samples(index, 3, epoch, np.arange(sampler.size(index))) for epoch in range(epochs)]


def test_samples_are_those_of_the_sources_one_after_the_other() -> None:
    indices = checked_indices(MIXED)
    assert {split: len(index) for split, index in indices.items()} == {"train": 100, "val": 8}
    train = pickle.loads(pickle.dumps(indices["train"]))
    order = np.random.default_rng(0).permutation(100)
    found = checked_read(MIXED, train, order)["image"]
    expected = np.concatenate([np.arange(10), 100 + np.arange(90)])[order]
    assert np.array_equal(found[:, 0, 0, 0], expected)
    assert np.array_equal(train.labels, np.concatenate([np.arange(10) % 2, np.arange(90) % 2]))
    some = train.take(order[:7])
    assert np.array_equal(checked_read(MIXED, some, np.arange(7))["image"], found[:7])
    assert train.names(np.array([9, 10])) == ["sample 9", "sample 0"] == [train.name(9), train.name(10)]
    only = checked_indices(replace(MIXED, validate=1))["val"]
    assert checked_read(MIXED, only, np.arange(4))["image"][:, 0, 0, 0].tolist() == [100, 101, 102, 103]


def test_every_epoch_has_the_shares_and_each_source_goes_in_turn() -> None:
    mixed = replace(MIXED, shares=(0.7, 0.3))
    epochs = drawn(mixed, 6)
    assert all((one < 10).sum() == 70 and (one >= 10).sum() == 30 for one in epochs)
    times = np.bincount(np.concatenate(epochs), minlength=100)
    assert set(times[:10]) == {42} and set(times[10:]) == {2}, "70 x 6 of 10 samples, 30 x 6 of 90"
    assert all((one < 10).sum() == 20 for one in drawn(replace(mixed, shares=(2, 1)), 2, Sampler(count=30)))
    assert all(np.array_equal(np.sort(one), np.arange(100)) for one in drawn(MIXED, 2)), "without shares all once"


def test_fingerprints_tell_sources_and_shares_apart() -> None:
    others = (MIXED, replace(MIXED, shares=(1.0, 2.0)), Mixed(sources=(Plain(0, 11), Plain(100, 89))))
    assert len({one.index()["train"].fingerprint() for one in others}) == 3


def test_folds_split_a_mixture() -> None:
    indices = checked_indices(replace(MIXED, shares=(0.5, 0.5), folds=Folds(5, fold=1)))
    assert (len(indices["train"]), len(indices["val"])) == (80, 20) and indices["train"].shares == (0.5, 0.5)
    found = Sampler().samples(indices["train"], 0, 0, np.arange(80))
    assert (indices["train"].columns["source"][found] == 0).sum() == 40


@pytest.mark.parametrize("group", [None, "pair"])
def test_folds_validate_on_the_source_that_validates(group: str | None) -> None:
    """Also where a class or a group has samples of both sources."""

    @dataclass(frozen=True)
    class Paired(Mixed):
        def index(self) -> dict[str, Index]:
            found = super().index()
            pairs = {split: {"pair": one.rows // 2, **one.columns} for split, one in found.items()}
            return {split: replace(one, columns=pairs[split]) for split, one in found.items()}

    mixed = Paired(sources=(Plain(0, 20), Plain(100, 90)), validate=0, shares=(0.5, 0.5))
    seen = []
    for fold in range(5):
        indices = checked_indices(replace(mixed, folds=Folds(5, fold=fold, group=group)))
        train, val = indices["train"], indices["val"]
        assert set(val.columns["source"]) == {0} and len(val) == 4 and np.bincount(val.labels).tolist() == [2, 2]
        assert np.bincount(train.columns["source"])[0] == 16
        if group:
            assert not set(train.columns["pair"]) & set(val.columns["pair"])
        seen += val.rows.tolist()
    assert sorted(seen) == list(range(20))
    with pytest.raises(UserError, match=r"fold \d+ of 30 has no sample of the source that validates, in data.folds"):
        for fold in range(30):
            checked_indices(replace(mixed, folds=Folds(30, fold=fold, stratify=False, group=group)))


def test_bad_samples_are_named_by_their_source() -> None:
    with pytest.raises(UserError, match=r"cannot read sample: broken, 100/0\.png"):
        survey(Mixed(sources=(Plain(0, 1), Plain(100, 2, bad=0))))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Mixed(sources=(Plain(),)), "Mixed joins sources, got 1"),
        (lambda: replace(MIXED, shares=(1.0,)), "shares must have one number per source, 2, got 1"),
        (lambda: replace(MIXED, shares=(1.0, 0.0)), "each share must be above 0"),
        (lambda: replace(MIXED, validate=2), "validate = 2 is out of range, in Mixed; give a value from 0 to 1"),
        (
            lambda: replace(MIXED, crop=1),
            "have the side 1 of Mixed and as stored of source 0, in Mixed; give both the same",
        ),
        (lambda: Mixed(sources=(Plain(), Plain(augment=Augment(flip=0.5)))), "augment is .* of source 1"),
        (
            lambda: Mixed(sources=(Plain(), Plain(names=("a", "c")))).index(),
            "other classes than source 0: a, c and not a",
        ),
        (lambda: Mixed(sources=(Plain(), Plain(side=3))).index(), r"other fields .*: image uint8 \[1, 3, 2\] and not"),
        (lambda: Mixed(sources=(Plain(), replace(MIXED, shares=(1, 2)))).index(), "source 1, Mixed, has shares of its"),
        (
            lambda: check_sampler(Balanced(), replace(MIXED, shares=(1, 2)).index()["train"], 0),
            "Balanced would draw without regard to the shares of the sources",
        ),
    ],
)
def test_mixtures_that_cannot_be_are_refused(make: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        make()


def test_test_splits_without_labels_are_joined_and_others_are_not() -> None:
    @dataclass(frozen=True)
    class Tested(Plain):
        bare: str = ""

        def index(self) -> dict[str, Index]:
            found = super().index()
            found["test"] = replace(found["val"], split="test")
            return found | ({self.bare: replace(found[self.bare], labels=None, count=4)} if self.bare else {})

    test = Mixed(sources=(Tested(), Tested(bare="test"))).index()["test"]
    assert test.labels is None and len(test) == 8
    with pytest.raises(UserError, match="source 1 has no labels in val, and others have some"):
        Mixed(sources=(Tested(), Tested(bare="val"))).index()


def test_mixtures_may_be_nested_and_augmented() -> None:
    nested = Mixed(sources=(MIXED, Plain(200, 5)), augment=Augment(flip=0.5), shares=(1.0, 1.0))
    index = checked_indices(nested)["train"]
    assert isinstance(index, MixedIndex) and len(index) == 105
    assert checked_read(nested, index, np.array([3, 12, 104]))["image"][:, 0, 0, 0].tolist() == [3, 102, 204]


def test_a_mixture_trains_alike_on_1_and_3_ranks_and_survives_json(ranks: Ranks, tmp_path: Path) -> None:
    one, other = Digits(folds=Folds(2)), Digits(folds=Folds(2, fold=1))
    common: Any = {"mean": one.mean, "std": one.std}
    e = Experiment(MLP(hidden=(16,)), Mixed(sources=(one, other), shares=(0.9, 0.1), **common), batch_size=48)
    found = []
    for world in (1, 3):
        run = new_run(tmp_path / str(world), e)
        assert Run(run).experiment == e
        ranks.run(world, train_rank, e, run)
        found.append(losses(run))
    np.testing.assert_allclose(found[0], found[1], rtol=2e-6, atol=2e-6)
    assert len(found[0]) == 30


def test_a_resumed_run_may_move_the_folders_of_sources() -> None:
    assert may_change("data.sources.1.root") and not may_change("data.sources.1.size") and not may_change("data.shares")


def test_the_side_of_a_mixture_is_that_of_its_sources(tmp_path: Path) -> None:
    for name in ("a/x", "a/y", "b/x", "b/y"):
        (tmp_path / name).mkdir(parents=True)
        for number in range(4):
            Image.fromarray(np.full((9, 9), 10 * number, np.uint8)).save(tmp_path / name / f"{number}.png")
    sources = tuple(ImageFolder(str(tmp_path / name), size=8) for name in "ab")
    data = Mixed(sources)
    assert (data.crop, data.input_side) == (None, sources[0].input_side)
    assert data.sample(checked_indices(data)["train"]) == sources[0].sample(checked_indices(sources[0])["train"])
    cut = Mixed(tuple(replace(one, crop=6) for one in sources))
    assert cut.input_side == 6 and cut.sample(checked_indices(cut)["train"]) == (3, 6, 6)
    assert Mixed(tuple(replace(one, crop=6) for one in sources), crop=6).input_side == 6
    assert data.normalisation(3) == sources[0].normalisation(3) != ((0.5,), (0.5,))
    named = Mixed(sources, mean=(0.1,), std=(0.2,))
    assert named.normalisation(3) == ((0.1,), (0.2,)), "the sources leave it open"
    with pytest.raises(UserError, match=r"mean is \(0.1,\) of source 0 and None of source 1"):
        Mixed((replace(sources[0], mean=(0.1,), std=(0.2,)), sources[1]))
    with pytest.raises(UserError, match="have the side 6 of Mixed and 7 of source 1"):
        Mixed((replace(sources[0], crop=6), replace(sources[1], crop=7)))


def test_a_source_may_lack_classes_of_the_first_one(tmp_path: Path) -> None:
    for place, names in (("one", "abc"), ("two", "ca")):
        lines = ["path,label"]
        for number in range(12):
            Image.fromarray(np.full((8, 8), 20 * number, np.uint8)).save(tmp_path / f"{place}{number}.png")
            lines.append(f"{place}{number}.png,{names[number % len(names)]}")
        (tmp_path / f"{place}.csv").write_text("\n".join(lines))
    one, two = (Manifest(str(tmp_path / f"{place}.csv"), size=8, channels=1) for place in ("one", "two"))
    found = checked_indices(Mixed((one, two)))["train"]
    assert found.classes == ("a", "b", "c") and "source 1 has no 'b'" in found.notes
    for number, (name, label) in enumerate(zip(found.names(np.arange(len(found))), found.labels, strict=True)):
        wanted = "abc" if found.columns["source"][number] == 0 else "ca"
        place = int(Path(name).stem[3:])
        assert "abc"[label] == wanted[place % len(wanted)]
    with pytest.raises(UserError, match="source 1 has other classes than source 0: a, b, c and not a, c"):
        checked_indices(Mixed((two, one)))


def table(folder: Path, name: str, count: int, split: bool = False) -> Manifest:
    """A table of `count` images of two classes, with a split of its own or none."""
    rows = ["path,label" + (",split" if split else "")]
    for number in range(count):
        Image.new("L", (4, 4), number).save(folder / f"{name}{number}.png")
        own = ",val" if number % 4 > 1 else ",train"
        rows.append(f"{name}{number}.png,{'ab'[number % 2]}{own if split else ''}")
    (folder / f"{name}.csv").write_text("\n".join(rows))
    return Manifest(str(folder / f"{name}.csv"), size=4, crop=4, channels=1, mean=(0.5,), std=(0.5,))


@pytest.mark.parametrize("validate", [None, 0, 1])
@pytest.mark.parametrize("with_split", [False, True])
@pytest.mark.parametrize("nested", [False, True])
def test_folds_of_sources_without_a_val_split_have_all_their_samples(
    tmp_path: Path, validate: int | None, with_split: bool, nested: bool
) -> None:
    """A source's `val_fraction` is not held out before; one with splits of its own leaves out its val."""
    one, other = table(tmp_path, "x", 40), table(tmp_path, "y", 20, with_split)
    sources: tuple[Data, ...] = (one, other) if not nested else (Mixed(sources=(one, one), crop=4), other)
    mixed = Mixed(sources=sources, validate=validate, crop=4, folds=Folds(4))
    assert mixed.notes() == []
    sizes = (80 if nested else 40, 10 if with_split else 20)
    held = 0
    for fold in range(4):
        found = checked_indices(replace(mixed, folds=Folds(4, fold=fold)))
        of_split = [np.bincount(found[split].columns["source"], minlength=2) for split in ("train", "val")]
        counts = of_split[0] + of_split[1]
        if validate is None:
            assert np.array_equal(counts, sizes)
        else:
            assert counts[validate] == sizes[validate] and set(found["val"].columns["source"]) == {validate}
        held += len(found["val"])
        pixels = checked_read(replace(mixed, folds=Folds(4, fold=fold)), found["val"], np.arange(len(found["val"])))
        names = [int(Path(name).stem[1:]) for name in found["val"].names(np.arange(len(found["val"])))]
        assert pixels["image"][:, 0, 0, 0].tolist() == names
    assert held == (sum(sizes) if validate is None else sizes[validate])


def test_a_source_with_folds_of_its_own_keeps_them_in_those_of_the_mixture(tmp_path: Path) -> None:
    one, other = table(tmp_path, "x", 40), table(tmp_path, "y", 20)
    found = Mixed(sources=(replace(one, folds=Folds(4)), other), crop=4, folds=Folds(2)).index()
    assert np.bincount(found["train"].columns["source"]).tolist() == [30, 20]


def test_a_sweep_tells_what_is_read_of_sources_that_are_augmented() -> None:
    """Of a mixture whose sources have its `augment`, trials that differ in other fields share what they read."""
    flip = Augment(flip=0.5)
    mixed = Mixed(sources=(Plain(0, 10, augment=flip), Plain(100, 90, augment=flip)), augment=flip)
    e = Experiment(MLP(), mixed)
    assert record.reads(e) == record.reads(replace(e, epochs=2)) != record.reads(replace(e, data=MIXED))


def test_the_augmentation_of_the_sources_is_that_of_the_mixture() -> None:
    flip = Augment(flip=0.5)
    data = Mixed((Plain(0, 10, augment=flip), Plain(100, 90, augment=flip)))
    assert data.augment == flip and [source.augment for source in data.sources] == [Augment(), Augment()]
    assert replace(data, augment=Augment(flip=0.25)).augment.flip == 0.25, "a flag changes it for all"
    outer = Mixed((data, Plain(100, 90, augment=flip)))
    assert outer.augment == flip and outer.sources[0].augment == Augment()
    for other in (Augment(), Augment(flip=0.25)):
        with pytest.raises(UserError, match=r"augment is .* of source [01]"):
            Mixed((Plain(0, 10, augment=other), Plain(100, 90, augment=flip)))


def test_sources_that_do_not_validate_hold_nothing_out(tmp_path: Path) -> None:
    one, other = table(tmp_path, "x", 40), table(tmp_path, "y", 20)
    mixed = Mixed((one, other), validate=0, crop=4)
    found = checked_indices(mixed)
    assert np.bincount(found["train"].columns["source"]).tolist() == [32, 20]
    assert np.bincount(found["val"].columns["source"]).tolist() == [8]
    assert sum("used for validation" in note for note in mixed.notes()) == 1
    val = checked_read(mixed, found["val"], np.arange(8))["image"][:, 0, 0, 0]
    assert val.tolist() == [int(Path(name).stem[1:]) for name in found["val"].names(np.arange(8))]
    split = checked_indices(Mixed((one, table(tmp_path, "z", 20, True)), validate=0, crop=4))
    assert np.bincount(split["train"].columns["source"]).tolist() == [32, 10], "its own val is left out"
    with_test = checked_indices(Mixed((one, other), validate=1, crop=4))
    assert np.bincount(with_test["train"].columns["source"]).tolist() == [40, 16]
