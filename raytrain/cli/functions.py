"""Commands as functions of Python: `raytrain.train` and the others."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from raytrain import config, errors
from raytrain.data.manifest import is_table
from raytrain.experiment import Experiment
from raytrain.files import is_url
from raytrain.loggers import Logger
from raytrain.run.experiment_file import refuse_while_loading
from raytrain.run.run import Run
from raytrain.sweep import Sweep, cross_validation
from raytrain.sweep.sweep_run import SweepRun
from raytrain.user_code import scripts


def train(
    experiment: Experiment,
    *,
    out: str = "runs",
    name: str | None = None,
    address: str | None = None,
    loggers: Sequence[Logger] = (),
    quiet: bool = False,
    report: bool = True,
    verbose: bool = False,
) -> Run:
    """Train an experiment, as `raytrain train` does.

    Args:
        experiment: what to train.
        out: folder or URL in which the run's directory is made.
        name: the directory's name; by default a number.
        address: a running Ray cluster; by default RAY_ADDRESS, an initialised Ray, or this machine alone.
        loggers: follow the run besides the experiment's loggers, which alone are called again by `raytrain resume`.
        quiet: print nothing.
        report: write report.html at the end.
        verbose: show Ray's own messages.

    Returns:
        The run: `summary`, `metrics()`, `model()`.

    Raises:
        UserError: the experiment cannot be run; nothing has been started.
        raytrain.driver.endings.RunFailed: the run started and failed.
        raytrain.driver.endings.Interrupted: a signal asked the run to stop.
    """
    started = time.time()
    refuse_while_loading()
    if not isinstance(experiment, Experiment):
        how = "import one from its file, as in `from FILE import experiment`"
        if isinstance(experiment, str | Path) and str(experiment).endswith(".json"):  # best.json of a sweep, or a run's
            how = f"on the command line {errors.command('train', experiment)} takes a file"
        raise errors.UserError(f"train takes an Experiment, got {_shown(experiment)}", "", how)
    command, _, _ = _commands()
    options = command.Options(out, name, address, report=report, verbose=verbose, quiet=quiet)
    run = command.trained(experiment, options, scripts.file_of(experiment), started, loggers)
    assert run is not None
    return run


def resume(
    run: Run | Path | str,
    *,
    experiment: Path | str | None = None,
    address: str | None = None,
    loggers: Sequence[Logger] = (),
    quiet: bool = False,
    report: bool = True,
    verbose: bool = False,
    **changes: object,
) -> Run:
    """Resume a run from its newest checkpoint, as `raytrain resume` does.

    Args:
        run: the run or its directory.
        experiment: the corrected experiment file: use it and the modules that it imports in place of the run's copies.
        loggers: follow the run too. A logger with the same field values as in an earlier command continues there.
        changes: fields to change, such as `epochs=5`; a dotted path is given as `**{"scaling.workers": 4}`.

    Raises:
        UserError: the run is complete or still running, or a resumed run cannot make the change.
    """
    started = time.time()
    refuse_while_loading()
    command, _, _ = _commands()
    run = Run(_where(run))
    correction = command.Correction(run, Path(experiment)) if experiment else None
    value = correction.experiment if correction else run.experiment
    for path, change in changes.items():
        value = config.replace(value, path, change)
    options = command.Options(address=address, report=report, verbose=verbose, quiet=quiet)
    return command.resumed(run, value, options, correction, started, loggers)


def sweep(
    value: Sweep | SweepRun | Path | str,
    *,
    out: str = "runs",
    name: str | None = None,
    address: str | None = None,
    loggers: Sequence[Logger] = (),
    quiet: bool = False,
    report: bool = True,
    verbose: bool = False,
    **changes: object,
) -> SweepRun:
    """Run a sweep, or go on with the one of a directory, as `raytrain sweep` does.

    Args:
        value: the sweep; or one that was begun, or its directory or URL. `out` and `name` are for a new sweep.
        loggers: follow the sweep as a whole; the experiment's loggers follow each trial.
        out, name, address, quiet, report, verbose: as for `train`.
        changes: fields to change, such as `trials=30`, as for `resume`.

    Returns:
        The sweep; `SweepRun(DIR)` opens it again.

    Raises:
        UserError: the sweep cannot be run, or a begun one cannot make the change; nothing has been started.
        raytrain.driver.endings.Interrupted: a signal asked the sweep to stop.
    """
    started = time.time()
    refuse_while_loading()
    if not isinstance(value, Sweep | SweepRun | Path | str) or str(value).endswith(".py"):
        what = f"sweep takes a Sweep, or the directory of one, got {_shown(value)}"
        raise errors.UserError(what, "", "write Sweep(experiment, axes=(...)), or import one from its file")
    _, command, _ = _commands()
    options = command.Options(out, name, address, report=report, verbose=verbose, quiet=quiet)
    path, wanted = command.begun(value)
    for field, change in changes.items():
        wanted = config.replace(wanted, field, change)
    scripts.check_in_files(wanted)
    source = None if path else scripts.file_of(wanted.experiment)
    done = command.swept(wanted, options, source, started, loggers, path)
    assert done is not None
    return done


def evaluate(
    run: Run | SweepRun | Path | str,
    *,
    root: Path | str | None = None,
    split: str = "val",
    checkpoint: Literal["best", "last"] = "best",
    tta: str | int = "",
    by: str = "",
) -> dict[str, Any]:
    """Evaluate a run on every sample of a split, as `raytrain evaluate` does, in this process.

    Args:
        run: the run, or its directory or URL; or those of a cross-validation: each sample of val is then evaluated by
            the model of the fold that left it out, and those of test by the mean of all models' answers.
        root: other data of the same classes, in the layout of the run's data.
        split: train, val or test.
        tta: average the probabilities of an image and its mirror image ("flip"), or of this many views of it by the
            run's augmentation.
        by: a column of the data, such as the site of each image.

    Returns:
        The task's metrics by name, `count`, and what the task has besides: `confusion`, int [classes, classes] as lists
        with a row for each label, and `per_class`; with `by` also `groups`, the metrics and count of each value;
        `whole`, True where these are all samples of other data, which have no splits; and of a cross-validation
        `folds`, the metrics and count of each fold, or of the split test `models`, the number of models.

    Raises:
        UserError: the data or the checkpoint is not there, or the data does not suit the model.
    """
    _check_texts(split=split, checkpoint=checkpoint, by=by)
    root = None if root is None else str(root)
    inference, folds = _inference()
    found = cross_validation.opened(_where(run), split, root)
    if isinstance(found, Run):
        return inference.evaluate(found, root, split, checkpoint, str(tta), by=by)
    return folds.evaluate(found, split, checkpoint, str(tta), by=by)


def predict(
    run: Run | SweepRun | Path | str,
    paths: Path | str | Sequence[Path | str] = (),
    *,
    split: str | None = None,
    checkpoint: Literal["best", "last"] = "best",
    root: Path | str | None = None,
    tta: str | int = "",
    features: bool | str = False,
    folder: Path | str = "",
) -> list[dict[str, Any]]:
    """Predict images, a table or a split, as `raytrain predict` does, in this process.

    Args:
        run: the run, or its directory or URL; or those of a cross-validation: each sample of val is then predicted by
            the model of the fold that left it out, and other samples by the mean of all models' answers.
        paths: image files and folders of them, or one table with the columns of the run's own, but for labels.
        split: the split of the run's own data to predict, in place of paths.
        root: other data of the same classes, whose split it is.
        tta: as for `evaluate`.
        features: return the input of the model's last layer in place of predictions, or the output of the layer of this
            name.
        folder: what paths in a table are relative to.

    Returns:
        For each image, in order, `path`, or `sample` where it has no path, and the columns of the task: for
        Classification `label`, `probability` and `probabilities`, a list in the order of `run.classes()`; for
        Segmentation `mask`, uint8 or int32 [height, width]; or `features`, float32 [d]. For a sample of a split also
        `true_label`, or what the task's `truths` return, and `loss`, its part in the validation loss.

    Raises:
        UserError: an image is not there or cannot be read, or something does not suit the run.
    """
    given = _paths(paths)
    layer = None if features is False else "" if features is True else features
    _check_texts(split=split, checkpoint=checkpoint, features=layer)
    if bool(given) == (split is not None):
        what = "predict takes either paths or a split"
        raise errors.UserError(what, "", 'write predict(run, "photos/") or predict(run, split="val")')
    if root is not None and split is None:
        raise errors.UserError("root is where the data of a split are", "", 'write predict(run, split="val", root=...)')
    tables = [path for path in given if is_table(path)]
    if tables and len(given) > 1:
        what = f"a table is predicted by itself, and {tables[0]} is not alone"
        raise errors.UserError(what, "", "call predict for each table, and once for all images")
    if folder and not tables:
        raise errors.UserError("folder is what paths in a table are relative to", "", "leave it out")
    if any(is_url(path) and not is_table(path) for path in given):
        what = "images at a URL are predicted in parts"
        raise errors.UserError(what, "", "use `raytrain predict RUN URL --out FOLDER`")
    inference, folds = _inference()
    root = None if root is None else str(root)
    found = cross_validation.opened(_where(run), split, root)
    if isinstance(found, Run):
        return inference.predict(
            found, given, checkpoint, str(tta), split=split, root=root, features=layer, folder=str(folder)
        )
    return folds.predict(found, given, checkpoint, str(tta), split=split, features=layer, folder=str(folder))


def runs(place: Path | str = "runs") -> list[dict[str, Any]]:
    """List the runs and sweeps below a directory or a URL, as `raytrain runs --json` does.

    Args:
        place: the directory or URL that is searched.

    Returns:
        For each, the newest first: `name`, its path below the place; `kind`, run or sweep; `status`; `changed`, an ISO
        8601 time; `epochs`, `steps`, `of_epochs`, `of_steps` and `trials`, its progress; `metric`, `direction`, `best`
        and `std`; `bytes`; and `metrics`, the values of all metrics at a run's best checkpoint, or the means over a
        cross-validation's folds. What is not known is None.

    Raises:
        UserError: there is no such place, or storage does not answer.
    """
    _, _, command = _commands()
    return command.listed(str(place))


def _paths(paths: Path | str | Sequence[Path | str]) -> list[str]:
    """Return paths as strings.

    Raises:
        UserError: what is given is something else, such as an image.
    """
    if isinstance(paths, Run):
        what = "the run comes first in predict, and its images second"
        raise errors.UserError(what, "", 'write predict(run, "photos/")')
    several = [paths] if isinstance(paths, str) or not isinstance(paths, Iterable) else list(paths)
    if wrong := [one for one in several if not isinstance(one, os.PathLike | str)]:
        what = f"predict takes paths of images, got a value of type {type(wrong[0]).__name__}"
        raise errors.UserError(what, "", "write images to files, or call the model: raytrain.Run(path).model()")
    return [str(path) for path in several]


def _check_texts(**given: object) -> None:
    for name, value in given.items():
        if not isinstance(value, str | None):
            raise errors.UserError(f"{name} must be a text, got {value!r}", "", f'write {name}="..."')


def _where(run: Run | SweepRun | Path | str) -> str:
    """Return the directory or URL of a run or a sweep.

    Raises:
        UserError: what is given is something else.
    """
    where = run.where if isinstance(run, Run | SweepRun) else run
    if not isinstance(where, os.PathLike | str):
        what = f"this is no run, but a value of type {type(where).__name__}"
        raise errors.UserError(what, "", "give what raytrain.train returns, or a run's directory or URL")
    return str(where)


def _shown(value: object) -> str:
    """Return a text as Python writes it, of another value its class."""
    return repr(value) if isinstance(value, str) else type(value).__name__


def _commands():
    """Return the modules of the commands train, sweep and runs, imported late: they import torch."""
    from raytrain.cli import runs, sweep, train

    return train, sweep, runs


def _inference():
    """Return the modules that evaluate and predict, imported late: they import torch."""
    from raytrain.tools import folds, inference

    return inference, folds
