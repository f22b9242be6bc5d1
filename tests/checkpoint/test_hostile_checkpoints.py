"""Checkpoints that somebody made to do harm: none is taken, none of their code runs, none keeps a reader waiting."""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import shutil
import socket
import struct
import threading
import time
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from raytrain import MLP, SGD, Checkpoint, Digits, Experiment, Run, UserError
from raytrain.checkpoint import checkpoints, layout, retention
from raytrain.checkpoint.layout import MANIFEST, MODEL, OPTIMIZER, PARTS, STATE
from raytrain.data.checks import checked_read
from raytrain.data.reader import Resident
from raytrain.parallel.strategy import RankContext
from raytrain.run import experiment_file
from raytrain.training.trainer import Trainer

VALUE = Experiment(
    model=MLP(hidden=(4,)),
    data=Digits(),
    optimizer=SGD(lr=0.1, momentum=0.9),
    checkpoint=Checkpoint(every_steps=2),
    batch_size=700,
    epochs=2,
)
GOOD, BAD = "step_00000004", "step_00000006"
Damage = Callable[[Path], object]


def worker(run: Path, value: Experiment = VALUE) -> Trainer:
    indices = value.data.index()
    readers = {
        split: Resident(checked_read(value.data, index, np.arange(len(index)))) for split, index in indices.items()
    }
    return Trainer(value, run, indices, readers, None, RankContext(0, 1, torch.device("cpu")), time.time())


def start(trainer: Trainer) -> None:
    with trainer.started():
        pass


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with two checkpoints; the newer one is the best."""
    path = tmp_path_factory.mktemp("hostile") / "run"
    path.mkdir()
    experiment_file.save(VALUE, path / "experiment.json")
    worker(path).fit()
    kept = sorted(folder.name for folder in (path / "checkpoints").iterdir())
    assert kept[-2:] == [GOOD, BAD] and json.loads((path / "best.json").read_text())["checkpoint"] == BAD
    return path


# What is done to them


class Mark:
    """Leaves a mark where it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("ran",)


class Shell:
    def __reduce__(self) -> tuple[Any, ...]:
        return eval, ("__import__('os').mkdir('ran')",)


def manifest(change: Callable[[dict[str, Any]], Any]) -> Damage:
    """Another manifest."""

    def damage(path: Path) -> None:
        values = json.loads((path / MANIFEST).read_text())
        changed = change(values)
        (path / MANIFEST).write_text(changed if isinstance(changed, str) else json.dumps(values))

    return damage


def size(value: Any) -> Damage:
    return manifest(lambda values: values["files"][MODEL].update(size=value))


def text(content: bytes) -> Damage:
    return lambda path: (path / MANIFEST).write_bytes(content)


def renamed(name: str) -> Damage:
    """The model's entry under another name, with the file where that leads to."""

    def change(values: dict[str, Any]) -> None:
        values["files"][name] = values["files"].pop(MODEL)

    return manifest(change)


def planted(name: str, content: bytes | Callable[[Path], bytes]) -> Damage:
    """Another content, for which the manifest vouches."""

    def damage(path: Path) -> None:
        (path / name).write_bytes(content(path) if callable(content) else content)
        vouch(path, name)

    return damage


def vouch(path: Path, name: str) -> None:
    with open(path / name, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    values = json.loads((path / MANIFEST).read_text())
    values["files"][name] = {"size": (path / name).stat().st_size, "sha256": digest}
    (path / MANIFEST).write_text(json.dumps(values))


def state(**changes: Any) -> Damage:
    """A state with other values; None takes one away."""

    def content(path: Path) -> bytes:
        values = json.loads((path / STATE).read_text()) | changes
        return json.dumps({name: value for name, value in values.items() if value is not None}).encode()

    return planted(STATE, content)


def progress(**changes: Any) -> Damage:
    def content(path: Path) -> bytes:
        values = json.loads((path / STATE).read_text())
        values["progress"].update(changes)
        return json.dumps(values).encode()

    return planted(STATE, content)


def sparse(name: str, bytes_: int) -> Damage:
    return lambda path: os.truncate(path / name, bytes_)


def tensors(header: Any, data: bytes = b"\0" * 64, length: int | None = None) -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw) if length is None else length) + raw + data


