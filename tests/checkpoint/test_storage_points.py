"""What S3 has at every moment of bringing checkpoints up is enough to go on, also where requests fail."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from harness.faults.points import EPOCH, SETTINGS, Killed, best, content, row

from raytrain.checkpoint import checkpoints, layout, retention, side_thread
from raytrain.checkpoint.storage import Storage
from raytrain.run import writer
from raytrain.run.metrics_log import MetricsLog, read_metrics
from raytrain.run.writer import CheckpointWriter
from raytrain.training.progress import Progress

STEPS = 4
COUNTS = {"kill": 0, "torn": 0, "refused": 0, "refused, half there": 0, "goes on elsewhere": 0}


class Bucket(Storage):
    """Tells of each request before it is made."""

    before: Callable[[str, str], None] = staticmethod(lambda kind, name: None)

    def names(self, folder: str = "", recursive: bool = True) -> dict[str, int | None]:
        self.before("list", folder)
        return super().names(folder, recursive)

    def write(self, name: str, content: Path | bytes) -> None:
        self.before("put", name)
        super().write(name, content)

    def remove(self, name: str) -> None:
        self.before("delete", name)
        super().remove(name)

    def remove_folder(self, name: str) -> None:
        self.before("delete", name)
        super().remove_folder(name)


@contextmanager
def writing(url: str, mirror: Path, bucket: Bucket) -> Iterator[Callable[[int], None]]:
    """Rank 0 on a machine; gives what writes a step's rows and checkpoint, in this thread."""
    found = next(checkpoints.loadable_at(bucket, mirror, torch.device("cpu")), None)
    first = found.state["progress"]["step"] if found else 0
    log = MetricsLog(mirror / "metrics.jsonl", found.state["metrics_bytes"] if found else 0)
    keeper = CheckpointWriter(mirror, log, SETTINGS, EPOCH, bucket)
    keeper.close()
    keeper.background = AtOnce()  # type: ignore[assignment]
    retention.drop_after(mirror / "checkpoints", first)
    keeper.resume(found.path.name if found else None, first, found.state["progress"]["best"] if found else {})

    def write(step: int) -> None:
        if step <= first:
            return
        log.write([row(step)])
        progress = Progress(step=step, epoch=step // EPOCH, best=best(step))
        keeper.wait()
        keeper.start(step, *content(step), {"progress": vars(progress), "metrics_bytes": log.size})
        keeper.upload(bucket)

    yield write
    keeper.finish({"steps": step_at(url)})
    log.close()


class AtOnce:
    def start(self, write: Any) -> None:
        write()

    def wait(self) -> None:
        """All is written."""

    close = wait


def step_at(url: str) -> int:
    return max((layout.step_of(name) or 0 for name in Storage(url).committed()), default=0)


def check(there: Storage, folder: Path, at_least: int, at_most: int) -> None:
    """A machine that has nothing finds a checkpoint of such a step, whole, with all rows that it vouches for."""
    shutil.rmtree(folder, ignore_errors=True)
    path = next(there.verified(folder / "checkpoints"), None)
    step = (layout.step_of(path.name) or 0) if path else 0
    assert at_least <= step <= at_most
    if path:
        model, loaded = content(step)[0], checkpoints.load(path)
        assert all(torch.equal(loaded.model[name], model[name]) for name in model)
        rows = there.read("metrics.jsonl")[: loaded.state["metrics_bytes"]]
        (folder / "metrics.jsonl").write_bytes(rows)
        assert read_metrics(folder / "metrics.jsonl")[0] == [row(n) for n in range(1, step + 1)]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_thread, "_PAUSE", 0.0)
    monkeypatch.setattr(writer, "POLL_SECONDS", 1000.0)


@pytest.mark.slow
def test_whatever_request_is_the_last_one(s3: str, tmp_path: Path, quick: None) -> None:
    url = f"{s3}/points/kill"
    bucket, plain, requests = Bucket(url), Storage(url), []
    lost: list[AssertionError] = []
    step = done = 0

    def look() -> None:
        """Note a failed check: the upload would swallow its error, as that of a request."""
        try:
            check(plain, tmp_path / "look", done, step)
        except AssertionError as error:
            lost.append(error)

    def before(kind: str, name: str) -> None:
        requests.append((kind, name))
        look()
        COUNTS["kill"] += 1
        if kind == "put":  # an object that is not whole, as a file system would leave it and S3 never does
            if name.startswith("checkpoints/step_") and not name.endswith(layout.MANIFEST):
                plain.write(name, b"half")
                look()
                COUNTS["torn"] += 1

    bucket.before = before
    with writing(url, tmp_path / "mirror", bucket) as write:
        for step in range(1, STEPS + 1):
            write(step)
            done = step
    assert not lost, lost
    check(plain, tmp_path / "look", STEPS, STEPS)
    assert {kind for kind, _ in requests} == {"list", "put", "delete"}
    assert list(plain.committed()) == ["step_00000002", "step_00000004"]
    for at in range(0, len(requests), 8):
        goes_on_elsewhere(f"{s3}/points/{at}", tmp_path / str(at), at)


def goes_on_elsewhere(url: str, folder: Path, at: int) -> None:
    """A kill at a request, and a machine that has nothing goes on."""
    bucket, left = Bucket(url), [at]

    def before(kind: str, name: str) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise Killed

    bucket.before = before
    with pytest.raises(Killed), writing(url, folder / "one", bucket) as write:
        for step in range(1, STEPS + 1):
            write(step)
    with writing(url, folder / "other", Bucket(url)) as write:
        for step in range(1, STEPS + 1):
            write(step)
    check(Storage(url), folder / "look", STEPS, STEPS)
    assert list(Storage(url).committed())[-1] == "step_00000004"
    assert Storage(url).names("checkpoints").keys() == {
        f"checkpoints/{name}/{part}" for name in Storage(url).committed() for part in (*layout.PARTS, layout.MANIFEST)
    }
    COUNTS["goes on elsewhere"] += 1


@pytest.mark.parametrize("kind", [pytest.param("refused", marks=pytest.mark.slow), "refused, half there"])
def test_failed_request_is_made_up_by_the_next_checkpoint(s3: str, tmp_path: Path, quick: None, kind: str) -> None:
    """In each checkpoint another request is refused, until all have been."""
    url = f"{s3}/points/{len(kind)}"
    bucket, plain = Bucket(url), Storage(url)
    number, at, step, refused = 0, 0, 0, False

    def before(verb: str, name: str) -> None:
        nonlocal number, refused
        number += 1
        if number == at:
            if kind != "refused" and verb == "put" and name.startswith("checkpoints/"):
                plain.write(name, b"ha")
            refused = True
            raise OSError("AWS Error SLOW_DOWN")

    with writing(url, tmp_path / "mirror", bucket) as write:
        write(1)
        bucket.before, step = before, 1
        while True:
            step, at, number, refused, good = step + 1, at + 1, 0, False, step if not refused else 0
            write(step)
            if not refused:
                break
            COUNTS[kind] += 1
            check(plain, tmp_path / "look", good, step)
        assert at > 12
    check(plain, tmp_path / "look", step, step)


@pytest.mark.slow
def test_the_points_are_counted() -> None:
    print(COUNTS)
    assert COUNTS["kill"] > 60 and COUNTS["torn"] >= 12 and COUNTS["goes on elsewhere"] >= 8
    assert COUNTS["refused"] > 12 and COUNTS["refused, half there"] > 12
