"""TorchData: a plain map-style dataset of PyTorch as a data source."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from raytrain import errors
from raytrain.config import check
from raytrain.data.checks import classes_differ
from raytrain.data.hold_out import FRACTION, hold_out
from raytrain.data.source import Data, Field, Index
from raytrain.user_code.places import calling, reason
from raytrain.user_code.wrappers import Wrapped, Wraps, takes, target_of, where_is

_LABELS = ("targets", "labels", "_labels")
"""Attributes in which datasets of torchvision and others have all their labels."""
_DICT = 'return a dict of named arrays, such as {"image": image, "mask": mask, "label": 3}'
_READ_TWICE = 8
"""Samples of which two readings are compared."""
_LOCK = threading.Lock()
"""Datasets are made for one thread in a process."""


@dataclass(frozen=True, repr=False, kw_only=True)
class TorchData(Wrapped, Data):
    """A plain dataset: `TorchData(MyDataset, root="data")`.

    The first argument is a class derived from `torch.utils.data.Dataset` with a length and a `__getitem__`, or a
    function of your own that returns such a dataset. All its arguments are given by name and become fields: numbers,
    strings, booleans, None and tuples of them. An argument `split` gets "train" or "val", an argument `train` gets True
    or False; without either, `val_fraction` of the samples validate.

    A sample is (image, label), or a dict of named arrays, perhaps with a `label`; the model's input comes first. PIL
    images (L, RGB) and uint8 tensors [channels, height, width] are images, which raytrain augments and normalises.
    After the first array, whole numbers or booleans of an image's height and width are a mask, [height, width] or
    [1, height, width], which reaches the task as [height, width]. All other tensors reach the model unchanged. All
    samples have one shape, and a sample is the same each time it is read: random changes belong into `augment`.

    A dataset may have an attribute `columns`, a dict of lists or arrays with a number or a text for each sample, such
    as `{"patient": names}`: they are the columns of the index, by which folds are grouped.
    """

    val_fraction: float = 0.2
    """Share of each class that is held out for validation, if the dataset has no argument `split` or `train`."""
    split_seed: int = 0
    """Seed that chooses the held-out samples."""
    _wraps: ClassVar[Wraps] = Wraps(
        "a class derived from torch.utils.data.Dataset or a function that returns a dataset",
        "MyDataset",
        ("torch.utils.data", "Dataset"),
        derived=("split", "train"),
    )
    """What it wraps."""

    def __post_init__(self) -> None:
        check(self, val_fraction=FRACTION)
        super().__post_init__()

    def index(self) -> dict[str, Index]:
        """Return the samples of both splits, with fields as the first sample has them.

        Raises:
            UserError: there is no such dataset, or its samples cannot be trained on.
        """
        names = ("train", "val") if self._splits else ("train",)
        fields, labelled = self._fields()
        labels = {name: self._labels(name) if labelled else None for name in names}
        found = [one for one in labels.values() if one is not None]
        classes = self._classes(found, names) if found else ()
        whole = {
            name: Index(
                labels[name],  # type: ignore[arg-type]
                classes,
                split=name,
                rows=np.arange(len(self._dataset(name))),
                fields=fields,
                columns=_columns(self._dataset(name)),
            )
            for name in names
        }
        if classes[:1] == ("0",) and all(one.min(initial=1) == 1 for one in found):
            note = "no sample has label 0: if labels are counted from 1, subtract 1 from each"
            whole["train"] = replace(whole["train"], notes=(note,))
        if self._splits or self.folds.count:
            return whole
        every = whole["train"]
        strata = np.zeros(len(every), np.int64) if every.labels is None else every.labels
        rest, held_out = hold_out(self, strata)
        if not len(held_out):
            raise self._wrong("no class has two samples, so that none can validate", "give it an argument `split`")
        return {"train": every.take(rest), "val": replace(every.take(held_out), split="val")}

    def read(self, index: Index, samples: np.ndarray) -> dict[str, np.ndarray]:
        """Return the arrays of some samples, each [k, ...].

        Raises:
            BadSample: a file cannot be read.
            UserError: a sample has another shape or dtype than the first one, or another label than in the index.
        """
        arrays: dict[str, list[np.ndarray]] = {field.name: [] for field in index.fields}
        for sample in samples:
            row = int(index.rows[sample])
            try:
                found, label = self._sample(index.split, row)
            except OSError as error:
                raise errors.BadSample(f"sample {row} of {target_of(type(self)).__name__}", reason(error)) from None
            if index.labels is not None and label != index.labels[sample]:
                what = f"sample {row} has the label {label}, and {index.labels[sample]} in the list of all labels"
                raise self._wrong(what, "let `targets` hold what __getitem__ returns, or leave it out")
            for field in index.fields:
                array = found.get(field.name)
                if array is None or array.shape != field.shape or array.dtype != field.dtype:
                    got = "nothing" if array is None else f"{array.dtype} {list(array.shape)}"
                    what = f"sample {row} has {got} as {field.name!r}, and the first {field.dtype} {list(field.shape)}"
                    raise self._wrong(what, "let the dataset convert and resize all samples to one shape")
                arrays[field.name].append(array)
        return {name: np.stack(found) for name, found in arrays.items()}

    @property
    def _splits(self) -> bool:
        """Whether the dataset is told which split it is."""
        return any(getattr(self, name) is None for name in self._wraps.derived if name in takes(type(self)))

    def _dataset(self, split: str) -> Any:
        """Return the dataset of a split, which each process makes once."""
        known = vars(self).setdefault("_datasets", {})
        key = split if self._splits else ""
        if key not in known:
            name = target_of(type(self)).__name__
            with calling(name):
                found = self._called(split=split, train=split == "train")
            stream = any(base.__name__ == "IterableDataset" for base in type(found).__mro__)
            if stream or not (hasattr(found, "__getitem__") and hasattr(found, "__len__")):
                what = f"{name} must have a length and samples by number, got {type(found).__name__}"
                raise self._wrong(what, "use a map-style dataset, with __len__ and __getitem__")
            if not len(found):
                raise self._wrong(f"{name} has no samples", "check its arguments")
            known[key] = found
        return known[key]

    def _sample(self, split: str, row: int) -> tuple[dict[str, np.ndarray], int | None]:
        """Return a sample's arrays by name, and its label."""
        with _LOCK:
            sample = self._dataset(split)[row]
        label: Any = None
        if isinstance(sample, Mapping):
            named = dict(sample)
            label = named.pop("label", None)
        elif isinstance(sample, tuple | list) and len(sample) == 2:
            named, label = {"image": sample[0]}, sample[1]
        elif isinstance(sample, tuple | list) and len(sample) != 1:
            raise self._wrong(f"sample {row} has {len(sample)} values without names", _DICT)
        else:
            named = {"image": sample[0] if isinstance(sample, tuple | list) else sample}
        number = None if label is None else _array(label)
        if label is not None and (number is None or number.ndim or number.dtype.kind not in "iu"):
            raise self._wrong(
                f"the label of sample {row} must be a whole number, got {_kind(label)}", _instead(label, number)
            )
        arrays = {}
        for name, value in named.items():
            array = _array(value)
            if array is None:
                how = "return numbers, PIL images in mode L or RGB, or tensors and arrays of float32 or other numbers"
                raise self._wrong(f"{name!r} of sample {row} is {_kind(value)}", how)
            arrays[name] = array
        return _flat_masks(arrays), None if number is None else int(number)

    def _fields(self) -> tuple[tuple[Field, ...], bool]:
        """Return the fields of the first sample, and whether it has a label."""
        name = f"{target_of(type(self)).__name__}[0]"
        with calling(name):
            first, label = self._sample("train", 0)
        self._check_equal()
        if not first:
            raise self._wrong("a sample has no array besides its label", _DICT)
        images = {array.shape[1:] for array in first.values() if _is_image(array)}
        fields = tuple(
            Field(
                key,
                array.shape,
                array.dtype.name,
                "image"
                if _is_image(array)
                else "mask"
                if array.dtype.kind in "biu" and array.shape in images
                else "plain",
            )
            for key, array in first.items()
        )
        for field in fields:
            if field.kind == "image" and field.shape[0] > 4 and field.shape[-1] <= 4:
                what = f"{field.name!r} is {field.dtype} {list(field.shape)}, with its channels last"
                raise self._wrong(what, "put channels first, as in [3, 32, 32]")
        return fields, label is not None

    def _check_equal(self) -> None:
        """Check that samples read twice are equal; several, as a flip may leave one of them as it was."""
        for row in range(min(_READ_TWICE, len(self._dataset("train")))):
            try:
                (once, _), (again, _) = self._sample("train", row), self._sample("train", row)
            except Exception:  # it is a bad sample, as others may be
                continue
            for key, array in once.items():
                if key not in again or not np.array_equal(array, again[key], equal_nan=array.dtype.kind == "f"):
                    how = "leave random transforms out: data.augment has crops, flips and policies, new in each epoch"
                    raise self._wrong(f"{key!r} of sample {row} changes each time it is read", how)

    def _labels(self, split: str) -> np.ndarray:
        """Return the label of each sample, int64 [n]: from an attribute of the dataset if it has one, or by reading."""
        dataset = self._dataset(split)
        count = len(dataset)
        for name in _LABELS:
            try:
                found = np.asarray(getattr(dataset, name, None))
            except (TypeError, ValueError, RuntimeError):
                continue
            if found.shape == (count,) and found.dtype.kind in "iu":
                return found.astype(np.int64)
        labels = []
        for row in range(count):
            with calling(f"{target_of(type(self)).__name__}[{row}]"):
                labels.append(self._sample(split, row)[1])
        if None in labels:
            raise self._wrong(f"sample {labels.index(None)} has no label, and the first one has", "label all samples")
        return np.array(labels, np.int64)

    def _classes(self, labels: list[np.ndarray], splits: tuple[str, ...]) -> tuple[str, ...]:
        """Return the names of classes that the dataset has, or numbers.

        Raises:
            UserError: the splits' datasets name other classes, or the same ones in another order; or labels are counted
                from 1.
        """
        highest = max(int(one.max(initial=0)) for one in labels)
        known = {split: _named(self._dataset(split)) for split in splits}
        train = known["train"]
        for split, names in known.items():
            if train and names and names != train:
                raise classes_differ(train, names, split, f"in {where_is(target_of(type(self)))}", "the same classes")
        if train and len(train) == highest and all(one.min(initial=1) > 0 for one in labels):
            what = f"labels are 1 to {highest}, and the {highest} classes have the numbers 0 to {highest - 1}"
            raise self._wrong(what, "subtract 1 from each label")
        return train if len(train) > highest else tuple(str(number) for number in range(highest + 1))

    def _wrong(self, what: str, how: str) -> errors.UserError:
        return errors.UserError(what, f"in {where_is(target_of(type(self)))}", how)


