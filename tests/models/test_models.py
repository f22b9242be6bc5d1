"""models: what is built, counted by hand, and what torchvision's architectures become."""

from __future__ import annotations

import re
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from raytrain import CNN, MLP, Model, SimpleModel, Timm, Torchvision, UserError
from raytrain.models import torchvision_modules, weights


def parameters(module: nn.Module, trained: bool = False) -> int:
    return sum(p.numel() for p in module.parameters() if p.requires_grad or not trained)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


# Our own


def test_simple_model_is_784_10_10_10() -> None:
    module = SimpleModel().build((1, 28, 28), 10)
    assert [type(layer) for layer in module.children()] == [
        *(nn.Flatten, nn.Linear, nn.ReLU),
        *(nn.Linear, nn.ReLU, nn.Linear),
    ]
    assert parameters(module) == (784 * 10 + 10) + (10 * 10 + 10) + (10 * 10 + 10) == 8070
    torch.manual_seed(0)
    one = SimpleModel().build((1, 28, 28), 10)
    torch.manual_seed(0)
    own = nn.Sequential(nn.Flatten(), nn.Linear(784, 10), nn.ReLU(), nn.Linear(10, 10), nn.ReLU(), nn.Linear(10, 10))
    images = torch.randn(3, 1, 28, 28)
    assert torch.equal(one(images), own(images)), "the same weights in the same order from the same seed"


@pytest.mark.parametrize(
    ("hidden", "count"),
    [((), 192 * 7 + 7), ((5,), 192 * 5 + 5 + 5 * 7 + 7), ((5, 4), 192 * 5 + 5 + 5 * 4 + 4 + 4 * 7 + 7)],
)
def test_an_mlp_has_the_layers_that_were_asked_for(hidden: tuple[int, ...], count: int) -> None:
    for dropout in (0.0, 0.5):
        module = MLP(hidden=hidden, dropout=dropout).build((3, 8, 8), 7)
        assert parameters(module) == count and module(torch.randn(2, 3, 8, 8)).shape == (2, 7)
        drops = [layer.p for layer in module.modules() if isinstance(layer, nn.Dropout)]
        assert drops == [0.5] * len(hidden) * (dropout > 0)


@pytest.mark.parametrize("sample", [(1, 8, 8), (1, 28, 28), (3, 33, 17), (3, 2, 64), (1, 1, 1), (4, 5, 1)])
@pytest.mark.parametrize("channels", [(4,), (4, 6), (2, 3, 4, 5, 6)])
def test_a_cnn_fits_any_shape(sample: tuple[int, int, int], channels: tuple[int, ...]) -> None:
    inputs, height, width = sample
    count = 0
    for outputs in channels:
        count += inputs * outputs * 9 + outputs
        inputs = outputs
        if min(height, width) > 1:
            height, width = height // 2, width // 2
    module = CNN(channels=channels).build(sample, 11)
    assert parameters(module) == count + inputs * height * width * 11 + 11
    assert module(torch.randn(2, *sample)).shape == (2, 11)


def test_a_cnn_normalises_and_drops_where_asked() -> None:
    module = CNN(channels=(4, 6), batch_norm=True, dropout=0.25).build((1, 8, 8), 10)
    layers = [layer for layer in module.modules() if not list(layer.children())]
    assert [type(layer).__name__ for layer in layers] == [
        *("Conv2d", "BatchNorm2d", "ReLU", "MaxPool2d") * 2,
        *("Dropout", "Flatten", "Linear"),
    ]
    assert all(layer.bias is None for layer in layers if isinstance(layer, nn.Conv2d)), "the norm brings the bias"
    assert parameters(module) == (4 * 9 + 8) + (4 * 6 * 9 + 12) + (6 * 4 * 10 + 10)
    images = torch.randn(8, 1, 8, 8)
    assert not torch.equal(module(images), module(images))
    module.eval()
    assert torch.equal(module(images), module(images))


