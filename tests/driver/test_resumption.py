"""resumption: a run goes on with code that was corrected, and with nothing else that decided its past."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from helpers.commands import fails, make_run, succeeds, without_ray
from helpers.projects import write

from raytrain import Run, UserError
from raytrain.checkpoint.location import mirror
from raytrain.checkpoint.remote import publish
from raytrain.checkpoint.storage import Storage
from raytrain.driver.correction import Correction
from raytrain.files import write_atomically
from raytrain.run import copies, experiment_file
from raytrain.run.lock import Lock
from raytrain.user_code import sources

__all__ = ["without_ray"]

pytestmark = pytest.mark.usefixtures("without_ray")
Capture = pytest.CaptureFixture[str]
EXPERIMENT = """
from dataclasses import dataclass
from raytrain import SGD, Classification, Digits, Experiment, Model
import parts

@dataclass(frozen=True)
class Net(Model):
    width: int = 8
    def build(self, sample, classes):
        return parts.Net(64, self.width, classes)

@dataclass(frozen=True)
class Mine(Classification):
    def loss(self, model, batch):
        loss, count = super().loss(model, batch)
        return loss * (1 / parts.ONE), count

experiment = Experiment(Net(), Digits(), task=Mine(), optimizer=SGD(lr=0.1), epochs=2)
"""
PARTS = """
import torch
from torch import nn

ONE = 0

class Net(nn.Module):
    def __init__(self, pixels, width, classes):
        super().__init__()
        self.register_buffer("scale", torch.ones(width))
        self.first = nn.Linear(pixels, width)
        self.last = nn.Linear(width, classes)

    def forward(self, images):
        return self.last(torch.relu(self.first(images.flatten(1))) * self.scale)
"""
FIXED = PARTS.replace("ONE = 0", "ONE = 1")


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    """Nothing of a test's modules is left in this process."""
    yield
    sources.activate(None)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return write(tmp_path / "project", {"exp.py": EXPERIMENT, "parts.py": PARTS})


@pytest.fixture
def run(project: Path) -> Iterator[Path]:
    """A run of one epoch of two that has failed; what a test does leaves it as it is."""
    value, file = experiment_file.load(project / "exp.py")
    found = make_run(project.parent / "run", value, steps=4)
    copies.keep(value, file, found.path)
    (found.path / "summary.json").write_text(json.dumps({"status": "failed", "epochs": 1, "steps": 4}))
    before = content(found.path)
    yield found.path
    assert content(found.path) == before


def content(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and not path.name.endswith("lock")}


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def going_on(run: Path, *more: object) -> tuple[object, ...]:
    return ("resume", run, "--experiment", run.parent / "project" / "exp.py", "--dry_run", *more)


# What is accepted


def test_a_run_whose_code_fails_names_the_file_to_correct(run: Path, capsys: Capture) -> None:
    said = fails(capsys, "resume", run, "--dry_run")
    project = run.parent / "project"
    assert "ZeroDivisionError: division by zero" in said
    assert f"correct {project}/exp.py:16, then go on with `raytrain resume {run} --experiment {project}/exp.py`" in said


def test_a_corrected_module_is_accepted_and_named(run: Path, project: Path, capsys: Capture) -> None:
    (project / "parts.py").write_text(FIXED)
    assert "code replaced after step 4: parts.py" in succeeds(capsys, *going_on(run))


def test_all_files_that_differ_are_named(run: Path, project: Path, capsys: Capture) -> None:
    (project / "parts.py").unlink()
    write(project / "parts", {"__init__.py": FIXED})
    edit(project / "exp.py", "1 / parts.ONE", "parts.ONE")
    said = succeeds(capsys, *going_on(run))
    assert "code replaced after step 4: exp.py, parts.py (removed), parts/__init__.py (new)" in " ".join(said.split())


def test_a_file_at_another_place_is_accepted(run: Path, project: Path, tmp_path: Path, capsys: Capture) -> None:
    write(tmp_path / "elsewhere", {"other.py": EXPERIMENT, "parts.py": FIXED})
    said = succeeds(capsys, "resume", run, "--experiment", tmp_path / "elsewhere" / "other.py", "--dry_run")
    assert "code replaced after step 4: parts.py" in said