def _instead(label: Any, number: np.ndarray | None) -> str:
    """Return what to do about a label that is no whole number."""
    if isinstance(label, str):
        return "return the number of its class, counted from 0"
    if number is not None and number.size == 1 and number.dtype.kind == "f":
        return 'return int(label), or for a regression a dict such as {"image": image, "price": 3.5}'
    if number is not None and number.ndim == 1:
        several = 'for several classes or numbers of a sample a dict such as {"image": image, "tags": label}'
        one_hot = f"return int(label.argmax()) if it is one-hot, or {several}"
        return "return label.item()" if len(number) == 1 else one_hot
    return _DICT


def _array(value: Any) -> np.ndarray | None:
    """Return a value of a sample as an array, of PIL images [channels, height, width]; None if it is none."""
    if hasattr(value, "getbands"):  # a PIL image
        array = np.asarray(value)
        return (array[None] if value.mode == "L" else array.transpose(2, 0, 1)) if value.mode in ("L", "RGB") else None
    if hasattr(value, "detach"):
        value = None if str(value.dtype) == "torch.bfloat16" else value.detach().cpu().numpy()
    if isinstance(value, bool | int | float):
        value = np.asarray(value)
    found = np.asarray(value) if isinstance(value, np.ndarray | np.generic) else None
    if found is None or found.dtype.kind not in "biuf":
        return None
    return found.astype(found.dtype.newbyteorder("="), copy=False)  # files of FITS and others have big-endian numbers


