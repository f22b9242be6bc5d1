"""A side: one peer's own process, or one process a rank. What it is told, and how it takes its turns.

The harness writes `run` to a side's standard input when it is its turn. The side trains one segment, answers with one
line of JSON and waits again, blocked in a read: while it waits it takes no time from the others. At the end of
standard input it leaves.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from raytrain import CNN, MLP

if TYPE_CHECKING:
    import torch
    from torch import nn

Form = Literal["files", "jpeg", "raw", "resident"]
"""Photographs in a folder, in a pack of smaller ones, in a pack of pixels, or in memory."""

MODELS = {"mlp": MLP(hidden=(512, 512)), "cnn": CNN(channels=(16, 32)), "small": MLP(hidden=(32,))}
"""The models; a step of the small one is far below 1 ms."""

LARGE = MLP(hidden=(2048, 2048))
"""A model whose weights and momentum are 47 MB, for the rows on checkpoints."""

MEAN, STD = 0.1307, 0.3081
"""MNIST's mean and standard deviation, which every side normalises with."""


@dataclass(frozen=True)
class Workload:
    """What all sides of a comparison train."""

    data: str
    """Folder of a data set as `dataset.prepare` makes it."""
    samples: int
    """Images in an epoch, over all ranks."""
    model: str = "mlp"
    """One of `MODELS`."""
    batch_size: int = 64
    """Images in a step of one rank."""
    ranks: int = 1
    """Processes, each with one thread."""
    segment: int = 0
    """Samples of a turn, over all ranks; 0 is an epoch. Only the side `raytrain` cuts its epochs."""
    loader_alone: bool = False
    """Read the batches and train nothing."""
    exchange: bool = True
    """Whether ranks exchange gradients; only the side `compute` can do without."""
    form: Form = "files"
    """How the side `streaming` has its photographs."""
    overrides: dict[str, Any] = field(default_factory=dict)
    """Fields of raytrain's experiment by their dotted paths; the other sides have no use for them."""

    @staticmethod
    def from_argv() -> Workload:
        """The workload that the harness put on the command line."""
        return Workload(**json.loads(sys.argv[1]))

    def to_json(self) -> str:
        """The inverse of `from_argv`."""
        return json.dumps(asdict(self))

    @property
    def folder(self) -> Path:
        """Where the data set is."""
        return Path(self.data)

    def build(self) -> nn.Module:
        """The model; the same initial weights for every side and rank."""
        import torch

        torch.manual_seed(0)
        return MODELS[self.model].build((1, 28, 28), 10)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Plain SGD, with the settings that raytrain's side gets."""
        import torch

        return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


class Turns:
    """A side's end of the conversation with the harness.

    Args:
        commands: where `run` comes from; standard input by default.
        replies: where answers go; standard output by default, which libraries then no longer print to.
    """

    def __init__(self, commands: str = "", replies: str = ""):
        if not replies:
            self.descriptor = os.dup(1)
            os.dup2(2, 1)
        self.commands = open(commands or 0, closefd=bool(commands))
        self.replies = open(replies or self.descriptor, "w")

    def wait(self) -> bool:
        """Blocks until it is this side's turn; False when there are no more turns."""
        return self.commands.readline().strip() == "run"

    def reply(self, samples: int, seconds: float, loss: float | None = None, **figures: float) -> None:
        """Ends the turn.

        Args:
            samples: what this rank trained on in it.
            seconds: how long that took.
            loss: mean loss of those samples.
            figures: anything else that a row looks at.
        """
        print(json.dumps({"samples": samples, "seconds": seconds, "loss": loss, **memory(), **figures}),
              file=self.replies, flush=True)  # fmt: skip


def memory() -> dict[str, int]:
    """This process's memory in bytes: `pss` (pages that k processes map count 1/k), `uss` (pages that no other process
    maps) and `private` (anonymous ones: what the process wrote itself. A file's pages, which the system can take back
    and share, are not among them, while `uss` has those of a data set that one rank alone maps)."""
    pages: dict[str, int] = {}
    with open("/proc/self/smaps_rollup") as file:
        for line in file.readlines()[1:]:
            name, size = line.split()[:2]
            pages[name.rstrip(":")] = int(size) * 1024
    unshared = pages["Private_Clean"] + pages["Private_Dirty"]
    return {"pss": pages["Pss"], "uss": unshared, "private": pages["Anonymous"]}


def join() -> tuple[int, int]:
    """(rank, ranks) of this process; joins the gloo group where there are several."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if ranks > 1:
        dist.init_process_group("gloo")
    return rank, ranks