def test_a_new_field_with_a_default_is_code(run: Path, project: Path, capsys: Capture) -> None:
    (project / "parts.py").write_text(FIXED)
    edit(project / "exp.py", "class Mine(Classification):", "class Mine(Classification):\n    by: float = 1.0")
    edit(project / "exp.py", "1 / parts.ONE", "self.by")
    assert "code replaced" in succeeds(capsys, *going_on(run))
    edit(project / "exp.py", "Mine()", "Mine(by=2.0)")
    assert f"task.by 1.0 -> 2.0, {project}/exp.py; put back what the run began" in fails(capsys, *going_on(run))


def test_a_run_without_a_checkpoint_takes_another_model(project: Path, tmp_path: Path, capsys: Capture) -> None:
    value, file = experiment_file.load(project / "exp.py")
    found = make_run(tmp_path / "new", value, steps=1)
    copies.keep(value, file, found.path)
    (found.path / "summary.json").unlink()
    (found.path / "last.json").unlink()
    for manifest in found.path.glob("checkpoints/*/manifest.json"):
        manifest.unlink()
    write(project, {"parts.py": FIXED.replace("self.first", "self.one")})
    assert "after step 0" in succeeds(capsys, *going_on(found.path))


def test_a_run_that_lost_its_checkpoints_does_not_begin_anew(project: Path, tmp_path: Path, capsys: Capture) -> None:
    value, file = experiment_file.load(project / "exp.py")
    found = make_run(tmp_path / "new", value, steps=1)
    copies.keep(value, file, found.path)
    for manifest in found.path.glob("checkpoints/*/manifest.json"):
        manifest.unlink()
    before = content(found.path)
    said = fails(capsys, "resume", found.path, "--epochs", 9)
    assert f"no checkpoint to go on from: step_00000000 is missing, {found.path}; put metrics.jsonl and check" in said
    assert content(found.path) == before
    (found.path / "trial.json").write_text("{}")
    (found.path / "summary.json").write_text(json.dumps({"status": "completed", "epochs": 1}))
    assert "a sweep keeps the weights of its best trial alone" in fails(capsys, "resume", found.path, "--epochs", 9)


def test_a_file_that_is_as_the_runs_own_replaces_nothing(run: Path, capsys: Capture) -> None:
    edit(run.parent / "project" / "exp.py", "1 / parts.ONE", "1 / max(parts.ONE, 1)")
    value, file = experiment_file.load(run.parent / "project" / "exp.py")
    before = content(run)
    copies.keep(value, file, run)
    assert "no code is replaced: exp.py and what it imports are as the run's copies" in succeeds(capsys, *going_on(run))
    correction = Correction(Run(run), file or Path())
    correction.save()
    assert not correction.changed and not (run / "replacing.json").exists()
    for path, text in before.items():
        path.write_bytes(text)


def test_edited_files_are_noted_and_the_copies_used(
    run: Path, project: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "parts.py").write_text(FIXED)
    value, file = experiment_file.load(project / "exp.py")
    before = content(run)
    copies.keep(value, file, run)
    assert "goes on with its own copies" not in succeeds(capsys, "resume", run, "--dry_run")
    edit(project / "parts.py", "ONE = 1", "ONE = 2")
    monkeypatch.setattr(sources, "_KNOWN", {})  # as in a new process
    said = succeeds(capsys, "resume", run, "--dry_run")
    assert "the run goes on with its own copies of parts.py, edited since; --experiment FILE uses" in said
    for path, text in before.items():
        path.write_bytes(text)


