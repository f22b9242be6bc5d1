"""One training step and one evaluation on a few samples, in this process and before anything is started.

A step calls the user's code: the model, the task, perhaps an optimizer and a schedule. What raises there, or returns
what training cannot use, becomes one error with the user's file and line. Random states stay as they are.
"""

from __future__ import annotations

import contextlib
import io
import math
import numbers
import random
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np
import torch
from torch import nn

from raytrain import order
from raytrain.data import Index
from raytrain.data.batch import Batch
from raytrain.driver import loss_notes, unsaved
from raytrain.driver.first_batch import SAMPLES, NotTried, check_last, dark, not_finite, read_batch, sizes
from raytrain.driver.schedule_check import check_schedule
from raytrain.errors import UserError
from raytrain.experiment import Experiment
from raytrain.optim.torch_optimizer import check_kind
from raytrain.parallel.strategy import mapped
from raytrain.run.exported import open_model
from raytrain.tasks.metric import Metric
from raytrain.tasks.metrics import PerSample, Sums
from raytrain.tasks.task import Task
from raytrain.training import freezing, memory
from raytrain.training.precision import Precision
from raytrain.user_code.places import line_of, place, reason
from raytrain.user_code.wrappers import target_of

_SLOW_SECONDS = 0.5
"""With a forward pass that takes longer, neither the backward pass nor the evaluation is tried: the model is meant for
a GPU."""
_MEMORY_SHARE = 0.5
"""Share of this machine's free memory that weights and gradients may take."""
_GPU = ("cuda", "gpu", "nvidia", "triton", "not implemented for", "expected all tensors to be on the same device")
"""Parts of the messages of what fails here and may work on a GPU."""
_WORKER = ("process group has not been initialized", "ray train training function")
"""Parts of the messages of what fails here and may work in a worker."""
_VARIABLES = ("RANK", "LOCAL_RANK", "NODE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Environment variables that workers have."""
_NO_WARNING = ("ignore", None, Warning, None, 0)


def check(e: Experiment, index: Index, module: nn.Module, build: Callable[[], nn.Module], fresh: bool) -> list[str]:
    """Compute one training step and one evaluation with the model's code, the task's and, where they are the user's,
    the optimizer's and the schedule's.

    A failure counts if it comes again with a whole micro-batch: what two samples are too few for may work in training.
    A model on the meta device is tried there, where loss and backward pass have shapes and no values.

    Args:
        index: the training samples.
        module: the model, on the CPU or on the meta device; its weights may change.
        build: builds the model on the CPU.
        fresh: whether training starts with such weights: if not, a loss that is not finite says nothing.

    Returns:
        Notes for the plan.

    Raises:
        UserError: the step does not work.
        NotTried: it could not be tried.
    """
    check_schedule(e, -(-e.sampler.size(index) // e.batch_size))
    failed = None
    e.task.start(open_model, torch.device("cpu"))
    with _undisturbed():
        if any(parameter.is_meta for parameter in module.parameters()):
            if _works_without_values(e, index, module):
                return []
            module = _built(module, build)
        for size in sizes(e, index):
            before = unsaved.buffers(module)
            try:
                found = _Step(e, index, module, fresh).run(read_batch(e, index, size))
                return [*found, *unsaved.notes(before, module), *dark(e, index)]
            except UserError as error:
                if error.__cause__ is None:
                    raise
                failed = error
            finally:
                module.zero_grad(set_to_none=True)
                module.eval()
    assert failed is not None
    cause = failed.__cause__
    if any(mark in str(cause).lower() for mark in _GPU):
        raise NotTried(f"a step cannot be tried without a GPU: {failed.what}", failed, "gpu")
    lacks_variable = isinstance(cause, KeyError) and cause.args[:1] and cause.args[0] in _VARIABLES
    if lacks_variable or any(mark in str(cause).lower() for mark in _WORKER):
        raise NotTried(f"a step cannot be tried outside of a worker: {failed.what}", failed, "worker")
    if isinstance(failed, _FewSamples) and isinstance(cause, ArithmeticError | ValueError):
        return [f"{failed.what}, {failed.where}: that may be too few"]
    raise failed


class _FewSamples(UserError):
    """A failure that few samples may explain."""


class _Step:
    """A step and an evaluation of one batch.

    Args:
        index, module, fresh: see `check`.
    """

    def __init__(self, e: Experiment, index: Index, module: nn.Module, fresh: bool):
        self.e, self.index, self.module = e, index, module
        name = "fp32" if e.precision == "auto" else e.precision
        self.finite = fresh and name != "fp16" and e.on_nonfinite == "error"
        self.precision = Precision(name, torch.device("cpu"))
        task = type(e.task)
        own = [one for one in (task.loss, getattr(task, "training_loss", task.loss)) if _is_users(one)]
        written = task if task.loss is Task.loss else own[0] if own else type(e.model).build
        self.brings_loss, self.loss_at = bool(own), f"in {place(written)}"

    def run(self, batch: Batch) -> list[str]:
        """Return notes for the plan.

        Raises:
            UserError: something fails; the exception of the user's code is its cause.
        """
        e = self.e
        started = time.thread_time()  # which other processes of the machine hardly change
        loss, count = self.loss(batch)
        seconds = time.thread_time() - started
        if seconds > _SLOW_SECONDS:
            check_last(e, self.index, self.module, batch, self.precision)
            return [f"backward pass and evaluation are not tried: a pass of {len(batch)} samples takes {seconds:.1f} s"]
        with self.calling("the backward pass fails", batch, self.loss_at):
            self.precision.scaled(loss / count).backward()
        for name, parameter in self.module.named_parameters():
            if parameter.grad is not None and parameter.grad.layout != torch.strided:
                what = f"the gradient of {name} is sparse, which raytrain does not support"
                raise UserError(what, self.loss_at, "make that layer with sparse=False")
        if self.finite:
            self.check_gradients(len(batch))
        if _is_users(type(e.optimizer).build) or target_of(type(e.optimizer)) is not None:
            self.check_optimizer(batch)
        self.check_metrics(batch, self.sums(batch))
        check_last(e, self.index, self.module, batch, self.precision)
        with self.precision.forward():
            mean = loss_notes.of_mean(e, self.module, batch, count, self.loss_at) if self.brings_loss else []
        return mean + loss_notes.notes(e, self.module, batch)

    def loss(self, batch: Batch) -> tuple[torch.Tensor, float]:
        """Return what `task.loss` does, checked."""
        e = self.e
        freezing.train_mode(self.module, e.freeze)
        torch.default_generator.manual_seed(order.key(e.seed, 1, 0, 0) >> 1)  # as in the first step of training
        with self.calling("the first training step fails", batch, self.loss_at), self.precision.forward():
            found = e.task.loss(self.module, batch)
        how = 'write `return loss, len(batch)`, with the loss summed over the samples (reduction="sum")'
        if not isinstance(found, tuple | list) or len(found) != 2:
            got = f"{len(found)} values" if isinstance(found, tuple | list) else _kind(found)
            raise UserError(f"loss() must return a loss and a count, got {got}", self.loss_at, how)
        loss, count = found
        if isinstance(count, torch.Tensor) and isinstance(loss, int):
            raise UserError("loss() must return a loss and a count, got them in the other order", self.loss_at, how)
        if not isinstance(loss, torch.Tensor) or loss.ndim or not loss.is_floating_point():
            raise UserError(f"the loss must be a scalar tensor of floats, got {_kind(loss)}", self.loss_at, how)
        if isinstance(count, bool) or not isinstance(count, numbers.Real) or not 0 < count < math.inf:
            got = _kind(count) if not isinstance(count, int | float) else count
            raise UserError(f"the count of samples must be a number above 0, got {got}", self.loss_at, how)
        if not loss.requires_grad:
            what = "the loss has no gradient: it does not depend on the model's weights by operations of torch"
            how = "leave out detach(), item(), argmax(), no_grad() and conversions to NumPy on its way"
            raise UserError(what, self.loss_at, how)
        if self.finite and not loss.is_meta and not loss.isfinite():
            what = f"the loss of the first {len(batch)} samples is {loss.item()} before any training"
            how = not_finite(batch) or "look for a division by zero, or a logarithm or a root of zero"
            raise UserError(what, self.loss_at, how) from FloatingPointError()
        unsaved.check_weights(loss, self.module, self.loss_at)
        return loss, float(count)

    def check_gradients(self, samples: int) -> None:
        """Check that all gradients are finite.

        Raises:
            UserError: one is not.
        """
        for name, parameter in self.module.named_parameters():
            if parameter.grad is not None and not parameter.grad.isfinite().all():
                what = f"the gradient of {name} is not finite for the first {samples} samples"
                how = "look for what has no derivative there, such as a root or a norm of zero"
                raise UserError(what, self.loss_at, how) from FloatingPointError()

    def check_optimizer(self, batch: Batch) -> None:
        """Build the user's optimizer, and let it take a step.

        Raises:
            UserError: it fails, or is none.
        """
        optimizer, kind = self.e.optimizer, type(self.e.optimizer)
        where = f"in {place(kind if target_of(kind) else kind.build)}"
        with self.calling(f"{type(optimizer).__name__}.build fails", batch, where):
            found: Any = optimizer.build(optimizer.groups(self.module))
        how = "write `return torch.optim.RMSprop(parameters, lr=self.lr)`, with another optimizer as you like"
        if not isinstance(found, torch.optim.Optimizer):
            raise UserError(f"build() must return an optimizer of torch, got {_kind(found)}", where, how)
        check_kind(type(found), where)
        if not all("factor" in group for group in found.param_groups):
            raise UserError("build() must hand all of `parameters` to the optimizer as they are", where, how)
        with self.calling("the optimizer's step fails", batch, where):
            found.step()
        state, file = found.state_dict(), io.BytesIO()
        try:
            torch.save(mapped(state, lambda tensor: tensor.new_empty(0)), file)
            torch.load(io.BytesIO(file.getvalue()), weights_only=True)
        except Exception:
            what = f"a checkpoint cannot hold the state of {type(found).__name__}, or not give it back"
            how = "keep tensors and Python's own numbers, strings, lists and dicts in `state` and `param_groups`"
            raise UserError(what, where, how) from None

    def sums(self, batch: Batch) -> dict[str, np.ndarray]:
        """Return what `task.sums` does in an evaluation, checked and as `task.results` gets it."""
        where = f"in {place(type(self.e.task).sums)}" if _is_users(type(self.e.task).sums) else self.loss_at
        self.module.eval()
        with self.calling("the first evaluation fails", batch, where), torch.no_grad(), self.precision.forward():
            found: Any = self.e.task.sums(self.module, batch.unmixed)
        tensors = found if isinstance(found, dict) else {"": found}
        kinds = torch.Tensor | PerSample
        wrong = next((name for name, value in tensors.items() if not isinstance(value, kinds)), None)
        if wrong is not None or not isinstance(found, dict):
            got = f"{_kind(tensors[wrong or ''])}" + (f" for {wrong!r}" if wrong else "")
            how = "write `torch.tensor(...)` around numbers, such as `torch.tensor(len(batch))`"
            raise UserError(f"sums() must return a dict of tensors, got {got}", where, how)
        total = Sums()
        total.add(found)
        return total.reduce(torch.device("cpu"))

    def check_metrics(self, batch: Batch, sums: dict[str, np.ndarray]) -> None:
        """Check that `task.results` makes numbers of these sums, the monitored one among them.

        Raises:
            UserError: it does not.
        """
        task, results = self.e.task, type(self.e.task).results
        where, name = f"in {place(results if _is_users(results) else type(task))}", results.__name__
        failure = f"{type(task).__name__}.{name} fails"
        with self.calling(failure, batch, where, _FewSamples):
            found: Any = task.results(sums)
        if not isinstance(found, dict):
            raise UserError(f"{name}() must return a dict of numbers, got {_kind(found)}", where, "return a dict")
        for key, value in found.items():
            if not isinstance(value, int | float):
                what = f"{name}() must return a dict of numbers, got {_kind(value)} for {key!r}"
                raise UserError(what, where, f"write `float(...)` around {key!r}")
        if task.monitor not in {f"val_{key}" for key in found}:
            what = f"task.monitor is {task.monitor!r}, and the metrics are {', '.join(f'val_{key}' for key in found)}"
            how = f"return {task.monitor.removeprefix('val_')!r} from {name}(), or monitor another one"
            raise UserError(what, where, how)

    @contextlib.contextmanager
    def calling(self, what: str, batch: Batch, where: str, kind: type[UserError] = UserError) -> Iterator[None]:
        """Turn an exception of the user's code into an error with its line; where there is none, with the place
        `where`.

        Raises:
            UserError: the code raised anything but that.
            NotTried: there is no memory for it.
        """
        try:
            yield
        except UserError:
            raise
        except Exception as error:
            if memory.lacks(error):
                raise NotTried("a step was not tried: not enough memory is free") from None
            plural = {"image": "images", "label": "labels"}
            shown = [f"{plural.get(name, name)} {_kind(array)}" for name, array in batch.unmixed.arrays.items()]
            given = " and ".join(shown).replace("a tensor of ", "")
            line = line_of(error)
            text = f"{_metric(error) or what} for {given}: {reason(error)}"
            raise kind(text, line or where, _remedy(error, line)) from error


def _metric(error: Exception) -> str:
    """Return which metric's method raised an error, such as "F1.values fails"; an empty string if none did."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        name, owner = frame.f_code.co_name, frame.f_locals.get("self")
        if isinstance(owner, Metric) and name in ("sums", "samples", "values"):
            return f"{type(owner).__name__}.{name} fails"
    return ""


def _remedy(error: Exception, line: str) -> str:
    if any(text in str(error) for text in ("'Batch' object has no attribute", "a batch of this data has")):
        return "a batch has images, labels, ids and targets, and batch[name] for each field of the data"
    if isinstance(error, NotImplementedError) and not line:  # a base class's own
        return "write that method"
    if isinstance(error, TypeError) and not line and "loss()" in str(error):
        return "write `def loss(self, model, batch)`"
    if isinstance(error, TypeError) and not line and "build()" in str(error):
        return "write `def build(self, parameters)`"
    if "Expected more than 1 value per channel" in str(error):
        return "BatchNorm needs micro-batches of two samples or more: use a larger --micro_batch_size or --batch_size"
    return "correct that line" if line else "correct it and try again"


def _works_without_values(e: Experiment, index: Index, module: nn.Module) -> bool:
    """Return whether loss and backward pass work on the meta device; a failure there may be of that device's.

    Raises:
        UserError: what `task.loss` returns is wrong.
    """
    step, batch = _Step(e, index, module, fresh=False), read_batch(e, index, min(SAMPLES, e.micro_batch, len(index)))
    shapes = Batch({name: array.to("meta") for name, array in batch.arrays.items()}, batch.ids)
    try:
        loss, _ = step.loss(shapes)
        loss.backward()
        check_last(e, index, module, shapes, step.precision)
    except Exception as error:
        if isinstance(error, UserError) and error.__cause__ is None:
            raise
        return False
    finally:
        module.zero_grad(set_to_none=True)
        module.eval()
    return True


def _built(module: nn.Module, build: Callable[[], nn.Module]) -> nn.Module:
    """Return the model on the CPU.

    Raises:
        NotTried: its weights and gradients would take too much of the memory.
    """
    needs = 2 * sum(parameter.numel() * parameter.element_size() for parameter in module.parameters())
    if needs > _MEMORY_SHARE * memory.available():
        raise NotTried(f"a step was not tried: on this machine's CPU the model would take {needs / 2**30:.1f} GiB")
    return build()


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Keep the random states of this process, and show no warning."""
    states = random.getstate(), np.random.get_state()
    filters = cast(list[Any], warnings.filters)  # simplefilter() would make Python repeat the user's earlier warnings
    filters.insert(0, _NO_WARNING)
    try:
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            yield
    finally:
        with contextlib.suppress(ValueError):  # the user's code may have called resetwarnings()
            filters.remove(_NO_WARNING)
        random.setstate(states[0])
        np.random.set_state(states[1])


def _is_users(function: Any) -> bool:
    return not function.__module__.startswith("raytrain.")


def _kind(value: Any) -> str:
    """Return a value's type for a message, with the shape of a tensor."""
    if isinstance(value, torch.Tensor):
        return f"a tensor of {str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    return f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
