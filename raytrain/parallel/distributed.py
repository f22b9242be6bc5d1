"""DistributedDataParallel: a replica on every rank, whose gradients are averaged during the last backward pass."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from raytrain.parallel.batchnorm import SyncedBatchNorm
from raytrain.parallel.strategy import Autocast, Loss, RankContext, Strategy
from raytrain.watchdog import EXCHANGING, doing


class Distributed(Strategy):
    """torch.nn.parallel.DistributedDataParallel.

    Args:
        module: the replica, on its device or devices.
        exchange_each: whether the gradients of every micro-batch are exchanged, as under a static graph, and not once a
            step.
        options: further arguments of DistributedDataParallel.
    """

    def __init__(self, module: nn.Module, ranks: RankContext, exchange_each: bool = False, **options: Any):
        super().__init__(module, ranks)
        self.model = self.ddp = DistributedDataParallel(module, **options)
        self.gradient_scale, self.exchange_each = float(ranks.world), exchange_each
        self.synced = [layer for layer in module.modules() if isinstance(layer, SyncedBatchNorm)]
        self.lockstep = exchange_each or bool(self.synced)

    def compress(self, dtype: str) -> None:
        """Send gradients in another type.

        Args:
            dtype: bf16 or fp16.
        """
        self.ddp.register_comm_hook(None, getattr(default_hooks, f"{dtype}_compress_hook"))

    def forward_backward(self, micro_batches: Iterable[Any], loss: Loss, autocast: Autocast) -> None:
        """As the base class; synchronised BatchNorm layers leave blank micro-batches out."""
        marked = partial(self._marked, loss) if self.ranks.device.type == "cpu" else loss  # a GPU's host does not wait
        super().forward_backward(map(self._announced, micro_batches), marked, autocast)

    def no_sync(self) -> AbstractContextManager[Any]:
        """Return DistributedDataParallel's own `no_sync`, which a static graph does not allow."""
        return nullcontext() if self.exchange_each else self.ddp.no_sync()

    def _marked(self, loss: Loss, model: nn.Module, micro_batch: Any) -> torch.Tensor:
        """Return the loss, after whose backward pass the rank is said to exchange gradients: DistributedDataParallel
        waits for them there. Autograd calls back in the order of the requests, and this one comes before
        DistributedDataParallel's own."""
        found = loss(model, micro_batch)
        if micro_batch.last or self.exchange_each:
            engine: Any = torch.autograd.Variable._execution_engine
            found.register_hook(lambda _: engine.queue_callback(partial(doing.at, EXCHANGING)))
        return found

    def _announced(self, micro_batch: Any) -> Any:
        for layer in self.synced:
            layer.blank = micro_batch.blank
        return micro_batch
