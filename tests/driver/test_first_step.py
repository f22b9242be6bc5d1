"""The step that the plan computes: mistakes in one line with the user's file and line, and what works."""

from __future__ import annotations

import os
import random
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.commands import fails, no_runs, succeeds, without_ray
from torch import nn
from torch.nn.functional import cross_entropy

from raytrain import (
    CNN,
    MLP,
    Batch,
    Classification,
    Data,
    Digits,
    Experiment,
    Index,
    Model,
    Optimizer,
    Scaling,
    Schedule,
    SimpleModel,
    Task,
    UserError,
)
from raytrain.driver import plan
from raytrain.driver.plan import Plan
from raytrain.driver.resources import Node, Resources
from raytrain.training import memory

__all__ = ["no_runs", "without_ray"]

Capture = pytest.CaptureFixture[str]

HEAD = """\
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from dataclasses import dataclass
from raytrain import *
@dataclass(frozen=True)
class Net(Model):
    def build(self, sample, classes):
        return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))
"""
LINES = HEAD.count("\n")


def file(folder: Path, body: str) -> Path:
    (folder / "exp.py").write_text(HEAD + body)
    return folder / "exp.py"


def said(capsys: Capture, folder: Path, body: str) -> str:
    """What the command says to an experiment file; lines are counted from the end of HEAD."""
    text = fails(capsys, "train", file(folder, body), "--out", folder / "runs").replace(f"{folder}/", "")
    for line in range(60, LINES, -1):
        text = text.replace(f"exp.py:{line}", f"exp.py:+{line - LINES}")
    return text


# What task, model, optimizer and schedule do and return

LOSS = """\
@dataclass(frozen=True)
class T(Classification):
    def loss(self, model, batch):
        {}
experiment = Experiment(Net(), Digits(), T())
"""
AT = "in T.loss (exp.py:+3)"


@pytest.mark.usefixtures("without_ray", "no_runs")
@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return cross_entropy(model(batch.images), batch.labels)", f"got a tensor of float32 [], {AT}; write `return"),
        ("return len(batch), cross_entropy(model(batch.images), batch.labels)", f"got them in the other order, {AT}; "),
        ("return cross_entropy(model(batch.images), batch.labels), 2, 3", f"a loss and a count, got 3 values, {AT}; "),
        ("model(batch.images)", f"loss() must return a loss and a count, got NoneType, {AT}; write `return loss, len("),
        (
            "return cross_entropy(model(batch.images), batch.labels, reduction='none'), len(batch)",
            f"the loss must be a scalar tensor of floats, got a tensor of float32 [2], {AT}; ",
        ),
        ("return cross_entropy(model(batch.images), batch.labels).item(), 2", f"tensor of floats, got float, {AT}; "),
        ("return (model(batch.images).argmax(1) != batch.labels).sum(), 2", f"got a tensor of int64 [], {AT}; "),
        (
            "return cross_entropy(model(batch.images).detach(), batch.labels, reduction='sum'), len(batch)",
            f"the loss has no gradient: it does not depend on the model's weights by operations of torch, {AT}; leave",
        ),
        (
            "return cross_entropy(model(batch.images), batch.labels) * float('inf') * 0, len(batch)",
            f"the loss of the first 64 samples is nan before any training, {AT}; look for a division by zero",
        ),
        (
            "x = model(batch.images)\n        return (x - x).square().sum().sqrt(), len(batch)",
            f"the gradient of 1.weight is not finite for the first 64 samples, {AT}; look for what has no derivative",
        ),
        (
            "return cross_entropy(model(batch.images), batch.labels, reduction='sum'), 1",
            "counts 1 for 2 samples and",
        ),
        (
            "return cross_entropy(model(batch.images), batch.labels, reduction='sum'), 64",
            f"loss() counts 64 for 2 samples and 64 for 4, {AT}; count the same for every sample: write `return loss, ",
        ),
        ("return model(batch.images).sum(), 0", f"the count of samples must be a number above 0, got 0, {AT}; "),
        ("return model(batch.images).sum(), torch.tensor(2)", "must be a number above 0, got a tensor of int64 []"),
        (
            "return model(batch.image).sum(), len(batch)",
            "the first training step fails for images float32 [64, 1, 8, 8] and labels int64 [64]: AttributeError: "
            "'Batch' object has no attribute 'image', exp.py:+4; a batch has images, labels, ids and targets",
        ),
        ("images, labels = batch\n        return model(images).sum(), 2", "exp.py:+4; a batch has images, labels, ids"),
        ("return nn.functional.mse_loss(model(batch.images), batch.labels), 2", ", exp.py:+4; correct that line"),
        (
            "x = model(batch.images).sigmoid()\n        x += 1\n        return x.sum(), len(batch)",
            "the backward pass fails for images float32 [64, 1, 8, 8] and labels int64 [64]: RuntimeError: one of the "
            "variables needed for gradient computation has been modified by an inplace operation",
        ),
    ],
)
def test_a_loss_that_training_cannot_use_is_named_with_its_line(
    capsys: Capture, tmp_path: Path, body: str, message: str
) -> None:
    assert message in said(capsys, tmp_path, LOSS.format(body))


