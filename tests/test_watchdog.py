"""The watchdog of a rank, on threads that stand for ranks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from raytrain import Scaling, UserError, watchdog
from raytrain.watchdog import BACKWARD, FORWARD, WAITING, Activity, Hang, Watchdog, awaited, doing

SECONDS = 0.4


class Memory:
    """A store as torch.distributed's, which can fall silent."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.silent = False

    def _answer(self) -> dict[str, bytes]:
        if self.silent:
            raise RuntimeError("wait timeout")
        return self.values

    def set(self, key: str, value: str) -> None:
        self._answer()[key] = value.encode()

    def check(self, keys: list[str]) -> bool:
        return all(key in self._answer() for key in keys)

    def multi_get(self, keys: list[str]) -> list[bytes]:
        return [self._answer()[key] for key in keys]


class Rank(threading.Thread):
    """A rank that does something under a watchdog; ended, and freed, at the end of a test."""

    def __init__(self, does: Callable[[Rank], None], rank: int = 0, world: int = 1, store: Memory | None = None):
        super().__init__(daemon=True)
        self.does, self.place, self.store = does, (rank, world), store
        self.activity, self.free, self.hangs = Activity(), threading.Event(), list[Hang]()
        self.came = threading.Event()

    def run(self) -> None:
        with Watchdog(*self.place, SECONDS, self.store, self._hung, self.activity):
            self.activity.known = {"starting", "validating", "exchanging gradients", FORWARD, BACKWARD, WAITING}
            self.does(self)

    def _hung(self, hang: Hang) -> None:
        self.hangs.append(hang)
        self.came.set()

    def deadlock(self) -> None:
        self.free.wait()


@pytest.fixture
def start() -> Iterator[Callable[..., list[Rank]]]:
    """Starts a thread for each function, as the ranks of one run."""
    started: list[Rank] = []

    def ranks(*does: Callable[[Rank], None], store: Memory | None = None) -> list[Rank]:
        store = store or (Memory() if len(does) > 1 else None)
        found = [Rank(each, rank, len(does), store) for rank, each in enumerate(does)]
        started.extend(found)
        for rank in found:
            rank.start()
        return found

    yield ranks
    for rank in started:
        rank.free.set()
        rank.join(10)
        assert not rank.is_alive()


def in_forward(rank: Rank) -> None:
    rank.activity.begin("preparing a batch", 7)
    rank.activity.at(FORWARD)
    rank.deadlock()


def exchanging(rank: Rank) -> None:
    rank.activity.begin("preparing a batch", 7)
    rank.activity.at(FORWARD)
    rank.activity.at(BACKWARD)
    rank.activity.begin("exchanging gradients", 7)
    rank.deadlock()


def test_hanging_rank_is_named_with_its_line(start: Callable[..., list[Rank]]) -> None:
    (rank,) = start(in_forward)
    assert rank.came.wait(30)
    (hang,) = rank.hangs
    assert hang.error.startswith("hung after step 7: no progress for ") and hang.error.endswith(
        "while in a forward pass"
    )
    line = Rank.deadlock.__code__.co_firstlineno + 1
    assert hang.at == f"{__file__}:{line}, in deadlock"
    *others, own = hang.stack.split("Thread ")
    assert "in_forward" in own and "self.free.wait()" in own
    assert any("MainThread" in other and "rank.came.wait(30)" in other for other in others), "the others' stacks too"


def test_a_rank_that_waits_for_data_is_said_to(start: Callable[..., list[Rank]]) -> None:
    def waits(rank: Rank) -> None:
        rank.activity.begin("adding up losses", 7)
        rank.activity.at(WAITING)
        rank.deadlock()

    (rank,) = start(waits)
    assert rank.came.wait(30)
    assert rank.hangs[0].error.startswith("waited in vain for data for ")


def test_batches_that_are_awaited_come_through_and_end() -> None:
    doing.reset()
    seen = [(one, doing.what, doing.position[2]) for one in awaited("abc")]
    assert seen == [("a", WAITING, 1), ("b", WAITING, 2), ("c", WAITING, 3)]


def test_progress_within_a_part_keeps_a_rank_alive(start: Callable[..., list[Rank]]) -> None:
    def does(rank: Rank) -> None:
        rank.activity.begin("validating", 7)
        for _ in range(40):
            time.sleep(SECONDS / 10)
            rank.activity.tick()

    (rank,) = start(does)
    rank.join(30)
    assert not rank.hangs


@pytest.mark.parametrize("known", [True, False])
def test_first_time_work_may_take_three_times_as_long(start: Callable[..., list[Rank]], known: bool) -> None:
    def does(rank: Rank) -> None:
        if not known:
            rank.activity.known.clear()
        in_forward(rank)

    began = time.monotonic()
    (rank,) = start(does)
    assert rank.came.wait(30)
    took = time.monotonic() - began
    assert took < 2.9 * SECONDS if known else took > 2.9 * SECONDS


