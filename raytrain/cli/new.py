"""The command new."""

from __future__ import annotations

import os
from pathlib import Path

from rich.console import Console

from raytrain.files import expanded, is_url
from raytrain.report.layout import show_next
from raytrain.tools.new import check_new, experiment_text
from raytrain.tools.new_table import Columns
from raytrain.tools.output import write_file


def new(folder: str, out: Path, columns: Columns) -> None:
    """Write a first experiment file for a folder or a table of images, and print the commands that follow."""
    if is_url(folder) or os.path.exists(expanded(folder)):  # else that is said first
        check_new(out)
    text, notes = experiment_text(folder, out, columns)
    write_file(out, text.encode())
    print("\n".join([f"wrote {out}", *notes]))
    train = ["raytrain", "train", str(out)]
    show_next(Console(highlight=False, soft_wrap=True), [[*train, "--dry_run"], train])
