"""experiment: from a file to a value and back, and the rules that hold between its fields."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import raytrain
from raytrain import CNN, Augment, Data, Deterministic, Digits, Experiment, Model, Scaling, UserError, config
from raytrain.run import experiment_file

GOOD = """
from dataclasses import dataclass
from raytrain import CNN, Digits, Experiment, Model

@dataclass(frozen=True)
class Net(Model):
    width: int = 3
    def build(self, sample, classes):
        from torch import nn
        return nn.Sequential(nn.Flatten(), nn.Linear(64, self.width), nn.Linear(self.width, classes))

experiment = Experiment(model=Net(width=5), data=Digits(), epochs=2)
"""


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Loading a file leaves its module and its folder behind, as running it would."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    sys.modules.pop(config.EXPERIMENT_MODULE, None)


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text))
    return path


# load


def test_a_python_file_gives_its_experiment_and_its_path(tmp_path: Path) -> None:
    file = write(tmp_path / "exp.py", GOOD)
    value, source = experiment_file.load(file)
    assert value.epochs == 2 and type(value.model).__name__ == "Net" and source == file
    assert experiment_file.load(str(file))[0].epochs == 2
    assert [path.name for path in tmp_path.iterdir()] == ["exp.py"], "reading leaves nothing behind"


def test_current_text_of_a_file_is_loaded(tmp_path: Path) -> None:
    for epochs in (2, 3, 4):
        assert experiment_file.load(write(tmp_path / "exp.py", GOOD.replace("epochs=2", f"epochs={epochs}")))[
            0
        ].epochs == (epochs)


def test_a_file_runs_as_python_would_run_it(tmp_path: Path) -> None:
    own = "class A:\n    b: int\nassert A.__annotations__ == {'b': int}\nassert __name__ != '__main__'\n"
    own += f"assert __file__ == {str(tmp_path / 'exp.py')!r}\nfrom beside import EPOCHS\nassert EPOCHS == 2\n"
    write(tmp_path / "beside.py", "EPOCHS = 2\n")
    assert experiment_file.load(write(tmp_path / "exp.py", own + GOOD))[0].epochs == 2
    sys.modules.pop("beside")


def test_json_and_the_run_directory_give_the_same_experiment(tmp_path: Path) -> None:
    value = Experiment(model=CNN(channels=(4,)), data=Digits(), epochs=3)
    experiment_file.save(value, tmp_path / "experiment.json")
    assert experiment_file.load(tmp_path / "experiment.json") == (value, None)
    assert experiment_file.load(tmp_path) == (value, None)


def test_model_class_survives_save_and_load_with_its_copy(tmp_path: Path) -> None:
    value, source = experiment_file.load(write(tmp_path / "exp.py", GOOD))
    run = tmp_path / "run"
    run.mkdir()
    experiment_file.save(value, run / "experiment.json")
    assert source is not None
    shutil.copyfile(source, run / "experiment.py")
    sys.modules.pop(config.EXPERIMENT_MODULE)
    again, copy = experiment_file.load(run / "experiment.json")
    assert copy == run / "experiment.py" and config.to_dict(again) == config.to_dict(value)
    module = again.model.build((1, 8, 8), 10)
    assert sum(parameter.numel() for parameter in module.parameters()) == 64 * 5 + 5 + 5 * 10 + 10


def test_class_without_its_copy_is_not_found(tmp_path: Path) -> None:
    value, _ = experiment_file.load(write(tmp_path / "exp.py", GOOD))
    experiment_file.save(value, tmp_path / "experiment.json")
    with pytest.raises(UserError, match=r"class 'experiment:Net' cannot be found"):
        experiment_file.load(tmp_path / "experiment.json")


def test_wrapped_class_of_a_notebook_is_to_be_written_into_a_file(tmp_path: Path) -> None:
    made = '{"model": {"class": "raytrain:TorchModel(experiment:Net)"}, "data": {"class": "raytrain:Digits"}}'
    saved = write(tmp_path / "experiment.json", made)
    with pytest.raises(UserError, match=r"into .*experiment\.py: the class of a notebook has no file"):
        experiment_file.load(saved)


def test_script_loads_its_own_class_without_a_second_run(tmp_path: Path) -> None:
    script = write(
        tmp_path / "script.py",
        f"{GOOD}\n"
        "import pathlib, shutil\n"
        "from raytrain import config, load_experiment\n"
        "from raytrain.run.experiment_file import save\n"
        "print('running')\n"
        "pathlib.Path('run').mkdir()\n"
        "save(experiment, pathlib.Path('run/experiment.json'))\n"
        "for copied in (False, True):\n"
        "    if copied: shutil.copyfile(__file__, 'run/experiment.py')\n"
        "    assert load_experiment('run')[0] == experiment and type(load_experiment('run')[0].model) is Net\n",
    )
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("running\n", "")


def test_a_file_that_trains_while_it_is_read_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path / "exp.py", f"{GOOD}\nimport raytrain\nraytrain.train(experiment, out='runs')\n")
    with pytest.raises(UserError, match=r"starts a training while it is read, .*exp.py; put that under `if __name__"):
        experiment_file.load(file)
    experiment_file.refuse_while_loading()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\ny = (\n", r"does not load: '\(' was never closed, .*exp.py:2; correct that line"),
        ("from raytrain import Experimet\n", r"cannot import name 'Experimet' .*exp.py:1; did you mean Experiment or"),
        ("import raytrain as rt\nrt.adamW()\n", r"no attribute 'adamW', .*exp.py:2; did you mean AdamW"),
        ("x = 1\n\nraise ValueError('my reason')\n", r"does not load: ValueError: my reason, .*exp.py:3;"),
        ("def f():\n    return 1 / 0\n\nf()\n", r"does not load: ZeroDivisionError: .*exp.py:2;"),
        ("import nothing_of_that_name\n", r"ModuleNotFoundError: No module named 'nothing_of_that_name', .*exp.py:1;"),
        ("raise SystemExit(3)\n", r"does not load: SystemExit: 3, .*exp.py:1;"),
        ("x = '\0'\n", r"the experiment file does not load: .*null bytes, .*exp.py"),
        ("x = 1\n", r"not an experiment: it defines no `experiment`, .*exp.py; give a .py file that ends in"),
        ("experiment = {'epochs': 1}\n", r"not an experiment: its `experiment` is a dict, .*exp.py"),
        ("from raytrain import Experiment as experiment\n", r"not an experiment: its `experiment` is a type"),
        ("from raytrain import SGD\nSGD(lr=-1)\n", r"lr = -1 is out of range, in SGD \(.*exp.py:2\); give a value"),
    ],
)
def test_a_file_that_gives_no_experiment_is_named_with_the_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        experiment_file.load(write(tmp_path / "exp.py", text))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("exp.json", "{", r"not an experiment: Expecting property name .*exp.json"),
        ("exp.json", "[]", r"this is a list, and the experiment.json of a run is an object, .*exp.json; write a table"),
        ("exp.json", "3", r"experiment = 3 is of the wrong type, .*exp.json; give a JSON object"),
        ("exp.json", "[" * 200_000, r"not an experiment: maximum recursion depth .*exp.json"),
        ("exp.json", "{}", r"field 'model' is missing, .*exp.json"),
        ("exp.csv", "path,label", r"this is a table, and not an experiment file, .*exp.csv; `raytrain new .*exp.csv`"),
        ("exp.yaml", "a: 1", r"not an experiment: its name ends in .yaml, .*exp.yaml"),
        ("exp", "a: 1", r"not an experiment: its name ends in nothing, .*exp;"),
        (None, "", r"no such experiment file, .*missing.py; check the spelling"),
    ],
)
def test_a_file_of_another_kind_is_refused(tmp_path: Path, name: str | None, text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        experiment_file.load(write(tmp_path / name, text) if name else tmp_path / "missing.py")


def test_binary_files_and_other_folders_are_refused(tmp_path: Path) -> None:
    (tmp_path / "exp.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="not an experiment"):
        experiment_file.load(tmp_path / "exp.json")
    (tmp_path / "My Photos").mkdir()
    with pytest.raises(UserError, match=r"this is a folder, .*My Photos; `raytrain new '.*/My Photos'` writes"):
        experiment_file.load(tmp_path / "My Photos")
    (tmp_path / "My Photos" / "exp.py").write_text("experiment = 1")
    with pytest.raises(UserError, match=r"this is a folder, .*My Photos; did you mean .*My Photos/exp.py\?"):
        experiment_file.load(tmp_path / "My Photos")
    with pytest.raises(UserError, match="no such experiment file"):
        experiment_file.load(tmp_path / ("x" * 300))


@pytest.mark.parametrize(
    ("imports", "call", "message"),
    [
        (
            "from raytrain import *",
            "Experiment(optimiser=1)",
            "'optimiser', in Experiment .*py:2.; did you mean optimizer?",
        ),
        (
            "import raytrain as rt",
            "rt.Experiment(rt.CNN(chanels=(8,)))",
            "'chanels', in CNN .*; did you mean channels?",
        ),
        ("from raytrain import *", "Experiment(lr=0.1)", r"'lr', .*did you mean optimizer=SGD\(lr=...\)\?"),
        (
            "from raytrain import *",
            "Experiment(augment=1)",
            r"'augment', .*did you mean data=ImageFolder\(augment=...\)\?",
        ),
        (
            "from raytrain import *",
            "Experiment(loss=1)",
            r"'loss', .*did you mean task=Classification",
        ),
        ("from raytrain import *", "Experiment(seeed=1)", r"'seeed', .*did you mean seed\?"),
    ],
)
def test_a_mistyped_argument_names_the_field(tmp_path: Path, imports: str, call: str, message: str) -> None:
    with pytest.raises(UserError, match=f"unknown field {message}"):
        experiment_file.load(write(tmp_path / "exp.py", f"{imports}\nexperiment = {call}\n"))


# Rules between fields


@pytest.mark.parametrize(
    ("batch_size", "workers"), [(63, 2), (65, 2), (1, 2), (3, 4), (7, 3), (64, 3), (100, 64), (999, 1000)]
)
def test_every_batch_size_that_the_remedy_offers_is_taken(batch_size: int, workers: int) -> None:
    with pytest.raises(UserError) as caught:
        Experiment(model=CNN(), data=Digits(), batch_size=batch_size, scaling=Scaling(workers=workers))
    assert caught.value.what == f"batch_size {batch_size} does not divide by scaling.workers {workers}"
    offered = [int(number) for number in re.findall(r"\d+", caught.value.how)]
    assert offered and all(abs(number - batch_size) < workers for number in offered)
    for number in offered:
        Experiment(model=CNN(), data=Digits(), batch_size=number, scaling=Scaling(workers=workers))


@pytest.mark.parametrize(("batch_size", "workers", "micro"), [(64, 2, 33), (64, 2, 31), (64, 1, 100), (7, 1, 2)])
def test_remedy_for_a_micro_batch_is_valid_and_largest(batch_size: int, workers: int, micro: int) -> None:
    def build(size: int) -> Experiment:
        scaling = Scaling(workers=workers)
        return Experiment(model=CNN(), data=Digits(), batch_size=batch_size, micro_batch_size=size, scaling=scaling)

    with pytest.raises(UserError) as caught:
        build(micro)
    (offered,) = [int(number) for number in re.findall(r"\d+", caught.value.how)]
    value = build(offered)
    assert value.micro_batch * value.accumulation * workers == batch_size and offered <= micro
    for larger in range(offered + 1, micro):
        with pytest.raises(UserError, match="micro_batch_size"):
            build(larger)


@pytest.mark.parametrize("mixing", [Augment(mixup=0.2), Augment(cutmix=1.0)])
@pytest.mark.parametrize(
    ("batch_size", "workers", "micro"),
    [(63, 1, None), (66, 2, None), (1, 1, None), (64, 2, 1), (60, 2, 5), (60, 1, 15), (90, 3, 15), (63, 1, 21)],
)
def test_odd_micro_batch_is_refused_with_mixing(
    batch_size: int, workers: int, micro: int | None, mixing: Augment
) -> None:
    def build(data: Data, batch_size: int, micro: int | None) -> Experiment:
        scaling = Scaling(workers=workers)
        return Experiment(CNN(), data, batch_size=batch_size, micro_batch_size=micro, scaling=scaling)

    odd = build(Digits(augment=Augment(erase=0.5)), batch_size, micro).micro_batch
    with pytest.raises(UserError) as caught:
        build(Digits(augment=mixing), batch_size, micro)
    assert str(caught.value).startswith(
        f"a worker's micro-batch of {odd} does not divide by mixup's and cutmix's pairs of 2; use --"
    )
    numbers = [*map(int, re.findall(r"\d+", caught.value.how))]
    assert numbers
    for number in numbers:
        if "use --micro" in caught.value.how:
            build(Digits(augment=mixing), batch_size, number)
        else:
            build(Digits(augment=mixing), number, 2 if "an even" in caught.value.how else micro)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"scaling": Scaling(workers=3)},
            "3 workers cannot share the 4 shards of a batch evenly, in scaling.workers; use 1, 2 or 4",
        ),
        (
            {"precision": "auto"},
            "auto chooses by measured times, which differ from run to run, in precision; use --precision",
        ),
        ({"compile": True}, "torch.compile's kernels depend on the shapes that it has met before, in compile; use"),
    ],
)
def test_what_cannot_be_deterministic_is_refused(fields: dict[str, Any], message: str) -> None:
    value = Experiment(model=CNN(), data=Digits(), batch_size=60, **fields)
    with pytest.raises(UserError) as caught:
        replace(value, parallel=Deterministic())
    assert str(caught.value).startswith(f"deterministic gives the same bits on any number of workers, and {message}")
    assert str(caught.value).endswith(", or --parallel.strategy ddp")


@pytest.mark.parametrize("batch_size", [1, 6, 62, 63])
def test_deterministic_batch_divides_into_shards(batch_size: int) -> None:
    def build(batch_size: int, **fields: Any) -> Experiment:
        return Experiment(model=CNN(), data=Digits(), batch_size=batch_size, parallel=Deterministic(), **fields)

    with pytest.raises(UserError) as caught:
        build(batch_size)
    assert (
        caught.value.what
        == f"batch_size {batch_size} does not divide by the shards of --parallel.strategy deterministic: 4"
    )
    numbers = [*map(int, re.findall(r"\d+", caught.value.how))]
    assert numbers
    for number in numbers:
        value = build(number, scaling=Scaling(workers=2))
        assert (value.part, value.micro_batch, value.accumulation) == (number // 4, number // 4, 2)
    with pytest.raises(UserError, match=r"batch of 16 does not divide by micro_batch_size 32; use .* 16$"):
        build(64, micro_batch_size=32)
    value = build(64, micro_batch_size=8, scaling=Scaling(workers=2))
    assert (value.part, value.micro_batch, value.accumulation) == (16, 8, 4)
    with pytest.raises(UserError, match=r"micro-batch of 15 .* pairs of 2; use --batch_size 56 or 64$"):
        Experiment(model=CNN(), data=Digits(augment=Augment(mixup=0.2)), batch_size=60, parallel=Deterministic())


def test_the_arithmetic_of_a_step() -> None:
    value = Experiment(model=CNN(), data=Digits(), batch_size=64, scaling=Scaling(workers=4), micro_batch_size=8)
    assert (value.micro_batch, value.accumulation) == (8, 2)
    value = Experiment(model=CNN(), data=Digits(), batch_size=64, scaling=Scaling(workers=0))
    assert (value.micro_batch, value.accumulation) == (64, 1)


@pytest.mark.parametrize(
    "wrong",
    [
        *({"epochs": 0}, {"batch_size": 0}, {"seed": -1}, {"clip_norm": 0.0}, {"ema_decay": 0.0}, {"ema_decay": 1.0}),
        *({"patience": 0}, {"unfreeze_epoch": 0}),
    ],
)
def test_numbers_out_of_range_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(UserError, match="out of range, in Experiment"):
        Experiment(model=CNN(), data=Digits(), **wrong)  # type: ignore[arg-type]


# Help


def reachable() -> list[type]:
    seams = {hint for hint in config._hints(Experiment).values() if isinstance(hint, type)}
    seams = {Experiment, raytrain.Augment} | {seam for seam in seams if dataclasses.is_dataclass(seam)}
    for _ in range(3):
        seams |= {sub for seam in seams for sub in seam.__subclasses__() if sub.__module__.startswith("raytrain.")}
    written = [cls for cls in seams if "__target__" not in vars(cls)]  # others are made by wrappers
    return sorted(written, key=lambda cls: cls.__qualname__)


@pytest.mark.parametrize("cls", reachable())
def test_every_field_and_class_is_documented_for_help(cls: type) -> None:
    assert cls.__doc__ and not cls.__doc__.startswith(f"{cls.__name__}("), "dataclass writes that one itself"
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(tree, ast.ClassDef)
    for node, after in zip(tree.body, [*tree.body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign):
            said = after.value if isinstance(after, ast.Expr) else None
            assert isinstance(said, ast.Constant) and str(said.value).endswith("."), ast.unparse(node)


def test_the_seams_are_among_the_classes_whose_help_is_checked() -> None:
    assert {Experiment, Scaling, Model, CNN, Digits, raytrain.SGD, raytrain.DDP, raytrain.Classification} <= set(
        reachable()
    )
    assert len(reachable()) >= 24


def test_class_of_a_module_is_found_in_the_runs_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bnet.py").write_text(
        "from dataclasses import dataclass\nfrom raytrain import *\n"
        "@dataclass(frozen=True)\nclass BNet(CNN):\n    depth: int = 3\n"
        "experiment = Experiment(BNet(depth=5), Digits())\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("bnet")
    (tmp_path / "run").mkdir()
    experiment_file.save(module.experiment, tmp_path / "run" / "experiment.json")
    shutil.copyfile(tmp_path / "bnet.py", tmp_path / "run" / "experiment.py")
    monkeypatch.delitem(sys.modules, "bnet")
    found, _ = experiment_file.load(tmp_path / "run")
    assert type(found.model).__name__ == "BNet" and vars(found.model)["depth"] == 5
