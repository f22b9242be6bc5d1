"""The blocks of a model: what activation checkpointing computes again, and FSDP gathers, as a whole."""

from __future__ import annotations

from collections import Counter

from torch import nn

CONTAINERS = (nn.Sequential, nn.ModuleList)


def blocks(module: nn.Module) -> list[nn.Module]:
    """Return the repeated parts of a model, in order: the innermost entries of a Sequential or a ModuleList that
    consist of layers. An entry that is no container itself is taken apart only where it holds several blocks that are
    none either, as a stage does and a residual block does not."""
    found: list[nn.Module] = []
    for child in module.children():
        inner = blocks(child)
        if isinstance(module, CONTAINERS) and any(True for _ in child.children()):
            whole = not isinstance(child, CONTAINERS) and sum(not isinstance(one, CONTAINERS) for one in inner) < 2
            inner = [child] if (whole or not inner) and any(True for _ in child.parameters()) else inner
        found += inner
    return found


def units(module: nn.Module, least: int) -> list[tuple[nn.Module, list[nn.Parameter]]]:
    """Return the parts of a model whose weights FSDP gathers together, inner ones first and the model last: blocks,
    other entries of containers, and other children, each with at least `least` parameters that are not in a smaller
    unit. What is too small, or shares weights with another part, belongs to the unit around it.

    Returns:
        (the part, the parameters that are whole while it computes: its own, and those of units around it).
    """
    entries = {id(block) for block in blocks(module)}
    uses = Counter(id(tensor) for _, tensor in module.named_parameters(remove_duplicate=False))

    def split(part: nn.Module) -> tuple[list[tuple[nn.Module, list[nn.Parameter]]], list[nn.Parameter]]:
        """(the units in a part, parameters of none of them)."""
        found, rest = [], list(part.parameters(recurse=False))
        for child in part.children():
            apart = id(child) not in entries and any(isinstance(one, CONTAINERS) for one in child.modules())
            inner, left = split(child) if apart else ([], list(child.parameters()))
            # Code may loop over a container in place of calling it, and FSDP gathers weights when a part is called.
            called = not (apart and isinstance(child, CONTAINERS)) and type(child).forward is not nn.Module.forward
            if called and sum(tensor.numel() for tensor in left) >= least and _alone(child, uses):
                inner, left = [*((unit, [*held, *left]) for unit, held in inner), (child, left)], []
            found, rest = found + inner, rest + left
        return found, rest

    found, rest = split(module)
    return [*((unit, [*held, *rest]) for unit, held in found), (module, rest)]


def _alone(part: nn.Module, uses: Counter[int]) -> bool:
    """Return whether no other part of a model has a part's parameters.

    Args:
        uses: how often the model has each parameter.
    """
    own = Counter(id(tensor) for _, tensor in part.named_parameters(remove_duplicate=False))
    return all(uses[tensor] == count for tensor, count in own.items())