def test_a_reader_meanwhile_finds_the_old_code_or_the_new(
    other: Callable[[], Path], project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, read = other(), Path.read_bytes
    new, correction = (
        {"": EXPERIMENT.encode(), "parts/__init__.py": FIXED.encode()},
        Correction(Run(path), project / "exp.py"),
    )

    def reads(file: Path) -> bytes:
        found = read(file)
        if file.name == "experiment.py" and file.parent == path and not (path / "replacing.json").exists():
            correction.save()
            copies.settle(path)
        return found

    monkeypatch.setattr(Path, "read_bytes", reads)
    assert texts(path) == new


def test_source_files_in_any_encoding_replace_a_runs_code(other: Callable[[], Path], project: Path) -> None:
    path = other()
    text = b"# coding: latin-1\n# \xe9\n" + FIXED.encode()
    (project / "parts" / "__init__.py").write_bytes(text)
    Correction(Run(path), project / "exp.py").save()
    assert texts(path)["parts/__init__.py"] == text
    copies.settle(path)
    assert (path / "modules" / "parts" / "__init__.py").read_bytes() == text


def test_a_second_correction_is_recorded_after_the_first(other: Callable[[], Path], project: Path) -> None:
    path = other()
    for number in (1, 2):
        (project / "more.py").write_text(f"NUMBER = {number}\n")
        if number == 1:
            edit(project / "exp.py", "import parts", "import parts, more")
        Correction(Run(path), project / "exp.py").save()
        copies.settle(path)
        copies.settled(path)
    changes = [one["changed"] for one in Run(path).replaced]
    assert changes == [["exp.py", "more.py (new)", "parts.py (removed)", "parts/__init__.py (new)"], ["more.py"]]


def test_a_copy_that_does_not_load_any_more_is_named(run: Path, capsys: Capture) -> None:
    before = (run / "modules" / "parts.py").read_bytes()
    (run / "modules" / "parts.py").write_bytes(b"import math\n\nmath.gone\n" + before)
    said = fails(capsys, "resume", run, "--dry_run")
    assert f"{run}/modules/parts.py:3; correct that line in the run's copy, {run}/modules/parts.py" in said
    (run / "modules" / "parts.py").write_bytes(before)


# What is refused


@pytest.mark.parametrize(
    ("old", "new", "what", "how"),
    [
        (
            "lr=0.1",
            "lr=0.05",
            "optimizer.lr 0.1 -> 0.05",
            "; put back what the run began with, or train a new run with `raytrain train",
        ),
        ("SGD(lr=0.1)", "SGD(lr=0.1, momentum=0.9)", "optimizer.momentum 0.0 -> 0.9", "; put back"),
        ("Net(), Digits", "Net(width=9), Digits", "model.width 8 -> 9", "; put back"),
        ("epochs=2", "epochs=3", "epochs 2 -> 3", "; give --epochs 3 as well, or train a new run with `raytrain train"),
        ("epochs=2", "epochs=3, seed=1", "epochs 2 -> 3, seed 0 -> 1", "; put back what"),
    ],
)
def test_a_changed_value_is_refused(
    run: Path, project: Path, capsys: Capture, old: str, new: str, what: str, how: str
) -> None:
    (project / "parts.py").write_text(FIXED)
    edit(project / "exp.py", old, new)
    said = fails(capsys, *going_on(run))
    assert f"the file has other values than the run's copy of it: {what}, {project}/exp.py{how}" in said


def test_a_changed_value_that_is_given_as_a_flag_is_accepted(run: Path, project: Path, capsys: Capture) -> None:
    (project / "parts.py").write_text(FIXED)
    edit(project / "exp.py", "epochs=2", "epochs=3")
    assert "code replaced" in succeeds(capsys, *going_on(run, "--epochs", 3))
    assert "a resumed run cannot change optimizer.lr" in fails(
        capsys, *going_on(run, "--epochs", 3, "--optimizer.lr", 1)
    )


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("(pixels, width)", "(pixels, width, bias=False)", "the model has no first.bias"),
        ("self.last", "self.head", "the model has no last.weight, last.bias, but head.weight, head.bias"),
        ("super().__init__()", "super().__init__(); self.more = nn.Linear(1, 1)", "no more.weight, more.bias"),
        ("torch.ones(width)", "torch.ones(1)", "scale is [1] of torch.float32 and was [8] of torch.float32"),
        ("torch.ones(width)", "torch.ones(width, dtype=torch.float16)", "scale is [8] of torch.float16 and was [8]"),
        (
            "        self.first = nn.Linear(pixels, width)\n        self.last = nn.Linear(width, classes)\n",
            "        self.last = nn.Linear(width, classes)\n        self.first = nn.Linear(pixels, width)\n",
            "the parameters have another order, or others are trained: last.weight stands where first.weight stood",
        ),
        (
            "self.last = nn.Linear(width, classes)",
            "self.last = nn.Linear(width, classes); self.last.bias.requires_grad = False",
            "other parameters are trained",
        ),
    ],
)
def test_a_model_of_other_parameters_is_refused(
    run: Path, project: Path, capsys: Capture, old: str, new: str, message: str
) -> None:
    (project / "parts.py").write_text(FIXED.replace(old, new))
    said = fails(capsys, *going_on(run))
    assert "the checkpoints do not fit the new code: " in said and message in said
    assert f"in Net ({project}/exp.py:" in said and f"train a new run with `raytrain train {project}/exp.py`" in said