def entry(**changes: Any) -> dict[str, Any]:
    return {"w": {"dtype": "F32", "shape": [4, 4], "data_offsets": [0, 64]} | changes}


def archive(content: bytes, compression: int = zipfile.ZIP_STORED, name: str = "archive/data.pkl") -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", compression) as file:
        file.writestr(name, content)
        file.writestr("archive/version", "3\n")
    return target.getvalue()


def saved(value: Any) -> bytes:
    target = io.BytesIO()
    torch.save(value, target)
    return target.getvalue()


def storage_beyond(path: Path) -> bytes:
    """The optimizer, with a tensor that claims more than its storage has."""
    target, claimed = io.BytesIO(), 0
    with zipfile.ZipFile(path / OPTIMIZER) as old, zipfile.ZipFile(target, "w") as new:
        for item in old.infolist():
            data = old.read(item)
            if item.filename.endswith(".pkl"):  # the pickle of a shape whose first size is 4
                claimed += data.count(b"K\x04K@\x86")
                data = data.replace(b"K\x04K@\x86", b"K\x7fK@\x86")
            new.writestr(item.filename, data)
    assert claimed == 1
    return target.getvalue()


def instead(name: str, make: Callable[[Path], object]) -> Damage:
    """Something else in a file's place."""

    def damage(path: Path) -> None:
        (path / name).unlink()
        make(path / name)

    return damage


def bind(path: Path) -> None:
    before = os.getcwd()
    os.chdir(path.parent)  # a socket's address is short
    try:
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(path.name)
    finally:
        os.chdir(before)


def device(path: Path) -> None:
    try:
        os.mknod(path, 0o20666, os.makedev(1, 5))  # /dev/zero, which never ends
    except PermissionError:
        path.symlink_to("/dev/zero")


def moved_and_linked(path: Path) -> None:
    outside = path.parent.parent / "outside"
    path.rename(outside)
    path.symlink_to(outside)


def whole_folder(make: Callable[[Path], object]) -> Damage:
    def damage(path: Path) -> None:
        shutil.rmtree(path)
        make(path)

    return damage


def beside(name: str) -> Damage:
    """The checkpoint under a name that is none, or another step's."""
    return lambda path: path.rename(path.with_name(name))


