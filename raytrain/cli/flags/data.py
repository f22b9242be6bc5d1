"""The flags of the command data, and the sources that are named by a folder, a file or a URL."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from raytrain import errors
from raytrain.checkpoint.location import is_url
from raytrain.cli.flags.arguments import first_argument, show_usage
from raytrain.cli.flags.parsing import FLAT, describe, parse
from raytrain.config import above, at_least, check
from raytrain.data import MNIST, Data, ImageFolder, Manifest, Packed, WebDataset
from raytrain.experiment import Experiment
from raytrain.run.experiment_file import load
from raytrain.tools.output import check_output

_TABLES = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet", ".pq", ".arrow")
_ABOUT = (
    "Describes the data of an experiment or a run, a folder (images in a folder for each class, MNIST, tar shards or "
    "a pack), a table of images, or any of these at a URL: counts, classes, sizes of images, samples that cannot be "
    "read or are equal, and mean and standard deviation."
)


@dataclass(frozen=True)
class Settings:
    """What is read."""

    samples: int = 2000
    """Samples to read, evenly chosen over all splits."""
    seconds: float = 60.0
    """Seconds after which no further samples are read."""
    sheet: str | None = None
    """A .png file to write, with training images of all classes."""
    json: bool = False
    """Print one JSON object."""

    def __post_init__(self) -> None:
        check(self, samples=at_least(1), seconds=above(0))


def source_of(place: str) -> Data | None:
    """Return the source that a folder, a file or a URL is; None if it is an experiment, a run, or not there."""
    plain = place.partition("?")[0] if is_url(place) else place
    if plain.lower().endswith(_TABLES):
        return Manifest(place)
    if plain.lower().endswith(".tar"):
        return WebDataset(place)
    if is_url(place):
        return ImageFolder(place)
    if not os.path.isdir(place) or Path(place, "experiment.json").is_file():
        return None
    if Path(place, "manifest.json").is_file():
        return Packed(place)
    if Path(place, "MNIST", "raw").is_dir():
        return MNIST(place)
    return WebDataset(place) if any(Path(place).glob("*.tar")) else ImageFolder(place)


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
        if not Path(path).exists() and Path(path).suffix not in (".py", ".json"):
            raise errors.no_such_file(path, "experiment file, folder or table of images")
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
