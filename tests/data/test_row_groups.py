"""Row groups of Parquet files: each is loaded once for all threads, within a number of bytes."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import fs, parquet

from raytrain.data import Manifest, table_cells
from raytrain.data.row_groups import RowGroups
from raytrain.errors import UserError

THREADS, GROUPS, ROWS = 8, 16, 4
CELLS = [bytes([number]) * 1000 for number in range(GROUPS * ROWS)]


@pytest.fixture
def table(tmp_path: Path) -> str:
    """16 row groups of 4 rows with 1,000 bytes each."""
    found = pa.table({"image": [{"bytes": cell, "path": None} for cell in CELLS], "label": [0] * len(CELLS)})
    parquet.write_table(found, tmp_path / "a.parquet", row_group_size=ROWS, compression="none")
    return str(tmp_path / "a.parquet")


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The row groups that have been loaded, each slowly; and a new cache for them."""
    found, known = list[int](), table_cells._row_group

    def load(root: str, column: str, number: int, size: int) -> pa.ChunkedArray:
        found.append(number)
        time.sleep(0.02)
        return known(root, column, number, size)

    monkeypatch.setattr(table_cells, "_row_group", load)
    monkeypatch.setattr(table_cells, "_KEPT", RowGroups(1 << 30))
    return found


def read_by_all(table: str, rows: list[np.ndarray]) -> list[list[bytes | None]]:
    """Each of 8 threads reads some rows; they begin together."""
    together = threading.Barrier(len(rows))

    def read(some: np.ndarray) -> list[bytes | None]:
        together.wait()
        return list(table_cells.cells((table,), "image", some))

    with ThreadPoolExecutor(len(rows)) as pool:
        return list(pool.map(read, rows))


def test_threads_that_miss_a_row_group_together_load_it_once(table: str, loads: list[int]) -> None:
    found = read_by_all(table, [np.array([17 + thread % 3]) for thread in range(THREADS)])
    assert found == [[CELLS[17 + thread % 3]] for thread in range(THREADS)] and loads == [4]


def test_threads_in_random_order_load_each_row_group_once(table: str, loads: list[int]) -> None:
    orders = [np.random.default_rng(thread).permutation(len(CELLS)) for thread in range(THREADS)]
    found = read_by_all(table, orders)
    assert found == [[CELLS[row] for row in order] for order in orders]
    assert sorted(loads) == list(range(GROUPS))


def test_row_groups_take_no_more_bytes_than_allowed() -> None:
    most, now, highest = 30_000, 0, 0
    groups = RowGroups(most)

    def load(number: int) -> pa.ChunkedArray:
        nonlocal now, highest
        with groups._changed:
            now += 8000
            kept = sum(one.rows.nbytes for one in groups._groups.values() if one.rows is not None)
            highest = max(highest, now + kept)
        time.sleep(0.002)
        with groups._changed:
            now -= 8000
        return pa.chunked_array([np.full(1000, number)])

    def ask(seed: int) -> bool:
        order = np.random.default_rng(seed).permutation(GROUPS)
        return all(groups.get(n, 8000, lambda n=n: load(n))[0].as_py() == n for n in order)

    with ThreadPoolExecutor(THREADS) as pool:
        assert all(pool.map(ask, range(THREADS)))
    assert 16_000 < highest <= most
    assert groups.get("large", 10 * most, lambda: pa.chunked_array([np.zeros(1)]))[0].as_py() == 0.0
    assert list(groups._groups) == ["large"], "it took the place of all others"


def test_a_row_group_that_could_not_be_loaded_is_asked_for_again() -> None:
    groups = RowGroups(100)

    def fail() -> pa.ChunkedArray:
        raise OSError("slow down")

    for _ in range(2):
        with pytest.raises(OSError, match="slow down"):
            groups.get(0, 80, fail)
    assert groups.get(0, 80, lambda: pa.chunked_array([[7]]))[0].as_py() == 7


def test_a_row_group_beyond_memory_is_one_line(table: str, loads: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    data = Manifest(table, bytes="image", val_fraction=0.25)
    index = data.index()["train"]
    largest = table_cells.largest_group((table,), "image")
    assert 4000 < largest < 8000
    monkeypatch.setattr(table_cells, "host_memory", lambda: 2 * largest - 2)
    with pytest.raises(UserError, match=rf"a row group, which is read whole, needs .*, {table}; write the table again"):
        list(data.encoded(index, np.array([0])))
    monkeypatch.setattr(table_cells, "host_memory", lambda: 2 * largest)
    assert list(data.encoded(index, np.array([0]))) == [CELLS[int(index.rows[0])]]


def test_an_arrow_file_at_a_url_is_fetched_once(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    files, root = fs.FileSystem.from_uri(f"{s3}/once")
    found = pa.table({"image": CELLS})
    with files.open_output_stream(f"{root}/a.arrow") as sink, pa.ipc.new_stream(sink, found.schema) as writer:
        writer.write_table(found)
    fetched, known = list[str](), table_cells.byte_files.content
    monkeypatch.setattr(table_cells.byte_files, "content", lambda path: fetched.append(path) or known(path))
    url = f"{s3}/once/a.arrow"
    assert read_by_all(url, [np.array([3])] * THREADS) == [[CELLS[3]]] * THREADS
    assert fetched == [url] and table_cells.largest_group((url,), "image") == 0
