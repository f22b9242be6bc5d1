"""The driver of a sweep: plan it, read the data once, let Ray Tune run the trials, and say which was best.

The state of a sweep is in its trials' directories alone: each is a run, with a record of its values and of what became
of it. Tune keeps none of it. A sweep that goes on proposes the trials that were begun again, in the same order; those
that had ended stay as they are, the others go on from their checkpoints.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import shutil
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from raytrain import config, errors, experiment_file
from raytrain.checkpoint import location
from raytrain.driver import environment, fit, plan, reading
from raytrain.driver.endings import Interrupted, RunFailed
from raytrain.driver.interrupts import Interrupts, Leave
from raytrain.driver.options import Options
from raytrain.driver.ray_internals import ray_train
from raytrain.driver.room import why_no_room
from raytrain.driver.session import Session
from raytrain.driver.skipped import write_skipped
from raytrain.experiment import Scaling
from raytrain.files import known_json, write_atomically
from raytrain.loggers import Logger, RunInfo
from raytrain.report.sweep import write_csv, write_plots
from raytrain.run.begin import begin, check_writable
from raytrain.run.lock import Lock
from raytrain.sweep import record
from raytrain.sweep.front import pareto_front
from raytrain.sweep.search import crossed
from raytrain.sweep.sweep import Sweep, impossible, load, to_dict
from raytrain.sweep.sweep_plan import SweepPlan, make
from raytrain.sweep.sweep_run import SweepRun
from raytrain.sweep.trial_loggers import TrialLoggers
from raytrain.user_code import copies, places, sources

_MAY_CHANGE = ("trials", "budget_seconds", "concurrent", "timeout_seconds", "retries", "keep")
_LEAVE_SECONDS = 5.0
"""How long trials may take to write a checkpoint after a signal; the sweep's own end takes some seconds more."""
_ROOM_SECONDS = 30.0
"""After how long without a trial under way the sweep says what it waits for."""


def sweep(
    value: Sweep, options: Options, observer: Logger, source: Path | None, command_started: float
) -> SweepRun | None:
    """Runs a sweep in a new directory.

    Args:
        source: the Python file that the sweep came from, of which the directory keeps a copy.
        command_started: Unix time at which the user's command began.

    Returns:
        The sweep, or None after a dry run.

    Raises:
        UserError: it cannot be run; nothing has been started.
        Interrupted: it was asked to stop.
        RunFailed: no trial could be run.
    """
    if location.is_url(options.out):
        raise errors.not_local(options.out)
    check_writable(options.out, options.name)
    stem = source.stem if source else "sweep"
    if source and source.name == "experiment.py" and (source.parent / "sweep.json").is_file():
        stem = source.parent.name.rpartition("-")[0] or source.parent.name
    to_dict(value)
    reason = impossible(value)
    if reason:
        raise errors.UserError("no combination of the axes' values makes an experiment", "in Sweep.axes", reason)
    with Session(options.address, options.verbose) as session:
        planned = make(value, session.resources, Path(options.out))
        shown = str(Path(options.out) / (options.name or f"{stem}-N"))
        if options.dry_run:
            observer.planned(planned.lines(shown))
            return None

        def fill(folder: Path) -> None:
            copies.keep(value, source, folder)
            _Driver(folder, planned, observer, command_started).write("running")

        path, lock = begin(options.out, options.name, stem, fill)
        with lock:
            driver = _Driver(path, planned, observer, command_started)
            observer.planned(planned.lines(str(path)))
            try:
                return driver.run(session, options)
            except errors.UserError:
                if not any(path.glob("trials/*/trial.json")):  # found while the data was read; a trial is never removed
                    shutil.rmtree(path, ignore_errors=True)
                raise


