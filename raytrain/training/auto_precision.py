"""`precision="auto"`: the fastest precision, by trying."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import nn

from raytrain import config
from raytrain.data.loader import Pass
from raytrain.files import known_json, write_atomically
from raytrain.parallel.strategy import local
from raytrain.training.precision import Precision, fastest

if TYPE_CHECKING:
    from raytrain.training.trainer import Trainer


def choose_precision(trainer: Trainer) -> None:
    """Decide by trying on the run's own images, with a model that is dropped afterwards; where a rank has no room for
    one, with the run's own. The run keeps the decision, and its metrics say what was measured. A collective."""
    e, ranks = trainer.experiment, trainer.ranks
    loaded = next(trainer.loaders["train"].epoch(trainer.progress.epoch))
    first = next(loaded.passes(e.micro_batch, together=False))
    first = first._replace(batch=first.batch.unmixed, last=True)
    spreads = e.parallel.spreads
    step = _on_all_ranks(trainer, first) if spreads else _alone(trainer, first)
    owned = filter(trainer.strategy.owns, trainer.strategy.module.buffers() if spreads else ())
    kept = [(buffer, buffer.clone()) for buffer in owned]
    together = spreads and ranks.world > 1
    found = [fastest(step, ranks.device, e.parallel.scales, together)]  # on all ranks at once, as they will train
    for buffer, before in kept:
        buffer.copy_(before)
    if ranks.world > 1:
        dist.broadcast_object_list(found)  # rank 0's counts
    chosen, trainer.progress.tried = found[0]
    trainer.experiment = config.replace(e, "precision", chosen)
    trainer.precision = Precision(chosen, ranks.device)
    if trainer.log:
        # What was decided for this cluster, such as the CPUs of a worker, is not part of the experiment.
        file = trainer.run.path / "experiment.json"
        values = (known_json(file) or config.to_dict(e)) | {"precision": chosen, "memory_format": e.memory_format}
        write_atomically(file, json.dumps(values, indent=2) + "\n")
        trainer.log.write([{"kind": "precision", "chosen": chosen, "milliseconds": trainer.progress.tried}])


def _alone(trainer: Trainer, first: Pass) -> Callable[[Precision], list[torch.Tensor]]:
    """Return a step, for `fastest`, with a model of this rank alone."""
    model = trainer.build().to(trainer.ranks.device)
    model.train()

    def step(precision: Precision) -> list[torch.Tensor]:
        model.zero_grad()
        with precision.forward():
            loss, count = trainer.experiment.task.loss(model, first.batch)
        with precision.products():
            (loss / count).backward()  # not scaled as in fp16, since a scale that is too large soon mends itself
        return [loss, *(parameter.grad for parameter in model.parameters() if parameter.grad is not None)]

    return step


def _on_all_ranks(trainer: Trainer, first: Pass) -> Callable[[Precision], list[torch.Tensor]]:
    """Return a step, for `fastest`, with the model that is spread over the ranks. Its weights stay as they are."""
    strategy, task = trainer.strategy, trainer.experiment.task
    strategy.module.train()

    def step(precision: Precision) -> list[torch.Tensor]:
        losses: list[torch.Tensor] = []

        def loss_of(model: nn.Module, one: Pass) -> torch.Tensor:
            with precision.forward():
                loss, count = task.loss(model, one.batch)
            losses.append(loss.detach())
            return loss / count

        with precision.products():
            strategy.forward_backward([first], loss_of, precision.forward)
        held = [parameter for parameter in strategy.module.parameters() if parameter.grad is not None]
        gradients = [local(parameter.grad) for parameter in held if parameter.grad is not None]
        for parameter in held:
            parameter.grad = None
        return [*losses, *gradients]

    return step
