"""timm's models: built, filled and described as timm does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from raytrain import Experiment, ImageFolder, Timm, UserError

timm = pytest.importorskip("timm", reason="timm is not installed")
SAMPLE = (3, 64, 64)


def same(one: nn.Module, other: nn.Module) -> bool:
    ours, theirs = one.state_dict(), other.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(value, theirs[name]) for name, value in ours.items())


@pytest.mark.parametrize("name", ["resnet18", "test_vit", "test_efficientnet"])
def test_a_model_is_timms_own(name: str) -> None:
    options = {"img_size": (64, 64)} if "vit" in name else {}
    torch.manual_seed(0)
    ours = Timm(name).build(SAMPLE, 5)
    torch.manual_seed(0)
    assert same(ours, timm.create_model(name, num_classes=5, in_chans=3, **options))
    assert ours.eval()(torch.zeros(2, *SAMPLE)).shape == (2, 5)
    frozen = Timm(name, freeze=True).build(SAMPLE, 5)
    assert {n for n, p in frozen.named_parameters() if p.requires_grad} == {
        f"{head}.{part}" for head in Timm(name).weights_head(frozen) for part in ("weight", "bias")
    }


def test_a_timm_file_with_averages_and_arguments_fills_all_but_the_head(tmp_path: Path) -> None:
    from argparse import Namespace

    from timm.utils.checkpoint_saver import CheckpointSaver
    from timm.utils.model_ema import ModelEmaV3

    torch.manual_seed(1)
    trained = timm.create_model("resnet18", num_classes=7)
    averaged = ModelEmaV3(timm.create_model("resnet18", num_classes=7))
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
    args = Namespace(model="resnet18", lr=0.1)
    saver = CheckpointSaver(trained, optimizer, args=args, model_ema=averaged, checkpoint_dir=str(tmp_path))
    saver.save_checkpoint(epoch=0, metric=0.5)
    file = str(tmp_path / "last.pth.tar")
    for classes in (7, 5):
        model = Timm("resnet18", weights=file)
        module = model.build(SAMPLE, classes)
        fit = model.load(module)
        assert fit is not None and fit.anew == (() if classes == 7 else ("fc.weight", "fc.bias"))
        assert torch.equal(module.state_dict()["conv1.weight"], averaged.module.state_dict()["conv1.weight"])
    assert same(module, averaged.module) is False and not fit.missing
    with pytest.raises(UserError, match="tensors are missing"):
        Timm("resnet34", weights=file).load(Timm("resnet34").build(SAMPLE, 7))


@pytest.mark.parametrize("name", ["resnet18", "test_vit"])
def test_cached_weights_are_fitted_to_channels_and_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    torch.manual_seed(1)
    trained = timm.create_model(name)
    file = tmp_path / "model.safetensors"
    from raytrain.models import timm_modules

    assert Timm(name, weights="none").weights_input() == {} and Timm(name).notes() == []
    model = Timm(name, weights="cached")
    monkeypatch.setattr(timm_modules, "try_to_load_from_cache", lambda *_: None)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    assert "no pretrained weights" in model.notes()[0] and model.load(model.build(SAMPLE, 5)) is None
    from safetensors.torch import save_file

    save_file(trained.state_dict(), file)
    monkeypatch.setattr(timm_modules, "try_to_load_from_cache", lambda *_: str(file))
    assert model.notes() == []
    for channels, side in ((3, 160), (1, 64)):
        module = model.build((channels, side, side), 5)
        fit = model.load(module)
        assert fit is not None and not fit.missing and len(fit.anew) == 2
        state, source = module.state_dict(), trained.state_dict()
        stem = "conv1.weight" if name == "resnet18" else "patch_embed.proj.weight"
        wanted = source[stem] if channels == 3 else source[stem].sum(1, keepdim=True)
        torch.testing.assert_close(state[stem], wanted)
        assert torch.equal(
            state["layer1.0.conv1.weight" if name == "resnet18" else "blocks.0.attn.qkv.weight"],
            source["layer1.0.conv1.weight" if name == "resnet18" else "blocks.0.attn.qkv.weight"],
        )


def test_hub_weights_are_those_that_timm_downloads(monkeypatch: pytest.MonkeyPatch) -> None:
    create, asked = timm.create_model, []

    def downloads(name: str, pretrained: bool = False, **options: Any) -> nn.Module:
        asked.append((name, pretrained))
        torch.manual_seed(3)
        return create(name, **options)

    model = Timm("resnet18.a1_in1k", weights="hub")
    module = model.build(SAMPLE, 5)
    assert model.check_weights(module) is None, "the plan downloads nothing"
    monkeypatch.setattr(timm, "create_model", downloads)
    state = torch.get_rng_state()
    model.load(module)
    assert torch.equal(torch.get_rng_state(), state)
    assert asked == [("resnet18.a1_in1k", True)]
    assert torch.equal(module.state_dict()["conv1.weight"], downloads("resnet18").state_dict()["conv1.weight"])
    monkeypatch.setattr(timm, "create_model", lambda *_, **__: (_ for _ in ()).throw(OSError("no network")))
    with pytest.raises(UserError, match="timm has no weights: no network, in resnet18"):
        model.load(module)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Timm("resnet81"), r"timm has no model 'resnet81', in model.name; did you mean resnet18\?"),
        (Timm("resnet18.a1_in2k"), r"timm has no model 'resnet18.a1_in2k', .* did you mean resnet18.a1_in1k\?"),
        (Timm("hf-hub:timm/resnet18"), "timm has no model 'hf-hub:timm/resnet18'"),
        (Timm("test_vit", drop_path_rate=0.1), ""),
        (Timm("vgg11", drop_path_rate=0.1), "timm cannot build vgg11 for images 3x64x64: .*drop_path_rate"),
    ],
)
def test_what_timm_does_not_have_is_refused(model: Timm, message: str) -> None:
    if not message:
        model.build(SAMPLE, 2)
        return
    with pytest.raises(UserError, match=message):
        model.build(SAMPLE, 2)
    with pytest.raises(UserError, match=r"drop_rate = 1.0 is out of range, in Timm; give a value in \[0, 1\)"):
        replace(model, drop_rate=1.0)


def test_timms_input_is_what_timm_resolves() -> None:
    for name in ("resnet18", "inception_v3", "vit_small_patch16_224.augreg_in1k", "convnext_tiny"):
        config_of = timm.data.resolve_data_config({}, pretrained_cfg=timm.get_pretrained_cfg(name).to_dict())
        found = Timm(name, weights="cached").weights_input()
        transform = timm.data.create_transform(**config_of)
        assert found["size"] == transform.transforms[0].size
        assert (found["mean"], found["std"], found["crop"]) == (
            *(config_of["mean"], config_of["std"]),
            config_of["input_size"][-1],
        )
        assert found["interpolation"] == config_of["interpolation"] == transform.transforms[0].interpolation.value


def test_a_run_keeps_what_its_data_took(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Evaluation and prediction read it from there."""
    from raytrain.driver import fit, plan, resources

    for split in ("train", "val"):
        for label in ("a", "b"):
            (tmp_path / split / label).mkdir(parents=True)
            for number in range(2):
                pixels = np.random.default_rng(number).integers(0, 255, (40, 40, 3), np.uint8)
                Image.fromarray(pixels).save(tmp_path / split / label / f"{number}.png")
    file = tmp_path / "w.pth"
    torch.save(timm.create_model("test_resnet").state_dict(), file)
    e = Experiment(Timm("test_resnet", weights=str(file)), ImageFolder(str(tmp_path), cache="off"), batch_size=2)
    planned = plan.make(e, resources.local_resources, "")
    data = fit.to_keep(e, planned).data
    assert isinstance(data, ImageFolder) and isinstance(planned.experiment.data, ImageFolder)
    wanted = e.model.weights_input()
    assert (data.mean, data.std, data.crop, data.size) == tuple(wanted[n] for n in ("mean", "std", "crop", "size"))
    assert data.interpolation == wanted["interpolation"] != "auto"
    assert planned.experiment.data == data and any("takes from the model's weights" in note for note in planned.notes)
