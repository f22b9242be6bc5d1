"""The samples that tools are given besides the data of a run: files, folders, tables, URLs, another root."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from raytrain import config, errors
from raytrain.checkpoint.storage import Storage, answered
from raytrain.data import Data, Folds, Index, Manifest, Mixed
from raytrain.data.checks import checked_indices, perhaps_moved, same_data
from raytrain.data.hold_out import for_evaluation
from raytrain.data.image_files import string_array
from raytrain.data.shards import FORMAT, MANIFEST
from raytrain.data.trees import EXTENSIONS, OTHER_KINDS
from raytrain.files import is_url, known_json
from raytrain.run.run import Run

_HERE = ""
"""The root of files of this machine."""


class Image(NamedTuple):
    """An image to predict.

    Attributes:
        path: its path or URL, without the URL's options, which may hold keys.
        root: the URL of a folder; empty for a file of this machine.
        name: its path below the root.
        size: bytes.
    """

    path: str
    root: str
    name: str
    size: int


@dataclass(frozen=True)
class Listing:
    """Images in the order of their paths, each once, in columns that processes of a node share.

    Attributes:
        paths, names: see `Image`.
        roots: the roots.
        root: int32 [n], which of them each image has.
        sizes: int64 [n], bytes.
        digest: sha256 of paths and sizes.
        left_out: images in folders and at URLs of kinds that are not read.
    """

    paths: pa.StringArray
    names: pa.StringArray
    roots: tuple[str, ...]
    root: np.ndarray
    sizes: np.ndarray
    digest: str
    left_out: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.paths)

    def images(self, start: int, stop: int) -> list[Image]:
        """Return the images of a range of rows."""
        rows = zip(
            self.paths[start:stop].to_pylist(),
            self.root[start:stop].tolist(),
            self.names[start:stop].to_pylist(),
            self.sizes[start:stop].tolist(),
            strict=True,
        )
        return [Image(path, self.roots[root], name, size) for path, root, name, size in rows]

    def first_here(self) -> str | None:
        """Return the path of the first file of this machine; None without one."""
        if _HERE not in self.roots:
            return None
        return str(self.names[int(np.argmax(self.root == self.roots.index(_HERE)))])


def listed(sources: Sequence[str]) -> Listing:
    """Return all images of some files, folders and URLs.

    Raises:
        UserError: one of them is not there or holds no image, a name is not UTF-8, or storage does not answer.
    """
    found: dict[str, Image] = {}
    others: dict[str, None] = {}
    for source in sources:
        images, more = _at_url(source) if is_url(source) else (_here(source), left_out([source]))
        found |= {image.path: image for image in images}
        others |= dict.fromkeys(more)
    images = [found[path] for path in sorted(found)]
    paths, names = (string_array([getattr(image, name) for image in images]) for name in ("path", "name"))
    roots = tuple(dict.fromkeys(image.root for image in images))
    numbers = {root: number for number, root in enumerate(roots)}
    digest = hashlib.sha256()
    for image in images:
        digest.update(f"{image.path}\0{image.size}\n".encode())
    return Listing(
        paths,
        names,
        roots,
        np.array([numbers[image.root] for image in images], np.int32),
        np.array([image.size for image in images], np.int64),
        digest.hexdigest(),
        tuple(others),
    )


def place_of(data: Data) -> str:
    """Return where the samples of a source are, for messages."""
    return str(getattr(data, "root", type(data).__name__))


def at_root(run: Run, root: str | None) -> tuple[Data, dict[str, Index]]:
    """Return the run's data and its splits, or those of data of the same kind at another root: a copy of the run's data
    has the same splits; other data has its own, and is whole where it has none.

    Raises:
        UserError: the run's data has no root, or there is no such data.
    """
    data = run.experiment.data
    if getattr(data, "download", False):  # that was for training; a wrong root must not be filled
        data = config.replace(data, "download", False)
    if root is None:
        with perhaps_moved(data, "if the data have moved, give their place now: --data.root PLACE"):
            return data, checked_indices(data)
    if not hasattr(data, "root"):
        raise errors.UserError("the run's data has no root to replace", place_of(data), "leave root out")
    data = config.replace(data, "root", root)
    with contextlib.suppress(errors.UserError):  # which other data may well have: the error, if any, is what follows
        indices = checked_indices(data)
        if same_data(run.environment["data_fingerprint"], {name: one.fingerprint() for name, one in indices.items()}):
            return data, indices
    data = for_evaluation(config.replace(data, "folds", Folds()))
    return data, checked_indices(data)


def rows_of(data: Data, table: str, folder: str, classes: tuple[str, ...]) -> tuple[Manifest, Index]:
    """Return a source of the images that another table lists than the one that a run was trained on, and all of its
    rows.

    Args:
        data: the run's.
        folder: what paths in the table are relative to; by default the run's `data.folder`, or the table's own.
        classes: the run's.

    Raises:
        UserError: the run's data is no table, or an image cannot be read.
    """
    data = _table_of(data)
    if not isinstance(data, Manifest):
        what = f"a table suits a run on a Manifest, and this run's data is {type(data).__name__}"
        raise errors.UserError(what, table, "give images or folders, or its own data by --split val")
    unlabelled = replace(data, target=(), labels="", mask="", mask_values=(), missing_mask=None, columns=())
    unlabelled = replace(unlabelled, folds=Folds())
    found = replace(unlabelled, root=table, folder=folder or data.folder, on_bad_sample="error").absolute()
    index = found.unlabelled(classes)
    if bad := found.probe(index):  # said before the other images are predicted
        how = "repair it, leave its row out, or name the folder that paths are relative to by --folder"
        raise errors.bad_sample(bad[0].path, bad[0].reason, how)
    return found, index


def _table_of(data: Data) -> Data:
    """Return of a mixture the source that validates, or the first one where all do, with the mixture's preparation; any
    other data as it is."""
    if not isinstance(data, Mixed):
        return data
    source = _table_of(data.sources[data.validate or 0])
    if not isinstance(source, Manifest):
        return data
    mean, std = data.normalisation(source.channels)
    return replace(source, mean=mean, std=std, crop=data.input_side, augment=data.augment)


def images_at(path: Path) -> list[str]:
    """Return the paths of all images below a folder, in order, without hidden ones; or a file's own path.

    Raises:
        UserError: there is no such file, no image in the folder, or a folder cannot be read.
    """
    if os.path.isdir(path):
        try:
            start = "" if str(path) == os.curdir else str(path)
            found = sorted(file for file in _below(start, _parents(path)) if _is_image(os.path.basename(file)))
            found = [file for file in found if os.path.isfile(file)]
        except OSError as error:
            what = f"the folder cannot be read: {error.strerror}"
            raise errors.UserError(what, error.filename, "change its permissions, or leave it out") from None
        if not found:
            if known_json(path / MANIFEST).get("format") == FORMAT:
                how = "give the images that were packed, or predict a split of the run's own data by --split"
                raise errors.UserError("predict reads image files, and this is a pack", path, how)
            others = left_out([str(path)])
            what = f"no images there; {told(others)}" if others else "no images there"
            raise errors.UserError(what, path, "give image files or a folder of them")
        return found
    if not os.path.isfile(path):
        raise errors.no_such_file(path, "image")
    return [str(path)]


def left_out(sources: Sequence[str]) -> list[str]:
    """Return the images of kinds that are not read, below folders of this machine, in order, without hidden ones."""
    folders = [source for source in map(str, sources) if not is_url(source) and os.path.isdir(source)]
    found = (file for folder in folders for file in _below(folder, _parents(folder)))
    return sorted(set(filter(_is_other, found)))


def told(names: Sequence[str]) -> str:
    """Return a line about images that are left out."""
    files = f"{len(names):,} images of kinds that are" if len(names) > 1 else "1 image of a kind that is"
    shown = ", ".join(names[:3]) + (" ..." if len(names) > 3 else "")
    return errors.one_line(f"left out {files} not read: {shown}")


def _parents(folder: str | Path) -> frozenset[str]:
    return frozenset(map(os.path.realpath, Path(os.path.abspath(folder)).parents))


def _below(folder: str, above: frozenset[str]) -> Iterator[str]:
    """Yield the files below a folder without hidden ones. Links to folders are followed, as in `ImageFolder`, unless
    they lead back.

    Args:
        above: the real paths of the folders that it is in.
    """
    above |= {os.path.realpath(folder)}
    for entry in os.scandir(folder or os.curdir):
        file = os.path.join(folder, entry.name)
        if entry.name.startswith("."):
            continue
        if not os.path.isdir(file):
            yield file
        elif not entry.is_symlink() or os.path.realpath(file) not in above:
            yield from _below(file, above)


def _here(source: str) -> list[Image]:
    files = images_at(Path(source))
    return [Image(file, _HERE, os.path.abspath(file), os.stat(file).st_size) for file in files]


def _at_url(url: str) -> tuple[list[Image], list[str]]:
    """Return the images at a URL, and those beside them of kinds that are not read."""
    path, mark, options = url.partition("?")
    path = path.rstrip("/")
    single = path.lower().endswith(EXTENSIONS)
    shown, wanted = path.rpartition("/")[::2] if single else (path, "")
    root = shown + mark + options
    there = answered(root, lambda: Storage(root).names("", recursive=not single))
    found = [
        Image(f"{shown}/{name}", root, name, size)
        for name, size in there.items()
        if size is not None and (name == wanted if single else _is_image(name))
    ]
    if not found:
        raise errors.UserError("no images there", path, "give the URL of an image, or of a folder of images")
    others = [] if single else [name for name in there if _is_other(name) and not _is_hidden(name)]
    return found, [f"{shown}/{name}" for name in others]


def _is_image(name: str) -> bool:
    return PurePosixPath(name).suffix.lower() in EXTENSIONS and not _is_hidden(name)


def _is_other(name: str) -> bool:
    return PurePosixPath(name).suffix.lower() in OTHER_KINDS


def _is_hidden(name: str) -> bool:
    return any(part.startswith(".") for part in PurePosixPath(name).parts)
