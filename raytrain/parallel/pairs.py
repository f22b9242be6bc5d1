"""Pairs of layers of which one feeds the other alone: the first can be cut by outputs and the second by inputs.

torch.fx traces the model. What it cannot trace is one step of the graph, and is searched by itself.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch import fx, nn

_ELEMENTWISE = ("ReLU", "ReLU6", "LeakyReLU", "GELU", "SiLU", "Hardswish", "Tanh", "Sigmoid", "ELU", "Identity")
"""Layers of torch.nn that treat each value of their input alike."""
_FUNCTIONS = ("relu", "relu_", "relu6", "leaky_relu", "gelu", "silu", "hardswish", "tanh", "sigmoid", "elu")
"""Functions and methods of torch that do so."""
_BY_CHANNEL = (nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d)
"""Layers without parameters that treat each channel of images by itself."""

Pair = tuple[str, tuple[str, ...], str]
"""(the first layer, the BatchNorm layers between, the second layer), by their names."""


def pairs(module: nn.Module) -> tuple[list[Pair], set[str]]:
    """Return the pairs of linear layers and of convolutions, in the order of the model's steps, and the names of layers
    whose weights the model reads by itself.

    A layer may be the second of one pair and the first of another. Both when training and when evaluating, nothing else
    uses what the first one gives, and nothing but elementwise layers, or with convolutions layers that treat each
    channel by itself, lies between.
    """
    found: list[list[Pair]] = []
    read: set[str] = set()
    for mode in (True, False):
        with untouched(module), torch.no_grad():  # under which activation checkpointing passes calls on
            module.train(mode)
            graphs = list(_graphs(module, ""))
            found.append([pair for path, root, graph in graphs for pair in _in(path, root, graph)])
            read |= {_joined(path, name) for path, _, graph in graphs for name in _read(graph)}
    return [pair for pair in found[0] if pair in found[1]], read


@contextlib.contextmanager
def untouched(module: nn.Module) -> Iterator[list[str]]:
    """The context in which torch.fx traces a module. Afterwards the modes, buffers and attributes of its layers are
    those of before: a trace gives constants to the module, and its forward() may put what is traced in the place of a
    buffer.

    Yields:
        The list that then has the names of such buffers.
    """
    kept = [(name, one, dict(vars(one)), dict(one._buffers)) for name, one in module.named_modules()]
    changed: list[str] = []
    try:
        yield changed
    finally:
        for path, layer, attributes, buffers in kept:
            changed += [_joined(path, name) for name, buffer in buffers.items() if layer._buffers[name] is not buffer]
            layer._buffers.clear()
            layer._buffers.update(buffers)
            vars(layer).clear()
            vars(layer).update(attributes)


class _Tracer(fx.Tracer):
    """Takes modules that cannot be traced as one step.

    Attributes:
        opaque: their names.
    """

    proxy_buffer_attributes = True  # a trace must not compute with buffers, and so change them

    def __init__(self) -> None:
        super().__init__()
        self.opaque: list[str] = []

    def call_module(self, m: nn.Module, forward: Any, args: Any, kwargs: Any) -> Any:
        """See the base class."""
        before = len(self.graph.nodes)
        try:
            return super().call_module(m, forward, args, kwargs)
        except Exception:
            for node in reversed(list(self.graph.nodes)[before:]):
                self.graph.erase_node(node)
            self.opaque.append(self.path_of_module(m))
            return self.create_proxy("call_module", self.opaque[-1], args, kwargs)


def _graphs(module: nn.Module, path: str) -> Iterator[tuple[str, nn.Module, fx.Graph]]:
    """Yield (what precedes its names, a module, its graph) of the largest modules that can be traced."""
    tracer, whole = _Tracer(), [module]
    try:
        yield path, module, tracer.trace(module)
        whole = [module.get_submodule(name) for name in tracer.opaque]
    except Exception:  # whatever the user's code raises
        tracer.opaque = [""]
    for name, part in zip(tracer.opaque, whole, strict=True):
        for inner, child in part.named_children():
            yield from _graphs(child, _joined(path, name, inner))


def _joined(*names: str) -> str:
    return ".".join(filter(None, names))


def _read(graph: fx.Graph) -> set[str]:
    """Return the layers of which a graph reads a tensor."""
    return {str(node.target).rpartition(".")[0] for node in graph.nodes if node.op == "get_attr"}


def _in(path: str, root: nn.Module, graph: fx.Graph) -> Iterator[Pair]:
    """Yield the pairs of a graph."""
    uses = Counter(str(node.target) for node in graph.nodes if node.op == "call_module")
    read = _read(graph)

    def layer(node: fx.Node) -> nn.Module | None:
        """The layer that a node calls, if nothing else uses it."""
        name = str(node.target)
        alone = node.op == "call_module" and uses[name] == 1 and name not in read
        return root.get_submodule(name) if alone else None

    for first in graph.nodes:
        kind, norms, node = type(layer(first)), [], first
        if kind not in (nn.Linear, nn.Conv2d):
            continue
        while len(node.users) == 1:
            before, node = node, next(iter(node.users))
            if node.all_input_nodes != [before]:
                break
            following = layer(node)
            if type(following) is kind:
                yield _joined(path, str(first.target)), tuple(norms), _joined(path, str(node.target))
                break
            if type(following) is nn.BatchNorm2d and kind is nn.Conv2d:
                norms.append(_joined(path, str(node.target)))
            elif not _passes(root, node, kind):
                break


def _passes(root: nn.Module, node: fx.Node, kind: type[nn.Module]) -> bool:
    """Return whether a step treats all columns, or with convolutions each channel, alike, and has no parameters."""
    if node.op != "call_module":
        return getattr(node.target, "__name__", node.target) in _FUNCTIONS
    layer = root.get_submodule(str(node.target))
    if isinstance(layer, nn.Dropout):
        return layer.p == 0
    by_channel = kind is nn.Conv2d and type(layer) in _BY_CHANNEL
    return by_channel or (type(layer).__name__ in _ELEMENTWISE and type(layer).__module__.startswith("torch.nn"))
