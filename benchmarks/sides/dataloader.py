"""A DataLoader with as many processes as there are cores over an ImageFolder of JPEG files; no model.

https://docs.pytorch.org/tutorials/beginner/transfer_learning_tutorial.html
"""

from __future__ import annotations

import time

from torch.utils.data import DataLoader
from torchvision import datasets, transforms

from benchmarks.side import Turns, Workload, join


def main() -> None:
    """An epoch a turn."""
    workload, turns = Workload.from_argv(), Turns()
    join()
    transform = transforms.Compose(
        [
            transforms.Resize(256),
            transforms.CenterCrop(224),
            transforms.ToTensor(),
            transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
        ]
    )
    folder = datasets.ImageFolder(str(workload.folder / "train"), transform)
    loader = DataLoader(folder, workload.batch_size, shuffle=True, num_workers=2, persistent_workers=True)
    while turns.wait():
        started, samples = time.perf_counter(), 0
        for images, _ in loader:
            samples += len(images)
        turns.reply(samples, time.perf_counter() - started)


if __name__ == "__main__":
    main()
