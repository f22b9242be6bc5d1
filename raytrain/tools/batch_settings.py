"""How a large prediction is spread over a machine or a cluster, as flags. Without torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from raytrain.config import at_least, check
from raytrain.files import is_url


@dataclass(frozen=True)
class Settings:
    """Where a prediction runs that is written in parts, and how."""

    address: str | None = None
    """Address of a running Ray cluster, or `auto`; by default RAY_ADDRESS, or else this machine alone."""
    workers: int | None = None
    """Processes that hold the model; by default one for each GPU, or without GPUs one for each CPU."""
    gpus_per_worker: float | None = None
    """GPUs of each worker, such as 0.5 for two workers on one; by default 1 where there are GPUs."""
    batch_size: int = 64
    """Images in one forward pass. A prediction that goes on may change it."""
    part_size: int = 1024
    """Images in one part of the result."""

    def __post_init__(self) -> None:
        optional = (lambda value: value is None or value >= 1, "of at least 1, or None")
        gpus = (lambda value: value is None or 0 <= value <= 64, "from 0 to 64, or None")
        check(self, workers=optional, gpus_per_worker=gpus, batch_size=at_least(1), part_size=at_least(1))


@dataclass(frozen=True)
class Workers:
    """The actors that predict: their number, and the CPUs and GPUs of each."""

    count: int
    cpus: float
    gpus: float


def in_parts(out: str | None) -> bool:
    """Return whether a prediction goes to a folder of parts: to a URL, or to a path that names no kind of file."""
    return out is not None and (is_url(out) or out.endswith("/") or not Path(out).suffix)
