"""The run directory, and `Run`, the user's handle of it."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raytrain import errors
from raytrain.checkpoint import layout, location, remote, storage
from raytrain.data.folds import AXIS
from raytrain.experiment import Experiment
from raytrain.files import is_url, known_json, needed_json
from raytrain.run import copies, experiment_file
from raytrain.run.lock import held
from raytrain.run.metrics_log import rows_and_damage
from raytrain.user_code import hints, sources

if TYPE_CHECKING:
    import pyarrow as pa
    from torch import nn


class Run:
    """A run on disk: `experiment.json`, `environment.json`, `metrics.jsonl`, `checkpoints/`, `best.json`, `last.json`,
    `summary.json`, `logs/`, and copies of the experiment file (`experiment.py`) and of the modules that it imports
    (`modules/`); `replaced.json`, where these were replaced by corrected ones.

    Args:
        path: the run's directory, or its URL; `path` is then the directory on this machine that follows it.

    Raises:
        UserError: there is no run.
    """

    def __init__(self, path: Path | str):
        self.url = str(path) if is_url(path) else location.url_of(Path(path))
        self.path = remote.opened(self.url) if self.url else Path(path)
        if not os.path.isfile(self.path / "experiment.json"):
            if os.path.isfile(self.path / "sweep.json"):
                raise _a_sweep_s_runs(path, known_json(self.path / "sweep.json"))
            near = [] if self.url else hints.files(self.path, [Path("runs")], "*/experiment.json")
            raise _not_a_run(path, near)

    def __repr__(self) -> str:
        return f"Run({self.where!r})"

    @property
    def where(self) -> str:
        """The URL or the directory, as commands take it."""
        return self.url or str(self.path)

    @property
    def experiment(self) -> Experiment:
        """The experiment as it was trained. From then on the names of the run's modules import its copies in this
        process, until another run or experiment is read."""
        sources.use(self._experiment)
        return self._experiment

    @cached_property
    def _experiment(self) -> Experiment:
        self._replaced = self.replaced
        return experiment_file.load(self.path / "experiment.json")[0]

    def forget(self) -> None:
        """Drop the cached experiment and code, which have changed; the next access reads them again."""
        vars(self).pop("_experiment", None)

    def check_code(self) -> None:
        """Check that no command has replaced the run's code since the experiment was read. The caller holds the run's
        lock.

        Raises:
            UserError: another command has.
        """
        _ = self._experiment
        if self.replaced != self._replaced:
            raise errors.UserError("another command has just replaced the run's code", self.where, "try again")

    @property
    def replaced(self) -> list[dict[str, Any]]:
        """What `raytrain resume --experiment` has replaced of its code, the oldest first: `step`, the last one of the
        old code; `changed`, the names of the files; `file`, the new experiment file's path."""
        return copies.replaced(self.path)

    @property
    def checkpoints(self) -> Path:
        """The folder of checkpoints."""
        return self.path / "checkpoints"

    @property
    def summary(self) -> dict[str, Any]:
        """The outcome: `status`, `val_accuracy` (the best), `epochs`, `steps`, `seconds`, `baseline` (what a constant
        answer scores, by metric) and more; `status` is `unfinished` while there is none."""
        found = known_json(self.path / "summary.json")
        return found if _is_summary(found) else {"status": "unfinished"}

    @property
    def environment(self) -> dict[str, Any]:
        """Versions, devices, the data's fingerprint and how the run was started."""
        how = "put it back from a copy, or train again with `raytrain train " + f"{self.where}/experiment.json`"
        found = needed_json(self.path / "environment.json", how)
        if not isinstance(found.get("data_fingerprint"), dict):
            raise errors.UserError("this file has no data_fingerprint", self.path / "environment.json", how)
        return found

    def metrics(self, kind: str = "epoch") -> pa.Table:
        """Return the rows of `metrics.jsonl` of one kind as an Arrow table: `epoch`, `step`, or `validation` for those
        inside epochs."""
        import pyarrow as pa  # `import raytrain` has no time for it

        file = self.path / "metrics.jsonl"
        rows, damaged = rows_and_damage(file, kind)
        if damaged:
            warnings.warn(f"{file}: {damaged} damaged lines are left out", stacklevel=2)
        names = dict.fromkeys(name for row in rows for name in row)  # a row may have fields that the first row lacks
        return pa.table({name: [row.get(name) for row in rows] for name in names})

    def checkpoint(self, which: str = "best") -> Path:
        """Return the best or the last checkpoint, verified; if it was removed, the newest checkpoint that verifies.

        Raises:
            UserError: there is none, or it does not verify.
        """
        if which not in ("best", "last"):
            raise errors.UserError(f"there is no checkpoint called {which!r}", self.where, "take best or last")
        there = storage.Storage(self.url) if self.url else None
        with contextlib.suppress(OSError, ValueError):
            named = known_json(self.path / f"{which}.json").get("checkpoint")
            named = self.checkpoints / Path(str(named or "none")).name
            if there and named.name in there.committed():
                return there.fetch(named.name, self.checkpoints)
            if not there and named.is_dir():
                layout.verify(named)
                return named
        if there:
            found = storage.answered(there.url, lambda: next(there.verified(self.checkpoints), None))
        else:
            found = layout.newest(self.checkpoints)
        if found is None:
            self.check_kept()
            raise self._no_checkpoint()
        return found

    def check_kept(self) -> None:
        """Check that this is no trial that ended, for one without checkpoints.

        Raises:
            UserError: it is; its sweep has removed them.
        """
        if (self.path / "trial.json").is_file() and self.summary["status"] == "completed":
            raise errors.UserError(
                "a sweep keeps the weights of its best trial alone, or of the best --keep N",
                self.where,
                f"train this one again with {errors.command('train', self.path / 'experiment.json')}",
            )

    def _no_checkpoint(self) -> errors.UserError:
        """Return the error for a run without a checkpoint to read."""
        if held(self.path):
            return errors.UserError(
                "the run is going on and has no checkpoint yet", self.where, "wait for its first one"
            )
        ended = self.summary["status"] == "completed" or self.url or (self.path / "trial.json").is_file()
        if not ended and not any(self.checkpoints.glob("step_*")):
            how = f"{errors.command('resume', self.where)} goes on from the start"
            return errors.UserError("the run ended before its first checkpoint", self.where, how)
        how = "train it again, or restore its checkpoints folder"
        return errors.UserError("the run has no checkpoint that verifies", self.where, how)

    def model(self, which: str = "best") -> nn.Module:
        """Return the plain module with the best (or last) weights, in evaluation mode, on the CPU."""
        from raytrain.checkpoint import checkpoints  # torch: `import raytrain` has no time for it

        path = self.checkpoint(which)
        state = layout.load_state(path)
        module = self.experiment.model.build(tuple(state["sample"]), len(state["classes"]))
        module.load_state_dict(checkpoints.load_model(path))
        return module.eval()

    def classes(self, which: str = "best") -> tuple[str, ...]:
        """Return the classes' names, in the order of the model's outputs."""

        return tuple(layout.load_state(self.checkpoint(which))["classes"])


