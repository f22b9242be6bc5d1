"""config: experiments as values, and nothing in their JSON but values."""

from __future__ import annotations

import importlib
import json
import math
import pkgutil
import re
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

import raytrain
from raytrain import (
    CNN,
    DDP,
    MLP,
    MNIST,
    SGD,
    AdamW,
    Augment,
    Choice,
    Classification,
    Complete,
    Cosine,
    Data,
    Digits,
    Experiment,
    ImageFolder,
    Model,
    Optimizer,
    Parallel,
    Scaling,
    Schedule,
    StepLR,
    Task,
    Torchvision,
    UserError,
    config,
)
from raytrain.config import above, at_least, check, within


@dataclass(frozen=True)
class Leaf:
    whole: int = 1
    share: float = 0.5
    text: str = "a"
    on: bool = False
    perhaps: int | None = None
    choice: Literal[1, 3, "x"] = 1
    many: tuple[int, ...] = (1, 2)
    pair: tuple[float, float] = (0.0, 1.0)
    nested: tuple[tuple[int, str], ...] = ()
    free: Any = None

    def __post_init__(self) -> None:
        check(self, whole=at_least(1), share=within(0, 1), perhaps=above(2))


@dataclass(frozen=True)
class Twig(Leaf):
    more: float = 2.0


@dataclass(frozen=True)
class Branch:
    needed: int
    leaf: Leaf = field(default_factory=Leaf)
    other: Leaf | None = None


EXPERIMENTS = [
    Experiment(model=CNN(), data=Digits()),
    Experiment(
        model=MLP(hidden=()),
        data=ImageFolder(root="x", augment=Augment(crop="random_resized", scale=(0.5, 1.0)), crop=None),
        task=Classification(label_smoothing=0.1),
        optimizer=AdamW(betas=(0.8, 0.99), lr=1 / 3),
        schedule=Cosine(warmup_epochs=0.1, final=1e-30),
        parallel=Parallel(),
        scaling=Scaling(workers=2, gpus_per_worker=0.5),
        clip_norm=1.5,
        micro_batch_size=16,
        seed=2**63,
    ),
    Experiment(model=Torchvision(freeze=True), data=MNIST(mean=(0.0,)), schedule=StepLR(), parallel=DDP()),
]


# replace, paths, leaves


def test_replace_changes_one_leaf_and_nothing_else() -> None:
    before = EXPERIMENTS[1]
    after = config.replace(before, "optimizer.betas", (0.7, 0.9))
    assert isinstance(after.optimizer, AdamW) and after.optimizer.betas == (0.7, 0.9)
    assert isinstance(before.optimizer, AdamW) and before.optimizer.betas == (0.8, 0.99)
    changed = {path for path, value in config.leaves(after).items() if value != config.leaves(before)[path]}
    assert changed == {"optimizer.betas"}
    assert config.replace(before, "data.augment.flip", 0.5).data.augment.flip == 0.5
    assert config.replace(before, "epochs", 7).epochs == 7


def test_replace_validates_again() -> None:
    with pytest.raises(UserError, match=r"lr = -1 is out of range, in AdamW; give a value above 0"):
        config.replace(EXPERIMENTS[1], "optimizer.lr", -1)
    with pytest.raises(UserError, match=r"batch_size 65 does not divide by scaling.workers 2"):
        config.replace(EXPERIMENTS[1], "batch_size", 65)


@pytest.mark.parametrize(
    ("path", "nearest"),
    [("epoch", "epochs"), ("optimizer.momentm", "momentum"), ("optimiser.lr", "optimizer.lr"), ("seed.x", None)],
)
def test_replace_names_the_nearest_field(path: str, nearest: str | None) -> None:
    with pytest.raises(UserError, match=f"did you mean {nearest}\\?" if nearest else "unknown field"):
        config.replace(EXPERIMENTS[0], path, 1)


