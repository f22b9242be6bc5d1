"""Wrappers: plain classes and functions as values that are saved, changed, swept and pickled."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
from helpers import plain_parts as parts
from helpers.commands import fails, succeeds, without_ray
from torch import nn
from torchvision.models import ResNet18_Weights, resnet18

from raytrain import (
    CNN,
    Digits,
    Experiment,
    Grid,
    Plateau,
    Run,
    Sweep,
    TorchModel,
    TorchOptimizer,
    TorchSchedule,
    UserError,
    WarmUp,
    config,
)

__all__ = ["without_ray"]
SCHEDULERS = torch.optim.lr_scheduler
NET = TorchModel(parts.Net, width=12)
E = Experiment(
    model=NET,
    data=Digits(),
    optimizer=TorchOptimizer(torch.optim.RMSprop, lr=0.01, alpha=0.9),
    schedule=WarmUp(TorchSchedule(SCHEDULERS.ReduceLROnPlateau, factor=0.5, patience=2), epochs=0.5),
)


def test_a_value_has_the_fields_of_the_signature_and_builds_the_module() -> None:
    assert config.paths(NET) == ["weights", "new_head", "width", "widths", "num_classes"]
    assert repr(NET) == "TorchModel(Net, width=12)" and NET == TorchModel(parts.Net, width=12)
    shapes = [list(p.shape) for p in NET.build((1, 8, 8), 10).parameters()]
    assert shapes == [[8, 64], [8], [12, 8], [12], [10, 12], [10]], "num_classes is the data's"
    other = TorchModel(parts.Net, widths=[4, 4], num_classes=3).build((1, 8, 8), 10)
    assert [list(p.shape) for p in other.parameters()][-2:] == [[3, 16], [3]]


def test_weights_of_torchvision_s_signature_are_none_or_say_what_to_write() -> None:
    plain = TorchModel(resnet18, num_classes=2)
    assert TorchModel(resnet18, weights=None, num_classes=2) == plain and plain.weights == "none"
    with pytest.raises(UserError, match=r'write model=Torchvision\("resnet18", weights="hub"\)'):
        TorchModel(resnet18, weights=ResNet18_Weights.DEFAULT)


def test_functions_with_open_arguments_take_what_they_are_given() -> None:
    value, unset = TorchModel(parts.net, depth=2, scale=[3, 4], width=5), {"weights": "none", "new_head": False}
    assert config.to_dict(value) == {**unset, "depth": 2, "name": None, "scale": [3, 4], "width": 5}
    assert len(list(value.build((1, 8, 8), 10).parameters())) == 8
    assert replace(value, name="x", depth=1.0).name == "x", "what has no annotation may be any scalar"
    resnet = TorchModel(torchvision.models.resnet18)
    assert resnet.build((3, 32, 32), 7).fc.out_features == 7
    assert config.paths(TorchModel(torchvision.models.ResNet, block=1, layers=[1]))[2:4] == ["block", "layers"]
    squeezenet = TorchModel(torchvision.models.squeezenet1_1, dropout=0.1)
    assert squeezenet.build((3, 64, 64), 2).num_classes == 2, "its own `weights` keeps its default"


def test_json_names_the_target_and_gives_the_same_value(tmp_path: Path) -> None:
    values = json.loads(json.dumps(config.to_dict(E)))
    assert values["model"] == {
        "class": "raytrain:TorchModel(helpers.plain_parts:Net)",
        "weights": "none",
        "new_head": False,
        "width": 12,
        "widths": [8],
        "num_classes": None,
    }
    assert values["optimizer"]["class"] == "raytrain:TorchOptimizer(torch.optim:RMSprop)"
    inner = values["schedule"]["schedule"]
    assert inner["class"] == "raytrain:TorchSchedule(torch.optim.lr_scheduler:ReduceLROnPlateau)"
    assert config.from_dict(Experiment, values, "a test") == E
    assert config.leaves(E)["model.class"] == "raytrain:TorchModel(helpers.plain_parts:Net)"
    assert config.replace(E, "model.width", 20).model == TorchModel(parts.Net, width=20)
    with pytest.raises(UserError, match=r"did you mean model.width\?"):
        config.from_dict(Experiment, values | {"model": values["model"] | {"widht": 3}}, "a test")


@pytest.mark.parametrize(
    "name",
    [
        *(
            "os:system",
            "os:_exit",
            "subprocess:Popen",
            "subprocess:run",
            "builtins:exec",
            "builtins:eval",
            "shutil:rmtree",
        ),
        *("torch:load", "torch.hub:load", "pickle:loads", "helpers.plain_parts:torch.load", "collections:OrderedDict"),
        *("torch.nn:Module", "raytrain.files:write_atomically", "torch.optim:SGD", "torch.utils.data:Dataset"),
        *("antigravity:geohash", "torchvision.datasets:MNIST", "raytrain.config:from_dict", "torchvision:io.read_file"),
    ],
)
def test_json_cannot_name_what_is_no_part_of_a_model(name: str) -> None:
    before = set(sys.modules)
    values = config.to_dict(E) | {"model": {"class": f"raytrain:TorchModel({name})"}}
    with pytest.raises(UserError, match="cannot be found"):
        config.from_dict(Experiment, values, "a test")
    assert "antigravity" not in set(sys.modules) - before


def test_json_cannot_put_an_optimizer_in_the_place_of_a_model() -> None:
    values = config.to_dict(E)
    with pytest.raises(UserError, match="cannot be found"):
        config.from_dict(Experiment, values | {"model": values["optimizer"]}, "a test")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TorchModel(parts.Net, 3), r"by name, got 3, in TorchModel\(Net .*; write TorchModel\(Net, width=3\)"),
        (lambda: TorchModel(), "TorchModel needs a class derived from nn.Module"),
        (lambda: TorchModel(nn.Sequential()), r"got a Sequential, .*; write TorchModel\(net\), with `def net\(\): ret"),
        (lambda: TorchModel(parts.Net()), r"got a Net, in TorchModel; write TorchModel\(Net, ...\)"),
        (lambda: TorchModel("resnet18"), "got 'resnet18'"),
        (lambda: TorchModel(dict), "got the class dict"),
        (lambda: TorchModel(torch.optim.SGD), "got the class SGD"),
        (lambda: TorchModel(lambda: nn.Linear(1, 1)), "<lambda> is defined inside a function"),
        (
            lambda: TorchModel(torch.compile),
            "takes functions of your own modules and of torchvision.models and of timm",
        ),
        (lambda: TorchModel(parts.Net, widht=3), "Net has no argument 'widht', .*; did you mean width?"),
        (lambda: TorchModel(parts.wants_two, first=1), r"needs second, .*; write TorchModel\(wants_two, second=...\)"),
        (lambda: TorchModel(parts.by_position), "takes 'width' by position alone"),
        (lambda: TorchModel(parts.taken), "the argument 'load' of taken has a name that TorchModel uses itself"),
        (lambda: TorchModel(parts.Net, act=nn.GELU), r"act = .* is no number.*def my_net\(\): return Net\(act=...\)"),
        (lambda: TorchModel(parts.Net, width=torch.ones(())), "width = tensor.* is no number"),
        (lambda: TorchModel(parts.Net, width="wide"), "width = 'wide' is of the wrong type"),
        (lambda: TorchModel(parts.nothing).build((1,), 3), "nothing must return an nn.Module, got NoneType"),
        (lambda: TorchOptimizer(torch.optim.LBFGS, lr=1.0), "LBFGS evaluates the loss several times in a step"),
        (lambda: TorchOptimizer(parts.Switching), "Switching puts other weights into the model by eval()"),
        (lambda: TorchOptimizer(torch.optim.RMSprop, lr=-1.0), "lr = -1.0 is out of range"),
        (lambda: TorchOptimizer(torch.optim.SparseAdam, weight_decay=0.1), "SparseAdam has no weight_decay"),
        (lambda: TorchOptimizer(parts.without_lr), "without_lr has no argument 'lr'"),
        (
            lambda: TorchSchedule(SCHEDULERS.LambdaLR, lr_lambda=abs),
            "def my_lambdalr.optimizer.: return LambdaLR.optimi",
        ),
        (lambda: TorchSchedule(SCHEDULERS.StepLR, step_size=1, last_epoch=3), "StepLR cannot be given last_epoch"),
    ],
)
def test_a_mistake_is_one_line(make: Any, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_a_sweep_varies_an_argument_and_the_whole_model() -> None:
    sweep = Sweep(E, (Grid("model.width", (4, 8)), Grid("optimizer.alpha", (0.5,))))
    found = sweep.trial({"model.width": 8, "optimizer.alpha": 0.5})
    assert found.model == TorchModel(parts.Net, width=8) and config.get(found, "optimizer.alpha") == 0.5
    whole = Sweep(E, (Grid("model", (NET, TorchModel(parts.net), CNN())),))
    assert config.labels(whole.axes[0].finite or ()) == ("TorchModel(Net)", "TorchModel(net)", "CNN")
    with pytest.raises(UserError, match=r"axis model\.width has a value that its field refuses"):
        Sweep(E, (Grid("model.width", ("wide",)),))


def test_pickled_values_are_equal_also_in_a_fresh_process(tmp_path: Path) -> None:
    assert pickle.loads(pickle.dumps(E)) == E
    (tmp_path / "value.pkl").write_bytes(pickle.dumps(E))
    code = "import pickle, sys; e = pickle.load(open(sys.argv[1], 'rb')); print(e.model, e.model.build((1, 8, 8), 10))"
    path = ":".join([*sys.path, str(Path(__file__).parents[1])])
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "value.pkl"],
        env={"PYTHONPATH": path, "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("TorchModel(Net, width=12) Net(")


FILE = """
import torch
from torch import nn
from raytrain import Digits, Experiment, TorchModel, TorchOptimizer, TorchSchedule
from more import Net

