"""Which columns of a run's rows are times, which differ between runs that are otherwise equal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def without_times(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of metrics.jsonl without its times, such as `seconds`, `seconds_data` and `samples_per_second`."""
    return {name: value for name, value in row.items() if not is_time(name)}


def is_time(name: str) -> bool:
    return name.partition("_")[0] == "seconds" or name == "samples_per_second"
