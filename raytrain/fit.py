"""The driver: plan, start Ray, hand the loop to Ray Train's workers, watch, and say how it ended.

(DESIGN's `train.py`; as a module of that name it would hide the function `raytrain.train`.)
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import platform
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from raytrain import __version__, config, errors, experiment, plan
from raytrain.data import Index
from raytrain.experiment import Experiment
from raytrain.plan import Plan, Resources
from raytrain.run import Lock, Run, check_writable, create, read_metrics

_RESUMABLE = ("epochs", "micro_batch_size", "scaling", "checkpoint", "data.root", "data.mode")


class Interrupted(Exception):
    """A run that was asked to stop, and did, with a checkpoint where a step was done.

    Attributes:
        run: the run.
        signal: the signal that asked, such as 2 for SIGINT.
    """

    def __init__(self, run: Run, signal_number: int):
        super().__init__(f"interrupted by signal {signal_number}")
        self.run, self.signal = run, signal_number


class RunFailed(Exception):
    """A run that started and did not end well.

    Attributes:
        run: its directory.
        rank: the rank whose error came first, or None where no rank could say.
    """

    def __init__(self, message: str, run: Path, rank: int | None):
        super().__init__(message)
        self.run, self.rank = run, rank


class Observer:
    """Sees a run from the driver; the base class looks away."""

    def planned(self, plan: Plan) -> None:
        """The plan, before anything starts."""

    def status(self, text: str) -> None:
        """What goes on while no step is done."""

    def started(self, run: Run, plan: Plan, rows: list[dict[str, Any]]) -> None:
        """Workers are about to train; `rows` are the metrics of a resumed run so far."""

    def rows(self, rows: list[dict[str, Any]]) -> None:
        """New rows of metrics.jsonl; an empty list now and then, to keep the clock going."""

    def finished(self, run: Run) -> None:
        """The run has ended and its summary is there."""

    def close(self) -> None:
        """Whatever happened, nothing more will."""


@contextlib.contextmanager
def watched(observer: Observer) -> Iterator[Observer]:
    """Closes the observer at the end, however that comes about."""
    try:
        yield observer
    finally:
        observer.close()


@dataclass(frozen=True)
class Options:
    """Where a run is kept and what it runs on."""

    out: str = "runs"
    """Folder in which the run's directory is made; on a cluster, one that all nodes share."""
    name: str | None = None
    """Name of the run's directory; by default the experiment file's name and a number."""
    address: str | None = None
    """Address of a running Ray cluster, or `auto`; by default RAY_ADDRESS, or else this machine alone."""
    dry_run: bool = False
    """Print the plan and stop."""
    verbose: bool = False
    """Show Ray's own messages and the workers' output."""


def train(
    value: Experiment, options: Options, observer: Observer, source: Path | None, command_started: float
) -> Run | None:
    """Trains an experiment in a new run directory.

    Args:
        source: the Python file that the experiment came from, of which the run keeps a copy.
        command_started: Unix time at which the user's command began.

    Returns:
        The run, or None after a dry run.

    Raises:
        UserError: the experiment cannot be run; nothing has been started.
        RunFailed: it started and failed.
    """
    check_writable(options.out, options.name)
    stem = source.stem if source else "run"
    if source and source.name == "experiment.py" and (source.parent / "experiment.json").is_file():
        stem = source.parent.name.rpartition("-")[0] or source.parent.name
    shown = str(Path(options.out) / (options.name or f"{stem}-N"))
    with _cluster(options) as cluster:
        planned = plan.make(value, cluster.resources, shown)
        if options.dry_run:
            observer.planned(planned)
            return None
        path = create(options.out, options.name, stem)
        planned = replace(planned, run=str(path))
        observer.planned(planned)
        experiment.save(value, path / "experiment.json")
        if source:
            shutil.copyfile(source, path / "experiment.py")
        _write_environment(path, planned)
        try:
            return _run(path, planned, cluster, options, observer, command_started)
        except errors.UserError:  # found while the data was read: no run has begun
            shutil.rmtree(path, ignore_errors=True)
            raise