def test_a_metric_whose_direction_is_turned_round_is_refused(run: Path, project: Path, capsys: Capture) -> None:
    (project / "parts.py").write_text(FIXED)
    edit(
        project / "exp.py",
        "class Mine(Classification):",
        'class Mine(Classification):\n    directions = {"accuracy": "min"}',
    )
    assert "the new code reverses which val_accuracy is the best, in Mine" in fails(capsys, *going_on(run))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("import parts", "import parts parts", "the experiment file does not load: "),
        ("import parts", "import apart", "No module named 'apart'"),
        ("class Net", "class Other", "the experiment file does not load: NameError"),
        ("experiment = ", "other = ", "not an experiment: it defines no `experiment`"),
        ("    width: int = 8\n", "    width2: int = 8\n", "unknown field 'model.width'"),
        ("Mine", "Yours", "class 'experiment:Mine' cannot be found"),
    ],
)
def test_a_file_that_does_not_take_the_runs_values_is_refused(
    run: Path, project: Path, capsys: Capture, old: str, new: str, message: str
) -> None:
    edit(project / "exp.py", old, new)
    assert message in fails(capsys, *going_on(run))


def test_a_file_that_is_not_there_is_refused(run: Path, project: Path, capsys: Capture) -> None:
    assert "no such experiment file" in fails(capsys, "resume", run, "--experiment", project / "gone.py", "--dry_run")
    assert "its name ends in .json" in fails(capsys, "resume", run, "--experiment", run / "experiment.json")
    assert "--experiment needs a file" in fails(capsys, "resume", run, "--experiment")


def test_a_run_that_is_complete_is_refused(run: Path, project: Path, capsys: Capture) -> None:
    (project / "parts.py").write_text(FIXED)
    before = (run / "summary.json").read_bytes()
    (run / "summary.json").write_text(json.dumps({"status": "completed", "epochs": 2}))
    assert "the run is complete at 2 epochs" in fails(capsys, *going_on(run))
    (run / "summary.json").write_bytes(before)


def test_a_run_that_another_command_has_is_refused(run: Path, project: Path, capsys: Capture) -> None:
    (project / "parts.py").write_text(FIXED)
    with Lock(run):
        assert "the run is still going" in fails(capsys, *going_on(run))


def test_another_optimizer_is_refused(run: Path, project: Path, capsys: Capture) -> None:
    (project / "parts.py").write_text(FIXED)
    own = """
import torch
@dataclass(frozen=True)
class Own(SGD):
    def build(self, parameters):
        return torch.optim.SGD(parameters, lr=self.lr)

experiment = """
    edit(project / "exp.py", "\nexperiment = ", own)
    edit(project / "exp.py", "optimizer=SGD", "optimizer=Own")
    value, file = experiment_file.load(project / "exp.py")
    found = make_run(run.parent / "own", value, steps=4)
    copies.keep(value, file, found.path)
    (found.path / "summary.json").unlink()
    edit(project / "exp.py", "torch.optim.SGD", "torch.optim.Adam")
    assert "the optimizer is Adam and was SGD" in fails(capsys, *going_on(found.path))
    edit(project / "exp.py", "torch.optim.Adam(parameters", "torch.optim.SGD([*parameters, *parameters[:0]]")
    assert "code replaced after step 4: exp.py" in succeeds(capsys, *going_on(found.path))


# How the new code gets into the run


