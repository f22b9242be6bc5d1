"""raytrain's streaming reader and loader over the same JPEG files, as for data larger than memory; no model."""

from __future__ import annotations

import logging
import time

import ray
import torch

from benchmarks.side import Turns, Workload, join
from raytrain import ImageFolder
from raytrain.data.loader import Loader, keep_memory
from raytrain.data.streaming import Streaming


def main() -> None:
    """An epoch a turn."""
    workload, turns = Workload.from_argv(), Turns()
    join()
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)
    ray.init(address="local", include_dashboard=False, log_to_driver=False)
    data = ImageFolder(root=str(workload.folder), size=256, crop=224)
    index = data.index()["train"]
    reader, device = Streaming(data, index, ray.put(index)), torch.device("cpu")
    loader = Loader(data, index, reader, workload.batch_size, 0, 0, 1, device, train=True)
    epoch = 0
    keep_memory()  # as raytrain's worker does
    while turns.wait():
        started, samples, first = time.perf_counter(), 0, 0.0
        for loaded in loader.epoch(epoch):
            for batch in loaded.micro_batches(workload.batch_size):
                samples += len(batch)
                first = first or time.perf_counter() - started
        turns.reply(samples, time.perf_counter() - started, first=first)
        epoch += 1
    ray.shutdown()


if __name__ == "__main__":
    main()