def resume(path: Path, value: Sweep, options: Options, observer: Logger, command_started: float) -> SweepRun | None:
    """Goes on with a sweep: trials that have ended stay, those under way go on from their checkpoints.

    Args:
        value: the sweep, perhaps with other trials, budget_seconds, concurrent, timeout_seconds, retries or keep.

    Raises:
        UserError: it is still running, its data has changed, or `value` changes what must stay.
        Interrupted: it was asked to stop.
        RunFailed: no trial could be run.
    """
    with Lock(path):
        kept = load(path)[0]
        before, now = to_dict(kept), to_dict(value)
        changed = [name for name in now if now[name] != before[name] and name not in (*_MAY_CHANGE, "experiment")]
        there = config.leaves(kept.experiment)
        changed += [name for name, new in config.leaves(value.experiment).items() if new != there.get(name)]
        if changed:
            raise errors.UserError(
                f"a sweep that goes on cannot change {errors.listed(changed)}",
                path,
                "start a new sweep for that (trials, budget_seconds, concurrent, timeout_seconds, "
                "retries, keep can change)",
            )
        begun = sum(1 for _ in path.glob("trials/*/trial.json"))
        if begun > value.count:
            raise errors.UserError(
                f"{begun} trials have begun and {value.count} are asked for", path, f"take --trials {begun} or more"
            )
        with Session(options.address, options.verbose) as session:
            planned = make(value, session.resources, path)
            if SweepRun(path).answer.get("data_fingerprint") != planned.fingerprints:
                raise errors.data_changed(path)
            observer.planned(planned.lines(str(path)))
            if options.dry_run:
                return None
            driver = _Driver(path, planned, observer, command_started)
            if all(
                (record.read(record.folder(path, n)) or {}).get("status") in record.ENDED for n in range(value.count)
            ):
                driver.clear()
                driver.close("completed")
                return SweepRun(path)
            return driver.run(session, options)


