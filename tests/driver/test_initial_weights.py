"""Weights to start from: a run, a URL, what the plan says of them, and what a run then starts with."""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.commands import VALUE, fails, finished, make_run, no_runs, succeeds, without_ray

from raytrain import CNN, Digits, Experiment, Run, UserError
from raytrain.checkpoint.checkpoints import load_model
from raytrain.driver import download, initial_weights

__all__ = ["finished", "no_runs", "without_ray"]

Tensors = dict[str, torch.Tensor]
DIGITS = tuple("0123456789")


def started(model: CNN, folder: Path) -> Tensors | None:
    """The state dict that the workers of a run get."""
    return initial_weights.pretrained(Experiment(model=model, data=Digits()), Digits().index()["train"], folder)


def same(one: Tensors | None, other: Tensors) -> bool:
    return one is not None and one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_a_run_gives_its_best_checkpoint(finished: Run, tmp_path: Path) -> None:
    model = replace(VALUE.model, weights=str(finished.path))
    assert isinstance(model, CNN)
    best, last = (load_model(finished.checkpoint(which)) for which in ("best", "last"))
    assert same(started(model, tmp_path), best) and not same(best, last)
    assert same(started(replace(model, weights=f"file://{finished.path}"), tmp_path), best), "also at a URL"
    (note,) = initial_weights.check(model, model.build((1, 8, 8), 10), DIGITS)
    assert note.startswith(f"{len(best)} of {len(best)} tensors start from {finished.path}/checkpoints/step_")
    assert not (tmp_path / "logs").exists()


def test_a_head_for_other_classes_starts_anew(finished: Run, tmp_path: Path) -> None:
    model = replace(VALUE.model, weights=str(finished.path))
    best, index = load_model(finished.checkpoint()), Digits().index()["train"]
    other = replace(index, classes=tuple("abcdefghij"))
    for one, which in ((model, other), (replace(model, new_head=True), index)):
        found = initial_weights.pretrained(Experiment(model=one, data=Digits()), which, tmp_path)
        anew = [name for name, value in found.items() if not torch.equal(value, best[name])]
        assert anew == ["5.weight", "5.bias"]
        (note,) = initial_weights.check(one, one.build((1, 8, 8), 10), which.classes)
        assert "random, of another shape or a new head: 5.weight, 5.bias" in note


def test_no_weights_are_none(tmp_path: Path) -> None:
    assert started(CNN(), tmp_path) is None and initial_weights.check(CNN(), CNN().build((1, 8, 8), 10), ()) == []


def test_a_damaged_run_and_a_sweep_are_refused(finished: Run, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=4)
    for file in run.path.glob("checkpoints/*/model.safetensors"):
        file.write_bytes(b"x")
    with pytest.raises(UserError, match="does not verify"):
        started(CNN(weights=str(run.path)), tmp_path)
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep" / "sweep.json").write_text('{"best": 2}')
    with pytest.raises(UserError, match=r"this is a sweep, .*trials/0002"):
        started(CNN(weights=str(tmp_path / "sweep")), tmp_path)


def test_a_resumed_run_reads_no_weights(finished: Run) -> None:
    assert started(CNN(weights="gone.pth"), finished.path) is None


def test_a_file_lists_what_the_plan_leaves_out(tmp_path: Path) -> None:
    wide = CNN(channels=(8,) * 6)
    part = {name: value for name, value in wide.build((1, 8, 8), 10).state_dict().items() if name < "9"}
    torch.save({**part, **{f"extra.{n}": torch.zeros(1) for n in range(9)}}, tmp_path / "w.pth")
    model = replace(wide, weights=str(tmp_path / "w.pth"))
    (note,) = initial_weights.check(model, wide.build((1, 8, 8), 10), DIGITS)
    assert note.endswith(
        "unused: extra.0, extra.1, extra.2, extra.3 and 5 more (all are named in the run's logs/weights.txt)"
    )
    started(model, tmp_path)
    assert (tmp_path / "logs" / "weights.txt").read_text().count("unused: extra.") == 9


# URLs


class Server(ThreadingHTTPServer):
    """Serves a folder, counts what it was asked for, and may break an answer off."""

    def __init__(self, folder: Path):
        super().__init__(("127.0.0.1", 0), partial(_Handler, directory=str(folder)))
        self.asked: list[str] = []
        self.breaks = False

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/{name}"


