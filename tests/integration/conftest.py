"""Integration tests: real Ray on the CPU. Those that do not need a process of their own share one cluster."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def experiments() -> Path:
    return ROOT / "experiments"


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """One Ray for a module's trainings from Python, with this machine's CPUs; `raytrain.train` uses it as it is."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.2")
    os.environ.setdefault("RAY_DATA_DISABLE_PROGRESS_BARS", "1")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import ray

        from raytrain.driver.resources import local_resources

        ray.init(address="local", num_cpus=int(local_resources().cpus), include_dashboard=False, log_to_driver=False)
        yield
        ray.shutdown()
