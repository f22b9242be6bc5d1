"""The tutorials' script: ImageFolder, a DataLoader as it comes, DistributedSampler and DDP, the loss read every step.

https://docs.pytorch.org/tutorials/intermediate/ddp_tutorial.html,
https://docs.pytorch.org/tutorials/beginner/basics/optimization_tutorial.html
"""

from __future__ import annotations

import time
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler
from torchvision import datasets, transforms

from benchmarks.side import MEAN, STD, Turns, Workload, join


def image_folder(workload: Workload) -> Dataset[Any]:
    """The PNG files; ImageFolder opens them as RGB."""
    transform = transforms.Compose(
        [transforms.Grayscale(), transforms.ToTensor(), transforms.Normalize((MEAN,), (STD,))]
    )
    return datasets.ImageFolder(str(workload.folder / "png" / "train"), transform)


def train(workload: Workload, turns: Turns, dataset: Dataset[Any]) -> None:
    """An epoch a turn."""
    rank, ranks = join()
    model: nn.Module = workload.build()
    sampler = None
    if ranks > 1:
        model = DistributedDataParallel(model)
        sampler = DistributedSampler(dataset, num_replicas=ranks, rank=rank)  # type: ignore[arg-type]
    loader = DataLoader(dataset, batch_size=workload.batch_size, sampler=sampler, shuffle=sampler is None)
    criterion, optimizer = nn.CrossEntropyLoss(), workload.optimizer(model)
    epoch = 0
    while turns.wait():
        started, total, samples = time.perf_counter(), 0.0, 0
        if sampler is not None:
            sampler.set_epoch(epoch)
        model.train()
        for data, target in loader:
            optimizer.zero_grad()
            output = model(data)
            loss = criterion(output, target)
            loss.backward()
            optimizer.step()
            total += loss.item() * len(target)
            samples += len(target)
        turns.reply(samples, time.perf_counter() - started, total / samples)
        epoch += 1


if __name__ == "__main__":
    told, taken = Workload.from_argv(), Turns()
    train(told, taken, image_folder(told))
