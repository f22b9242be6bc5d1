"""Fine-tuning ResNet-34 with DistributedDataParallel, on a folder of images.

"Setting up multi GPU processing in PyTorch" (Mandal, 2022), all of it: ImageFolder, DistributedSampler with seed 17,
Adam at 1e-3 on what is not frozen, StepLR every 7 epochs, and the best epoch's weights in a file.

    raytrain train experiments/tutorials/resnet.py --data.root DIR --epochs 1
    raytrain train experiments/tutorials/resnet.py --data.root DIR --scaling.workers 4 --model.weights hub

DIR holds trainset/<class>/*.jpg and valset/<class>/*.jpg. `raytrain export runs/resnet-1 best.pth` writes the weights,
and `raytrain predict` loads them. The second command takes four GPUs and downloads pretrained weights (84 MB). On two
CPU cores: 24 images/s, an epoch in 16 s, the whole command in 29 s; validation accuracy 0.54, that of a guess, without
pretrained weights.
"""

from raytrain import DDP, Adam, Augment, Experiment, ImageFolder, Scaling, StepLR, Torchvision

experiment = Experiment(
    model=Torchvision(name="resnet34", weights="cached", freeze=True),
    data=ImageFolder(root="data/hymenoptera", augment=Augment(crop="random_resized", scale=(0.5, 1.0), flip=0.5)),
    optimizer=Adam(lr=1e-3),
    schedule=StepLR(step_size=7),
    parallel=DDP(),
    scaling=Scaling(workers=2),
    batch_size=32,
    epochs=8,
    seed=17,
)