@pytest.mark.parametrize(
    ("cls", "wrong"),
    [
        *((CNN, wrong) for wrong in ({"channels": ()}, {"channels": (0,)}, {"dropout": 1.0}, {"dropout": -0.1})),
        *((MLP, wrong) for wrong in ({"hidden": (0,)}, {"hidden": (3, -1)}, {"dropout": 1.0})),
    ],
)
def test_impossible_settings_are_refused(cls: type[Model], wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=f"is out of range, in {cls.__name__}"):
        cls(**wrong)


@pytest.mark.parametrize("model", [CNN, MLP, Torchvision, Timm])
def test_a_head_has_as_many_outputs_as_were_asked_for(model: Any) -> None:
    for classes in (0, 10):
        module = model(outputs=3).build((3, 32, 32), classes).eval()
        assert module(torch.zeros(2, 3, 32, 32)).shape == (2, 3)
    with pytest.raises(UserError, match="outputs = -1 is out of range"):
        model(outputs=-1)


def test_base_model_is_a_no_op_that_needs_build() -> None:
    module = nn.Linear(1, 1)
    with pytest.raises(NotImplementedError, match=r"Model needs a build\(sample, classes\)"):
        Model().build((1, 1, 1), 1)
    assert (Model().load(module), Model().check_weights(module), Model().notes()) == (None, None, [])


# torchvision's


@pytest.mark.parametrize(
    ("name", "head", "features", "bias"),
    [
        *(("resnet18", "fc", 512, True), ("squeezenet1_0", "classifier.1", 512, True)),
        *(("vgg11", "classifier.6", 4096, True), ("densenet121", "classifier", 1024, True)),
        *(("mobilenet_v3_small", "classifier.3", 1024, True), ("efficientnet_b0", "classifier.1", 1280, True)),
        *(("vit_b_16", "heads.head", 768, True), ("googlenet", "fc", 1024, True), ("inception_v3", "fc", 2048, True)),
        *(("swin_t", "head", 768, True), ("maxvit_t", "classifier.5", 512, False)),
    ],
)
def test_head_is_replaced_and_alone_trains_under_freeze(name: str, head: str, features: int, bias: bool) -> None:
    side = 299 if name == "inception_v3" else 224
    with torch.device("meta"), torch.no_grad():
        module = Torchvision(name=name).build((3, side, side), 7).eval()
        assert module(torch.zeros(1, 3, side, side)).shape == (1, 7)
        whole = Torchvision(name=name).build((3, side, side), 1000)
        frozen = Torchvision(name=name, freeze=True).build((3, side, side), 7)
    assert parameters(whole) - parameters(module) == (1000 - 7) * (features + bias)
    assert parameters(frozen, trained=True) == 7 * (features + bias)
    assert all(n.startswith(f"{head}.") for n, p in frozen.named_parameters() if p.requires_grad)
    assert parameters(module, trained=True) == parameters(module)


@pytest.mark.parametrize("name", ["deeplabv3_mobilenet_v3_large", "fcn_resnet50", "lraspp_mobilenet_v3_large"])
def test_a_model_for_segmentation_is_torchvisions_with_its_main_output(name: str, tmp_path: Path) -> None:
    from torchvision import models

    images = torch.randn(2, 3, 40, 48)
    torch.manual_seed(0)
    own = models.get_model(name, weights=None, weights_backbone=None, num_classes=5).eval()
    torch.manual_seed(0)
    ours = Torchvision(name, outputs=5).build((3, 40, 48), 0).eval()
    with torch.no_grad():
        assert torch.equal(ours(images), own(images)["out"])
    frozen = Torchvision(name, freeze=True).build((3, 40, 48), 2)
    heads = {path for path, layer in frozen.named_modules() if getattr(layer, "out_channels", 0) == 2}
    assert {n.rpartition(".")[0] for n, p in frozen.named_parameters() if p.requires_grad} == heads
    assert len(heads) == (2 if "lraspp" in name else 1)

    auxiliary = {"aux_classifier.4.weight": torch.zeros(5, 8)}  # torchvision's files have it
    torch.save({**own.state_dict(), **auxiliary}, tmp_path / "w.pth")
    started = Torchvision(name, weights=str(tmp_path / "w.pth"))
    module = started.build((3, 40, 48), 2)
    fit = started.load(module)
    assert fit is not None and {one.rpartition(".")[0] for one in fit.anew} == heads
    state = module.state_dict()
    assert all(torch.equal(value, state[key]) for key, value in own.state_dict().items() if "classifier" not in key)
    with pytest.raises(UserError, match="has an output for each class, and the data has none, in model; use --model"):
        Torchvision(name).build((3, 40, 48), 0)
    with pytest.raises(UserError, match=r"is not there|no such"):
        Torchvision(name, weights=str(tmp_path / "no.pth")).check_weights(module)