class _Driver:
    """One session of a sweep."""

    def __init__(self, path: Path, planned: SweepPlan, observer: Logger, command_started: float):
        self.path, self.planned, self.observer = path, planned, observer
        self.sweep, self.command_started = planned.sweep, command_started
        self.info = RunInfo(path, str(path), planned.sweep.experiment)
        self.objectives = self.sweep.objectives
        self.loggers = TrialLoggers(path, planned.variants, observer)
        self.search = self.sweep.search.start(self.sweep.axes, self.objectives, self.sweep.experiment.seed)
        self.leaving = self.hurried = False
        self.since, self.told = time.monotonic(), False
        self.ended: dict[int, dict[str, Any]] = {}
        self.scalings: dict[int, Scaling] = {}
        self.before = 0.0
        seconds = known_json(path / "sweep.json").get("seconds")
        self.before = float(seconds) if isinstance(seconds, int | float) else 0.0

    def __reduce__(self) -> tuple[type, tuple[()]]:
        """Tune pickles what it calls back, for a restoration that nobody asks it for: nothing stands for this."""
        return object, ()

    def run(self, session: Session, options: Options) -> SweepRun:
        """Everything from the start of Ray to the answer."""
        status = "interrupted"
        with Interrupts(self.path) as interrupts:
            self.clear()
            self.write("running")
            try:
                self.observer.status("starting Ray")
                with interrupts.while_ray_starts():
                    session.start(self.path / "sweep.json")
                self.observer.status("reading the data")
                shelf = self._read()
                interrupts.saves = True
                self.observer.status("starting the first trials")
                try:
                    status = self._watch(shelf, interrupts)
                finally:
                    self.loggers.close()
            except Leave:
                pass
            except KeyboardInterrupt:  # the second request
                self._give_up(self.records())
                self.observer.finish(self.info, self.write("interrupted"))
                raise Interrupted(self.path, interrupts.signal) from None
            except (errors.UserError, RunFailed):
                raise
            except Exception as error:
                with contextlib.suppress(OSError):
                    (self.path / "logs").mkdir(exist_ok=True)
                    write_atomically(self.path / "logs" / "driver.log", traceback.format_exc())
                self.write("failed")
                raise RunFailed(f"{type(error).__name__}: {error}", self.path, None) from error
            finally:
                self._sweep_up()
                session.keep_logs(self.path / "logs", isinstance(sys.exc_info()[1], Exception))
            self.close(status)
        if status == "interrupted":
            raise Interrupted(self.path, interrupts.signal)
        if all(one["objective"][0] is None for one in self.records()):
            why = self._why_nothing(status)
            sources.use(self.sweep.experiment)
            raise RunFailed(why, self.path, None, edit=places.to_edit(why))
        return SweepRun(self.path)

    def _why_nothing(self, status: str) -> str:
        """Return why no trial has a result."""
        records = self.records()
        failed = [one for one in records if one.get("error")]
        if failed:
            first = failed[0]
            return f"no trial has a result: trial {first['number']} {first['status']}: {first['error']}"
        if status == "out_of_time":
            return f"no trial ended an epoch within the budget of {self.sweep.budget_seconds:g} s"
        return "no trial has a result"

    def clear(self) -> None:
        """Removes what a driver that was killed left half done; trials that it had under way are so no longer."""
        self._sweep_up()
        for partial in (*self.path.glob(".*.[0-9]*"), *self.path.glob("trials/*/.*.[0-9]*")):
            partial.unlink(missing_ok=True)
        for number in range(self.sweep.count):
            folder = record.folder(self.path, number)
            if (record.read(folder) or {}).get("status") in ("running", "paused"):
                record.update(folder, status="interrupted")

    def _sweep_up(self) -> None:
        """Removes what is of use only while trials are under way: requests to stop, weights that others may take."""
        for request in (self.path / "stop", *self.path.glob("trials/*/stop")):
            request.unlink(missing_ok=True)
        shutil.rmtree(self.path / "pool", ignore_errors=True)

    def close(self, status: str) -> None:
        """Leaves the sweep's directory as its readers want it, and shows it."""
        self._tidy(self.records())
        answer = self.write(status)
        write_csv(self.path, answer)
        write_plots(self.path, answer)
        self.observer.finish(self.info, answer)

    def _read(self) -> dict[str, Any]:
        """The data of each variant, once for all trials."""
        import ray

        from raytrain.sweep.attempt import Data

        shelf, skipped = {}, {}
        for key, variant in self.planned.variants.items():
            found, images, bad = reading.read(variant.experiment.data, variant.indices, variant.mode)
            shelf[key] = Data(ray.put(found), images)
            skipped |= {split: samples for split, samples in bad.items() if samples}
        write_skipped(self.path, skipped)
        return shelf

    def _watch(self, shelf: dict[str, Any], interrupts: Interrupts) -> str:
        """Lets Tune run in a side thread, and looks after what the trials leave; returns how the sweep ended."""
        outcome: list[BaseException | None] = []
        tuner = self._tuner(shelf)
        if tuner is None:
            return "completed"
        thread = threading.Thread(target=lambda: outcome.append(_fit(tuner)), daemon=True, name="ray-tune")
        thread.start()
        interrupts.says = False  # into the table
        deadline = over = None  # the budget is for training: the first trial starts its clock
        leave_by = float("inf")
        self.since = time.monotonic()
        while thread.is_alive():
            thread.join(0.5)
            before = len(self.ended)
            records = self.records()
            if len(self.ended) > before:
                self.write("running")
                self._tidy(records)
            if self.sweep.experiment.loggers:
                self.loggers.update(records)
            elapsed = time.time() - self.command_started + self.before
            self.observer.trials(records, self._modes(), elapsed, self.sweep.count)
            if deadline is None and any(one["status"] != "pending" for one in records):
                deadline = time.monotonic() + (self.sweep.budget_seconds or float("inf"))
            over = over or (deadline is not None and time.monotonic() > deadline)
            if (interrupts.signal or over) and not self.leaving:
                self.leaving = True
                self.observer.status("stopping after a step, with checkpoints; Ctrl-C once more stops at once")
            if self.leaving:
                for one in records:
                    if one["status"] == "running":
                        (record.folder(self.path, one["number"]) / "stop").touch()
            self._say_what_waits(records)
            if interrupts.signal:
                leave_by = min(leave_by, time.monotonic() + _LEAVE_SECONDS)
            if time.monotonic() > leave_by:
                self._give_up(records)
                break
        records = self.records()
        if self.sweep.experiment.loggers:
            self.loggers.update(records)
        if len(self.ended) == self.sweep.count:  # also where a request to stop came too late to matter
            return "completed"
        if interrupts.signal:
            return "interrupted"
        if outcome[0] is not None:
            raise outcome[0]
        if over:
            return "out_of_time"
        return "completed"

    def _give_up(self, records: list[dict[str, Any]]) -> None:
        """Leave the trials that are still under way: they go on from their last checkpoints."""
        self.hurried = True  # for Tune, whose thread outlives a sweep that was started from Python
        for one in records:
            if one["status"] in ("running", "paused"):
                record.update(record.folder(self.path, one["number"]), status="interrupted")

    def _say_what_waits(self, records: list[dict[str, Any]]) -> None:
        """Say why no trial has been under way for a while, if trials are there."""
        waits = [one["number"] for one in records if one["number"] in self.scalings and one["number"] not in self.ended]
        if self.leaving or not waits or any(one["status"] == "running" for one in records):
            self.since = time.monotonic()
            if self.told and not self.leaving:
                self.observer.status("")
            self.told = False
        elif not self.told and time.monotonic() - self.since > _ROOM_SECONDS:
            self.told = True
            self.observer.status(f"waiting for trial {waits[0]}: {why_no_room(self.scalings[waits[0]])}")

    def _tuner(self, shelf: dict[str, Any]) -> Any:
        """Tune's tuner for the trials that have not ended; None where there are none."""
        with _quiet():
            from ray import tune
            from ray.tune.search import Searcher

            from raytrain.sweep import trial
        s = self.sweep
        scheduler = s.scheduler.build(s.axes, self.objectives[0], s.experiment.epochs)
        before = {one["number"]: one for one in self.records()}
        for number, one in before.items():
            self._repeat(number, one)
        waiting = [n for n in range(s.count) if scheduler is not None or n not in self.ended]
        if not waiting:
            return None
        driver = self
        number_key, number_of, room_key, room_for = trial.NUMBER, trial.number_of, trial.ROOM, trial.room_for

        class Proposed(Searcher):
            """Gives Tune the trials' numbers; their values are in their directories by then."""

            def __init__(self) -> None:
                super().__init__()
                self.numbers: dict[str, int] = {}

            def suggest(self, trial_id: str) -> dict[str, Any] | None:
                while waiting and not driver.leaving:
                    number = waiting.pop(0)
                    if driver.propose(number) is not None:
                        self.numbers[trial_id] = number
                        return {number_key: number, room_key: room_for(driver.scalings[number])}
                return Searcher.FINISHED  # type: ignore[return-value]

            def on_trial_complete(self, trial_id: str, result: dict | None = None, error: bool = False) -> None:
                driver.tell(self.numbers[trial_id])

            def save(self, checkpoint_path: str) -> None:
                """The directories are the state."""

            def restore(self, checkpoint_path: str) -> None:
                """The directories are the state."""

        class Watch(tune.Callback):
            """Says of each trial that ended how it did, where it could not say so itself."""

            def on_trial_complete(self, iteration: int, trials: list, trial: Any, **_: Any) -> None:
                driver.ended_by_tune(number_of(str(trial)), None)

            def on_trial_error(self, iteration: int, trials: list, trial: Any, **_: Any) -> None:
                driver.ended_by_tune(number_of(str(trial)), trial.get_pickled_error() or trial.get_error() or "")

        class Stop(tune.Stopper):
            """Ends the sweep when it was asked to."""

            def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
                return False

            def stop_all(self) -> bool:
                return driver.leaving and (driver.hurried or driver.still())

        scaling, gib = self.planned.base.experiment.scaling, s.memory_gib
        share = min(1.0, scaling.gpus_per_worker or 1.0)
        limits = trial.Limits(None if gib is None else int(gib * 2**30), s.timeout_seconds, share)
        trainable = tune.with_parameters(
            trial.Trial, folder=str(self.path.absolute()), objective=self.objectives[0], shelf=shelf, limits=limits
        )
        space: dict[str, Any] = {}
        proposed: dict[str, Any] = {"search_alg": Proposed(), "num_samples": len(waiting)}
        if s.scheduler.mutates:  # Tune takes no search beside such a scheduler: the whole population is there at once
            population = {number: values for number in waiting if (values := self.propose(number)) is not None}
            rooms = {number: room_for(self.scalings[number]) for number in population}
            space[number_key] = tune.grid_search(list(population))
            space[room_key] = tune.sample_from(lambda spec: rooms[spec["config"][number_key]])
            for axis in s.axes:
                space[axis.path] = tune.sample_from(
                    lambda spec, path=axis.path: population[spec["config"][number_key]][path]
                )
            proposed = {}
        # Where trials wait for each other, all of them must be there: what they reserve holds them back.
        together = s.scheduler.together and (max(self.planned.widths) == 1 or ray_train.shares_groups())
        alive = len(waiting) if together else self.planned.concurrent
        metric: dict[str, Any] = (
            {"metric": trial.SCORE, "mode": self.objectives[0].mode} if scheduler is not None else {}
        )
        return tune.Tuner(
            trainable,
            param_space=space,
            tune_config=tune.TuneConfig(
                **proposed,
                scheduler=scheduler,
                max_concurrent_trials=alive,
                reuse_actors=True,
                trial_name_creator=trial.name_of,
                **metric,
            ),
            run_config=tune.RunConfig(
                name="tune",
                storage_path=str((self.path / "logs").absolute()),
                stop=Stop(),
                failure_config=tune.FailureConfig(max_failures=s.retries),
                callbacks=[Watch()],
                verbose=0,
            ),
        )

    def propose(self, number: int) -> dict[str, Any] | None:
        """Return the values of a trial's axes, with its directory made ready; None for a trial that cannot be."""
        folder = record.folder(self.path, number)
        found = record.read(folder)
        if found is not None:
            if found.get("refused"):
                return None
            one = experiment_file.load(folder / "experiment.json")[0]
            self.scalings[number] = scaling = self.planned.scaling(one)
            record.update(folder, planned=found.get("planned", {}) | _reserved(scaling))
            return {axis.path: config.get(one, axis.path) for axis in self.sweep.axes}
        values = self.search.propose(number, crossed(self.sweep.axes, number))
        folder.mkdir(parents=True, exist_ok=True)
        names = {path: self._label(path, value) for path, value in values.items()}
        try:
            one = self.sweep.trial(values)
            self.scalings[number] = scaling = self.planned.scaling(one)
            read, fixed = self.planned.variants[record.reads(one)], replace(one, scaling=scaling)
            planned = plan.make(fixed, lambda: self.planned.share, str(folder), surveyed=(read.indices, read.bad))
        except errors.UserError as refused:
            record.update(folder, number=number, values=names, status="infeasible", error=str(refused), refused=True)
            self.tell(number)
            return None
        copies.link(self.path, folder)
        environment.write_environment(folder, planned)
        experiment_file.save(fit.with_threads(one, planned), folder / "experiment.json")
        decided = {"memory_format": planned.experiment.memory_format, **_reserved(scaling)}
        record.update(folder, number=number, values=names, status="pending", attempts=0, planned=decided)
        return values

    def tell(self, number: int) -> None:
        """Lets the search know what came of a trial."""
        figures = self._figures(number)
        if figures.get("status") in record.ENDED:
            found = figures["objective"]
            self.search.tell(number, None if any(value is None for value in found) else found)

    def ended_by_tune(self, number: int, error: Any) -> None:
        """Records how a trial ended: stopped by the scheduler, or with its process."""
        from raytrain.sweep import attempt

        folder = record.folder(self.path, number)
        if error is None:
            status = "interrupted" if self.leaving else "stopped"
            record.update(folder, status=status, **({} if self.leaving else {"ended": time.time()}))
            return
        text = str(error)
        if attempt.was_stuck(folder):
            status, said = "timed_out", f"no step was finished in {self.sweep.timeout_seconds:g} s"
        elif "OutOfMemory" in text:
            status, said = "infeasible", "the system ended its process for want of memory"
        else:
            last = [line.strip() for line in text.splitlines() if line.strip()]
            status, said = "crashed", f"its process died: {last[-1][:300] if last else ''}"
        record.update(folder, status=status, error=said, ended=time.time())

    def still(self) -> bool:
        """Whether no trial is under way: those that were asked to have stopped."""
        return not any(one["status"] == "running" for one in self.records())

    def records(self) -> list[dict[str, Any]]:
        """The trials so far, in their order, with their figures."""
        found = []
        for number in range(self.sweep.count):
            one = self.ended.get(number) or self._figures(number)
            if "status" not in one:  # it was not proposed yet
                continue
            if one["status"] in record.ENDED:
                self.ended[number] = one
            found.append(one)
        return found

    def _figures(self, number: int) -> dict[str, Any]:
        return record.figures(record.folder(self.path, number), self.objectives, self.sweep.experiment.epochs)

    def ranked(self, records: list[dict[str, Any]]) -> list[int]:
        """The numbers of the trials that have the first objective, best first; of those that are equal in it, the best
        in the second objective, so that no other trial beats the first one. Trials that were interrupted, as by the end
        of the budget, count as far as they came."""

        def order(one: dict[str, Any]) -> list[float]:
            signed = zip(one["objective"], self.objectives, strict=True)
            return [
                math.inf if value is None else -value if objective.mode == "max" else value
                for value, objective in signed
            ]

        through = (*record.ENDED, "interrupted")
        usable = [one for one in records if one["objective"][0] is not None and one["status"] in through]
        return [one["number"] for one in sorted(usable, key=order)]

    def answer(self, status: str) -> dict[str, Any]:
        """All of sweep.json."""
        records = self.records()
        ranked = self.ranked(records)
        points = [tuple(one["objective"]) for one in records]
        usable = set(ranked)
        front = [
            records[place]["number"]
            for place in pareto_front(points, [o.mode for o in self.objectives])
            if records[place]["number"] in usable
        ]
        return {
            "status": status,
            "sweep": to_dict(self.sweep),
            "objectives": self._modes(),
            "best": ranked[0] if ranked else None,
            "front": front,
            "seconds": time.time() - self.command_started + self.before,
            "concurrent": self.planned.concurrent,
            "data_fingerprint": self.planned.fingerprints,
            "trials": records,
        }

    def write(self, status: str) -> dict[str, Any]:
        """Writes sweep.json, and best.json where there is a best trial."""
        answer = self.answer(status)
        write_atomically(self.path / "sweep.json", json.dumps(answer, indent=2))
        if answer["best"] is not None:
            best = (record.folder(self.path, answer["best"]) / "experiment.json").read_text()
            history = record.history(self.path, answer["best"])
            if len(history) > 1:  # its own last values alone repeat no trial
                best = json.dumps(json.loads(best) | {experiment_file.HISTORY: history}, indent=2) + "\n"
            write_atomically(self.path / "best.json", best)
        return answer

    def _tidy(self, records: list[dict[str, Any]]) -> None:
        """Removes the checkpoints of trials that have ended and are not among the best."""
        kept = self.ranked(records)[: self.sweep.keep]
        for one in records:
            if one["status"] in record.ENDED and one["number"] not in kept:
                shutil.rmtree(record.folder(self.path, one["number"]) / "checkpoints", ignore_errors=True)

    def _repeat(self, number: int, found: dict[str, Any]) -> None:
        values = self._values(found)
        if values is not None:
            self.search.repeat(number, values)
        self.tell(number)

    def _values(self, found: dict[str, Any]) -> dict[str, Any] | None:
        """A trial's values as they were proposed, from their names in its record."""
        values = {}
        for axis in self.sweep.axes:
            name = found["values"].get(axis.path)
            if axis.finite is None:
                values[axis.path] = name
                continue
            names = [config.plain(label) for label in config.labels(axis.finite)]
            if name not in names:  # a scheduler has changed it
                return None
            values[axis.path] = axis.finite[names.index(name)]
        return values

    def _label(self, path: str, value: Any) -> Any:
        axis = next(axis for axis in self.sweep.axes if axis.path == path)
        return value if axis.finite is None else config.plain(config.labels(axis.finite)[axis.finite.index(value)])

    def _modes(self) -> list[dict[str, Any]]:
        return [{"name": objective.name, "mode": objective.mode} for objective in self.objectives]


def _reserved(scaling: Scaling) -> dict[str, Any]:
    """Return what each worker of a trial reserves, by the experiment's fields."""
    return {f"scaling.{name}": getattr(scaling, name) for name in ("cpus_per_worker", "gpus_per_worker")}


def _fit(tuner: Any) -> BaseException | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Tune and what its schedulers use, such as PB2's Gaussian process
            tuner.fit()
    except BaseException as error:
        return error
    return None


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Settings that Tune reads when it is imported: no logs of its own, no snapshots of a state that is not its."""
    os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")
    os.environ.setdefault("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")
    os.environ.setdefault("TUNE_GLOBAL_CHECKPOINT_S", "1000000")
    os.environ.setdefault("TUNE_DISABLE_STRICT_METRIC_CHECKING", "1")
    os.environ.setdefault("TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S", "0")
    os.environ.setdefault("TUNE_PRINT_ALL_TRIAL_ERRORS", "0")
    yield
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)
