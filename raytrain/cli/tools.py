"""The commands lr, batch, evaluate, predict and export."""

from __future__ import annotations

import json
import math
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from raytrain import errors
from raytrain.cli.parsing import (
    FLAT,
    RUN,
    describe,
    first_argument,
    parse,
    show_usage,
    take,
    take_strategy,
    without,
)
from raytrain.driver.observe import watched
from raytrain.experiment import Experiment
from raytrain.experiment_file import load
from raytrain.loggers import Logger
from raytrain.optim.schedules import Rising
from raytrain.run.run import Run
from raytrain.tools.batch_size import Search as Trying


@dataclass(frozen=True)
class OtherData:
    """What to evaluate on."""

    root: str | None = None
    """Other data of the same classes, in the layout of the run's."""


def lr_command(arguments: list[str]) -> None:
    """Find a learning rate: raytrain lr EXPERIMENT|RUN [--field value ...] [--out FILE]"""
    usage, path = "raytrain lr EXPERIMENT", first_argument(arguments)
    if path is None:
        return show_usage(
            arguments,
            usage,
            "Trains an experiment, or that of a run, for some steps (--steps 100) with a learning rate that rises from "
            "--low 1e-07 to --high 10, and suggests the one at which the loss falls fastest. --out lr.png keeps a plot "
            "of the losses, and their figures in lr.csv; of a run, both are kept in its directory. It begins with the "
            "weights that `raytrain train` begins with.",
        )
    value, source = load(path)
    _, given = take(arguments[1:], "--steps", "--low", "--high", "--out", "--optimizer.lr")
    value, arguments = take_strategy(value, arguments)

    def command(
        experiment: Annotated[Experiment, FLAT] = value,
        options: Annotated[Rising, FLAT] = Rising(),
        out: str | None = None,
    ) -> tuple[Experiment, Rising, str | None]:
        """Finds a learning rate.

        Args:
            out: The plot: a .png, .svg or .pdf file. Its figures go into a .csv file of the same name. By default
                lr.png in the directory of a run, and none of an experiment.
        """
        return experiment, options, out

    value, rising, out = parse(command, arguments[1:], f"raytrain lr {path}", describe(source))
    from raytrain.report import lr
    from raytrain.tools import inference

    file = Path(out) if out else Path(path, "lr.png") if Path(path).is_dir() else None
    if file:
        inference.check_output(file, lr.PLOTS)
        inference.check_output(file.with_suffix(".csv"), (".csv",))
    from raytrain.tools import lr_range

    with watched(lr.Bar(rising.steps)) as observer:
        curve = lr_range.find(value, rising, observer)
    if file:
        lr.write(curve, Path(path), file)
    lr.show(curve, file, ["raytrain", "train", path, *given], value.lr / value.optimizer.lr)


def batch_command(arguments: list[str]) -> None:
    """Find a micro-batch: raytrain batch EXPERIMENT|RUN [--field value ...] [--memory GIB] [--json]"""
    usage, path = "raytrain batch EXPERIMENT", first_argument(arguments)
    if path is None:
        return show_usage(
            arguments,
            usage,
            "Tries micro-batches of an experiment, or of that of a run, on this machine, in each precision: which "
            "is the largest that fits into a worker's memory (--memory GIB), and which the fastest. The global "
            "batch_size stays, and with it what is learnt: gradients accumulate to it. Trials run in processes of "
            "their own; where one dies, its size does not fit.",
        )
    value, source = load(path)
    given = without(
        arguments[1:], "--precisions", "--memory", "--json", "--no_json", "--micro_batch_size", "--precision"
    )
    value, arguments = take_strategy(value, arguments)

    def command(
        experiment: Annotated[Experiment, FLAT] = value,
        options: Annotated[Trying, FLAT] = Trying(),
        json: bool = False,
    ) -> tuple[Experiment, Trying, bool]:
        """Finds a micro-batch.

        Args:
            json: Print one JSON object.
        """
        return experiment, options, json

    value, search, as_json = parse(command, arguments[1:], f"raytrain batch {path}", describe(source))
    from raytrain.report import batch
    from raytrain.tools import batch_size

    with watched(Logger() if as_json else batch.Spinner()) as observer:
        found = batch_size.find(value, search, source, observer)
    following = ["raytrain", "train", path, *given]
    if as_json:
        print(batch.to_json(found, value, following))
    else:
        batch.show(found, value, following)


