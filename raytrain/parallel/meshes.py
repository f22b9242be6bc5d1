"""Device meshes over the ranks of a run, and the time that collectives of their process groups may take."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, cast

import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from raytrain.parallel.strategy import RankContext


def mesh_of(ranks: RankContext, shape: tuple[int, ...], names: tuple[str, ...] | None = None) -> DeviceMesh:
    """Return a mesh over all ranks, each of whose groups waits `ranks.collective_seconds` for a collective: groups do
    not take that over from the default group, and PyTorch gives them 10 minutes on NCCL and 30 on gloo. A collective.

    Args:
        shape: ranks along each dimension.
        names: of the dimensions.
    """
    mesh = init_device_mesh(ranks.device.type, shape, mesh_dim_names=names)
    if ranks.collective_seconds is not None:
        for group in mesh.get_all_groups():
            _set_timeout(timedelta(seconds=ranks.collective_seconds), group)
    return mesh


_set_timeout = cast(Any, getattr(dist, "set_timeout", None) or cast(Any, distributed_c10d)._set_pg_timeout)
"""The public function, or its form before PyTorch 2.15."""
