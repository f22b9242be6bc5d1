"""Which precision and which batch size train an MLP on MNIST best on these devices: in time, memory and accuracy.

    raytrain sweep experiments/sweep_amp_batch.py --data.root data/mnist

Eight trials of one worker each, as many at once as there are CPUs or GPUs. In fp32, eight trials take 63 s on two CPU
cores, and eight `raytrain train` 165 s (docs/benchmarks-sweeps.md); the best is bf16 or fp32 with batches of 64, at
0.983.
"""

from raytrain import MLP, MNIST, SGD, Cosine, Experiment, Grid, Sweep

sweep = Sweep(
    experiment=Experiment(
        model=MLP(hidden=(512, 512)),
        data=MNIST(root="data/mnist"),
        optimizer=SGD(lr=0.05, momentum=0.9),
        schedule=Cosine(warmup_epochs=0.2),
        epochs=2,
    ),
    axes=(
        Grid("precision", ("fp32", "bf16")),
        Grid("batch_size", (64, 128, 256, 512)),
    ),
)
