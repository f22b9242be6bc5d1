"""From `ray up` to `ray down` on three hosts, N times, then each fault once: tests/cluster/table.py N [FAULT ...]"""

from __future__ import annotations

import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from cuts import CASES, EPOCHS, play
from exposed import no_more_than_documented, nothing_without_a_token
from hosts import Hosts, why_not
from launched import Cluster, bit_equal, refused, sequence, train_here


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

    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        here = train_here(place, "here")

        def one(number: int) -> dict[str, float]:
            with Hosts(place / str(number)) as hosts:
                return sequence(hosts, here, "hosts")

        for number in range(1, count + 1):
            row(f"up to down, {number}", lambda number=number: one(number))
        if faults:
            long = train_here(place, "long", *EPOCHS)
            same = train_here(place, "deterministic", "--deterministic")
            with Hosts(place / "faults") as hosts:
                used = Cluster(hosts)
                row("up, for the faults", lambda: used.up() or used.seconds)
                row("a scan of all ports", lambda: no_more_than_documented(used))
                row("calls without a token", lambda: nothing_without_a_token(used))
                with used.dashboard():
                    row("jobs for what is not there", lambda: refused(used))
                    row("two hosts, deterministic: the bits of one", lambda: bit_equal(used, same))
                    for what in faults:
                        row(what, lambda what=what: play(used, long, what).seconds)
    print("".join(f"\n{complaint}" for complaint in failed))
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:] or list(CASES)))