def test_every_model_is_torchvisions_own_but_for_the_head() -> None:
    from torchvision import models

    with torch.device("meta"):
        for name in ("resnet34", "googlenet", "inception_v3"):
            own = models.get_model(name, init_weights=False) if name != "resnet34" else models.get_model(name)
            ours = Torchvision(name=name).build((3, 299, 299), 1000)
            expected = {n: p.shape for n, p in own.state_dict().items() if not n.lower().startswith("aux")}
            assert {n: p.shape for n, p in ours.state_dict().items()} == expected


def test_pretrained_inception_gets_its_expected_inputs(tmp_path: Path) -> None:
    with torch.device("meta"):
        for name in ("googlenet", "inception_v3"):
            assert not Torchvision(name=name).build((3, 299, 299), 2).transform_input
            assert Torchvision(name=name, weights="hub").build((3, 299, 299), 2).transform_input


@pytest.mark.parametrize("model", [CNN(), Torchvision(), Timm("resnet18")], ids=str)
@pytest.mark.parametrize("sample", [(), (16,), (3, 4, 8, 8)])
def test_samples_that_are_no_images_are_refused(model: Model, sample: tuple[int, ...]) -> None:
    with pytest.raises(
        UserError, match=re.escape(f"takes images [channels, height, width], and a sample is {[*sample]}")
    ):
        model.build(sample, 2)


def test_an_unknown_name_and_grey_images_are_refused() -> None:
    with pytest.raises(UserError, match=r"no model 'rsnet18' for .*, in model.name; did you mean resnet18\?"):
        Torchvision(name="rsnet18").build((3, 224, 224), 2)
    with pytest.raises(UserError, match=r"resnet18 takes images of 3 channels and these have 1, in model.name"):
        Torchvision().build((1, 28, 28), 10)


# Weights


def squeezenet(classes: int) -> nn.Module:
    torch.manual_seed(classes)
    return Torchvision(name="squeezenet1_1").build((3, 64, 64), classes)


@pytest.fixture(scope="module")
def pretrained() -> nn.Module:
    return squeezenet(1000)


def save(state: dict[str, torch.Tensor], path: Path) -> str:
    save_file(state, path) if path.suffix == ".safetensors" else torch.save(state, path)
    return str(path)


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
@pytest.mark.parametrize("prefix", ["", "module."])
@pytest.mark.parametrize("freeze", [False, True])
def test_weights_of_other_classes_fill_the_backbone_only(
    tmp_path: Path, pretrained: nn.Module, suffix: str, prefix: str, freeze: bool
) -> None:
    state = {f"{prefix}{name}": value for name, value in pretrained.state_dict().items()}
    model = Torchvision(name="squeezenet1_1", weights=save(state, tmp_path / f"w{suffix}"), freeze=freeze)
    with torch.device("meta"):
        model.check_weights(model.build((3, 64, 64), 5))
    module = model.build((3, 64, 64), 5)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    model.load(module)
    for name, value in module.state_dict().items():
        expected = before[name] if name.startswith("classifier.1.") else pretrained.state_dict()[name]
        assert torch.equal(value, expected), name
    assert parameters(module, trained=freeze) == (513 * 5 if freeze else parameters(module))


def test_a_file_of_as_many_classes_fills_the_head_too(tmp_path: Path) -> None:
    model = Torchvision(name="squeezenet1_1", weights=save(squeezenet(5).state_dict(), tmp_path / "w.pth"))
    module = model.build((3, 64, 64), 5)
    model.load(module)
    images = torch.randn(2, 3, 64, 64)
    assert torch.equal(module.eval()(images), squeezenet(5).eval()(images))