def test_paths_are_the_keys_of_the_json_and_the_leaves() -> None:
    for experiment in EXPERIMENTS:
        paths, values = config.paths(experiment), config.to_dict(experiment)
        assert len(set(paths)) == len(paths)
        for path in paths:
            found: Any = values
            for key in path.split("."):
                found = found[key]
            assert config.leaves(experiment)[path] == found
        classes = {path for path in config.leaves(experiment) if path.endswith(".class")}
        assert set(config.leaves(experiment)) == set(paths) | classes
    assert "optimizer.momentum" in config.paths(EXPERIMENTS[0]) and "data.augment.crop" in config.paths(EXPERIMENTS[0])
    assert config.leaves(EXPERIMENTS[1])["optimizer.class"] == "raytrain:AdamW"


# to_dict, from_dict


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_json_gives_the_same_experiment_back(experiment: Experiment) -> None:
    text = json.dumps(config.to_dict(experiment), allow_nan=False)
    assert config.from_dict(Experiment, json.loads(text), "f.json") == experiment


@dataclass(frozen=True)
class Holder:
    leaves: tuple[Leaf, ...] = ()
    other: int = 1


def test_dataclasses_in_a_tuple_have_paths() -> None:
    holder = Holder((Leaf(), Leaf(whole=2)))
    assert "leaves.1.whole" in config.paths(holder) and config.get(holder, "leaves.1.whole") == 2
    assert config.replace(holder, "leaves.1.whole", 3) == Holder((Leaf(), Leaf(whole=3)))
    assert config.leaves(holder)["leaves.1.whole"] == 2 and config.paths(Holder()) == ["leaves", "other"]
    for wrong in ("leaves.2.whole", "leaves.x.whole", "leaves.0", "leaves.0.hole"):
        with pytest.raises(UserError, match=r"unknown field .*the fields are "):
            config.replace(holder, wrong, 3)


@pytest.mark.parametrize(
    "value",
    [
        Branch(1),
        Branch(1, Twig(more=3.0), Twig()),
        Branch(1, other=Leaf(nested=((1, "a"), (2, "b")), perhaps=3, free=(1, (None, True)))),
    ],
)
def test_subclasses_nested_tuples_and_none_survive_json(value: Branch) -> None:
    assert config.from_dict(Branch, json.loads(json.dumps(config.to_dict(value))), "f.json") == value


def test_a_class_is_named_where_it_is_not_the_declared_one() -> None:
    values = config.to_dict(EXPERIMENTS[0])
    assert values["model"]["class"] == "raytrain:CNN"
    assert values["data"]["class"] == "raytrain:Digits"
    assert "class" not in values["scaling"] and "class" not in values["data"]["augment"]
    assert config.to_dict(Branch(1, Twig()))["leaf"]["class"] == f"{__name__}:Twig"


def test_what_is_not_given_takes_its_default() -> None:
    values = {"model": {"class": "raytrain.models.cnn:CNN"}, "data": {"class": "raytrain.data.digits:Digits"}}
    assert config.from_dict(Experiment, values, "f.json") == EXPERIMENTS[0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"optimizer": {"momentm": 0.9}}, r"unknown field 'optimizer.momentm', f.json; did you mean optimizer.moment"),
        ({"epoch": 3}, r"unknown field 'epoch', f.json; did you mean epochs\?"),
        ({"model": None}, r"model = None is of the wrong type, in f.json; give a JSON object"),
        ({"optimizer": [1]}, r"optimizer = \[1\] is of the wrong type"),
        ({"epochs": True}, r"epochs = True is of the wrong type, in Experiment; give a whole number"),
        ({"epochs": 1.0}, r"epochs = 1.0 is of the wrong type"),
        ({"epochs": None}, r"epochs = None is of the wrong type"),
        ({"epochs": [3]}, r"epochs = \(3,\) is of the wrong type"),
        ({"precision": "fp8"}, r"precision = 'fp8' is of the wrong type.*'fp32', 'tf32', 'bf16', 'fp16'"),
        ({"clip_norm": "1"}, r"clip_norm = '1' is of the wrong type, in Experiment; give a number or None"),
        ({"clip_norm": math.nan}, r"clip_norm = nan is out of range"),
        ({"clip_norm": math.inf}, r"clip_norm = inf is out of range"),
        ({"optimizer": {"lr": "0.1"}}, r"lr = '0.1' is of the wrong type, in SGD; give a number"),
        ({"optimizer": {"nesterov": 1}}, r"nesterov = 1 is of the wrong type, in SGD; give True or False"),
        ({"scaling": {"workers": -1}}, r"workers = -1 is out of range, in Scaling; give a value of at least 0"),
    ],
)
def test_a_wrong_field_is_named_with_what_it_wants(change: dict[str, Any], message: str) -> None:
    values = config.to_dict(EXPERIMENTS[0])
    for key, value in change.items():
        values[key] = values[key] | value if isinstance(value, dict) else value
    with pytest.raises(UserError, match=message):
        config.from_dict(Experiment, values, "f.json")