THINGS: dict[str, Callable[[Path], object]] = {
    "a pipe": os.mkfifo,
    "a device": device,
    "a socket": bind,
    "a folder": Path.mkdir,
    "a link to /etc/passwd": lambda path: path.symlink_to("/etc/passwd"),
    "a link to /dev/zero": lambda path: path.symlink_to("/dev/zero"),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "nothing": lambda path: None,
}
DEEP = b"[" * 60_000
HOSTILE: dict[str, Damage] = {
    **{f"{what} as {name}": instead(name, make) for name in (MANIFEST, *PARTS) for what, make in THINGS.items()},
    **{f"{what} as the folder": whole_folder(make) for what, make in THINGS.items() if what != "nothing"},
    **{f"{name} cut": lambda path, n=name: os.truncate(path / n, 10) for name in (MANIFEST, *PARTS)},
    **{f"{name} empty": lambda path, n=name: os.truncate(path / n, 0) for name in (MANIFEST, *PARTS)},
    **{f"{name} of 8 TiB": sparse(name, 8 << 40) for name in (MANIFEST, *PARTS)},
    "a linked folder": moved_and_linked,
    "a name of 20 digits": beside("step_" + "9" * 20),
    "a name with a sign": beside("step_-0000006"),
    "a name with a zero more": beside("step_000000006"),
    "a name of other digits": beside("step_0000000\N{ARABIC-INDIC DIGIT SIX}"),
    "the name of a later step": beside("step_00000099"),
    **{f"the size {value!r}"[:40]: size(value) for value in (-1, True, 1.5, "8", None, [], 10**300, float("nan"))},
    "a number of 10,000 digits": manifest(lambda values: json.dumps(values).replace(": 6,", ": " + "6" * 9999 + ",")),
    "a sha256 that is a number": manifest(lambda values: values["files"][MODEL].update(sha256=7)),
    "a sha256 in capitals": manifest(lambda v: v["files"][MODEL].update(sha256=v["files"][MODEL]["sha256"].upper())),
    "an empty sha256": manifest(lambda values: values["files"][MODEL].update(sha256="")),
    **{
        f"the name {name!r}": renamed(name)
        for name in ("../model.safetensors", "/etc/passwd", "model.safetensors/", "./model.safetensors", "", "\0")
    },
    "a file more": manifest(lambda values: values["files"].update({"x.py": values["files"][MODEL]})),
    "no files": manifest(lambda values: values.update(files={})),
    "files that are a list": manifest(lambda values: values.update(files=list(values["files"]))),
    "the step in words": manifest(lambda values: values.update(step="6")),
    "no step": manifest(lambda values: values.pop("step") and None),
    "a deep manifest": text(DEEP),
    "a manifest of other bytes": text(b"\xff\xfe{"),
    "a manifest of zeros": text(b"\0" * 100),
    "a manifest that is null": text(b"null"),
    "a model with an endless header": planted(MODEL, tensors(entry(), length=2**63)),
    "a model with a header of 90 MB": planted(MODEL, tensors(entry(), length=90_000_000)),
    "a model with a header of letters": planted(MODEL, tensors(b"x" * 64)),
    "a model with a deep header": planted(MODEL, tensors(DEEP)),
    "a model with bytes beyond its end": planted(MODEL, tensors(entry(data_offsets=[0, 2**40]))),
    "a model with negative offsets": planted(MODEL, tensors(entry(data_offsets=[-64, 0]))),
    "a model with another shape than bytes": planted(MODEL, tensors(entry(shape=[2**31, 2**31, 4]))),
    "a model with a negative shape": planted(MODEL, tensors(entry(shape=[-4, -4]))),
    "a model of no known numbers": planted(MODEL, tensors(entry(dtype="PICKLE"))),
    "a model with a hole": planted(MODEL, tensors(entry(), b"\0" * 128)),
    "a model whose tensors overlap": planted(MODEL, tensors(entry() | {"v": entry()["w"]})),
    "a model that is a pickle": planted(MODEL, pickle.dumps(Mark())),
    "an optimizer that is a pickle": planted(OPTIMIZER, pickle.dumps({"optimizer": Mark()}, protocol=2)),
    "an optimizer with code": planted(OPTIMIZER, lambda _: saved({"optimizer": Mark(), "precision": {}})),
    "an optimizer with a shell": planted(OPTIMIZER, lambda _: saved({"optimizer": {}, "precision": [Shell()]})),
    "an optimizer with code in an archive": planted(OPTIMIZER, archive(pickle.dumps(Mark(), protocol=2))),
    "an optimizer that unfolds": planted(OPTIMIZER, archive(bytes(50_000_000), zipfile.ZIP_DEFLATED)),
    "an optimizer that leads out": planted(OPTIMIZER, archive(b"x", name="../../ran/data.pkl")),
    "an optimizer without content": planted(OPTIMIZER, archive(b"", name="archive/nothing")),
    "an optimizer that is no archive": planted(OPTIMIZER, b"PK\3\4" + bytes(1000)),
    "an optimizer that is cut": planted(OPTIMIZER, lambda path: (path / OPTIMIZER).read_bytes()[:-100]),
    "an optimizer that is a list": planted(OPTIMIZER, lambda _: saved([1, 2])),
    "an optimizer without one": planted(OPTIMIZER, lambda _: saved({})),
    "an optimizer with a tensor beyond its bytes": planted(OPTIMIZER, storage_beyond),
    "an optimizer of a deep pickle": planted(OPTIMIZER, archive(b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".")),
    "a state of NaN": planted(STATE, b'{"progress": NaN}'),
    "a state of infinity": progress(seconds=float("inf")),
    "a state of a large number": planted(
        STATE, lambda path: (path / STATE).read_bytes().replace(b'"seconds": ', b'"seconds": 1e999, "seconds": 1e999')
    ),
    "a deep state": planted(STATE, DEEP),
    "a state of other bytes": planted(STATE, b"\xff\xfe"),
    "a state that is a list": planted(STATE, b"[]"),
    "a state of 65 MiB": planted(STATE, b" " * (65 << 20) + b"{}"),
    "a state without progress": state(progress=None),
    "a state without metrics": state(metrics_bytes=None),
    "a state with negative metrics": state(metrics_bytes=-1),
    "a state with metrics in words": state(metrics_bytes="0"),
    "a state with a unit in words": state(unit="x"),
    "progress that is a list": state(progress=[]),
    "progress at another step": progress(step=600),
    "progress before the beginning": progress(epoch=-1),
    "progress in words": progress(step="6"),
    "progress with other fields": progress(__class__="x"),
    "progress with a method": progress(add="x"),
}  # fmt: skip


