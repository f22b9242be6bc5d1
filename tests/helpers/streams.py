"""Streams of a GPU on a CPU: what is copied on a side stream happens only when somebody waits for it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

_HERE = threading.local()
"""The thread's device; CUDA begins a thread on GPU 0."""


class Event:
    """The work of a stream up to a moment."""

    def __init__(self, stream: Stream):
        self.stream, self.upto = stream, stream.given

    def synchronize(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            assert getattr(_HERE, "device", None) is not None, "CUDA would make a context on GPU 0"
            time.sleep(0.02)  # a checkpoint's thread comes too late to hide that training does not wait
        self.stream.work(self.upto)


class Stream:
    """A queue of work, which is done as late as it can be: when somebody waits for it.

    Args:
        late: whether waits are put into the queue as well. They are not on the stream of training, whose work is done
            at once, but for what a test gives to `later`.
    """

    def __init__(self, late: bool = True):
        self.waiting: list[Callable[[], object]] = []
        self.given = self.done = 0
        self.late, self.lock = late, threading.RLock()

    def later(self, copy: Callable[[], object]) -> None:
        self.waiting.append(copy)
        self.given += 1

    def work(self, upto: int) -> None:
        with self.lock:  # a checkpoint's thread waits too
            while self.done < upto:
                self.waiting.pop(0)()
                self.done += 1

    def record_event(self) -> Event:
        return Event(self)

    def wait_event(self, event: Event) -> None:
        if self.late:
            self.later(lambda: event.stream.work(event.upto))
        else:
            event.stream.work(event.upto)

    def wait_stream(self, stream: Stream) -> None:
        self.wait_event(stream.record_event())


class Streams:
    """Stands in for torch.cuda's streams, pinned memory and copies to and from a GPU.

    Attributes:
        made: how many streams were made.
        recorded: how many tensors were recorded on a stream.
        pinned: how many blocks of pinned memory were taken.
    """

    def __init__(self, patch: pytest.MonkeyPatch):
        self.main = self.current = Stream(late=False)
        self.made = self.recorded = self.pinned = 0
        self.copy_, self.to, self.empty = torch.Tensor.copy_, torch.Tensor.to, torch.empty
        patch.setattr(torch.cuda, "Stream", self._stream)
        patch.setattr(torch.cuda, "stream", self._on)
        patch.setattr(torch.cuda, "current_stream", lambda *_: self.current)
        patch.setattr(torch.cuda, "set_device", lambda device: setattr(_HERE, "device", device))
        patch.setattr(torch.cuda, "device", self._device)
        patch.setattr(torch, "empty", self._empty)
        for name in ("copy_", "to", "pin_memory", "record_stream"):
            patch.setattr(torch.Tensor, name, self._method(getattr(self, f"_{name}")))

    @staticmethod
    def _method(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda tensor, *arguments, **options: function(tensor, *arguments, **options)

    def _stream(self, *_: Any) -> Stream:
        self.made += 1
        return Stream()

    @contextlib.contextmanager
    def _on(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        yield
        self.current = before

    @contextlib.contextmanager
    def _device(self, device: torch.device) -> Iterator[None]:
        before, _HERE.device = getattr(_HERE, "device", None), device
        yield
        _HERE.device = before

    def _empty(self, *size: Any, pin_memory: bool = False, **options: Any) -> torch.Tensor:
        found = self.empty(*size, **options)
        self.pinned += pin_memory
        return found.fill_(float("nan")) if pin_memory and found.is_floating_point() else found

    def _copy_(self, tensor: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        if non_blocking and self.current is not self.main:
            self.current.later(lambda: self.copy_(tensor, source))
            return tensor
        return self.copy_(tensor, source)

    def _to(self, tensor: torch.Tensor, *arguments: Any, non_blocking: bool = False, **options: Any) -> torch.Tensor:
        if not (arguments and isinstance(arguments[0], torch.device) and arguments[0].type == "cuda"):
            return self.to(tensor, *arguments, **options)
        found = torch.zeros_like(tensor)
        if self.current is self.main or not non_blocking:
            return self.copy_(found, tensor)
        self.current.later(lambda: self.copy_(found, tensor))
        return found

    def _pin_memory(self, tensor: torch.Tensor) -> torch.Tensor:
        self.pinned += 1
        return tensor.clone()

    def _record_stream(self, tensor: torch.Tensor, stream: Stream) -> None:
        self.recorded += 1