def optimizer(parameters, lr=0.01):
    return torch.optim.NAdam(parameters, lr=lr)

experiment = Experiment(
    model=TorchModel(Net, width=16),
    data=Digits(),
    optimizer=TorchOptimizer(optimizer),
    schedule=TorchSchedule(torch.optim.lr_scheduler.StepLR, step_size=1, gamma=0.5),
    epochs=1,
)
"""
MODULE = """
from torch import nn

class Net(nn.Module):
    def __init__(self, width=8, num_classes=1000):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, num_classes))

    def forward(self, images):
        return self.layers(images)
"""


@pytest.mark.slow
def test_a_plain_model_is_trained_resumed_exported_and_repeated(tmp_path: Path) -> None:
    (tmp_path / "exp.py").write_text(FILE)
    (tmp_path / "more.py").write_text(MODULE)

    def commands(*lines: str) -> None:
        code = f"from raytrain import cli\nfor line in {lines!r}:\n    assert cli.run(line.split()) == 0, line"
        subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, check=True)

    where = "--out . --scaling.workers 0"
    commands(f"train exp.py --name a {where} --model.width 24 --optimizer.lr 0.02")
    for name in ("exp.py", "more.py"):  # the run has copies
        (tmp_path / name).unlink()
    commands("resume a --epochs 2", "export a model.pth", f"train a --name b {where}")
    assert Run(tmp_path / "a").model().state_dict()["layers.1.bias"].shape == (24,)
    assert (tmp_path / "model.pth").stat().st_size > 4 * 64 * 24
    assert Run(tmp_path / "a").metrics("step")["lr"].to_pylist()[::23] == [0.02, 0.01]
    first, second = (Run(tmp_path / name).metrics("step")["loss"].to_pylist() for name in "ab")
    assert first == second and len(first) == 46
    text = (tmp_path / "a" / "experiment.json").read_text()
    assert text == (tmp_path / "b" / "experiment.json").read_text() and "TorchModel(more:Net)" in text


@pytest.mark.usefixtures("without_ray")
def test_help_lists_the_arguments(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "exp.py").write_text(FILE.replace("from more import Net", MODULE))
    said = succeeds(capsys, "train", tmp_path / "exp.py", "--help")
    assert "did you mean --model.width" in fails(capsys, "train", tmp_path / "exp.py", "--model.widht", 3)
    assert "--model.width" in said and "--schedule.gamma" in said and "--optimizer.lr" in said


def test_a_saved_run_without_code_of_its_own_needs_no_experiment_file() -> None:
    value = Experiment(CNN(), Digits(), optimizer=TorchOptimizer(torch.optim.RMSprop), schedule=Plateau())
    text = json.dumps(config.to_dict(value))
    code = (
        "import json, sys; from raytrain import Experiment, config\nassert 'torch' not in sys.modules\n"
        "print(config.from_dict(Experiment, json.load(sys.stdin), 'x').optimizer)"
    )
    done = subprocess.run([sys.executable, "-c", code], input=text, capture_output=True, text=True, check=True)
    assert done.stdout == "TorchOptimizer(RMSprop)\n"