def _is_summary(found: dict[str, Any]) -> bool:
    """Return whether the content of a summary.json is valid; a damaged summary counts as missing."""
    words = ("status", "monitor", "direction", "device", "precision", "error", "stopped_because")
    others = {name: value for name, value in found.items() if name not in (*words, "precision_milliseconds")}
    floor, directions = others.pop("baseline", {}), others.pop("directions", {})
    scores = isinstance(floor, dict) and all(isinstance(value, int | float) for value in floor.values())
    scores = scores and isinstance(directions, dict) and {*directions.values()} <= {"min", "max"}
    numbers = scores and all(value is None or isinstance(value, int | float) for value in others.values())
    counts = all(type(found[name]) is int for name in ("epochs", "steps") if name in found)
    texts = all(isinstance(found[name], str) for name in words if name in found)
    complete = "status" in found and ("epochs" in found or found["status"] != "completed")
    return complete and numbers and counts and texts and isinstance(found.get("retry", False), bool)


def no_way_back(run: Path | str, why: str) -> errors.UserError:
    """Return the error for a run whose checkpoints are all damaged, or lack the metrics before them."""
    return errors.UserError(
        f"the run has no checkpoint to go on from: {why}",
        run,
        "put metrics.jsonl and checkpoints back from a copy, or train again with "
        + errors.command("train", f"{run}/experiment.json"),
    )


def _not_a_run(path: Path | str, meant: Iterable[object] = ()) -> errors.UserError:
    how = f"{errors.did_you_mean(meant)}give a folder that `raytrain train` made"
    return errors.UserError("no run there (it has no experiment.json)", path, how)


def of_folds(described: dict[str, Any]) -> bool:
    """Return whether a sweep, as its `sweep.json` has it, is a cross-validation."""
    sweep = described.get("sweep")
    axes = sweep.get("axes") if isinstance(sweep, dict) else None
    return isinstance(axes, list) and [axis.get("path") for axis in axes if isinstance(axis, dict)] == [AXIS]


def _a_sweep_s_runs(path: Path | str, described: dict[str, Any]) -> errors.UserError:
    if of_folds(described):  # whose `best` is the fold with the easiest samples
        what = "this is a cross-validation, and each of its folds is a run"
        return errors.UserError(what, path, f"use {path}/trials/0000, or another fold")
    best = described.get("best")
    number, how = (best, "the best one") if isinstance(best, int) else (0, "or another one")
    what = "this is a sweep, and each of its trials is a run"
    return errors.UserError(what, path, f"use {path}/trials/{number:04d}, {how}")
