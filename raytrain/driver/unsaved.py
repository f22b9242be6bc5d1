"""What training changes, or should, and no checkpoint has."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from raytrain.errors import UserError
from raytrain.user_code.places import place


def buffers(module: nn.Module) -> dict[str, torch.Tensor]:
    """Return copies of the buffers that are not in the model's state dict (`persistent=False`), by name."""
    saved = module.state_dict().keys()
    return {name: value.clone() for name, value in module.named_buffers() if name not in saved}


def notes(before: dict[str, torch.Tensor], module: nn.Module) -> list[str]:
    """Return a line for the plan if a step has changed one of them.

    Args:
        before: what `buffers` returned before the step.
    """
    now = dict(module.named_buffers())
    changed = [name for name, value in before.items() if name in now and not now[name].equal(value)]
    if not changed:
        return []
    what = f"training changes the buffer {changed[0]}, which checkpoints do not have (persistent=False)"
    return [f"{what}: a resumed run, and an evaluation, begin with that of a new model"]


def check_weights(loss: torch.Tensor, module: nn.Module, where: str) -> None:
    """Check that all weights on which a loss depends belong to the model, which alone is trained.

    Args:
        where: the line of the loss.

    Raises:
        UserError: one does not, such as that of a layer in a list.
    """
    known = set(map(id, module.parameters()))
    for weight in _weights(loss):
        if id(weight) in known:
            continue
        for part in module.modules():
            for name, held in vars(part).items():
                if isinstance(held, list | tuple | dict) and _has(held, weight):
                    what = f"the layers in the {type(held).__name__} `{name}` are neither trained nor saved"
                    kind = "ModuleDict" if isinstance(held, dict) else "ModuleList"
                    raise UserError(what, f"in {place(type(part))}", f"write self.{name} = nn.{kind}(...)")
        what = f"the loss depends on a weight {list(weight.shape)} that the model does not have: it is not trained"
        raise UserError(what, where, "make it a part of the model, an nn.Module")


def _weights(loss: torch.Tensor) -> Iterator[nn.Parameter]:
    """Return the parameters at the ends of the graph of a loss."""
    left, seen = [loss.grad_fn], set()
    while left:
        node = left.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if isinstance(weight := getattr(node, "variable", None), nn.Parameter):
            yield weight
        left += [before for before, _ in node.next_functions]


def _has(held: list[object] | tuple[object, ...] | dict[object, object], weight: nn.Parameter) -> bool:
    layers = held.values() if isinstance(held, dict) else held
    return any(weight is one for layer in layers if isinstance(layer, nn.Module) for one in layer.parameters())
