"""The checks of a model before a run: its build, its size, and its memory format."""

from __future__ import annotations

import contextlib
import math
import re
import warnings
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.parameter import is_lazy

from raytrain import errors, order
from raytrain.checkpoint import checkpoints
from raytrain.data.batch import Batch
from raytrain.experiment import Experiment
from raytrain.models import Model
from raytrain.tasks.classification import Classification
from raytrain.tasks.task import Task
from raytrain.training import freezing
from raytrain.user_code import places
from raytrain.user_code.wrappers import target_of

_TRIED_FOR_REAL = 30_000_000
"""Parameters of the largest model that is tried on the CPU: the meta device needs none of its memory, but torch's
decompositions, which are long to import."""

_CUDA = ("Found no NVIDIA driver", "not compiled with CUDA", "No CUDA GPUs are available")
"""Parts of the messages of code that moves tensors to a GPU where there is none."""

_COMPILED_SIDES = 3
"""Sizes of images that a model is compiled for: each takes a graph for full and one for short batches, and torch gives
up after 8 graphs."""


class Tensors(NamedTuple):
    """The tensors of a checkpoint.

    Attributes:
        shapes: shape and dtype of each parameter and buffer, by its name.
        trained: the names of the parameters that are trained, in the order of the optimizer's groups: it numbers them.
        optimizer: the class of PyTorch's optimizer.
    """

    shapes: dict[str, str]
    trained: list[list[str]]
    optimizer: str


def check_model(experiment: Experiment, blank: Batch, classes: int) -> tuple[nn.Module, tuple[int, ...]]:
    """Build the model and pass one sample through it; a large model on the meta device if its code allows that.

    Args:
        blank: a batch of one sample as the task sees it, with any values; see `first_batch.blank`.

    Returns:
        The model, in the CPU's memory or on the meta device, and the shape of its output, () if that is no tensor.

    Raises:
        UserError: it cannot take the sample, its head does not suit the task, or nothing in it is trained.
    """
    where, sample = places.place(type(experiment.model)), _shape(blank)
    if experiment.task.gives_more and not experiment.parallel.takes_more:
        what = f"{type(experiment.parallel).__name__} gives a model its input alone, and the task gives it more"
        where = f"in {places.place(type(experiment.task).forward)}"
        raise errors.UserError(what, where, "use --parallel.strategy ddp, or fsdp for large models")
    try:
        module = build_model(experiment, sample, classes, "meta")
        if count_parameters(module) <= _TRIED_FOR_REAL:
            module = build_model(experiment, sample, classes, "cpu")
        output, changed = _first_pass(experiment, module, blank)
    except errors.UserError:
        raise
    except Exception:  # it looks at values, or mixes devices, which the meta device does not allow
        module = build_checked(experiment, sample, classes)
        try:
            output, changed = _first_pass(experiment, module, blank)
        except Exception as error:
            what = f"the model cannot take a sample of this data: {places.reason(error)}"
            how = _remedy(experiment, blank, classes, str(error))
            raise errors.UserError(what, places.line_of(error) or f"in {where}", how) from None
    _check_state(module, changed, f"in {where}")
    if isinstance(output, dict | tuple | list) and not _takes_outputs(type(experiment.task)):
        raise _several_outputs(output, where)
    told = isinstance(experiment.task, Classification)  # it says itself that it needs labels
    if not classes and isinstance(output, torch.Tensor) and not output.numel() and not told:
        what = f"{type(experiment.model).__name__} has an output for each class, and the data has no classes"
        use = "use --model.outputs 1" if hasattr(experiment.model, "outputs") else "let it have one output"
        raise errors.UserError(what, f"in {where}", f"{use}, or as many as the task wants")
    shape = tuple(output.shape) if isinstance(output, torch.Tensor) else ()
    own = not type(experiment.task).check_model.__module__.startswith("raytrain.")
    if isinstance(output, torch.Tensor) or own:  # else its `loss` knows it
        experiment.task.check_model(shape, classes, where)
    if not any(parameter.requires_grad for parameter in module.parameters()):
        where = "freeze" if experiment.freeze else where
        what, how = "the model has no parameter that requires a gradient", "unfreeze a layer"
        if next(module.parameters(), None) is None:
            what, how = "the model has no parameters", "make lists of layers nn.ModuleList and dicts nn.ModuleDict"
        raise errors.UserError(what, f"in {where}", how)
    return module, shape