def resume(run: Run, value: Experiment, options: Options, observer: Observer, command_started: float) -> Run:
    """Goes on with a run from its newest checkpoint.

    Args:
        value: the run's experiment, perhaps with other epochs, scaling, checkpoint or data.root.

    Raises:
        UserError: it is complete or still running, its data has changed, or `value` changes what must stay.
        RunFailed: it failed again.
    """
    changed = [
        path
        for path, new in config.leaves(value).items()
        if new != config.leaves(run.experiment).get(path)
        and not any(path == kept or path.startswith(f"{kept}.") for kept in _RESUMABLE)
    ]
    if changed:
        raise errors.changed_on_resume(changed, run.path)
    if run.summary["status"] == "completed" and run.summary["epochs"] >= value.epochs:
        raise errors.already_done(run.path, run.summary["epochs"])
    Lock(run.path, wait=10).release()
    with _cluster(options) as cluster:
        planned = plan.make(value, cluster.resources, str(run.path))
        began_with = run.environment["data_fingerprint"]
        if {split: index.fingerprint() for split, index in planned.indices.items()} != began_with:
            raise errors.data_changed(run.path)
        observer.planned(planned)
        if options.dry_run:
            return run
        experiment.save(value, run.path / "experiment.json")
        return _run(run.path, planned, cluster, options, observer, command_started)


def _run(
    path: Path, planned: Plan, cluster: _cluster, options: Options, observer: Observer, command_started: float
) -> Run:
    """Everything from the start of Ray to the summary."""
    run = Run(path)
    logs = path / "logs"
    logs.mkdir(exist_ok=True)
    for leftover in (*logs.glob("rank_*.json"), path / "stop", path / "summary.json"):
        leftover.unlink(missing_ok=True)
    with _Interrupts(path) as interrupts:
        try:
            observer.status("starting Ray")
            cluster.start()
            _ship_experiment_file()
            cluster.check_shared(path)
            interrupts.stop_if_asked()
            observer.status("reading the data")
            job = _prepare(planned, path, options, command_started)
            interrupts.stop_if_asked()
            observer.status("starting the workers")
            before, offset = read_metrics(path / "metrics.jsonl")
            observer.started(run, planned, before)
            tail = _Tail(path / "metrics.jsonl", offset, observer)
            if planned.experiment.scaling.workers == 0:
                with tail.in_background():
                    _work(job)
            else:
                _watch(job, planned, tail, interrupts, can_leave=not cluster.found)
        except _Leave:
            _summarise(path, planned, "interrupted")
        except errors.UserError:
            _summarise(path, planned, "failed")
            raise
        except RunFailed as failure:
            _summarise(path, planned, "failed", str(failure))
            raise
        finally:
            (path / "stop").unlink(missing_ok=True)
            cluster.keep_logs(logs)
        if not (path / "summary.json").is_file():
            raise RunFailed("the workers ended without a summary", path, None)
        observer.finished(run)
    if run.summary["status"] == "interrupted":
        raise Interrupted(run, interrupts.signal)
    return run


def _ship_experiment_file() -> None:
    """Lets classes of the experiment file travel to the workers by value: they have no such module to import."""
    from ray import cloudpickle

    if config.EXPERIMENT_MODULE in sys.modules:
        cloudpickle.register_pickle_by_value(sys.modules[config.EXPERIMENT_MODULE])


@dataclass
class _Job:
    """What every worker gets. Large things are references into the object store."""

    experiment: Experiment
    run: Path
    indices: Any
    images: dict[str, Any]
    weights: Any
    command_started: float
    own_output: bool


