"""The driver of a sweep: plan it, start Ray, run the trials, and report the best.

The state of a sweep is in its trials' directories alone: each is a run with a record of its values and its outcome.
Tune keeps no state. A resumed sweep proposes the same trials in the same order. Ended trials stay unchanged, and the
others resume from their checkpoints.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from raytrain import config, errors
from raytrain.checkpoint import location, remote
from raytrain.data.checks import same_data
from raytrain.driver.endings import Interrupted, RunFailed, way_on
from raytrain.driver.interrupts import Interrupts, Leave
from raytrain.driver.logs import keep_traceback
from raytrain.driver.options import Options
from raytrain.driver.session import Session
from raytrain.files import is_url, known_json, reason
from raytrain.loggers import Logger, RunInfo
from raytrain.run import copies
from raytrain.run.begin import begin, check_writable, stem_of
from raytrain.run.lock import Lock
from raytrain.sweep import record
from raytrain.sweep.at_url import NodeUploads, Uploads
from raytrain.sweep.space import Grid
from raytrain.sweep.sweep import Sweep, impossible
from raytrain.sweep.sweep_file import load, to_dict
from raytrain.sweep.sweep_plan import SweepPlan, make
from raytrain.sweep.sweep_run import SweepRun
from raytrain.sweep.trial_loggers import TrialLoggers
from raytrain.sweep.trials import Trials
from raytrain.sweep.tune_callback import Told
from raytrain.user_code import places, sources

_MAY_CHANGE = ("trials", "budget_seconds", "concurrent", "timeout_seconds", "retries", "keep", "confidence")
Report = Callable[[Path, dict[str, Any]], object]


def sweep(
    value: Sweep, options: Options, observer: Logger, source: Path | None, command_started: float, report: Report
) -> SweepRun | None:
    """Run a sweep in a new directory.

    Args:
        source: the Python file that the sweep came from, of which the directory keeps a copy.
        command_started: Unix time at which the user's command began.
        report: writes the table, and the plots of a sweep that has ended, from the sweep's directory and the content
            of its sweep.json.

    Returns:
        The sweep, or None after a dry run.

    Raises:
        UserError: it cannot be run; nothing has been started.
        Interrupted: it was asked to stop.
        RunFailed: no trial could be run.
    """
    check_writable(options.out, options.name)
    stem = stem_of(source, "sweep.json", "sweep")
    to_dict(value)
    reason = impossible(value)
    if reason:
        raise errors.UserError("no combination of the axes' values makes an experiment", "in Sweep.axes", reason)
    with Session(options.address, options.verbose) as session:
        shown = location.join(str(options.out), options.name or f"{stem}-N")
        here = is_url(options.out)
        planned = make(value, session.resources, location.mirror(shown) if here else Path(options.out))
        if here and not session.own:
            _check_one_node(planned, shown)
        if options.dry_run:
            observer.planned(planned.lines(shown))
            return None

        def fill(folder: Path) -> None:
            copies.keep(value, source, folder)
            Trials(folder, planned, command_started).write("running")

        path, lock = begin(options.out, options.name, stem, fill)
        with lock, _disk_of(path):
            driver = _Driver(path, planned, observer, command_started, report, not session.own)
            observer.planned(planned.lines(driver.info.where))
            try:
                return driver.run(session, options)
            except errors.UserError:
                if not any(path.glob("trials/*/trial.json")):  # found while the data was read; a trial is never removed
                    remote.discard(path)
                    shutil.rmtree(path, ignore_errors=True)
                raise


def resume(
    path: Path, value: Sweep, options: Options, observer: Logger, command_started: float, report: Report
) -> SweepRun | None:
    """Go on with a sweep: trials that have ended stay, those under way go on from their checkpoints.

    Args:
        value: the sweep, perhaps with other trials, budget_seconds, concurrent, timeout_seconds, retries or keep.

    Raises:
        UserError: it is still running, its data has changed, or `value` changes what must stay.
        Interrupted: it was asked to stop.
        RunFailed: no trial could be run.
    """
    where = location.url_of(path) or path
    with Lock(path), _disk_of(path):
        kept = load(path)[0]
        before, now = to_dict(kept), to_dict(value)
        changed = [name for name in now if now[name] != before[name] and name not in (*_MAY_CHANGE, "experiment")]
        there = config.leaves(kept.experiment)
        changed += [name for name, new in config.leaves(value.experiment).items() if new != there.get(name)]
        if changed:
            raise errors.UserError(
                f"a resumed sweep cannot change {errors.listed(changed)}",
                where,
                "start a new sweep for that (trials, budget_seconds, concurrent, timeout_seconds, "
                "retries, keep, confidence can change)",
            )
        begun = {int(found.parent.name) // value.repeats for found in path.glob("trials/[0-9]*/trial.json")}
        if begun and max(begun) >= value.configurations:
            what = f"{max(begun) + 1} {'configurations' if value.repeats > 1 else 'trials'} have begun"
            what += f" and {value.configurations} are asked for"
            raise errors.UserError(what, where, f"use --trials {max(begun) + 1} or more")
        if value.scheduler.mutates and value.count > kept.count:
            if all(_ended(record.read(record.folder(path, n))) for n in range(kept.count)):
                what = f"{type(value.scheduler).__name__} compares trials that train side by side, and all have ended"
                raise errors.UserError(what, where, f"start a new sweep with --trials {value.trials}")
        with Session(options.address, options.verbose) as session:
            planned = make(value, session.resources, path)
            _check_data(path, planned)
            earlier = _seconds(path)
            driver = _Driver(path, planned, observer, command_started - earlier, report, not session.own)
            found = [record.read(record.folder(path, n)) for n in range(value.count)]
            observer.planned([*planned.lines(driver.info.where), ("goes on", _begun(found))])
            if driver.trials.away is not None:
                _check_one_node(planned, driver.info.where)
            if options.dry_run:
                return None
            driver.uploads.assume()
            told = Told(path, len(value.callbacks))
            if all(_ended(one) and not told.behind(n) for n, one in enumerate(found)):
                driver.trials.clear()
                driver.trials.began = time.time() - earlier  # nothing is trained: the sweep takes no longer
                with driver.uploads:
                    best = driver.close("completed")["best"]
                return driver.outcome("completed", best)
            return driver.run(session, options)


class _Driver:
    """One session of a sweep.

    Args:
        began: as for `Trials`.
        cluster: whether the trials run on the nodes of a cluster.
    """

    def __init__(
        self,
        path: Path,
        planned: SweepPlan,
        observer: Logger,
        began: float,
        report: Report,
        cluster: bool,
    ):
        self.path, self.sweep, self.observer, self.report = path, planned.sweep, observer, report
        self.trials = Trials(path, planned, began)
        begun = self.trials.begun.copy
        self.uploads = Uploads(path, begun, observer.note)
        if cluster and self.uploads.url is not None:
            self.uploads = self.trials.away = NodeUploads(path, begun, observer.note, lambda: self.trials.bare)
        self.info = RunInfo(path, self.uploads.url or str(path), planned.sweep.experiment)

    def run(self, session: Session, options: Options) -> SweepRun:
        """Start Ray, run the trials, and write the answer."""
        status = "interrupted"
        with Interrupts(self.path) as interrupts, contextlib.ExitStack() as uploading:
            self.trials.clear()
            self.save()
            uploading.enter_context(self.uploads)
            try:
                self.observer.status("starting Ray" if session.own else "checking the cluster")
                with interrupts.while_ray_starts():
                    session.start(None if self.uploads.url else self.path / "sweep.json")
                _settle()
                from raytrain.sweep import tuning  # Ray Tune, which reads those settings when it is imported

                self.observer.status("reading the data")
                shelf = tuning.read(self.trials.planned, self.path, self.observer)
                interrupts.saves = True
                self.observer.status("starting the first trials")
                loggers = TrialLoggers(self.path, self.trials.planned.variants, self.observer)
                with contextlib.closing(loggers):
                    status = tuning.run(self.trials, shelf, loggers, self.observer, interrupts, self.save)
            except Leave:
                pass
            except KeyboardInterrupt:  # the second request
                self.trials.give_up()
                self.observer.finish(self.info, self.trials.write("interrupted"))
                raise Interrupted(self.path, interrupts.signal) from None
            except (errors.UserError, RunFailed):
                raise
            except Exception as error:
                keep_traceback(self.path)
                self.trials.write("failed")
                raise RunFailed(f"{type(error).__name__}: {error}", self.path, None) from error
            finally:
                self.trials.sweep_up()
                session.keep_logs(self.path / "logs", isinstance(sys.exc_info()[1], Exception))
            best = self.close(status)["best"]
        if status == "interrupted":
            raise Interrupted(self.path, interrupts.signal)
        return self.outcome(status, best)

    def outcome(self, status: str, best: int | None) -> SweepRun:
        """Return the sweep that has ended.

        Raises:
            RunFailed: no trial has a result.
        """
        nothing = all(one["objective"][0] is None or one.get("violates") for one in self.trials.records())
        if nothing or (best is None and self.sweep.repeats > 1):
            why, how = self._why_nothing(status)
            sources.use(self.sweep.experiment)
            raise RunFailed(why, self.path, None, edit=places.to_edit(why), how=how)
        return SweepRun(self.path)

    def _why_nothing(self, status: str) -> tuple[str, str]:
        """Return why no trial has a result, and what to do about it where to go on with the sweep does not help."""
        records, where = self.trials.records(), location.url_of(self.path) or self.path
        failed = [one for one in records if one.get("error")]
        broken = {text for one in records for text in one.get("violates", ())}
        if broken:
            why, more = f"no trial keeps the constraints: {errors.listed(sorted(broken))}", ""
            if not all(isinstance(axis, Grid) for axis in self.sweep.axes):
                again = errors.command("sweep", where, "--trials", 2 * self.sweep.configurations)
                more = f", or go on with more trials: {again}"
            return why, f"start a new sweep with other limits{more}"
        if failed:
            first = failed[0]
            return f"no trial has a result: trial {first['number']} {first['status']}: {first['error']}", ""
        if status == "out_of_time":
            budget = self.sweep.budget_seconds or 0.0
            again = errors.command("sweep", where, "--budget_seconds", f"{10 * budget:g}")
            return f"no trial ended an epoch within the budget of {budget:g} s", f"go on with a larger one: {again}"
        first = self.sweep.objectives[0]
        if first.target is not None and status == "completed":  # all trials did train, but none as far
            return (
                f"no trial reached the accuracy of {first.name}",
                "start a new sweep with a lower one, or longer trials",
            )
        return "no trial has a result", ""

    def save(self) -> None:
        """Write the files of a sweep that goes on."""
        self.report(self.path, self.trials.write("running"))
        self.trials.tidy()

    def close(self, status: str) -> dict[str, Any]:
        """Finish the sweep's directory, show the result and return it."""
        self.trials.tidy(final=True)
        answer = self.trials.write(status)
        self.report(self.path, answer)
        self.observer.finish(self.info, answer)
        return answer