def evaluate_command(arguments: list[str]) -> None:
    """Evaluate a run: raytrain evaluate RUN [--data.root DIR] [--json]"""

    def command(
        run: tyro.conf.Positional[Annotated[str, RUN]],
        data: OtherData = OtherData(),
        split: Literal["train", "val", "test"] = "val",
        checkpoint: Literal["best", "last"] = "best",
        json: bool = False,
    ) -> tuple:
        """Evaluates a checkpoint on every sample of a split.

        Args:
            split: Which split.
            checkpoint: Which checkpoint.
            json: Print one JSON object.
        """
        return run, data.root, split, checkpoint, json

    path, root, split, which, as_json = parse(command, arguments, "raytrain evaluate")
    found = Run(path)
    from raytrain.tools import inference

    result = inference.evaluate(found, root, split, which)
    if as_json:
        finite = {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in result.items()
        }
        print(json.dumps(finite))  # JSON has no NaN; metrics.jsonl has null there too
        return
    from raytrain.report.console import show_evaluation

    show_evaluation(result, found.where)


def predict_command(arguments: list[str]) -> None:
    """Classify images: raytrain predict RUN PATH ... [--out predictions.csv]"""

    def command(
        run: tyro.conf.Positional[Annotated[str, RUN]],
        paths: tyro.conf.Positional[Annotated[tuple[str, ...], tyro.conf.arg(metavar="PATH ...")]],
        out: str | None = None,
        checkpoint: Literal["best", "last"] = "best",
    ) -> tuple:
        """Classifies image files, and all images below folders.

        Args:
            paths: Images, or folders of them.
            out: A .csv, .jsonl or .parquet file; by default a table is printed.
            checkpoint: Which checkpoint.
        """
        return run, paths, out, checkpoint

    path, images, out, which = parse(command, arguments, "raytrain predict")
    swapped = [image for image in images if Path(image, "experiment.json").is_file()]
    if swapped and not Path(path, "experiment.json").is_file():
        run, given = swapped[0], [path, *(image for image in images if image != swapped[0])]
        raise errors.UserError(
            "RUN must come first", f"got {path}", f"write `{shlex.join(['raytrain', 'predict', run, *given])}`"
        )
    found = Run(path)
    from raytrain.tools import inference

    if out is not None:
        inference.check_output(Path(out), inference.PREDICTIONS)
    if not images:
        raise errors.bad_flag("no images are given", "raytrain predict")
    rows = inference.predict(found, list(images), which)
    if out is None:
        for row in rows:
            print(f"{row['path']}  {row['label']}  {row['probability']:.4f}")
    else:
        inference.write_predictions(rows, found.classes(which), Path(out))
        print(f"wrote {len(rows)} predictions to {out}")


def export_command(arguments: list[str]) -> None:
    """Write the weights: raytrain export RUN FILE (.pth .safetensors .pt2)"""

    def command(
        run: tyro.conf.Positional[Annotated[str, RUN]],
        file: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="FILE")]],
        checkpoint: Literal["best", "last"] = "best",
    ) -> tuple:
        """Writes a run's plain weights, without any prefix, for the CPU.

        Args:
            file: Its suffix chooses the format: .pth (a state dict), .safetensors, .pt2 (torch.export).
            checkpoint: Which checkpoint.
        """
        return run, file, checkpoint

    path, file, which = parse(command, arguments, "raytrain export")
    found = Run(path)
    from raytrain.tools import inference

    inference.export(found, Path(file), which)
    print(f"wrote {file}")
