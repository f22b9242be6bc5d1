"""Regression on float32 columns of a Parquet file."""

from dataclasses import dataclass

import numpy as np
import pyarrow.parquet as pq
import torch
from torch import nn

from raytrain import SGD, Batch, Data, Experiment, Field, Index, Model, Task


@dataclass(frozen=True)
class Table(Data):
    file: str = "table.parquet"
    """Has float32 columns, of which the last is the target."""

    def index(self) -> dict[str, Index]:
        found = pq.ParquetFile(self.file).metadata
        fields = (Field("x", (found.num_columns - 1,), "float32"), Field("y", (), "float32"))
        rows = np.arange(found.num_rows)
        parts = {"train": rows[rows % 5 > 0], "val": rows[rows % 5 == 0]}
        return {split: Index(rows=part, split=split, fields=fields) for split, part in parts.items()}

    def read(self, index: Index, samples: np.ndarray) -> dict[str, np.ndarray]:
        table = pq.read_table(self.file).take(index.rows[samples])
        *columns, target = (column.to_numpy() for column in table.columns)
        return {"x": np.stack(columns, axis=1), "y": target}


@dataclass(frozen=True)
class Linear(Model):
    def build(self, sample: tuple[int, ...], classes: int) -> nn.Module:
        return nn.Linear(sample[0], 1)


@dataclass(frozen=True)
class Regression(Task):
    def loss(self, model: nn.Module, batch: Batch) -> tuple[torch.Tensor, int]:
        return (model(batch["x"])[:, 0] - batch["y"]).square().sum(), len(batch)


experiment = Experiment(Linear(), Table(), Regression(), SGD(lr=0.05), batch_size=16, epochs=3)
