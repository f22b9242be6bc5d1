"""Building the torch optimizer of one rank, and restoring its state from a checkpoint."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import torch
from torch import nn

from raytrain.optim.optimizers import Optimizer
from raytrain.parallel.strategy import Strategy


def build_optimizer(
    declared: Optimizer, strategy: Strategy, state: dict[str, Any] | None
) -> tuple[torch.optim.Optimizer, list[nn.Parameter]]:
    """Return the torch optimizer over the strategy's module, and the parameters that this rank updates.

    Args:
        declared: the experiment's optimizer.
        state: the optimizer's state dict of a checkpoint, with whole tensors; it is changed.
    """
    groups = declared.groups(strategy.module)
    parameters: list[nn.Parameter] = [parameter for group in groups for parameter in group["params"]]
    own = [parameter for parameter in parameters if strategy.owns(parameter)]
    ids = {id(parameter) for parameter in own}
    for group in groups:  # what other ranks update keeps its number and takes no memory
        held = group["params"]
        group["params"] = [one if id(one) in ids else nn.Parameter(one.detach().new_empty(0)) for one in held]
    optimizer = declared.build(groups)
    for parameter in [one for one in optimizer.state if isinstance(one, torch.Tensor) and id(one) not in ids]:
        del optimizer.state[parameter]
    if state is None:
        return optimizer, own
    state["state"] = {
        number: {
            name: strategy.shard(value, parameters[number]) if isinstance(value, torch.Tensor) else value
            for name, value in values.items()
        }
        for number, values in state["state"].items()
        if isinstance(number, int) and id(parameters[number]) in ids
    } | {name: values for name, values in state["state"].items() if isinstance(name, str)}  # of no parameter
    # The strategy decides how the optimizer computes. The experiment declares its settings, which a scheduler may
    # have changed since the checkpoint. All other entries of a group are state of the optimizer.
    current = ("fused", "foreach", "factor", *(field.name for field in fields(declared)))
    for saved, group in zip(state["param_groups"], optimizer.state_dict()["param_groups"], strict=True):
        saved |= {name: group[name] for name in current if name in group}
    optimizer.load_state_dict(state)
    return optimizer, own
