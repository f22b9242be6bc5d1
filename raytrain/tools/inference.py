"""Evaluate and predict with a trained run, in this process, without Ray's workers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from raytrain import errors
from raytrain.checkpoint.layout import load_state
from raytrain.data import Data, ImageFolder, Index
from raytrain.data.batch import Batch
from raytrain.data.blocks import Arrays
from raytrain.data.image_files import string_array
from raytrain.data.loader import Loader
from raytrain.data.manifest import Manifest, is_table
from raytrain.data.reader import Direct, Epoch
from raytrain.parallel.strategy import RankContext, Strategy
from raytrain.run.run import Run
from raytrain.tasks.supervised import Supervised
from raytrain.tasks.task import Task
from raytrain.tools.features import Layer, find
from raytrain.tools.groups import Groups, with_column
from raytrain.tools.listing import at_root, images_at, place_of, rows_of
from raytrain.tools.measured import Measured
from raytrain.tools.predictor import Predictor
from raytrain.tools.views import Views, averaged, check_tta
from raytrain.training.evaluation import evaluate as add_up
from raytrain.training.precision import Precision, memory_format
from raytrain.training.threads import threads

Follow = Callable[[int, int], None]
"""What is told how many samples are done, and of how many."""
_CHUNK = 256
_REPAIR = "repair it, or leave it out"
_UNREADABLE = "repair it, leave it out, or give --out a folder: its column `error` says why there is no prediction"


@threads()
def evaluate(
    run: Run,
    root: str | None = None,
    split: str = "val",
    which: str = "best",
    tta: str = "",
    *,
    by: str = "",
    watch: Callable[[torch.Tensor, Batch], None] | None = None,
    follow: Follow | None = None,
    model: nn.Module | None = None,
) -> dict[str, Any]:
    """Evaluate a checkpoint on a whole split, every sample counted once.

    Args:
        root: another `data.root`, with the same classes; see `listing.at_root` for its splits.
        split: train, val or test.
        which: best or last.
        tta: test-time augmentation: `flip`, or the number of views of each image whose answers are averaged.
        by: a column of the data, for each of whose values the metrics are given besides.
        watch: called with the model's outputs [n, ...] for each batch, and the batch, if the run's task is a Supervised
            one that evaluates in the usual way.
        follow: called after each batch.
        model: evaluated in place of the run's own.

    Returns:
        The task's metrics, `count`, `confusion` and `per_class` where the task has them, and what was evaluated;
        `baseline`, what a constant answer scores on the run's own validation split, where the run's summary has it;
        `groups`, the metrics and the count of each value of `by`; `whole`, True where other data have no other split.

    Raises:
        UserError: the data or the checkpoint is not there, does not verify, or has other classes, or the data's samples
            have another shape or dtype than those that the model was trained on.
    """
    found = measured(run, root, split, which, tta, by=by, watch=watch, follow=follow, model=model)
    result = found.figures()
    return result | (_baseline(run, result) if root is None and split == "val" else {})


def measured(
    run: Run,
    root: str | None = None,
    split: str = "val",
    which: str = "best",
    tta: str = "",
    *,
    by: str = "",
    watch: Callable[[torch.Tensor, Batch], None] | None = None,
    follow: Follow | None = None,
    model: nn.Module | None = None,
) -> Measured:
    """Return the sums of which `evaluate`, which has the same arguments and errors, makes metrics."""
    (data, index, whole), path = _split(run, root, split, which), run.checkpoint(which)
    classes = tuple(load_state(path)["classes"])
    if index.classes != classes:
        raise _other_classes(classes, index.classes, place_of(data))
    index = with_column(data, index, split, by) if by else index
    e = run.experiment.bound(index)
    groups = Groups(e.task, index.columns[by]) if by else None
    views, on = check_tta(tta, e, index.input.kind), device()
    torch.set_num_threads(e.scaling.threads_per_worker or torch.get_num_threads())
    reader = _Followed(data, index, follow)
    layout = memory_format(e.memory_format)
    loader = Loader(data, index, reader, _CHUNK, e.seed, 0, 1, on, train=False, memory_format=layout)
    task, module = e.task, run.model(which) if model is None else model
    module.to(on, memory_format=layout)  # type: ignore[call-overload]
    if tta:
        loader.prepare = Views(loader.prepare, tta, views, e.seed, task)
        task, module = averaged(task, module, index, layout)
    strategy = Strategy(module, RankContext(0, 1, on))
    watches = [one for one in (watch, groups and groups.add) if one]
    task = _Watched(task, watches) if watches and type(task).sums is Supervised.sums else task
    sums = add_up(task, strategy, loader, Precision(e.precision, on), e.micro_batch)
    facts = {"split": split, "checkpoint": path.name} | ({"views": views} if tta else {})
    facts |= {"whole": True} if whole else {}
    return Measured(e.task, sums, groups, len(index), classes, facts, tuple(reader.skipped))


def _baseline(run: Run, result: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Return what a constant answer scores by the same metrics, where the run's summary has it."""
    floor = {name.removeprefix("val_"): value for name, value in run.summary.get("baseline", {}).items()}
    known = {name: floor[name] for name in result if name in floor}
    return {"baseline": known} if known else {}