@pytest.mark.parametrize("name", ["densenet121", "vit_b_16", "resnet18", "mnasnet0_5"])
def test_names_in_torchvisions_older_files_are_understood(name: str) -> None:
    with torch.device("meta"):
        module, other = (Torchvision(name=name).build((3, 224, 224), classes) for classes in (2, 1000))
    state: Any = OrderedDict()
    state._metadata = {"": {"version": 2}}
    for key, value in other.state_dict().items():
        if name == "densenet121":
            key = key.replace("norm1.", "norm.1.").replace("conv2.", "conv.2.")
        if name == "vit_b_16":
            key = key.replace("mlp.0.", "mlp.linear_1.").replace("mlp.3.", "mlp.linear_2.")
        if not key.endswith("num_batches_tracked"):
            state[key] = value

    def fill() -> None:
        head = Torchvision(name=name).weights_head(module)
        weights.fill(module, torchvision_modules.renamed(state), "file", head, whole=True, new_head=False, assign=True)

    fill()
    given = {value.shape for value in state.values()}
    assert [p.shape[0] for p in module.parameters() if p.shape not in given] == [2, 2]
    state.popitem(last=False)
    with pytest.raises(UserError, match="1 tensors are missing and 0 have another shape, for example"):
        fill()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "another",
            r"the weights do not fit: \d+ tensors are missing and \d+ have another shape, for example features",
        ),
        ("nested", "it holds no state dict of tensors"),
        ("numbers", "it holds no state dict of tensors"),
        ("list", "it holds no state dict of tensors"),
        ("empty", "the weights do not fit: "),
        ("text", "the weights do not fit: "),
        ("pickle", "the file needs divmod, and loading that may run code"),
        ("safetensors", "the weights do not fit: Error while deserializing header"),
        ("missing", "no such weights file"),
    ],
)
def test_misfit_weights_are_refused_in_plan_and_load(
    tmp_path: Path, pretrained: nn.Module, content: str, message: str
) -> None:
    file = tmp_path / ("w.safetensors" if content == "safetensors" else "w.pth")
    if content == "another":
        torch.save(Torchvision(name="squeezenet1_0").build((3, 64, 64), 5).state_dict(), file)
    elif content in ("nested", "numbers", "list", "pickle"):
        torch.save(
            {
                "nested": {"state_dict": {"state_dict": pretrained.state_dict()}},
                "numbers": {"a": 1.0},
                "list": [1],
                "pickle": divmod,
            }[content],
            file,
        )
    elif content != "missing":
        file.write_bytes(b"" if content == "empty" else b"no weights at all")
    model = Torchvision(name="squeezenet1_1", weights=str(file))
    module = squeezenet(5)
    for attempt in (model.check_weights, model.load):
        with pytest.raises(UserError, match=message) as caught:
            attempt(module)
        assert caught.value.where == str(file) and "\n" not in str(caught.value)


def test_missing_cached_weights_are_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pretrained: nn.Module
) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    model = Torchvision(name="squeezenet1_1", weights="cached")
    (note,) = model.notes()
    assert note.startswith(f"no pretrained weights for squeezenet1_1 in {tmp_path}/hub/checkpoints: it starts from")
    assert "--model.weights hub" in note and Torchvision().notes() == []
    hub = Torchvision(name="squeezenet1_1", weights="hub")
    assert hub.notes() == [
        f"torchvision's weights of squeezenet1_1 are downloaded to {tmp_path}/hub/checkpoints before training starts"
    ]
    assert hub.check_weights(squeezenet(5)) is None
    module, before = squeezenet(5), squeezenet(5).state_dict()
    model.check_weights(module)
    model.load(module)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    folder = tmp_path / "hub" / "checkpoints"
    folder.mkdir(parents=True)
    save(pretrained.state_dict(), folder / "squeezenet1_1-b8a52dc0.pth")
    assert model.notes() == hub.notes() == []
    assert hub.check_weights(squeezenet(5)) is not None, "they are looked at in the plan"
    model.load(module)
    assert torch.equal(module.state_dict()["features.0.weight"], pretrained.state_dict()["features.0.weight"])
