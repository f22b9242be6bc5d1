"""The trials of a sweep: what each one tries, what became of it, and how they rank.

The state is in the trials' directories; an object of this module reads it again after a restart.
"""

from __future__ import annotations

import json
import shutil
import textwrap
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from raytrain import config, errors
from raytrain.driver import environment, gate, plan
from raytrain.driver.fit import to_keep
from raytrain.experiment import Scaling
from raytrain.files import known_json, write_atomically
from raytrain.run import copies, experiment_file
from raytrain.sweep import record, repeats, stopped
from raytrain.sweep.at_url import NodeUploads
from raytrain.sweep.front import pareto_front
from raytrain.sweep.points import decided
from raytrain.sweep.space import present
from raytrain.sweep.sweep_file import to_dict
from raytrain.sweep.sweep_plan import SweepPlan
from raytrain.user_code import json_types


class Trials:
    """The trials of a sweep, in the order of their numbers.

    Args:
        path: the sweep's directory.
        planned: its plan.
        began: Unix time at which the sweep began, without the time between its commands.

    Attributes:
        leaving: the trials are to stop, each with a checkpoint.
        hurried: Tune is not to wait for them.
        away: uploads the files of a sweep whose trials run on nodes that share no folder with the driver's.
        begun: the trials that have a record.
        scalings: the planned scaling of each trial that this object has proposed.
    """

    def __init__(self, path: Path, planned: SweepPlan, began: float):
        self.path, self.planned = path, planned
        self.sweep, self.began = planned.sweep, began
        self.objectives, self.limits = self.sweep.objectives, self.sweep.limits
        self._looks = record.Figures(self.objectives, self.sweep.experiment, self.limits)
        self.search = self.sweep.search.start(self.sweep.axes, self.objectives, self.sweep.experiment.seed)
        self._told: list[int] = []
        """Configurations in the order in which the search was told their results, if it depends on that."""
        self._noted = 0
        """How many of them records of later trials name."""
        self._over: set[int] = set()
        """Configurations whose result the search knows."""
        self._chosen: dict[int, dict[str, Any]] = {}
        """The values of configurations, where each has several trials."""
        self.leaving = self.hurried = False
        self.away: NodeUploads | None = None
        self.ended: dict[int, dict[str, Any]] = {}
        self.count = self.sweep.count
        self.begun = {int(found.parent.name) for found in path.glob("trials/[0-9]*/trial.json")}
        self._texts: dict[int, str] = {}
        """The records of ended trials as sweep.json has them."""
        self.bare: set[int] = set()
        """Ended trials whose checkpoints are removed."""
        self.scalings: dict[int, Scaling] = {}
        concurrent = known_json(path / "sweep.json").get("concurrent")
        self.concurrent = planned.concurrent  # of all sessions: they measured times and speeds
        if self.begun and isinstance(concurrent, int):
            self.concurrent = max(concurrent, planned.concurrent)

    def __reduce__(self) -> tuple[type, tuple[()]]:
        """Tune pickles its callbacks for its own restoration, which raytrain does not use: pickle an empty object
        instead."""
        return object, ()

    def clear(self) -> None:
        """Remove the leftovers of a killed driver, and mark its running trials as interrupted."""
        self.sweep_up()
        for partial in (*self.path.glob(".*.[0-9]*"), *self.path.glob("trials/*/.*.[0-9]*")):
            partial.unlink(missing_ok=True)
        for number in sorted(self.begun):
            folder = record.folder(self.path, number)
            if record.read(folder).get("status") in ("running", "paused"):
                record.update(folder, status="interrupted")
        for number in sorted(self.begun):
            stopped.conclude(self, number)

    def sweep_up(self) -> None:
        """Remove files that only running trials need: requests to stop or train on, and weights for other trials, which
        those of a population may have yet to take; and what a killed process of an ended trial was writing."""
        for request in (self.path / "stop", *self.path.glob("trials/*/stop"), *self.path.glob(f"trials/*/{gate.GO}")):
            request.unlink(missing_ok=True)
        for folder in (record.folder(self.path, number) for number in self.begun):
            if record.read(folder).get("status") in record.ENDED:
                for partial in folder.glob(".*.[0-9]*"):
                    partial.unlink(missing_ok=True)
        numbers = range(self.count if self.sweep.scheduler.mutates else 0)
        records = [record.read(record.folder(self.path, number)) for number in numbers]
        if all(one.get("status") in record.ENDED for one in records):
            shutil.rmtree(self.path / "pool", ignore_errors=True)

    def propose(self, number: int) -> dict[str, Any] | None:
        """Return the values of a trial's axes, with its directory made ready; None for a trial that cannot be.

        Raises:
            NoValues: the search has none.
        """
        folder = record.folder(self.path, number)
        found = record.read(folder)
        if found:
            if found.get("refused"):
                return None
            one = experiment_file.load(folder / "experiment.json")[0]
            if record.reads(one) not in self.planned.variants:
                raise errors.data_changed(self.path)
            self.scalings[number] = scaling = self.planned.scaling(one)
            record.update(folder, planned=found.get("planned", {}) | _reserved(scaling))
            values = self._values(found)
            if values is None:  # a scheduler has changed them
                values = {
                    axis.path: config.get(one, axis.path) for axis in self.sweep.axes if axis.path in found["values"]
                }
            return values
        configuration, repeat = divmod(number, self.sweep.repeats)
        values, told = self._choose(configuration)
        if self.sweep.repeats > 1:
            told |= {"configuration": configuration, "repeat": repeat}
        folder.mkdir(parents=True, exist_ok=True)
        names = self.labels(values)
        try:
            one = self.sweep.trial(values, repeat)
            self.scalings[number] = scaling = self.planned.scaling(one)
            read, fixed = self.planned.reading(one), replace(one, scaling=scaling)
            planned = plan.make(fixed, lambda: self.planned.share, str(folder), surveyed=(read.indices, read.bad))
        except errors.UserError as refused:
            ended = {"status": "infeasible", "error": str(refused), "refused": True}
            record.update(folder, number=number, values=names, **ended, **told)
            self.begun.add(number)
            self.tell(number)
            return None
        copies.link(self.path, folder)
        environment.write_environment(folder, planned)
        experiment_file.save(to_keep(one, planned), folder / "experiment.json")
        settled = {"memory_format": planned.experiment.memory_format, **_reserved(scaling)}
        record.update(folder, number=number, values=names, status="pending", attempts=0, planned=settled, **told)
        self.begun.add(number)
        return values

    def _choose(self, configuration: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the values of a configuration, and what the record of a trial notes of how they were chosen.

        Raises:
            NoValues: the search has none.
        """
        if configuration in self._chosen:
            return self._chosen[configuration], {}
        axes, count = self.sweep.axes, len(self._told)
        given = decided(axes, self.sweep.first, self.sweep.grid, configuration)
        values = present(axes, self.search.propose(configuration, given))
        told = {"after": self._told[self._noted : count]} if self._noted < count else {}
        self._noted = count
        if self.sweep.repeats > 1:
            self._chosen[configuration] = values
        return values, told

    def tell(self, number: int) -> None:
        """Tell the search the result of a trial, or of its configuration if all repeats of that have ended."""
        configuration, count = number // self.sweep.repeats, self.sweep.repeats
        if configuration in self._over:
            return
        repeated = range(configuration * count, (configuration + 1) * count)
        figures = [self.ended.get(one) or self._figures(one) for one in repeated]
        if all(one.get("status") in record.ENDED for one in figures):
            self._over.add(configuration)
            self.search.tell(configuration, repeats.told(figures))
            if self.search.ordered:
                self._told.append(configuration)

    def ended_by_tune(self, number: int, error: BaseException | None, why: str = "") -> None:
        """Record how a trial ended: stopped by the scheduler, or with its process, and `why` that did."""
        folder = record.folder(self.path, number)
        if error is None:
            status = "interrupted" if self.leaving else "stopped"
            record.update(folder, status=status, **({} if self.leaving else {"ended": time.time()}))
            return
        if record.was_stuck(folder):
            status, said = "timed_out", f"no step was finished in {self.sweep.timeout_seconds:g} s"
        elif "OutOfMemory" in str(error) or "ran out of memory" in why:
            status, said = "infeasible", "the system ended its process because memory ran out"
        else:
            status, said = "crashed", errors.one_line(why, 300)
        record.update(folder, status=status, error=said, ended=time.time())

    def still(self) -> bool:
        """Return whether no trial is running."""
        return not any(one["status"] == "running" for one in self.records())

    def give_up(self) -> None:
        """Give up the running trials: they will resume from their last checkpoints."""
        self.hurried = True  # for Tune, whose thread outlives a sweep that was started from Python
        for one in self.records():
            if one["status"] in ("running", "paused"):
                record.update(record.folder(self.path, one["number"]), status="interrupted")

    def let_go(self, records: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Mark trials as interrupted that waited for others when the sweep was asked to stop; return the records."""
        for one in records:
            if self.leaving and one["status"] == "paused":
                record.update(record.folder(self.path, one["number"]), status="interrupted")
        return records

    def records(self) -> list[dict[str, Any]]:
        """Return the records of the trials so far, by number, with their figures."""
        found = []
        for number in sorted(self.begun.copy()):  # Tune's thread proposes further ones meanwhile
            one = self.ended.get(number) or self._looks.of(record.folder(self.path, number))
            if "status" not in one:  # its record is damaged
                continue
            if one["status"] in record.ENDED:
                self.ended[number] = one
            found.append(one)
        return found

    def _figures(self, number: int) -> dict[str, Any]:
        sweep = self.sweep
        return record.figures(record.folder(self.path, number), self.objectives, sweep.experiment, self.limits)

    def ranked(self, records: list[dict[str, Any]]) -> list[int]:
        """Return the numbers of the trials that have the first objective, best first; of those that are equal in it,
        the best in the second objective, so that no other trial beats the first one. Trials that were interrupted, as
        by the end of the budget, count as far as they came. Those that break a constraint do not count."""

        def order(one: dict[str, Any]) -> list[float]:
            return [goal.cost(value) for goal, value in zip(self.objectives, one["objective"], strict=True)]

        through = (*record.ENDED, "interrupted")
        kept = [one for one in records if one["status"] in through and not one.get("violates")]
        usable = [one for one in kept if one["objective"][0] is not None]
        return [one["number"] for one in sorted(usable, key=order)]

    def answer(self, status: str) -> dict[str, Any]:
        """Return the content of sweep.json."""
        records, found = self.records(), dict[str, Any]()
        modes, none = [objective.mode for objective in self.objectives], (None,) * len(self.objectives)
        if self.sweep.repeats > 1:
            groups = repeats.configurations(records, self.objectives, self.sweep.repeats)
            ranked = [one.best for one in repeats.ranked(groups, self.objectives)]
            front = [groups[place].best for place in pareto_front([tuple(one.means) for one in groups], modes)]
            tests = status != "running"
            found["configurations"] = repeats.described(groups, self.objectives, self.sweep.confidence, tests)
        else:
            ranked = self.ranked(records)
            usable = set(ranked)
            points = [none if one.get("violates") else tuple(one["objective"]) for one in records]
            front = [records[place]["number"] for place in pareto_front(points, modes)]
            front = [number for number in front if number in usable]
        return {
            "status": status,
            "sweep": to_dict(self.sweep),
            "objectives": self.modes(),
            "best": ranked[0] if ranked else None,
            "front": front,
            **found,
            "seconds": time.time() - self.began,
            "concurrent": self.concurrent,
            "data_fingerprint": self.planned.fingerprints,
            "trials": records,
        }

    def write(self, status: str) -> dict[str, Any]:
        """Write sweep.json, and best.json where there is a best trial."""
        answer = self.answer(status)
        write_atomically(self.path / "sweep.json", self._text(answer))
        if answer["best"] is not None:
            folder = record.folder(self.path, answer["best"])
            best = (folder / "experiment.json").read_text()
            if record.read(folder).get("taken") and not json.loads(best).get("stages"):
                # A trial of an older version: its last values alone do not repeat it.
                best = json.dumps(json.loads(best) | {experiment_file.HISTORY: []}, indent=2) + "\n"
            write_atomically(self.path / "best.json", best)
        return answer

    def _text(self, answer: dict[str, Any]) -> str:
        """Return `json.dumps(answer, indent=2)`. The record of an ended trial is turned into text once."""
        texts = []
        for one in answer["trials"]:
            text = self._texts.get(one["number"])
            if text is None:
                text = textwrap.indent(json.dumps(one, indent=2), "    ")
                if one["number"] in self.ended:
                    self._texts[one["number"]] = text
            texts.append(text)
        assert [*answer][-1] == "trials"
        whole = json.dumps(answer | {"trials": []}, indent=2)
        return whole.removesuffix("[]\n}") + "[\n" + ",\n".join(texts) + "\n  ]\n}" if texts else whole

    def tidy(self, final: bool = False) -> None:
        """Remove the checkpoints of trials that have ended and are not among the best; none where all are to keep
        theirs, also those without a value of the objective: a fold of one class has no AUROC.

        Args:
            final: whether no trial's process is left.
        """
        if final:
            for number in sorted(self.begun):
                stopped.conclude(self, number)
        records, count = self.records(), self.sweep.repeats
        if count > 1:
            groups = repeats.configurations(records, self.objectives, count)
            kept = repeats.kept(groups, self.objectives, self.sweep.keep)
        elif self.sweep.keep < self.count:
            kept = {*self.ranked(records)[: self.sweep.keep]}
        else:
            return
        for one in records:
            number, folder = one["number"], record.folder(self.path, one["number"])
            if one["status"] not in record.ENDED or number in kept or number in self.bare:
                continue
            if final or self.away is not None or stopped.concluded(folder, one):
                self.bare.add(number)
                shutil.rmtree(folder / "checkpoints", ignore_errors=True)

    def replay(self) -> None:
        """Tell the search of the trials that earlier sessions proposed and of their results, in the order in which it
        was told then."""
        records, count, ends = self.records(), self.sweep.repeats, dict[int, float]()
        for one in records:
            for earlier in one.get("after", ()):
                self.tell(earlier * count)
            self._noted = len(self._told)
            configuration, values = one["number"] // count, self._values(one)
            ends[configuration] = max(ends.get(configuration, 0.0), one.get("ended") or 0.0)
            if values is not None and configuration not in self._chosen:
                self.search.repeat(configuration, values)
                if count > 1:
                    self._chosen[configuration] = values
            if not self.search.ordered:
                self.tell(one["number"])
        if self.search.ordered:
            for one in sorted(records, key=lambda one: ends[one["number"] // count]):
                self.tell(one["number"])

    def _values(self, found: dict[str, Any]) -> dict[str, Any] | None:
        """Return a trial's values as they were proposed, from their names in its record."""
        values = {}
        for axis in self.sweep.axes:
            if axis.path not in found["values"]:  # it did not exist beside the others
                continue
            name = found["values"][axis.path]
            if axis.finite is None:
                values[axis.path] = json_types.tuples(name)
                continue
            names = [config.plain(label) for label in config.labels(axis.finite)]
            if name not in names:  # of an older version
                names = [config.plain(label) for label in config.labels(axis.finite, older=str(name))]
            if name not in names:  # from a population
                names = [config.plain(value) for value in axis.finite]
            if name not in names:  # a scheduler has changed it
                return None
            values[axis.path] = axis.finite[names.index(name)]
        return values

    def labels(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return a trial's values as records and tables have them."""
        finite = {axis.path: axis.finite for axis in self.sweep.axes}
        found = {}
        for path, value in values.items():
            known = finite[path]
            if known is None:
                found[path] = value
            elif value in known:
                found[path] = config.plain(config.labels(known)[known.index(value)])
            else:  # what a scheduler has made
                found[path] = config.plain(value)
        return found

    def names(self, number: int) -> dict[str, Any]:
        """Return the values of a trial that was proposed, as its record has them: one that goes on has its experiment
        for values, in which other axes have changed an axis' object."""
        return record.read(record.folder(self.path, number)).get("values", {})

    def modes(self) -> list[dict[str, Any]]:
        """Return the name and the direction of each objective, as sweep.json has them."""
        return [{"name": objective.name, "mode": objective.mode} for objective in self.objectives]


def _reserved(scaling: Scaling) -> dict[str, Any]:
    """Return what each worker of a trial reserves, by the experiment's fields."""
    return {f"scaling.{name}": getattr(scaling, name) for name in ("cpus_per_worker", "gpus_per_worker")}