@pytest.mark.usefixtures("without_ray", "no_runs")
def test_input_that_is_no_number_is_named_with_its_sample(capsys: Capture, tmp_path: Path) -> None:
    body = """\
import dataclasses
import numpy as np
class Broken(Digits):
    def read(self, index, samples):
        found = super().read(index, samples).astype(np.float32)
        found[samples % 5 > 0] = np.nan
        return found
    def index(self):
        every = super().index()
        fields = (Field("image", (1, 8, 8), "float32", kind="image"),)
        return {name: dataclasses.replace(one, shape=None, fields=fields) for name, one in every.items()}
experiment = Experiment(Net(), Broken())
"""
    text = said(capsys, tmp_path, body)
    found = re.search(r"leave sample (\d+) out, or replace the values of its 'image' that are not finite", text)
    assert found and int(found[1]) % 5 > 0, text


@pytest.mark.usefixtures("without_ray", "no_runs")
@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            """\
class T(Classification):
    def loss(self, output, target, weight):
        return output, 1
experiment = Experiment(Net(), Digits(), T())
""",
            "TypeError: T.loss() missing 1 required positional argument: 'weight', in T.loss (exp.py:+2); "
            "write `def loss(self, model, batch)`",
        ),
        (
            "class T(Task):\n    pass\nexperiment = Experiment(Net(), Digits(), T())\n",
            "NotImplementedError: T needs a loss(model, batch), in T (exp.py:+1); write that method",
        ),
        (
            """\
class T(Classification):
    def sums(self, model, batch):
        return {"loss": 1.0, "count": 2}
experiment = Experiment(Net(), Digits(), T())
""",
            "sums() must return a dict of tensors, got float for 'loss', in T.sums (exp.py:+2); write `torch.tensor(",
        ),
        (
            """\
class T(Classification):
    def results(self, sums):
        return {"loss": sums["losss"]}
experiment = Experiment(Net(), Digits(), T())
""",
            "T.results fails for images float32 [64, 1, 8, 8] and labels int64 [64]: KeyError: 'losss', exp.py:+3; ",
        ),
        (
            """class Root(Metric):
    directions = {"root": "max"}
    def sums(self, outputs, batch):
        return {"all": outputs.sum()}
    def values(self, found):
        return {"root": float(found["all"].sqrt())}
experiment = Experiment(Net(), Digits(), Classification(metrics=(Root(),)))
""",
            "Root.values fails for images float32 [64, 1, 8, 8] and labels int64 [64]: AttributeError: 'numpy.ndarray' "
            "object has no attribute 'sqrt', exp.py:+6; correct that line",
        ),
        (
            """\
class T(Classification):
    def results(self, sums):
        return {"loss": 1.0}
experiment = Experiment(Net(), Digits(), T())
""",
            "task.monitor is 'val_accuracy', and the metrics are val_loss, in T.results (exp.py:+2); return 'accuracy'",
        ),
        (
            """\
class T(Classification):
    def results(self, sums):
        return super().results(sums) | {"error": sums["loss"].astype("float32").sum()}
experiment = Experiment(Net(), Digits(), T())
""",
            "got numpy.float32 for 'error', in T.results (exp.py:+2); write `float(...)` around 'error'",
        ),
        (
            """\
class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(64, 10)
    def forward(self, x):
        x = self.head(x.flatten(1))
        return x + self.nothing if self.training else x
class M(Model):
    def build(self, sample, classes):
        return Inner()
experiment = Experiment(M(), Digits())
""",
            "AttributeError: 'Inner' object has no attribute 'nothing', exp.py:+7; correct that line",
        ),
        (
            "class M(Model):\n    def build(self, sample):\n        return 1\nexperiment = Experiment(M(), Digits())\n",
            "M.build fails: TypeError: M.build() takes 2 positional arguments but 3 were given, in M.build (exp.py:+2)"
            "; write `def build(self, sample, classes)`, which returns an nn.Module",
        ),
        (
            "class M(Model):\n    def build(self, sample, classes):\n        nn.Linear(1, 1)\n"
            "experiment = Experiment(M(), Digits())\n",
            "build() must return an nn.Module, got NoneType, in M.build (exp.py:+2); write",
        ),
        (
            """\
class O(Optimizer):
    def build(self, parameters):
        return torch.optim.RMSprop(parameters, lrr=self.lr)
experiment = Experiment(Net(), Digits(), optimizer=O())
""",
            "O.build fails",
        ),
        (
            """\
class O(Optimizer):
    def build(self, parameters):
        return torch.optim.RMSprop([p for group in parameters for p in group["params"]], lr=self.lr)
experiment = Experiment(Net(), Digits(), optimizer=O())
""",
            "build() must hand all of `parameters` to the optimizer as they are, in O.build (exp.py:+2); write `return",
        ),
        (
            """\
class S(Schedule):
    def factor(self, step):
        return 1.0
experiment = Experiment(Net(), Digits(), schedule=S())
""",
            "TypeError: S.factor() takes 2 positional arguments but 4 were given, in S.factor (exp.py:+2); write `def",
        ),
        (
            """\
class S(Schedule):
    def factor(self, step, steps_per_epoch, epochs):
        return 1 / (steps_per_epoch * epochs - step - 1)
experiment = Experiment(Net(), Digits(), schedule=S(), epochs=2)
""",
            "the schedule fails at step 45 of 46: ZeroDivisionError: division by zero, exp.py:+3; correct that line",
        ),
        (
            """\
class S(Schedule):
    def factor(self, step, steps_per_epoch, epochs):
        return 1 - step / 10
experiment = Experiment(Net(), Digits(), schedule=S())
""",
            "factor() must return a finite number of at least 0, got -",
        ),
        (
            "experiment = Experiment(CNN((8,), batch_norm=True), Digits(crop=1), micro_batch_size=1)",
            "BatchNorm needs micro-batches of two samples or more",
        ),
    ],
)
def test_failing_code_in_the_first_step_is_named(capsys: Capture, tmp_path: Path, body: str, message: str) -> None:
    assert message in said(capsys, tmp_path, body)


