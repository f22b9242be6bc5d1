"""A pipeline: two stages of one model on two GPUs, which the two halves of a batch pass one after the other.

An untitled answer in an examination review ("PyTorch, an open-source machine learning library ..."), "Model Sharding":
Stage1 and Stage2, `Pipe(..., chunks=2)`, batches of 32.

    raytrain train experiments/tutorials/pipeline.py
    raytrain train experiments/tutorials/pipeline.py --parallel.schedule 1f1b --micro_batch_size None

torch.distributed.pipelining with the schedule of Pipe, which PyTorch has dropped. On two CPU cores: validation
accuracy 0.969, as of model_parallel.py, after 1.7 s of training; the whole command takes 12 s.
"""

from dataclasses import dataclass
from math import prod

from torch import nn

from raytrain import SGD, Digits, Experiment, Model, Pipeline, Scaling


@dataclass(frozen=True)
class TwoStages(Model):
    """The document's Stage1 and Stage2, each a linear layer."""

    def build(self, sample, classes):
        """Nothing here knows of stages: the strategy cuts a model's blocks."""
        return nn.Sequential(nn.Flatten(), nn.Linear(prod(sample), 10), nn.Linear(10, classes))


experiment = Experiment(
    model=TwoStages(),
    data=Digits(),
    optimizer=SGD(lr=0.1),
    parallel=Pipeline(schedule="gpipe"),
    scaling=Scaling(workers=2),
    batch_size=32,
    micro_batch_size=16,
    epochs=10,
)
