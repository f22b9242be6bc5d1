"""`precision="auto"`: the fastest precision, by trying."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from raytrain import config
from raytrain.files import known_json, write_atomically
from raytrain.training.precision import Precision, fastest

if TYPE_CHECKING:
    from raytrain.training.trainer import Trainer


def choose_precision(trainer: Trainer) -> None:
    """Decide by trying on the run's own images, with a model that is dropped afterwards. The run keeps the decision,
    and its metrics say what was measured. A collective."""
    e, ranks = trainer.experiment, trainer.ranks
    loaded = next(trainer.loaders["train"].epoch(trainer.progress.epoch))
    first = next(loaded.passes(e.micro_batch, together=False))
    batch, model = first.batch.unmixed, trainer.build().to(ranks.device)

    def step(precision: Precision) -> list[torch.Tensor]:
        model.zero_grad()
        with precision.forward():
            loss, count = e.task.loss(model, batch)
        with precision.products():
            (loss / count).backward()  # not scaled as in fp16, since a scale that is too large soon mends itself
        return [loss, *(parameter.grad for parameter in model.parameters() if parameter.grad is not None)]

    model.train()
    found = [fastest(step, ranks.device, e.parallel.scales)]  # on all ranks at once, as they will train
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