class _Handler(SimpleHTTPRequestHandler):
    def do_GET(self) -> None:
        server: Any = self.server
        server.asked.append(self.path)
        if server.breaks:
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(b"x" * 10)
            return
        super().do_GET()

    def log_message(self, format: str, *values: Any) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    (tmp_path / "served").mkdir()
    torch.manual_seed(7)
    torch.save({"state_dict": CNN().build((1, 8, 8), 10).state_dict()}, tmp_path / "served" / "w.ckpt")
    with Server(tmp_path / "served") as one:
        thread = threading.Thread(target=one.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield one
        one.shutdown()
        thread.join()


def served(tmp_path: Path) -> tuple[Tensors, str]:
    """The weights that are served, and their file's hash."""
    file = tmp_path / "served" / "w.ckpt"
    return torch.load(file, weights_only=True)["state_dict"], hashlib.sha256(file.read_bytes()).hexdigest()


def test_a_url_is_downloaded_once(server: Server, tmp_path: Path) -> None:
    weights, digest = served(tmp_path)
    for mark in ("", "", f"#sha256={digest}", f"#sha256={digest.upper()}"):
        assert same(started(CNN(weights=server.url("w.ckpt") + mark), tmp_path), weights)
    assert server.asked == ["/w.ckpt"]
    (file,) = (tmp_path / "cache" / "raytrain" / "weights").glob("*/w.ckpt")
    file.write_bytes(b"damaged")
    assert same(started(CNN(weights=server.url("w.ckpt")), tmp_path), weights) and len(server.asked) == 2
    assert same(started(CNN(weights=server.url("w.ckpt?version=2")), tmp_path), weights), "another file"
    assert {one.name for one in file.parent.iterdir()} == {"w.ckpt", "w.ckpt.sha256"}


def test_other_urls_are_opened_by_pyarrow(server: Server, tmp_path: Path) -> None:
    assert same(started(CNN(weights=f"file://{tmp_path}/served/w.ckpt"), tmp_path), served(tmp_path)[0])
    with pytest.raises(UserError, match=r"storage does not answer: .*gone\.pth"):
        download.fetched(f"file://{tmp_path}/served/gone.pth")


@pytest.mark.parametrize(
    ("name", "breaks", "message"),
    [
        ("gone.pth", False, "the download failed: .*(?i:not found)"),
        ("w.ckpt", True, "the download failed: .*10"),
        (f"w.ckpt#sha256={'0' * 64}", False, "the file there has the sha256 [0-9a-f]{64}, http"),
        ("w.ckpt#sha1=00", False, "what follows # must be the file's sha256"),
    ],
)
def test_what_cannot_be_downloaded_is_refused(
    server: Server, tmp_path: Path, name: str, breaks: bool, message: str
) -> None:
    server.breaks = breaks
    with pytest.raises(UserError, match=message):
        started(CNN(weights=server.url(name)), tmp_path)
    assert not [*(tmp_path / "cache").rglob("*ckpt*")], "no part of it stays"


# The command line


@pytest.mark.usefixtures("without_ray", "no_runs")
def test_the_plan_says_what_starts_from_them(tmp_path: Path, capsys: pytest.CaptureFixture[str], finished: Run) -> None:
    (tmp_path / "exp.py").write_text(
        "from raytrain import CNN, Digits, Experiment\n"
        "experiment = Experiment(model=CNN(channels=(8,), batch_norm=True), data=Digits())\n"
    )
    flags = ("--model.weights", finished.path, "--out", tmp_path / "runs", "--dry_run")
    said = succeeds(capsys, "train", tmp_path / "exp.py", *flags)
    assert f"8 of 8 tensors start from {finished.path}/checkpoints/step_" in said.replace("\n", "")


@pytest.mark.usefixtures("without_ray", "no_runs")
def test_a_mistake_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], finished: Run) -> None:
    wrong = (
        (f"{finished.path}x", "no such weights file"),
        ("http://127.0.0.1:1/w.pth", "the download failed: .*refused"),
        (str(tmp_path), "no run there"),
    )
    for value, message in wrong:
        said = fails(capsys, "train", "experiments/digits.py", "--model.weights", value, "--out", tmp_path / "runs")
        assert re.search(message, said), said
