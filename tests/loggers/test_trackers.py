"""The loggers that ship: each tracker holds every row once, in one run, whatever is killed. The tracker's own library
reads it back."""

from __future__ import annotations

import csv
import gc
import importlib.util
import json
import random
import shutil
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.simulated_runs import EPOCH, VALUE, Killed, Simulated, feed_of
from helpers.wandb_server import synced

from raytrain import CSVLogger, Held, Logger, MLflow, TensorBoard, UserError, WandB, config
from raytrain.cli.flags.loggers import with_loggers
from raytrain.driver import feed as feeds
from raytrain.driver.feed import Feed
from raytrain.driver.observe import watched
from raytrain.loggers.base import RunInfo
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
    assert len(found.Tensors("experiment/text_summary")) == 1
    tables = {f"_hparams_/session_{name}_info" for name in ("start", "end")}
    assert set(found.Tags()["tensors"]) - tables == {"experiment/text_summary"}
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


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty store of MLflow, which takes seconds to make."""
    import mlflow

    file = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mlflow.MlflowClient(f"sqlite:///{file}").search_experiments()
    return file


@pytest.fixture(autouse=True)
def tracking(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    if "mlflow" in request.node.name.lower():
        shutil.copy(request.getfixturevalue("database"), tmp_path)


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
    gc.collect()  # files that a kill left open, while their warning is ignored


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
def test_tracker_that_was_lost_is_filled_from_the_run(
    tmp_path: Path, logger: Logger, read: Any, request: pytest.FixtureRequest
) -> None:
    """As where another machine goes on."""
    run = Simulated(tmp_path / "run", STEPS)
    for _ in range(2 * EPOCH):
        run.train()
    feed = feed_of(run, logger)
    feed._try(lambda: None)
    feed.logger.close()
    (tmp_path / "elsewhere").mkdir()
    if isinstance(logger, MLflow):
        shutil.copy(request.getfixturevalue("database"), tmp_path / "elsewhere")
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


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_shows_the_hyperparameters_of_runs_below_a_folder(tmp_path: Path) -> None:
    """As of a sweep's trials, one of which is resumed; read by TensorBoard's own table."""
    from tensorboard.backend.event_processing import data_provider, plugin_event_multiplexer
    from tensorboard.context import RequestContext
    from tensorboard.plugins.base_plugin import TBContext
    from tensorboard.plugins.hparams import backend_context, get_experiment, list_session_groups

    api: Any = importlib.import_module("tensorboard.plugins.hparams.api_pb2")

    for number in range(2):
        run = Simulated(tmp_path / f"{number:04}", STEPS)
        for _ in range(1 + number):
            feed = feed_of(run, TensorBoard())
            value = config.replace(VALUE, "optimizer.lr", 0.1 * 2**number)
            feed._run = replace(run.info, experiment=value)
            for _ in range(EPOCH):
                run.train()
            feed._try(lambda: None)
            feed.finish(run.info, {"status": "interrupted"})
            feed._try(feed._conclude)
            feed.logger.close()
    found = plugin_event_multiplexer.EventMultiplexer().AddRunsFromDirectory(str(tmp_path))
    found.Reload()
    context = backend_context.Context(TBContext(data_provider=data_provider.MultiplexerDataProvider(found, "")))
    whole = get_experiment.Handler(RequestContext(), context, "", api.GetExperimentRequest()).run()
    assert "epoch/val_loss" in {one.name.tag for one in whole.metric_infos}
    wanted = api.ListSessionGroupsRequest(slice_size=10, allowed_statuses=[1])  # those that ended
    wanted.col_params.extend(api.ColParams(hparam=one.name) for one in whole.hparam_infos)
    wanted.col_params.extend(api.ColParams(metric=one.name) for one in whole.metric_infos)
    groups = list_session_groups.Handler(RequestContext(), context, "", wanted).run().session_groups
    rates = {
        group.hparams["optimizer.lr"].number_value: {m.name.tag: m.training_step for m in group.metric_values}
        for group in groups
    }
    assert {rate: steps["epoch/val_loss"] for rate, steps in rates.items()} == {0.1: EPOCH, 0.2: 2 * EPOCH}
    assert all(group.hparams["model.channels"].string_value == "[4]" for group in groups)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning")
def test_mlflow_has_the_pictures_of_samples_beside_its_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here := tmp_path / "here").mkdir()
    monkeypatch.chdir(here)
    (samples := tmp_path / "run" / "samples").mkdir(parents=True)
    for epoch in (1, 2):
        (samples / f"epoch_{epoch:04d}.png").write_bytes(bytes([epoch]))
    rows = [{"kind": "epoch", "epoch": epoch, "step": 5 * epoch, "val_loss": 1.0} for epoch in (1, 2, 3)]
    for held in (Held(), Held(step=10, epoch=2)):  # a resume
        logger = MLflow()
        logger.start(RunInfo(tmp_path / "run", "run"), held)
        logger.log(rows[held.epoch :])
        logger.close()
    client, (one,) = mlflow_runs(tmp_path / "run")
    names = [file.path for file in client.list_artifacts(one.info.run_id, "samples")]
    assert names == ["samples/epoch_0001.png", "samples/epoch_0002.png"]
    assert [*here.iterdir()] == [] and one.info.artifact_uri.startswith(str(tmp_path / "mlflow-artifacts"))
    (found,) = (tmp_path / "mlflow-artifacts").rglob("epoch_0002.png")
    assert found.read_bytes() == bytes([2])


def test_mlflow_has_a_run_for_a_sweep_and_children_for_its_trials(tmp_path: Path) -> None:
    runs, feeds = [Simulated(tmp_path / f"{number:04}", STEPS) for number in range(2)], list[Feed]()
    statuses = []
    for session, run in enumerate([runs[0], runs[1], runs[1]]):
        run.train()
        run.save()
        feed = feed_of(run, MLflow())
        feed._run = replace(run.info, sweep="s")
        feed._try(lambda: None)
        feeds.append(feed)
        if session:  # the first trial is killed with its driver, and the second one resumed
            feed.finish(run.info, {"status": "completed"})
            feed._try(feed._conclude)
            feed.logger.close()
        statuses.append({one.info.run_name: one.info.status for one in mlflow_runs(run.path)[1]})
    assert [one["s"] for one in statuses] == ["RUNNING", "RUNNING", "RUNNING"]
    feeds[0].logger.close()
    ends = {one.info.run_name: one for one in mlflow_runs(tmp_path / "0000")[1]}
    assert {name: one.info.status for name, one in ends.items()} == {
        "s": "FINISHED",
        "s/0000": "FAILED",
        "s/0001": "FINISHED",
    }
    parent = ends.pop("s").info.run_id
    assert {one.data.tags["mlflow.parentRunId"] for one in ends.values()} == {parent}
    client, _ = mlflow_runs(tmp_path / "0000")
    for run in runs:
        history = client.get_metric_history(ends[f"s/{run.path.name}"].info.run_id, "step/loss")
        assert [point.step for point in history] == list(range(1, run.step + 1))


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
        feed._run = replace(run.info, experiment=replace(run.info.experiment, epochs=epochs))
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
    assert one.info.run_name == "run"


@pytest.mark.parametrize(
    ("logger", "package"), [(TensorBoard(), "tensorboardX"), (MLflow(), "mlflow"), (WandB(), "wandb")]
)
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