def _prepare(planned: Plan, path: Path, options: Options, command_started: float) -> _Job:
    """Reads the data into shared memory (or checks it, for streaming) and puts everything into the object store."""
    import ray

    from raytrain.data import reader

    data, indices, images, skipped = planned.experiment.data, {}, {}, {}
    for split in ("train", "val"):
        index, bad = planned.indices[split], []
        if planned.mode == "resident":
            array, index, bad = reader.pack(data, index)
            images[split] = ray.put(array)
            del array
        elif data.on_bad_sample == "skip":
            index, bad = reader.drop_bad(data, index)
        indices[split], skipped[split] = index, bad
    if any(skipped.values()):
        report = {
            split: [{"path": sample, "reason": reason} for sample, reason in bad] for split, bad in skipped.items()
        }
        (path / "skipped.json").write_text(json.dumps(report, indent=2))
    return _Job(
        planned.experiment,
        path.absolute(),
        ray.put(indices),
        images,
        _pretrained(planned, path),
        command_started,
        own_output=not options.verbose and planned.experiment.scaling.workers > 0,
    )


def _pretrained(planned: Plan, path: Path) -> Any:
    """The initial weights of a model that brings its own; a resumed run has its checkpoint."""
    import ray
    import torch

    from raytrain import order
    from raytrain.models import Model

    e, train_index = planned.experiment, planned.indices["train"]
    if type(e.model).load is Model.load or any((path / "checkpoints").glob("step_*/manifest.json")):
        return None
    torch.manual_seed(order.key(e.seed, 0) >> 1)
    module = e.model.build(e.data.image(train_index), len(train_index.classes))
    e.model.load(module)
    return ray.put(module.state_dict())


def _work_on_cluster(settings: dict[str, Any]) -> None:
    _work(settings["job"])


def _work(job: _Job) -> None:
    """One worker, from its first line to its last."""
    import ray
    import torch
    import torch.distributed as dist

    from raytrain.data.reader import Resident, Streaming
    from raytrain.loop import Place, Worker

    if dist.is_initialized():
        from ray.train.torch import get_device

        device = get_device()
        place = Place(dist.get_rank(), dist.get_world_size(), device if isinstance(device, torch.device) else device[0])
    else:
        place = Place(0, 1, torch.device("cuda:0" if job.experiment.scaling.gpus_per_worker else "cpu"))
    with _recorded(job, place.rank):
        lock = Lock(job.run, wait=60) if place.rank == 0 else None
        indices: dict[str, Index] = ray.get(job.indices)
        readers = {
            split: Resident(ray.get(job.images[split]))
            if job.images
            else Streaming(job.experiment.data, index, ray.put(index))
            for split, index in indices.items()
        }
        weights: Any = ray.get(job.weights) if job.weights is not None else None
        Worker(job.experiment, job.run, indices, readers, weights, place, job.command_started).fit()
        if lock:
            lock.release()


@contextlib.contextmanager
def _recorded(job: _Job, rank: int) -> Iterator[None]:
    """Sends this process's output to the run's logs, and leaves a record there of an error, with its time."""
    if job.own_output:
        descriptor = os.open(job.run / "logs" / f"rank_{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
    try:
        yield
    except BaseException as error:
        traceback.print_exc()
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "site-packages" not in frame.filename]
        record = {
            "time": time.time(),
            "rank": rank,
            "error": str(error) if isinstance(error, errors.UserError) else f"{type(error).__name__}: {error}",
            "at": f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "",
            "traceback": traceback.format_exc(),
        }
        (job.run / "logs" / f"rank_{rank}.json").write_text(json.dumps(record))
        raise


def _watch(job: _Job, planned: Plan, tail: _Tail, interrupts: _Interrupts, can_leave: bool) -> None:
    """Runs Ray's TorchTrainer in a side thread, and shows the metrics file as it grows."""
    # Ray's trainer would take SIGINT for itself in the main thread; in a side thread it leaves signals to us.
    outcome: list[BaseException | None] = []
    thread = threading.Thread(target=lambda: outcome.append(_fit(job, planned)), daemon=True, name="ray-train")
    thread.start()
    while thread.is_alive():
        thread.join(0.1)
        tail.poll()
        if can_leave and not tail.seen:
            interrupts.stop_if_asked()  # no step is done: there is nothing to save
    tail.poll()
    if outcome[0] is not None:
        raise _failure(outcome[0], job.run)