@pytest.mark.parametrize("culprit", [0, 1, 2])
def test_rank_with_the_least_progress_is_named(start: Callable[..., list[Rank]], culprit: int) -> None:
    ranks = start(*(in_forward if rank == culprit else exchanging for rank in range(3)))
    assert ranks[culprit].came.wait(30)
    time.sleep(2 * SECONDS)
    assert [len(rank.hangs) for rank in ranks] == [int(rank == culprit) for rank in range(3)]
    assert "as did" not in ranks[culprit].hangs[0].error


def test_ranks_that_all_came_as_far_are_all_named(start: Callable[..., list[Rank]]) -> None:
    ranks = start(exchanging, exchanging)
    assert all(rank.came.wait(30) for rank in ranks)
    assert ranks[0].hangs[0].error.endswith("while exchanging gradients, as did rank 1")


def test_rank_outside_a_collective_is_named_among_equals(start: Callable[..., list[Rank]]) -> None:
    names: dict = {}
    text = "from time import sleep\ndef meet(seconds):\n    sleep(seconds)\n"
    exec(compile(text, "/x/torch/distributed/c10d.py", "exec"), names)

    def meets(rank: Rank) -> None:
        rank.activity.begin("preparing a batch", 7)
        rank.activity.at(FORWARD)
        names["meet"](6 * SECONDS)
        rank.free.wait()

    ranks = start(meets, in_forward)
    assert ranks[1].came.wait(30)
    assert not ranks[0].hangs


def test_rank_with_progress_keeps_waiting_ranks_alive(start: Callable[..., list[Rank]]) -> None:
    on = threading.Event()

    def validates(rank: Rank) -> None:
        rank.activity.begin("validating", 7)
        while not on.wait(SECONDS / 10):
            rank.activity.at("validating")
        rank.deadlock()

    def waits(rank: Rank) -> None:
        rank.activity.begin("validating", 7)
        rank.activity.begin("adding up the validation's metrics", 7)
        rank.deadlock()

    ranks = start(validates, waits)
    time.sleep(6 * SECONDS)  # the one that waits has done so for three times as long as it may
    assert not ranks[0].hangs and not ranks[1].hangs
    on.set()
    assert ranks[0].came.wait(30)
    assert "while validating" in ranks[0].hangs[0].error and not ranks[1].hangs


def test_a_rank_that_goes_on_takes_back_that_it_stood_still(start: Callable[..., list[Rank]]) -> None:
    store, on = Memory(), threading.Event()

    def slow(rank: Rank) -> None:
        rank.activity.begin("preparing a batch", 7)
        rank.activity.at(FORWARD)
        on.wait()
        while not rank.free.wait(SECONDS / 10):
            rank.activity.tick()

    def later(rank: Rank) -> None:
        while not on.wait(SECONDS / 10):
            rank.activity.tick()
        exchanging(rank)

    ranks = start(slow, later, store=store)
    deadline = time.monotonic() + 30
    while "stopped/0" not in store.values:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    on.set()
    while store.values["stopped/0"] != b"null" or "stopped/1" not in store.values:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    time.sleep(2 * SECONDS)
    assert store.values["stopped/0"] == b"null" and not ranks[0].hangs and not ranks[1].hangs


def test_a_rank_that_has_ended_keeps_nobody_alive(start: Callable[..., list[Rank]]) -> None:
    ranks = start(in_forward, lambda rank: None)
    assert ranks[0].came.wait(30)


def test_rank_decides_alone_only_if_the_store_is_silent(
    start: Callable[..., list[Rank]], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Memory()
    store.silent = True
    ranks = start(exchanging, exchanging, store=store)
    time.sleep(4 * SECONDS)
    assert not ranks[0].hangs and not ranks[1].hangs
    monkeypatch.setattr(watchdog, "_SILENCE_SECONDS", SECONDS)
    assert ranks[0].came.wait(30) and ranks[1].came.wait(30)
    assert ranks[1].hangs[0].error.startswith("lost touch with rank 0 after step 7: no progress for ")


def test_a_rank_under_a_debugger_is_left_alone(start: Callable[..., list[Rank]]) -> None:
    names: dict = {}
    exec(compile("def interaction(free):\n    free.wait()\n", "/usr/lib/python3/bdb.py", "exec"), names)

    def looks(rank: Rank) -> None:
        rank.activity.begin("preparing a batch", 7)
        rank.activity.at(FORWARD)
        names["interaction"](rank.free)

    (rank,) = start(looks)
    time.sleep(6 * SECONDS)
    assert not rank.hangs


def test_the_deadline_is_a_number_of_at_least_0() -> None:
    assert Scaling().hang_seconds == 300 and Scaling(hang_seconds=0).hang_seconds == 0
    for wrong in (-1.0, float("inf"), float("nan")):
        with pytest.raises(UserError, match="hang_seconds"):
            Scaling(hang_seconds=wrong)