# What stands in the place of a part


@pytest.mark.usefixtures("without_ray", "no_runs")
@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            "Net, Digits()",
            "model must be a Model of raytrain, got the class Net (exp.py:7), in Experiment (exp.py:+3)",
        ),
        (
            "nn.Linear(64, 10), Digits()",
            "got an object of class torch.nn.Linear, in Experiment (exp.py:+3); write",
        ),
        (
            "nn.Linear, Digits()",
            "write `from raytrain import TorchModel` and model=TorchModel(torch.nn.Linear, in_features=..., out_",
        ),
        ("nn.Sequential(nn.Linear(64, 10)), Digits()", "model=TorchModel(net), with `def net(): return nn.Sequential("),
        (
            "build, Digits()",
            "got the function build (exp.py:+2), in Experiment (exp.py:+3); write `from raytrain import TorchModel` "
            "and model=TorchModel(build)",
        ),
        ("'resnet50', Digits()", 'write `from raytrain import Torchvision` and model=Torchvision(name="resnet50")'),
        ("torchvision.models.resnet34, Digits()", 'and model=Torchvision(name="resnet34")'),
        ("torchvision.models.resnet18(), Digits()", 'and model=Torchvision(name="resnet18")'),
        ("Digits(), Net()", ", in Experiment (exp.py:+3); did you mean data=Digits(...)?"),
        (
            "Net(), torchvision.datasets.FakeData()",
            "write `from raytrain import TorchData` and data=TorchData(torchvision.datasets.FakeData)",
        ),
        ("Net(), torchvision.datasets.MNIST", "write `from raytrain import MNIST` and data=MNIST(...)"),
        (
            "Net(), torch.utils.data.TensorDataset(torch.ones(2))",
            "an object of class torch.utils.data.TensorDataset",
        ),
        ("Net(), 'images'", 'write `from raytrain import ImageFolder` and data=ImageFolder(root="images")'),
        ("Net(), Digits(), nn.CrossEntropyLoss()", "write `from raytrain import Classification` and task=Classificati"),
        (
            "Net(), Digits(), nn.MSELoss()",
            "`class MyMSELoss(Task)`, `def loss(self, model, batch): return "
            'nn.MSELoss(reduction="sum")(model(batch.images), batch.labels), len(batch)`',
        ),
        ("Net(), Digits(), optimizer=torch.optim.SGD", "write `from raytrain import SGD` and optimizer=SGD(...)"),
        ("Net(), Digits(), optimizer=torch.optim.Adam([torch.ones(1)], lr=0.01)", "and optimizer=Adam(lr=0.01)"),
        (
            "Net(), Digits(), optimizer=torch.optim.RMSprop",
            "write `from raytrain import TorchOptimizer` and optimizer=TorchOptimizer(torch.optim.RMSprop)",
        ),
        (
            "Net(), Digits(), optimizer=torch.optim.NAdam([torch.ones(1)], lr=0.01)",
            "and optimizer=TorchOptimizer(torch.optim.NAdam, lr=0.01)",
        ),
        ("Net(), Digits(), schedule=torch.optim.lr_scheduler.CosineAnnealingLR", "and schedule=Cosine(...)"),
        ("Net(), Digits(), schedule=torch.optim.lr_scheduler.ReduceLROnPlateau", "and schedule=Plateau(...)"),
        (
            "Net(), Digits(), schedule=torch.optim.lr_scheduler.CyclicLR",
            "and schedule=TorchSchedule(torch.optim.lr_scheduler.CyclicLR, base_lr=..., max_lr=...)",
        ),
        ("Net(), Digits(), parallel=nn.parallel.DistributedDataParallel", "and parallel=DDP(...)"),
        ("Net(), Digits(), parallel='fsdp'", "write `from raytrain import FSDP` and parallel=FSDP(...)"),
        (
            "Net(), Digits(), scaling={'workers': 2}",
            "got {'workers': 2}, in Experiment (exp.py:+3); write scaling=",
        ),
    ],
)
def test_what_is_no_part_of_raytrain_is_told_what_to_write(
    capsys: Capture, tmp_path: Path, given: str, message: str
) -> None:
    body = f"import torchvision\ndef build(*_): return nn.Linear(64, 10)\nexperiment = Experiment({given})\n"
    assert message in said(capsys, tmp_path, body)


