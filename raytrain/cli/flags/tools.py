"""The flags of the commands lr, batch, evaluate and export."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import tyro

from raytrain.cli.flags.arguments import check_run_first, first_argument, show_usage, take, without
from raytrain.cli.flags.parsing import FLAT, RUN, describe, parse, take_strategy
from raytrain.experiment import Experiment
from raytrain.files import is_url
from raytrain.optim.schedules import Rising
from raytrain.run.experiment_file import load
from raytrain.run.run import Run
from raytrain.tools.micro_batch import Search as Trying
from raytrain.tools.output import PLOTS, WEIGHTS, check_onnx, check_output


@dataclass(frozen=True)
class OtherData:
    """What to evaluate or predict."""

    root: str | None = None
    """Other data of the same classes, in the layout of the run's data."""


def lr(arguments: list[str]) -> tuple[Path, Experiment, Rising, Path | None, bool, list[str]] | None:
    """Return the path given, its experiment, the range of learning rates, the plot's file, whether JSON is wanted, and
    the command that trains with these flags."""
    usage, path = "raytrain lr EXPERIMENT", first_argument(arguments)
    if path is None:
        return show_usage(
            arguments,
            usage,
            "Trains an experiment, or that of a run, for some steps (--steps 100) with a learning rate that rises from "
            "--low 1e-07 to --high 10, and suggests the one at which the loss falls fastest. --out lr.png writes a "
            "plot of the losses, and the losses themselves to lr.csv; for a run, both are written to its directory, "
            "or for a run at a URL to NAME-lr.png and NAME-lr.csv. "
            "Training starts from the same weights as `raytrain train`.",
        )
    url, path = path, _mirrored(path)
    value, source = load(path)
    given = without(arguments[1:], "--json", "--no_json")
    _, given = take(given, "--steps", "--low", "--high", "--out", "--optimizer.lr")
    value, arguments = take_strategy(value, arguments)

    # The test's own steps have the flag --steps, and not those of the run.
    default, whole = Rising(), value.steps
    value = replace(value, steps=default.steps)

    def command(
        experiment: Annotated[Experiment, FLAT] = value,
        low: float = default.low,
        high: float = default.high,
        out: str | None = None,
        json: bool = False,
    ) -> tuple[Experiment, Rising, str | None, bool]:
        """Find a learning rate.

        Args:
            low: Learning rate of the first step.
            high: Learning rate of the last step.
            out: The plot's file: .png, .svg or .pdf. The losses go to a .csv file beside it. A run's default is lr.png.
            json: Print one JSON object.
        """
        rising = Rising(default.steps if experiment.steps is None else experiment.steps, low, high)
        return replace(experiment, steps=whole), rising, out, json

    value, rising, out, as_json = parse(command, arguments[1:], f"raytrain lr {path}", describe(source))
    default_file = Path(f"{Path(path).name}-lr.png") if is_url(url) else Path(path, "lr.png")
    file = Path(out) if out else default_file if Path(path).is_dir() else None
    if file:
        check_output(file, PLOTS)
        check_output(file.with_suffix(".csv"), (".csv",))
    return Path(path), value, rising, file, as_json, ["raytrain", "train", _experiment_of(path), *given]


def _mirrored(path: str) -> str:
    """Return the directory on this machine of a run at a URL; another path as it is."""
    return str(Run(path).path) if is_url(path) else path


def _experiment_of(path: str) -> str:
    """Return what `raytrain train` takes for an experiment file or a run."""
    file = Path(path, "experiment.json")
    return str(file) if file.is_file() else path


def batch(arguments: list[str]) -> tuple[Experiment, Trying, Path | None, bool, list[str]] | None:
    """Return the experiment, what to try, the experiment's file, whether JSON is wanted, and the command that trains
    with these flags."""
    usage, path = "raytrain batch EXPERIMENT", first_argument(arguments)
    if path is None:
        return show_usage(
            arguments,
            usage,
            "Tries micro-batches of an experiment, or of that of a run, on this machine, in each precision. Prints the "
            "largest micro-batch that fits into a worker's memory (--memory GIB), and the fastest one. The global "
            "batch_size stays: gradients accumulate to it. What is learnt stays too, up to rounding, but for "
            "BatchNorm, whose statistics are those of a micro-batch, and dropout. Trials run in processes of their "
            "own; if one dies, its size does not fit.",
        )
    path = _mirrored(path)
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
        """Find a micro-batch size.

        Args:
            json: Print one JSON object.
        """
        return experiment, options, json

    value, search, as_json = parse(command, arguments[1:], f"raytrain batch {path}", describe(source))
    return value, search, source, as_json, ["raytrain", "train", _experiment_of(path), *given]


def evaluate(arguments: list[str]) -> tuple[str, str | None, str, str, str, str, bool]:
    """Return the run or cross-validation, another data root, the split, the checkpoint, test-time augmentation, the
    column of groups, and whether JSON is wanted."""

    def command(
        run: tyro.conf.Positional[Annotated[str, RUN]],
        data: OtherData = OtherData(),
        split: Literal["train", "val", "test"] = "val",
        checkpoint: Literal["best", "last"] = "best",
        tta: str = "",
        by: str = "",
        json: bool = False,
    ) -> tuple:
        """Evaluate a checkpoint on every sample of a split. RUN may be the directory of a cross-validation: each sample
        of val is evaluated by the fold that left it out, and those of test by the mean of all folds' answers.

        Args:
            split: The split to evaluate on.
            checkpoint: The checkpoint to load.
            tta: Average the answers to an image and its mirror image (flip), or to this many views of it by the
                run's augmentation.
            by: A column of the data, such as the site of each image: print the metrics of each of its values besides.
            json: Print one JSON object.
        """
        return run, data.root, split, checkpoint, tta, by, json

    return parse(command, arguments, "raytrain evaluate")


def export(arguments: list[str]) -> tuple[Run, Path, str]:
    """Return the run, the file to write, and the checkpoint."""

    def command(
        run: tyro.conf.Positional[Annotated[str, RUN]],
        file: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="FILE")]],
        checkpoint: Literal["best", "last"] = "best",
    ) -> tuple:
        """Write a run's weights, or a program with the preprocessing inside, which is compared with the run's model on
        validation samples.

        Args:
            file: The suffix chooses the format: .pth (a state dict) and .safetensors have the weights, by plain names;
                .pt2 (torch.export) and .onnx are programs from stored images to the model's outputs.
            checkpoint: The checkpoint to load.
        """
        return run, file, checkpoint

    path, file, which = parse(command, arguments, "raytrain export")
    check_run_first("export", path, [file])
    found = Run(path)
    check_output(Path(file), WEIGHTS)
    if Path(file).suffix == ".onnx":
        check_onnx()
    return found, Path(file), which
