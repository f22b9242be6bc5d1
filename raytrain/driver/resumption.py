"""Resuming a run: the values and the code that may change."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from raytrain import config, errors
from raytrain.checkpoint import layout, remote
from raytrain.checkpoint.rows import check_rows
from raytrain.driver import model_check
from raytrain.driver.correction import Correction, listed, may_change
from raytrain.driver.plan import Plan
from raytrain.experiment import Experiment
from raytrain.files import known_json, reason
from raytrain.run import copies
from raytrain.run.lock import LOCK, WRITER_LOCK, Lock
from raytrain.run.run import Run, no_way_back
from raytrain.tasks.distillation import Distillation
from raytrain.user_code import places, sources


class Complete(errors.UserError):
    """A run has nothing left to train."""


def changed(before: Experiment, after: Experiment) -> list[str]:
    """Return the dotted paths at which two experiments differ. A field that the other code's class has not is no
    difference: it has its default."""
    old, new = config.leaves(before), config.leaves(after)
    shared = [path for path in old | new if (path in old and path in new) or path.endswith(".class")]
    return [path for path in shared if old.get(path) != new.get(path)]


def edited(run: Run) -> str:
    """Return a note on the user's files that have another text than the run's copies of them; an empty string where
    there are none."""
    found = copies.read(run.path)
    names = [Path(file).name for file in found.edited] if found else []
    if not names:
        return ""
    return f"the run goes on with its own copies of {listed(names)}, edited since; --experiment FILE uses the new code"


def check_model(new: Correction, planned: Plan) -> None:
    """Check that the newest checkpoint fits the new code, and that the best checkpoint so far still is the best.

    Raises:
        UserError: it does not fit.
    """
    if not remote.newest(new.run.path):
        return
    value, index = planned.experiment, planned.indices["train"]
    shape = value.data.sample(index), len(index.classes)
    after = model_check.tensors(value, *shape)
    sources.use(new.before)
    before = model_check.tensors(new.before, *shape)
    new.activate()
    where = f"in {places.place(type(value.model))}"
    if wrong := _difference(before, after):
        raise new.refused(f"the checkpoints do not fit the new code: {wrong}", where)
    if new.before.task.highest_is_best != value.task.highest_is_best:
        what = f"the new code reverses which {value.task.monitor} is the best"
        raise new.refused(what, f"in {places.place(type(value.task))}")


def _difference(before: model_check.Tensors, after: model_check.Tensors) -> str:
    """Return how what a checkpoint consists of has changed; an empty string where it has not."""
    old, new = before.shapes, after.shapes
    if gone := [name for name in old if name not in new]:
        more = [name for name in new if name not in old]
        return f"the model has no {listed(gone)}" + (f", but {listed(more)}" if more else "")
    if more := [name for name in new if name not in old]:
        return f"they have no {listed(more)}"
    if other := [name for name in old if old[name] != new[name]]:
        return listed(f"{name} is {new[name]} and was {old[name]}" for name in other)
    if before.optimizer and after.optimizer and before.optimizer != after.optimizer:
        return f"the optimizer is {after.optimizer} and was {before.optimizer}"
    if before.trained != after.trained:
        first = next(
            (pair for pair in zip(chain(*before.trained), chain(*after.trained), strict=False) if pair[0] != pair[1]),
            None,
        )
        if first is None:
            return "other parameters are trained, or the optimizer has them in other groups"
        return f"the parameters have another order, or others are trained: {first[1]} stands where {first[0]} stood"
    return ""


_FILES = (
    *("experiment.json", "environment.json", "skipped.json", "summary.json", "metrics.jsonl"),
    *("best.json", "last.json", LOCK, WRITER_LOCK),
    *(sources.REPLACED, sources.REPLACING),
)
"""The files of a run's directory that training writes."""


def claimed(run: Run) -> Lock:
    """Take a run's lock, once its files are such that this process may write them.

    Raises:
        UserError: another process has the run, or what stands in the place of a file is none.
    """
    for name in _FILES:
        if os.path.lexists(run.path / name) and not stat.S_ISREG(os.lstat(run.path / name).st_mode):
            raise errors.UserError(
                "this is not a regular file", run.path / name, "remove it, or put the run's own back"
            )
    for name in ("checkpoints", "logs"):
        if os.path.lexists(run.path / name) and not os.path.isdir(run.path / name):
            raise errors.UserError("this is not a folder", run.path / name, "remove it, or put the run's own back")
    lock = Lock(run.path)
    try:
        if (run.path / WRITER_LOCK).exists():  # rank 0 of a driver that was killed may still be leaving
            Lock(run.path, WRITER_LOCK, wait=10).release()
    except BaseException:
        lock.release()
        raise
    return lock


