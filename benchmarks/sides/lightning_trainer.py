# `make setup` does not install the package; calls of other modules are checked without it.
# pyright: reportMissingImports=false
"""Lightning's Trainer on raytrain's batches, with `barebones=True`: its documented setting for measuring the loop alone
(no logger, checkpoints, progress bar, summary or sanity check).

https://lightning.ai/docs/pytorch/stable/common/trainer.html#barebones
"""

from __future__ import annotations

import time
from typing import Any

import lightning
import torch
from torch import nn

from benchmarks.resident import Batches
from benchmarks.side import Turns, Workload, join


class Module(lightning.LightningModule):
    """The model, and an epoch a turn."""

    def __init__(self, workload: Workload, turns: Turns):
        super().__init__()
        self.workload, self.turns = workload, turns
        self.model, self.criterion = workload.build(), nn.CrossEntropyLoss()

    def on_train_epoch_start(self) -> None:
        """Waits for the turn."""
        if not self.turns.wait():
            raise SystemExit
        self.started, self.samples, self.total = time.perf_counter(), 0, torch.zeros(())

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        """The loss of a batch."""
        images, labels = batch
        loss = self.criterion(self.model(images), labels)
        self.total += loss.detach() * len(labels)
        self.samples += len(labels)
        return loss

    def on_train_epoch_end(self) -> None:
        """Ends the turn."""
        loss = self.total.item() / self.samples
        self.turns.reply(self.samples, time.perf_counter() - self.started, loss)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """The optimizer of all sides."""
        return self.workload.optimizer(self)


def main() -> None:
    """An epoch a turn."""
    workload, turns = Workload.from_argv(), Turns()
    join()
    trainer = lightning.Trainer(accelerator="cpu", devices=1, max_epochs=-1, barebones=True)
    trainer.fit(Module(workload, turns), Batches(workload))


if __name__ == "__main__":
    main()
