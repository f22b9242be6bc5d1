"""DistributedDataParallel: a replica on every rank, whose gradients are averaged during the last backward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from raytrain import errors
from raytrain.data.loader import Pass
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
        self.sent: torch.dtype | None = None

    def compress(self, dtype: str) -> None:
        """Send gradients in another type.

        Args:
            dtype: bf16 or fp16.
        """
        self.ddp.register_comm_hook(None, getattr(default_hooks, f"{dtype}_compress_hook"))
        self.sent = {"bf16": torch.bfloat16, "fp16": torch.float16}[dtype]
        self.rounding = self.ranks.world * torch.finfo(self.sent).eps

    def forward_backward(self, micro_batches: Iterable[Pass], loss: Loss, autocast: Autocast) -> None:
        """As the base class; synchronised BatchNorm layers leave blank micro-batches out.

        Raises:
            UserError: a parameter has no gradient, and DistributedDataParallel has not looked for such.
        """
        marked = partial(self._marked, loss) if self.ranks.device.type == "cpu" else loss  # a GPU's host does not wait
        super().forward_backward(map(self._announced, micro_batches), marked, autocast)
        try:
            self.ddp._check_reducer_finalized()
        except RuntimeError as error:
            names = [name for name, one in self.module.named_parameters() if one.requires_grad and one.grad is None]
            raise errors.UserError(
                f"{errors.listed(names)}: no gradient after the backward pass, for which the workers wait",
                "in parallel.find_unused_parameters",
                "use --parallel.find_unused_parameters",
            ) from error

    def recorded(
        self, backward: Callable[[], None], parameters: list[nn.Parameter]
    ) -> tuple[list[torch.Tensor | None], list[torch.Tensor]]:
        """As the base class, with the gradients as parts of one tensor of each dtype."""
        with _in_place_of(self.module, parameters) as others:
            backward()
        return _joined([other.grad for other in others])

    def replayed(self, replay: Callable[[], None], exchanged: list[torch.Tensor]) -> None:
        """As the base class. Before the pass buffers take rank 0's values, and after it gradients are averaged, both
        with the operations of DistributedDataParallel."""
        if self.ddp.will_sync_module_buffers():
            self.ddp._sync_buffers()
        replay()
        for gradients in exchanged:
            if self.sent is None:
                dist.all_reduce(gradients.mul_(1 / self.ranks.world))
            else:
                sent = gradients.to(self.sent).div_(self.ranks.world)
                dist.all_reduce(sent)
                gradients.copy_(sent)

    def no_sync(self) -> AbstractContextManager[Any]:
        """Return DistributedDataParallel's own `no_sync`, which a static graph does not allow."""
        return nullcontext() if self.exchange_each else self.ddp.no_sync()

    def _marked(self, loss: Loss, model: nn.Module, micro_batch: Pass) -> torch.Tensor:
        """Return the loss, after whose backward pass the rank is said to exchange gradients: DistributedDataParallel
        waits for them there. Autograd calls back in the order of the requests, and this one comes before
        DistributedDataParallel's own."""
        found = loss(model, micro_batch)
        if micro_batch.last or self.exchange_each:
            engine: Any = torch.autograd.Variable._execution_engine
            found.register_hook(lambda _: engine.queue_callback(partial(doing.at, EXCHANGING)))
        return found

    def _announced(self, micro_batch: Pass) -> Pass:
        for layer in self.synced:
            layer.blank = micro_batch.blank
        return micro_batch


def keeps_buckets(ranks: RankContext) -> bool:
    """Return whether DistributedDataParallel must keep its first buckets, as it does where it looks for unused
    parameters. It rebuilds them after the first backward pass, and gloo adds three or more ranks in an order that
    depends on the buckets: a resumed run would differ in the last bit."""
    return ranks.device.type == "cpu" and ranks.world > 2


@contextmanager
def _in_place_of(module: nn.Module, parameters: list[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """The context in which a module has other parameters in the same memory, whose gradients are not given to
    DistributedDataParallel. It keeps autograd's node for each parameter, which computes on the stream of its making,
    and a recording on another stream must not make that one wait."""
    others = {id(one): nn.Parameter(one.detach()) for one in parameters}
    held = [
        (layer, name, one) for layer in module.modules() for name, one in layer._parameters.items() if id(one) in others
    ]
    try:
        for layer, name, one in held:
            setattr(layer, name, others[id(one)])
        yield list(others.values())
    finally:
        for layer, name, one in held:
            setattr(layer, name, one)


def _joined(gradients: list[torch.Tensor | None]) -> tuple[list[torch.Tensor | None], list[torch.Tensor]]:
    """Return copies of gradients as parts of one tensor of each dtype, and these tensors. Autograd makes gradients
    whose values lie side by side in memory, in the parameter's order."""
    found = list(gradients)
    kinds: dict[torch.dtype, list[tuple[int, torch.Tensor]]] = {}
    for number, gradient in enumerate(gradients):
        if gradient is not None:
            kinds.setdefault(gradient.dtype, []).append((number, gradient))
    wholes = []
    for some in kinds.values():
        whole = torch.cat([one.as_strided((one.numel(),), (1,)) for _, one in some])
        for (number, one), part in zip(some, whole.split([one.numel() for _, one in some]), strict=True):
            found[number] = part.as_strided(one.size(), one.stride())
        wholes.append(whole)
    return found, wholes