class _Followed(Direct):
    """Samples of an index, whose number someone follows."""

    def __init__(self, data: Data, index: Index, follow: Follow | None, remedy: str = _REPAIR):
        super().__init__(data, index, remedy=remedy)
        self.follow = follow

    def read(self, epoch: Epoch) -> Iterator[tuple[np.ndarray, Arrays]]:
        done = 0
        for ids, arrays in super().read(epoch):
            yield ids, arrays
            done += len(ids)
            if self.follow:
                self.follow(done, len(self.index))


class _Watched(Task):
    """A task whose outputs someone looks at."""

    def __init__(self, task: Task, watches: Sequence[Callable[[torch.Tensor, Batch], None]]):
        vars(self).update(task=task, watches=watches)  # a task is frozen

    def sums(self, model: nn.Module, batch: Batch) -> dict[str, Any]:
        """Return the task's sums, after one forward pass."""
        outputs = vars(self)["task"].forward(model, batch)
        for watch in vars(self)["watches"]:
            watch(outputs, batch)
        return vars(self)["task"].compare(outputs, batch)


@threads()
def predict(
    run: Run,
    paths: Sequence[str] = (),
    which: str = "best",
    tta: str = "",
    *,
    split: str | None = None,
    root: str | None = None,
    features: str | None = None,
    folder: str = "",
    follow: Follow | None = None,
    model: nn.Module | None = None,
) -> list[dict[str, Any]]:
    """Predict image files, and all images below folders; all rows of a table like that of the run's `Manifest`; or the
    samples of a split of the run's own data, whatever its input is.

    Args:
        paths: files and folders, or one table.
        root: as for `evaluate`, of a split.
        folder: what paths in the table are relative to; by default the run's `data.folder`, or the table's own.
        tta: as for `evaluate`.
        features: return features in place of predictions: those before the model's head (an empty string), or the
            output of the layer of that name; see `tools.features`.
        follow: called after each batch.
        model: predicts in place of the run's own.

    Returns:
        For each image, in order, `path`, or for each sample of a split, and each row with bytes, `sample`, its name
        (see `_told`); and the columns of the task's `predictions`: for Classification `label`, `probability` and
        `probabilities`, a list in the classes' order; or `features`, float32 [d]. For a sample of a split also the
        columns of `Supervised.compared`: for Classification `true_label`, and `loss`.

    Raises:
        UserError: a path is not there, holds no image, or one cannot be read; the split or the layer is not there; or
            the run's task says of no sample what it predicts.
    """
    e = run.experiment
    state = load_state(run.checkpoint(which))
    table = len(paths) == 1 and is_table(paths[0])
    check_task(run, state, images=split is None and not table, features=features, tta=tta)
    classes = tuple(state["classes"])
    files: list[str] = []
    # Several models predict in one process alone, and so does a table.
    remedy = _REPAIR if split is not None or table or model is not None else _UNREADABLE
    if split is not None:
        data, index, _ = _split(run, root, split, which)
    elif table:
        data, index = _rows(run, paths[0], folder, which)
    else:
        files = [file for path in paths for file in images_at(Path(path))]
        data, index = _files(run, files, state, remedy)
    reader = _Followed(data, index, follow, remedy)
    names = files or index.names(np.arange(len(index)))
    told = _told(index, names, "path" if split is None and index.paths is not None else "sample")
    model = run.model(which) if model is None else model
    layer = None if features is None else find_layer(run, model, state, features)
    torch.set_num_threads(e.scaling.threads_per_worker or torch.get_num_threads())
    predictor = Predictor(model, e, data, index, classes, device(), tta, layer)
    return [told[number] | row for number, row in _outputs(predictor, reader, compared=split is not None)]


