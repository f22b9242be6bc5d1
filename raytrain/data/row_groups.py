"""Row groups of Parquet files in memory: those that were used last, each loaded once for all threads that ask."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable

import pyarrow as pa


class _Group:
    """A row group, whose lock is held while it is loaded."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.rows: pa.ChunkedArray | None = None


class RowGroups:
    """Row groups that many threads read at once, in random order.

    Args:
        most: bytes that they may take together, also while they are loaded; a larger one is kept alone.
    """

    def __init__(self, most: int):
        self._most, self._loading = most, 0
        self._groups: OrderedDict[Hashable, _Group] = OrderedDict()
        self._changed = threading.Condition()

    def get(self, key: Hashable, size: int, load: Callable[[], pa.ChunkedArray]) -> pa.ChunkedArray:
        """Return a row group. The first thread that asks for it loads it; the others wait for that.

        Args:
            size: about how many bytes it will take.
        """
        with self._changed:
            group = self._groups.setdefault(key, _Group())
            self._groups.move_to_end(key)
        with group.lock:
            return self._load(group, size, load) if group.rows is None else group.rows

    def _load(self, group: _Group, size: int, load: Callable[[], pa.ChunkedArray]) -> pa.ChunkedArray:
        rows = None
        with self._changed:
            self._changed.wait_for(lambda: not self._loading or self._loading + size <= self._most)
            self._loading += size
            self._make_room()
        try:
            rows = load()
            return rows
        finally:
            with self._changed:
                self._loading -= size
                group.rows = rows
                self._changed.notify_all()

    def _make_room(self) -> None:
        """Forget groups, the least recently used first."""
        held = [(key, group.rows.nbytes) for key, group in self._groups.items() if group.rows is not None]
        used = self._loading + sum(size for _, size in held)
        for key, size in held:
            if used <= self._most:
                return
            del self._groups[key]
            used -= size
