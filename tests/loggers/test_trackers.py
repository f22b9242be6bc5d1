"""The loggers that ship: each tracker holds every row once, in one run, whatever is killed. The tracker's own library
reads it back."""

from __future__ import annotations

import csv
import importlib.util
import json
import random
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.simulated_runs import EPOCH, VALUE, Killed, Simulated, feed_of
from helpers.wandb_server import synced

from raytrain import CSVLogger, Held, Logger, MLflow, TensorBoard, UserError, WandB
from raytrain.cli.flags.loggers import with_loggers
from raytrain.driver import feed as feeds
from raytrain.driver.feed import Feed
from raytrain.driver.observe import watched
from raytrain.loggers.rows import KINDS, scalars

STEPS = 100
Points = Counter[tuple[str, int, float]]
"""How often a tracker has a metric with a step and a value, as float32."""


def wanted(run: Path) -> Points:
    """What the metrics have, each once."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if row["kind"] == "step"] == list(range(1, len(rows_of(rows, "step")) + 1))
    return Counter((name, row["step"], rounded(v)) for row in rows for name, v in scalars(row).items())


def rows_of(rows: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [row for row in rows if row["kind"] == kind]


def rounded(value: float) -> float:
    return float(np.float32(value))


def in_tensorboard(run: Path) -> Points:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(run / "logs/tensorboard"), {"scalars": 0, "tensors": 0})
    found.Reload()
    assert found.Tags()["tensors"] == ["experiment/text_summary"] and len(found.Tensors("experiment/text_summary")) == 1
    return Counter((tag, one.step, rounded(one.value)) for tag in found.Tags()["scalars"] for one in found.Scalars(tag))


def in_csv(run: Path) -> Points:
    found: Points = Counter()
    for kind in KINDS:
        file = run / "logs/csv" / f"{kind}.csv"
        for row in csv.DictReader(file.open()) if file.is_file() else ():
            numbers = {name: float(text) for name, text in row.items() if text}
            values = scalars(numbers | {"kind": kind})
            found.update((name, int(row["step"]), rounded(value)) for name, value in values.items())
    return found


def mlflow_runs(run: Path) -> tuple[Any, list[Any]]:
    import mlflow

    client = mlflow.MlflowClient(f"sqlite:///{run.parent}/mlflow.db")
    experiment = client.get_experiment_by_name("raytrain")
    assert experiment is not None
    return client, client.search_runs([experiment.experiment_id])


def in_mlflow(run: Path) -> Points:
    client, (one,) = mlflow_runs(run)
    points = [point for name in one.data.metrics for point in client.get_metric_history(one.info.run_id, name)]
    return Counter((point.key, point.step, rounded(point.value)) for point in points)


def in_wandb(run: Path) -> Points:
    found = synced(run / "logs/wandb")
    assert len(found.ids) == 1 and len({line["_step"] for line in found.lines}) == len(found.lines)
    assert found.config["optimizer"]["value"]["lr"] == 0.1 and "lr_scaling" in found.config
    assert found.summary["step/loss"] == pytest.approx(1 / found.lines[-1]["_step"])
    names = [(line["_step"], name, value) for line in found.lines for name, value in line.items()]
    return Counter((name, step, rounded(value)) for step, name, value in names if name[0] != "_")


ALL = [(TensorBoard(), in_tensorboard), (CSVLogger(), in_csv), (MLflow(), in_mlflow), (WandB(), in_wandb)]


@pytest.fixture(autouse=True)
def tracking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning")
@pytest.mark.parametrize(("logger", "read"), ALL, ids=lambda one: type(one).__name__)
def test_tracker_holds_every_row_once_through_twenty_kills(
    tmp_path: Path, logger: Logger, read: Callable[[Path], Points], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "_BATCH", 5)
    draw, run, kills = random.Random(3), Simulated(tmp_path / "run", STEPS, 3), 0
    for session in range(21):
        if session:
            run.resume(draw.choice([0, 0, 0, 1]))
        with pytest.MonkeyPatch.context() as patch:
            feed = feed_of(run, logger)
            kill(patch, feed, draw.choice(["before", "within", "behind"]), draw.randint(0, 3))
            try:
                for _ in range(draw.randint(3, 12)):
                    if run.step < STEPS:
                        run.train()
                    feed._try(lambda: None)
            except Killed:
                kills += 1
    while run.step < STEPS:
        run.train()
    run.save()
    feed = feed_of(run, logger)
    feed.finish(run.info, {"status": "completed"})
    feed._try(feed._conclude)
    feed.logger.close()
    assert kills >= 12, "the others are between two batches"
    found = read(run.path)
    assert found == wanted(run.path)
    assert {step for _, step, _ in found} == set(range(1, STEPS + 1))


def kill(patch: pytest.MonkeyPatch, feed: Feed, where: str, batches: int) -> None:
    """Kill the driver in a batch: before its rows are logged, after a part of them, or before that is noted."""
    kind, keep, left = type(feed.logger), feed._keep, [batches]
    log, start = kind.log, kind.start

    def cut_log(logger: Logger, rows: Any) -> None:
        left[0] -= 1
        if left[0] < 0 and where != "behind":
            if where == "within":
                log(logger, rows[: len(rows) // 2 + 1])
                torn(feed)
            raise Killed
        log(logger, rows)

    def cut_keep() -> None:
        if left[0] < 0:
            raise Killed
        keep()

    def started(logger: Logger, run: Any, held: Held) -> None:
        with pytest.MonkeyPatch.context() as inner:  # what `start` itself logs is no batch
            inner.setattr(kind, "log", log)
            start(logger, run, held)

    patch.setattr(kind, "log", cut_log)
    patch.setattr(kind, "start", started)
    patch.setattr(feed, "_keep", cut_keep)


def torn(feed: Feed) -> None:
    """Leave a part of the next row in a file."""
    state = feed.logger.state
    if "writer" in state:
        with open(state["file"], "ab") as file:
            file.write(b"\x20\x00\x00\x00\x00\x00\x00\x00torn")
    elif "file" in state:
        with open(state["file"], "ab") as file:
            file.write(b"\x20\x00\x00\x00\x20\x00\x01torn")
    elif "folder" in state and (state["folder"] / "step.csv").is_file():
        with open(state["folder"] / "step.csv", "a") as file:
            file.write("9")


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning")
@pytest.mark.parametrize(("logger", "read"), ALL, ids=lambda one: type(one).__name__)
def test_tracker_that_was_lost_is_filled_from_the_run(tmp_path: Path, logger: Logger, read: Any) -> None:
    """As where another machine goes on."""
    run = Simulated(tmp_path / "run", STEPS)
    for _ in range(2 * EPOCH):
        run.train()
    feed = feed_of(run, logger)
    feed._try(lambda: None)
    feed.logger.close()
    (tmp_path / "elsewhere").mkdir()
    run.path = run.path.rename(tmp_path / "elsewhere" / "run")  # where another mlflow.db begins
    run.resume()
    for folder in ("tensorboard", "csv", "wandb"):
        shutil.rmtree(run.path / "logs" / folder, ignore_errors=True)
    run.train()
    run.save()
    feed = feed_of(run, logger)
    rows = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    feed._run = replace(run.info, earlier=rows)
    feed._try(lambda: None)
    feed.logger.close()
    assert feed._held == Held(2 * EPOCH + 1, 2) and read(run.path) == wanted(run.path)


def test_columns_of_csv_files_grow(tmp_path: Path) -> None:
    run, logger = Simulated(tmp_path / "run", STEPS), CSVLogger()
    (tmp_path / "run").mkdir(exist_ok=True)
    logger.start(run.info, Held())
    logger.log([{"kind": "step", "step": 1, "epoch": 1, "loss": 0.1}])
    logger.log([{"kind": "step", "step": 2, "epoch": 1, "loss": 0.25, "norm": None, "note": 'a "b",\nc'}])
    logger.log([{"kind": "step", "step": 3, "epoch": 1}])
    text = (run.path / "logs/csv/step.csv").read_text()
    assert text == 'step,epoch,loss,norm,note\n1,1,0.1,,\n2,1,0.25,,"a ""b"",\nc"\n3,1,,,\n'
    again = CSVLogger()
    again.start(run.info, Held(2))
    assert (run.path / "logs/csv/step.csv").read_text() == text.removesuffix("3,1,,,\n")


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning")
def test_mlflow_has_parameters_a_status_and_what_a_resume_changed(tmp_path: Path) -> None:
    run = Simulated(tmp_path / "run", STEPS)
    run.train()
    run.save()
    said = {"interrupted": "KILLED", "completed": "FINISHED", None: "FAILED"}
    for epochs, (status, theirs) in enumerate(said.items(), start=1):
        if epochs == 2:  # as on another machine
            (run.path / "logs/mlflow-id").unlink()
        feed = feed_of(run, MLflow())
        feed._run = replace(run.info, experiment=replace(run.info.experiment, epochs=epochs), sweep="s")
        feed._try(lambda: None)
        assert mlflow_runs(run.path)[1][0].info.status == "RUNNING"
        if status:
            feed.finish(run.info, {"status": status})
            feed._try(feed._conclude)
        feed.logger.close()
        _, (one,) = mlflow_runs(run.path)
        assert one.info.status == theirs
    _, (one,) = mlflow_runs(run.path)
    assert one.data.params["model.channels"] and one.data.params["optimizer.lr"] == "0.1"
    assert one.data.params["epochs"] == "1" and one.data.tags["raytrain.epochs"] == "3"
    assert one.data.tags["raytrain.sweep"] == "s" and one.info.run_name == "s/run"


@pytest.mark.parametrize(("logger", "package"), [(TensorBoard(), "tensorboardX"), (MLflow(), "mlflow"), (WandB(), "wandb")])
def test_missing_package_is_said_before_anything_starts(
    logger: Logger, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == package else found(name))
    with pytest.raises(UserError, match=rf"{package}, which is not installed.*\[{type(logger).__name__.lower()}\]"):
        with watched(Logger(), (logger,)):
            raise AssertionError


def test_flag_adds_each_logger_once() -> None:
    assert with_loggers(VALUE, ["csv", "tensorboard", "csv"]).loggers == (CSVLogger(), TensorBoard())
    assert with_loggers(with_loggers(VALUE, ["csv"]), ["csv"]).loggers == (CSVLogger(),)
    with pytest.raises(UserError, match=r"did you mean.*tensorboard"):
        with_loggers(VALUE, ["tensorbord"])
    for folder in ("/tmp/x", "../x", ""):
        with pytest.raises(UserError, match="inside the run's directory"):
            TensorBoard(folder)
    with pytest.raises(UserError, match="holds a password"):
        MLflow("https://me:secret@host/")
