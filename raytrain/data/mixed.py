"""Mixed: several sources as one, perhaps with a share of each epoch for each."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from raytrain import config, errors
from raytrain.data.augment import Augment
from raytrain.data.checks import checked_read, own_indices
from raytrain.data.crops import Crops, cropped
from raytrain.data.folds import Folds
from raytrain.data.source import Data, Field, Index

if TYPE_CHECKING:
    from raytrain.data.decode_gpu import Decoder


@dataclass(frozen=True, eq=False)
class MixedIndex(Index):
    """The samples of one split of several sources, one source after the other.

    The column `source` has the number of each sample's source, and `rows` its place in that source's index.

    Attributes:
        parts: the index of each source.
    """

    parts: tuple[Index, ...] = ()

    def name(self, sample: int) -> str:
        """Return the name of a sample for messages."""
        return self.parts[self.columns["source"][sample]].name(int(self.rows[sample]))

    def names(self, samples: np.ndarray) -> list[str]:
        """Return the names of some samples (int64 [k])."""
        found = np.empty(len(samples), object)
        of = self.columns["source"][samples]
        for number in np.unique(of):
            here = np.flatnonzero(of == number)
            found[here] = self.parts[number].names(self.rows[samples[here]])
        return found.tolist()

    @property
    def in_files(self) -> bool:
        """Whether each sample is a file."""
        return all(part.in_files for part in self.parts)

    def fingerprint(self) -> str:
        """Return a hash of the samples and of all sources."""
        return "-".join([super().fingerprint(), *(part.fingerprint() for part in self.parts)])


@dataclass(frozen=True)
class Mixed(Data):
    """The samples of several sources with the same fields and classes, such as real and synthetic images.

    With shares, the default sampler gives each source its share of every epoch, up to one sample, in random order; an
    epoch is as long as all sources together, unless `sampler.fraction` or `sampler.count` says otherwise. Within a
    source every sample comes once before any comes twice. Without shares every sample comes once per epoch.
    """

    sources: tuple[Data, ...] = ()
    """The sources. The mixture's own mode and on_bad_sample count. Crop, augment, mean and std must be the same in all
    of them, and the mixture need not repeat them; where it has its own augment, a source may have none."""
    shares: tuple[float, ...] = ()
    """The share of each source, in any unit, as (0.7, 0.3); empty for no shares."""
    validate: int | None = None
    """The number of the source, from 0, whose val split validates; None joins those of all sources. Of the others, all
    samples of train are trained on, also those that would be held out for want of a val split. With folds, its
    training samples alone validate; those of other sources are left out in one fold each, too."""

    def __post_init__(self) -> None:
        own = self.sources[0].augment if self.sources else Augment()
        if self.augment == Augment() != own and all(source.augment == own for source in self.sources):
            object.__setattr__(self, "augment", own)  # and not theirs, so that a flag or an axis changes it for all
            object.__setattr__(self, "sources", tuple(replace(one, augment=Augment()) for one in self.sources))
        super().__post_init__()
        config.check(self)
        where = "in Mixed"
        if len(self.sources) < 2:
            raise errors.UserError(f"Mixed joins sources, got {len(self.sources)}", where, "give at least two")
        if self.shares and len(self.shares) != len(self.sources):
            what = f"shares must have one number per source, {len(self.sources)}, got {len(self.shares)}"
            raise errors.UserError(what, where, "write as many as there are sources, as (0.7, 0.3)")
        if self.shares and not all(0 < share < float("inf") for share in self.shares):
            what = f"each share must be above 0, got {self.shares}"
            raise errors.UserError(what, where, "leave out a source that is not to be used")
        if self.validate is not None and not 0 <= self.validate < len(self.sources):
            allowed = f"from 0 to {len(self.sources) - 1}, the number of a source, or None for all"
            raise errors.out_of_range("validate", self.validate, allowed, "Mixed")
        for number, source in enumerate(self.sources):
            if source.whole != self.whole:
                what = f"source 0 has whole={self.whole}, and source {number} {source.whole}"
                raise errors.UserError(what, where, "let all sources train on crops of whole images, or none")
            if source.on_gpu != self.on_gpu:
                what = f"source {number} decodes on the {'GPU' if source.on_gpu else 'CPU'}, and source 0 does not"
                raise errors.UserError(what, where, "give all sources the same decode")
            self._check_alike(number, source)

    def _check_alike(self, number: int, source: Data) -> None:
        """Check that a source's samples are prepared as those of the others, which are in one batch.

        Raises:
            UserError: they are not.
        """
        kind = type(source).__name__
        for name in ("augment", "mean", "std"):
            inherited = name != "augment" and _is_unset(self, name)
            own, common = getattr(source, name), getattr(self.sources[0] if inherited else self, name)
            if own == common or (_is_unset(source, name) and not inherited):
                continue
            of = "source 0" if inherited else "Mixed"
            what = f"{name} is {common!r} of {of} and {own!r} of source {number}, {kind}"
            how = f"give both the same: Mixed(..., {name}=...) and {kind}(..., {name}=...)"
            raise errors.UserError(what, "in Mixed", how)
        if source.input_side != self.input_side:
            what = f"the model's images have the side {_side(self)} of Mixed and {_side(source)} of source {number}"
            how = f"give both the same: Mixed(..., crop=...) and {kind}(..., crop=...)"
            raise errors.UserError(what, "in Mixed", how)

    def normalisation(self, channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return the mixture's mean and standard deviation, or where they are left out those of the sources."""
        unset = _is_unset(self, "mean") and _is_unset(self, "std")
        return self.sources[0].normalisation(channels) if unset else super().normalisation(channels)

    @property
    def input_side(self) -> int | None:
        """The side of the images that the model sees: `crop`, or without it that of the sources."""
        return self.sources[0].input_side if self.crop is None else super().input_side

    def absolute(self) -> Mixed:
        """Return the mixture of sources with absolute paths."""
        return replace(self, sources=tuple(source.absolute() for source in self.sources))

    def index(self) -> dict[str, Index]:
        """Return the samples of all sources: train, val, and test where each source has one."""
        found = [source.folds.split(own_indices(told)) for source, told in self._told()]
        joined: dict[str, Index] = {}
        for split in ("train", "val", "test"):
            needed = found if split != "val" or self.validate is None else [found[self.validate]]
            if all(split in indices for indices in needed):
                joined[split] = self._joined(split, [indices.get(split, indices["train"]) for indices in found])
        if self.validate is not None and "val" in joined:
            val = joined["val"]
            joined["val"] = val.take(np.flatnonzero(val.columns["source"] == self.validate))
        return joined

    @property
    def whole(self) -> bool:
        """Whether training reads random crops of the sources' whole images."""
        return self.sources[0].whole

    @property
    def on_gpu(self) -> bool:
        """Whether workers decode the images of all sources on their GPU."""
        return self.sources[0].on_gpu

    @property
    def resampling(self) -> Literal["bilinear", "bicubic"]:
        """How the source that validates resizes images; the first one where all do."""
        return self.sources[self.validate or 0].resampling

    @property
    def squashed(self) -> bool:
        """Whether the source that validates squashes images; the first one where all do."""
        return self.sources[self.validate or 0].squashed

    @property
    def direct(self) -> bool:
        """Whether each rank reads samples by itself, in threads: where that holds for all sources."""
        return all(source.direct for source in self.sources)

    def read(
        self,
        index: Index,
        samples: np.ndarray,
        out: dict[str, np.ndarray] | None = None,
        crops: Crops | None = None,
        decoder: Decoder | None = None,
    ) -> dict[str, np.ndarray]:
        """Return the arrays of some samples, each read by its own source, in the place of `out` if given."""
        assert isinstance(index, MixedIndex)
        arrays, of = out or index.empty(len(samples)), index.columns["source"][samples]
        for number in np.unique(of):
            here = np.flatnonzero(of == number)
            part = index.parts[number] if crops is None else cropped(self, index.parts[number])
            of_crops = crops and crops.rows(here)
            found = checked_read(self.sources[number], part, index.rows[samples[here]], None, of_crops, decoder)
            for name, array in found.items():
                arrays[name][here] = array
        return arrays

    def notes(self) -> list[str]:
        """Return the notes of all sources."""
        return [note for _, told in self._told() for note in told.notes()]

    def probe(self, index: Index) -> list[errors.BadSample]:
        """Look for samples that cannot be read, as each source does for its own."""
        assert isinstance(index, MixedIndex)
        found = []
        for number, source in enumerate(self.sources):
            rows = index.rows[index.columns["source"] == number]
            found += source.probe(index.parts[number].take(rows)) if len(rows) else []
        return found

    def _told(self) -> list[tuple[Data, Data]]:
        """Return each source, and the same told of folds if it has none and is not to hold samples out: where the
        mixture has folds, and where another source validates alone."""
        found = []
        for number, one in enumerate(self.sources):
            trains = self.folds.count > 0 or self.validate not in (None, number)
            folds = self.folds if self.folds.count else Folds(2)
            found.append((one, replace(one, folds=folds) if trains and not one.folds.count else one))
        return found

    def _joined(self, split: str, parts: list[Index]) -> MixedIndex:
        first, where = parts[0], "in Mixed"
        parts = [_renumbered(number, part, first.classes) for number, part in enumerate(parts)]
        for number, part in enumerate(parts):
            if part.shares:
                what = f"source {number}, {type(self.sources[number]).__name__}, has shares of its own"
                raise errors.UserError(what, where, "give all shares to the outer Mixed")
            for name in ("classes", "fields"):
                own, wanted = getattr(part, name), getattr(first, name)
                if own != wanted:
                    text = f"source {number} has other {name} than source 0: {_shown(own)} and not {_shown(wanted)}"
                    raise errors.UserError(text, where, f"give all sources the same {name} in the same order")
        names = [name for name in first.columns if all(name in part.columns for part in parts) and name != "source"]
        sizes = [len(part) for part in parts]
        columns = {name: np.concatenate([part.columns[name] for part in parts]) for name in names}
        labels = [part.labels for part in parts if part.labels is not None]
        if len(labels) not in (0, len(parts)):
            if split != "test":
                number = next(number for number, part in enumerate(parts) if part.labels is None)
                what = f"source {number} has no labels in {split}, and others have some"
                raise errors.UserError(what, where, "give all sources labels, or none")
            labels = []  # they are predicted: none needs labels
        return MixedIndex(
            labels=np.concatenate(labels) if labels else None,  # type: ignore[arg-type]
            classes=first.classes,
            shape=first.shape,
            split=split,
            rows=np.concatenate([np.arange(size) for size in sizes]),
            ignored=tuple(name for part in parts for name in part.ignored),
            fields=first.fields,
            columns={**columns, "source": np.repeat(np.arange(len(parts)), sizes)},
            shares=self.shares,
            notes=tuple(dict.fromkeys(note for part in parts for note in part.notes)),
            parts=tuple(parts),
            validate=self.validate,
        )


def _renumbered(number: int, part: Index, classes: tuple[str, ...]) -> Index:
    """Return the index of a source that lacks some classes, or has them in another order, with those of source 0."""
    if part.classes == classes or part.labels is None or not {*part.classes} <= {*classes}:
        return part
    numbers = np.array([classes.index(name) for name in part.classes], np.int64)
    lacks = [repr(name) for name in classes if name not in part.classes]
    notes = (f"source {number} has no {errors.listed(lacks, 3)}",) if lacks else ()
    return replace(part, labels=numbers[part.labels], classes=classes, notes=(*part.notes, *notes))


def _shown(values: tuple[str, ...] | tuple[Field, ...]) -> str:
    """Return classes or fields for a message."""
    return errors.listed(one if isinstance(one, str) else f"{one.name} {one.dtype} {list(one.shape)}" for one in values)


def _is_unset(data: Data, name: str) -> bool:
    """Return whether a field has its default."""
    found = next(field for field in fields(data) if field.name == name)
    default = found.default if found.default_factory is MISSING else found.default_factory()
    return getattr(data, name) == default


def _side(data: Data) -> str:
    return "as stored" if data.input_side is None else str(data.input_side)
