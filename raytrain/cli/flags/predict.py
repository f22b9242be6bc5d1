"""The flags of the command predict."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from raytrain import errors
from raytrain.cli.flags.arguments import check_run_first
from raytrain.cli.flags.parsing import FLAT, RUN, parse
from raytrain.cli.flags.tools import OtherData
from raytrain.data.manifest import is_table
from raytrain.files import is_url
from raytrain.tools.batch_settings import Settings, in_parts
from raytrain.tools.output import FEATURES, PREDICTIONS, check_output


@dataclass(frozen=True)
class Prediction:
    """What to predict, and how.

    Attributes:
        run: its directory or URL.
        images: files, folders and URLs of images, or one table.
        out: the file, folder or URL to write; None for a table that is printed.
        checkpoint: best or last.
        tta: test-time augmentation, as for `inference.predict`.
        split: the split to predict in place of images.
        root: where its data are, if not in the run's own place.
        features: the layer whose features are wanted, an empty string for the head's input; None for predictions.
        folder: that of a table's images.
        spread: how a result in parts is computed.
    """

    run: str
    images: tuple[str, ...]
    out: str | None
    checkpoint: str
    tta: str
    split: str | None
    root: str | None
    features: str | None
    folder: str
    spread: Settings

    @property
    def in_parts(self) -> bool:
        """Whether the result is a folder of parts."""
        return in_parts(self.out)


def predict(arguments: list[str]) -> tuple[Prediction]:
    """Return what to predict."""

    def command(
        run: tyro.conf.Positional[Annotated[str, RUN]],
        paths: tyro.conf.Positional[
            Annotated[tuple[str, ...], tyro.conf.arg(metavar="PATH ...", help_behavior_hint="(required)")]
        ],
        out: str | None = None,
        checkpoint: Literal["best", "last"] = "best",
        split: Literal["train", "val", "test"] | None = None,
        data: OtherData = OtherData(),
        tta: str = "",
        features: bool = False,
        layer: str = "",
        folder: str = "",
        spread: Annotated[Settings, FLAT] = Settings(),
    ) -> tuple[str, Prediction]:
        """Predict image files and all images below folders and URLs, all rows of a table, or a split of the run's own
        data. RUN may be the directory of a cross-validation: each sample of its val is predicted by the fold that left
        it out, and others by the mean of all folds' answers.

        Args:
            paths: Images, or folders or URLs of images; or one table with the columns of the run's own, but for labels.
            out: A .csv, .jsonl or .parquet file to write; by default a table is printed. Masks become PNGs in a folder
                beside it. A folder or URL gets parts of Parquet, written by workers on this machine or a cluster; the
                same command completes them after a kill.
            checkpoint: The checkpoint to load.
            tta: Average the answers to an image and its mirror image (flip), or to this many views of it by the
                run's augmentation.
            split: The split of the run's own data to predict, in place of images.
            features: Write the input of the model's last layer as a vector, in place of predictions (.parquet).
            layer: With --features, take the output of this layer instead. NAME:last says that its channels come last.
            folder: What paths in a table are relative to; by default the run's data.folder, or the table's own.
        """
        wanted = layer if features else None
        return layer, Prediction(run, paths, out, checkpoint, tta, split, data.root, wanted, folder, spread)

    layer, wanted = parse(command, arguments, "raytrain predict")
    check_run_first("predict", wanted.run, wanted.images)
    table = _table(wanted)
    if wanted.root is not None and not wanted.split:
        raise errors.bad_flag("--data.root is that of a --split", "raytrain predict")
    if layer and wanted.features is None:
        raise errors.bad_flag("--layer needs --features", "raytrain predict")
    if wanted.in_parts:
        _check_parts(str(wanted.out), table or (wanted.split and "--split"))
    else:
        _check_file(wanted, table)
    return (wanted,)


def _table(wanted: Prediction) -> str | None:
    """Return the table to predict, if there is one.

    Raises:
        UserError: there is more beside it, a folder without a table, images beside a split, or neither.
    """
    if wanted.images and wanted.split:
        raise errors.bad_flag("both images and --split are given", "raytrain predict")
    if not wanted.images and not wanted.split:
        raise errors.bad_flag("no images are given, and no --split", "raytrain predict")
    tables = [one for one in wanted.images if is_table(one)]
    if tables and len(wanted.images) > 1:
        raise errors.bad_flag(f"a table is predicted by itself, and {tables[0]} is not alone", "raytrain predict")
    if wanted.folder and not tables:
        raise errors.bad_flag("--folder is that of a table's images", "raytrain predict")
    return tables[0] if tables else None


def _check_file(wanted: Prediction, table: str | None) -> None:
    """Check that a result may be one file, or be printed.

    Raises:
        UserError: it needs parts, or the file is of the wrong kind or cannot be written.
    """
    if wanted.spread != Settings() or (any(map(is_url, wanted.images)) and not table):
        what = "images at a URL" if wanted.spread == Settings() else "--address, --workers and the like"
        raise errors.bad_flag(
            f"{what} need a folder or a URL for the result, such as --out predictions/", "raytrain predict"
        )
    if wanted.out is not None:
        check_output(Path(wanted.out), PREDICTIONS if wanted.features is None else FEATURES)
    elif wanted.features is not None:
        raise errors.bad_flag("--features needs --out FILE.parquet or --out FOLDER", "raytrain predict")


def _check_parts(out: str, alone: str | None) -> None:
    """Check that a result may be written in parts.

    Args:
        alone: what is predicted by one process, if it is.

    Raises:
        UserError: something is, or the place is that of a file.
    """
    if alone:
        what = f"{alone} is predicted by one process, which writes a file"
        raise errors.UserError(what, f"got --out {out}", "write --out predictions.parquet")
    if Path(out.partition("?")[0]).suffix in PREDICTIONS or Path(out).is_file():
        what = (
            "a result in parts needs a folder, and this is a file"
            if Path(out).is_file()
            else "a URL is a folder of parts"
        )
        raise errors.UserError(what, out, "leave the suffix out, or give another --out")
