"""Model sharding: each GPU holds a part of every weight, gradient and optimizer state.

An untitled answer in an examination review ("PyTorch, an open-source machine learning library ..."), "Model Sharding":
for models "that cannot fit into the memory of a single GPU"; it names torch.distributed.rpc for that.

    raytrain train experiments/tutorials/fsdp.py
    raytrain train experiments/tutorials/fsdp.py --scaling.workers 4 --parallel.param_dtype bf16

PyTorch's FSDP2 in place of calls between processes: a block's weights are gathered when its turn comes and dropped
after it. The second command takes four GPUs, or four processes here. On two CPU cores: validation accuracy 0.983 after
7.9 s of training; the whole command takes 18 s.
"""

from raytrain import FSDP, MLP, SGD, Digits, Experiment, Scaling

experiment = Experiment(
    model=MLP(hidden=(512, 512)),
    data=Digits(),
    optimizer=SGD(lr=0.05, momentum=0.9),
    parallel=FSDP(),
    scaling=Scaling(workers=2),
    batch_size=32,
    epochs=10,
)