class _Tail:
    """Follows the metrics file for the observer."""

    def __init__(self, path: Path, offset: int, observer: Observer):
        self.path, self.offset, self.observer = path, offset, observer
        self.seen = False

    def poll(self) -> None:
        """Shows what has come since the last call."""
        size = self.path.stat().st_size if self.path.is_file() else 0
        self.offset = min(self.offset, size)  # a resumed run first cuts the file back to its checkpoint
        rows, self.offset = read_metrics(self.path, self.offset)
        self.seen = self.seen or bool(rows)
        self.observer.rows(rows)

    @contextlib.contextmanager
    def in_background(self) -> Iterator[None]:
        """Polls in a side thread."""
        done = threading.Event()

        def follow() -> None:
            while not done.wait(0.1):
                self.poll()

        thread = threading.Thread(target=follow, daemon=True, name="metrics")
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()
            self.poll()


def _fit(job: _Job, planned: Plan) -> BaseException | None:
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    scaling = planned.experiment.scaling
    resources = {"CPU": scaling.cpus_per_worker or 1.0}
    if scaling.gpus_per_worker:
        resources["GPU"] = scaling.gpus_per_worker
    try:
        TorchTrainer(
            _work_on_cluster,
            train_loop_config={"job": job},
            scaling_config=ScalingConfig(
                num_workers=scaling.workers, use_gpu=bool(scaling.gpus_per_worker), resources_per_worker=resources
            ),
            torch_config=TorchConfig(backend="nccl" if scaling.gpus_per_worker else "gloo"),
            run_config=RunConfig(name=f"train-{time.time_ns()}", storage_path=str(job.run / "logs")),
        ).fit()
    except BaseException as error:
        return error
    return None


def _failure(error: BaseException, path: Path) -> RunFailed:
    """The root cause: the rank whose error came first, not those that then missed it."""
    records = [json.loads(file.read_text()) for file in (path / "logs").glob("rank_*.json")]
    if records:
        first = min(records, key=lambda record: record["time"])
        where = f" ({first['at']})" if first["at"] else ""
        return RunFailed(f"rank {first['rank']}: {first['error']}{where}", path, first["rank"])
    failures = getattr(error, "worker_failures", None) or {}
    for rank, failure in sorted(failures.items()):
        return RunFailed(f"rank {rank}: {_last_line(failure)}", path, rank)
    return RunFailed(_last_line(error), path, None)


def _last_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1] if lines else ''}"


class _Leave(Exception):
    """A request to stop that came before there was anything to save."""


class _Interrupts:
    """SIGINT and SIGTERM: the first asks the workers for a checkpoint and an end, the second ends at once."""

    def __init__(self, path: Path):
        self.path, self.signal = path, 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> _Interrupts:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def stop_if_asked(self) -> None:
        """Raises where a request has come already."""
        if self.signal:
            raise _Leave

    def _handle(self, number: int, _frame: object) -> None:
        if self.signal:
            raise KeyboardInterrupt
        self.signal = number
        (self.path / "stop").touch()