def _told(index: Index, names: Sequence[str], key: str) -> list[dict[str, Any]]:
    """Return the columns that tell each sample: its name, and of a mixture the number of its source."""
    told: list[dict[str, Any]] = [{key: name} for name in names]
    if "source" in index.columns:
        return [one | {"source": source} for one, source in zip(told, index.columns["source"].tolist(), strict=True)]
    return told


def check_task(run: Run, state: Mapping[str, Any], images: bool, features: str | None, tta: str) -> None:
    """Check that a run predicts what is asked for.

    Args:
        state: of its checkpoint.
        images: whether image files are to be predicted.

    Raises:
        UserError: the task says of no sample what it predicts, or the model takes no images, or more than they are.
    """
    task = run.experiment.task
    if features is None and type(task).predictions is Task.predictions:
        task.predictions(torch.empty(0), ())
    if features is not None and tta:
        raise errors.UserError("--tta averages probabilities, and --features has none", "", "leave --tta out")
    if task.gives_more and (images or features is not None):
        what = "image files do" if images else "--features does"
        table = "a table with its columns, or " if isinstance(run.experiment.data, Manifest) else ""
        how = f"predict {table}its own data with --split val{'' if images else ', and without --features'}"
        what += f" not suit this run's model, which {type(task).__name__}.forward gives more than images"
        raise errors.UserError(what, run.where, how)
    if images and state.get("input_kind", "image") != "image":  # an older run has images
        raise errors.UserError(
            f"image files do not suit this run's model, whose input is no image (kind={state['input_kind']!r})",
            run.where,
            "predict its own data with --split val",
        )


def blank_input(state: Mapping[str, Any]) -> torch.Tensor:
    """Return a batch of one sample of zeros that the model of a checkpoint takes, on the CPU."""
    return torch.zeros((1, *state["sample"]), dtype=getattr(torch, state.get("input_dtype", "float32")))


def find_layer(run: Run, model: nn.Module, state: Mapping[str, Any], name: str) -> Layer:
    """Return the layer whose features are taken; see `tools.features.find`.

    Raises:
        UserError: there is none.
    """
    return find(run.experiment.model, model, blank_input(state), name)


def _split(run: Run, root: str | None, split: str, which: str) -> tuple[Data, Index, bool]:
    """Return the run's data, or others, their samples of a split, and whether these are all samples of other data.

    Raises:
        UserError: they are not there, or do not fit the model.
    """
    data, indices = at_root(run, root)
    if split not in indices:
        raise _no_split(split, indices, place_of(data))
    index = indices[split]
    check_input(data, index, run.checkpoint(which))
    whole = root is not None and split != "train" and index.fingerprint() == indices["train"].fingerprint()
    return data, index, whole


def _rows(run: Run, table: str, folder: str, which: str) -> tuple[Data, Index]:
    """Return a source of another table's images, and all of its rows.

    Raises:
        UserError: see `rows_of`; or they do not fit the model.
    """
    path = run.checkpoint(which)
    data, index = rows_of(run.experiment.data, table, folder, tuple(load_state(path)["classes"]))
    check_input(data, index, path)
    return data, index


