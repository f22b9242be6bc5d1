"""What the data takes from a model's weights, with a model that needs no library; and timm's absence."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import pytest

from raytrain import CNN, Digits, Experiment, Field, ImageFolder, Model, Timm, config
from raytrain.driver import model_input


def test_fields_need_no_timm() -> None:
    assert config.from_dict(Model, {"class": "raytrain:Timm", "name": "x"}, "here") == Timm("x")
    code = (
        "import sys; sys.modules['timm'] = None\nfrom raytrain import Timm, UserError\n"
        "try: Timm().build((3, 32, 32), 2)\nexcept UserError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "timm is not installed, in Timm; run pip install 'raytrain[timm]'\n", done.stderr


@dataclass(frozen=True)
class Trained(Model):
    def weights_input(self) -> dict[str, Any]:
        return {"mean": (0.2, 0.4, 0.9), "std": (0.1, 0.2, 0.3), "crop": 96, "size": 110, "interpolation": "bicubic"}


def taken(data: Any, channels: int = 3, model: Model = Trained()) -> Any:
    e = model_input.sized(Experiment(model=model, data=data))
    return model_input.normalised(e, Field("image", (channels, 9, 9), kind="image")).data


def test_the_data_takes_what_is_not_set() -> None:
    folder = ImageFolder("x")
    found = taken(folder)
    assert (found.mean, found.std, found.crop, found.size) == ((0.2, 0.4, 0.9), (0.1, 0.2, 0.3), 96, 110)
    assert found.interpolation == "bicubic" == found.resampling and folder.resampling == "bilinear"
    assert model_input.notes(folder, found) == [
        "the data takes from the model's weights: crop 96, mean 0.2 0.4 0.9, std 0.1 0.2 0.3, size 110, interpolation "
        "bicubic (--data.crop sets another)"
    ]
    assert taken(found) == found, "once more changes nothing"
    assert taken(folder, model=CNN()) is folder and model_input.notes(folder, folder) == []


@pytest.mark.parametrize(
    ("own", "kept"),
    [
        ({"mean": (0.1, 0.1, 0.1)}, ("mean", "std")),
        ({"std": (0.1, 0.1, 0.1)}, ("mean", "std")),
        ({"size": 300}, ("size", "crop")),
        ({"crop": 64}, ("size", "crop")),
        ({"crop": None, "size": 64}, ("size", "crop")),
        ({"interpolation": "bilinear"}, ("interpolation",)),
    ],
)
def test_what_the_user_sets_stays_with_what_belongs_to_it(own: dict[str, Any], kept: tuple[str, ...]) -> None:
    data = ImageFolder("x", **own)
    found, whole = taken(data), taken(ImageFolder("x"))
    for name in ("mean", "std", "size", "crop", "interpolation"):
        assert getattr(found, name) == getattr(data if name in kept else whole, name)


def test_grey_images_get_one_mean_and_a_source_without_a_size_keeps_its_images() -> None:
    found = taken(Digits(), channels=1)
    assert (found.mean, found.std, found.crop) == ((0.5,), (0.2,), None)
    plain = Field("image", (3,), kind="plain")
    e = Experiment(model=Trained(), data=Digits())
    assert model_input.normalised(e, plain) is e
