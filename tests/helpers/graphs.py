"""What stands for a CUDA graph on a CPU, and a hook that lets a run capture its steps with it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from raytrain import Hook
from raytrain.data.reader import Resident
from raytrain.training import captured_update
from raytrain.training.graph import CapturedStep
from raytrain.training.trainer import Trainer

captured_update.RATE = torch.float64  # as CPU kernels read it, and as they compute without graphs: bits are comparable


class Tape(TorchDispatchMode):
    """Notes all operators below autograd and autocast, as a CUDA graph has kernels; keeps what they overwrite."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, Any]] = []
        self.kept: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func._overloadpacket not in (torch.ops.aten._local_scalar_dense, torch.ops.aten.is_nonzero), "it waits"
        kwargs = kwargs or {}
        if func._schema.is_mutable:
            for tensor in tensors((args, kwargs)):
                self.kept.setdefault(id(tensor), (tensor, tensor.detach().clone()))
        out = func(*args, **kwargs)
        self.calls.append((func, args, kwargs, out))
        return out


def tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


class Replayed:
    """Does what a CUDA graph does: a capture has no effect; each replay computes the same operators from the tensors of
    the capture, with the numbers of the capture, and writes to its tensors. Python does nothing in a replay."""

    seconds = 0.0

    @torch.no_grad()
    def capture(self, work: Callable[[], list[torch.Tensor]]) -> list[torch.Tensor]:
        tape = Tape()
        try:
            with tape, torch.enable_grad():
                self.tensors = work()
        finally:
            for tensor, kept in reversed(tape.kept.values()):
                tensor.copy_(kept)
        self.calls = tape.calls
        for tensor in self.tensors:
            tensor.fill_(float("nan") if tensor.is_floating_point() else 0)  # no value before the first replay
        return self.tensors

    @torch.no_grad()
    def replay(self) -> None:
        time.sleep(self.seconds)
        for func, args, kwargs, out in self.calls:
            memory = {tensor.untyped_storage().data_ptr() for tensor in tensors((args, kwargs))}
            outs = tensors(out)
            if func._schema.is_mutable:
                func(*args, **kwargs)
            elif any(tensor.untyped_storage().data_ptr() not in memory for tensor in outs):  # no view
                for tensor, found in zip(outs, tensors(func(*args, **kwargs)), strict=True):
                    tensor.copy_(found)


class Slow(Replayed):
    seconds = 0.05


class Capture(Hook):
    """Lets a run on a CPU capture its steps; without a kind of graph it only decides on the device, as on a GPU.

    Args:
        resident: whether the device has all training images in its memory.
    """

    def __init__(self, kind: type[Replayed] | None = Replayed, resident: bool = True):
        self.kind, self.resident = kind, resident

    def start(self, trainer: Trainer) -> None:
        trainer.precision.reads = False
        if self.kind is not None:
            loader = trainer.loaders["train"]
            if self.resident and isinstance(loader.reader, Resident):
                arrays = {**loader.reader.whole(), "label": loader.labels}
                loader.on_device = {name: torch.tensor(array) for name, array in arrays.items()}
            self.steps = CapturedStep(trainer, self.kind)
            trainer.forward_backward, trainer.update_weights = self.steps.forward_backward, self.steps.update_weights
