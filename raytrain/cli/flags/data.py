"""The flags of the command data, and the sources that are named by a folder, a file or a URL."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from raytrain import errors
from raytrain.cli.flags.arguments import first_argument, show_usage
from raytrain.cli.flags.parsing import FLAT, describe, parse
from raytrain.config import above, at_least, check
from raytrain.data import MNIST, Data, ImageFolder, Manifest, Packed, WebDataset, maskfolder
from raytrain.data.images import SPLITS
from raytrain.data.late import with_pillow
from raytrain.data.manifest import TABLES, WITH_BYTES
from raytrain.data.webdataset import COMPRESSED
from raytrain.experiment import Experiment
from raytrain.files import is_url
from raytrain.run.experiment_file import load
from raytrain.tools.output import check_output

_TABLES = tuple(kind for kind in TABLES if kind != ".json")
"""Suffixes of tables; a .json file is an experiment."""
_ABOUT = (
    "Describes the data of an experiment or a run, MNIST's files, or, here or at a URL, a table of images or a folder "
    "(images in a folder for each class, images/ and masks/, tar shards, Parquet or Arrow files, or a pack): counts, "
    "classes, sizes of images, samples that cannot be read or are equal, and mean and standard deviation."
)


@dataclass(frozen=True)
class Settings:
    """What is read."""

    samples: int = 2000
    """Samples to read, evenly chosen over all splits."""
    seconds: float = 60.0
    """Seconds after which no further samples are read."""
    sheet: str | None = None
    """A .png file to write, with training images of all classes, and beside each image its mask over it."""
    json: bool = False
    """Print one JSON object."""

    def __post_init__(self) -> None:
        check(self, samples=at_least(1), seconds=above(0))


def source_of(place: str) -> Data | None:
    """Return the source that a folder, a file or a URL is; None if it is an experiment, a run, or not there.

    Raises:
        UserError: it may not be looked at.
    """
    if not is_url(place):
        _check_allowed(place)
    plain = place.partition("?")[0] if is_url(place) else place
    if plain.lower().endswith(_TABLES):
        return Manifest(place).with_images()
    if plain.lower().endswith((".tar", *COMPRESSED)):
        return WebDataset(place)
    if is_url(place):
        return _of_folder(place)
    if not os.path.isdir(place) or os.path.isfile(os.path.join(place, "experiment.json")):
        return None
    return MNIST(place) if os.path.isdir(os.path.join(place, "MNIST", "raw")) else _of_folder(place)


def _check_allowed(place: str) -> None:
    try:
        os.stat(os.path.expanduser(place))
    except PermissionError as error:
        how = "ask its owner for access, or name another"
        raise errors.UserError(f"the data cannot be looked at: {error.strerror}", place, how) from None
    except (OSError, ValueError):  # reported when it is read
        return


def _of_folder(place: str) -> Data:
    """Return the source that a folder, or one at a URL, is by the names in it."""
    parted, tree = with_pillow().trees.parted, with_pillow().trees.tree(place)
    try:
        top = tree.entries("")
        if {"manifest.json", ".packing"} & top.keys():
            return Packed(place)
        if (masked := maskfolder.recognised(place, tree)) is not None:
            return masked
        files, folders = parted(top)
        shards = any(name.endswith(".tar") for name in files)
        if folders:
            # Shards and tables may be in a folder for each split, or in one folder beside a README.
            splits = {name for names in SPLITS.values() for name in names}
            only = folders[0] if len(folders) == 1 else None
            split = next((name for name in folders if name.lower() in splits), None)
            inside = split or (None if shards else only)
            below, deeper = parted(tree.entries(inside)) if inside else ([], [])
            if shards and split and deeper and _has_images(tree.entries(f"{split}/{deeper[0]}")):
                return ImageFolder(place)  # torchvision's ImageNet has its archives beside the folders
            files = files if shards else [] if deeper else below
    except OSError:  # reported when it is read
        return ImageFolder(place)
    if any(name.endswith((".tar", *COMPRESSED)) for name in files):
        return WebDataset(place)
    return Manifest(place).with_images() if any(name.endswith(WITH_BYTES) for name in files) else ImageFolder(place)


def check_place(path: str) -> None:
    """Check that a place which is no data source may be an experiment.

    Raises:
        UserError: nothing is there, or a file of another kind.
    """
    if Path(path).suffix in (".py", ".json"):
        return
    if not os.path.exists(path):
        raise errors.no_such_file(path, "experiment file, folder or table of images")
    if os.path.isfile(path):
        how = "give a folder, a .csv, .tsv, .jsonl, .parquet or .arrow file, or the .py file of an experiment"
        raise errors.UserError("this file is no table of images, and no experiment", path, how)


def _has_images(entries: dict[str, bool]) -> bool:
    return any(name.lower().endswith(with_pillow().trees.EXTENSIONS) for name in entries)


def of_source(source: Data, settings: Any) -> Callable[..., Any]:
    """Return a command with the flags of some settings and, as `--data.*`, of a source; it returns both."""

    def command(settings: Any = settings, data: Any = source) -> tuple[Data, Any]:
        return data, settings

    # tyro reads these; names in the signature itself would have to be known when this module is imported.
    command.__annotations__ = {"settings": Annotated[type(settings), FLAT], "data": type(source)}
    return command


def data(arguments: list[str]) -> tuple[Data, int, float, Path | None, bool] | None:
    """Return the source, how many samples to read and for how long, the sheet's file, and whether JSON is wanted."""
    usage, path = "raytrain data SOURCE", first_argument(arguments)
    if path is None:
        return show_usage(arguments, usage, f"{_ABOUT} `raytrain data SOURCE --help` lists the flags.")
    usage, known = f"raytrain data {path}", source_of(path)
    command: Callable[..., Any]
    if known is not None:
        command, about = of_source(known, Settings()), _ABOUT
    else:
        check_place(path)
        value, file = load(path)

        def of_experiment(
            settings: Annotated[Settings, FLAT] = Settings(), experiment: Annotated[Experiment, FLAT] = value
        ) -> tuple[Data, Settings]:
            return experiment.data, settings

        command, about = of_experiment, f"{describe(file)}\n\n{_ABOUT}"
    source, settings = parse(command, arguments[1:], usage, about)
    sheet = None if settings.sheet is None else Path(settings.sheet)
    if sheet is not None:
        check_output(sheet, (".png",))
    return source, settings.samples, settings.seconds, sheet, settings.json