def test_a_missing_field_is_named() -> None:
    with pytest.raises(UserError, match=r"field 'needed' is missing, f.json"):
        config.from_dict(Branch, {}, "f.json")
    with pytest.raises(UserError, match=r"field 'data' is missing, f.json"):
        config.from_dict(Experiment, {"model": {"class": "raytrain.models.cnn:CNN"}}, "f.json")
    with pytest.raises(UserError, match=r"wrong type, in f.json; give a JSON object"):
        config.from_dict(Branch, [], "f.json")


# check


@pytest.mark.parametrize(
    "wrong",
    [
        *({"whole": value} for value in (True, 1.0, "1", None, (1,))),
        *({"share": value} for value in ("0.5", True, None)),
        *({"text": value} for value in (1, None, b"a")),
        *({"on": value} for value in (0, None, "yes")),
        *({"perhaps": value} for value in (True, 3.5, "3")),
        *({"choice": value} for value in (True, 1.0, 2, "y", None)),
        *({"many": value} for value in ([1, 2], (1, "2"), (True,), 1, None)),
        *({"pair": value} for value in ((1.0,), (1.0, 2.0, 3.0), ("1", "2"), 0.5)),
        *({"nested": value} for value in ((1, "a"), ((1, 2),), (("a", 1),))),
    ],
)
def test_a_value_of_another_type_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"is of the wrong type, in Leaf; (give|write)"):
        Leaf(**wrong)


@pytest.mark.parametrize(
    ("value", "how"),
    [([1, 2], "write many=(1, 2)"), (1, "write many=(1,)"), ([1, "2"], "give a tuple, each of its values a whole")],
)
def test_the_tuple_to_write_is_named_where_there_is_one(value: Any, how: str) -> None:
    with pytest.raises(UserError, match=re.escape(f"is of the wrong type, in Leaf; {how}")):
        Leaf(many=value)


@pytest.mark.parametrize(
    "right", [{"share": 0}, {"many": ()}, {"choice": "x"}, {"pair": (0, 1)}, {"perhaps": 3}, {"free": object()}]
)
def test_a_whole_number_is_a_number_and_any_is_anything(right: dict[str, Any]) -> None:
    Leaf(**right)


@pytest.mark.parametrize("wrong", [{"whole": 0}, {"share": 1.0}, {"share": -0.1}, {"share": math.nan}, {"perhaps": 2}])
def test_a_value_out_of_range_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="is out of range, in Leaf; give a value"):
        Leaf(**wrong)


def test_a_huge_whole_number_is_compared_and_not_converted() -> None:
    assert Leaf(whole=10**400).whole == 10**400
    with pytest.raises(UserError, match="out of range"):
        Leaf(whole=-(10**400))


