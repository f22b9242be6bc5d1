"""The experiment's loggers in a sweep: each trial is a run of its own to them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from raytrain.driver.observe import Loggers
from raytrain.driver.plan import Plan
from raytrain.files import known_json
from raytrain.loggers import Held, Logger, RunInfo
from raytrain.run import experiment_file
from raytrain.run.metrics_log import read_metrics
from raytrain.sweep import record


class TrialLoggers:
    """Follows the trials of a sweep with the loggers of their experiments.

    Args:
        path: the sweep's directory.
        variants: a plan for each way of reading, by what decides it.
        observer: shows notes to the user.
    """

    def __init__(self, path: Path, variants: dict[str, Plan], observer: Logger):
        self.path, self.variants, self.observer = path, variants, observer
        self._followed: dict[int, tuple[Loggers, RunInfo]] = {}
        self._ended: set[int] = set()

    def update(self, records: list[dict[str, Any]]) -> None:
        """Follow trials that train, and close the loggers of those that have ended.

        Args:
            records: of the trials that were proposed.
        """
        for one in records:
            number, status = one["number"], one["status"]
            over = status in record.ENDED
            if number in self._ended or not (over or status == "running"):
                continue
            folder = record.folder(self.path, number)
            summary = known_json(folder / "summary.json") | {"status": status}
            if number not in self._followed:
                if not (folder / "experiment.json").is_file():  # a trial that cannot be
                    self._ended.add(number)
                    continue
                loggers, info = self._followed[number] = self._begun(number, folder)
                if over:  # it ended since the last look, or with the driver of an earlier command
                    loggers.catch_up(info, summary)
                else:
                    loggers.start(info, Held())
            if over:
                loggers, info = self._followed[number]
                loggers.end(info, summary)
                loggers.leave()
                self._ended.add(number)

    def close(self) -> None:
        """Close all loggers, and wait for that."""
        for loggers, _ in self._followed.values():
            loggers.leave()
        for loggers, _ in self._followed.values():
            loggers.close()

    def _begun(self, number: int, folder: Path) -> tuple[Loggers, RunInfo]:
        one = experiment_file.load(folder / "experiment.json")[0]
        samples = one.sampler.size(self.variants[record.reads(one)].indices["train"])
        earlier, _ = read_metrics(folder / "metrics.jsonl")
        info = RunInfo(folder, str(folder), one, -(-samples // one.batch_size), samples, earlier, sweep=self.path.name)
        return Loggers(_Notes(number, self.observer), one.loggers), info


class _Notes(Logger):
    """Passes a trial's notes on."""

    def __init__(self, number: int, observer: Logger):
        self.number, self.observer = number, observer

    def note(self, text: str) -> None:
        self.observer.note(f"trial {self.number}: {text}")
