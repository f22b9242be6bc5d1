from raytrain import MLP, SGD, Cosine, Digits, Experiment, Scaling

experiment = Experiment(
    model=MLP(hidden=(2,)),
    data=Digits(),
    optimizer=SGD(lr=0.05, momentum=0.9),
    schedule=Cosine(warmup_epochs=0.5),
    batch_size=256,
    epochs=3,
    scaling=Scaling(workers=1),
)