@pytest.mark.usefixtures("without_ray", "no_runs")
@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            "class M(Net):\n    width: int = 3\nexperiment = Experiment(M(), Digits())\n",
            "class M is not a dataclass, so width cannot be set, saved or swept, in M (exp.py:+1); "
            "write `@dataclass(frozen=True)` in the line above `class M`",
        ),
        (
            "class M(Net):\n    width: int = 3\nexperiment = Experiment(M(width=4), Digits())\n",
            "class M is not a dataclass, so width cannot be set, saved or swept, in M (exp.py:+3); write `@dataclass",
        ),
        (
            "class O(SGD):\n    alpha: float = 0.9\nexperiment = Experiment(Net(), Digits(), optimizer=O(alpha=1.0))\n",
            "class O is not a dataclass, so alpha cannot be set",
        ),
        (
            "@dataclass\nclass M(Net):\n    width: int = 3\nexperiment = Experiment(M(), Digits())\n",
            "a part of an experiment must be a frozen dataclass, exp.py:+1; write `@dataclass(frozen=True)`",
        ),
        (
            "class M(Net):\n    def __init__(self, width):\n        self.width = width\n"
            "experiment = Experiment(M(3), Digits())\n",
            "class M has an __init__ with other arguments than its fields, in M (exp.py:+1); declare each argument",
        ),
        (
            "class D(Digits):\n    mode = 'streaming'\nexperiment = Experiment(Net(), D())\n",
            "mode of class D has no type, so that a dataclass ignores its value, in D (exp.py:+1); write `mode: str =",
        ),
    ],
)
def test_a_class_whose_declarations_would_be_lost_is_refused(
    capsys: Capture, tmp_path: Path, body: str, message: str
) -> None:
    assert message in said(capsys, tmp_path, body)


