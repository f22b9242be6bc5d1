"""How long a checkpoint keeps Ray Train's loop from its next step, as Ray's guide has it: torch.save, then report.

https://docs.ray.io/en/latest/train/user-guides/checkpoints.html
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import ray
import ray.train
import ray.train.torch
import torch
from torch import nn

from benchmarks.side import LARGE, Turns, Workload
from benchmarks.sides.checkpoint_raytrain import COUNT, EVERY
from benchmarks.sides.ray_streaming import fit


def train(config: dict[str, Any]) -> None:
    """Steps and checkpoints, as many as the other side has."""
    torch.set_num_threads(1)
    workload, turns = Workload(**config["workload"]), Turns(config["commands"], config["replies"])
    model = ray.train.torch.prepare_model(LARGE.build((1, 28, 28), 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    images, labels = torch.randn(workload.batch_size, 1, 28, 28), torch.randint(0, 10, (workload.batch_size,))
    loss = torch.zeros(())
    while turns.wait():
        stalls = 0.0
        for _ in range(COUNT):
            for _ in range(EVERY):
                loss = nn.functional.cross_entropy(model(images), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            started = time.perf_counter()
            with tempfile.TemporaryDirectory() as folder:
                torch.save(
                    {"model": model.state_dict(), "optimizer": optimizer.state_dict()}, Path(folder) / "checkpoint.pt"
                )
                ray.train.report({"loss": loss.item()}, checkpoint=ray.train.Checkpoint.from_directory(folder))
            stalls += time.perf_counter() - started
        turns.reply(1, stalls / COUNT)
    Path(config["done"]).touch()


def main() -> None:
    """Starts a cluster in this process; its worker takes the turns."""
    workload, turns = Workload.from_argv(), Turns()
    ray.init(address="local", include_dashboard=False, log_to_driver=False)
    fit(train, workload, turns, ray.train.CheckpointConfig(num_to_keep=2))
    ray.shutdown()


if __name__ == "__main__":
    main()
