"""A manifest of ten million rows: its index takes less than 2 GB and a minute."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv, parquet

ROWS = 10_000_000
_INDEX = """
import sys
from pathlib import Path
from raytrain import Manifest
from raytrain.data.checks import checked_indices
found = checked_indices(Manifest(sys.argv[1]))
prints = {index.fingerprint() for index in found.values()}
peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
print(sum(map(len, found.values())), len(prints), peak.split()[1])  # ru_maxrss would begin with the test's own memory
"""


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_ten_million_rows_are_planned_within_2_gb_and_a_minute(tmp_path: Path, suffix: str) -> None:
    row = np.arange(ROWS)
    paths = pa.array([f"images/part{number % 1000:04d}/image_{number:09d}.jpg" for number in range(ROWS)])
    labels = pa.array([f"class{number}" for number in range(1000)]).take(pa.array(row * 7919 % 1000))
    splits = pa.array(["val", "train"]).take(pa.array((row % 10 > 0).astype(int)))
    table, root = pa.table({"path": paths, "label": labels, "split": splits}), tmp_path / f"big.{suffix}"
    (csv.write_csv if suffix == "csv" else parquet.write_table)(table, str(root))
    del paths, labels, splits, table
    found = subprocess.run([sys.executable, "-c", _INDEX, root], capture_output=True, text=True, timeout=60, check=True)
    rows, prints, kibibytes = map(int, found.stdout.split())
    assert (rows, prints) == (ROWS, 2) and kibibytes * 1024 < 2e9
