"""The captured step: a micro-batch's preparation, forward pass, loss and backward pass as one CUDA graph, the update as
another.

A small model's pass is some thirty kernels, and to launch them takes longer than they run. A graph launches all at
once. It reads from memory of its own which samples it gathers and how it changes them (`data/recorded.py`), or else the
prepared batch, and writes loss and gradients to the same memory each time. Between the two graphs several workers
exchange their gradients, and hooks see them. Averages of the weights run as without graphs. All ranks decide together
what is replayed. Not yet run on several GPUs.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from raytrain import errors
from raytrain.data.batch import Batch
from raytrain.data.loader import Pass
from raytrain.data.prepare import Tensors
from raytrain.data.recorded import ROWS, Waiting
from raytrain.parallel.strategy import Autocast, Loss, Strategy
from raytrain.run.metrics_log import note
from raytrain.training.captured_update import CLOSE, Update, why_not
from raytrain.training.cuda_graph import CUDAGraph, Graph, reserve, said, taken
from raytrain.watchdog import FORWARD, doing

if TYPE_CHECKING:
    from raytrain.experiment import Experiment
    from raytrain.training.trainer import Trainer

_WARM, _TIMED, _COMPARED = 3, 20, 2
"""Steps before a capture, in which libraries choose kernels; steps that `auto` times of each way; and replays that are
compared with what is computed plainly."""
_SMALL = 1 / 16
"""A tensor of gradients is compared with its largest value, or with this share of the largest of all if that is more:
the gradient of a bias before BatchNorm is nothing but what rounding leaves."""
_OTHERWISE = "a replay gives another loss or other gradients"
_MOST = 8
"""Graphs of a run, one for each shape of a batch, such as those of progressive resizing."""


class _Fixed(Batch):
    """A batch in a graph's own memory. The numbers of its samples are those of the time of the capture."""

    def __init__(self, arrays: dict[str, torch.Tensor], size: int):
        self.arrays, self.size = arrays, size

    def __len__(self) -> int:
        return self.size

    @property
    def ids(self) -> Any:  # type: ignore[override]
        """Raises, since a graph would go on with the first batch's."""
        raise _NotCaptured("the task reads batch.ids")


class _NotCaptured(Exception):
    """A pass that a graph cannot hold."""


@dataclass
class _Captured:
    """A graph with its memory: what it is given of a batch, which may be all of it, the batch, the loss's sum, the
    gradients, and what ranks exchange of them; and the graph that updates the weights by these gradients."""

    graph: Graph
    given: Tensors
    arrays: Tensors
    loss: torch.Tensor
    gradients: list[torch.Tensor | None]
    exchanged: list[torch.Tensor]
    room: int
    """Bytes that steps without graphs take for a while."""
    replays: int = 0
    stepped: bool = False
    update: Update | None = None


