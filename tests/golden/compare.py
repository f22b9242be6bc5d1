"""Compare the bits of two checkouts: python tests/golden/compare.py CHECKOUT [CASE ...]

Each case is trained by both checkouts on this machine, one after the other. Equal are: every step's loss and learning
rate, every epoch's metrics but times, and the sha256 of the exported weights, best and last. Machines with other CPUs
differ in last bits, so no hash is kept.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))

from cases import CASES, Case
from helpers.times import without_times

HERE = Path(__file__).parents[2]
_COMMAND = "import sys; from raytrain.cli import main; main()"


def main(other: Path, names: list[str]) -> int:
    """Print a line for each case; return 1 where two checkouts differ."""
    if unknown := {*names} - {case.name for case in CASES}:
        sys.exit(f"error: no such case, {', '.join(sorted(unknown))}")
    different = 0
    for case in CASES:
        if names and case.name not in names:
            continue
        sides = [outcome(case, checkout) for checkout in (other, HERE)]
        wrong = [part for part in sides[0] if sides[0][part] != sides[1][part]]
        different += bool(wrong)
        rows = len(sides[1]["rows"])
        print(f"{case.name:<20} {rows:>4} rows  {'differs in ' + ', '.join(wrong) if wrong else 'equal'}", flush=True)
    print(f"{different} cases differ")
    return int(bool(different))


def outcome(case: Case, checkout: Path) -> dict[str, Any]:
    """Train a case with a checkout's code; return its rows and the hashes of its weights."""
    with tempfile.TemporaryDirectory() as folder:
        file, run = Path(folder, "experiment_file.py"), Path(folder, "runs", "run")
        file.write_text(case.source)
        call(checkout, folder, "train", str(file), "--out", f"{folder}/runs", "--name", "run")
        if case.resume_at is not None:
            rewind(run, case.resume_at)
            call(checkout, folder, "resume", str(run), *case.resume_flags)
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        for row in rows:
            row.pop("milliseconds", None)
        found: dict[str, Any] = {"rows": [without_times(row) for row in rows]}
        call(checkout, folder, "export", str(run), f"{folder}/weights.safetensors")
        found["exported"] = digest(Path(folder, "weights.safetensors"))
        last = json.loads((run / "last.json").read_text())["checkpoint"]
        found["last"] = digest(run / "checkpoints" / last / "model.safetensors")
        return found


def call(checkout: Path, folder: str, *arguments: str) -> None:
    """Run a raytrain command with a checkout's code; it must succeed."""
    environment = {**os.environ, "PYTHONPATH": str(checkout), "XDG_CACHE_HOME": f"{folder}/cache"}
    environment.pop("RAY_ADDRESS", None)
    done = subprocess.run(
        [sys.executable, "-c", _COMMAND, *arguments], cwd=folder, env=environment, capture_output=True, text=True,
        check=False, timeout=600,
    )  # fmt: skip
    if done.returncode:
        sys.exit(
            f"{checkout}: raytrain {' '.join(arguments)} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
        )


def rewind(run: Path, step: int) -> None:
    """Leave a run as if it had been killed right after the checkpoint of a step."""
    for checkpoint in (run / "checkpoints").iterdir():
        if int(checkpoint.name.removeprefix("step_")) > step:
            shutil.rmtree(checkpoint)
    (run / "summary.json").unlink()


def digest(file: Path) -> str:
    """Return the sha256 of a file."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve(), sys.argv[2:]))
