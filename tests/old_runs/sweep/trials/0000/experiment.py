from small import experiment

from raytrain import Choice, LogUniform, Sweep

sweep = Sweep(experiment, (LogUniform("optimizer.lr", 0.01, 0.1), Choice("batch_size", (128, 256))), trials=3)
