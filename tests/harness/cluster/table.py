"""From `raytrain cluster up` to its end on three hosts, N times, then each fault once:

PYTHONPATH=tests python -m harness.cluster.table N [FAULT ...]
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from harness.cluster.cuts import CASES, EPOCHS, play
from harness.cluster.exposed import no_more_than_documented, nothing_without_a_token
from harness.cluster.hosts import Hosts, why_not
from harness.cluster.launched import Cluster, another_ray_goes_on, bit_equal, refused, sequence, train_here
from harness.cluster.sweeping import over_hosts

SWEEP = "sweep"
"""A fault of a sweep, among those of runs."""


def main(count: int, faults: list[str]) -> int:
    """Prints the table. Returns 1 where something did not pass."""
    if reason := why_not():
        print(f"error: {reason}", file=sys.stderr)
        return 1
    print("| what | seconds | passed |\n|---|---|---|", flush=True)
    failed: list[str] = []

    def row(what: str, call: Callable[[], dict[str, float] | None]) -> None:
        began = time.monotonic()
        try:
            parts, passed = call() or {}, "yes"
        except Exception:
            failed.append(f"{what}:\n{traceback.format_exc()}")
            parts, passed = {}, "no"
        text = ", ".join(f"{name} {seconds:.0f}" for name, seconds in parts.items())
        print(f"| {what} | {time.monotonic() - began:.0f}{f' ({text})' if text else ''} | {passed} |", flush=True)

    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        place = Path(folder)

        @lru_cache  # which keeps no failure: the next row tries again
        def alone(name: str, *flags: str) -> Path:
            return train_here(place / str(time.monotonic_ns()), name, *flags)

        @lru_cache
        def cluster() -> Cluster:
            with contextlib.ExitStack() as own:
                found = Cluster(own.enter_context(Hosts(place / str(time.monotonic_ns()))))
                stack.push(own.pop_all())
            return found

        def one() -> dict[str, float]:
            with Hosts(place / str(time.monotonic_ns())) as hosts:
                return sequence(hosts, alone("here"), "hosts")

        def on_cluster(call: Callable[[Cluster], dict[str, float] | None]) -> Callable[[], dict[str, float] | None]:
            def ready() -> dict[str, float] | None:
                cluster().ready()
                with cluster().dashboard():
                    return call(cluster())

            return ready

        for number in range(1, count + 1):
            row(f"up to down, {number}", one)
        if faults:
            row("up, for the faults", lambda: cluster().up() or cluster().seconds)
            row("a scan of all ports", on_cluster(no_more_than_documented))
            row("calls without a token", on_cluster(nothing_without_a_token))
            row("jobs for what is not there", on_cluster(refused))
            row("another Ray of the user on a host", on_cluster(another_ray_goes_on))
            row(
                "two hosts, deterministic: the bits of one",
                on_cluster(
                    lambda used: bit_equal(used, alone("deterministic", "--parallel.strategy", "deterministic"))
                ),
            )
            if SWEEP in faults:
                row("a sweep: one host, three, three of which one is lost", on_cluster(over_hosts))
            for what in (fault for fault in faults if fault != SWEEP):
                row(what, on_cluster(lambda used, what=what: play(used, alone("long", *EPOCHS), what).seconds))
    print("".join(f"\n{complaint}" for complaint in failed))
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:] or [SWEEP, *CASES]))
