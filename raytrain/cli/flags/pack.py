"""The flags of the command pack."""

from __future__ import annotations

from typing import Annotated

from raytrain import errors
from raytrain.cli.flags.arguments import first_argument, show_usage
from raytrain.cli.flags.data import check_place, of_source, source_of
from raytrain.cli.flags.parsing import FLAT, describe, parse
from raytrain.data import Data
from raytrain.experiment import Experiment
from raytrain.run.experiment_file import load
from raytrain.tools.pack_settings import Settings

_ABOUT = (
    "Writes the samples of an experiment's data, MNIST's files, or, here or at a URL, a table of images or a folder "
    "(images in a folder for each class, also below train/ and val/; images/ and masks/; tar shards; Parquet or Arrow "
    "files; a pack) to a few large files, from which data=Packed(DEST) trains: the same batches, without a file for "
    "each image. DEST is a folder or a URL such as s3://bucket/pack. A command that was stopped goes on where it was. "
    "Batches of a pack with --codec original or raw equal those of the source, bit for bit."
)


def pack(arguments: list[str]) -> tuple[Data, str, Settings] | None:
    """Return the source, the place of the pack, and the settings."""
    usage, path = "raytrain pack SOURCE DEST", first_argument(arguments)
    if path is None:
        return show_usage(arguments, usage, f"{_ABOUT} `raytrain pack SOURCE --help` lists the flags.")
    dest = first_argument(arguments[1:])
    asks = "-h" in arguments or "--help" in arguments
    if dest is None and not asks:
        raise errors.bad_flag("DEST must follow SOURCE: a folder to write, or a URL", "raytrain pack")
    rest, usage = arguments[1 if dest is None else 2 :], f"raytrain pack {path} DEST"
    if (known := source_of(path)) is not None:
        data, settings = parse(of_source(known, Settings()), rest, usage, _ABOUT)
        return data, dest or "", settings
    check_place(path)
    value, source = load(path)

    def of_experiment(
        experiment: Annotated[Experiment, FLAT] = value, settings: Annotated[Settings, FLAT] = Settings()
    ) -> tuple[Experiment, Settings]:
        return experiment, settings

    value, settings = parse(of_experiment, rest, usage, f"{describe(source)}\n\n{_ABOUT}")
    return value.data, dest or "", settings