def _seconds(path: Path) -> float:
    """Return how long the earlier commands of a sweep took."""
    seconds = known_json(path / "sweep.json").get("seconds")
    return float(seconds) if isinstance(seconds, int | float) else 0.0


def _ended(found: dict[str, Any]) -> bool:
    return found.get("status") in record.ENDED


def _begun(found: list[dict[str, Any]]) -> str:
    """Return what a sweep has done, by the records of its trials, which are empty of those that have not begun."""
    ended, begun = sum(map(_ended, found)), sum(map(bool, found))
    left = begun - ended
    open_ = f", {left} began and {'goes' if left == 1 else 'go'} on" if left else ""
    return f"{ended} of {len(found)} trials {'has' if ended == 1 else 'have'} ended{open_}"


def _check_data(path: Path, planned: SweepPlan) -> None:
    """Check that a sweep's data are what it began with. Other versions may plan other ways to read them as well.

    Raises:
        UserError: they have changed.
    """
    before, now = SweepRun(path).answer.get("data_fingerprint"), planned.fingerprints
    before = before if isinstance(before, dict) else {}
    both = now.keys() & before.keys()
    if not both or not all(same_data(before[key], now[key]) for key in both):
        raise errors.data_changed(path)


def _check_one_node(planned: SweepPlan, url: str) -> None:
    """Check that the workers of each trial have room on one node, whose folder of the trial they share.

    Raises:
        UserError: those of the widest trial have not.
    """
    scaling, workers = planned.base.experiment.scaling, max(planned.widths)
    cpus, gpus = scaling.cpus_per_worker or 0.0, scaling.gpus_per_worker or 0.0
    if workers > 1 and workers > max(node.room(cpus, gpus) for node in planned.share.by_node):
        what = f"the {workers} workers of a trial fit on no single node, as they must in a sweep at a URL"
        raise errors.UserError(what, url, "give a folder that all nodes share with --out DIR, or use fewer workers")


