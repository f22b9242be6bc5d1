"""Ray Train with Ray Data, as their guides have it: read_images, map, streaming into iter_torch_batches.

https://docs.ray.io/en/latest/train/user-guides/data-loading-preprocessing.html,
https://docs.ray.io/en/latest/data/working-with-images.html
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import ray
import ray.data
import ray.train
import ray.train.torch
import torch
from torch import nn
from torchvision import transforms

from benchmarks.side import MEAN, STD, Turns, Workload

SHUFFLE_BUFFER = 250
"""Rows of the local shuffle, as in the guides."""


def preprocess(row: dict[str, Any]) -> dict[str, Any]:
    """A row of read_images to a normalised image and its label, which is its folder's name."""
    transform: Any = transforms.Compose([transforms.ToTensor(), transforms.Normalize((MEAN,), (STD,))])
    return {"image": transform(row["image"]).numpy(), "label": int(row["path"].split("/")[-2])}


def train(config: dict[str, Any]) -> None:
    """Ray Train's worker: an epoch a turn."""
    torch.set_num_threads(1)
    workload, turns = Workload(**config["workload"]), Turns(config["commands"], config["replies"])
    model = ray.train.torch.prepare_model(workload.build())
    criterion, optimizer = nn.CrossEntropyLoss(), workload.optimizer(model)
    shard: Any = ray.train.get_dataset_shard("train")
    while turns.wait():
        started, samples, total = time.perf_counter(), 0, torch.zeros(())
        model.train()
        for batch in batches(shard, workload):
            inputs, labels = batch["image"], batch["label"]
            optimizer.zero_grad()
            loss = criterion(model(inputs), labels)
            loss.backward()
            optimizer.step()
            total += loss.detach() * len(labels)
            samples += len(labels)
        loss = total.item() / samples
        seconds = time.perf_counter() - started
        ray.train.report({"loss": loss})  # a barrier with a poll of seconds: not counted against it
        turns.reply(samples, seconds, loss)
    Path(config["done"]).touch()


def batches(shard: Any, workload: Workload) -> Iterable[dict[str, torch.Tensor]]:
    """An epoch of a data set or of a worker's part of one."""
    return shard.iter_torch_batches(batch_size=workload.batch_size, local_shuffle_buffer_size=SHUFFLE_BUFFER)


def main(materialise: bool = False) -> None:
    """Starts a cluster in this process; its worker takes the turns."""
    workload, turns = Workload.from_argv(), Turns()
    ray.init(address="local", include_dashboard=False, log_to_driver=False)
    dataset = ray.data.read_images(
        str(workload.folder / "png" / "train"), include_paths=True, mode="L", shuffle="files"
    ).map(preprocess)
    if materialise:
        dataset = dataset.materialize()
    if workload.loader_alone:
        load(workload, turns, dataset)
    else:
        fit(train, workload, turns, datasets={"train": dataset})
    ray.shutdown()


def fit(
    train: Callable[..., None], workload: Workload, turns: Turns, checkpoints: Any = None, **arguments: Any
) -> None:
    """Runs a TorchTrainer, whose worker talks to the harness itself, through this process's pipes: to the end of its
    worker, since its own takes ten seconds more."""
    pipes = f"/proc/{os.getpid()}/fd"
    settings = {"commands": f"{pipes}/0", "replies": f"{pipes}/{turns.replies.fileno()}"}
    with tempfile.TemporaryDirectory() as storage:
        done = Path(storage) / "done"
        trainer = ray.train.torch.TorchTrainer(
            train,
            train_loop_config={"workload": asdict(workload), "done": str(done), **settings},
            scaling_config=ray.train.ScalingConfig(num_workers=workload.ranks),
            run_config=ray.train.RunConfig(storage_path=storage, checkpoint_config=checkpoints),
            **arguments,
        )
        thread = threading.Thread(target=trainer.fit, daemon=True)
        thread.start()
        while thread.is_alive() and not done.exists():
            thread.join(0.2)


def load(workload: Workload, turns: Turns, dataset: ray.data.Dataset) -> None:
    """An epoch of batches a turn, and no model."""
    torch.set_num_threads(1)
    while turns.wait():
        started, samples = time.perf_counter(), 0
        for batch in batches(dataset, workload):
            samples += len(batch["label"])
        turns.reply(samples, time.perf_counter() - started)


if __name__ == "__main__":
    main()
