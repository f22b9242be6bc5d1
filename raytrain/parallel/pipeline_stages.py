"""The runtime of a pipeline on one rank: cut a model into stages, and pass micro-batches through them.

The model is traced by torch.fx, which keeps its layers as they are (so that train(), eval() and the names of parameters
mean what they did), and cut where a single tensor goes from one part to the next.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import fx, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B
from torch.fx._symbolic_trace import _assert_is_none

from raytrain import errors
from raytrain.data.loader import Pass
from raytrain.parallel.cutting import balanced
from raytrain.parallel.materialise import Parts, in_file
from raytrain.parallel.meshes import mesh_of
from raytrain.parallel.pairs import untouched
from raytrain.parallel.strategy import Autocast, Loss, RankContext, Shape, Strategy, broadcast, mapped, snapshot

_SCHEDULES: dict[str, Any] = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe, "interleaved": ScheduleInterleaved1F1B}


class Stages(Strategy):
    """This rank's stages of a model, in a pipeline with other ranks.

    Args:
        parts: the model, which is filled stage by stage; what other ranks have of it keeps its shape and takes no
            memory.
        size: ranks of a pipeline; those that follow each other make one.
        each: stages of a rank.
        schedule: the name of the schedule.
        shape: (micro-batches of a full step, samples of each).
    """

    sharded = True

    def __init__(self, parts: Parts, ranks: RankContext, size: int, each: int, schedule: str, shape: Shape):
        module = parts.module
        super().__init__(module, ranks)
        device, mesh = ranks.device, mesh_of(ranks, (ranks.world // size, size), ("replica", "stage"))
        self.peers, self.line = mesh.get_group("replica"), mesh.get_group("stage")
        self.size, self.replicas, self.shape = size, ranks.world // size, shape
        self.replica, rank = divmod(ranks.rank, size)
        self.counts = rank == size - 1  # the last rank of a pipeline knows its answers
        self.schedule_of = _SCHEDULES[schedule]
        everything = cut(module, size * each)
        if module._compiled_call_impl is not None:
            for stage in everything:
                stage.compile(dynamic=False)
        self.numbers = list(range(rank, size * each, size))
        self.everything = everything
        self.stages = nn.ModuleList(everything[number] for number in self.numbers)
        self.schedule: Any = None
        self.autocast: Autocast | None = None
        self.loss_of: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = lambda output, number: output.sum()
        mine = {id(tensor) for tensor in (*self.stages.parameters(), *self.stages.buffers())}
        self.others = {name for name, tensor in module.state_dict(keep_vars=True).items() if id(tensor) not in mine}
        self.mine = mine
        for number, stage in enumerate(everything):
            parts.fill(stage, device, keep=number in self.numbers)
        parts.fill(module, device, keep=False)
        module.register_forward_pre_hook(_refuse)

    def random_stream(self, shard: int) -> int:
        """Return the rank's own: with one stream, layers of several stages would drop the same units."""
        return self.ranks.rank

    def owns(self, tensor: torch.Tensor) -> bool:
        """Return whether it is one of this rank's stages."""
        return id(tensor) in self.mine

    def forward_backward(self, micro_batches: Iterable[Pass], loss: Loss, autocast: Autocast) -> None:
        """As the base class, in the schedule's order; every rank of the pipeline has the same micro-batches."""
        passes = list(micro_batches)
        inputs = self._prepare(passes, autocast)

        def of(output: torch.Tensor, number: torch.Tensor) -> torch.Tensor:
            k = int(number[0])
            if k >= len(passes):  # it stands in for a micro-batch that a short step does not have
                return output.sum() * 0
            return loss(_Given(output[: len(passes[k].batch)], training=True), passes[k])

        self.loss_of = of
        self.schedule.step(*self._first(inputs), target=self._numbers(), return_outputs=False)
        self.buffers.settle()

    def reduce_gradients(self) -> None:
        """Sum over the pipelines."""
        if self.replicas > 1:
            for parameter in self.stages.parameters():
                if parameter.grad is not None:
                    dist.all_reduce(parameter.grad, group=self.peers)

    def clip(self, parameters: list[nn.Parameter], most: float) -> torch.Tensor:
        """As the base class, by the norm over all stages."""
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        norm = self.norm(gradients)
        nn.utils.clip_grads_with_norm_(parameters, most, norm)
        return norm

    def norm(self, tensors: list[torch.Tensor]) -> torch.Tensor:
        """As the base class, over all stages."""
        square = nn.utils.get_total_norm(tensors).square().to(self.ranks.device)
        dist.all_reduce(square, group=self.line)
        return torch.sqrt(square)

    def answers(self, micro_batches: Iterable[Pass], autocast: Autocast) -> Iterator[tuple[Pass, nn.Module]]:
        """Yield micro-batches on the last rank of a pipeline, each with a model that only returns its output."""
        passes = list(micro_batches)
        inputs = self._prepare(passes, autocast)
        self.loss_of = lambda output, number: output.new_zeros(())  # the schedule asks for one
        outputs = self.schedule.eval(*self._first(inputs), target=self._numbers())
        if outputs is not None:
            for one, output in zip(passes, outputs.split(self.shape[1]), strict=False):
                yield one, _Given(output[: len(one.batch)], training=False)

    def broadcast_buffers(self) -> None:
        """Give all pipelines the first one's buffers of a stage."""
        if self.replicas > 1:
            for buffer in self.stages.buffers():
                broadcast(buffer, group=self.peers)

    def gather(self, state: Any) -> Any:
        """Put the stages' parts of the first pipeline together, tensor by tensor; see the base class."""
        if self.replica:
            return None
        mine = _without(state, self.others)
        if self.ranks.rank == 0:
            outlines: list[Any] = [None] * self.size
            dist.gather_object(None, outlines, group=self.line, group_dst=0)
            parts = [mapped(outline, partial(self._receive, number)) for number, outline in enumerate(outlines[1:], 1)]
            return _joined([snapshot(mine, folder=self.ranks.folder), *parts])
        dist.gather_object(mapped(mine, lambda tensor: tensor.detach().to("meta")), group=self.line, group_dst=0)
        mapped(mine, self._send)
        return None

    def _send(self, tensor: torch.Tensor) -> None:
        value = tensor.detach().to(self.ranks.device).contiguous()
        if value.numel():
            dist.send(value.view(-1).view(torch.uint8), group=self.line, group_dst=0)

    def _receive(self, number: int, shape: torch.Tensor) -> torch.Tensor:
        """Return what a rank of the pipeline sends, on the host.

        Args:
            shape: a tensor like it on the meta device.
        """
        value = torch.empty(shape.shape, dtype=shape.dtype, device=self.ranks.device)
        if value.numel():
            dist.recv(value.view(-1).view(torch.uint8), group=self.line, group_src=number)
        return in_file(shape.shape, shape.dtype, self.ranks.folder).copy_(value)

    def _first(self, inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (inputs,) if self.numbers[0] == 0 else ()

    def _numbers(self) -> torch.Tensor | None:
        """For the last stage, the number of its micro-batch for each sample."""
        last = self.numbers[-1] == len(self.everything) - 1
        return torch.arange(self.shape[0]).repeat_interleave(self.shape[1]) if last else None

    def _prepare(self, passes: list[Pass], autocast: Autocast) -> torch.Tensor:
        """Return the inputs of a full step. What a short one lacks are copies of inputs it has, so that BatchNorm's
        statistics are of real ones; they count for nothing else."""
        count, samples = self.shape
        indices = torch.arange(samples, device=self.ranks.device)
        full = [one.batch.input[indices % len(one.batch)] for one in passes]
        inputs = torch.cat((full * -(-count // len(full)))[:count])
        if self.schedule is None or self.autocast != autocast:
            self.autocast = autocast
            self.schedule = self._schedule(inputs[:samples], autocast)
        return inputs

    def _schedule(self, inputs: torch.Tensor, autocast: Autocast) -> Any:
        """Return torch's schedule. What goes between stages is measured here, and not by its first step, which would
        draw random numbers."""
        ends, modes = [torch.zeros_like(inputs)], {layer: layer.training for layer in self.module.modules()}
        self.module.eval()
        with torch.no_grad(), autocast():
            for stage in self.everything:
                ends.append(stage(ends[-1]).contiguous())
        for layer, training in modes.items():
            layer.training = training
        ends = [end.clone().requires_grad_(number > 0) for number, end in enumerate(ends)]
        stages = [
            PipelineStage(
                _Within(stage, autocast),
                number,
                len(self.everything),
                self.ranks.device,
                input_args=(ends[number],),
                output_args=(ends[number + 1],),
                group=self.line,
            )
            for number, stage in zip(self.numbers, self.stages, strict=True)
        ]
        several = stages if len(stages) > 1 else stages[0]
        return self.schedule_of(several, self.shape[0], loss_fn=lambda *given: self.loss_of(*given), scale_grads=False)


def _without(state: Any, names: set[str]) -> Any:
    if not isinstance(state, dict):
        return state
    return {name: _without(value, names) for name, value in state.items() if name not in names}


def _joined(parts: list[Any]) -> Any:
    """Return the union of trees of dicts, of which each has some of the leaves."""
    if not isinstance(parts[0], dict):
        return parts[0]
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: _joined([part[name] for part in parts if name in part]) for name in names}


class _Within(nn.Module):
    """A stage in the run's precision."""

    def __init__(self, stage: nn.Module, autocast: Autocast):
        super().__init__()
        self.stage, self.autocast = stage, autocast

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        with self.autocast():
            # Received values are a leaf, which a layer must not change in place. gloo sends contiguous values alone.
            return self.stage(values.clone() if values.requires_grad else values).contiguous()


class _Given(nn.Module):
    """A stand-in for the model that returns a known output, for tasks that call a model."""

    def __init__(self, output: torch.Tensor, training: bool):
        super().__init__()
        self.output, self.training = output, training

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.output


def _refuse(module: nn.Module, _: Any) -> None:
    raise RuntimeError("the model is spread over a pipeline: only its stages can be called")


def cut(module: nn.Module, stages: int) -> list[nn.Module]:
    """Return the model in so many parts, one after the other, of which the largest has as few parameters as can be.

    Raises:
        UserError: it cannot be traced, or there are fewer places where one tensor alone is handed on.
    """
    name, (graph, other) = type(module).__name__, _traced(module)
    nodes, others = ([node for node in one.graph.nodes if node.op != "output"] for one in (graph, other))
    place = {node: number for number, node in enumerate(nodes)}
    blocks: list[list[fx.Node]] = [[]]
    alive: set[fx.Node] = set()
    for number, node in enumerate(nodes):
        blocks[-1].append(node)
        alive.add(node)
        alive = {one for one in alive if any(place.get(user, len(nodes)) > number for user in one.users)}
        if alive == {node} and node.op not in ("placeholder", "get_attr"):
            blocks.append([])
    blocks = [block for block in blocks if block]
    held = [{id(p): p for node in block for p in _parameters(graph, node)} for block in blocks]
    sizes = [sum(parameter.numel() for parameter in block.values()) for block in held]
    if sum(size > 0 for size in sizes) < stages:
        names = [_name(block) for block, size in zip(blocks, sizes, strict=True) if size]
        raise _misfit(f"{stages} stages need as many blocks with parameters, and {name} has: {', '.join(names)}")
    ends = balanced(sizes, stages)
    part = {node: sum(number >= end for end in ends[:-1]) for number, block in enumerate(blocks) for node in block}
    trained = {
        part[block[0]] for block, of in zip(blocks, held, strict=True) if any(p.requires_grad for p in of.values())
    }
    if idle := sorted(set(range(stages)) - trained):
        first = next(block for block, size in zip(blocks, sizes, strict=True) if size and part[block[0]] == idle[0])
        raise _misfit(f"stage {idle[0] + 1} of {name}, which begins with {_name(first)}, has nothing to train")
    owners: dict[int, int] = {}
    for number, block in enumerate(held):
        for key in block:
            if owners.setdefault(key, part[blocks[number][0]]) != part[blocks[number][0]]:
                raise _misfit(f"{_name(blocks[number])} of {name} shares parameters with another stage")
    numbers = [[at for at, node in enumerate(nodes) if part[node] == number] for number in range(stages)]
    found = [_stage(graph, [nodes[at] for at in some]) for some in numbers]
    if str(graph.graph) == str(other.graph):
        return list(found)
    return [
        _OfModes(one, _stage(other, [others[at] for at in some]), module)
        for one, some in zip(found, numbers, strict=True)
    ]


class _Tracer(fx.Tracer):
    """Takes modules without children as one step, whoever wrote them: they may read `self.training`, as stochastic
    depth does, change their buffers, or do what cannot be traced. Buffers that others read are read in each pass."""

    proxy_buffer_attributes = True

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """See the base class."""
        return not any(True for _ in m.children()) or super().is_leaf_module(m, module_qualified_name)


class _OfModes(nn.Module):
    """A stage that has other numbers in training than in evaluation, such as functions that take `self.training`.

    Args:
        training, evaluating: the stage in both modes, with the same layers.
        model: knows the mode.
    """

    def __init__(self, training: nn.Module, evaluating: nn.Module, model: nn.Module):
        super().__init__()
        self.of_training, self.of_evaluation, self._model = training, evaluating, [model]

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return (self.of_training if self._model[0].training else self.of_evaluation)(values)


def _traced(module: nn.Module) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Return the steps of a model that has one input, in training and in evaluation.

    Raises:
        UserError: they cannot be traced, or would not be those of the model.
    """
    name = type(module).__name__
    given = list(inspect.signature(module.forward).parameters.values())[1:]
    fixed = {one.name: one.default for one in given if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)}
    if needed := [one for one, value in fixed.items() if value is inspect.Parameter.empty]:
        raise _misfit(f"forward() of {name} has more inputs than one, which is all that a pipeline passes: {needed[0]}")
    graphs: list[fx.Graph] = []
    try:
        for mode in (True, False):
            with untouched(module) as changed:
                module.train(mode)
                graphs.append(_Tracer().trace(module, fixed))
            if changed:
                raise TypeError(f"a module with layers changes its buffer {changed[0]}")
    except Exception as error:
        raise _misfit(f"{name} cannot be traced by torch.fx ({errors.first_line(error)})") from None
    steps = [[(node.op, node.target) for node in graph.nodes] for graph in graphs]
    if steps[0] != steps[1]:
        raise _misfit(f"forward() of {name} takes other steps in training than in evaluation")
    for graph in graphs:
        for node in reversed(graph.nodes):
            if node.target is _assert_is_none:  # of inputs that are left out
                graph.erase_node(node)
        (output,) = (node.args[0] for node in graph.nodes if node.op == "output")
        if not isinstance(output, fx.Node):
            raise _misfit(f"forward() of {name} returns a {type(output).__name__}, and a pipeline passes one tensor on")
    return fx.GraphModule(module, graphs[0]), fx.GraphModule(module, graphs[1])


def _stage(whole: fx.GraphModule, nodes: list[fx.Node]) -> fx.GraphModule:
    """Return a part of a graph, whose input and output are one tensor each. torch's `split_module` takes the parameters
    that a graph reads for inputs of a part."""
    graph, here = fx.Graph(), set(nodes)
    made: dict[fx.Node, fx.Node] = {}
    for node in nodes:
        for before in node.all_input_nodes:
            if before not in here and before not in made:
                made[before] = graph.placeholder(before.name)
        made[node] = graph.node_copy(node, made.__getitem__)
    (output,) = {node for node in nodes if any(user not in here for user in node.users)}
    graph.output(made[output])
    return fx.GraphModule(whole, graph)


def _parameters(graph: fx.GraphModule, node: fx.Node) -> list[nn.Parameter]:
    if node.op == "call_module":
        return list(graph.get_submodule(str(node.target)).parameters())
    if node.op == "get_attr":
        found: Any = graph
        for name in str(node.target).split("."):
            found = getattr(found, name)
        return [found] if isinstance(found, nn.Parameter) else []
    return []


def _name(block: list[fx.Node]) -> str:
    """Return the layers of a block, by the name that they have in common."""
    names = [str(node.target).split(".") for node in block if node.op in ("call_module", "get_attr")]
    common = [atoms[0] for atoms in zip(*names, strict=False) if len(set(atoms)) == 1]
    return ".".join(common) or ".".join(names[0])


def _misfit(what: str) -> errors.UserError:
    return errors.UserError(what, "in parallel.stages", "use fewer stages or workers, or --parallel.strategy fsdp")