def checked(run: Run, value: Experiment, correction: Correction | None) -> Experiment:
    """Check that a run can go on with an experiment, and return that.

    Raises:
        UserError: it cannot.
    """
    run.check_code()
    if correction:
        correction.check_values(value)
    free = {"task.teacher"} if isinstance(value.task, Distillation) else set[str]()  # see teacher_check.check_same
    if refused := [path for path in changed(run.experiment, value) if not may_change(path) and path not in free]:
        raise errors.UserError(
            f"a resumed run cannot change {errors.listed(refused)}",
            run.where,
            "resume takes --epochs, --steps, --max_hours, --patience, --validate_every_steps, --parallel.*, "
            "--scaling.*, --checkpoint.*, --loggers.*, --micro_batch_size, --clip_norm, --on_nonfinite and "
            "--data.root" + (" and --task.teacher" if free else "") + "; train a new run for the rest",
        )
    if correction:
        correction.activate()
    _check_unfinished(run, value)
    progress = _check_checkpoints(run)
    if (value.epochs, value.steps) != (run.experiment.epochs, run.experiment.steps):
        _check_length(run, value, progress)
    if (
        value.scaling.workers != run.experiment.scaling.workers
        and value.scaling.threads_per_worker == run.experiment.scaling.threads_per_worker
        and value.parallel.threads is None
    ):
        return config.replace(value, "scaling.threads_per_worker", None)  # shared out anew
    return value


def _check_unfinished(run: Run, value: Experiment) -> None:
    """Check that there is something left to train.

    Raises:
        Complete: there is not.
    """
    summary = run.summary
    if summary["status"] != "completed":
        return
    ended, longer = [], []
    unit, most = ("epochs", value.epochs) if value.steps is None else ("steps", value.steps)
    done, epochs = summary.get(unit, 0), summary["epochs"]
    if done >= most:
        ended.append(f"the run is complete at {done} {unit if done != 1 else unit[:-1]}")
        longer.append(f"{unit} above {done}")
    if value.max_hours is not None and (summary.get("seconds") or 0.0) >= 3600 * value.max_hours:
        hours = f"{summary['seconds'] / 3600:.3g}"
        ended.append(f"it has trained for {hours} hours, and max_hours is {value.max_hours:g}")
        longer.append(f"max_hours above {hours} or None")
    stalled = summary.get("stalled", epochs - (summary.get("best_epoch") or epochs))
    if value.patience is not None and stalled >= value.patience:
        at = f"at {epochs} epochs, {stalled} of them"
        if value.validate_every_steps is not None:
            at = f"at step {summary.get('steps', 0)}, {stalled} validation{'s' if stalled > 1 else ''}"
        ended.append(f"it stopped early {at} without a better {value.task.monitor}")
        longer.append(f"patience {stalled + 1} or more, or None")
    if longer:  # all that ends it, so that one more try is enough
        what = ("" if done >= most else "the run is complete: ") + ", and ".join(ended)
        raise Complete(what, run.where, f"train longer, with {' and with '.join(longer)}")


def _check_length(run: Run, value: Experiment, progress: Mapping[str, Any]) -> None:
    """Check that a run does not become shorter than what it has trained: it would end where it is, as complete.

    Args:
        progress: that of the checkpoint from which it goes on.

    Raises:
        UserError: it does.
    """
    unit, most, done = "steps", value.steps, progress.get("step", 0)
    if most is None:
        unit, most, done = "epochs", value.epochs, progress.get("epoch", 0) + (progress.get("epoch_samples", 0) > 0)
    if done > most:
        at = f"step {done}" if unit == "steps" else f"epoch {done}"
        raise errors.UserError(
            f"{unit} = {most}, and the run has come to {at}", run.where, f"give --{unit} {done} or more"
        )


def _check_checkpoints(run: Run) -> dict[str, Any]:
    """Check that a run which has checkpoints has one to go on from, with the metrics before it. At a URL, rank 0 does.

    Returns:
        How far the newest of them has come, as `training.progress` saves it; empty where there is none.

    Raises:
        UserError: it has none.
    """

    names = [] if run.url else layout.committed(run.checkpoints)
    reasons = []
    if not names and not run.url and (lost := known_json(run.path / "last.json").get("checkpoint")):
        run.check_kept()
        reasons.append(f"{lost} is missing")  # to begin anew would replace the rows of metrics.jsonl
    for name in reversed(names):
        try:
            check_rows(run.path / "metrics.jsonl", state := layout.load_state(run.checkpoints / name))
            return dict(state["progress"])
        except errors.UserError as error:
            reasons.append(error.what)
        except (KeyError, TypeError, ValueError, OSError) as error:
            reasons.append(f"{name}: {reason(error) if isinstance(error, OSError | ValueError) else 'it is damaged'}")
    if reasons:
        raise no_way_back(run.where, reasons[0])
    return {}
