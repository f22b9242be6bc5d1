"""Evaluation: every sample of a split once, on any number of ranks."""

from __future__ import annotations

import torch

from raytrain.data.loader import Loader
from raytrain.parallel.strategy import Strategy
from raytrain.tasks.metrics import Sums
from raytrain.tasks.task import Task
from raytrain.training.precision import Precision
from raytrain.watchdog import doing


def evaluate(task: Task, strategy: Strategy, loader: Loader, precision: Precision, micro_batch: int) -> Sums:
    """Return the task's sums over this rank's part of a split.

    Args:
        micro_batch: samples of a forward pass.
    """
    together = strategy.lockstep and strategy.sharded  # a rank with a whole replica evaluates alone
    sums = Sums(strategy.slots)
    strategy.module.eval()
    # No inference mode: what a model keeps of a pass, or a strategy allocates for one, serves training too, where it
    # must not be an inference tensor.
    with torch.no_grad():
        for number, shard in (shard for loaded in loader.epoch(0) for shard in loaded.shards()):
            passes = shard.passes(micro_batch, together)
            for one, model in strategy.answers(passes, precision.forward):
                if one.blank and not together:
                    continue
                doing.at("validating")
                with precision.forward():
                    found = task.sums(model, one.batch)
                if strategy.counts and not one.blank:
                    sums.add(found, strategy.slot(number))
    return sums