@pytest.mark.usefixtures("without_ray", "no_runs")
def test_a_class_that_declares_no_field_needs_no_decorator(capsys: Capture, tmp_path: Path) -> None:
    body = """\
from typing import ClassVar
class M(Net):
    sizes: ClassVar[tuple[int, ...]] = (1, 2)
    _cache: int = 0
    def __init__(self, **fields):
        super().__init__(**fields)
experiment = Experiment(M(), Digits())
"""
    assert "M, 650 parameters" in succeeds(
        capsys, "train", file(tmp_path, body), "--out", tmp_path / "runs", "--dry_run"
    )


# What works stays as it is


@dataclass(frozen=True)
class Function(Task):
    """A task whose loss is one of the functions below."""

    name: str = ""

    def loss(self, model: nn.Module, batch: Batch) -> tuple[torch.Tensor, int]:
        return globals()[self.name](model, batch), len(batch)


def in_fours(model: nn.Module, batch: Batch) -> torch.Tensor:
    """Views of the same thing, four at a time."""
    return model(batch.images).view(-1, 4, 10).mean(1).square().sum()


def contrastive(model: nn.Module, batch: Batch) -> torch.Tensor:
    """Not a number where no two samples have the same label."""
    same = (batch.labels[:, None] == batch.labels).fill_diagonal_(False)
    distance = torch.cdist(model(batch.images), model(batch.images).detach() + 0.1)
    return distance[same].mean() * len(batch)


def needs_a_gpu(model: nn.Module, batch: Batch) -> torch.Tensor:
    raise RuntimeError("Found no NVIDIA driver on your system")


def needs_ranks(model: nn.Module, batch: Batch) -> torch.Tensor:
    return model(batch.images).square().sum() * (1 + torch.distributed.get_rank())


def needs_variables(model: nn.Module, batch: Batch) -> torch.Tensor:
    return model(batch.images).square().sum() * int(os.environ["WORLD_SIZE"])


def random_everywhere(model: nn.Module, batch: Batch) -> torch.Tensor:
    scale = random.random() + np.random.rand() + torch.rand(()).item()
    return model(batch.images).square().sum() * scale


def mean(model: nn.Module, batch: Batch) -> torch.Tensor:
    return cross_entropy(model(batch.images), batch.labels)


def bare(model: nn.Module, batch: Batch) -> Any:
    return [model(batch.images)]


def counting(model: nn.Module, batch: Batch) -> torch.Tensor:
    CALLS.append(batch.images.device.type)
    return model(batch.images).square().sum()


CALLS: list[str] = []


@dataclass(frozen=True)
class Rates(Classification):
    """Metrics that divide by the number of samples of each class."""

    def results(self, sums: Any) -> dict[str, float]:
        confusion = sums["confusion"]
        recalls = [float(int(row[n]) / int(row.sum())) for n, row in enumerate(confusion)]
        return super().results(sums) | {"recall": sum(recalls) / 10}


@dataclass(frozen=True)
class Normed(Model):
    """BatchNorm over features, which one sample has no variance of."""

    def build(self, sample: tuple[int, int, int], classes: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Dropout(), nn.Linear(64, classes))