class CapturedStep:
    """Runs a step's only micro-batch, and then its update, as a graph where it can, and otherwise as the strategy and
    the trainer do.

    Its first steps run plainly. Then each shape of a full batch is captured. The first replays are compared with the
    plain pass of the same batch, and a graph that gives something else is not used. With `auto` both ways are timed on
    the run's own steps, and the faster one stays. Then the update is captured, and its first replays are compared in
    the same way. All ranks do so in the same steps, and agree on what they find.

    Args:
        trainer: its strategy has `recorded` and `replayed`.
        make: makes an empty graph.
    """

    def __init__(self, trainer: Trainer, make: Callable[[], Graph]):
        self.trainer, self.make = trainer, make
        self.parameters = [one for one in trainer.strategy.module.parameters() if one.requires_grad]
        self.known: dict[tuple[Any, ...], _Captured] = {}
        self.current: _Captured | None = None
        """The graph whose gradients the parameters have."""
        self.reason, self.reason_of_update, self.steps = "", "", 0
        self.undecided = trainer.experiment.graph == "auto"
        self.seconds: dict[str, list[float]] = {"plain": [], "captured": []}
        self.loader = trainer.loaders["train"]
        self.loader.records = not self._agreed("preparation", self.loader.record())

    def forward_backward(self, micro_batches: Iterable[Pass], loss: Loss, autocast: Autocast) -> None:
        """Compute gradients, as `Strategy.forward_backward`. A collective."""
        passes, self.current = list(micro_batches), None
        self.steps += 1

        def plain() -> None:
            for one in passes:
                _ = one.batch.arrays  # makes those that wait, before `loss` enters autocast
            self.trainer.strategy.forward_backward(passes, loss, autocast)

        full = len(passes) == 1 and passes[0].size == self.trainer.experiment.batch_size
        if self.reason or self.steps <= _WARM or not full:
            return plain()
        if self.undecided and len(self.seconds["plain"]) < _TIMED:
            return self._timed("plain", plain)
        batch = passes[0].batch
        given = batch.rows if isinstance(batch, Waiting) and self.loader.records else batch.arrays
        key = tuple((name, array.shape, array.dtype, array.stride()) for name, array in given.items())
        if key not in self.known and (len(self.known) == _MOST or self._capture(key, given, passes[0], loss)):
            return plain()
        if self.known[key].replays < _COMPARED:
            return self._compare(key, given, batch, plain)
        found = self.known[key]
        if self.undecided:
            self._timed("captured", partial(self._replay, found, given))
            self._decide()
        else:
            self._replay(found, given)
            self.current = found
        return None

    def update_weights(self) -> bool | torch.Tensor:
        """Update the weights, as `Trainer.clip_and_step`. A collective."""
        plain, found = self.trainer.clip_and_step, self.current
        if found is None or self.reason_of_update:
            return plain()
        if any(one.grad is not its for one, its in zip(self.parameters, found.gradients, strict=True)):
            return plain()  # some parameters wait, or a hook has made other gradients
        if not found.stepped:  # the step that makes the optimizer's state
            found.stepped = True
            return plain()
        update = found.update or self._capture_update(found)
        if update is None:
            return plain()
        if not update.fits:
            self.reason_of_update = "a hook changes the optimizer's settings"
            self._note("update", self.reason_of_update, 0)
            return plain()
        if update.replays >= _COMPARED:
            return update.replay()
        updated, reason = update.compared()
        self.reason_of_update = self._agreed("update", reason)
        if self.reason_of_update:
            found.update = None
        return updated

    def _capture_update(self, found: _Captured) -> Update | None:
        """Record the update by a graph's gradients, if it can be recorded. A collective."""
        reason = why_not(self.trainer.optimizer)
        try:
            found.update = None if reason else Update(self.trainer, self.make())
        except Exception as error:
            reason = said(error)
        self.reason_of_update = self._agreed("update", reason)
        return None if self.reason_of_update else found.update

    def _capture(self, key: tuple[Any, ...], given: Tensors, one: Pass, loss: Loss) -> str:
        """Record the pass of a batch, with its preparation if only its rows are given, and leave weights, gradients,
        buffers and random numbers as they are. Return why it could not be recorded, if it could not. A collective."""
        strategy, batch, arrays = self.trainer.strategy, one.batch, Tensors()
        memory: Tensors = {}
        gradients: list[torch.Tensor | None] = []
        exchanged: list[torch.Tensor] = []

        def work() -> list[torch.Tensor]:
            self._clear()
            arrays.update(batch.recorded(memory) if isinstance(batch, Waiting) and ROWS in memory else memory)
            fixed = one._replace(batch=_Fixed(arrays, len(batch)))
            gradients[:], exchanged[:] = strategy.recorded(
                lambda: loss(strategy.module, fixed).backward(), self.parameters
            )
            made = arrays.values() if ROWS in memory else ()
            return [self.trainer.sums[0], *exchanged, *(each for each in gradients if each is not None), *made]

        graph, state, reason, room = self.make(), _State(strategy), "", taken(self.trainer.ranks.device)
        try:
            memory.update((name, torch.empty_like(array).copy_(array)) for name, array in given.items())
            total = graph.capture(work)[0]
            self.known[key] = _Captured(graph, memory, arrays, total, list(gradients), list(exchanged), room)
        except errors.UserError:
            raise
        except Exception as error:  # torch's, of whatever the user's code did, and what memory does not hold
            reason = said(error)
        finally:
            state.restore()
            self._clear()
        if ROWS in given and (found := self._agreed("preparation", "" if arrays else reason)):
            return self._unprepared(found)
        return self._end(self._agreed("pass", reason))

    def _replay(self, found: _Captured, given: Tensors) -> None:
        for name, array in given.items():
            found.given[name].copy_(array)
        doing.at(FORWARD)
        self.trainer.strategy.replayed(found.graph.replay, found.exchanged)
        found.replays += 1
        self.trainer.sums[0] = found.loss
        for parameter, gradient in zip(self.parameters, found.gradients, strict=True):
            parameter.grad = gradient

    def _compare(self, key: tuple[Any, ...], given: Tensors, batch: Batch, plain: Callable[[], None]) -> None:
        """Replay, and keep that only if the batch is that of the plain preparation, to the bit, loss and gradients are
        those of the plain pass, and memory holds such a pass beside the graph, as short batches need it."""
        found, before, reason = self.known[key], _State(self.trainer.strategy), ""
        replayed: list[torch.Tensor | None] = []
        self._replay(found, given)
        try:
            replayed = [
                self.trainer.sums[0],
                *(None if one.grad is None else one.grad.clone() for one in self.parameters),
            ]
            reserve(found.room, self.trainer.ranks.device)
        except torch.OutOfMemoryError as error:
            reason = said(error)
        before.restore()
        self._clear()
        if reason := self._agreed("pass", reason):
            del found, replayed
            self._end(reason)
            return plain()
        plain()
        if ROWS in given:
            same = all(torch.equal(found.arrays[name], array) for name, array in batch.arrays.items())
            if reason := self._agreed("preparation", "" if same else "a replay prepares another batch"):
                self._unprepared(reason)
                return None
        plainly = [self.trainer.sums[0], *(one.grad for one in self.parameters)]
        close = CLOSE + 4 * self.trainer.precision.spacing + self.trainer.strategy.rounding
        self._end(self._agreed("pass", "" if _alike(replayed, plainly, close) else _OTHERWISE))
        return None

    def _timed(self, way: str, run: Callable[[], None]) -> None:
        device = self.trainer.ranks.device
        _wait(device)
        started = time.perf_counter()
        run()
        _wait(device)
        self.seconds[way].append(time.perf_counter() - started)

    def _decide(self) -> None:
        if len(self.seconds["captured"]) < _TIMED:
            return
        self.undecided = False
        plain, captured = self._summed([1000 * statistics.median(each) for each in self.seconds.values()])
        if captured > plain:
            world = self.trainer.ranks.world
            slower = f"it takes {captured / world:.2f} ms as a graph and {plain / world:.2f} ms without"
            self._end(self._agreed("pass", slower))

    def _clear(self) -> None:
        self.trainer.sums.clear()
        for parameter in self.parameters:
            parameter.grad = None

    def _end(self, reason: str) -> str:
        """Go on plainly if there is a reason to, which is returned."""
        self.reason = reason
        return self._unprepared(reason) if reason else ""

    def _unprepared(self, reason: str) -> str:
        """Prepare batches plainly from now on, and forget all graphs with their memory."""
        self.loader.records = False
        self.known.clear()
        torch.cuda.empty_cache()
        return reason

    def _agreed(self, what: str, reason: str) -> str:
        """Return why the ranks do without a graph: this rank's reason or that of others; empty if none has any. One of
        the ranks notes it. A collective."""
        ranks = self.trainer.ranks
        found = self._summed([float(bool(reason) and rank == ranks.rank) for rank in range(ranks.world)])
        if not any(found):
            return ""
        self._note(what, reason, found.index(1.0))
        return reason or "another worker cannot"

    def _note(self, what: str, reason: str, rank: int) -> None:
        """Let one rank note why."""
        if self.trainer.ranks.rank == rank:
            note(self.trainer.run.path, f"the {what} is not captured as a CUDA graph: {reason}")

    def _summed(self, values: list[float]) -> list[float]:
        """Return the sums over the ranks. A collective, which waits for the device."""
        sums = torch.tensor(values, dtype=torch.float64, device=self.trainer.ranks.device)
        self.trainer.strategy.all_reduce(sums)
        return sums.tolist()


