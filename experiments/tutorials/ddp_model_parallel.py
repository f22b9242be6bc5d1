"""DistributedDataParallel around model parallel: two replicas, each over two GPUs.

"Scale training on multiple GPUs with PyTorch" (Das), "Distributed Data Parallel with Model Parallel".

    raytrain train experiments/tutorials/ddp_model_parallel.py
    raytrain train experiments/tutorials/ddp_model_parallel.py --scaling.gpus_per_worker 2

Each of two workers is one of the slides' machines. The second command takes four GPUs, of this machine or, with
`--address auto`, of a cluster. On two CPU cores: validation accuracy 0.969, as of model_parallel.py, after 1.2 s of
training; the whole command takes 8 s.
"""

from dataclasses import dataclass
from math import prod

from torch import nn

from raytrain import SGD, Digits, Experiment, Model, ModelParallel, Scaling


@dataclass(frozen=True)
class Net(Model):
    """The slides' two linear layers, sub_net1 and sub_net2."""

    def build(self, sample, classes):
        """Nothing here knows of devices."""
        return nn.Sequential(nn.Flatten(), nn.Linear(prod(sample), 10), nn.Linear(10, classes))


experiment = Experiment(
    model=Net(),
    data=Digits(),
    optimizer=SGD(lr=0.1),
    parallel=ModelParallel(parts=2),
    scaling=Scaling(workers=2),
    batch_size=32,
    epochs=10,
)