def _files(run: Run, files: list[str], state: Mapping[str, Any], remedy: str) -> tuple[Data, Index]:
    """Return a source of image files, and the index of all of them.

    Args:
        remedy: what to do about a file that cannot be read.

    Raises:
        UserError: one of them cannot be read.
    """
    data = file_source(run.experiment.data, tuple(state["stored"]))
    index = file_index(files, data, tuple(state["classes"]))
    if bad := data.probe(index):  # said before the other images are predicted
        raise errors.bad_sample(bad[0].path, bad[0].reason, remedy)
    return data, index


def _other_classes(ours: Sequence[str], theirs: Sequence[str], where: str) -> errors.UserError:
    """Return the error for data whose classes are not those of the run, in their order."""
    lacks, more = (sorted(set(one) - set(other)) for one, other in ((ours, theirs), (theirs, ours)))
    parts = [f"the data lacks {errors.listed(lacks)}"] * bool(lacks) + [f"the run lacks {errors.listed(more)}"] * bool(
        more
    )
    what = f"the run was trained on other classes: {' and '.join(parts) or 'the same in another order'}"
    return errors.UserError(what, where, "give data of the run's classes, in their order")


def _no_split(split: str, indices: dict[str, Index], where: str) -> errors.UserError:
    return errors.UserError(f"the data has no {split} split", where, f"choose one of its splits: {', '.join(indices)}")


def _outputs(predictor: Predictor, reader: Direct, compared: bool) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the number and the row of each sample of an index; see `Predictor.rows`."""
    on = torch.device(predictor.prepare.device)
    loader = Loader(reader.data, reader.index, reader, _CHUNK, 0, 0, 1, on, False, predictor.layout)
    loader.prepare = predictor.prepare
    for loaded in loader.epoch(0):
        for batch in loaded.micro_batches(_CHUNK):
            yield from zip(batch.ids.tolist(), predictor.rows(batch, compared), strict=True)


def check_input(data: Data, index: Index, path: Path) -> None:
    """Check that the model of a checkpoint takes the input that the data gives.

    Raises:
        UserError: it does not.
    """
    state = load_state(path)
    before = state.get("input_dtype", "float32"), list(state["sample"])
    now = index.input.seen_as, list(data.sample(index))
    if now != before:
        raise errors.UserError(
            f"the model was trained on samples of {before[0]} {before[1]}, and the data has {now[0]} {now[1]}",
            place_of(data),
            "give data of that shape and dtype",
        )


def device() -> torch.device:
    """Return the GPU, if there is one, or the CPU."""
    return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")


def file_source(data: Data, stored: tuple[int, int, int]) -> ImageFolder:
    """Return a source that reads single files and prepares images as the run's own source did."""
    if stored[1] != stored[2]:
        raise errors.UserError(
            f"predict prepares square images, and this run's are {stored[1]}x{stored[2]}",
            "in its data",
            "use its model from Python: raytrain.Run(path).model()",
        )
    channels = stored[0]
    if channels not in (1, 3):
        raise errors.UserError(
            f"image files become 1 or 3 channels, and this run's images have {channels}",
            "in its data",
            "predict its own data with --split val, or use its model from Python: raytrain.Run(path).model()",
        )
    if isinstance(data, ImageFolder):
        return replace(data, root="/", on_bad_sample="error")
    mean, std = data.normalisation(stored[0])
    fit = "squash" if data.squashed else "cut"
    found = ImageFolder("/", stored[1], crop=data.input_side, channels=channels, mean=mean, std=std)
    return replace(found, augment=data.augment, interpolation=data.resampling, fit=fit)


def file_index(files: list[str], source: ImageFolder, classes: tuple[str, ...]) -> Index:
    """Return the index of single files, which a source of `file_source` reads.

    Raises:
        UserError: a name is not UTF-8.
    """
    return Index(
        np.zeros(len(files), np.int64),
        classes,
        (source.channels, source.size, source.size),
        "test",
        paths=string_array([os.path.abspath(file) for file in files]),
        sizes=np.zeros(len(files), np.int64),
    )
