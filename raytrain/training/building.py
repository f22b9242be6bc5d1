"""The model that a rank trains, with the weights that training starts from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from raytrain.parallel.materialise import lay_out
from raytrain.parallel.strategy import Strategy
from raytrain.training import freezing, recomputing
from raytrain.training.precision import memory_format

if TYPE_CHECKING:
    from raytrain.training.trainer import Trainer


def build(trainer: Trainer) -> nn.Module:
    """Return the model on the CPU. A strategy that spreads it gets the weights of the seed: `start` loads others."""
    e = trainer.experiment
    layout = memory_format(e.memory_format)
    trainer.seed(0)
    module = e.model.build(trainer.sample, len(trainer.classes))
    freezing.freeze(module, e.freeze)
    recomputing.recompute(module, e.activation_checkpointing)
    if e.parallel.spreads:
        lay_out(module, layout, trainer.ranks.folder)
    else:
        if trainer.weights is not None:
            module.load_state_dict(trainer.weights)
        module.to(memory_format=layout)  # type: ignore[call-overload]
    if e.compile:
        # One graph per shape: otherwise the first short batch would bring in one graph for all shapes.
        module.compile(dynamic=False)
    return module


def start(trainer: Trainer) -> Strategy:
    """Return the strategy of a trainer, with the model and its weights. A collective."""
    e = trainer.experiment
    strategy = e.parallel.setup(trainer.build, trainer.ranks, (e.accumulation, e.micro_batch))
    if e.parallel.spreads and trainer.weights is not None:
        strategy.load(trainer.weights)
    return strategy
