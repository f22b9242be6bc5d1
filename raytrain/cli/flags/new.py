"""The flags of the command new."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from raytrain.cli.flags.parsing import FLAT, parse
from raytrain.tools.new_table import Columns


def new(arguments: list[str]) -> tuple[str, Path, Columns]:
    """Return the folder or the table of images or its URL, the file to write, and the columns of a table."""

    def command(
        folder: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="FOLDER|TABLE")]],
        out: str = "experiment.py",
        columns: Annotated[Columns, FLAT] = Columns(),
    ) -> tuple[str, str, Columns]:
        """Write a first experiment file for a folder or a table of images, by their sizes, colours and classes.

        Args:
            folder: Images in a folder for each class, or in images/ with masks in masks/, also below train/ and val/;
                a table with a row for each image; or MNIST's files.
            out: The file to write; one that exists stays as it is.
        """
        return folder, out, columns

    folder, out, columns = parse(command, arguments, "raytrain new")
    return folder, Path(out), columns
