"""MLflow's tracking."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import re
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from raytrain import errors
from raytrain.files import write_atomically
from raytrain.loggers.base import Held, Logger, RunInfo
from raytrain.loggers.rows import KINDS, lost, number, picture, scalars

_PARAMETERS, _METRICS, _LETTERS = 100, 1000, 6000
"""What MLflow takes at most: parameters and metrics in a request, and characters of a value."""
_STATUS = {"completed": "FINISHED", "stopped": "FINISHED", "interrupted": "KILLED", "out_of_time": "KILLED"}
"""MLflow's status of a run by raytrain's; that of all others is FAILED."""
_DATABASES = ("sqlite", "postgresql", "mysql", "mssql")
_ID, _WHERE = "raytrain.id", "raytrain.run"
"""Tags by which a resumed run is found again."""
_PARENT = "mlflow.parentRunId"
_UNDER_WAY: dict[str, int] = {}
"""How many trials of this process are under way below each parent."""
_LOCK = threading.Lock()
"""Held while a sweep's parent is found, begun or ended: each trial's logger has a thread of its own."""


@dataclass(frozen=True)
class MLflow(Logger):
    """Sends metrics, with the step, the experiment's values as parameters, and pictures of the hook SampleImages as
    artifacts to MLflow: one MLflow run for each run, however often it is resumed. Parameters stay what the run began
    with; values that a resume changes become tags. The trials of a sweep are children of one run."""

    tracking_uri: str = ""
    """Where MLflow keeps its runs, such as http://HOST:5000. By default MLFLOW_TRACKING_URI, and without that the file
    mlflow.db beside the run's directory, for all runs there; pictures are in mlflow-artifacts beside it."""
    experiment: str = "raytrain"
    """MLflow's experiment, which is made if it is missing."""

    def __post_init__(self) -> None:
        if urlsplit(self.tracking_uri).password:  # the experiment's values are stored in many places
            how = "leave it out, and set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_URI"
            raise errors.UserError(
                "tracking_uri holds a password, which all who see the run could read", "in MLflow", how
            )

    def writes_to(self) -> str:
        """Return MLflow's experiment, in which a run has one record."""
        return f"the experiment {self.experiment} of {self._given.rstrip('/') or 'mlflow.db'}"

    def check(self) -> None:
        """Check that MLflow is installed, and what it needs for a database."""
        database = not self._given or self._given.startswith(_DATABASES)
        for package in ("mlflow", *(("sqlalchemy", "alembic") if database else ())):
            if importlib.util.find_spec(package) is None:
                raise errors.extra_missing("MLflow", package, "mlflow")

    def start(self, run: RunInfo, held: Held) -> None:
        """Find the run in MLflow, or begin it, and read up to which step its metrics are there."""
        mlflow = importlib.import_module("mlflow")  # which sets the level of its messages
        logging.getLogger("mlflow").setLevel(logging.CRITICAL)  # what fails is raised as well
        uri = self._given or f"sqlite:///{run.path.parent.resolve()}/mlflow.db"
        self.state["client"], self.state["run"] = (client := mlflow.MlflowClient(tracking_uri=uri)), run.path
        experiment = self._experiment_id()
        parent = self._enter(run, experiment) if run.sweep else None
        found = self._run(run, held, experiment, parent)
        self.state["id"] = found.info.run_id
        client.update_run(found.info.run_id, status="RUNNING")
        self._parameters(run, found.data.params)
        # The newest of each metric: they are sent in the order of their steps, so those before it are there too.
        self.state["last"] = last = {metric.key: metric.step for metric in found.data.to_proto().metrics}
        kept = {
            number(row)
            for row in run.earlier
            if row["kind"] in KINDS and all(row["step"] <= last.get(name, -1) for name in _named(row))
        }
        self.log(lost(run, held, kept))

    def log(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Send the metrics that are not there."""
        metric, now = importlib.import_module("mlflow.entities").Metric, int(time.time() * 1000)
        new = [
            metric(name, value, now, row["step"])
            for row in rows
            if row["kind"] in KINDS
            for name, value in _named(row).items()
            if row["step"] > self.state["last"].get(name, -1)
        ]
        for some in _parts(new, _METRICS):
            self.state["client"].log_batch(self.state["id"], metrics=some, synchronous=True)
        for row in rows:
            if file := picture(self.state["run"], row):
                self.state["client"].log_artifact(self.state["id"], str(file), "samples")

    def finish(self, run: RunInfo, summary: Mapping[str, Any]) -> None:
        """Set MLflow's status of the run."""
        self._end(_STATUS.get(summary.get("status", ""), "FAILED"))

    def close(self) -> None:
        """Set the status of a run that failed."""
        if self.state.keys() & {"id", "parent"}:
            self._end("FAILED")

    @property
    def _given(self) -> str:
        return self.tracking_uri or os.environ.get("MLFLOW_TRACKING_URI", "")

    def _end(self, status: str) -> None:
        client, parent, own = self.state["client"], self.state.pop("parent", None), self.state.pop("id", None)
        if own:
            client.set_terminated(own, status)
        if parent:
            with _LOCK:
                _UNDER_WAY[parent] -= 1
                if not _UNDER_WAY[parent]:  # a trial that fails does not make the sweep fail
                    client.set_terminated(parent, "FINISHED" if status == "FAILED" else status)

    def _enter(self, run: RunInfo, experiment: str) -> str:
        """Return the id of the sweep's run, and count the trial as under way."""
        client, where = self.state["client"], run.path.parent
        with _LOCK:
            found = self._found_or_begun(experiment, {_ID: _kept_id(where / "mlflow-id")}, run.sweep, {})
            self.state["parent"] = parent = found.info.run_id
            _UNDER_WAY[parent] = _UNDER_WAY.get(parent, 0) + 1
            client.update_run(parent, status="RUNNING")
        return parent

    def _experiment_id(self) -> str:
        client = self.state["client"]
        # Of a database, MLflow's own place for files is `mlruns` in the working directory.
        artifacts = None if self._given else f"{self.state['run'].parent.resolve()}/mlflow-artifacts"
        experiment = client.get_experiment_by_name(self.experiment)
        if experiment is None:
            try:
                client.create_experiment(self.experiment, artifact_location=artifacts)
            except Exception:  # another run was faster
                if client.get_experiment_by_name(self.experiment) is None:
                    raise
            experiment = client.get_experiment_by_name(self.experiment)
        return experiment.experiment_id

    def _run(self, run: RunInfo, held: Held, experiment: str, parent: str | None) -> Any:
        """Return MLflow's run: that of the id in the run's directory, or on another machine that of the run's URL."""
        file = run.path / "logs" / "mlflow-id"
        tags = {_ID: _kept_id(file)} if file.is_file() or held == Held() else {_WHERE: run.where}
        sweep = {"raytrain.sweep": run.sweep, _PARENT: parent} if parent else {}
        name = f"{run.sweep}/{run.path.name}" if run.sweep else run.path.name
        return self._found_or_begun(experiment, tags, name, {_WHERE: run.where, **sweep})

    def _found_or_begun(self, experiment: str, tags: dict[str, str], name: str, more: dict[str, str]) -> Any:
        """Return MLflow's run that has a tag; if there is none, begin it with more of them."""
        client = self.state["client"]
        ((key, value),) = tags.items()
        found = client.search_runs([experiment], f"tags.`{key}` = '{_quoted(value)}'", max_results=1)
        if found:
            return client.get_run(found[0].info.run_id)
        return client.create_run(experiment, tags=tags | more, run_name=name)

    def _parameters(self, run: RunInfo, there: Mapping[str, str]) -> None:
        """Log the values of the experiment as parameters; as tags, where MLflow has another value."""
        client, entities = self.state["client"], importlib.import_module("mlflow.entities")
        values = {_name(path): str(value)[:_LETTERS] for path, value in run.values.items()}
        new = [entities.Param(name, value) for name, value in values.items() if name not in there]
        for some in _parts(new, _PARAMETERS):
            client.log_batch(self.state["id"], params=some, synchronous=True)
        for name, value in values.items():
            if there.get(name, value) != value:
                client.set_tag(self.state["id"], f"raytrain.{name}", value)


def _kept_id(file: Path) -> str:
    """Return the id in a file. A new one is written before the run is made: a kill between them leaves one run."""
    if not file.is_file():
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, uuid.uuid4().hex)
    return file.read_text()


def _named(row: Mapping[str, Any]) -> dict[str, float]:
    return {_name(name): value for name, value in scalars(row).items()}


def _name(name: str) -> str:
    """Return a name with the letters that MLflow takes."""
    return re.sub(r"[^\w\-. :/]", "_", name)


def _quoted(text: str) -> str:
    return text.replace("'", "\\'")


def _parts(items: list[Any], count: int) -> list[list[Any]]:
    return [items[first : first + count] for first in range(0, len(items), count)]