def _remedy(experiment: Experiment, blank: Batch, classes: int, error: str) -> str:
    """Return what to do about a model that cannot take a sample."""
    sample, dtype = _shape(blank), str(blank.input.dtype).removeprefix("torch.")
    more = [name for name in blank.arrays if name != "label"][1:]
    target = target_of(type(experiment.model))
    if hasattr(target, "training_step"):
        return f"{target.__name__} is a LightningModule: give the nn.Module inside it"
    if "required positional argument" in error and not experiment.task.gives_more:
        write = f'write `def forward(self, model, batch): return model(batch.input, batch["{(more or ["NAME"])[0]}"])` '
        return f"{write}in the task" + ("" if more else ", where NAME is a further field of the data")
    if experiment.task.gives_more and "a batch of this data has" in error:
        return "take one of these fields in the task's forward(), or add the missing one to the data"
    if not classes and "[0, " in error:  # a convolution without outputs
        return f"the data names no classes, so let {_code(experiment.model)} give as many outputs as the task wants"
    if any(text in error for text in _CUDA):
        return "leave .cuda() and device='cuda' out: raytrain moves the model and its input to the worker's device"
    if len(sample) == 3 and sample[-1] <= 4 < sample[0]:
        return f"put channels first, as in {[sample[-1], *sample[:-1]]}: the data gives {list(sample)}"
    if len(sample) == 2 and dtype == "uint8":
        return f"let the data give images with an axis of channels, {[1, *sample]}: it gives {list(sample)}"
    axes = " (channels, height, width)" if len(sample) == 3 else ""
    how = f"make {_code(experiment.model)} use the sample's shape{axes}, which is {sample} here"
    if dtype == "float32":
        return how
    return f"let the data give float32, convert its {dtype} in the module's forward(), or {how}"


def _takes_outputs(task: type[Task]) -> bool:
    """Return whether a method of the user's may take what is no tensor. A `training_loss` alone is not enough: the
    package's `each` gets the outputs too."""
    methods = (getattr(task, name, task.loss) for name in ("loss", "sums", "fitted", "each"))
    return not all(method.__module__.startswith("raytrain.") for method in methods)


def _several_outputs(output: dict[str, Any] | tuple[Any, ...] | list[Any], where: str) -> errors.UserError:
    """Return the error for a model that returns several outputs to a task that takes one."""
    if isinstance(output, dict):
        kind, name, parts = "dict", "out" if "out" in output else next(iter(output), "logits"), list(output)
    else:
        kind, name = "tuple" if isinstance(output, tuple) else "list", 0
        parts = [type(one).__name__ for one in output]
    what = f"the model returns a {kind} of {errors.listed(parts, 8)}, and the task takes a tensor"
    how = f"let a module of your own hold it and return self.net(images)[{name!r}]"
    return errors.UserError(what, f"in {where}", how)


def _check_state(module: nn.Module, changed: list[str], where: str) -> None:
    """Check that a checkpoint can hold a model's state dict, and that a new model can load it.

    Args:
        changed: what the forward pass has changed, by name.

    Raises:
        UserError: they cannot.
    """
    for name, value in module.state_dict().items():
        if not isinstance(value, torch.Tensor):
            what = f"a checkpoint holds tensors, and {name} of the model's state dict is of type {type(value).__name__}"
            raise errors.UserError(what, where, "return a tensor from get_extra_state()")
        if not checkpoints.holds(value.dtype):
            kind = str(value.dtype).removeprefix("torch.")
            raise errors.UserError(f"a checkpoint cannot hold {name}, which is of {kind}", where, "use another dtype")
        if any(size > 1 and not stride for size, stride in zip(value.shape, value.stride(), strict=True)):
            what = f"nothing can be loaded into {name}, whose values share memory, as expand() leaves them"
            raise errors.UserError(what, where, "add .clone() to it")
    if changed:
        what = f"forward() adds {changed[0]} to the model's state dict or changes its shape: no new model could load it"
        raise errors.UserError(what, where, "make it in __init__(), or register it with persistent=False")
    try:
        module.load_state_dict(module.state_dict())
    except Exception as error:
        what = f"the model cannot load its own state dict, as a resume and an evaluation do: {places.reason(error)}"
        raise errors.UserError(what, where, "let its state_dict() hold what load_state_dict() needs") from None