class _cluster(contextlib.AbstractContextManager["_cluster"]):
    """The Ray cluster of a run: one that is there already, or one of our own on this machine."""

    def __init__(self, options: Options):
        ray = sys.modules.get("ray")
        self.address = options.address or os.environ.get("RAY_ADDRESS")
        self.verbose = options.verbose
        self.found = ray is not None and ray.is_initialized()
        self.own = not self.found and not self.address
        if self.address and not self.found:
            self._connect()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def resources(self) -> Resources:
        """What there is to train on; for a cluster of our own, what this machine will give it."""
        if self.own:
            return plan.local_resources()
        import ray

        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        total = ray.cluster_resources()
        return Resources(
            total.get("CPU", 0),
            total.get("GPU", 0),
            len(nodes),
            int(min(node.get("memory", 0) for node in nodes)),
            self.address or "the running Ray",
        )

    def start(self) -> None:
        """Starts a cluster of our own, if that is what the run uses."""
        if self.own:
            import ray

            _quieten(self.verbose)
            ray.init(
                address="local",
                num_cpus=int(plan.local_resources().cpus),
                include_dashboard=False,
                log_to_driver=self.verbose,
                logging_level=logging.INFO if self.verbose else logging.ERROR,
            )
            self._protect_token()

    def stop(self) -> None:
        """Ends what `start` started, or the connection."""
        ray = sys.modules.get("ray")
        if not self.found and ray is not None:
            ray.shutdown()

    def check_shared(self, path: Path) -> None:
        """Checks that every node of a cluster sees the run's directory.

        Raises:
            UserError: one of them does not.
        """
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        nodes = [node for node in ray.nodes() if node["Alive"]]
        if len(nodes) < 2:
            return
        sees: Any = ray.remote(num_cpus=0)(os.path.isfile)
        file = str(path.absolute() / "experiment.json")
        seen = ray.get(
            [
                sees.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)).remote(
                    file
                )
                for node in nodes
            ]
        )
        blind = [node["NodeManagerHostname"] for node, there in zip(nodes, seen, strict=True) if not there]
        if blind:
            raise errors.not_writable(
                path, f"the nodes {', '.join(blind[:4])} do not see it; it must be on storage that all nodes share"
            )

    def keep_logs(self, logs: Path) -> None:
        """Copies the session's logs into the run's directory."""
        import ray

        if not self.own or not ray.is_initialized():
            return
        session = Path(ray._private.worker.global_worker.node.get_logs_dir_path())  # type: ignore[union-attr]
        with contextlib.suppress(OSError, shutil.Error):
            shutil.copytree(session, logs / "ray", dirs_exist_ok=True, symlinks=True)

    def _connect(self) -> None:
        import ray

        _quieten(self.verbose)
        try:
            ray.init(
                address=self.address,
                log_to_driver=self.verbose,
                logging_level=logging.INFO if self.verbose else logging.CRITICAL,
            )
        except (ConnectionError, ValueError, RuntimeError, OSError) as error:
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise errors.no_cluster(str(self.address), reason) from None

    def _protect_token(self) -> None:
        """Ray writes the cluster's token readable for all who may read the home directory."""
        token = Path.home() / ".ray" / "auth_token"
        if token.is_file():
            token.chmod(0o600)


def _quieten(verbose: bool) -> None:
    """Public settings of Ray, before it starts: short polls, no usage report, and its messages in files alone."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.2")
    os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_DATA_DISABLE_PROGRESS_BARS", "1")
    if not verbose:
        import ray.data
        import ray.train.torch  # noqa: F401  (both set their loggers up when they are imported)

        for name in ("ray", "ray.data", "ray.train"):
            logging.getLogger(name).setLevel(logging.CRITICAL)


def _write_environment(path: Path, planned: Plan) -> None:
    import ray
    import torch

    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    values = {
        "raytrain": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "ray": ray.__version__,
        "platform": platform.platform(),
        "git_commit": commit or None,
        "command": sys.argv,
        "resources": dataclasses.asdict(planned.resources),
        "data_fingerprint": {split: index.fingerprint() for split, index in planned.indices.items()},
    }
    (path / "environment.json").write_text(json.dumps(values, indent=2) + "\n")


def _summarise(path: Path, planned: Plan, status: str, error: str | None = None) -> None:
    """A summary for a run whose workers could not write one."""
    if not (path / "summary.json").is_file():
        rows = read_metrics(path / "metrics.jsonl")[0]
        last = rows[-1] if rows else {}
        values = {
            "status": status,
            "epochs": max((row["epoch"] for row in rows if row["kind"] == "epoch"), default=0),
            "steps": last.get("step", 0),
            "workers": planned.experiment.scaling.workers,
        }
        (path / "summary.json").write_text(json.dumps(values | ({"error": error} if error else {}), indent=2))
