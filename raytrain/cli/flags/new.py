"""The flags of the command new."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from raytrain.cli.flags.parsing import parse


def new(arguments: list[str]) -> tuple[Path, Path]:
    """Return the folder or the table of images, and the file to write."""

    def command(
        folder: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="FOLDER")]], out: str = "experiment.py"
    ) -> tuple[str, str]:
        """Write a first experiment file for a folder or a table of images, by their sizes, colours and classes.

        Args:
            folder: Images in a folder for each class, or in images/ with masks in masks/, also below train/ and val/;
                a table with columns path (or of bytes) and label; or MNIST's files.
            out: The file to write; one that exists stays as it is.
        """
        return folder, out

    folder, out = parse(command, arguments, "raytrain new")
    return Path(folder), Path(out)