def _first_pass(experiment: Experiment, module: nn.Module, blank: Batch) -> tuple[Any, list[str]]:
    """Return the model's output for one sample, and the names of what the pass has added to its state dict, or given
    another shape."""
    shapes = [{name: getattr(value, "shape", None) for name, value in module.state_dict().items()}]
    output = _pass(experiment, module, blank)
    shapes.append({name: getattr(value, "shape", None) for name, value in module.state_dict().items()})
    return output, sorted({name for name, _ in shapes[0].items() ^ shapes[1].items()})


def _code(model: Model) -> str:
    """Return what in the user's code decides the input of the module."""
    target = target_of(type(model))
    return "build(sample, classes)" if target is None else f"the arguments or the code of {target.__name__}"


def check_sides(experiment: Experiment, module: nn.Module, blank: Batch, epochs: float) -> list[str]:
    """Pass a sample of each size of progressive resizing through the model.

    Args:
        blank: see `check_model`.
        epochs: of the whole run.
        module: the model as `check_model` returned it.

    Returns:
        Notes for the plan.

    Raises:
        UserError: the model cannot take one of them, or there are too many to compile for.
    """
    progressive = experiment.data.augment.progressive
    if not progressive.on:
        return []
    where, whole = "in data.augment.progressive", blank.input.shape[-2:]
    sides = progressive.sides(math.ceil(epochs), whole[-1])
    for side in sides:
        smaller = {
            name: array.new_zeros((*array.shape[:-2], side, side)) if array.shape[-2:] == whole else array
            for name, array in blank.arrays.items()
        }
        try:
            _pass(experiment, module, Batch(smaller, blank.ids))
        except Exception as error:
            what = f"the model cannot take images of {side} x {side} pixels: {places.reason(error)}"
            how = "use a model that pools over all places, or a larger --data.augment.progressive.start"
            raise errors.UserError(what, where, how) from None
    if experiment.compile and len(sides) > _COMPILED_SIDES:
        what = f"{len(sides)} sizes of images are too many for torch.compile, which makes graphs for each"
        how = f"raise --data.augment.progressive.multiple until at most {_COMPILED_SIDES} are left, or use --no_compile"
        raise errors.UserError(what, where, how)
    return ["images grow: " + ", ".join(f"{side} pixels from epoch {epoch + 1}" for side, epoch in sides.items())]


def memory_format(
    experiment: Experiment, blank: Batch, classes: int, module: nn.Module
) -> Literal["contiguous", "channels_last"]:
    """Decide `memory_format=auto`: channels_last for models with convolutions that can work so.

    Args:
        blank: see `check_model`.
        module: the model as `check_model` returned it; it may be changed.

    Raises:
        UserError: channels_last was asked for, and the model cannot.
    """
    asked = experiment.memory_format
    convolves = any(isinstance(part, torch.nn.Conv2d) for part in module.modules())
    if asked == "contiguous" or (asked == "auto" and not convolves):
        return "contiguous"
    try:  # on real memory: a model that calls view() after a convolution fails there and not on the meta device
        if _on_meta(module):
            module = build_model(experiment, _shape(blank), classes, "cpu")
        _pass(experiment, module, blank, torch.channels_last)
    except Exception as error:
        if asked == "channels_last":
            raise errors.UserError(
                f"the model fails: {type(error).__name__} with channels_last",
                f"in {type(experiment.model).__name__}",
                "use --memory_format contiguous",
            ) from None
        return "contiguous"
    return "channels_last"


def tensors(experiment: Experiment, sample: tuple[int, ...], classes: int) -> Tensors:
    """Return what a checkpoint of the experiment's model and optimizer consists of, without taking its memory.

    Raises:
        UserError: `build` fails.
    """
    try:
        module = build_model(experiment, sample, classes, "meta")
    except Exception:  # it looks at values, or mixes devices
        module = build_checked(experiment, sample, classes)
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    groups, kind = experiment.optimizer.groups(module), ""
    with contextlib.suppress(Exception):  # one that works with tensors in memory alone
        optimizer = experiment.optimizer.build(groups)
        groups, kind = optimizer.param_groups, type(optimizer).__name__
    return Tensors(
        {name: f"{list(value.shape)} of {value.dtype}" for name, value in module.state_dict().items()},
        [[names.get(id(one), "?") for one in group["params"]] for group in groups],
        kind,
    )


