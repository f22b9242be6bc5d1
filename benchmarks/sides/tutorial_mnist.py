"""The tutorials' script with torchvision's MNIST, which keeps the images in memory, instead of ImageFolder."""

from __future__ import annotations

from torch.utils.data import Subset
from torchvision import datasets, transforms

from benchmarks.side import MEAN, STD, Turns, Workload
from benchmarks.sides.tutorial import train


def main() -> None:
    """An epoch a turn."""
    workload, turns = Workload.from_argv(), Turns()
    transform = transforms.Compose([transforms.ToTensor(), transforms.Normalize((MEAN,), (STD,))])
    dataset = datasets.MNIST(str(workload.folder), train=True, transform=transform)
    train(workload, turns, Subset(dataset, range(workload.samples)) if workload.samples < len(dataset) else dataset)


if __name__ == "__main__":
    main()
