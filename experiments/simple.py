"""The DDP tutorials' SimpleModel (784-10-10-10) on MNIST: SGD at 0.01, pixels in [0, 1], 32 images a worker.

    raytrain train experiments/simple.py --data.root DIR --scaling.workers 2 --batch_size 64

DIR holds MNIST/raw as torchvision keeps it; `--data.download` fetches what is missing (11 MB).
"""

from raytrain import MNIST, SGD, Experiment, SimpleModel

experiment = Experiment(
    model=SimpleModel(),
    data=MNIST(root="data/mnist", mean=(0.0,), std=(1.0,)),
    optimizer=SGD(lr=0.01),
    batch_size=32,
    epochs=5,
)