@pytest.mark.timeout(60)
@pytest.mark.parametrize("what", HOSTILE)
def test_it_is_refused_and_the_older_one_is_taken(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    monkeypatch.chdir(tmp_path)
    HOSTILE[what](run / "checkpoints" / BAD)
    good, began = checkpoints.load(trained / "checkpoints" / GOOD), worker(run)
    with began.started():
        assert began.progress.step == 4
        restored = began.strategy.module.state_dict()
        assert all(torch.equal(value, good.model[name]) for name, value in restored.items())
    assert (run / "metrics.jsonl").stat().st_size == good.state["metrics_bytes"]
    assert json.loads((run / "last.json").read_text()) == {"checkpoint": GOOD, "step": 4}
    assert json.loads((run / "best.json").read_text()) == good.state["progress"]["best"]
    Run(run).checkpoint("best")
    assert not [*tmp_path.rglob("ran")] and not (run / "checkpoints" / BAD).exists()
    assert Path("/etc/passwd").is_file()


def test_run_of_damaged_checkpoints_is_refused_unchanged(trained: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    for path in (run / "checkpoints").iterdir():
        text(b"")(path)
    before = {file: file.read_bytes() for file in run.rglob("*") if file.is_file()}
    with pytest.raises(UserError, match="no checkpoint to go on from") as refused:
        start(worker(run))
    assert "raytrain train" in refused.value.how
    assert {file: file.read_bytes() for file in run.rglob("*") if file.is_file()} == before


def test_there_are_at_least_fifty() -> None:
    assert len(HOSTILE) >= 50


def test_the_planted_code_does_run_where_pickles_are_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for content in (saved({"optimizer": Mark()}), saved([Shell()])):
        torch.load(io.BytesIO(content), weights_only=False)
        (tmp_path / "ran").rmdir()


def test_what_nobody_reads_does_no_harm(trained: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    path = run / "checkpoints" / BAD
    (path / "optimizer.py").write_text("raise SystemExit")
    os.mkfifo(path / ".manifest.json.77")
    (path / "more" / "of").mkdir(parents=True)
    began = worker(run)
    with began.started():
        assert began.progress.step == 6
    retention.drop_after(run / "checkpoints", 4)
    assert not path.exists()


def test_weights_of_another_model_are_an_error(trained: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    planted(MODEL, safetensors.torch.save({"other": torch.zeros(3)}))(run / "checkpoints" / BAD)
    with pytest.raises(RuntimeError, match=r"Missing key\(s\)"):
        start(worker(run))
    with pytest.raises(RuntimeError, match="size mismatch"):
        start(worker(trained, replace(VALUE, model=MLP(hidden=(5,)))))
    assert (run / "checkpoints" / BAD).is_dir()


def test_storage_that_cannot_be_read_is_no_reason_to_go_back(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Path(shutil.copytree(trained, tmp_path / "run"))

    def broken(path: Path) -> str:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="Input/output"):
        patch.setattr(layout, "digest", broken)
        start(worker(run))
    with pytest.raises(UserError, match="is damaged"):
        text(b"")(run / "checkpoints" / BAD)
        layout.verify(run / "checkpoints" / BAD)
    assert layout.committed(run / "checkpoints")[-2:] == [GOOD, BAD]


def test_training_ends_where_the_directory_of_the_run_has_gone(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    here = worker(run, replace(VALUE, epochs=1000))
    monkeypatch.setattr("raytrain.training.stop_request._MISSING_SECONDS", 0.5)
    there = tmp_path / "moved"
    threading.Timer(0.5, os.rename, (run, there)).start()
    with pytest.raises(UserError, match="the run's directory has been missing for"):
        here.fit()
    assert not run.exists() and (there / "metrics.jsonl").stat().st_size
