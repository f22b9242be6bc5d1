"""A worker whose cluster is out of reach ends itself, so that the run is free for those that go on with it."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

_CODE = """
import sys

import pytest
from raytrain.driver import worker
worker._CUT_OFF_SECONDS, worker._ASK_SECONDS = 0.5, 0.05
print("asks", flush=True)
worker._end_when_cut_off(sys.argv[1])
"""


def test_worker_ends_once_the_head_stops_answering() -> None:
    with socket.create_server(("127.0.0.1", 0)) as head:
        address = f"127.0.0.1:{head.getsockname()[1]}"
        worker = subprocess.Popen(
            [sys.executable, "-c", _CODE, address], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        head.settimeout(60)
        for _ in range(20):  # a second of answers, and more
            head.accept()[0].close()
        assert worker.poll() is None
    _, said = worker.communicate(timeout=60)
    assert worker.returncode == 1 and said == f"error: {address} did not answer for 0.5 s: this node is cut off\n"


@pytest.mark.slow
def test_worker_that_never_reached_the_head_is_left_alone() -> None:
    with socket.socket() as bound:  # and does not listen
        bound.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        worker = subprocess.Popen([sys.executable, "-c", _CODE, address], stdout=subprocess.PIPE, text=True)
        try:
            assert worker.stdout and worker.stdout.readline() == "asks\n"
            worker.wait(3)
        except subprocess.TimeoutExpired:
            return
        finally:
            worker.kill()
            worker.communicate()
    raise AssertionError(f"it ended with {worker.returncode}")
