"""A capture that fails, with torch's functions replaced: the reason is the work's own, and nothing is left behind."""

from __future__ import annotations

import contextlib
import gc
import weakref
from typing import Any

import pytest
import torch

from raytrain import UserError
from raytrain.training.cuda_graph import CUDAGraph

POOL = (0, 7)


class Device:
    """torch.cuda's captures, of an old version, whose failing end leaves the stream and the allocator as they are, or
    of a new one."""

    def __init__(self, patch: pytest.MonkeyPatch, old: bool):
        self.old, self.stream, self.underway, self.released, self.resets = old, "training's", [], [], 0
        device, begun = self, self.begun

        class Graph:
            def reset(self) -> None:
                device.resets += 1

        patch.setattr(torch.cuda, "CUDAGraph", Graph)
        patch.setattr(torch.cuda, "graph", lambda graph, pool=None, **more: begun(pool, more.get("stream")))
        patch.setattr(torch.cuda, "current_stream", lambda: self.stream)
        patch.setattr(torch.cuda, "default_stream", lambda: "the default one")
        patch.setattr(torch.cuda, "set_stream", lambda stream: setattr(self, "stream", stream))
        patch.setattr(torch.cuda, "current_device", lambda: 0)
        patch.setattr(torch._C, "_cuda_endAllocateToPool", lambda _, pool: self.end(pool), raising=False)
        patch.setattr(torch._C, "_cuda_releasePool", lambda _, pool: self.released.append(pool), raising=False)
        patch.setattr(torch, "zeros", lambda *_, **__: None)

    def end(self, pool: Any) -> None:
        if pool not in self.underway:
            raise RuntimeError("endAllocatePool: not currently recording to mempool_id")
        self.underway.remove(pool)

    def begun(self, pool: Any, stream: str | None) -> Any:
        device = self
        assert stream == ("training's" if pool else None), "what autograd has kept refers to the stream of training"

        class Capture:
            def __enter__(self) -> None:
                self.before, device.stream = device.stream, "the capture's"
                device.underway.append(pool)

            def __exit__(self, kind: Any, *_: Any) -> None:
                failed = kind is not None or device.breaks
                if not (failed and device.old):
                    device.end(pool)
                    device.stream = self.before
                if failed:
                    raise RuntimeError("operation failed due to a previous error during capture")

        return Capture()

    breaks = False


@pytest.mark.parametrize("old", [True, False])
@pytest.mark.parametrize("error", [RuntimeError("it waits"), UserError("a", "b", "c"), torch.OutOfMemoryError("full")])
def test_a_failed_capture_raises_the_error_of_its_work(
    monkeypatch: pytest.MonkeyPatch, old: bool, error: Exception
) -> None:
    device = Device(monkeypatch, old)

    def work() -> list[torch.Tensor]:
        raise error

    with pytest.raises(type(error)) as found:
        CUDAGraph(POOL).capture(work)
    assert found.value is error
    assert device.stream == "training's" and not device.underway and device.resets == 1
    assert device.released == ([POOL] if old else []), "a version that releases the pool by itself is left alone"


@pytest.mark.parametrize("old", [True, False])
def test_a_capture_that_ends_with_an_error_raises_it(monkeypatch: pytest.MonkeyPatch, old: bool) -> None:
    device = Device(monkeypatch, old)
    monkeypatch.setattr(Device, "breaks", True)
    with pytest.raises(RuntimeError, match="a previous error"):
        CUDAGraph(POOL).capture(lambda: [])
    assert device.stream == "training's" and device.resets == 1


def test_the_error_of_a_capture_holds_no_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    Device(monkeypatch, old=False)
    held: list[weakref.ref[torch.Tensor]] = []

    def work() -> list[torch.Tensor]:
        tensor = torch.ones(3)
        held.append(weakref.ref(tensor))
        raise RuntimeError("it waits")

    gc.disable()
    try:
        with contextlib.suppress(RuntimeError):
            CUDAGraph(POOL).capture(work)
        assert held[0]() is None
    finally:
        gc.enable()


def test_a_capture_that_succeeds_returns_its_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    device, tensors = Device(monkeypatch, old=True), [torch.ones(2)]
    assert CUDAGraph(POOL).capture(lambda: tensors) is tensors
    assert device.stream == "training's" and not device.underway and not device.resets
