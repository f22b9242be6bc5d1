import os
from dataclasses import dataclass

import numpy as np
from torch import nn

from raytrain import SGD, Classification, Data, Experiment, Index, Model, Scaling, Augment, Checkpoint


@dataclass(frozen=True)
class Net(Model):
    width: int = 4

    def build(self, sample, classes):
        return nn.Sequential(nn.Flatten(), nn.Linear(64, self.width), nn.ReLU(), nn.Linear(self.width, classes))


@dataclass(frozen=True)
class Noise(Data):
    mean: tuple[float, ...] = (0.5,)
    std: tuple[float, ...] = (0.25,)

    def index(self):
        return {
            name: Index(labels=np.arange(count) % 4, classes=("a", "b", "c", "d"), shape=(1, 8, 8))
            for name, count in (("train", 200), ("val", 40))
        }

    def read(self, index, samples):
        r = (samples[:, None] * 7 + np.arange(64) * (index.labels[samples][:, None] + 1)) % 256
        return r.astype(np.uint8).reshape(-1, 1, 8, 8)


CALLS = []


@dataclass(frozen=True)
class Mine(Classification):
    weight: float = 2.0
    directions = {"double": "max"}
    monitor: str = "val_double"

    def loss(self, model, batch):
        CALLS.append(1)
        if os.environ.get("BREAK") and len(CALLS) > 40:
            raise RuntimeError("broken")
        loss, count = super().loss(model, batch)
        return loss * self.weight, count

    def metrics(self, sums):
        found = super().metrics(sums)
        return found | {"double": 2 * found["accuracy"]}


experiment = Experiment(
    model=Net(width=3),
    data=Noise(),
    task=Mine(),
    optimizer=SGD(lr=0.05, momentum=0.9),
    scaling=Scaling(workers=1),
    checkpoint=Checkpoint(every_steps=3),
    batch_size=20,
    epochs=5,
    deterministic=True,
)
