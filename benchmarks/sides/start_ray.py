"""A raw TorchTrainer of two workers, as Ray's guide has it, to the end of its first step.

https://docs.ray.io/en/latest/train/getting-started-pytorch.html
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import ray
import ray.train
import ray.train.torch
import torch
from torch import nn


def train(config: dict[str, Any]) -> None:
    """One step of a small model; rank 0 notes when it was done."""
    model = ray.train.torch.prepare_model(nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = nn.functional.cross_entropy(model(torch.randn(32, 64)), torch.randint(0, 10, (32,)))
    loss.backward()
    optimizer.step()
    if ray.train.get_context().get_world_rank() == 0:
        Path(config["done"]).write_text(str(time.time()))


def main() -> None:
    """`start_ray.py FILE [ADDRESS]`: writes the Unix time of the first step's end into FILE."""
    ray.init(address=sys.argv[2] if len(sys.argv) > 2 else "local")
    with tempfile.TemporaryDirectory() as storage:
        ray.train.torch.TorchTrainer(
            train,
            train_loop_config={"done": sys.argv[1]},
            scaling_config=ray.train.ScalingConfig(num_workers=2, resources_per_worker={"CPU": 0.5}),
            run_config=ray.train.RunConfig(storage_path=storage),
        ).fit()


if __name__ == "__main__":
    main()