@contextlib.contextmanager
def _disk_of(path: Path) -> Iterator[None]:
    """Turn a full or read-only disk into the sweep's failure: the trials' records are there, so a resume goes on.

    Raises:
        RunFailed: the disk refuses a file of the sweep.
    """
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        if not full and error.errno != errno.EROFS:
            raise
        how = f"{'free disk space' if full else 'make it writable'}, then {way_on(path)}"
        raise RunFailed(f"{path} cannot be written: {reason(error)}", path, None, how=how) from error


def _settle() -> None:
    """Set what Tune reads: no logs, no snapshots of Tune's state, and no Ray of its own.

    Tune's thread may outlive the session of a sweep that was stopped at once, and would start or join another Ray,
    which the next sweep of this process would take for the user's.
    """
    os.environ["TUNE_DISABLE_AUTO_INIT"] = "1"
    os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")
    os.environ.setdefault("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")
    os.environ.setdefault("TUNE_GLOBAL_CHECKPOINT_S", "1000000")
    os.environ.setdefault("TUNE_DISABLE_STRICT_METRIC_CHECKING", "1")
    os.environ.setdefault("TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S", "0")
    os.environ.setdefault("TUNE_PRINT_ALL_TRIAL_ERRORS", "0")
    # Tune may have as many trials as the sweep gives it, and starts their actors together, not one after another.
    os.environ.setdefault("TUNE_MAX_PENDING_TRIALS_PG", "1000000")
