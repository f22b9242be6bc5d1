"""Ray Tune over Ray Train as Ray's guide has it: each trial is a driver function that builds a TorchTrainer, whose
worker runs the tutorials' loop with torchvision's MNIST, a DataLoader as it comes and autocast; or, if `resident`, with
all images of it as one normalised tensor in memory, of which a batch is a part.

https://docs.ray.io/en/latest/train/user-guides/hyperparameter-optimization.html,
https://docs.pytorch.org/tutorials/recipes/recipes/amp_recipe.html
"""

from __future__ import annotations

import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ray
import ray.train
import ray.train.torch
import ray.tune
import torch
from ray.tune.integration.ray_train import TuneReportCallback
from torch import nn
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

from benchmarks.side import MEAN, STD


class Resident:
    """Batches of images that are a tensor in memory. A loader of the loop below, as far as it needs one."""

    def __init__(self, dataset: datasets.MNIST, batch_size: int, shuffle: bool):
        self.images = (dataset.data[:, None].float() / 255 - MEAN) / STD
        self.labels, self.batch_size, self.shuffle = dataset.targets, batch_size, shuffle

    def __len__(self) -> int:
        return -(-len(self.labels) // self.batch_size)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        count = len(self.labels)
        order = torch.randperm(count) if self.shuffle else torch.arange(count)
        for part in order.split(self.batch_size):
            yield self.images[part], self.labels[part]


def train(config: dict[str, Any]) -> None:
    """A trial's epochs on its worker, with a checkpoint at the end of each."""
    began = time.time()
    transform = transforms.Compose([transforms.ToTensor(), transforms.Normalize((config["mean"],), (config["std"],))])
    training = datasets.MNIST(config["data"], train=True, transform=transform)
    validation = datasets.MNIST(config["data"], train=False, transform=transform)
    size = config["batch_size"]
    if config["resident"]:
        loader, validation_loader = Resident(training, size, True), Resident(validation, size, False)
    else:
        loader = ray.train.torch.prepare_data_loader(DataLoader(training, size, shuffle=True))
        validation_loader = ray.train.torch.prepare_data_loader(DataLoader(validation, size))
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Flatten(), nn.Linear(784, 512), nn.ReLU()),
        *(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)),
    )
    model = ray.train.torch.prepare_model(model)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=config["momentum"])
    warmup, total = round(config["warmup_epochs"] * len(loader)), config["epochs"] * len(loader)

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, total - warmup)))

    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    autocast = torch.autocast("cpu", torch.bfloat16, enabled=config["precision"] == "bf16")
    for _ in range(config["epochs"]):
        model.train()
        for images, labels in loader:
            optimizer.zero_grad()
            with autocast:
                loss = criterion(model(images), labels)
            loss.backward()
            optimizer.step()
            scheduler.step()
        model.eval()
        correct = 0
        with torch.no_grad(), autocast:
            for images, labels in validation_loader:
                correct += int((model(images).argmax(1) == labels).sum())
        metrics = {"val_accuracy": correct / len(validation), "seconds": time.time() - began}
        with tempfile.TemporaryDirectory() as folder:
            torch.save(model.state_dict(), os.path.join(folder, "model.pt"))
            ray.train.report(metrics, checkpoint=ray.train.Checkpoint.from_directory(folder))


def drive(config: dict[str, Any]) -> None:
    """A trial. On a machine whose CPUs the workers fill, a worker and its driver ask for one together: the guide's
    drivers take a CPU each, and workers would wait for them for ever."""
    trainer = ray.train.torch.TorchTrainer(
        train,
        train_loop_config=config,
        scaling_config=ray.train.ScalingConfig(num_workers=1, resources_per_worker={"CPU": 0.99}),
        run_config=ray.train.RunConfig(
            name=f"train-trial_id={ray.tune.get_context().get_trial_id()}",
            storage_path=config["storage"],
            callbacks=[TuneReportCallback()],
        ),
    )
    trainer.fit()


def main() -> None:
    """`ray_tune.py JSON`: the fields of `config` above, `axes` with the values to cross, how many trials `at_once`, and
    the file `answer` to write, with each trial's axes and metrics."""
    told = json.loads(sys.argv[1])
    axes, answer, at_once = told.pop("axes"), told.pop("answer"), told.pop("at_once")
    ray.init(address="local")
    with tempfile.TemporaryDirectory() as storage:
        tuner = ray.tune.Tuner(
            ray.tune.with_resources(drive, {"cpu": 0.01}),
            param_space={
                **told,
                **{"storage": storage, "mean": MEAN, "std": STD},
                **{name: ray.tune.grid_search(values) for name, values in axes.items()},
            },
            run_config=ray.tune.RunConfig(name="tune", storage_path=storage),
            tune_config=ray.tune.TuneConfig(max_concurrent_trials=at_once),
        )
        trials = []
        for result in tuner.fit():
            if result.error is not None:
                raise result.error
            assert result.metrics
            values = {name: result.metrics["config"][name] for name in axes}
            trials.append({**values, **{name: result.metrics[name] for name in ("val_accuracy", "seconds")}})
    Path(answer).write_text(json.dumps(trials))


if __name__ == "__main__":
    main()