# Hostile JSON


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("raytrain.optim:SGD", SGD),
        ("raytrain.task:Classification", Classification),
        ("raytrain.search.space:Choice", Choice),
        ("raytrain.search.schedulers:Complete", Complete),
        ("raytrain.parallel.ddp:DDP", DDP),
    ],
)
def test_class_names_of_version_0_1_are_found(name: str, kind: type) -> None:
    values = {"class": name} | config.to_dict(kind("seed", (1, 2)) if kind is Choice else kind())
    assert type(config.from_dict(kind.__mro__[1], values, "f.json")) is kind


@pytest.mark.parametrize(
    "name",
    [
        *(
            "os:system",
            "subprocess:Popen",
            "raytrain.errors:UserError",
            "raytrain.optim.optimizers:SGD",
            "builtins:eval",
        ),
        *("raytrain.models.cnn:CNN.build", "raytrain.models.cnn:check", "raytrain.config:sys.modules", "nothing:Net"),
        *("raytrain.nothing:Net", "raytrain.\0:Net", "raytrain..models:CNN", "experiment:Net", ":", "", "CNN", 5, None),
        *(["raytrain.models.cnn:CNN"], {"a": 1}, "raytrain.experiment:Experiment", "raytrain.models.base:dataclass"),
    ],
)
def test_a_class_that_is_no_model_is_refused(name: object) -> None:
    values = config.to_dict(EXPERIMENTS[0]) | {"model": {"class": name}}
    with pytest.raises(UserError, match=r"class .* cannot be found, f.json; keep the experiment file's copy"):
        config.from_dict(Experiment, values, "f.json")


def test_no_name_in_json_imports_a_module() -> None:
    code = """if True:
        import sys
        import raytrain
        from raytrain import config
        before = set(sys.modules)
        for name in ("antigravity:x", "json.tool:main", "raytrain.loop:Worker", "xml.dom:Node", "raytrain.cli:run"):
            try:
                config.from_dict(raytrain.Experiment, {"model": {"class": name}}, "f.json")
            except raytrain.UserError:
                continue
            raise SystemExit(f"{name} was not refused")
        print(sorted(set(sys.modules) - before))
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_a_lazy_attribute_of_a_loaded_module_is_not_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    touched: list[str] = []
    module = type(sys)("lazy")
    module.__dict__["__getattr__"] = lambda name: touched.append(name) or CNN
    monkeypatch.setitem(sys.modules, "lazy", module)
    assert module.Net is CNN and touched == ["Net"]
    with pytest.raises(UserError, match="cannot be found"):
        config.from_dict(Experiment, {"model": {"class": "lazy:Net"}}, "f.json")
    assert touched == ["Net"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what Ray Serve imports
def test_importing_raytrain_loads_every_class_that_json_may_name() -> None:
    seams = (Model, Data, Task, Optimizer, Schedule, Parallel)
    code = "import sys, raytrain; print(' '.join(name for name in sys.modules if name.startswith('raytrain')))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    for module in pkgutil.walk_packages(raytrain.__path__, "raytrain."):
        for value in vars(importlib.import_module(module.name)).values():
            if isinstance(value, type) and issubclass(value, seams) and not value.__name__.startswith("_"):
                assert value.__module__ in loaded or not value.__module__.startswith("raytrain."), value


def test_labels_tell_objects_of_one_class_apart_by_the_fields_in_which_they_differ() -> None:
    values = (SGD(lr=0.1), SGD(lr=0.1, momentum=0.5), AdamW(), 3, None)
    assert config.labels(values) == ("SGD(momentum=0.0)", "SGD(momentum=0.5)", "AdamW", 3, None)
    one, two, three = config.labels((MLP(), MLP(hidden=(4,)), MLP(dropout=0.5)))
    assert (one, two) == ("MLP(hidden=(512, 512), dropout=0.0)", "MLP(hidden=(4,), dropout=0.0)")
    assert three == "MLP(hidden=(512, 512), dropout=0.5)"
    assert config.labels((SGD(lr=0.1), SGD(lr=0.2)), older=str(SGD()))[0] == str(SGD(lr=0.1)), (
        "as older sweeps have them"
    )
