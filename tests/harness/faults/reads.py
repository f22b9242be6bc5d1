"""The experiment whose reads are disturbed: a raw pack of many small shards at a URL, read by two workers."""

from paced import Paced

from raytrain import CNN, SGD, Checkpoint, Experiment, Packed, Scaling

experiment = Experiment(
    model=CNN(channels=(4, 8)),
    data=Packed("s3://bucket/pack", mode="streaming"),
    task=Paced(seconds=0.03),
    optimizer=SGD(lr=0.05, momentum=0.9),
    scaling=Scaling(workers=2, max_failures=0),
    checkpoint=Checkpoint(every_steps=10),
    batch_size=16,
    epochs=8,
)