def _named(dataset: Any) -> tuple[str, ...]:
    """Return the names of a dataset's classes: its `classes`, or what Hugging Face's `features` say of the column
    label; none where it has others than texts."""
    names, features = getattr(dataset, "classes", None), getattr(dataset, "features", None)
    if names is None and isinstance(features, Mapping):
        names = getattr(features.get("label"), "names", None)
    if isinstance(names, list | tuple) and all(isinstance(name, str) for name in names):
        return tuple(names)
    return ()


def _columns(dataset: Any) -> dict[str, np.ndarray]:
    """Return the columns that a dataset has of its samples; no others that it may have by that name."""
    given, found = getattr(dataset, "columns", None), {}
    for name, values in given.items() if isinstance(given, Mapping) else ():
        column = np.asarray(values)
        if column.dtype == object and all(isinstance(value, str) for value in column.flat):  # as those of pandas
            column = column.astype(str)
        if column.shape == (len(dataset),):
            found[name] = column
    return found


def _flat_masks(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return a sample's arrays, with masks of one channel, as PIL images and torchvision have them, [height, width].
    The first array and the first image are never such masks."""
    images = [name for name, array in arrays.items() if _is_image(array)]
    first = {*list(arrays)[:1], *images[:1]}
    sizes = {arrays[name].shape[1:] for name in images if len(arrays[name]) > 1 or name in first}

    def is_mask(name: str, array: np.ndarray) -> bool:
        whole = array.ndim == 3 and len(array) == 1 and array.dtype.kind in "biu"
        return whole and name not in first and array.shape[1:] in sizes

    return {name: array[0] if is_mask(name, array) else array for name, array in arrays.items()}


def _is_image(array: np.ndarray) -> bool:
    return array.ndim == 3 and array.dtype == np.uint8


def _kind(value: Any) -> str:
    more = f" in mode {value.mode}" if hasattr(value, "getbands") else ""
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        more = f" of {str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    return f"{type(value).__module__.partition('.')[0]}.{type(value).__name__}{more}".removeprefix("builtins.")
