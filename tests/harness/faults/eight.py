"""Eight trials of a second each, two at a time, for tests that kill them."""

from raytrain import MLP, SGD, Checkpoint, Choice, Digits, Experiment, Grid, LogUniform, Sweep

sweep = Sweep(
    experiment=Experiment(
        model=MLP(hidden=(32,)),
        data=Digits(),
        optimizer=SGD(lr=0.05, momentum=0.9),
        checkpoint=Checkpoint(every_steps=37),
        epochs=40,
    ),
    axes=(
        Grid("batch_size", (32, 64)),
        Choice("optimizer.momentum", (0.0, 0.5, 0.9)),
        LogUniform("optimizer.lr", 0.005, 0.2),
    ),
    objective="val_loss",
    trials=8,
    concurrent=2,
    keep=3,
    retries=8,  # of a trial whose processes are killed
)
