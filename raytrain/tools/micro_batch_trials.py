"""Trials of micro-batches: real steps in processes of their own (`probe`), one per rank.

A process that dies is an answer: its micro-batch does not fit. Ray is not used.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import selectors
import signal
import subprocess
import sys
import tempfile
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from raytrain import errors, order
from raytrain.data import Data, Index, Progressive
from raytrain.data.reader import Direct, Epoch
from raytrain.driver import plan, resources
from raytrain.driver.plan import Plan
from raytrain.experiment import Experiment
from raytrain.loggers import Logger
from raytrain.run import copies, experiment_file
from raytrain.tools.micro_batch import Found, Search, Trial, doubling, sizes
from raytrain.training import memory
from raytrain.training.precision import available, check_device

_IMAGES = 64
"""Number of samples that are read; they stand for the whole split."""


def find(
    value: Experiment, search: Search = Search(), source: Path | None = None, observer: Logger | None = None
) -> list[Found]:
    """Try micro-batches in each precision on this machine, in one process per rank of the experiment.

    Args:
        source: the Python file of the experiment's own classes, if it has any.
        observer: gets the plan and the status.

    Returns:
        The results of each precision, the most exact first.

    Raises:
        UserError: the experiment cannot be run, or every micro-batch fails for another reason than memory.
    """
    augment = replace(value.data.augment, progressive=Progressive())  # the largest images take the most memory
    value = replace(value, data=replace(value.data, augment=augment))
    planned = plan.make(replace(value, precision="fp32", micro_batch_size=None), resources.local_resources, "")
    precisions = _precisions(planned.experiment, search)
    observer = observer or Logger()
    observer.planned(planned.lines())
    with tempfile.TemporaryDirectory(prefix="raytrain-batch-") as folder:
        _prepare(Path(folder), planned, search, source)
        probes = _Probes(Path(folder), planned, observer)
        try:
            return [Found(name, probes.search(name)) for name in precisions]
        finally:  # also after an error or a signal
            probes.stop()


def _precisions(value: Experiment, search: Search) -> list[str]:
    device = torch.device("cuda" if value.scaling.gpus_per_worker else "cpu")
    for name in search.precisions:
        check_device(name, device)
        replace(value, precision=name)  # a strategy may refuse it
    usual = [name for name in available(device, value.parallel.scales) if (device.type, name) != ("cpu", "fp16")]
    return list(dict.fromkeys(search.precisions)) or usual


def _prepare(folder: Path, planned: Plan, search: Search, source: Path | None) -> None:
    """Write what the processes need: the experiment with its classes, some samples, and the available memory."""
    e, train = planned.experiment, planned.indices["train"]
    experiment_file.save(e, folder / "experiment.json")
    copies.keep(e, source, folder)
    arrays = _some_samples(e.data, train)
    labels = {} if train.labels is None else {"label": train.labels}
    np.savez(folder / "samples.npz", **arrays, **labels)  # type: ignore[arg-type]
    resident = [planned.indices[split].bytes for split in ("train", "val")] if planned.mode == "resident" else []
    free = min(planned.resources.memory, memory.available()) - sum(resident)
    job = {
        "count": len(train),
        "classes": train.classes,
        "fields": [vars(field) for field in train.fields],
        "resident": resident,
        "available": free // e.scaling.ranks,
        "memory": None if search.memory is None else int(search.memory * 2**30),
    }
    (folder / "job.json").write_text(json.dumps(job))


def _some_samples(data: Data, index: Index) -> dict[str, np.ndarray]:
    """Return arrays of readable samples that are spread over the split, each [few, ...]."""
    few = index.take(order.spread(len(index), _IMAGES))
    reader = Direct(data, few)
    for samples, arrays in reader.read(Epoch(order.Shard(len(few), len(few), 0, 1), 0, None)):
        if len(samples):
            return arrays
    raise errors.all_samples_bad(type(data).__name__, reader.skipped[0])


class _Probes:
    """The processes, one per rank: started with the first trial, and again after one of them died."""

    def __init__(self, folder: Path, planned: Plan, observer: Logger):
        self.folder, self.value, self.observer = folder, planned.experiment, observer
        self._gpus = int(planned.resources.gpus)
        self._starts = count()
        self._processes: list[subprocess.Popen[str]] = []

    def search(self, precision: str) -> tuple[Trial, ...]:
        """Try micro-batches in one precision.

        Raises:
            UserError: every micro-batch fails for another reason than memory.
        """
        trials = doubling(sizes(self.value), lambda size: self.attempt(precision, size))
        if all(trial.outcome == "fails" for trial in trials):
            raise errors.UserError(
                f"no training step in {precision} works, whatever the micro-batch: {trials[-1].why!s}",
                f"in {type(self.value.model).__name__}",
                "make `raytrain train` work first; its own error says where",
            )
        return trials

    def attempt(self, precision: str, size: int) -> Trial:
        """Try one micro-batch on all ranks: it fits if it fits on each.

        A micro-batch that does not fit is tried again in new processes: the memory of a used one is fragmented.
        """
        self.observer.status(f"{precision}: a micro-batch of {size}")
        new = not self._processes
        if new:
            self._start()
        value = replace(self.value, micro_batch_size=size)
        answers = self._ask({"precision": precision, "micro_batch": size})
        failed = next((answer for answer in answers if answer and "peak" not in answer), None)
        if failed is not None:
            if "error" not in failed or len(self._processes) > 1:  # the others may wait for it in vain
                self.stop()
            if "error" not in failed and not new:
                return self.attempt(precision, size)
            why = failed.get("died") or failed.get("full") or failed.get("error")
            return Trial(size, value.accumulation, "fails" if "error" in failed else "full", why=why)
        seconds = max(answer["seconds"] for answer in answers)
        peak = max(answer["peak"] for answer in answers)
        return Trial(size, value.accumulation, "fits", peak, value.batch_size / seconds)

    def stop(self) -> None:
        """Kill the processes and their children."""
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        for process in self._processes:
            process.wait()
            for pipe in (process.stdin, process.stdout):
                with contextlib.suppress(OSError):  # commands not sent
                    _open(pipe).close()
        self._processes = []

    def _start(self) -> None:
        world, number = self.value.scaling.ranks, next(self._starts)
        for rank in range(world):
            with open(self.folder / f"rank_{rank}.log", "w") as log:
                self._processes.append(
                    subprocess.Popen(
                        [
                            *(sys.executable, "-P", "-c", "from raytrain.tools.probe import main; main()"),
                            *(self.folder, str(rank), str(world), self.folder / f"store-{number}"),
                        ],
                        env=os.environ
                        | {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
                        | self._gpu(rank),
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        stderr=log,
                        text=True,
                        start_new_session=True,  # Ctrl-C is for the driver alone
                    )
                )
        for rank, answer in enumerate(self._answers()):
            if answer:
                said = (self.folder / f"rank_{rank}.log").read_text(errors="replace").strip().splitlines()
                why = answer.get("error") or f"{answer['died']}: {said[-1] if said else ''}"
                raise errors.UserError(
                    f"the processes that try micro-batches do not start: {why}",
                    "",
                    "check that `raytrain train` works; move classes of a script or a notebook into a "
                    "file of their own",
                )

    def _gpu(self, rank: int) -> dict[str, str]:
        """Return the environment that shows a worker its own GPUs only."""
        each = self.value.scaling.gpus_per_worker
        if not each:
            return {}
        seen = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(self._gpus)))
        first = int(rank * each + 1e-6)
        return {"CUDA_VISIBLE_DEVICES": ",".join(seen.split(",")[first : first + max(1, math.ceil(each))])}

    def _ask(self, command: dict[str, Any]) -> list[dict[str, Any]]:
        for process in self._processes:
            with contextlib.suppress(BrokenPipeError):  # its answer says that it is dead
                print(json.dumps(command), file=process.stdin, flush=True)
        return self._answers()

    def _answers(self) -> list[dict[str, Any]]:
        """Return the answer of each rank; after a failure, all are empty except that of the rank that failed first."""
        answers: list[dict[str, Any]] = [{} for _ in self._processes]
        with selectors.DefaultSelector() as selector:
            for rank, process in enumerate(self._processes):
                selector.register(_open(process.stdout), selectors.EVENT_READ, rank)
            while selector.get_map():
                for key, _ in selector.select():
                    selector.unregister(key.fileobj)
                    process = self._processes[key.data]
                    line = _open(process.stdout).readline()
                    answer = answers[key.data] = json.loads(line) if line.endswith("\n") else _death(process)
                    if answer and "peak" not in answer:
                        return [{}] * key.data + [answer] + [{}] * (len(answers) - key.data - 1)
        return answers


def _open(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe


def _death(process: subprocess.Popen[str]) -> dict[str, Any]:
    code = process.wait()
    return {"died": f"the process ended by {signal.Signals(-code).name}" if code < 0 else f"it ended with {code}"}
