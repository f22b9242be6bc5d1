"""Two trials of two workers each, one at a time on two CPUs, for tests that end their processes."""

from raytrain import MLP, SGD, Checkpoint, Digits, Experiment, Grid, Scaling, Sweep

sweep = Sweep(
    experiment=Experiment(
        model=MLP(hidden=(32,)),
        data=Digits(),
        optimizer=SGD(lr=0.05, momentum=0.9),
        scaling=Scaling(workers=2, threads_per_worker=1),
        checkpoint=Checkpoint(every_steps=37),
        epochs=200,
    ),
    axes=(Grid("optimizer.lr", (0.05, 0.01)),),
    concurrent=1,
    keep=2,
)