@dataclass(frozen=True)
class ByValues(Model):
    """A large model that looks at values, which the meta device has none of."""

    def build(self, sample: tuple[int, int, int], classes: int) -> nn.Module:
        class Net(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.large, self.head = nn.Linear(64, 500_000), nn.Linear(64, classes)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                if self.training and float(x.sum()) == 0.5:
                    raise AssertionError
                return self.head(x.flatten(1))

        return Net()


def made(gpus: float = 0.0, **fields: Any) -> Plan:
    found = Resources((Node("here", 2, gpus, 8 << 30),), "this machine")
    return plan.make(Experiment(**{"model": SimpleModel(), "data": Digits()} | fields), lambda: found, "x")


@pytest.mark.parametrize("name", ["in_fours", "contrastive"])
def test_loss_that_needs_more_samples_gets_a_micro_batch(name: str) -> None:
    assert made(task=Function(name=name)).notes == ()
    if name == "in_fours":
        with pytest.raises(UserError, match=r"shape '\[-1, 4, 10\]' is invalid for .* size 300, .*first_step.py:\d+;"):
            made(task=Function(name=name), batch_size=30)


def test_metrics_that_few_samples_do_not_suit_are_a_note() -> None:
    (note,) = made(task=Rates(), batch_size=4).notes
    assert "Rates.results fails for images" in note and "ZeroDivisionError" in note and "too few" in note


def test_a_model_with_batch_norm_and_dropout_is_tried() -> None:
    assert made(model=Normed()).notes == ()
    with pytest.raises(UserError, match="BatchNorm needs micro-batches of two samples or more"):
        made(model=Normed(), micro_batch_size=1)


def test_step_that_needs_a_gpu_is_refused_without_gpus_only() -> None:
    (note,) = made(gpus=1, task=Function(name="needs_a_gpu")).notes
    assert "a step cannot be tried without a GPU: the first training step fails" in note
    with pytest.raises(UserError, match=r"Found no NVIDIA driver on your system, .*test_first_step.py:\d+; correct"):
        made(task=Function(name="needs_a_gpu"))
    with pytest.raises(UserError, match="Found no NVIDIA driver"):
        made(gpus=1, task=Function(name="needs_a_gpu"), scaling=Scaling(gpus_per_worker=0))


@pytest.mark.parametrize("name", ["needs_ranks", "needs_variables"])
def test_step_that_needs_a_worker_is_refused_without_one_only(name: str) -> None:
    (note,) = made(task=Function(name=name)).notes
    assert "a step cannot be tried outside of a worker: the first training step fails" in note
    with pytest.raises(
        UserError, match=r"(has not been initialized|'WORLD_SIZE').*, .*test_first_step.py:\d+; correct"
    ):
        made(task=Function(name=name), scaling=Scaling(workers=0))


def test_a_loss_that_is_a_mean_is_noted() -> None:
    (note,) = made(task=Function(name="mean")).notes
    assert "the loss does not grow with the batch, in Function.loss (" in note and 'reduction="sum"' in note


def test_the_step_leaves_all_random_states_alone() -> None:
    def states() -> tuple[str, ...]:
        return str(torch.random.get_rng_state().tolist()), str(random.getstate()), str(np.random.get_state())

    before = states()
    made(model=MLP(dropout=0.5), task=Function(name="random_everywhere"))
    assert states() == before


def test_large_model_is_tried_on_meta_or_within_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    large = MLP(hidden=(500_000,))
    CALLS.clear()
    assert made(model=large, task=Function(name="counting")).notes == () and CALLS == ["meta"]
    with pytest.raises(UserError, match=r"the loss must be a scalar tensor of floats, got list"):
        made(model=large, task=Function(name="bare"))
    CALLS.clear()
    assert made(model=ByValues(), task=Function(name="counting")).notes == () and {*CALLS} == {"meta", "cpu"}
    monkeypatch.setattr(memory, "available", lambda: 1 << 28)
    assert made(model=ByValues()).notes == ("a step was not tried: on this machine's CPU the model would take 0.2 GiB",)


def test_a_slow_model_is_not_differentiated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raytrain.driver.first_step._SLOW_SECONDS", 0.0)
    (note,) = made(model=CNN()).notes
    assert note.startswith("backward pass and evaluation are not tried: a pass of 2 samples takes 0.")


@dataclass(frozen=True)
class Unreadable(Data):
    """Three samples of which one cannot be read, and a class without samples."""

    def index(self) -> dict[str, Index]:
        return {s: Index(np.zeros(3, np.int64), ("a", "b"), (1, 8, 8), s) for s in ("train", "val")}

    def read(self, index: Index, samples: np.ndarray) -> np.ndarray:
        from raytrain import BadSample

        if 1 in samples:
            raise BadSample("one", "it is broken")
        return np.full((len(samples), 1, 8, 8), 7, np.uint8)


def test_samples_that_cannot_be_read_are_left_out_of_the_step() -> None:
    said = ("val has the samples of train: its metrics say nothing about new ones",)
    assert [made(data=Unreadable(on_bad_sample="skip"), seed=seed).notes for seed in range(4)] == [said] * 4
    with pytest.raises(UserError, match="cannot read sample: it is broken"):
        made(data=Unreadable())


def test_a_user_s_optimizer_and_schedule_are_tried() -> None:
    assert made(optimizer=Plain(), schedule=Halved()).notes == ()


@dataclass(frozen=True)
class Plain(Optimizer):
    def build(self, parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.RMSprop(parameters, lr=self.lr)


@dataclass(frozen=True)
class Halved(Schedule):
    def factor(self, step: int, steps_per_epoch: int, epochs: float) -> float:
        return 0.5
