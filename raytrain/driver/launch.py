"""What follows Ray's start: read the data, start the workers, and follow them to their end."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import ray

from raytrain import errors
from raytrain.checkpoint import layout, location, remote
from raytrain.data.blocks import Bad
from raytrain.driver import plan_lines, supervise
from raytrain.driver.interrupts import Interrupts
from raytrain.driver.job import Job
from raytrain.driver.observe import Tail
from raytrain.driver.options import Options
from raytrain.driver.plan import Plan
from raytrain.driver.reading import read, wait_for_blocks
from raytrain.driver.session import Session
from raytrain.driver.skipped import skipped_before
from raytrain.driver.worker import put_weights
from raytrain.loggers import Held, Logger
from raytrain.run.metrics_log import read_metrics
from raytrain.run.run import Run


def prepare(
    planned: Plan, path: Path, weights: Any, options: Options, command_started: float, observer: Logger
) -> tuple[Job, Plan, dict[str, list[Bad]]]:
    """Read the data into shared memory (or check it, for streaming) and put everything into the object store; also
    return the plan with the samples that there are, and those that are skipped. Tell the observer of samples that the
    plan has not shown."""
    observer.status("reading the data")
    e = planned.experiment
    waits = partial(wait_for_blocks, observer)
    indices, images, skipped = read(e.data, planned.indices, planned.mode, skipped_before(path), waits)
    job = Job(
        planned.experiment,
        path.absolute(),
        ray.put(indices),
        images,
        put_weights(e, weights),
        command_started,
        own_output=not options.verbose and planned.experiment.scaling.workers != 0,
        url=location.url_of(path),
        baseline=planned.baseline.scores or None,
        threads=planned.threads,
        profile=options.profile_steps if options.profile else 0,
    )
    bad = {split: [errors.BadSample(one.path, one.reason) for one in samples] for split, samples in skipped.items()}
    found = replace(planned, indices=planned.indices | indices, bad=bad)
    if any(bad.values()):
        shown = plan_lines.skipped(planned)
        told = [line for line in plan_lines.skipped(found) if line not in shown]
        observer.planned([*told, ("skipped", f"all skipped samples are listed in {path / 'skipped.json'}")])
    return job, found, skipped


def rows_before(path: Path) -> tuple[list[dict[str, Any]], int]:
    """Return the rows of metrics.jsonl up to the newest checkpoint, since the steps after it are done again, and the
    file's bytes. Of a run at a URL the file is the driver's mirror and the checkpoints are those at the URL; no row
    counts while storage does not answer."""
    rows, size = read_metrics(path / "metrics.jsonl")
    newest = (layout.step_of(remote.newest(path)) or 0) if rows else 0
    return [row for row in rows if row.get("step", 0) <= newest], size


def follow(run: Run, job: Job, planned: Plan, session: Session, observer: Logger, interrupts: Interrupts) -> None:
    """Train, in the workers or here, while the observer gets the rows of metrics.jsonl."""
    path = run.path
    before, offset = rows_before(path)
    observer.start(planned.info(run, before), Held())
    tail = Tail(path / "metrics.jsonl", offset, observer)
    with remote.followed(path, observer.note):
        if planned.experiment.scaling.workers == 0:
            supervise.work_here(job, tail, interrupts)
        else:
            supervise.Supervisor(planned, job, session, tail, interrupts, observer).run()
    tail.poll()