class _State:
    """Copies of what a pass changes besides gradients: buffers and generators of random numbers."""

    def __init__(self, strategy: Strategy):
        self.device = strategy.ranks.device
        self.buffers = [(buffer, buffer.clone()) for buffer in strategy.module.buffers()]
        self.cpu = torch.get_rng_state()
        self.gpu = torch.cuda.get_rng_state(self.device) if self.device.type == "cuda" else None

    @torch.no_grad()
    def restore(self) -> None:
        """Put them back."""
        for buffer, kept in self.buffers:
            buffer.copy_(kept)
        torch.set_rng_state(self.cpu)
        if self.gpu is not None:
            torch.cuda.set_rng_state(self.gpu, self.device)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _alike(ones: list[torch.Tensor | None], others: list[torch.Tensor | None], close: float) -> bool:
    """Return whether a loss and gradients are the same but for a share of the largest value of each, or of what
    `_SMALL` says."""
    if [one is None for one in ones] != [other is None for other in others]:
        return False
    pairs = [(one, other) for one, other in zip(ones, others, strict=True) if one is not None and other is not None]
    far = torch.stack([(one - other).abs().max().float() for one, other in pairs])
    most = torch.stack([other.abs().max().float() for _, other in pairs])
    finite, least = most.isfinite(), torch.zeros_like(most)
    least[1:] = _SMALL * most.where(finite, 0.0)[1:].max()
    return bool(((far <= close * most.maximum(least)) | ~finite).all())


