"""Sequences of int64 tokens: the next token of a counting sequence."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from raytrain import AdamW, Batch, Data, Experiment, Field, Index, Model, Task

VOCABULARY, LENGTH = 11, 12


@dataclass(frozen=True)
class Counting(Data):
    def index(self) -> dict[str, Index]:
        fields = (Field("tokens", (LENGTH,), "int64"),)
        return {
            split: Index(rows=np.arange(first, first + count), split=split, fields=fields)
            for split, first, count in (("train", 0, 100), ("val", 500, 20))
        }

    def read(self, index: Index, samples: np.ndarray) -> np.ndarray:
        first, step = np.divmod(index.rows[samples], 3)
        return ((first[:, None] + (1 + step[:, None]) * np.arange(LENGTH)) % VOCABULARY).astype(np.int64)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.gru = nn.Embedding(VOCABULARY, 16), nn.GRU(16, 16, batch_first=True)
        self.head = nn.Linear(16, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.gru(self.embed(tokens))[0])


@dataclass(frozen=True)
class Language(Model):
    def build(self, sample: tuple[int, ...], classes: int) -> nn.Module:
        return Recurrent()


@dataclass(frozen=True)
class NextToken(Task):
    def loss(self, model: nn.Module, batch: Batch) -> tuple[torch.Tensor, int]:
        answers = model(batch["tokens"])[:, :-1].transpose(1, 2)
        each = cross_entropy(answers, batch["tokens"][:, 1:], reduction="none")
        return each.mean(dim=1).sum(), len(batch)


experiment = Experiment(Language(), Counting(), NextToken(), AdamW(lr=0.02), batch_size=16, epochs=3)
