"""How a run is served: the flags of `raytrain serve`, checked before anything starts."""

from __future__ import annotations

import importlib.util
import ipaddress
import math
from dataclasses import dataclass

from raytrain import errors

_PACKAGES = ("fastapi", "starlette", "uvicorn")
"""What Ray Serve needs besides Ray."""


@dataclass(frozen=True)
class Serving:
    """How a run is served."""

    port: int = 8000
    """Port of the HTTP server."""
    host: str = "127.0.0.1"
    """Address that it listens on; 0.0.0.0 lets other machines in, without a password."""
    replicas: int = 1
    """Processes with a copy of the model each."""
    cpus: float | None = None
    """CPUs of each replica, and threads of its model. None divides this machine's among the replicas, and takes 1 on a
    cluster."""
    gpus: float = 0.0
    """GPUs of each replica, 0.5 for two replicas on one; 0 computes on the CPU."""
    max_batch: int = 32
    """The most images that the model computes at once."""

    def __post_init__(self) -> None:
        for name, low, high in (("port", 1, 65535), ("replicas", 1, 10_000), ("max_batch", 1, 4096)):
            value = getattr(self, name)
            if not low <= value <= high:
                raise _out_of_range(name, value, f"from {low} to {high:,}")
        if self.cpus is not None and not (math.isfinite(self.cpus) and self.cpus > 0):
            raise _out_of_range("cpus", self.cpus, "above 0")
        if not math.isfinite(self.gpus) or self.gpus < 0 or (self.gpus > 1 and self.gpus != int(self.gpus)):
            raise _out_of_range("gpus", self.gpus, "from 0 to 1, or a whole number")

    @property
    def url(self) -> str:
        """The address for a browser."""
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(self.host, self.host)
        return f"http://{f'[{host}]' if ':' in host and '[' not in host else host}:{self.port}"

    @property
    def open(self) -> bool:
        """Whether other machines may reach the server."""
        try:
            return not ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host != "localhost"


def _out_of_range(name: str, value: object, allowed: str) -> errors.UserError:
    return errors.out_of_range(f"--{name}", value, allowed, "`raytrain serve`")


def check_installed() -> None:
    """Check that Ray Serve's packages are installed.

    Raises:
        UserError: one is missing.
    """
    for package in _PACKAGES:
        if importlib.util.find_spec(package) is None:
            raise errors.extra_missing("`raytrain serve`", package, "serve")