def check(e: Experiment) -> list[str]:
    """Check that `graph="on"` can be had with the scaling that the plan has decided on; return notes for the plan.

    Raises:
        UserError: it cannot.
    """
    reason = _why_not(e, e.scaling.ranks, e.scaling.gpus_per_worker or 0.0)
    if e.graph == "off" or not reason:
        return []
    what = f"a pass cannot be captured as a CUDA graph: {reason}"
    if e.graph == "on":
        raise errors.UserError(what, "in graph", "use --graph auto, or leave it out")
    return [what]


def _why_not(e: Experiment, workers: int, gpus: float) -> str:
    if not gpus:
        return "the workers are on CPUs"
    if reason := e.parallel.uncaptured(workers):
        return reason
    if gpus > 1:
        return "the model is on several GPUs"
    return "a step has several micro-batches" if e.accumulation > 1 else ""


def of(
    trainer: Trainer,
) -> tuple[Callable[[Iterable[Any], Loss, Autocast], None], Callable[[], bool | torch.Tensor]]:
    """Return what computes the gradients of a shard, and what updates the weights by them: the strategy's and the
    trainer's own way, or a `CapturedStep`."""
    e, ranks = trainer.experiment, trainer.ranks
    gpus = len(ranks.devices) if ranks.device.type == "cuda" else 0
    if e.graph == "off" or _why_not(e, ranks.world, gpus):
        return trainer.strategy.forward_backward, trainer.clip_and_step
    step = CapturedStep(trainer, partial(CUDAGraph, torch.cuda.graph_pool_handle()))
    return step.forward_backward, step.update_weights
