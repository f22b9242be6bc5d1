"""Fine-tuning: ResNet-34 with a frozen backbone and a new head, on a folder of images.

    raytrain train experiments/finetune.py --data.root DIR --model.weights hub

DIR holds train/<class>/*.jpg and val/<class>/*.jpg, or <class>/*.jpg alone. `--model.weights hub` downloads
torchvision's pretrained weights (84 MB); without it they are taken from torchvision's cache, where they are there, and
else the plan says that the backbone is random (and the accuracy is that of a guess). On two cores 22 images/s.
"""

from raytrain import Adam, Augment, Experiment, ImageFolder, StepLR, Torchvision

experiment = Experiment(
    model=Torchvision(name="resnet34", weights="cached", freeze=True),
    data=ImageFolder(
        root="data/hymenoptera",
        size=256,
        crop=224,
        augment=Augment(crop="random_resized", scale=(0.5, 1.0), flip=0.5),
    ),
    optimizer=Adam(lr=1e-3),
    schedule=StepLR(step_size=7, gamma=0.1),
    batch_size=16,
    epochs=4,
)