@pytest.fixture
def other(run: Path, project: Path, tmp_path: Path) -> Callable[[], Path]:
    """Makes a copy of the run, whose code may be replaced."""
    (project / "parts.py").unlink()
    write(project / "parts", {"__init__.py": FIXED})

    def make() -> Path:
        return Path(shutil.copytree(run, tmp_path / "other", dirs_exist_ok=True))

    return make


def texts(run: Path) -> dict[str, bytes]:
    found = copies.read(run)
    assert found
    return {name: source.text for name, source in found.named.items()}


def test_a_run_has_the_new_code_from_one_write_on(
    other: Callable[[], Path], project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = other()
    old, new = texts(path), {"": EXPERIMENT.encode(), "parts/__init__.py": FIXED.encode()}
    Correction(Run(path), project / "exp.py").save()
    assert texts(path) == new and not (path / "modules" / "parts").exists()
    assert Run(path).replaced == [
        {"step": 4, "changed": ["parts.py (removed)", "parts/__init__.py (new)"], "file": str(project / "exp.py")}
    ]
    for at in range(4):
        calls = iter(range(10))

        def stops(file: Path, text: bytes, calls: Iterator[int] = calls, at: int = at) -> None:
            if next(calls) == at:
                raise OSError("refused here")
            write_atomically(file, text)

        with monkeypatch.context() as patch, pytest.raises(OSError, match=r"^refused here$"):
            patch.setattr(copies, "write_atomically", stops)
            copies.settle(path)
        assert texts(path) == new != old
    copies.settle(path)
    copies.settled(path)
    assert texts(path) == new and not (path / "modules" / "parts.py").exists()
    assert not (path / "replacing.json").exists() and len(Run(path).replaced) == 1


def test_a_command_that_read_the_old_code_does_not_go_on_with_it(other: Callable[[], Path], project: Path) -> None:
    path = other()
    waits = Run(path)
    assert waits.experiment.epochs == 2
    waits.check_code()
    Correction(Run(path), project / "exp.py").save()
    with pytest.raises(UserError, match="another command has just replaced the run's code"):
        waits.check_code()
    waits.forget()
    waits.check_code()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"files": 1}',
        '{"files": {"a.py": ""}}',
        '{"files": {"sources.json": "{}", "modules/../../x.py": ""}}',
    ],
)
def test_new_code_that_is_damaged_is_refused_in_one_line(other: Callable[[], Path], capsys: Capture, text: str) -> None:
    path = other()
    (path / "replacing.json").write_text(text)
    assert "replacing.json; remove it" in fails(capsys, "resume", path, "--dry_run")
    assert not (path.parent / "x.py").exists()


def test_a_run_at_a_url_has_the_new_code_from_one_write_on(
    other: Callable[[], Path], project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, at = f"file://{tmp_path}/at/run", 0
    old, new = texts(other()), {"": EXPERIMENT.encode(), "parts/__init__.py": FIXED.encode()}
    write_, remove, done = Storage.write, Storage.remove, [0]

    def counted(change: Callable) -> Callable:
        def changes(self: Storage, *arguments: object) -> None:
            if done[0] == at:
                raise OSError("killed")
            done[0] += 1
            change(self, *arguments)

        return changes

    seen = []
    while True:
        here = mirror(url)
        shutil.rmtree(here, ignore_errors=True)
        shutil.rmtree(tmp_path / "at", ignore_errors=True)
        shutil.copytree(other(), here)
        (here / "url").write_text(url)
        publish(here)
        Correction(Run(url), project / "exp.py").save()
        copies.settle(here)
        done[0] = 0
        with monkeypatch.context() as patch:
            patch.setattr(Storage, "write", counted(write_))
            patch.setattr(Storage, "remove", counted(remove))
            try:
                publish(here)
                whole = True
            except UserError:
                whole = False
        found = texts(Run(url).path)  # which follows the URL
        assert found in (old, new), at
        seen.append(found == new)
        if whole:
            break
        at += 1
    assert seen == sorted(seen) and seen[-1] and len(seen) > 6, "from one write on, it has the new code"
    assert not (tmp_path / "at" / "run" / "replacing.json").exists()
    assert not (tmp_path / "at" / "run" / "modules" / "parts.py").exists()