def build_model(experiment: Experiment, sample: tuple[int, ...], classes: int, device: str) -> nn.Module:
    """Build the model on a device, with the weights that training begins with."""
    with torch.device(device), torch.random.fork_rng(devices=[]), _unsaid():
        torch.default_generator.manual_seed(order.key(experiment.seed, 0) >> 1)  # the weights that training begins with
        module = experiment.model.build(sample, classes)
        if not isinstance(module, nn.Module):
            return module
        freezing.freeze(module, experiment.freeze)
        return module.eval()


def build_checked(experiment: Experiment, sample: tuple[int, ...], classes: int) -> nn.Module:
    """Return the model on the CPU.

    Raises:
        UserError: `build` fails, or returns none.
    """
    kind = type(experiment.model)
    own = kind if kind.build is Model.build else kind.build
    where, how = f"in {places.place(own)}", "write `def build(self, sample, classes)`, which returns an nn.Module"
    try:
        module = build_model(experiment, sample, classes, "cpu")
    except errors.UserError:
        raise
    except Exception as error:
        line = places.line_of(error)
        how = "correct that line" if line else how
        raise errors.UserError(f"{kind.__name__}.build fails: {places.reason(error)}", line or where, how) from None
    if not isinstance(module, nn.Module):
        raise errors.UserError(f"build() must return an nn.Module, got {type(module).__name__}", where, how)
    lazy = [f"{name} ({type(part).__name__})" for name, part in module.named_modules() if _unsized(part)]
    if lazy:
        how = "give them their sizes, or pass torch.zeros(1, *sample) through the module before it is returned"
        raise errors.UserError(f"layers that wait for a batch to know their sizes: {errors.listed(lazy)}", where, how)
    return module


def _unsized(module: nn.Module) -> bool:
    return isinstance(module, LazyModuleMixin) and any(map(is_lazy, (*module.parameters(), *module.buffers())))


_UNSAID = tuple(
    ("ignore", re.compile(message), UserWarning, re.compile(module), 0)
    for message, module in (
        (
            "for .*: copying from a non-meta parameter in the checkpoint to a meta parameter",
            r"torch\.nn\.modules\.module$",
        ),
        ("Initializing zero-element tensors is a no-op", r"torch\."),
    )
)


@contextlib.contextmanager
def _unsaid() -> Iterator[None]:
    """Leave out torch's warnings for each weight that a model loads on the meta device, and for layers without outputs,
    which `check_model` refuses; no other warning."""
    filters = cast(list[Any], warnings.filters)  # filterwarnings() would make Python repeat the user's own warnings
    filters[:0] = _UNSAID
    try:
        yield
    finally:
        filters[:] = [one for one in filters if one not in _UNSAID]  # build() may have called resetwarnings()


def _shape(blank: Batch) -> tuple[int, ...]:
    """Return the shape of a sample's input."""
    return tuple(blank.input.shape[1:])


def _pass(experiment: Experiment, module: nn.Module, blank: Batch, layout: Any = torch.contiguous_format) -> Any:
    """Return the model's output for a batch."""
    device, first = torch.device("meta" if _on_meta(module) else "cpu"), next(iter(blank.arrays))
    arrays = {name: array.to(device) for name, array in blank.arrays.items()}
    arrays[first] = arrays[first].contiguous(memory_format=layout)
    with device, torch.no_grad(), torch.random.fork_rng(devices=[]):
        module.to(memory_format=layout)  # type: ignore[call-overload]
        return experiment.task.forward(module, Batch(arrays, blank.ids))


def _on_meta(module: nn.Module) -> bool:
    return any(parameter.is_meta for parameter in module.parameters())


def count_parameters(module: nn.Module) -> int:
    """Return the number of a module's weights."""
    return sum(parameter.numel() for parameter in module.parameters())
