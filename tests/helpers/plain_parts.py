"""Plain classes and functions of a user, at the top level of a module, as wrappers need them."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import Dataset, IterableDataset

from raytrain import Digits


class Net(nn.Module):
    """A small classifier."""

    def __init__(
        self,
        width: int = 16,
        widths: list[int] = [8],  # noqa: B006
        act: type[nn.Module] = nn.ReLU,
        num_classes: int = 1000,
    ):
        super().__init__()
        assert isinstance(widths, list)
        sizes = [64, *widths, width]
        hidden = [layer for a, b in pairwise(sizes) for layer in (nn.Linear(a, b), act())]
        self.layers = nn.Sequential(nn.Flatten(), *hidden, nn.Linear(width, num_classes))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.layers(images)


def net(depth=1, name=None, scale=(1, 2), **more: Any) -> nn.Module:
    return Net(widths=[8] * depth, **more)


def wants_two(first: int, second: float) -> nn.Module:
    return nn.Linear(first, int(second))


def by_position(width: int, /) -> nn.Module:
    return nn.Linear(width, width)


def taken(load: int = 1) -> nn.Module:
    return nn.Linear(load, load)


def nothing(classes: int) -> None:
    """Forgets to return its module."""


class Counting(torch.optim.Optimizer):
    """SGD whose rate falls with a count of steps: a state that is no tensor, and one of its group."""

    def __init__(self, params: Any, lr: float = 0.1, decay: float = 0.5):
        super().__init__(params, {"lr": lr, "decay": decay, "calls": 0})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            group["calls"] += 1
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                state["count"] = state.get("count", 0) + 1
                state["seen"] = (*state.get("seen", ())[-1:], float(state["count"]))
                rate = group["lr"] / (1 + group["decay"] * (state["seen"][0] + group["calls"]) / 2)
                parameter.add_(parameter.grad, alpha=-rate)


class Switching(Counting):
    """Has other weights in evaluation, as schedule-free optimizers do."""

    def train(self) -> None: ...

    def eval(self) -> None: ...


def without_lr(parameters: Any, speed: float = 0.1) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=speed)


def rmsprop(parameters: Any, lr: float = 0.01, alpha: float = 0.9) -> torch.optim.Optimizer:
    return torch.optim.RMSprop(parameters, lr=lr, alpha=alpha)


def stages(optimizer: torch.optim.Optimizer, first: float = 0.5) -> torch.optim.lr_scheduler.LRScheduler:
    schedulers = torch.optim.lr_scheduler
    parts = [schedulers.ConstantLR(optimizer, first, 2), schedulers.ExponentialLR(optimizer, 0.9)]
    return schedulers.SequentialLR(optimizer, parts, [2])  # type: ignore[arg-type]


class Digit(Dataset):
    """The digits: PIL images, tensors or dicts."""

    def __init__(self, split: str, form: str = "pil", targets: bool = False):
        source = Digits()
        index = source.index()[split]
        self.images, self.labels_, self.form = source.read(index, np.arange(len(index))), index.labels, form
        if targets:
            self.targets = self.labels_.tolist()
            self.classes = [f"digit {number}" for number in range(10)]

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, number: int) -> Any:
        image, label = self.images[number], int(self.labels_[number])
        forms = {
            "pil": lambda: (Image.fromarray(image[0]), label),
            "tensor": lambda: (torch.from_numpy(image), torch.tensor(label)),
            "float": lambda: (torch.from_numpy(image).float() / 255, label),
            "mask": lambda: {"image": image, "mask": (image[0] > 99).astype(np.int64), "weight": 0.5, "label": label},
            "bool mask": lambda: {"image": image, "mask": torch.from_numpy(image[0] > 99)},
            "tall mask": lambda: {"image": image, "mask": torch.from_numpy(image > 99).long()},
            "grey mask": lambda: {"image": image, "mask": Image.fromarray((image[0] > 99).astype(np.uint8))},
            "big-endian": lambda: {
                "x": (image / 255).astype(">f4"),
                "n": np.float64(number).astype(">f8"),
                "label": label,
            },
            "complex": lambda: (image * 1j, label),
            "half": lambda: (torch.from_numpy(image).bfloat16(), label),
            "a list": lambda: (image, torch.tensor([label])),
            "one-hot": lambda: (image, torch.arange(10) == label),
            "a name": lambda: (image, "seven"),
            "target": lambda: {"image": image, "target": label},
            "from 1": lambda: (image, label + 1),
            "bare": lambda: torch.from_numpy(image),
            "random": lambda: (torch.rand(1, 8, 8), label),
            "three": lambda: (image, label, label),
            "text": lambda: {"image": image, "name": "seven", "label": label},
            "empty": lambda: {"label": label},
            "palette": lambda: (Image.fromarray(image[0]).convert("P"), label),
            "last": lambda: (np.zeros((8, 8, 3), np.uint8), label),
            "regression": lambda: (image, 0.5),
            "sizes": lambda: (np.zeros((1, 8, 8 + number % 2), np.uint8), label),
            "wrong": lambda: (image, 1 - label % 2),
            "broken": lambda: (image, label) if number != 5 else open("/nowhere"),
        }
        return forms[self.form]()


class Whole(Digit):
    """Samples without a split."""

    def __init__(self, form: str = "pil", targets: bool = False):
        super().__init__("val", form, targets)


class Stream(IterableDataset):
    """Samples without numbers."""

    def __iter__(self) -> Any:
        return iter([(torch.zeros(1), 0)])


class LongStream(Stream):
    """Samples without numbers, whose count is known."""

    def __len__(self) -> int:
        return 1


def truth(train: bool, form: str = "pil") -> Dataset:
    return Digit("train" if train else "val", form)


def named(split: str, val: str = "9876543210") -> Dataset:
    """Digits whose val has class names of its own, a letter each."""
    found = Digit(split)
    found.classes = list("0123456789" if split == "train" else val)
    return found


def from_one(classes: int) -> Dataset:
    """Digits whose labels are 1 to 10, with the names of so many classes."""
    found = Whole("from 1")
    found.classes = [f"digit {number}" for number in range(classes)]
    return found


def described(split: str) -> Dataset:
    """Digits that name their classes as Hugging Face's datasets do."""
    found = Digit(split)
    label = SimpleNamespace(names=[f"digit {number}" for number in range(10)])
    vars(found)["features"] = {"image": None, "label": label}
    return found


def grouped(kind: str = "list") -> Dataset:
    """Digits with a patient for each 7 of them, and attributes in `columns` that are not of the samples."""
    found = Whole()
    names = [f"p{number // 7}" for number in range(len(found))]
    kinds = {"list": names, "array": np.array(names), "object": np.array(names, object), "none": [*names[1:], None]}
    vars(found)["columns"] = {"patient": kinds[kind], "image": "path", "some": [1, 2]}
    return found
